"""What is worth knowing of a cluster before GPUs are spent on it: one check after the other, each with its finding."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fanfold.ray.cluster import living_placement_groups, node_states
from fanfold.ray.names import named_actors
from fanfold.ray.refs import value_of
from fanfold.ray.registry import list_groups

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from fanfold.ray.custodian import GroupState
    from fanfold.ray.feasibility import NodeState

_NODE_LIMIT = 20.0  # seconds for a node to look at itself; its first worker process may have to be started
_SPILL_SPACE = 0.1  # of a disk: below that, spilled objects and logs fill it soon
_NOT_ROOM = ("node:", "memory", "object_store", "accelerator_type")  # what Ray counts besides
_PACKAGES = ("ray", "fanfold-dispatch", "fanfold-worker", "fanfold-ray", "fanfold-dataproto", "torch", "numpy")

Verdict = Literal["good", "warning", "bad"]


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class NodeReport:
    """What a node says of itself.

    Attributes:
        versions: By package, and Python's.
        shared_memory: Bytes of /dev/shm: all and free; zeros where there is none.
        disk: Bytes of the disk of Ray's temporary files: all and free.
        instances: How many Ray instances run on the machine.
        bytecode: Whether what a process has compiled is kept for the next one.
    """

    versions: Mapping[str, str]
    shared_memory: tuple[int, int]
    disk: tuple[int, int]
    instances: int
    bytecode: bool


def examine() -> list[Finding]:
    """Run every check on the cluster that this process is connected to."""
    nodes = node_states()
    reports = _ask_nodes(nodes)
    checks: list[Callable[[], list[Finding]]] = [
        lambda: _nodes(nodes),
        lambda: _resources(nodes),
        lambda: _answers(nodes, reports),
        lambda: _bytecode(nodes, reports),
        lambda: _versions(nodes, reports),
        lambda: _memory(nodes, reports),
        lambda: _instances(nodes, reports),
        _groups,
        _left_over,
        _authentication,
    ]
    return [finding for check in checks for finding in check()]


def look_at_this_node() -> NodeReport:
    """Say what this machine says of itself."""
    session = os.environ.get("RAY_TMPDIR") or ("/tmp/ray" if Path("/tmp/ray").exists() else "/")  # noqa: S108  # Ray's own
    return NodeReport(own_versions(), _space("/dev/shm"), _space(session), len(_sessions()), _keeps_bytecode())  # noqa: S108


def own_versions() -> dict[str, str]:
    """Return the versions of Python and of what has to be the same on all nodes, where it is installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _keeps_bytecode() -> bool:
    # Ray is imported here: what is not there after that is not kept, be it by a switch or by a folder nobody may write.
    return Path(cache_from_source(ray.__file__)).exists()


def _space(path: str) -> tuple[int, int]:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return 0, 0
    return usage.total, usage.free


def _sessions() -> set[str]:
    # Every process of a Ray instance names its session's folder in its command line.
    found = set()
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = command.read_bytes().decode(errors="replace")
        except OSError:
            continue
        match = re.search(r"/(session_[0-9_-]+)", text) if "raylet" in text else None
        found |= {match[1]} if match else set()
    return found


def _ask_nodes(nodes: Sequence[NodeState]) -> dict[str, NodeReport | None]:
    look: Any = ray.remote(num_cpus=0)(look_at_this_node)
    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        asked[node.node_id] = look.options(scheduling_strategy=there).remote()
    return {node_id: _report(reference) for node_id, reference in asked.items()}


def _report(reference: Any) -> NodeReport | None:
    try:
        return value_of(reference, _NODE_LIMIT)  # type: ignore[no-any-return]
    except RayError:
        return None


def _nodes(nodes: Sequence[NodeState]) -> list[Finding]:
    dead = sorted({node["NodeManagerAddress"] for node in ray.nodes() if not node["Alive"]})
    living = ", ".join(node.address for node in nodes)
    found = [Finding("nodes", "good", f"{len(nodes)} alive: {living}")]
    return [*found, Finding("nodes", "warning", f"were here and are gone: {', '.join(dead)}")] if dead else found


def _resources(nodes: Sequence[NodeState]) -> list[Finding]:
    return [Finding(f"resources of {node.address}", "good", _room(node)) for node in nodes]


def _room(node: NodeState) -> str:
    names = sorted(name for name in node.total if not name.startswith(_NOT_ROOM))
    room = ", ".join(f"{node.free.get(name, 0):g} of {node.total[name]:g} {name} free" for name in names)
    held = ", ".join(node.held) or "no placement group"
    return f"{room}; held by {held}"


def _answers(nodes: Sequence[NodeState], reports: Mapping[str, NodeReport | None]) -> list[Finding]:
    silent = [node.address for node in nodes if reports[node.node_id] is None]
    if not silent:
        return [Finding("processes", "good", "every node starts processes that import fanfold")]
    return [Finding("processes", "bad", f"no process that imports fanfold could be started on {', '.join(silent)}")]


