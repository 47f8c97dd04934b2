"""What driver and rank of the processes backend say to each other. Values of the user travel in parcels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.dispatch import CallContext
    from fanfold.worker.rank import RankInfo
    from fanfold.worker.stuck import RankStatus


class Boot(NamedTuple):
    """Driver, once: who you are and what to build."""

    info: RankInfo
    name: str
    paths: Sequence[str]
    arguments: Sequence[str]
    recipe: Any


class Run(NamedTuple):
    """Driver: run a method; `method` is a name, or a parcel of a function that is given the worker first."""

    call: int
    method: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    context: CallContext
    wanted: bool
    readonly: bool
    label: str


class Cancel(NamedTuple):
    """Driver: drop a call, or tell the method that its result is not wanted any more."""

    call: int


class Ask(NamedTuple):
    """Driver: where are you?"""

    question: int


class Stop(NamedTuple):
    """Driver: finish what you are in, and end."""


class Ready(NamedTuple):
    """Rank, once: the worker is built."""

    node: str


class Done(NamedTuple):
    """Rank: a method returned; also the answer to a dropped call."""

    call: int
    value: Any


class Failed(NamedTuple):
    """Rank: a method raised (or the worker could not be built, then `call` is -1)."""

    call: int
    error: Any
    class_name: str
    text: str
    trace: str
    when: float


class Cancelled(NamedTuple):
    """Rank: what `Cancel` could do: "dropped", "running" or "finished"."""

    call: int
    found: str


class Here(NamedTuple):
    """Rank: the answer to `Ask`."""

    question: int
    status: RankStatus
