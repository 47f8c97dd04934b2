"""The detached groups of a cluster: which there are, and their end."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from fanfold.ray.cluster import current_namespace, require_cluster
from fanfold.ray.custodian import GroupState, custodian_of
from fanfold.ray.detached import ask_state
from fanfold.ray.discovery import answers_of, no_such_group
from fanfold.ray.manifest import CUSTODIAN_SUFFIX, custodian_name
from fanfold.ray.names import actor_named, named_actors, namespaces_with, wait_until_free
from fanfold.ray.naming import pools_of, worker_names_of
from fanfold.ray.refs import value_of
from fanfold.ray.stopping import end_workers, remove_unshared
from fanfold.worker import STOP_LIMIT, WaitTimeoutError

import ray
from ray.exceptions import RayError

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from fanfold.ray.refs import Actor


_ANSWER_LIMIT = 5.0  # seconds for a custodian or a rank to answer, before it is taken for dead
_SLACK = 5.0  # seconds for an answer to travel


def list_groups() -> list[GroupState]:
    """Return the detached groups of the whole cluster by namespace and name.

    The state of those whose custodian does not answer is "silent", of those that have lost ranks "broken".

    Raises:
        NoClusterError: This process is not connected to a cluster.
    """
    require_cluster("listing groups")
    found = [
        (where, name.removesuffix(CUSTODIAN_SUFFIX))
        for where, name in named_actors()
        if name.endswith(CUSTODIAN_SUFFIX)
    ]
    states = [ask_state(custodian_of(group, where), _ANSWER_LIMIT) for where, group in found]
    living = set(named_actors())
    return [_seen(state, group, where, living) for state, (where, group) in zip(states, found, strict=True)]


def _seen(state: GroupState | None, group: str, namespace: str, living: AbstractSet[tuple[str, str]]) -> GroupState:
    if state is None:
        return GroupState(group, namespace, "silent", 0.0, 0.0, worker_names_of(group, namespace), ())
    whole = all((namespace, name) in living for name in state.worker_names)
    return state if whole or state.state != "ready" else dataclasses.replace(state, state="broken")


def stop_group(group: str, namespace: str | None = None, limit: float = STOP_LIMIT) -> bool:
    """End a detached group wherever it was started: its ranks, its custodian, and its placement groups unless shared.

    Works on groups that have lost ranks, their custodian, or both; stopping twice is fine.

    Returns:
        Whether there was anything to stop.

    Raises:
        NoSuchGroupError: There is no such group in this namespace, but in another one.
        WaitTimeoutError: Ranks were not gone after `limit` seconds.
    """
    require_cluster("stopping a group")
    where = current_namespace() if namespace is None else namespace
    custodian, names = custodian_of(group, where), worker_names_of(group, where)
    if custodian is None and not names:
        return _nothing_there(group, where)
    left = _stop_by(custodian, limit) if custodian is not None else None
    if left is None:
        left = _stop_by_names(group, where, names, limit)
    if custodian is not None:
        ray.kill(custodian)
    left += wait_until_free([custodian_name(group)], where, limit)
    if left:
        raise WaitTimeoutError(f"the end of group {group!r}", limit, ", ".join(left))
    return True


def _nothing_there(group: str, namespace: str) -> bool:
    # A group that lives elsewhere under that name is rather what was meant than a success.
    if namespaces_with(custodian_name(group)):
        raise no_such_group(group, namespace)
    if namespace == current_namespace():  # Ray finds placement groups by name only in its own
        remove_unshared(pools_of(group), group, _ANSWER_LIMIT)
    return False


def _stop_by(custodian: Actor, limit: float) -> list[str] | None:
    try:
        return value_of(custodian.stop.remote(limit), limit + _SLACK)  # type: ignore[no-any-return]
    except RayError:  # it is gone or stuck: what it would have done is done from here
        return None


def _stop_by_names(group: str, namespace: str, names: list[str], limit: float) -> list[str]:
    handles = [handle for name in names if (handle := actor_named(name, namespace)) is not None]
    answers = answers_of(handles, _ANSWER_LIMIT)
    pools = {
        answer.placement_group.id.hex(): answer.placement_group
        for answer in answers
        if answer and answer.placement_group
    }
    left = end_workers(names, namespace, limit)
    if namespace == current_namespace():  # Ray finds placement groups by name only in its own
        pools |= {found.id.hex(): found for found in pools_of(group)}
    remove_unshared(list(pools.values()), group, limit)
    return left
