"""What came of a call on a rank, translated from Ray's errors into ours."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fanfold.ray.memory import memory_note
from fanfold.ray.obituary import obituary
from fanfold.ray.origins import lost_part
from fanfold.ray.refs import Ref, value_of
from fanfold.ray.travelling import when_raised
from fanfold.worker import Failure, NotPicklableError, Outcome, Success, WaitTimeoutError

import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fanfold.ray.answers import RankAnswer

FETCH_LIMIT = 600.0  # seconds for bringing a result that is finished: its node may be gone while we ask

_OUR_FRAMES = ("fanfold/ray/actors.py", "fanfold/ray/travelling.py", "fanfold/worker/executing.py")
_CALL_FRAME = "fanfold/ray/actors.py"  # in the trace of whatever happens before a method has returned
_METHOD = re.compile(r"ray::\w+\.(\w+)\(\)")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def fetch(reference: Ref, answer_behind: Callable[[str], RankAnswer | None], limit: float = FETCH_LIMIT) -> Outcome:
    """Bring the outcome of a finished call.

    Args:
        reference: The call's.
        answer_behind: Gives, for the id of an actor, what that rank said of itself.
        limit: Seconds for a finished result to arrive.
    """
    try:
        return Success(value_of(reference, limit))
    except RayTaskError as error:  # first: of a lost argument it is a RayActorError too
        return _failure_of_method(error, answer_behind(reference.task_id().actor_id().hex()))
    except (RayActorError, WorkerCrashedError, OutOfMemoryError) as error:
        actor_id = reference.task_id().actor_id().hex()
        return Failure(obituary(error, answer_behind(actor_id)), lost=not isinstance(error, ActorUnavailableError))
    except GetTimeoutError:
        return Failure(WaitTimeoutError("bringing a finished result to the driver", limit))
    except Exception as error:  # noqa: BLE001  # lost objects, full stores, errors that cannot be unpickled here
        return failure_of(error)


def values_if_all_succeeded(references: Sequence[Ref], limit: float = FETCH_LIMIT) -> list[Any] | None:
    """Bring the results of finished calls at once; None where one has failed, or cannot be brought."""
    try:
        return ray.get(list(references), timeout=limit)
    except Exception:  # noqa: BLE001  # whatever it is, it is looked into where each is asked for alone
        return None


def failure_of(error: Exception) -> Failure:
    """Return what an error of Ray's means, as far as it can be told without asking anybody."""
    if isinstance(error, RayTaskError):
        return _failure_of_method(error, None)
    return Failure(lost_part(error) if isinstance(error, ObjectLostError) else error)


def _failure_of_method(error: RayTaskError, answer: RankAnswer | None) -> Failure:
    cause, text = error.cause if isinstance(error.cause, BaseException) else error, str(error)
    if isinstance(cause, ObjectLostError):  # an argument, before the method began
        return Failure(lost_part(cause))
    method = _METHOD.search(text)
    if method is not None and _CALL_FRAME not in text:  # the method was left behind: its result was being sent
        what = f"the result of {method[1]}"
        cause = NotPicklableError(f"{what} cannot travel to the driver: {type(cause).__name__}: {cause}")
    trace = "\n".join(filter(None, [tidy_trace(text), memory_note(cause, answer)]))
    return Failure(cause, trace, when=when_raised(cause))


def tidy_trace(text: str) -> str:
    """Return a rank's traceback as Python writes it, without colours and without frames that are not the user's."""
    kept: list[str] = []
    skipping = False
    for line in _COLOR.sub("", text).splitlines():
        is_frame = line.startswith("  File ")
        skipping = any(place in line for place in _OUR_FRAMES) if is_frame else skipping and line.startswith("    ")
        if line.startswith("ray::"):
            kept.append("Traceback (most recent call last):")
        elif not skipping and not _is_stray_marker(line, kept):
            kept.append(line)
    return "\n".join(kept)


def _is_stray_marker(line: str, kept: list[str]) -> bool:
    # Ray drops its own frames and leaves the line of markers that stood below them.
    return not line.strip(" ^~") and "^" in line and not (kept and kept[-1].startswith("    "))
