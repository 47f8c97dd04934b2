from __future__ import annotations

import subprocess
import sys

import fanfold.worker


def test_public_names() -> None:
    assert sorted(fanfold.worker.__all__) == [
        "Asks",
        "Backend",
        "BoundMethod",
        "BusyRankError",
        "CALL_LIMIT",
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
        "START_LIMIT",
        "STOP_LIMIT",
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


def test_every_public_name_is_there() -> None:
    assert all(hasattr(fanfold.worker, name) for name in fanfold.worker.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(fanfold.worker, "InlineBackned")


def _in_a_fresh_interpreter(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_brings_no_third_party_package_and_nothing_heavy() -> None:
    heavy: tuple[str, ...] = (
        "torch",
        "numpy",
        "ray",
        "tensordict",
        "pytest",
        "cloudpickle",
        "asyncio",
        "multiprocessing",
        "socket",
    )
    heavy += ("logging", "subprocess", "concurrent", "json")
    code = f"import sys, fanfold.worker; print([name for name in {heavy} if name in sys.modules])"
    assert _in_a_fresh_interpreter(code).strip() == "[]"


def test_import_stays_in_its_package_and_the_one_below() -> None:
    code = (
        "import sys, fanfold.worker; print(sorted({n.split('.')[1] for n in sys.modules if n.startswith('fanfold.')}))"
    )
    assert _in_a_fresh_interpreter(code).strip() == "['dispatch', 'worker']"
