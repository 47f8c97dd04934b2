"""Ranks, worker groups and resource pools; a backend contract of one page and backends that need nothing else."""

from fanfold.worker.backend import Backend, Failure, Handle, Outcome, Request, StartedRank, StartOrder, Success
from fanfold.worker.bind import BoundMethod
from fanfold.worker.calls import Call
from fanfold.worker.errors import (
    GroupUsageError,
    MeshError,
    MethodNameClashError,
    NotPicklableError,
    PoolError,
    RankEnvironmentError,
    UnknownMethodError,
    WaitTimeoutError,
    WorkerError,
    WorkerLostError,
    WorkerStartError,
)
from fanfold.worker.group import WorkerGroup
from fanfold.worker.inline import InlineBackend
from fanfold.worker.limits import CALL_LIMIT, START_LIMIT, STOP_LIMIT, Deadline
from fanfold.worker.pool import ResourcePool, Slot
from fanfold.worker.rank import RankInfo, current_rank, rank_infos
from fanfold.worker.recipe import ClassWithInitArgs
from fanfold.worker.report import GroupCallError, RankFailure
from fanfold.worker.worker import MeshRank, Worker

__all__ = [
    "CALL_LIMIT",
    "START_LIMIT",
    "STOP_LIMIT",
    "Backend",
    "BoundMethod",
    "Call",
    "ClassWithInitArgs",
    "Deadline",
    "Failure",
    "GroupCallError",
    "GroupUsageError",
    "Handle",
    "InlineBackend",
    "MeshError",
    "MeshRank",
    "MethodNameClashError",
    "NotPicklableError",
    "Outcome",
    "PoolError",
    "RankEnvironmentError",
    "RankFailure",
    "RankInfo",
    "Request",
    "ResourcePool",
    "Slot",
    "StartOrder",
    "StartedRank",
    "Success",
    "UnknownMethodError",
    "WaitTimeoutError",
    "Worker",
    "WorkerError",
    "WorkerGroup",
    "WorkerLostError",
    "WorkerStartError",
    "current_rank",
    "rank_infos",
]
