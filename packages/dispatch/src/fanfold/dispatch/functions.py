"""The built-in modes as functions, in the form that custom ones have too.

A dispatch function is `(group, *args, **kwargs) -> (args, kwargs)` with one entry per rank, a collect function is
`(group, output) -> result` with outputs in rank order. Each follows a rule that planning reads instead of calling it;
called directly it does the same at once. Letters: W ranks, D data-parallel size.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from fanfold.dispatch.arrange import arranged
from fanfold.dispatch.batches import batch_type_of
from fanfold.dispatch.collect import join_batches
from fanfold.dispatch.divide import RowRules
from fanfold.dispatch.errors import CollectError, DirectCallError, DivideError
from fanfold.dispatch.lists import is_list
from fanfold.dispatch.mesh import Mesh
from fanfold.dispatch.modes import Dispatch
from fanfold.dispatch.registry import DISPATCH_MODE_FN_REGISTRY
from fanfold.dispatch.rules import CollectRule, DispatchRule, MeshAxis, collect_rules, dispatch_rules
from fanfold.dispatch.signature import BoundCall, argument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.dispatch.protocols import GroupLike

Lists = tuple[tuple[list[Any], ...], dict[str, list[Any]]]


@dispatch_rules.follows(lambda: DispatchRule("whole"))
def dispatch_one_to_all(group: GroupLike, *args: Any, **kwargs: Any) -> Lists:
    """Every rank gets every argument whole."""
    return _lists("dispatch_one_to_all", DispatchRule("whole"), _world(group), args, kwargs)


@dispatch_rules.follows(lambda: DispatchRule("lists_or_whole"))
def dispatch_all_to_all(group: GroupLike, *args: Any, **kwargs: Any) -> Lists:
    """Lists of world size give item i to rank i; if no argument is a list, all go whole; a mix is refused."""
    return _lists("dispatch_all_to_all", DispatchRule("lists_or_whole"), _world(group), args, kwargs)


@dispatch_rules.follows(lambda: DispatchRule("lists"))
def dispatch_dp_compute(group: GroupLike, *args: Any, **kwargs: Any) -> Lists:
    """Every argument is a list or tuple of world size; item i goes to rank i."""
    return _lists("dispatch_dp_compute", DispatchRule("lists"), _world(group), args, kwargs)


@dispatch_rules.follows(lambda: DispatchRule("rows"))
def dispatch_dp_compute_data_proto(group: GroupLike, *args: Any, **kwargs: Any) -> Lists:
    """Batches are divided over all ranks, everything else goes whole."""
    return _lists("dispatch_dp_compute_data_proto", DispatchRule("rows"), _world(group), args, kwargs)


@dispatch_rules.follows(lambda: DispatchRule("rows", function_first=True))
def dispatch_dp_compute_data_proto_with_func(group: GroupLike, *args: Any, **kwargs: Any) -> Lists:
    """The first argument is a function that goes whole; of the rest, batches are divided over all ranks."""
    rule = DispatchRule("rows", function_first=True)
    return _lists("dispatch_dp_compute_data_proto_with_func", rule, _world(group), args, kwargs)


@dispatch_rules.follows(lambda mesh_name: DispatchRule("rows", _mesh_axis(mesh_name)))
def dispatch_lazy_compute_data_proto(mesh_name: str | MeshAxis, group: GroupLike, *args: Any, **kwargs: Any) -> Lists:
    """Batches are divided along the divided axis of a mesh of the group; its other axes repeat them."""
    mesh = _mesh_axis(mesh_name).of(group)
    return _lists("dispatch_lazy_compute_data_proto", DispatchRule("rows"), mesh, args, kwargs)


def dispatch_nd_compute(
    dp_rank_mapping: Sequence[int], dp_size: int, group: GroupLike, *args: Any, **kwargs: Any
) -> Lists:
    """Each argument is a list of D parts; every rank gets the part of its data-parallel rank.

    Args:
        dp_rank_mapping: [W] data-parallel rank of each rank.
        dp_size: D.
        group: its world size is W.
        args: lists of D parts.
        kwargs: lists of D parts.

    Raises:
        DivideError: a list of another length.
    """
    _check_mapping("dispatch_nd_compute", dp_rank_mapping, dp_size, group)

    def fanned_out(name: int | str, parts: Any) -> list[Any]:
        if not is_list(parts) or len(parts) != dp_size:
            got = f"{len(parts)} parts" if is_list(parts) else type(parts).__name__
            raise DivideError(f"dispatch_nd_compute: got {got} for argument {name}, expected a list of {dp_size}")
        return [parts[dp_rank] for dp_rank in dp_rank_mapping]

    positional = tuple(fanned_out(index, parts) for index, parts in enumerate(args))
    return positional, {name: fanned_out(name, parts) for name, parts in kwargs.items()}


def dispatch_nd_compute_dataproto(
    dp_rank_mapping: Sequence[int], dp_size: int, group: GroupLike, *args: Any, **kwargs: Any
) -> Lists:
    """Batches are cut in D parts that go to the ranks of each data-parallel rank; everything else goes whole.

    Args:
        dp_rank_mapping: [W] data-parallel rank of each rank.
        dp_size: D.
        group: its world size is W.
        args: batches, or anything else.
        kwargs: batches, or anything else.

    Raises:
        DivideError: the mapping does not fit the group or D.
    """
    _check_mapping("dispatch_nd_compute_dataproto", dp_rank_mapping, dp_size, group)
    ranks = range(group.world_size)
    mesh = Mesh("nd", ("dp", "rank"), tuple(ranks), tuple(zip(dp_rank_mapping, ranks, strict=True)))
    return _lists("dispatch_nd_compute_dataproto", DispatchRule("rows"), mesh, args, kwargs)


@collect_rules.follows(lambda: CollectRule("list"))
def collect_all_to_all(group: GroupLike, output: Any) -> Any:  # noqa: ARG001  the form of a collect function
    """The list of all ranks' results, as it is."""
    return output