def _bytecode(nodes: Sequence[NodeState], reports: Mapping[str, NodeReport | None]) -> list[Finding]:
    without = [node.address for node in nodes if (report := reports[node.node_id]) is not None and not report.bytecode]
    if not without:
        return [Finding("bytecode", "good", "what a process compiles is kept for the next one")]
    return [
        Finding(
            "bytecode",
            "warning",
            f"not kept on {', '.join(without)}: every rank compiles all that it imports, with torch for many seconds; "
            "unset PYTHONDONTWRITEBYTECODE, which images often set, or run `python -m compileall` on what is installed",
        )
    ]


def _versions(nodes: Sequence[NodeState], reports: Mapping[str, NodeReport | None]) -> list[Finding]:
    ours = own_versions()
    differences = [
        f"{name} is {found} on {node.address}, {ours.get(name, 'absent')} here"
        for node in nodes
        if (report := reports[node.node_id]) is not None
        for name, found in {**dict.fromkeys(ours, "absent"), **report.versions}.items()
        if found != ours.get(name, "absent")
    ]
    if differences:
        return [Finding("versions", "bad", "; ".join(differences))]
    return [Finding("versions", "good", ", ".join(f"{name} {number}" for name, number in ours.items()))]


def _memory(nodes: Sequence[NodeState], reports: Mapping[str, NodeReport | None]) -> list[Finding]:
    return [_space_of(node, report) for node in nodes if (report := reports[node.node_id]) is not None]


def _space_of(node: NodeState, report: NodeReport) -> Finding:
    store = node.total.get("object_store_memory", 0.0)
    shared, disk = report.shared_memory, report.disk
    space = f"shared memory {_gib(shared[1])} of {_gib(shared[0])} free, disk {_gib(disk[1])} free"
    text = f"object store {_gib(store)}, {space}"
    problems = []
    if shared[0] < store:
        problems.append("the object store is larger than /dev/shm and lies on disk, which is slow")
    if disk[0] and disk[1] < _SPILL_SPACE * disk[0]:
        problems.append("the disk for spilled objects and logs is nearly full")
    return Finding(f"memory of {node.address}", "warning" if problems else "good", "; ".join([text, *problems]))


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def _instances(nodes: Sequence[NodeState], reports: Mapping[str, NodeReport | None]) -> list[Finding]:
    several = {
        node.address: report.instances
        for node in nodes
        if (report := reports[node.node_id]) is not None and report.instances > 1
    }
    if not several:
        return [Finding("instances", "good", "one Ray instance on each machine")]
    text = ", ".join(f"{count} on {address}" for address, count in several.items())
    return [Finding("instances", "warning", f"several Ray instances: {text}; say which with --address or RAY_ADDRESS")]


def _groups() -> list[Finding]:
    living = set(named_actors())
    return [_group(group, living) for group in list_groups()] or [Finding("groups", "good", "no detached groups")]


def _group(group: GroupState, living: AbstractSet[tuple[str, str]]) -> Finding:
    where = f"group {group.group!r} in {group.namespace!r}"
    if group.state == "silent":
        return Finding("groups", "bad", f"{where} has a custodian that does not answer")
    if group.state == "broken":
        gone = [name for name in group.worker_names if (group.namespace, name) not in living]
        return Finding(
            "groups", "bad", f"{where} has lost {', '.join(gone)}; `fanfold stop {group.group}` ends the rest"
        )
    return Finding("groups", "good", f"{where} is {group.state}, {len(group.worker_names)} ranks")


def _left_over() -> list[Finding]:
    known = {group_id for group in list_groups() for group_id in group.placement_group_ids}
    stale = [
        str(row["name"])
        for row in living_placement_groups()
        if ".pool:" in str(row["name"]) and row["placement_group_id"] not in known
    ]
    if not stale:
        return [Finding("placement groups", "good", "none is left over")]
    names = sorted({name.rpartition(".pool:")[0] for name in stale})
    advice = ", ".join(f"`fanfold stop {name}`" for name in names)
    return [Finding("placement groups", "warning", f"left over: {', '.join(stale)}; {advice} removes them")]


def _authentication() -> list[Finding]:
    mode, address = os.environ.get("RAY_AUTH_MODE"), os.environ.get("RAY_ADDRESS")
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if mode is None and address not in (None, "auto") and token.exists():
        return [
            Finding(
                "authentication",
                "warning",
                f"RAY_ADDRESS={address} and a token file, but no RAY_AUTH_MODE: with an address, Ray does not send the "
                "token by itself; set RAY_AUTH_MODE=token on both sides",
            )
        ]
    return [Finding("authentication", "good", f"RAY_AUTH_MODE is {mode or 'not set'}, and this process was let in")]
