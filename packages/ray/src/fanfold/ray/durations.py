"""Durations as people write them."""

from __future__ import annotations

import re

from fanfold.worker import GroupUsageError

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(duration: float | str | None, what: str) -> float | None:
    """Return a duration in seconds: a number, a text such as "30m" (s, m, h, d), or None for no limit.

    Raises:
        GroupUsageError: It is none of these, or not positive; `what` names the argument.
    """
    if duration is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", str(duration))
    seconds = float(match[1]) * _SECONDS[match[2] or "s"] if match else 0.0
    if seconds <= 0:
        raise GroupUsageError(f'{what} is a number of seconds or a text such as "30m" or "2h"; got {duration!r}')
    return seconds