@collect_rules.follows(lambda: CollectRule("list"))
def collect_dp_compute(group: GroupLike, output: Sequence[Any]) -> list[Any]:
    """The list of all ranks' results.

    Raises:
        CollectError: not one result per rank.
    """
    _check_output("collect_dp_compute", group, output)
    return list(output)


@collect_rules.follows(lambda: CollectRule("join"))
def collect_dp_compute_data_proto(group: GroupLike, output: Sequence[Any]) -> Any:
    """Batches put together in rank order; other values stay a list.

    Raises:
        CollectError: not one result per rank, or batches of different types.
    """
    _check_output("collect_dp_compute_data_proto", group, output)
    return _joined_or_list("collect_dp_compute_data_proto", list(enumerate(output)))


@collect_rules.follows(lambda mesh_name: CollectRule("join", _mesh_axis(mesh_name)))
def collect_lazy_compute_data_proto(mesh_name: str | MeshAxis, group: GroupLike, output: Sequence[Any]) -> Any:
    """The results of one rank per data-parallel rank, in data-parallel order; batches are put together.

    Raises:
        CollectError: not one result per rank, or batches of different types.
    """
    _check_output("collect_lazy_compute_data_proto", group, output)
    ranks = _mesh_axis(mesh_name).of(group).collectors()
    return _joined_or_list("collect_lazy_compute_data_proto", [(rank, output[rank]) for rank in ranks])


def collect_nd_compute(collect_mask: Sequence[bool], group: GroupLike, output: Sequence[Any]) -> list[Any]:
    """The results of the ranks whose entry in `collect_mask` is true, in rank order.

    Raises:
        CollectError: not one result and one flag per rank, or no flag is true.
    """
    _check_output("collect_nd_compute", group, output)
    _check_output("collect_nd_compute: collect_mask", group, collect_mask)
    kept = [value for value, collected in zip(output, collect_mask, strict=True) if collected]
    if not kept:
        raise CollectError(
            "collect_nd_compute: got a collect_mask without a true entry, expected at least one",
            dict(enumerate(output)),
        )
    return kept


def collect_nd_compute_dataproto(collect_mask: Sequence[bool], group: GroupLike, output: Sequence[Any]) -> Any:
    """The same, and batches are put together.

    Raises:
        CollectError: not one result and one flag per rank, no flag is true, or batches of different types.
    """
    collect_nd_compute(collect_mask, group, output)
    labelled = [(rank, value) for rank, value in enumerate(output) if collect_mask[rank]]
    return _joined_or_list("collect_nd_compute_dataproto", labelled)


