"""Errors cross process borders whole: class, text, attributes, notes. What Python's own pickling loses is rebuilt.

An exception whose constructor takes other arguments than it hands to `Exception` cannot be unpickled by itself; one
that holds a lock or a socket cannot be pickled at all.
"""

from __future__ import annotations

from typing import Any

from fanfold.worker.border import across
from fanfold.worker.errors import RemoteError


class Rebuilt:
    """Stands for an exception in a pickle stream and arrives as the exception."""

    def __init__(self, error: BaseException) -> None:
        self._parts = (type(error), error.args, dict(error.__dict__))

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuilt, self._parts


def rebuilt(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """Make an exception without calling its constructor, which may ask for other arguments than it keeps."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def for_travel(error: BaseException) -> Any:
    """Return what to pickle, so that the error arrives: itself where it can, else the most that does arrive."""
    for sent in (error, Rebuilt(error)):
        if _arrives(sent, error):
            return sent
    return remote_error(error)


def as_it_arrives(error: BaseException) -> BaseException:
    """Return the error as a driver in another process would see it: itself, if it can travel."""
    sent = for_travel(error)
    return sent if isinstance(sent, RemoteError) else error


def remote_error(error: BaseException) -> RemoteError:
    """Say about an error what can be said in words."""
    return RemoteError(f"{type(error).__module__}.{type(error).__qualname__}", _text(error))


def _arrives(sent: object, error: BaseException) -> bool:
    try:
        arrived = across(sent, "an error")
    except Exception:  # noqa: BLE001  # a constructor may raise anything, and the answer is then: it does not
        return False
    return type(arrived) is type(error) and _text(arrived) == _text(error)


def _text(error: object) -> str:
    try:
        return str(error)
    except Exception as unprintable:  # noqa: BLE001  # an error that cannot say what it is must not hide that there is one
        return f"<{type(unprintable).__name__} while printing it>"
