"""What can go wrong between groups and a cluster. Every class is also the built-in that fits."""

from __future__ import annotations

from fanfold.worker import GroupUsageError, WorkerError


class NoClusterError(WorkerError, ConnectionError):
    """This process is not connected to a Ray cluster, or cannot be."""


class PlacementError(WorkerError, RuntimeError):
    """The cluster has no room for a pool, now or at all; nothing half-made is left."""


class LifetimeError(GroupUsageError):
    """A group and its pool would not live equally long."""


class NameTakenError(GroupUsageError):
    """A group, a worker or a placement group of that name lives already."""


class NoSuchGroupError(WorkerError, LookupError):
    """No group of that name lives in that namespace."""


class GroupStartingError(WorkerError, RuntimeError):
    """The group exists, but not all of its ranks are ready."""


class BrokenGroupError(WorkerError, RuntimeError):
    """Ranks of the group are gone, or it does not fit what was asked for."""


class CollectiveGroupError(GroupUsageError):
    """Some ranks of a group were to be started anew, and the others are bound to the old ones by collectives."""


class StaleResultError(WorkerError, ConnectionError):
    """A result comes from a rank that has been started anew since."""


class StoreFullError(WorkerError, MemoryError):
    """A value does not fit into Ray's object store, or into what it spills to."""


class PartLostError(WorkerError, LookupError):
    """Rows that a call left on the cluster are gone from there."""
