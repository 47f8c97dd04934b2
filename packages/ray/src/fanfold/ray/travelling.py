"""Errors that arrive at the caller's process as they are, whatever their constructor wants.

Ray raises at the caller what was raised in the actor, and pickles it as Python does: the class is called with `args`
again, which fails for many constructors, so that their error would arrive as one about pickling.
"""

from __future__ import annotations

import time
from typing import Any

from fanfold.worker.travelling import remote_error

from ray import cloudpickle

_WHEN = "_fanfold_when"


class errors_travel:  # noqa: N801  # a block, in each call: no generator, which would cost more than twice as much
    """Let what is raised in the block arrive as it is, with the moment at which it was raised."""

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Raise what arrives instead of what does not."""
        if not isinstance(error, Exception):
            return
        vars(error).setdefault(_WHEN, time.time())
        travelling = portable_error(error)
        if travelling is not error:
            raise travelling.with_traceback(error.__traceback__) from error.__cause__


def when_raised(error: BaseException) -> float:
    """Return the moment at which an error was raised on its rank, 0 if it is not known, and take the note away."""
    return float(vars(error).pop(_WHEN, 0.0))


def portable_error(error: Exception) -> Exception:
    """Return an error that arrives: itself, or an instance of a subclass that knows how to be rebuilt.

    One that holds what cannot be pickled arrives as a `RemoteError` that says what it was.
    """
    if _survives(error):
        return error
    if all(_survives(value) for value in (*error.args, *vars(error).values())):
        return _rebuilt(type(error), error.args, str(error), dict(vars(error)))
    return remote_error(error)


def _survives(value: Any) -> bool:
    try:
        return type(cloudpickle.loads(cloudpickle.dumps(value))) is type(value)
    except Exception:  # noqa: BLE001  # whatever pickling raises, the answer is no
        return False


def _rebuilt(cls: type[Exception], args: tuple[Any, ...], text: str, state: dict[str, Any]) -> Exception:
    body = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__reduce__": lambda _self: (_rebuilt, (cls, args, text, state)),
        "__str__": lambda _self: text,
    }
    derived = type(cls.__name__, (cls,), body)
    error: Exception = derived.__new__(derived, *args)
    error.args = args
    error.__dict__.update(state)
    return error
