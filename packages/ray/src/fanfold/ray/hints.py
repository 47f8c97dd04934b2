"""A word to whoever sends the same batch again and again: it could be stored once."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import batch_type_of

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger("fanfold.ray")

WORTH_A_WORD = 1 << 20  # bytes; below that, staging saves nothing that anybody would notice
_SAID_AT = (3, 30, 300)  # times that one batch was sent

_times: dict[int, int] = {}


def note_sources(method: str, sources: Iterable[Any]) -> None:
    """Count batches that a call put into the store, and say so of one that comes again and again."""
    for source in sources:
        found = batch_type_of(source)
        if found is None or found.stage is None or found.nbytes is None:
            continue
        times = _counted(source)
        if times in _SAID_AT and (size := found.nbytes(source)) >= WORTH_A_WORD:
            logger.warning(
                "%s: the same batch of %.0f MB has been put into the object store %d times. Put it there once, "
                "staged = fanfold.ray.stage(batch), and pass that",
                method,
                size / 1e6,
                times,
            )


def _counted(source: Any) -> int:
    key = id(source)
    if key not in _times:
        weakref.finalize(source, _times.pop, key, None).atexit = False
    _times[key] = _times.get(key, 0) + 1
    return _times[key]
