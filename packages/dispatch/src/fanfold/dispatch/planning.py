"""plan_call: a method's mark, a group and arguments become a CallPlan. Nothing is cut, sent or changed here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fanfold.dispatch.arrange import arranged, arranged_lists
from fanfold.dispatch.custom import custom_lists, slice_of
from fanfold.dispatch.divide import RowRules
from fanfold.dispatch.errors import ArgumentError, DirectCallError, MeshError
from fanfold.dispatch.mesh import Mesh
from fanfold.dispatch.modes import Dispatch, Execute
from fanfold.dispatch.plan import CallPlan
from fanfold.dispatch.registry import functions_of
from fanfold.dispatch.rules import CollectRule, collect_rules, dispatch_rules
from fanfold.dispatch.signature import bind_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.dispatch.arrangement import Arrangement
    from fanfold.dispatch.protocols import GroupLike
    from fanfold.dispatch.rules import DispatchRule
    from fanfold.dispatch.spec import MethodSpec, Uneven


def plan_call(  # noqa: PLR0913  what a call depends on, and nothing else
    spec: MethodSpec,
    function: Callable[..., Any],
    group: GroupLike,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    owner: str = "",
    ranks: Sequence[int] | None = None,
    uneven: Uneven | None = None,
) -> CallPlan:
    """Decide a call: bind it to the signature of `function`, arrange its arguments, choose what is collected.

    Args:
        spec: the method's mark.
        function: the method as it stands in its class; its first parameter is the worker and is skipped.
        group: its world size and meshes.
        args: positional arguments.
        kwargs: keyword arguments.
        owner: the class's name, for messages.
        ranks: the slice that is called; None for all ranks.
        uneven: instead of the method's own rule, for this call.

    Raises:
        ArgumentError: the call does not fit the signature or the mode.
        DivideError: arguments that cannot be divided as asked.
        MeshError: a mesh that does not fit the group or the marks.
        DirectCallError: the method is not called through the group.
    """
    method = getattr(function, "__name__", type(function).__name__)
    label = f"{owner}.{method}()" if owner else f"{getattr(function, '__qualname__', method)}()"
    call = bind_call(label, function, args, kwargs)
    called, alone = _called(label, spec, group, ranks)
    mode = functions_of(label, spec.dispatch_mode)
    rule, collect = _rules(label, mode.dispatch_fn, mode.collect_fn, alone=alone)
    mesh = _mesh(label, rule, group, called)
    if rule is None:
        lists = custom_lists(label, mode.dispatch_fn, group if alone else slice_of(group, called), args, kwargs)
        arrangement = arranged_lists(label, called, *(_own_entries(called[0], *lists) if alone else lists))
    else:
        arrangement = arranged(label, rule, mesh, call, RowRules(spec.uneven, uneven, spec.balance, spec.reads))
    if collect is None:
        _check_order(label, arrangement)
    running = _with_rows(arrangement, mesh) if (uneven or spec.uneven) == "skip" else called
    return CallPlan(
        **{**vars(arrangement), "ranks": running},
        method=method,
        world_size=group.world_size,
        collected=_collected(collect, group, called, running),
        mesh=mesh,
        collecting=collect.kind if collect else partial(mode.collect_fn, slice_of(group, called)),
        merge=spec.merge,
    )


def _called(
    label: str, spec: MethodSpec, group: GroupLike, ranks: Sequence[int] | None
) -> tuple[tuple[int, ...], bool]:
    called = tuple(range(group.world_size)) if ranks is None else tuple(sorted(ranks))
    outside = [rank for rank in called if not 0 <= rank < group.world_size]
    if outside or not called or len(set(called)) != len(called):
        raise ArgumentError(
            f"{label}: got ranks {list(called)}, expected at least one, each once, of 0 to {group.world_size - 1}"
        )
    alone = spec.execute_mode is Execute.RANK_ZERO or spec.dispatch_mode is Dispatch.RANK_ZERO
    return called[:1] if alone else called, alone


def _rules(
    label: str, dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any], *, alone: bool
) -> tuple[DispatchRule | None, CollectRule | None]:
    rule, collect = dispatch_rules.rule_of(dispatch_fn), collect_rules.rule_of(collect_fn)
    if rule is not None and rule.unmarked == "direct":
        raise DirectCallError(
            f"{label}: a method of this mode is called on a worker's own handle (group.workers), not through the group"
        )
    if not alone:
        return rule, collect
    return rule and rule._replace(unmarked="whole", along=None), collect and CollectRule("single")


def _mesh(label: str, rule: DispatchRule | None, group: GroupLike, called: Sequence[int]) -> Mesh:
    if rule is None or rule.along is None:
        return Mesh.of_world(called)
    try:
        return rule.along.of(group).restrict(called)
    except MeshError as problem:
        raise MeshError(f"{label}: {problem}") from problem


def _own_entries(
    rank: int, positional: Sequence[Sequence[Any]], keyword: Mapping[str, Sequence[Any]]
) -> tuple[list[list[Any]], dict[str, list[Any]]]:
    """Of lists that were made for the whole group, the entries of the one rank that runs."""
    return [[entries[rank]] for entries in positional], {name: [entries[rank]] for name, entries in keyword.items()}


def _check_order(label: str, arrangement: Arrangement) -> None:
    if any(division.order is not None for division in arrangement.divisions.values()):
        raise ArgumentError(
            f"{label}: rows are dealt out by weight, and a custom collect function cannot put results back in order; "
            "collect with a built-in function, or leave balance= and weights= away"
        )


def _with_rows(arrangement: Arrangement, mesh: Mesh) -> tuple[int, ...]:
    """The ranks that have rows, and those of the first place in any case, so that a result has a type."""
    division = arrangement.divisions.get(mesh.shard)
    if division is None:
        return arrangement.ranks
    return tuple(rank for rank in arrangement.ranks if division.place[rank] == 0 or division.rows(rank) != 0)


def _collected(
    collect: CollectRule | None, group: GroupLike, called: Sequence[int], running: tuple[int, ...]
) -> tuple[int, ...]:
    if collect is None or collect.along is None:
        return running
    kept = set(running)
    return tuple(rank for rank in collect.along.of(group).restrict(called).collectors() if rank in kept)
