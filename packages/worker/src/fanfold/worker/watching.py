"""Arguments of a read-only method are not written into: a backend that shares no memory with production checks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.dispatch import batch_type_of
from fanfold.worker.errors import ReadOnlyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def watched(method: str, arguments: Iterable[tuple[str, Any]]) -> Callable[[], None]:
    """Start watching the batches among the arguments of a method that promised not to write into them.

    Returns:
        A function to call after the method; it raises `ReadOnlyError` for a batch that was written into.
    """
    watches = [(name, watch) for name, value in arguments if (watch := _watch(value)) is not None]

    def check() -> None:
        for name, watch in watches:
            written = watch()
            if written is not None:
                raise ReadOnlyError(
                    f"{method} is registered with inputs='readonly' and wrote into its argument {name}: {written}; "
                    "on a cluster that memory is mapped read-only, and the process would be killed. Copy it first, or "
                    "register the method with inputs='writable'"
                )

    return check


def enumerate_names(args: Sequence[Any]) -> list[tuple[str, Any]]:
    """Name positional arguments for people."""
    return [(f"number {position + 1}", value) for position, value in enumerate(args)]


def _watch(value: Any) -> Callable[[], str | None] | None:
    batch_type = batch_type_of(value)
    return batch_type.freeze(value) if batch_type is not None and batch_type.freeze is not None else None
