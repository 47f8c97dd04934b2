"""The built-in modes as functions: `(group, *args, **kwargs) -> (args, kwargs)` with one entry per rank, and back.

Each follows a rule that planning reads; called directly they do what the plan says, at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from fanfold.dispatch.batches import batch_type_of
from fanfold.dispatch.binding import Argument, BoundCall
from fanfold.dispatch.collect import join_batches
from fanfold.dispatch.errors import CollectError, DirectCallError, DivideError
from fanfold.dispatch.marks import Mark
from fanfold.dispatch.mesh import Mesh
from fanfold.dispatch.modes import Dispatch
from fanfold.dispatch.plan import CallPlan
from fanfold.dispatch.registry import DISPATCH_MODE_FN_REGISTRY
from fanfold.dispatch.rules import CollectRule, DispatchRule, collects_by, dispatches_by
from fanfold.dispatch.spec import MethodSpec
from fanfold.dispatch.spread import Spreading

if TYPE_CHECKING:
    from fanfold.dispatch.protocols import GroupLike

Lists = tuple[tuple[list[Any], ...], dict[str, list[Any]]]


@dispatches_by(lambda: DispatchRule("whole"))
def dispatch_one_to_all(group: GroupLike, *args: Any, **kwargs: Any) -> Lists:
    """Every rank gets every argument whole."""
    return _lists(DispatchRule("whole"), group, None, args, kwargs)


@dispatches_by(lambda: DispatchRule("lists_or_whole"))
def dispatch_all_to_all(group: GroupLike, *args: Any, **kwargs: Any) -> Lists:
    """Lists of world size give item i to rank i; if no argument is a list, all go whole; a mix is refused."""
    return _lists(DispatchRule("lists_or_whole"), group, None, args, kwargs)


@dispatches_by(lambda: DispatchRule("lists"))
def dispatch_dp_compute(group: GroupLike, *args: Any, **kwargs: Any) -> Lists:
    """Every argument is a list or tuple of world size; item i goes to rank i."""
    return _lists(DispatchRule("lists"), group, None, args, kwargs)


@dispatches_by(lambda: DispatchRule("rows"))
def dispatch_dp_compute_data_proto(group: GroupLike, *args: Any, **kwargs: Any) -> Lists:
    """Batches are divided over all ranks, everything else goes whole."""
    return _lists(DispatchRule("rows"), group, None, args, kwargs)


@dispatches_by(lambda: DispatchRule("rows", function_first=True))
def dispatch_dp_compute_data_proto_with_func(group: GroupLike, *args: Any, **kwargs: Any) -> Lists:
    """The first argument is a function that goes whole; batches among the rest are divided over all ranks."""
    return _lists(DispatchRule("rows", function_first=True), group, None, args, kwargs)


@dispatches_by(lambda mesh_name: DispatchRule("rows", mesh_name))
def dispatch_lazy_compute_data_proto(mesh_name: str, group: GroupLike, *args: Any, **kwargs: Any) -> Lists:
    """Batches are divided along the data-parallel axis of the group's mesh `mesh_name`; its other axes repeat them."""
    return _lists(DispatchRule("rows", mesh_name), group, group.mesh(mesh_name), args, kwargs)


def dispatch_nd_compute(
    dp_rank_mapping: Sequence[int], dp_size: int, group: GroupLike, *args: Any, **kwargs: Any
) -> Lists:
    """Each argument is a list with one part per data-parallel rank; every rank gets the part of its own.

    Args:
        dp_rank_mapping: [W] data-parallel rank of each rank.
        dp_size: D.
        group: its world size is W.
        args: lists of D parts.
        kwargs: lists of D parts.
    """
    if len(dp_rank_mapping) != group.world_size:
        raise DivideError(
            f"dispatch_nd_compute: got {len(dp_rank_mapping)} data-parallel ranks, expected one for each of {group.world_size} ranks"
        )

    def fanned_out(name: str, parts: Any) -> list[Any]:
        if not isinstance(parts, (list, tuple)) or len(parts) != dp_size:
            got = len(parts) if isinstance(parts, (list, tuple)) else type(parts).__name__
            raise DivideError(
                f"dispatch_nd_compute: argument {name}: got {got}, expected a list of {dp_size} parts, one per data-parallel rank"
            )
        return [parts[dp_rank] for dp_rank in dp_rank_mapping]

    return tuple(fanned_out(str(index), parts) for index, parts in enumerate(args)), {
        name: fanned_out(name, parts) for name, parts in kwargs.items()
    }


def dispatch_nd_compute_dataproto(
    dp_rank_mapping: Sequence[int], dp_size: int, group: GroupLike, *args: Any, **kwargs: Any
) -> Lists:
    """Batches are cut in `dp_size` parts and fanned out by data-parallel rank; everything else goes whole."""
    places = [(rank, (dp_rank, rank)) for rank, dp_rank in enumerate(dp_rank_mapping)]
    table = Mesh("nd", ("dp", "rank"), tuple(rank for rank, _ in places), tuple(place for _, place in places))
    if table.size() != dp_size:
        raise DivideError(
            f"dispatch_nd_compute_dataproto: dp_size is {dp_size}, but the data-parallel ranks go up to {table.size() - 1}"
        )
    return _lists(DispatchRule("rows", "nd"), group, table, args, kwargs)


@collects_by(lambda: CollectRule("list"))
def collect_all_to_all(group: GroupLike, output: Any) -> Any:
    """The list of all ranks' results."""
    return output


