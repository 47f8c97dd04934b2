"""Ranks, worker groups and resource pools; a backend contract of one page and backends that need nothing else."""

from typing import TYPE_CHECKING, Any

from fanfold.dispatch import MeshError
from fanfold.worker.abilities import (
    Asks,
    CallsTogether,
    Cancels,
    FetchesTogether,
    Keeps,
    Notifies,
    PlacesTogether,
    Renews,
    Travels,
    Watches,
)
from fanfold.worker.alone import OnlyRank
from fanfold.worker.backend import Backend, Failure, Handle, Outcome, Request, StartedRank, StartOrder, Success
from fanfold.worker.bind import BoundMethod
from fanfold.worker.calls import Call
from fanfold.worker.cancelling import CancelFlag, cancellable, cancelled
from fanfold.worker.devices import DeviceKind, device_index, device_kind, keeps_all_visible
from fanfold.worker.errors import (
    BusyRankError,
    CallCancelledError,
    GroupUsageError,
    MethodNameClashError,
    NotPicklableError,
    PoolError,
    RankEnvironmentError,
    ReadOnlyError,
    RecipeError,
    RemoteError,
    UnknownMethodError,
    UnknownOptionError,
    WaitTimeoutError,
    WorkerError,
    WorkerLostError,
    WorkerStartError,
)
from fanfold.worker.group import WorkerGroup
from fanfold.worker.limits import CALL_LIMIT, START_LIMIT, STOP_LIMIT, Deadline
from fanfold.worker.options import CallOptions
from fanfold.worker.pool import ResourcePool, Slot
from fanfold.worker.rank import RankInfo, current_rank, rank_infos
from fanfold.worker.recipe import ClassWithInitArgs
from fanfold.worker.report import GroupCallError, RankFailure
from fanfold.worker.roles import (
    RolesWorker,
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
    create_colocated_worker_raw_cls,
)
from fanfold.worker.several import gather, wait
from fanfold.worker.stuck import RankStatus, Whereabouts
from fanfold.worker.worker import MeshRank, Worker

if TYPE_CHECKING:
    from fanfold.worker.inline import InlineBackend

__all__ = [
    "CALL_LIMIT",
    "START_LIMIT",
    "STOP_LIMIT",
    "Asks",
    "Backend",
    "BoundMethod",
    "BusyRankError",
    "Call",
    "CallCancelledError",
    "CallOptions",
    "CallsTogether",
    "CancelFlag",
    "Cancels",
    "ClassWithInitArgs",
    "Deadline",
    "DeviceKind",
    "Failure",
    "FetchesTogether",
    "GroupCallError",
    "GroupUsageError",
    "Handle",
    "InlineBackend",
    "Keeps",
    "MeshError",
    "MeshRank",
    "MethodNameClashError",
    "NotPicklableError",
    "Notifies",
    "OnlyRank",
    "Outcome",
    "PlacesTogether",
    "PoolError",
    "RankEnvironmentError",
    "RankFailure",
    "RankInfo",
    "RankStatus",
    "ReadOnlyError",
    "RecipeError",
    "RemoteError",
    "Renews",
    "Request",
    "ResourcePool",
    "RolesWorker",
    "Slot",
    "StartOrder",
    "StartedRank",
    "Success",
    "Travels",
    "UnknownMethodError",
    "UnknownOptionError",
    "WaitTimeoutError",
    "Watches",
    "Whereabouts",
    "Worker",
    "WorkerError",
    "WorkerGroup",
    "WorkerLostError",
    "WorkerStartError",
    "cancellable",
    "cancelled",
    "create_colocated_worker_cls",
    "create_colocated_worker_cls_fused",
    "create_colocated_worker_raw_cls",
    "current_rank",
    "device_index",
    "device_kind",
    "gather",
    "keeps_all_visible",
    "rank_infos",
    "wait",
]


def __getattr__(name: str) -> Any:
    # The inline backend brings pickling and sockets along; a program that only defines workers does without.
    if name == "InlineBackend":
        from fanfold.worker.inline import InlineBackend  # noqa: PLC0415

        return InlineBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
