"""Things that are awkward to pickle: recipes with references inside, errors with constructors of their own."""

from __future__ import annotations

import io
import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fanfold.worker import NotPicklableError

import ray
from ray import cloudpickle
from ray.actor import ActorHandle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def pack_recipe(value: Any, what: str) -> tuple[bytes, list[Any]]:
    """Pickle a value whose classes must not be imported before they are wanted, with its references beside it.

    Ray counts references only where it sees them, and what it sees it unpickles on arrival.

    Raises:
        NotPicklableError: The value, named by `what`, cannot travel.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    try:
        pickler.dump(value)  # type: ignore[no-untyped-call]
    except Exception as error:  # a user's __reduce__ may raise anything
        raise NotPicklableError(f"{what} cannot travel to another process: {type(error).__name__}: {error}") from error
    return buffer.getvalue(), pickler.references


def unpack_recipe(stream: bytes, references: Sequence[Any]) -> Any:
    """Take apart what `pack_recipe` made."""
    return _Unpickler(io.BytesIO(stream), references).load()


class _Pickler(cloudpickle.CloudPickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)  # type: ignore[no-untyped-call]
        self.references: list[Any] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, (ray.ObjectRef, ActorHandle)):
            return None
        self.references.append(value)
        return len(self.references) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, references: Sequence[Any]) -> None:
        super().__init__(file)
        self._references = references

    def persistent_load(self, position: Any) -> Any:
        return self._references[position]


@contextmanager
def errors_travel() -> Iterator[None]:
    """Let what is raised in the block arrive at the caller's process as it is, whatever its constructor wants."""
    try:
        yield
    except Exception as error:
        travelling = portable_error(error)
        if travelling is error:
            raise
        raise travelling.with_traceback(error.__traceback__) from error.__cause__


def portable_error(error: Exception) -> Exception:
    """Return an error that arrives as it is: itself, or an instance of a subclass that knows how to be rebuilt.

    Pickle calls an exception's class with `args` again, which fails for many constructors: their error would arrive as
    one about pickling.
    """
    if _survives(error):
        return error
    cls = type(error)
    state = {name: value for name, value in vars(error).items() if _survives(value)}
    return _rebuilt(cls, tuple(value if _survives(value) else repr(value) for value in error.args), str(error), state)


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
