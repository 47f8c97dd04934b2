"""What a rank's machine knows of it: the files of its output, and how often the kernel has killed for memory."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_LINES = 12  # of each stream
_TAIL = 16384  # bytes that are read for them
_MOST = 1 << 20  # bytes that are read at once when somebody reads a log
_MARKS = (":job_id:", ":actor_name:", ":task_name:")  # Ray's own lines for its log monitor


@dataclass(frozen=True)
class LastWords:
    """What a rank's node knows of it: the last lines of its output, and how often the kernel has killed for memory."""

    lines: Sequence[str]
    oom_kills: int


def read_last_words(paths: Sequence[str]) -> LastWords:
    """Read the ends of log files of this machine."""
    return LastWords([line for path in paths for line in tail(path)], oom_kills())


def tail(path: str, lines: int = _LINES) -> list[str]:
    """Return the last lines of a file that are not Ray's own marks; nothing where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip() and not line.startswith(_MARKS)][-lines:]


@dataclass(frozen=True)
class LogPart:
    """Some lines of a file, and where the next ones begin."""

    lines: Sequence[str]
    end: int


def read_log(path: str, start: int | None, lines: int) -> LogPart:
    """Read what a file has from a place on, whole lines only; its last lines where no place is given."""
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MOST) if start is None else start)
            begun = file.tell()
            whole, _, _ = file.read(_MOST).rpartition(b"\n")
    except OSError:
        return LogPart((), start or 0)
    kept = [line for line in whole.decode(errors="replace").splitlines() if line and not line.startswith(_MARKS)]
    end = begun + len(whole) + 1 if whole else begun
    return LogPart(kept[-lines:] if start is None else kept, end)


def oom_kills() -> int:
    """Return how many processes the kernel has killed for memory since it started; -1 if it does not say."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return -1
    return int(found[1]) if found else -1


def own_logs() -> tuple[str, ...]:
    """Return the files that this process's output goes to; nothing where the system does not say, or they are none."""
    try:
        targets = [Path(f"/proc/self/fd/{descriptor}").readlink() for descriptor in (1, 2)]
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(target) for target in targets if target.is_file()))
