"""Python values as JSON and back, exactly: what comes back has the types that went in.

Plain JSON says nothing of tuples, sets, bytes, numbers of numpy, arrays and tensors; these are objects with the key
"$". Arrays and tensors are kept beside the JSON, by a position that the caller gives out.
"""

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fanfold.dataproto import blob, budget
from fanfold.dataproto.errors import FileFormatError, WireError

_MARK = "$"
_LONG_INT = 2048  # bits
_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class Encoder:
    """Turns values into what `json.dumps` takes.

    Args:
        keep: stores a tensor or a numeric array elsewhere and returns what JSON should say about it
        allow_pickle: whether other objects may be pickled
    """

    def __init__(self, keep: Callable[[Any], Any], *, allow_pickle: bool) -> None:
        self._keep, self._allow_pickle = keep, allow_pickle

    def encode(self, value: Any) -> Any:
        """Return the JSON form of a value.

        Raises:
            WireError: JSON cannot hold it, and pickling is not allowed or not possible.
        """
        kind = type(value)
        if value is None or kind in {bool, float, str}:
            return value
        if kind is int:  # Python refuses to read longer ones as decimal numbers
            return value if value.bit_length() < _LONG_INT else {_MARK: "int", "hex": hex(value)}
        if kind is list:
            return [self.encode(item) for item in value]
        if kind is dict:
            return self._dict(value)
        if kind in {tuple, set, frozenset}:
            return {_MARK: kind.__name__, "items": [self.encode(item) for item in value]}
        return self._other(value, kind)

    def _dict(self, value: dict[Any, Any]) -> Any:
        if all(type(key) is str for key in value) and _MARK not in value:
            return {key: self.encode(item) for key, item in value.items()}
        return {_MARK: "dict", "items": [[self.encode(key), self.encode(item)] for key, item in value.items()]}

    def _other(self, value: Any, kind: type) -> Any:
        if kind is bytes:
            return {_MARK: "bytes", "base64": base64.b64encode(value).decode("ascii")}
        if kind is complex:
            return {_MARK: "complex", "parts": [value.real, value.imag]}
        if isinstance(value, np.generic) and value.dtype.kind in "biufcSUmM":
            return {
                _MARK: "scalar",
                "dtype": value.dtype.str,
                "base64": base64.b64encode(value.tobytes()).decode("ascii"),
            }
        if kind is np.ndarray and value.dtype == object:
            cells = [self.encode(cell) for cell in value.flat]
            return {_MARK: "objects", "shape": list(value.shape), "items": cells}
        if (kind is torch.Tensor and not value.is_nested) or (kind is np.ndarray and not value.dtype.hasobject):
            kept = self._keep(value)
            if kept is not None:
                return {_MARK: "array", **kept}
        return self._pickled(value)

    def _pickled(self, value: Any) -> Any:
        if not self._allow_pickle:
            raise WireError(
                f"a {type(value).__qualname__} is nothing that JSON can hold; save and load with allow_pickle=True, "
                "or turn it into numbers, strings, lists and dicts"
            )
        try:
            block, buffers = blob.dumps(value)
        except Exception as error:
            raise WireError(
                f"a {type(value).__qualname__} cannot be pickled: {type(error).__name__}: {error}"
            ) from error
        chunks = [block, *(bytes(buffer.raw()) for buffer in buffers)]
        return {_MARK: "pickle", "base64": [base64.b64encode(chunk).decode("ascii") for chunk in chunks]}


class Decoder:
    """Turns what `json.loads` returned into values.

    Args:
        fetch: returns the tensor or array that `keep` stored
        allow_pickle: whether pickled objects may be loaded, which executes code from the file
    """

    def __init__(self, fetch: Callable[[Any], Any], *, allow_pickle: bool) -> None:
        self._fetch, self._allow_pickle = fetch, allow_pickle

    def decode(self, text: Any, extra: int = 0) -> Any:
        """Return the value that was encoded and written with `dumps`.

        Raises:
            FileFormatError: nothing that `Encoder` writes, or a pickled object where that is not allowed.
        """
        return loads(text, self._inside_out, extra)

    def _inside_out(self, value: dict[str, Any]) -> Any:
        # JSON objects arrive innermost first, so what is inside of this one has been decoded.
        return self._marked(value[_MARK], value) if _MARK in value else value

    def _marked(self, mark: Any, value: dict[str, Any]) -> Any:  # noqa: PLR0911 (one line for each kind)
        if mark in _SEQUENCES:
            return _SEQUENCES[mark](value["items"])
        if mark == "dict":
            return dict(value["items"])
        if mark == "int":
            return int(value["hex"], 16)
        if mark == "bytes":
            return base64.b64decode(value["base64"], validate=True)
        if mark == "complex":
            return complex(*value["parts"])
        if mark == "array":
            return self._fetch(value)
        if mark == "objects":
            return _object_array(value["items"], value["shape"])
        if mark == "scalar":
            raw = base64.b64decode(value["base64"], validate=True)
            return np.frombuffer(raw, dtype=plain_dtype(value["dtype"]), count=1)[0]
        if mark == "pickle":
            return self._unpickled(value["base64"])
        raise FileFormatError(f"the file holds a value of the unknown kind {mark!r}")

    def _unpickled(self, chunks: list[str]) -> Any:
        if not self._allow_pickle:
            raise FileFormatError(
                "the file holds pickled objects, and loading them executes code from the file; "
                "pass allow_pickle=True if you trust where it comes from"
            )
        block, *buffers = (base64.b64decode(chunk, validate=True) for chunk in chunks)
        return blob.loads(block, buffers, writable=True)


def _object_array(items: list[Any], shape: list[int]) -> Any:
    made = np.fromiter(items, dtype=object, count=len(items))
    return made.reshape(shape)


def plain_dtype(text: Any) -> np.dtype[Any]:
    """Return the numpy dtype of this name, refusing those that hold Python objects or fields."""
    dtype = np.dtype(text) if isinstance(text, str) else None
    if dtype is None or dtype.hasobject or dtype.fields or dtype.kind == "V" or not dtype.itemsize:
        raise FileFormatError(f"the file names the array dtype {text!r}, which cannot be read")
    return dtype


def dumps(value: Any, extra: int = 0) -> bytes:
    """Return encoded values as JSON text; `extra` is the memory that readers need beside the values."""
    return budget.filled(json.dumps(value, separators=(",", ":")).encode("ascii"), extra)


def loads(text: Any, hook: Callable[[dict[str, Any]], Any] | None = None, extra: int = 0) -> Any:
    """Return what JSON text says; `hook` replaces every object, innermost first.

    Raises:
        FileFormatError: no JSON, or text that stands for far more memory than it takes.
    """
    budget.check(text, extra)
    try:
        return json.loads(str(text, "ascii"), object_hook=hook)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise FileFormatError(f"a part of the file that should be JSON is damaged: {error}") from None
