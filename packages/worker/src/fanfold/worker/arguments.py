"""The arguments of a call before it is planned: results that are not here yet, lists that may be meant per rank."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import PerRank, Replicate, Shard
from fanfold.worker.calls import Call
from fanfold.worker.errors import GroupUsageError
from fanfold.worker.limits import Deadline
from fanfold.worker.several import call_behind, stands_for_result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def soonest(deadline: Deadline, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deadline:
    """Return the deadline of a call that depends on others: theirs, where they have less time left."""
    for value in (*args, *kwargs.values()):
        call = call_behind(_held(value)) if stands_for_result(_held(value)) else None
        if call is not None and call.deadline.left() < deadline.left():
            deadline = Deadline(call.deadline.left(), deadline.what)
    return deadline


def resolved(args: Sequence[Any], kwargs: Mapping[str, Any], deadline: Deadline) -> Arguments:
    """Return the arguments with the results of calls in the places of the calls; waits for them.

    Raises:
        GroupCallError: One of those calls failed.
        WaitTimeoutError: They were not over in time.
    """
    return (
        tuple(_resolved(value, deadline) for value in args),
        {name: _resolved(value, deadline) for name, value in kwargs.items()},
    )


def check_takes_worker(function: Any) -> None:
    """Refuse what cannot be run as `function(worker, ...)`.

    Raises:
        GroupUsageError: It is no function, or one that takes no argument.
    """
    if isinstance(function, str):
        raise GroupUsageError(
            f"execute runs a function that is given the worker first; execute_all({function!r}, ...) calls a method by "
            "its name"
        )
    if not callable(function):
        raise GroupUsageError(f"execute runs a function that is given the worker first; got {function!r}")
    code = getattr(function, "__code__", None)
    if code is not None and not code.co_argcount and not code.co_flags & _HAS_STAR:
        raise GroupUsageError(f"{function.__qualname__}() takes no argument; execute gives it the worker first")


_HAS_STAR = 0x04  # what the inspect module calls CO_VARARGS


def warn_of_scattering(method: str, world_size: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Warn where every argument is a list of as many items as there are ranks: it goes whole, but is it meant to?"""
    values = [*args, *kwargs.values()]
    if world_size > 1 and values and all(isinstance(value, list) and len(value) == world_size for value in values):
        warnings.warn(
            f"execute_all({method!r}): every argument is a list of {world_size} items, as many as there are ranks; "
            "lists go whole to every rank. Say PerRank([...]) to give each rank its own item, or Replicate([...]) if "
            "this is what you want",
            stacklevel=4,
        )


def _held(value: Any) -> Any:
    is_mark = isinstance(value, (PerRank, Replicate, Shard))
    return value.value if is_mark and value.has_value else value


def _resolved(value: Any, deadline: Deadline) -> Any:
    held = _held(value)
    if not isinstance(held, Call):
        return value
    result = held.result(deadline.left())
    return result if held is value else _marked(value, result)


def _marked(mark: Any, result: Any) -> Any:
    return Shard(result, mark.axis, weights=mark.weights) if isinstance(mark, Shard) else type(mark)(result)
