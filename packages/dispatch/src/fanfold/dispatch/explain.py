"""A plan for people: as plain data, and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.dispatch.batches import batch_type_of
from fanfold.dispatch.nested import batches_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.dispatch.pieces import Piece
    from fanfold.dispatch.plan import CallPlan


def plan_data(plan: CallPlan) -> dict[str, Any]:
    """The plan as lists, dicts, numbers and text, for tools; JSON can hold it.

    `bytes` counts what the batch types can tell of; None where none of them can.
    """
    sizes = {piece: _nbytes(plan, piece) for piece in plan.pieces()}
    position = {rank: index for index, rank in enumerate(plan.collected)}
    return {
        "method": plan.label,
        "world_size": plan.world_size,
        "collect": plan.collecting if isinstance(plan.collecting, str) else "custom",
        "collected": list(plan.collected),
        "distinct_pieces": len(sizes),
        "ranks": [{**_rank_data(plan, rank, sizes), "collected": position.get(rank)} for rank in plan.ranks],
    }


def plan_table(plan: CallPlan) -> str:
    """The plan as a table: one line per rank; "rows 2..5" are rows 2, 3 and 4."""
    data = plan_data(plan)
    names = [spread.name for spread in plan.spreads()]
    header = ["rank", "at", *names, "padding", "bytes", "collected"]
    lines = [header, *([*_cells(rank)] for rank in data["ranks"])]
    return f"{_headline(data)}\n{_aligned(lines)}"


def _rank_data(plan: CallPlan, rank: int, sizes: dict[Piece, int | None]) -> dict[str, Any]:
    known = [size for size in (sizes[spread.piece(rank)] for spread in plan.spreads()) if size is not None]
    return {
        "rank": rank,
        "at": plan.mesh.where(rank),
        "arguments": {spread.name: _told(plan, spread.piece(rank)) for spread in plan.spreads()},
        "rows": plan.rows(rank),
        "padding": plan.padding(rank),
        "bytes": sum(known) if known else None,
    }


def _cells(rank: dict[str, Any]) -> list[str]:
    at = " ".join(f"{axis}={place}" for axis, place in rank["at"].items())
    collected = "" if rank["collected"] is None else f"#{rank['collected']}"
    return [str(rank["rank"]), at, *rank["arguments"].values(), str(rank["padding"]), _size(rank["bytes"]), collected]


def _headline(data: dict[str, Any]) -> str:
    ranks, pieces, collected = len(data["ranks"]), data["distinct_pieces"], len(data["collected"])
    return (
        f"{data['method']}: {ranks} of {data['world_size']} ranks, {pieces} distinct pieces, {collected} results, "
        f"collect: {data['collect']}"
    )


def _told(plan: CallPlan, piece: Piece) -> str:
    columns = f" columns {','.join(piece.columns)}" if piece.columns else ""
    if piece.kind == "item":
        return f"item {piece.item}"
    if piece.kind == "whole":
        return f"whole{columns}"
    if piece.part is not None:
        return f"part {piece.part[0]} of {piece.part[1]}{columns}"
    rows = plan.rows_of(piece)
    if isinstance(rows, range):
        return f"rows {piece.start}..{piece.stop}{columns}"
    shown = ",".join(map(str, rows[:4])) + (",..." if len(rows) > 4 else "")  # noqa: PLR2004  as many as fit a column
    return f"{len(rows)} rows {shown}{columns}"


def _nbytes(plan: CallPlan, piece: Piece) -> int | None:
    if not plan.sources:  # let go after the call
        return None
    value = plan.value(piece)
    # Only what is cut can hold batches in containers that planning has looked at.
    batches = batches_in(value, "") if piece.kind == "rows" or batch_type_of(value) else ()
    sizes = [found.type.nbytes(found.batch) for found in batches if found.type.nbytes]
    return sum(sizes) if sizes else None


def _size(count: int | None) -> str:
    if count is None:
        return "?"
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:  # noqa: PLR2004  binary units
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
