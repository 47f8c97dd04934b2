"""Arrange the arguments of a call over ranks: by marks and a rule, or as a custom dispatch function says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.dispatch.arrangement import Arrangement
from fanfold.dispatch.batches import batch_type_of, lacks_concat
from fanfold.dispatch.columns import check_columns
from fanfold.dispatch.divide import divide, divided
from fanfold.dispatch.errors import ArgumentError, BatchTypeError
from fanfold.dispatch.lists import lists_scatter
from fanfold.dispatch.marks import PerRank, Shard
from fanfold.dispatch.pieces import Spread, Spreader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.dispatch.batches import BatchType
    from fanfold.dispatch.divide import Divided, RowRules
    from fanfold.dispatch.mesh import Mesh
    from fanfold.dispatch.rules import DispatchRule
    from fanfold.dispatch.signature import Argument, BoundCall


def arranged(label: str, rule: DispatchRule, mesh: Mesh, call: BoundCall, row_rules: RowRules) -> Arrangement:
    """Arrange by marks, and by the rule what carries none; the ranks are those of the mesh.

    Raises:
        ArgumentError: arguments that the rule cannot take.
        BatchTypeError: an argument that is a batch but for what puts batches together.
        DivideError: arguments that cannot be divided as asked.
        MeshError: a mark names an axis that the mesh does not have.
    """
    arguments = call.arguments()
    if rule.function_first:
        _check_function_first(label, call)
    _check_almost(label, arguments, rule)
    scatter = lists_scatter(label, rule.unmarked, arguments)
    cut = {argument.name: divided(label, argument, mesh) for argument in arguments if _is_divided(argument, rule)}
    divisions = divide(label, mesh, row_rules, list(cut.values()))
    if row_rules.reads is not None:
        check_columns(label, row_rules.reads, _batches(arguments, cut))
    spreader = Spreader(label, mesh.ranks)

    def spread(argument: Argument) -> Spread:
        name, value, mark = argument
        if name in cut:
            return spreader.rows(name, value, cut[name].axis, divisions[cut[name].axis], row_rules.reads)
        if value is not None and (isinstance(mark, PerRank) or (scatter and mark is None)):
            return spreader.items(name, value)
        return spreader.whole(name, value, row_rules.reads if batch_type_of(value) else None)

    positional = tuple(map(spread, call.positional))
    keyword = {name: spread(argument) for name, argument in call.keyword.items()}
    batch_type = next((argument.batches[0].type for argument in cut.values()), None)
    return Arrangement(label, mesh.ranks, tuple(spreader.sources), positional, keyword, divisions, batch_type)


def arranged_lists(
    label: str, ranks: tuple[int, ...], positional: Sequence[Sequence[Any]], keyword: Mapping[str, Sequence[Any]]
) -> Arrangement:
    """Arrange lists with one entry per rank."""
    spreader = Spreader(label, ranks)
    by_position = tuple(spreader.items(f"[{index}]", entries) for index, entries in enumerate(positional))
    by_keyword = {name: spreader.items(name, entries) for name, entries in keyword.items()}
    return Arrangement(label, ranks, tuple(spreader.sources), by_position, by_keyword, {}, None)


def _is_divided(argument: Argument, rule: DispatchRule) -> bool:
    if argument.mark is None:
        return rule.unmarked == "rows" and batch_type_of(argument.value) is not None
    return isinstance(argument.mark, Shard) and argument.value is not None


def _check_almost(label: str, arguments: Sequence[Argument], rule: DispatchRule) -> None:
    """Refuse to send whole, in silence, what looks like a batch and is none."""
    for argument in arguments:
        meant = isinstance(argument.mark, Shard) or (argument.mark is None and rule.unmarked == "rows")
        if meant and lacks_concat(argument.value):
            raise BatchTypeError(
                f"{label}: argument {argument.name!r} is to be divided; got {type(argument.value).__name__}, which has "
                "rows and chunk but no concat; add it, use register_batch_type, or send it whole with Replicate(x)"
            )


def _check_function_first(label: str, call: BoundCall) -> None:
    if not call.positional or not callable(call.positional[0].value):
        got = type(call.positional[0].value).__name__ if call.positional else "no positional argument"
        raise ArgumentError(f"{label}: got {got}, expected a function as the first positional argument")


def _batches(arguments: Sequence[Argument], cut: Mapping[str, Divided]) -> list[tuple[Any, BatchType]]:
    """All batches of a call: those that are divided, in containers too, and those that go whole."""
    divided_ones = [(found.batch, found.type) for argument in cut.values() for found in argument.batches]
    whole = [argument.value for argument in arguments if argument.name not in cut]
    return divided_ones + [(value, batch_type) for value in whole if (batch_type := batch_type_of(value))]
