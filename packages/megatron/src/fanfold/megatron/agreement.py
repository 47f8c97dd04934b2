"""What ranks tell each other around a step, so that all of them come to the same decision. W ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from fanfold.megatron.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.megatron.rows import Rows
    from fanfold.megatron.topology import ParallelConfig


@dataclass(frozen=True)
class StepPlan:
    """What the ranks agreed on before the first collective of the model.

    Attributes:
        micro_batch_size: Rows in each micro-batch.
        micro_batches: How many each rank runs; a rank with fewer rows runs some without tokens.
        targets: Targets of the global batch.
        rows: Rows of the global batch.
        first_row: Which row of the global batch this rank's first one is.
    """

    micro_batch_size: int
    micro_batches: int
    targets: float
    rows: int
    first_row: int

    @property
    def padded_rows(self) -> int:
        """Rows that each rank runs, those without tokens among them."""
        return self.micro_batch_size * self.micro_batches

    def refuse_nothing(self) -> None:
        """Refuse a global batch in which there is nothing to learn, on every rank alike.

        Raises:
            BatchError: There is no target.
        """
        if self.targets == 0:
            raise BatchError(
                f"the global batch of {self.rows} rows has nothing to predict: "
                "every row has a single token, or a loss_mask that is 0 everywhere"
            )


def agree_on_step(
    rows: Rows | BatchError, parallel: ParallelConfig, micro_batch_size: int | None, device: torch.device
) -> tuple[StepPlan, Rows]:
    """Compare notes with all ranks, and raise on every rank what one rank found wrong with its rows.

    Args:
        rows: This rank's rows, or why they cannot be used.
        parallel: The layout.
        micro_batch_size: Rows in a micro-batch; all of a rank's rows, by pipeline stages, when left out.
        device: Where tensors of collectives live.

    Returns:
        The plan, and this rank's rows.

    Raises:
        BatchError: Some rank cannot use its rows.
    """
    wrong = isinstance(rows, BatchError)
    counts = (0.0, 0.0) if isinstance(rows, BatchError) else (float(len(rows)), rows.target_count)
    notes = share_numbers([float(wrong), *counts], device)
    if bool(notes[:, 0].any()):
        _raise_together(rows if isinstance(rows, BatchError) else None)
    assert not isinstance(rows, BatchError)  # or the line above has raised
    replicas = [ranks[0] for ranks in parallel.groups("tp", "cp", "pp")]
    most_rows = max(1, int(notes[:, 1].max()))
    size = min(micro_batch_size or -(-most_rows // parallel.pipeline), most_rows)
    row_counts = notes[replicas, 1]
    before = row_counts[: parallel.coordinates(torch.distributed.get_rank())["dp"]].sum()
    targets = float(notes[replicas, 2].sum())
    return StepPlan(size, -(-most_rows // size), targets, int(row_counts.sum()), int(before)), rows


def share_numbers(numbers: Sequence[float], device: torch.device) -> torch.Tensor:
    """Collect the same few numbers from every rank.

    Returns:
        [W, n] float64 on the CPU.
    """
    mine = torch.tensor(numbers, dtype=torch.float64).to(device)
    everyone = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(everyone, mine)
    return torch.stack(everyone).cpu()


def _raise_together(error: BatchError | None) -> None:
    # A rank that went on alone would wait for ever in the first collective of the model.
    texts: list[str | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(texts, error.message if error else None)
    rank, text = next((rank, text) for rank, text in enumerate(texts) if text is not None)
    raise BatchError(text, rank) from error
