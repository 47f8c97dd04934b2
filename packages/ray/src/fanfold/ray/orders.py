"""What a group tells a rank to do, and how it travels."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

from fanfold.dispatch import CallContext


class Order(NamedTuple):
    """A group's call, as a rank is told; the values follow it as arguments of their own, so that Ray resolves them.

    Attributes:
        context: The call, as the method may see it.
        method: The method's name, or a function that is given the worker first.
        names: The last values are keyword arguments with these names.
        wanted: Whether the result travels back.
        readonly: Whether the method promises not to write into its arguments.
        stays: Whether the result is returned as a header and a payload.
        apart: Columns of the result that are returned each by itself then.
        parts: How many of the values, the last ones, are parts of arguments whose rows were elsewhere.
        checked: Whether that promise is checked.
    """

    context: CallContext
    method: Any
    names: tuple[str, ...]
    wanted: bool
    readonly: bool
    stays: bool = False
    parts: int = 0
    checked: bool = False
    apart: tuple[str, ...] = ()

    def packed(self) -> Order | bytes:
        """Return what to send: bytes take a tenth of the time that Ray needs for anything else.

        Plain tuples, as finding the two classes again costs the rank more than all the rest. A function that is called
        instead of a method may be in the object store, and Ray has to see its reference.
        """
        return pickle.dumps((tuple(self.context), *self[1:]), 5) if isinstance(self.method, str) else self


def opened_order(sent: Order | bytes) -> Order:
    """Return the order that was sent."""
    if not isinstance(sent, bytes):
        return sent
    context, *rest = pickle.loads(sent)  # noqa: S301  # the driver wrote it
    return Order(CallContext(*context), *rest)
