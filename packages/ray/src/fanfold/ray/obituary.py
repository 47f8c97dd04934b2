"""How a rank went: Ray's reason in few words, what the kernel says about memory, and the last lines of its output."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from fanfold.ray.logs import LastWords, read_last_words
from fanfold.ray.refs import value_of
from fanfold.worker import WorkerLostError

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

if TYPE_CHECKING:
    from fanfold.ray.answers import RankAnswer

_AWAY_LIMIT = 2.0  # seconds for another node to say what it knows: the error must not wait long for its decoration

_REASONS = (
    ("killed by `ray.kill`", "it was killed by ray.kill"),
    ("placement group", "its placement group was removed"),
    ("node has died", "its node is gone"),
    ("node died", "its node is gone"),
    ("owner has died", "the driver that owned it has ended"),
    ("owner died", "the driver that owned it has ended"),
    ("job finished", "the driver that owned it has ended"),
    ("references to the actor were removed", "nobody held a handle of it any more"),
)
_SILENT = "its process ended without a word: it was killed, it crashed, or it called os._exit"
_OUT_OF_MEMORY = "the kernel's out-of-memory killer has killed processes on that node since the rank started"


def obituary(error: BaseException, answer: RankAnswer | None) -> WorkerLostError:
    """Say which worker is gone and why, with the last of its output where its node can still be asked.

    Args:
        error: What Ray says.
        answer: What the rank said of itself while it lived.
    """
    reason, status = reason_of(str(error))
    words = None if answer is None else last_words(answer)
    if answer is not None and words is not None and words.oom_kills > answer.oom_kills >= 0 and status is None:
        reason = f"{reason}; {_OUT_OF_MEMORY}"
    lost = WorkerLostError(
        f"{who(error, answer)} is gone: {reason}", exit_status=status, log=words.lines if words else ()
    )
    if answer is not None and answer.info is not None:
        lost.ranks = (answer.info.rank,)
    return lost


def who(error: BaseException, answer: RankAnswer | None) -> str:
    """Name a worker and its place as far as they are known."""
    said = dict(
        line.strip().split(": ", 1) for line in str(error).splitlines() if line.startswith("\t") and ": " in line
    )
    name = answer.name if answer is not None else said.get("name", "")
    facts = {
        "rank": answer.info.rank if answer is not None and answer.info is not None else None,
        "pid": answer.pid if answer is not None else said.get("pid"),
        "node": answer.address if answer is not None else said.get("ip"),
        "GPU": ",".join(answer.gpu_ids) if answer is not None and answer.gpu_ids else None,
    }
    place = ", ".join(f"{label} {fact}" for label, fact in facts.items() if fact is not None)
    return f"worker {name or '(without a name)'}{f' ({place})' if place else ''}"


def reason_of(text: str) -> tuple[str, int | None]:
    """Return Ray's many words in few, and the exit status where there is one."""
    if "low on memory" in text:
        return killed_for_memory(text), None
    status = re.search(r"exit code (-?\d+)", text)
    if status is not None:
        return f"its process ended with exit status {status[1]}", int(status[1])
    for sign, reason in _REASONS:
        if sign in text:
            return reason, None
    if "End of file" in text:
        return _SILENT, None
    return " ".join(line.strip() for line in text.splitlines() if not line.startswith("\t")), None


def killed_for_memory(text: str) -> str:
    """Say in few words what Ray's memory monitor says in many, which lists everything that runs on the node."""
    numbers = re.search(r"was (?:running was )?([\d.]+GB)(?: used)? / ([\d.]+GB)", text)
    return "Ray killed it because its node ran out of memory" + (
        f" ({numbers[1]} of {numbers[2]} were in use; the memory of the host, not of a GPU)" if numbers else ""
    )


def last_words(answer: RankAnswer) -> LastWords | None:
    """Ask a rank's node for what it knows; None where that cannot be asked quickly."""
    if all(os.path.exists(path) for path in answer.logs):  # noqa: PTH110  # plain strings from another process
        return read_last_words(answer.logs)
    ask: Any = ray.remote(num_cpus=0)(read_last_words)
    there = NodeAffinitySchedulingStrategy(answer.node_id, soft=False)
    try:
        return value_of(ask.options(scheduling_strategy=there).remote(answer.logs), _AWAY_LIMIT)  # type: ignore[no-any-return]
    except RayError:  # the node is gone too, or too busy
        return None
