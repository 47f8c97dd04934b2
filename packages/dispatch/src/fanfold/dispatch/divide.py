"""Decide how rows are cut: which batches are divided along which axis, how long they are, by which rule.

Letters: B rows, D places along an axis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fanfold.dispatch.cut import Cut, even_cut, inverse, weighted_cut
from fanfold.dispatch.errors import ArgumentError, DivideError, MeshError
from fanfold.dispatch.nested import batches_in
from fanfold.dispatch.weights import weights_of_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.dispatch.marks import Weights
    from fanfold.dispatch.mesh import Mesh
    from fanfold.dispatch.nested import FoundBatch
    from fanfold.dispatch.signature import Argument
    from fanfold.dispatch.spec import Uneven


class RowRules(NamedTuple):
    """What a method and a call say about rows.

    Attributes:
        uneven: the method's rule for rows that do not divide.
        at_call: the call's own rule, which wins over what batches wish and over the method's.
        balance: weights of the method.
        reads: the only columns that travel; None for all.
    """

    uneven: Uneven = "split"
    at_call: Uneven | None = None
    balance: Weights | None = None
    reads: tuple[str, ...] | None = None

    def for_batches(self, along: Sequence[Divided]) -> Uneven:
        """The rule for batches; they can carry the wish to be padded, as `is_padding_enabled()`."""
        if self.at_call is not None:
            return self.at_call
        wishes = (getattr(found.batch, "is_padding_enabled", None) for argument in along for found in argument.batches)
        return "pad" if any(callable(wish) and wish() for wish in wishes) else self.uneven


class Divided(NamedTuple):
    """An argument that is cut by rows.

    Attributes:
        name: the parameter.
        axis: the mesh axis along which it is cut.
        weights: what its mark says about weights.
        batches: every batch in it, at least one.
    """

    name: str
    axis: str
    weights: Any
    batches: list[FoundBatch]


class Division(NamedTuple):
    """Rows cut along one axis.

    Attributes:
        cut: the D runs of rows; None for D parts of rows that are not here yet, and that nobody counts.
        place: rank -> its run.
        places: D.
    """

    cut: Cut | None
    place: Mapping[int, int]
    places: int

    def rows(self, rank: int) -> int | None:
        """How many rows one rank gets, padding not counted; None when nobody has counted them."""
        return None if self.cut is None else self.cut.length(self.place[rank])

    def padding(self, rank: int) -> int:
        """How many rows are added at the end of one rank's."""
        return 0 if self.cut is None else self.cut.padding[self.place[rank]]

    @property
    def order(self) -> tuple[int, ...] | None:
        """[B] the row that stands at each place when rows are dealt out by weight; None when they keep their order."""
        return None if self.cut is None else self.cut.order

    @property
    def way_back(self) -> tuple[int, ...] | None:
        """[B] what brings rows that were dealt out by weight into the caller's order; None when they keep theirs."""
        return inverse(self.order) if self.order else None


def divided(label: str, argument: Argument, mesh: Mesh) -> Divided:
    """What is to be cut in an argument.

    Raises:
        ArgumentError: it is marked Shard and holds no batch.
    """
    batches = list(batches_in(argument.value, argument.name))
    if not batches:
        raise ArgumentError(
            f"{label}: argument {argument.name!r} is marked Shard; got {type(argument.value).__name__}, which is no "
            "batch and holds none; wrap a plain list in Rows([...]), or teach its type with register_batch_type"
        )
    axis = getattr(argument.mark, "axis", None) or mesh.shard
    return Divided(argument.name, axis, getattr(argument.mark, "weights", None), batches)


def divide(label: str, mesh: Mesh, row_rules: RowRules, arguments: Sequence[Divided]) -> dict[str, Division]:
    """Cut the rows of all divided arguments, along each axis that one of them names.

    Raises:
        DivideError: batches of different length, rows that do not divide where they must, unusable weights.
        MeshError: an axis the mesh does not have.
    """
    divisions = {}
    for axis in dict.fromkeys(argument.axis for argument in arguments):
        along = [argument for argument in arguments if argument.axis == axis]
        if axis not in mesh.axes:
            raise MeshError(
                f"{label}: argument {along[0].name!r} is to be divided along axis {axis!r}, which mesh {mesh.name!r} "
                f"does not have; its axes are {', '.join(mesh.axes)}"
            )
        place, places = mesh.place(axis), mesh.size(axis)
        where = f"{places} places along axis {axis!r} of mesh {mesh.name!r}"
        divisions[axis] = Division(_cut(label, where, places, along, row_rules), place, places)
    return divisions


def _cut(label: str, where: str, places: int, along: Sequence[Divided], row_rules: RowRules) -> Cut | None:
    rule = row_rules.for_batches(along)
    if _need_not_be_counted(along, rule, row_rules.balance):
        return None
    rows = _common_length(label, along)
    if rule == "error" and rows % places:
        raise DivideError(
            f"{label}: got {rows} rows, expected a multiple of the {where}; "
            "pass such a number of rows, or register the method with uneven='split' or uneven='pad'"
        )
    weights = _weights(label, along, row_rules.balance, rows)
    if weights is None:
        cut = even_cut(rows, places)
    else:
        # A method that needs equal lengths gets balanced runs of equal length: as many rows as an even cut gives.
        cut = weighted_cut(weights, places, longest=-(-rows // places) if rule in ("error", "pad") else None)
    return cut.padded() if rule == "pad" and rows else cut


def _need_not_be_counted(along: Sequence[Divided], rule: Uneven, balance: Weights | None) -> bool:
    """True for rows that are not here yet where an even split is all that is asked: planning then waits for nothing.

    Two batches are counted, and waited for, so that different lengths are refused before anything is sent.
    """
    first = along[0].batches[0]
    weighed = balance is not None or any(argument.weights is not None for argument in along)
    alone = all(found.batch is first.batch for argument in along for found in argument.batches)
    return first.type.part is not None and alone and rule == "split" and not weighed


def _common_length(label: str, along: Sequence[Divided]) -> int:
    lengths = {found.path: found.type.length(found.batch) for argument in along for found in argument.batches}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{path} has {length}" for path, length in lengths.items())
        raise DivideError(
            f"{label}: got batches of different length ({told} rows), expected one length for all that are divided "
            "together; send one that belongs to no row whole, with Replicate(x)"
        )
    return next(iter(lengths.values()))


def _weights(label: str, along: Sequence[Divided], balance: Weights | None, rows: int) -> list[float] | None:
    marked = [argument for argument in along if argument.weights is not None]
    if len(marked) > 1:
        names = ", ".join(argument.name for argument in marked)
        raise DivideError(
            f"{label}: got weights on arguments {names}, expected one of them to say how all are dealt out"
        )
    weights = marked[0].weights if marked else balance
    if weights is None:
        return None
    batches = [found for argument in marked or along for found in argument.batches]
    return weights_of_rows(label, weights, batches, rows)
