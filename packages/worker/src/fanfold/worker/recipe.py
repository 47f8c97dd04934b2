"""A class and the arguments of its constructor, kept until the rank exists on which it is built."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import PerRank
from fanfold.worker.errors import GroupUsageError, RecipeError
from fanfold.worker.rank import current_rank
from fanfold.worker.typos import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class OfRank:
    """An argument that differs from rank to rank, as `PerRank([...])` or `PerRank(function_of_the_rank)` says."""

    def __init__(self, source: Sequence[Any] | Callable[[int], Any]) -> None:
        self.source = source

    def of(self, rank: int) -> Any:
        """Return the argument of one rank."""
        return self.source(rank) if callable(self.source) else self.source[rank]


class ClassWithInitArgs:
    """The recipe of a worker: its class, and what its constructor is called with on each rank.

    Args:
        cls: The worker class.
        args: Positional arguments of its constructor. `PerRank([...])` gives each rank its own, `PerRank(function)`
            what the function returns for the rank's number, evaluated on that rank.
        kwargs: Keyword arguments of its constructor, in the same way.

    Raises:
        RecipeError: `cls` is not a class, or its constructor does not take these arguments.
    """

    def __init__(self, cls: type, *args: Any, **kwargs: Any) -> None:
        if not isinstance(cls, type):
            raise RecipeError(f"a worker is made from a class; got {cls!r} of type {type(cls).__name__}")
        _check_constructor(cls, args, kwargs)
        self.cls = cls
        self.args = tuple(map(_kept, args))
        self.kwargs = {name: _kept(value) for name, value in kwargs.items()}

    def __call__(self) -> Any:
        """Build the worker; on a rank where an argument differs from rank to rank."""
        args, kwargs = self._arguments(lambda value: value.of(current_rank().rank))
        return self.cls(*args, **kwargs)

    def build(self, prepare: Callable[[Any], None]) -> Any:
        """Build the worker, with something done to the instance before its constructor runs."""
        args, kwargs = self._arguments(lambda value: value.of(current_rank().rank))
        cls: Any = self.cls
        worker = cls.__new__(cls) if cls.__new__ is object.__new__ else cls.__new__(cls, *args, **kwargs)
        prepare(worker)
        cls.__init__(worker, *args, **kwargs)
        return worker

    def for_rank(self, rank: int) -> ClassWithInitArgs:
        """Return the recipe with that rank's own arguments; what a function makes is left for the rank to make."""
        if not self._per_rank():
            return self
        args, kwargs = self._arguments(lambda value: value if callable(value.source) else value.of(rank))
        return self.with_arguments(args, kwargs)

    def with_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ClassWithInitArgs:
        """Return a recipe of the same kind and class with other arguments."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, args=tuple(args), kwargs=dict(kwargs))
        return copy

    def check(self, world_size: int) -> None:
        """Refuse lists with one item for each rank that have another length, and what the class itself refuses.

        Raises:
            GroupUsageError: Names the argument, what it has and what the group needs.
            Exception: Whatever the class's `check_before_start` raises.
        """
        for name, value in self._per_rank().items():
            if not callable(value.source) and len(value.source) != world_size:
                raise GroupUsageError(
                    f"{self.cls.__qualname__}({name}=PerRank(...)) has {len(value.source)} items; "
                    f"the group has {world_size} ranks, and each needs one"
                )
        of_class = getattr(self.cls, "check_before_start", None)
        if of_class is not None:
            known = {name: value for name, value in self.kwargs.items() if not isinstance(value, OfRank)}
            of_class(world_size, known)

    def _per_rank(self) -> dict[str, OfRank]:
        named = {**{f"argument {i}": value for i, value in enumerate(self.args)}, **self.kwargs}
        return {name: value for name, value in named.items() if isinstance(value, OfRank)}

    def _arguments(self, of_rank: Callable[[OfRank], Any]) -> tuple[list[Any], dict[str, Any]]:
        def own(value: Any) -> Any:
            return of_rank(value) if isinstance(value, OfRank) else value

        return [own(value) for value in self.args], {name: own(value) for name, value in self.kwargs.items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.cls.__qualname__})"


def as_recipe(class_with_init: ClassWithInitArgs | type) -> ClassWithInitArgs:
    """Take a class that needs no arguments wherever a recipe is wanted."""
    return class_with_init if isinstance(class_with_init, ClassWithInitArgs) else ClassWithInitArgs(class_with_init)


def _kept(value: Any) -> Any:
    # The mark itself refuses to travel, because elsewhere it would be a mark that planning has not seen.
    return OfRank(value.value) if isinstance(value, PerRank) else value


def _check_constructor(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(cls)
    except ValueError:  # a class written in C may not say
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        near = nearest(kwargs, set(signature.parameters) - set(kwargs))
        hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
        taken = signature.replace(return_annotation=inspect.Signature.empty)
        raise RecipeError(f"{cls.__qualname__}{taken} cannot be built like that: {error}{hint}") from None
