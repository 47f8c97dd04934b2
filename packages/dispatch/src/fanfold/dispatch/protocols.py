"""What dispatch asks of a group and of a batch, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.dispatch.mesh import Mesh


class GroupLike(Protocol):
    """All that planning, and a custom dispatch function, may ask of a group."""

    @property
    def world_size(self) -> int:
        """W: the number of ranks."""
        ...

    def mesh(self, name: str) -> Mesh:
        """The rank tables registered under `name`."""
        ...


@runtime_checkable
class BatchLike(Protocol):
    """A type with these is a batch without being registered: rows that can be counted, cut and put together."""

    def __len__(self) -> int:
        """B: the number of rows."""
        ...

    def __getitem__(self, rows: slice, /) -> Any:
        """Rows a to b as a batch, without changing this one."""
        ...

    def chunk(self, chunks: int, /) -> Sequence[Self]:
        """The batch in equal parts; its presence tells a batch from a mere sequence."""
        ...

    @staticmethod
    def concat(batches: Any, /) -> Any:
        """One batch of all rows of `batches`, in order."""
        ...