@collects_by(lambda: CollectRule("list"))
def collect_dp_compute(group: GroupLike, output: Sequence[Any]) -> list[Any]:
    """The list of all ranks' results; there must be one of each rank."""
    if len(output) != group.world_size:
        raise CollectError(
            f"collect_dp_compute: got {len(output)} results, expected one of each of {group.world_size} ranks"
        )
    return list(output)


@collects_by(lambda: CollectRule("join"))
def collect_dp_compute_data_proto(group: GroupLike, output: Sequence[Any]) -> Any:
    """Batches put together in rank order; other values stay a list."""
    return _joined_or_list("collect_dp_compute_data_proto", list(output))


def collect_nd_compute(collect_mask: Sequence[bool], group: GroupLike, output: Sequence[Any]) -> list[Any]:
    """The results of the ranks whose entry in `collect_mask` is true, in rank order."""
    if len(output) != group.world_size or len(collect_mask) != group.world_size:
        raise CollectError(
            f"collect_nd_compute: got {len(output)} results and {len(collect_mask)} collect flags, expected one of each for {group.world_size} ranks"
        )
    return [value for value, collected in zip(output, collect_mask, strict=True) if collected]


def collect_nd_compute_dataproto(collect_mask: Sequence[bool], group: GroupLike, output: Sequence[Any]) -> Any:
    """The same, and batches are put together."""
    kept = collect_nd_compute(collect_mask, group, output)
    if not kept:
        raise CollectError(
            "collect_nd_compute_dataproto: no rank is to be collected; say collect for one rank of each data-parallel rank"
        )
    return _joined_or_list("collect_nd_compute_dataproto", kept)


@collects_by(lambda mesh_name: CollectRule("join", mesh_name))
def collect_lazy_compute_data_proto(mesh_name: str, group: GroupLike, output: Sequence[Any]) -> Any:
    """The results of one rank per data-parallel rank, in data-parallel order; batches are put together."""
    if len(output) != group.world_size:
        raise CollectError(
            f"collect_lazy_compute_data_proto: got {len(output)} results, expected one of each of {group.world_size} ranks"
        )
    return _joined_or_list(
        "collect_lazy_compute_data_proto", [output[rank] for rank in group.mesh(mesh_name).collectors()]
    )


def make_nd_compute_dataproto_dispatch_fn(mesh_name: str) -> dict[str, Callable[..., Any]]:
    """A dispatch mode for `register`: divide along the data-parallel axis of mesh `mesh_name`, collect in its order."""
    return {
        "dispatch_fn": partial(dispatch_lazy_compute_data_proto, mesh_name),
        "collect_fn": partial(collect_lazy_compute_data_proto, mesh_name),
    }


def dummy_direct_rollout_call(group: GroupLike, *args: Any, **kwargs: Any) -> NoReturn:
    """Refuse: a method of this mode is called on the workers' own handles.

    Raises:
        DirectCallError: always.
    """
    raise DirectCallError(
        "a method registered with Dispatch.DIRECT_ROLLOUT_METHOD is called on a worker's own handle (group.workers), not through the group"
    )


def _lists(
    rule: DispatchRule, group: GroupLike, mesh: Mesh | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Lists:
    ranks = tuple(range(group.world_size))
    spreading = Spreading("dispatch", mesh or Mesh.of_world(ranks), ranks, MethodSpec(), None)
    call = BoundCall(
        tuple(Argument(str(index), *_value_and_mark(value)) for index, value in enumerate(args)),
        {name: Argument(name, *_value_and_mark(value)) for name, value in kwargs.items()},
    )
    positional, keyword = spreading.by_rule(rule, call)
    plan = CallPlan(
        "dispatch",
        "dispatch",
        group.world_size,
        ranks,
        ranks,
        tuple(spreading.sources),
        positional,
        keyword,
        spreading.mesh,
        spreading.divisions,
    )
    parts = {piece: plan.value(piece) for piece in plan.pieces()}
    return (
        tuple([parts[spread.piece(rank)] for rank in ranks] for spread in positional),
        {name: [parts[spread.piece(rank)] for rank in ranks] for name, spread in keyword.items()},
    )


def _value_and_mark(value: Any) -> tuple[Any, Any]:
    return (value.value, value) if isinstance(value, Mark) else (value, None)


def _joined_or_list(label: str, values: list[Any]) -> Any:
    return join_batches(label, values) if any(batch_type_of(value) for value in values) else values


def _fill_registry() -> None:
    for mode, dispatch_fn, collect_fn in (
        (Dispatch.RANK_ZERO, dispatch_one_to_all, collect_all_to_all),
        (Dispatch.ONE_TO_ALL, dispatch_one_to_all, collect_all_to_all),
        (Dispatch.ALL_TO_ALL, dispatch_all_to_all, collect_all_to_all),
        (Dispatch.DP_COMPUTE, dispatch_dp_compute, collect_dp_compute),
        (Dispatch.DP_COMPUTE_PROTO, dispatch_dp_compute_data_proto, collect_dp_compute_data_proto),
        (Dispatch.DP_COMPUTE_PROTO_WITH_FUNC, dispatch_dp_compute_data_proto_with_func, collect_dp_compute_data_proto),
        (Dispatch.DP_COMPUTE_METRIC, dispatch_dp_compute_data_proto, collect_dp_compute),
        (Dispatch.DIRECT_ROLLOUT_METHOD, dummy_direct_rollout_call, dummy_direct_rollout_call),
    ):
        DISPATCH_MODE_FN_REGISTRY[mode] = {"dispatch_fn": dispatch_fn, "collect_fn": collect_fn}


_fill_registry()
