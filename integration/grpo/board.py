"""The metrics of a run for TensorBoard, where that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

Write = Callable[[int, Mapping[str, Any]], None]


class BoardError(RuntimeError):
    """TensorBoard is wanted and not installed."""


def require_tensorboard() -> None:
    """Refuse to begin a run whose metrics could not be written.

    Raises:
        BoardError: Says what to install.
    """
    try:
        import tensorboard  # noqa: F401, PLC0415  # needed only where it is asked for
    except ImportError as error:
        raise BoardError("--tensorboard needs the package tensorboard: uv pip install tensorboard") from error


@contextmanager
def tensorboard(folder: Path, first_step: int) -> Iterator[Write]:
    """Write metrics into `folder`; what an earlier run wrote there for `first_step` and later is not shown any more."""
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  # as above

    writer = SummaryWriter(str(folder), purge_step=first_step)

    def write(step: int, metrics: Mapping[str, Any]) -> None:
        for name, value in scalars(metrics).items():
            writer.add_scalar(name, value, step)

    try:
        yield write
    finally:
        writer.close()


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return one number for each name: the mean of those of several mini-batches, and `seconds/answers` for a phase."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{part}": float(number) for part, number in value.items()}
        else:
            found[name] = fmean(value) if isinstance(value, list) else float(value)
    return found
