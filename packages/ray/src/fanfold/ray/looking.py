"""What can be seen of a detached group from the outside, without being one of its clients."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fanfold.ray.custodian import GroupState, custodian_of
from fanfold.ray.detached import ask_state
from fanfold.ray.discovery import no_such_group
from fanfold.ray.errors import BrokenGroupError, GroupStartingError
from fanfold.ray.logs import LogPart, read_log
from fanfold.ray.names import named_actors
from fanfold.ray.naming import worker_names_of
from fanfold.ray.refs import awaited, value_of
from fanfold.ray.sidedoor import ring
from fanfold.worker import RankStatus

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fanfold.ray.answers import RankAnswer
    from fanfold.ray.manifest import Manifest, RankRecord

_ANSWER_LIMIT = 10.0  # seconds for a custodian, or a node that reads a file


@dataclass(frozen=True)
class SeenGroup:
    """A detached group as it is now: what its custodian says, and which of its workers live."""

    state: GroupState
    manifest: Manifest
    living: frozenset[str]

    def as_data(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return {
            "group": self.state.group,
            "namespace": self.state.namespace,
            "state": self.condition,
            "age": round(self.state.age, 1),
            "silence": round(self.state.silence, 1),
            "keep_for": self.manifest.keep_for,
            "class": self.manifest.class_path,
            "versions": dict(self.manifest.versions),
            "process_on_nodes": list(self.manifest.process_on_nodes),
            "methods": dict(self.manifest.methods),
            "meshes": {f"{role}.{name}" if role else name: list(mesh.axes) for role, name, mesh in self._meshes()},
            "ranks": [self._rank(record) for record in self.manifest.ranks],
        }

    @property
    def condition(self) -> str:
        """The group's state in one word: "broken" where ranks are gone."""
        gone = [record for record in self.manifest.ranks if record.name not in self.living]
        return "broken" if gone and self.state.state == "ready" else self.state.state

    def _meshes(self) -> list[tuple[str, str, Any]]:
        return [(role, name, mesh) for role, meshes in self.manifest.meshes.items() for name, mesh in meshes.items()]

    def _rank(self, record: RankRecord) -> dict[str, Any]:
        return {
            "rank": record.rank,
            "name": record.name,
            "alive": record.name in self.living,
            "node": record.answer.address,
            "node_id": record.answer.node_id,
            "pid": record.answer.pid,
            "gpu_ids": list(record.answer.gpu_ids),
            "bundle": record.bundle_index,
            "coordinates": {name: mesh.where(record.rank) for _, name, mesh in self._meshes()},
        }


def see_group(group: str, namespace: str) -> SeenGroup:
    """Look at a detached group; ranks may be gone.

    Raises:
        NoSuchGroupError: No group of that name lives in that namespace; says where there is one.
        GroupStartingError: It is not ready.
        BrokenGroupError: Its custodian is gone; names the workers that live.
    """
    custodian = custodian_of(group, namespace)
    if custodian is None:
        workers = worker_names_of(group, namespace)
        if not workers:
            raise no_such_group(group, namespace)
        raise BrokenGroupError(f"the custodian of group {group!r} is gone; these workers live: {', '.join(workers)}")
    state = ask_state(custodian)
    what = f"asking the custodian of group {group!r}"
    manifest: Any = None if state is None else awaited(custodian.peek.remote(), _ANSWER_LIMIT, what)
    if state is None:
        raise BrokenGroupError(f"the custodian of group {group!r} does not answer; `fanfold stop {group}` ends it")
    if manifest is None:
        raise GroupStartingError(f"group {group!r} is still starting, for {state.age:.0f} s now")
    living = frozenset(name for where, name in named_actors() if where == namespace)
    return SeenGroup(state, manifest, living)


def statuses(seen: SeenGroup, limit: float) -> dict[int, RankStatus]:
    """Ask all living ranks where they are, also those in the middle of a method."""
    bells = [record.answer.bell if record.name in seen.living else None for record in seen.manifest.ranks]
    said = ring(bells, "status", [None] * len(bells), limit)
    found = zip(seen.manifest.ranks, said, strict=True)
    return {record.rank: _status(record, seen, answer) for record, answer in found}


def _status(record: RankRecord, seen: SeenGroup, answer: Any) -> RankStatus:
    if answer is not None:
        return RankStatus(*answer)
    return RankStatus(record.rank, note="does not answer" if record.name in seen.living else "is gone")


class LogReader:
    """Reads on in the output files of ranks, on whatever node they are.

    Args:
        answers: By rank, what it said of itself.
        lines: How many of the last lines of each file to begin with.
    """

    def __init__(self, answers: Mapping[int, RankAnswer], lines: int) -> None:
        self._answers = answers
        self._lines = lines
        self._seen: dict[tuple[int, str], int] = {}

    def news(self) -> Iterator[tuple[int, str]]:
        """Yield rank and line of what has been written since the last time."""
        for rank, answer in self._answers.items():
            for path in answer.logs:
                part = _read(answer, path, self._seen.get((rank, path)), self._lines)
                self._seen[rank, path] = part.end
                yield from ((rank, line) for line in part.lines)


def _read(answer: RankAnswer, path: str, start: int | None, lines: int) -> LogPart:
    if os.path.exists(path):  # noqa: PTH110  # a plain string from another process
        return read_log(path, start, lines)
    there = NodeAffinitySchedulingStrategy(answer.node_id, soft=False)
    read: Any = ray.remote(num_cpus=0)(read_log)
    try:
        return value_of(read.options(scheduling_strategy=there).remote(path, start, lines), _ANSWER_LIMIT)  # type: ignore[no-any-return]
    except RayError as error:
        return LogPart((f"(node {answer.address} does not read {path}: {type(error).__name__})",), start or 0)


def records_of(seen: SeenGroup, rank: int | None) -> Sequence[RankRecord]:
    """Return all ranks, or the one that is asked for.

    Raises:
        BrokenGroupError: There is no such rank.
    """
    ranks = seen.manifest.ranks
    if rank is None:
        return ranks
    if not 0 <= rank < len(ranks):
        raise BrokenGroupError(f"group {seen.state.group!r} has ranks 0 to {len(ranks) - 1}; there is no rank {rank}")
    return [ranks[rank]]
