"""What has to be known of a detached group to use it from another process, and how two versions of it are compared."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import Dispatch, Mesh, specs_of

if TYPE_CHECKING:
    from fanfold.ray.answers import RankAnswer
    from fanfold.ray.bundles import BundlePlace
    from fanfold.worker import StartedRank

    from ray.util.placement_group import PlacementGroup

CUSTODIAN_SUFFIX = ".fanfold"
_PACKAGES = ("fanfold-dispatch", "fanfold-worker", "fanfold-ray", "ray")


@dataclass(frozen=True)
class RankRecord:
    """One rank: its number, its worker's name, its bundle, and what it said of itself."""

    rank: int
    name: str
    bundle_index: int
    answer: RankAnswer


@dataclass(frozen=True)
class Manifest:
    """A detached group, as its custodian keeps it.

    Attributes:
        group: Name of the group.
        namespace: Where its names are.
        class_path: Module and qualified name of the worker class.
        class_pickle: The class itself, by reference where it can be imported.
        methods: By registered method, how it dispatches, for people.
        schema: Hash over the registered methods and their signatures.
        versions: Of the packages that made the group, and of Python.
        ranks: The ranks in order.
        process_on_nodes: Ranks per node of the pool.
        max_colocate_count: How many groups may share the pool.
        keep_for: Seconds without any client after which the group is stopped; None for never.
        placement_groups: Where the ranks sit.
        says_goodbye: Whether the class has an `on_stop` of its own.
        meshes: By role, those that a client has asked for so far.
    """

    group: str
    namespace: str
    class_path: str
    class_pickle: bytes = field(repr=False)
    methods: Mapping[str, str]
    schema: str
    versions: Mapping[str, str]
    ranks: Sequence[RankRecord]
    process_on_nodes: Sequence[int]
    max_colocate_count: int
    keep_for: float | None
    placement_groups: Sequence[PlacementGroup] = field(repr=False)
    says_goodbye: bool = False
    meshes: Mapping[str, Mapping[str, Mesh]] = field(default_factory=dict)


def custodian_name(group: str) -> str:
    """Return the name of a group's custodian."""
    return f"{group}{CUSTODIAN_SUFFIX}"


def class_path(cls: type) -> str:
    """Return module and qualified name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def methods_of(cls: type) -> dict[str, str]:
    """Return, by registered method, how it dispatches, for people."""
    return {name: _mode(spec.dispatch_mode) for name, spec in specs_of(cls).items()}


def schema_of(cls: type) -> str:
    """Return a hash over the registered methods of a class: names, parameters and the way they dispatch.

    Two classes with one hash can be called in the same way.
    """
    lines = [f"{name}{_parameters(cls, name)} {mode}" for name, mode in sorted(methods_of(cls).items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def own_versions() -> dict[str, str]:
    """Return the versions of everything that two processes which share a group should have in common."""
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def version_differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """Say in what versions differ where it matters: Python and Ray exactly, ours by the first two numbers."""
    names = [name for name in theirs if _relevant(name, theirs[name]) != _relevant(name, ours.get(name, "absent"))]
    return [f"{name} {theirs[name]} there, {ours.get(name, 'absent')} here" for name in names]


def _relevant(name: str, number: str) -> str:
    return ".".join(number.split(".")[:2]) if name.startswith("fanfold-") else number


def rank_records(
    ranks: Sequence[StartedRank], answers: Mapping[int, RankAnswer], places: Sequence[BundlePlace]
) -> list[RankRecord]:
    """Write down where ranks are."""
    return [RankRecord(rank.rank, rank.name, places[rank.rank].bundle_index, answers[rank.rank]) for rank in ranks]


def _mode(mode: Any) -> str:
    """Name a dispatch mode in a way that is the same in every process: never by an address in memory."""
    if isinstance(mode, Dispatch):
        return mode.name
    functions = mode.values() if isinstance(mode, Mapping) else mode
    return " + ".join(map(_function, functions))


def _function(function: Any) -> str:
    if isinstance(function, functools.partial):
        return f"{_function(function.func)}{(*function.args, *sorted(function.keywords.items()))}"
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _parameters(cls: type, name: str) -> str:
    # `ray.remote(cls)` adds this one to the methods of the class that it is given, in place: no caller ever passes it.
    named = dict(inspect.signature(getattr(cls, name)).parameters)
    named.pop("_ray_trace_ctx", None)
    parameters = named.values()
    return "(" + ", ".join(f"{p.kind.name} {p.name}{'' if p.default is p.empty else ' ='}" for p in parameters) + ")"
