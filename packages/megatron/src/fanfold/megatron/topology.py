"""Which rank does what: parallel sizes to rank tables, in plain arithmetic that needs no process.

The rule is Megatron-Core's: the axes are named in an order string, the first one varies fastest with the rank.
`W` ranks, `D` data-parallel size.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fanfold.megatron.errors import LayoutError

if TYPE_CHECKING:
    from collections.abc import Mapping

AXES: Mapping[str, str] = {"tp": "tensor", "cp": "context", "ep": "expert", "dp": "data", "pp": "pipeline"}
DEFAULT_ORDER = "tp-cp-ep-dp-pp"


@dataclass(frozen=True)
class ParallelConfig:
    """The sizes of a layout, true from birth.

    Attributes:
        tensor: Ranks that share each weight matrix.
        pipeline: Stages that the layers are divided into.
        context: Ranks that share each sequence.
        expert: Ranks that share the experts; they lie within data x context.
        data: Replicas, each with its own rows; filled in from the number of ranks when left out.
        sequence_parallel: Whether norms and dropouts are divided along the sequence over the tensor ranks.
        order: The axes by their short names, the one that varies fastest first.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    data: int | None = None
    sequence_parallel: bool = False
    order: str = DEFAULT_ORDER

    def __post_init__(self) -> None:
        for field in AXES.values():
            if field != "data" or self.data is not None:
                _check_size(field, getattr(self, field))
        _check_order(self.order, {axis for axis, field in AXES.items() if (getattr(self, field) or 2) > 1})
        if self.data is not None:
            self._check_expert()

    @property
    def model_ranks(self) -> int:
        """Ranks that together hold one replica: tensor x pipeline x context."""
        return self.tensor * self.pipeline * self.context

    @property
    def pieces_of_a_row(self) -> int:
        """Into how many equal pieces a sequence is cut: two for each context rank, and by sequence parallelism."""
        # A context rank takes a piece from the front and one from the end: causal attention is equal work then.
        halves = 2 * self.context if self.context > 1 else 1
        return halves * (self.tensor if self.sequence_parallel else 1)

    @property
    def replicas(self) -> int:
        """The data-parallel size D.

        Raises:
            LayoutError: It was left out, and no number of ranks has filled it in.
        """
        if self.data is None:
            raise LayoutError(
                f"the layout {self} does not say how many replicas there are; give data=, or use for_world(ranks)"
            )
        return self.data

    @property
    def world_size(self) -> int:
        """Ranks of the whole layout; raises LayoutError as `replicas` does."""
        return self.model_ranks * self.replicas

    def for_world(self, world_size: int) -> ParallelConfig:
        """Fill in the data-parallel size from the number of ranks, or check the one that is there.

        Raises:
            LayoutError: The sizes do not multiply to the number of ranks.
        """
        if world_size % self.model_ranks:
            raise LayoutError(
                f"{world_size} ranks cannot be divided by tensor x pipeline x context = "
                f"{self.tensor} x {self.pipeline} x {self.context} = {self.model_ranks}; "
                f"take a multiple of {self.model_ranks} ranks, or smaller sizes"
            )
        if self.data is not None and world_size != self.world_size:
            raise LayoutError(
                f"the layout {self} needs {self.world_size} ranks, and the group has {world_size}; "
                f"start {self.world_size} ranks, or leave data out to have it filled in"
            )
        return replace(self, data=world_size // self.model_ranks)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Say where a rank is on each axis (`tp cp dp pp`, from 0)."""
        if not 0 <= rank < self.world_size:
            raise LayoutError(
                f"rank {rank} is not in the layout {self}, which has the ranks 0 to {self.world_size - 1}"
            )
        return _coordinates(rank, self._sizes())

    def groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """List the ranks that differ on the given axes alone, group by group, as Megatron orders them.

        Args:
            axes: Short names out of `tp cp dp pp`.
        """
        return _groups(self._sizes(), axes)

    def expert_groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """List the groups of the expert layers, whose axes are `tp ep dp pp`."""
        return _groups(self._expert_sizes(), axes)

    def data_parallel_ranks(self) -> tuple[int, ...]:
        """List, for each of the W ranks, which share of the rows it gets: 0 to D - 1."""
        return tuple(self.coordinates(rank)["dp"] for rank in range(self.world_size))

    def collects(self, rank: int) -> bool:
        """Say whether a rank's results go back: last pipeline stage, first tensor rank, first context rank."""
        place = self.coordinates(rank)
        return place["pp"] == self.pipeline - 1 and place["tp"] == 0 and place["cp"] == 0

    def __str__(self) -> str:
        sizes = {field: getattr(self, field) for field in AXES.values()}
        words = [
            f"{field}={size}" for field, size in sizes.items() if size is not None and (field == "tensor" or size > 1)
        ]
        return " ".join([*words, *(["sequence_parallel"] if self.sequence_parallel else [])])

    def _sizes(self) -> dict[str, int]:
        sizes = {"tp": self.tensor, "cp": self.context, "ep": 1, "dp": self.replicas, "pp": self.pipeline}
        return {axis: sizes[axis] for axis in _completed(self.order)}

    def _expert_sizes(self) -> dict[str, int]:
        replicas = self.replicas * self.context // self.expert
        sizes = {"tp": self.tensor, "cp": 1, "ep": self.expert, "dp": replicas, "pp": self.pipeline}
        return {axis: sizes[axis] for axis in _completed(self.order)}

    def _check_expert(self) -> None:
        if (self.replicas * self.context) % self.expert:
            raise LayoutError(
                f"expert={self.expert} must divide data x context = {self.replicas} x {self.context} = "
                f"{self.replicas * self.context}: "
                "the experts are divided over the data- and context-parallel ranks"
            )
        if self.expert > 1 and self.pipeline > 1 and self.groups("pp") != self.expert_groups("pp"):
            raise LayoutError(
                f"order={self.order!r} gives attention and expert layers different pipeline groups "
                f"(context={self.context}, expert={self.expert}); put pp last"
            )


def _check_size(field: str, size: object) -> None:
    if isinstance(size, bool) or not isinstance(size, int):
        raise LayoutError(f"{field}={size!r} must be a whole number of ranks")
    if size < 1:
        raise LayoutError(f"{field}={size} must be 1 or more")


def _check_order(order: str, needed: set[str]) -> None:
    names = order.split("-")
    unknown = sorted(set(names) - AXES.keys())
    if unknown or len(set(names)) != len(names):
        raise LayoutError(
            f"order={order!r} must name each of {', '.join(AXES)} at most once, joined by '-', as "
            f"{DEFAULT_ORDER!r} does"
        )
    missing = sorted(needed - set(names))
    if missing:
        raise LayoutError(
            f"order={order!r} leaves out {', '.join(missing)}, whose size is more than 1; say where it goes"
        )


def _completed(order: str) -> list[str]:
    # Megatron puts the axes that an order leaves out, whose size is 1, behind the others; they change no table.
    names = order.split("-")
    return [*names, *(axis for axis in AXES if axis not in names)]


def _coordinates(rank: int, sizes: Mapping[str, int]) -> dict[str, int]:
    place = {}
    for axis, size in sizes.items():
        rank, place[axis] = divmod(rank, size)
    return place


def _groups(sizes: Mapping[str, int], axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    unknown = sorted(set(axes) - sizes.keys())
    if unknown or not axes:
        raise LayoutError(f"groups are named by some of {', '.join(sizes)}; got {', '.join(axes) or 'nothing'}")
    strides = {axis: math.prod(list(sizes.values())[:position]) for position, axis in enumerate(sizes)}
    inside = _offsets([(sizes[axis], strides[axis]) for axis in sizes if axis in axes])
    outside = _offsets([(sizes[axis], strides[axis]) for axis in sizes if axis not in axes])
    return tuple(tuple(first + step for step in inside) for first in outside)


def _offsets(size_and_stride: list[tuple[int, int]]) -> list[int]:
    return sorted(
        sum(index * stride for index, (_, stride) in zip(place, size_and_stride, strict=True))
        for place in itertools.product(*(range(size) for size, _ in size_and_stride))
    )
