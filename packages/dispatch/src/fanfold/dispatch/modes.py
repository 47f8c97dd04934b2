"""Dispatch and Execute: the names of modes; new dispatch modes can be added at run time."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from fanfold.dispatch.errors import DuplicateModeError, UnknownModeError

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Members(type):
    """Look-up, iteration and membership on the class itself, as users of an enum expect."""

    _by_name: dict[str, Dispatch]

    def __getitem__(cls, name: str) -> Dispatch:
        return cls.from_name(name)

    def __iter__(cls) -> Iterator[Dispatch]:
        return iter(list(cls._by_name.values()))

    def __len__(cls) -> int:
        return len(cls._by_name)

    def __contains__(cls, mode: object) -> bool:
        return any(mode is member or mode == member.name for member in cls)

    def from_name(cls, name: str) -> Dispatch:
        """The mode of that name, in any case.

        Raises:
            UnknownModeError: there is none in this process.
        """
        try:
            return cls._by_name[name.upper()]
        except KeyError:
            raise UnknownModeError(
                f"there is no dispatch mode {name!r} in this process; there are {', '.join(cls._by_name)}; "
                "add one with register_dispatch_mode"
            ) from None

    def names(cls) -> list[str]:
        """All names, in the order of registration."""
        return list(cls._by_name)

    def values(cls) -> list[int]:
        """All numbers, in the order of registration."""
        return [mode.value for mode in cls]


class Dispatch(metaclass=_Members):
    """How a method's arguments are spread over ranks. A member is one object per process; it pickles by name.

    RANK_ZERO: only rank 0 runs the method; its value is the result.
    ONE_TO_ALL: every rank gets every argument whole; a list of results.
    ALL_TO_ALL: lists of world size give item i to rank i, anything else goes whole; a list of results.
    DP_COMPUTE: every argument is a list of world size; a list of results.
    DP_COMPUTE_PROTO: batches are divided over all ranks; batches that come back are put together.
    DP_COMPUTE_PROTO_WITH_FUNC: the same, and the first argument is a function that goes whole.
    DP_COMPUTE_METRIC: batches are divided over all ranks; a list of results, one per rank.
    DIRECT_ROLLOUT_METHOD: not called through the group at all.
    """

    RANK_ZERO: ClassVar[Dispatch]
    ONE_TO_ALL: ClassVar[Dispatch]
    ALL_TO_ALL: ClassVar[Dispatch]
    DP_COMPUTE: ClassVar[Dispatch]
    DP_COMPUTE_PROTO: ClassVar[Dispatch]
    DP_COMPUTE_PROTO_WITH_FUNC: ClassVar[Dispatch]
    DP_COMPUTE_METRIC: ClassVar[Dispatch]
    DIRECT_ROLLOUT_METHOD: ClassVar[Dispatch]

    _by_name: ClassVar[dict[str, Dispatch]] = {}

    def __init__(self, name: str, value: int, module: str) -> None:
        self.name = name
        self.value = value
        self.module = module

    def __repr__(self) -> str:
        return f"Dispatch.{self.name}"

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (self.name, self.module)

    @classmethod
    def register(cls, name: str, module: str = "") -> Dispatch:
        """Add a mode; `register_dispatch_mode` also says what it does.

        Raises:
            DuplicateModeError: the name is taken.
        """
        name = name.upper()
        if name in cls._by_name:
            raise DuplicateModeError(
                f"dispatch mode {name!r} exists already; choose another name, or change what it does with "
                "update_dispatch_mode"
            )
        mode = cls(name, max(cls.values(), default=-1) + 1, module)
        cls._by_name[name] = mode
        setattr(cls, name, mode)
        return mode

    @classmethod
    def remove(cls, name: str) -> Dispatch:
        """Take a mode away again."""
        mode = cls.from_name(name)
        del cls._by_name[mode.name]
        delattr(cls, mode.name)
        return mode


class Execute(Enum):
    """Which ranks run a method."""

    ALL = 0
    RANK_ZERO = 1


def _unpickled(name: str, module: str) -> Dispatch:
    if name in Dispatch.names():
        return Dispatch.from_name(name)
    advice = f"import {module} there first: it registers the mode" if module else "register it there first"
    raise UnknownModeError(f"dispatch mode {name!r} is not registered in this process; {advice}")


for _name in (
    "RANK_ZERO",
    "ONE_TO_ALL",
    "ALL_TO_ALL",
    "DP_COMPUTE",
    "DP_COMPUTE_PROTO",
    "DP_COMPUTE_PROTO_WITH_FUNC",
    "DP_COMPUTE_METRIC",
    "DIRECT_ROLLOUT_METHOD",
):
    Dispatch.register(_name, __name__)