def make_nd_compute_dataproto_dispatch_fn(
    mesh_name: str, *, axis: str | None = None, collect: Mapping[str, int] | None = None
) -> dict[str, Callable[..., Any]]:
    """A dispatch mode for `register`: divide along an axis of a mesh, repeat along its others, collect in its order.

    Args:
        mesh_name: the name under which the workers registered their places.
        axis: the axis that divides; the mesh's own choice if not given.
        collect: places on other axes that results come from, `{"pp": -1}` for the last pipeline stage.
    """
    use = mesh_name if axis is None and collect is None else MeshAxis(mesh_name, axis, collect)
    return {
        "dispatch_fn": partial(dispatch_lazy_compute_data_proto, use),
        "collect_fn": partial(collect_lazy_compute_data_proto, use),
    }


@dispatch_rules.follows(lambda: DispatchRule("direct"))
def dummy_direct_rollout_call(group: GroupLike, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG001  the form of a mode
    """Refuse: a method of this mode is called on the workers' own handles.

    Raises:
        DirectCallError: always.
    """
    raise DirectCallError(
        "a method of this mode is called on a worker's own handle (group.workers), not through the group"
    )


# Nobody would take padding off again after a direct call, so here even batches that wish to be padded are split.
def _lists(label: str, rule: DispatchRule, mesh: Mesh, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Lists:
    call = BoundCall(
        tuple(argument(f"args[{index}]", value) for index, value in enumerate(args)),
        {name: argument(name, value) for name, value in kwargs.items()},
    )
    arrangement = arranged(label, rule, mesh, call, RowRules(at_call="split"))
    value_of = {piece: arrangement.value(piece) for piece in arrangement.pieces()}
    positional = tuple([value_of[spread.piece(rank)] for rank in mesh.ranks] for spread in arrangement.positional)
    keyword = {
        name: [value_of[spread.piece(rank)] for rank in mesh.ranks] for name, spread in arrangement.keyword.items()
    }
    return positional, keyword


def _world(group: GroupLike) -> Mesh:
    return Mesh.of_world(range(group.world_size))


def _mesh_axis(mesh_name: str | MeshAxis) -> MeshAxis:
    return MeshAxis(mesh_name) if isinstance(mesh_name, str) else mesh_name


def _joined_or_list(label: str, labelled: list[tuple[int, Any]]) -> Any:
    values = [value for _, value in labelled]
    return join_batches(label, labelled) if any(batch_type_of(value) for value in values) else values


def _check_output(where: str, group: GroupLike, output: Sequence[Any]) -> None:
    if len(output) != group.world_size:
        raise CollectError(f"{where}: got {len(output)} entries, expected one for each of {group.world_size} ranks")


def _check_mapping(where: str, dp_rank_mapping: Sequence[int], dp_size: int, group: GroupLike) -> None:
    if len(dp_rank_mapping) != group.world_size or set(dp_rank_mapping) != set(range(dp_size)):
        raise DivideError(
            f"{where}: got data-parallel ranks {list(dp_rank_mapping)[:8]} of {len(dp_rank_mapping)} ranks, expected "
            f"one for each of {group.world_size} ranks, covering 0 to {dp_size - 1}"
        )


DISPATCH_MODE_FN_REGISTRY.update(
    {
        mode: {"dispatch_fn": dispatch_fn, "collect_fn": collect_fn}
        for mode, dispatch_fn, collect_fn in (
            (Dispatch.RANK_ZERO, dispatch_one_to_all, collect_all_to_all),
            (Dispatch.ONE_TO_ALL, dispatch_one_to_all, collect_all_to_all),
            (Dispatch.ALL_TO_ALL, dispatch_all_to_all, collect_all_to_all),
            (Dispatch.DP_COMPUTE, dispatch_dp_compute, collect_dp_compute),
            (Dispatch.DP_COMPUTE_PROTO, dispatch_dp_compute_data_proto, collect_dp_compute_data_proto),
            (
                Dispatch.DP_COMPUTE_PROTO_WITH_FUNC,
                dispatch_dp_compute_data_proto_with_func,
                collect_dp_compute_data_proto,
            ),
            (Dispatch.DP_COMPUTE_METRIC, dispatch_dp_compute_data_proto, collect_dp_compute),
            (Dispatch.DIRECT_ROLLOUT_METHOD, dummy_direct_rollout_call, dummy_direct_rollout_call),
        )
    }
)
