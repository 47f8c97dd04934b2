"""Finds ranks of this process again by what a pickled group of them carries."""

from __future__ import annotations

import itertools
import os
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from fanfold.worker.errors import GroupUsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.worker.backend import StartedRank


class Address(NamedTuple):
    """Where ranks are: the process, the number of their backend there, and the numbers of their doors."""

    process: int
    backend: int
    doors: tuple[int, ...]


_ranks: weakref.WeakValueDictionary[int, StartedRank] = weakref.WeakValueDictionary()
_backends: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_next = itertools.count()


def address_of(backend: Any, ranks: Sequence[StartedRank]) -> Address:
    """Write ranks down, for as long as somebody holds them."""
    for rank in ranks:
        _ranks[_number(rank.door)] = rank
    _backends[_number(backend)] = backend
    return Address(os.getpid(), _number(backend), tuple(_number(rank.door) for rank in ranks))


def _number(thing: Any) -> int:
    # Counted, not id(): that of a thing that is gone may be another one's by now.
    return _numbers.setdefault(thing, next(_next))


def found(address: Address) -> tuple[Any, list[StartedRank]]:
    """Return the backend and the ranks at an address.

    Raises:
        GroupUsageError: They are in another process, or gone.
    """
    here = address.process == os.getpid()
    backend = _backends.get(address.backend) if here else None
    ranks = [rank for door in address.doors if (rank := _ranks.get(door)) is not None]
    if backend is None or len(ranks) < len(address.doors):
        raise GroupUsageError(
            "a group whose ranks live in its driver's process can be used in that process only; this is another, or "
            "its ranks are gone"
        )
    return backend, ranks
