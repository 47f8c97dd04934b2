"""The start of a group as one step: name, placement groups, ranks and custodian are all there afterwards, or none."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fanfold.ray.backend import RayBackend, check_lifetimes
from fanfold.ray.detached import Detachment
from fanfold.ray.naming import pool_name
from fanfold.worker import STOP_LIMIT, StartedRank

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fanfold.ray.placement import RayResourcePool
    from fanfold.ray.refs import Actor


class GroupBirth:
    """A group that is being started.

    Args:
        prefix: Name of the group.
        namespace: Where its names are.
        pool: Where its ranks will live.
        detached: Whether it outlives this driver.
        keep_for: Seconds without any client after which a detached group ends itself; None for never.

    Raises:
        LifetimeError: Group and pool would not live equally long.
        NameTakenError: A detached group of that name lives already.
    """

    def __init__(
        self, prefix: str, namespace: str, pool: RayResourcePool, *, detached: bool, keep_for: float | None
    ) -> None:
        check_lifetimes(pool, detached=detached)
        self.keep_for = keep_for
        self._prefix, self._namespace, self._pool, self._detached = prefix, namespace, pool, detached
        self._was_placed = pool.is_placed
        self._backend: RayBackend | None = None
        self._detachment = Detachment(prefix, namespace, keep_for) if detached else None

    @property
    def custodian(self) -> Actor | None:
        """The custodian of a detached group."""
        return None if self._detachment is None else self._detachment.custodian

    @property
    def pool_name(self) -> str | None:
        """Name of the placement groups of a detached group, by which they are found when nothing else is left of it."""
        return pool_name(self._prefix) if self._detached else None

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Undo whatever was made in the block when it raises, Ctrl-C included."""
        try:
            yield
        except BaseException:
            self._undo()
            raise

    def backend(self, **options: Any) -> RayBackend:
        """Make the backend that starts the ranks."""
        self._backend = RayBackend(
            self._pool, detached=self._detached, namespace=self._namespace, watcher=self._detachment, **options
        )
        return self._backend

    def settle(self, members: Sequence[StartedRank], cls: type) -> None:
        """Let the custodian of a detached group know everything about it."""
        if self._detachment is not None and self._backend is not None:
            self._detachment.settle(self._backend, members, cls)

    def _undo(self) -> None:
        if self._backend is not None:
            self._backend.stop(self._backend.ranks, STOP_LIMIT)
        if not self._was_placed and not self._pool.has_residents:
            self._pool.close()
        if self._detachment is not None:
            self._detachment.abandon()
