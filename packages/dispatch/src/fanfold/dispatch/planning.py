"""plan_call: a method's mark, a group and arguments become a CallPlan. Pure: nothing is cut, sent or changed here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fanfold.dispatch.binding import bind_call
from fanfold.dispatch.errors import ArgumentError, DivideError
from fanfold.dispatch.mesh import Mesh
from fanfold.dispatch.modes import Dispatch, Execute
from fanfold.dispatch.plan import CallPlan
from fanfold.dispatch.registry import functions_of
from fanfold.dispatch.rules import CollectRule, DispatchRule, collect_rule_of, dispatch_rule_of
from fanfold.dispatch.spread import Spreading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.dispatch.protocols import GroupLike
    from fanfold.dispatch.registry import ModeFunctions
    from fanfold.dispatch.spec import MethodSpec, Uneven


class GroupSlice:
    """Some ranks of a group, numbered anew from 0: what a custom dispatch function sees of a call to a slice."""

    def __init__(self, group: GroupLike, ranks: Sequence[int]) -> None:
        self._group = group
        self._ranks = tuple(ranks)

    @property
    def world_size(self) -> int:
        """How many ranks the slice has."""
        return len(self._ranks)

    def mesh(self, name: str) -> Mesh:
        """The named mesh, cut down to the slice."""
        mesh = self._group.mesh(name).restrict(self._ranks)
        number = {rank: place for place, rank in enumerate(self._ranks)}
        return Mesh(
            mesh.name,
            mesh.axes,
            tuple(number[rank] for rank in mesh.ranks),
            mesh.coordinates,
            mesh.shard,
            mesh.collect_at,
        )


def plan_call(
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
    """Decide a call: bind it to the signature of `function`, spread its arguments, choose what is collected.

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
        MeshError: a mesh that does not fit the group.
        DirectCallError: the method is not called through the group.
    """
    method = getattr(function, "__name__", type(function).__name__)
    label = f"{owner}.{method}()" if owner else f"{getattr(function, '__qualname__', method)}()"
    mode = functions_of(spec.dispatch_mode)
    rule, collect = dispatch_rule_of(mode.dispatch_fn), collect_rule_of(mode.collect_fn)
    called, alone = _called_ranks(label, spec, group, ranks)
    if alone:
        rule, collect = rule and rule._replace(unmarked="whole", mesh=None), collect and CollectRule("single")
    call = bind_call(label, function, args, kwargs)
    mesh = _mesh(rule, group, called)
    spreading = Spreading(label, mesh, called, spec, uneven)
    if rule is None:
        lists = _custom_lists(label, mode, group, called, alone, args, kwargs)
        positional, keyword = spreading.custom(*lists)
    else:
        positional, keyword = spreading.by_rule(rule, call)
    running, collected = _running_and_collected(spreading, mesh, collect, group, called)
    return CallPlan(
        method=method,
        label=label,
        world_size=group.world_size,
        ranks=running,
        collected=collected,
        sources=tuple(spreading.sources),
        positional=positional,
        keyword=keyword,
        mesh=mesh,
        divisions=spreading.divisions,
        collecting=collect.kind if collect else partial(mode.collect_fn, _view(group, called)),
        merge=spec.merge,
        batch_type=spreading.batch_type,
    )


def _called_ranks(
    label: str, spec: MethodSpec, group: GroupLike, ranks: Sequence[int] | None
) -> tuple[tuple[int, ...], bool]:
    called = tuple(range(group.world_size)) if ranks is None else tuple(sorted(ranks))
    outside = [rank for rank in called if not 0 <= rank < group.world_size]
    if outside or not called or len(set(called)) != len(called):
        raise ArgumentError(
            f"{label}: got ranks {list(ranks or ())}, expected different ranks of 0 to {group.world_size - 1}, at least one"
        )
    alone = spec.execute_mode is Execute.RANK_ZERO or spec.dispatch_mode is Dispatch.RANK_ZERO
    return called[:1] if alone else called, alone


def _mesh(rule: DispatchRule | None, group: GroupLike, called: Sequence[int]) -> Mesh:
    if rule is None or rule.mesh is None:
        return Mesh.of_world(called)
    mesh = group.mesh(rule.mesh)
    mesh.check_covers(group.world_size)
    return mesh.restrict(called)


def _view(group: GroupLike, called: Sequence[int]) -> GroupLike:
    return group if len(called) == group.world_size else GroupSlice(group, called)


def _custom_lists(
    label: str,
    mode: ModeFunctions,
    group: GroupLike,
    called: Sequence[int],
    alone: bool,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    view = group if alone else _view(group, called)
    spread = mode.dispatch_fn(view, *args, **kwargs)
    name = getattr(mode.dispatch_fn, "__name__", repr(mode.dispatch_fn))
    if not isinstance(spread, tuple) or len(spread) != 2:  # noqa: PLR2004  args and kwargs
        raise ArgumentError(
            f"{label}: dispatch function {name} returned {type(spread).__name__}, expected a pair (args, kwargs)"
        )
    positional, keyword = tuple(spread[0]), dict(spread[1])
    named = [*((f"positional argument {index}", value) for index, value in enumerate(positional)), *keyword.items()]
    for argument, value in named:
        if not isinstance(value, (list, tuple)) or len(value) != view.world_size:
            got = f"{len(value)} entries" if isinstance(value, (list, tuple)) else type(value).__name__
            raise DivideError(
                f"{label}: dispatch function {name} gave {got} for {argument}, expected a list with one entry for each of {view.world_size} ranks"
            )
    return positional, keyword


def _running_and_collected(
    spreading: Spreading, mesh: Mesh, collect: CollectRule | None, group: GroupLike, called: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    running = spreading.with_rows(called)
    if collect is None or collect.mesh is None:
        return running, running
    collect_mesh = mesh if mesh.name == collect.mesh else group.mesh(collect.mesh).restrict(called)
    kept = set(running)
    return running, tuple(rank for rank in collect_mesh.collectors() if rank in kept)
