"""Finding a detached group from another process: by its custodian, and where that is gone by the names of its ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fanfold.ray.custodian import custodian_of
from fanfold.ray.errors import BrokenGroupError, GroupStartingError, NoSuchGroupError
from fanfold.ray.manifest import (
    CUSTODIAN_SUFFIX,
    Manifest,
    RankRecord,
    custodian_name,
    own_versions,
    version_differences,
)
from fanfold.ray.names import actor_named, named_actors, namespaces_with
from fanfold.ray.naming import worker_names_of
from fanfold.ray.refs import value_of
from fanfold.worker import StartedRank

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayActorError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.ray.answers import RankAnswer
    from fanfold.ray.refs import Actor, Ref

ANSWER_LIMIT = 10.0  # seconds for a custodian or a rank to say who it is


@dataclass(frozen=True)
class FoundGroup:
    """A group that lives: its ranks, and its manifest where its custodian has answered, else whether that lives."""

    members: Sequence[StartedRank]
    manifest: Manifest | None
    custodian: Actor | None
    silent: bool = False


def find_group(group: str, namespace: str) -> FoundGroup:
    """Find every rank of a detached group.

    Raises:
        NoSuchGroupError: No group of that name lives in that namespace; says where there is one.
        GroupStartingError: It is not ready.
        BrokenGroupError: Ranks are gone; says which.
    """
    custodian = custodian_of(group, namespace)
    manifest = None if custodian is None else _ask_manifest(custodian, group)
    if manifest is None:
        silent = custodian is not None and custodian_of(group, namespace) is not None
        return FoundGroup(_by_names(group, namespace), None, None, silent)
    return FoundGroup(_by_manifest(manifest), manifest, custodian)


def _ask_manifest(custodian: Actor, group: str) -> Manifest | None:
    try:
        manifest: Any = value_of(custodian.manifest.remote(), ANSWER_LIMIT)
    except (RayActorError, GetTimeoutError):  # it is gone or stuck: the ranks can still be found by their names
        return None
    if manifest is None:
        raise GroupStartingError(
            f"group {group!r} is still starting: not all of its ranks have built their workers; try again when the "
            "process that starts it says that it is ready"
        )
    return manifest  # type: ignore[no-any-return]


def _by_manifest(manifest: Manifest) -> list[StartedRank]:
    found = [(record, actor_named(record.name, manifest.namespace)) for record in manifest.ranks]
    gone = [
        f"rank {record.rank} ({record.name}, node {record.answer.address}, pid {record.answer.pid})"
        for record, handle in found
        if handle is None
    ]
    if gone:
        raise broken(manifest.group, gone, len(found) - len(gone), len(found))
    return [_member(record, handle) for record, handle in found]


def _member(record: RankRecord, handle: Actor) -> StartedRank:
    return StartedRank(record.rank, record.name, record.answer.address, record.answer.pid, handle)


def broken(group: str, gone: Sequence[str], living: int, size: int) -> BrokenGroupError:
    """Make the error for a group some of whose ranks are gone."""
    return BrokenGroupError(
        f"group {group!r} has lost {', '.join(gone)}; {living} of {size} ranks live. End what is left with "
        f"fanfold.ray.stop_group({group!r}) and start the group again"
    )


def _by_names(group: str, namespace: str) -> list[StartedRank]:
    names = worker_names_of(group, namespace)
    if not names:
        raise no_such_group(group, namespace)
    members = members_by_name(names, namespace)
    answers = answers_of([member.door for member in members])
    sizes = {answer.info.world_size for answer in answers if answer is not None and answer.info is not None}
    known = {answer.info.rank for answer in answers if answer is not None and answer.info is not None}
    size = max(sizes, default=len(members))
    if size > len(members):
        raise broken(group, [f"rank {rank}" for rank in range(size) if rank not in known], len(members), size)
    return members


def no_such_group(group: str, namespace: str) -> NoSuchGroupError:
    """Make the error for a name that no group has, saying where there is one and which groups there are."""
    there = namespaces_with(custodian_name(group))
    if there:
        places = ", ".join(repr(place) for place in there)
        return NoSuchGroupError(
            f"no group {group!r} lives in namespace {namespace!r}, but there is one in {places}; connect with "
            f"ray.init(address='auto', namespace={there[0]!r}), or say namespace={there[0]!r}"
        )
    living = [
        f"{name.removesuffix(CUSTODIAN_SUFFIX)!r} in {where!r}"
        for where, name in named_actors()
        if name.endswith(CUSTODIAN_SUFFIX)
    ]
    has = f"groups in this cluster: {', '.join(living)}" if living else "this cluster has no detached group"
    return NoSuchGroupError(f"no group {group!r} lives in namespace {namespace!r}; {has}. Is its server started?")


def members_by_name(names: Sequence[str], namespace: str) -> list[StartedRank]:
    """Find workers by their names; ranks are in the order of the names.

    Raises:
        NoSuchGroupError: A name is not held by any living actor; says in which namespaces it is.
    """
    handles = [(name, actor_named(name, namespace)) for name in names]
    absent = [name for name, handle in handles if handle is None]
    if absent:
        elsewhere = {name: places for name in absent if (places := namespaces_with(name))}
        hint = f"; elsewhere: {elsewhere}" if elsewhere else ""
        raise NoSuchGroupError(f"no living worker named {', '.join(absent)} in namespace {namespace!r}{hint}")
    return members_by_handle([handle for _, handle in handles], names)


def members_by_handle(handles: Sequence[Any], names: Sequence[str] | None = None) -> list[StartedRank]:
    """Make ranks of handles, in their order, whatever rank each actor is in a group of its own."""
    answers = answers_of(handles)
    members = []
    for rank, (handle, answer) in enumerate(zip(handles, answers, strict=True)):
        name = names[rank] if names else (answer.name if answer else "") or f"worker_handles[{rank}]"
        members.append(StartedRank(rank, name, answer.address if answer else "", answer.pid if answer else 0, handle))
    return members


def answers_of(handles: Sequence[Any], limit: float = ANSWER_LIMIT) -> list[RankAnswer | None]:
    """Ask actors who they are, all at once; None where one is busy, gone, or not one of ours."""
    references = [handle.fanfold_hello.remote() if hasattr(handle, "fanfold_hello") else None for handle in handles]
    asked = [reference for reference in references if reference is not None]
    ready = set(ray.wait(asked, num_returns=len(asked), timeout=limit)[0]) if asked else set()
    return [_answer(reference) if reference in ready else None for reference in references]


def _answer(reference: Ref) -> RankAnswer | None:
    try:
        return value_of(reference, ANSWER_LIMIT)  # type: ignore[no-any-return]
    except RayActorError:
        return None


def class_from(manifest: Manifest) -> type:
    """Return the worker class of a group.

    Raises:
        BrokenGroupError: It cannot be imported here.
    """
    try:
        return cloudpickle.loads(manifest.class_pickle)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise BrokenGroupError(
            f"group {manifest.group!r} runs {manifest.class_path}, which cannot be imported here: {error}. Put its "
            "module on sys.path, or give the class: from_detached(..., ray_cls_with_init=...)"
        ) from error


def check_fit(manifest: Manifest, cls: type, schema: str) -> None:
    """Refuse a class or a version that does not fit a living group.

    Raises:
        BrokenGroupError: Versions or the registered methods differ; says in what.
    """
    differences = version_differences(manifest.versions, own_versions())
    if schema != manifest.schema:
        differences.append(
            f"{cls.__qualname__} registers other methods or parameters here than {manifest.class_path} of the group "
            f"({', '.join(manifest.methods)})"
        )
    if differences:
        raise BrokenGroupError(
            f"group {manifest.group!r} does not fit this process: {'; '.join(differences)}. Use the same versions on "
            "both sides, or attach with force=True at your own risk"
        )
