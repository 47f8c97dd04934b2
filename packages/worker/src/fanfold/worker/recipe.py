"""A class and the arguments of its constructor, kept until the rank exists on which it is built."""

from __future__ import annotations

from typing import Any

from fanfold.worker.errors import GroupUsageError


class ClassWithInitArgs:
    """The recipe of a worker: its class, and what its constructor is called with on each rank.

    Args:
        cls: The worker class.
        args: Positional arguments of its constructor.
        kwargs: Keyword arguments of its constructor.

    Raises:
        GroupUsageError: `cls` is not a class.
    """

    def __init__(self, cls: type, *args: Any, **kwargs: Any) -> None:
        if not isinstance(cls, type):
            raise GroupUsageError(f"a worker is made from a class; got {cls!r} of type {type(cls).__name__}")
        self.cls = cls
        self.args = args
        self.kwargs = dict(kwargs)

    def __call__(self) -> Any:
        return self.cls(*self.args, **self.kwargs)

    def for_rank(self, rank: int) -> ClassWithInitArgs:
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.cls.__qualname__})"
