"""A mode in which a method that promised not to write is caught when it does, instead of being killed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_blocks: list[None] = []


@contextmanager
def checking_inputs() -> Iterator[None]:
    """Let ranks check, in calls that are made in a block, that `inputs="readonly"` methods keep their promise.

    Such a method then gets copies, and its call fails with `ReadOnlyError` if it has written into one: the argument and
    its columns are named. Outside of the block the memory is mapped, and a write to it kills the rank's process.
    """
    _blocks.append(None)
    try:
        yield
    finally:
        _blocks.pop()


def inputs_are_checked() -> bool:
    """Say whether calls are made in such a block."""
    return bool(_blocks)
