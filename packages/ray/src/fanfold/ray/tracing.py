"""Calls of this process and of its ranks on one time axis, in a file for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fanfold.ray.ledger import CallLedger, listening

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_Span = tuple[str, float, float]


@contextmanager
def trace(path: str | Path) -> Iterator[list[CallLedger]]:
    """Write what all groups of this process do in a block to a file, in Chrome's trace format.

    The driver is one process of the picture and every rank another, all on the driver's clock. What ranks are still
    running when the block ends is left out, and so are ranks that do not answer then.

    Args:
        path: The file; it is written when the block ends, also by an error.
    """
    ledgers, began = list[CallLedger](), time.time()
    try:
        with listening(ledgers.append):
            yield ledgers
    finally:
        Path(path).write_text(json.dumps({"traceEvents": _events(ledgers, began)}), encoding="utf-8")


def _events(ledgers: Sequence[CallLedger], began: float) -> list[dict[str, Any]]:
    events = _process(0, "driver")
    for ledger in ledgers:
        told = ledger.as_data()
        events.append(_event(0, 1, (ledger.method, ledger.began, ledger.ended), began, told))
        events += [_event(0, 2, span, began, {"of": ledger.method}) for span in ledger.spans]
    asked = {id(ledger.asked): ledger.asked for ledger in ledgers if ledger.asked is not None}
    for backend in asked.values():
        for name, spans in backend.spans(began).items():
            number = len({event["pid"] for event in events})
            events += _process(number, name)
            events += [_event(number, 1, span, began, {}) for span in spans]
    return events


def _process(number: int, name: str) -> list[dict[str, Any]]:
    return [{"ph": "M", "name": "process_name", "pid": number, "tid": 1, "args": {"name": name}}]


def _event(process: int, thread: int, span: _Span, began: float, told: dict[str, Any]) -> dict[str, Any]:
    name, first, last = span
    micro = 1e6  # the format counts microseconds
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": round(micro * (first - began), 1),
        "dur": round(micro * max(last - first, 0.0), 1),
        "args": told,
    }
