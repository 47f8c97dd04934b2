"""Weights of rows: from a column, a function or plain numbers to one number per row.

Letters: B rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fanfold.dispatch.errors import DivideError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.dispatch.marks import Weights
    from fanfold.dispatch.nested import FoundBatch


def weights_of_rows(label: str, weights: Weights, batches: Sequence[FoundBatch], rows: int) -> list[float]:
    """[B] the weight of each row.

    Args:
        label: the method, for messages.
        weights: a column that one of the batches has, a function of the first batch, or the numbers themselves.
        batches: the batches that are divided together, at least one.
        rows: B.

    Raises:
        DivideError: there is no such column, not one number per row, or a number that is no weight.
    """
    found: Any = weights
    if isinstance(weights, str):
        found = _column(label, weights, batches)
    elif callable(weights):
        found = weights(batches[0].batch)
    numbers = [float(weight) for weight in (found.tolist() if hasattr(found, "tolist") else found)]
    if len(numbers) != rows:
        raise DivideError(
            f"{label}: got {len(numbers)} weights, expected one for each of {rows} rows of {batches[0].path}"
        )
    for row, weight in enumerate(numbers):
        if not (math.isfinite(weight) and weight >= 0):
            raise DivideError(f"{label}: got weight {weight} for row {row} of {batches[0].path}, expected 0 or more")
    return numbers


def _column(label: str, name: str, batches: Sequence[FoundBatch]) -> Any:
    problems = []
    for found in batches:
        if found.type.column is None:
            problems.append(f"{found.path} ({found.type.name}) has no columns")
            continue
        try:
            return found.type.column(found.batch, name)
        except (LookupError, TypeError) as problem:
            problems.append(f"{found.path} ({found.type.name}): {problem!r}")
    raise DivideError(
        f"{label}: weights are to come from column {name!r}, which cannot be read: {'; '.join(problems)}. Name a "
        "column that is there, or give a function of the batch"
    )
