"""Say once how a method is spread over ranks and how its results are collected: a registry and a plan, for any data."""

from fanfold.dispatch.batches import BatchType, batch_type_of, register_batch_type
from fanfold.dispatch.context import CallContext, current_call, serving
from fanfold.dispatch.custom import GroupSlice
from fanfold.dispatch.errors import (
    ArgumentError,
    BatchTypeError,
    CollectError,
    DirectCallError,
    DivideError,
    DuplicateModeError,
    FanfoldError,
    MeshError,
    NoCallError,
    RegistrationError,
    UnknownModeError,
)
from fanfold.dispatch.functions import (
    collect_all_to_all,
    collect_dp_compute,
    collect_dp_compute_data_proto,
    collect_lazy_compute_data_proto,
    collect_nd_compute,
    collect_nd_compute_dataproto,
    dispatch_all_to_all,
    dispatch_dp_compute,
    dispatch_dp_compute_data_proto,
    dispatch_dp_compute_data_proto_with_func,
    dispatch_lazy_compute_data_proto,
    dispatch_nd_compute,
    dispatch_nd_compute_dataproto,
    dispatch_one_to_all,
    dummy_direct_rollout_call,
    make_nd_compute_dataproto_dispatch_fn,
)
from fanfold.dispatch.inline import InlineGroup, run_inline
from fanfold.dispatch.marker import register
from fanfold.dispatch.marks import PerRank, Replicate, Shard
from fanfold.dispatch.mesh import Mesh
from fanfold.dispatch.modes import Dispatch, Execute
from fanfold.dispatch.pieces import Piece
from fanfold.dispatch.plan import CallPlan
from fanfold.dispatch.planning import plan_call
from fanfold.dispatch.protocols import BatchLike, GroupLike
from fanfold.dispatch.registry import (
    DISPATCH_MODE_FN_REGISTRY,
    ModeFunctions,
    get_predefined_dispatch_fn,
    get_predefined_execute_fn,
    register_dispatch_mode,
    update_dispatch_mode,
)
from fanfold.dispatch.rows import Rows
from fanfold.dispatch.rules import MeshAxis
from fanfold.dispatch.spec import MAGIC_ATTR, MethodSpec, spec_of, specs_of

__all__ = [
    "DISPATCH_MODE_FN_REGISTRY",
    "MAGIC_ATTR",
    "ArgumentError",
    "BatchLike",
    "BatchType",
    "BatchTypeError",
    "CallContext",
    "CallPlan",
    "CollectError",
    "DirectCallError",
    "Dispatch",
    "DivideError",
    "DuplicateModeError",
    "Execute",
    "FanfoldError",
    "GroupLike",
    "GroupSlice",
    "InlineGroup",
    "Mesh",
    "MeshAxis",
    "MeshError",
    "MethodSpec",
    "ModeFunctions",
    "NoCallError",
    "PerRank",
    "Piece",
    "RegistrationError",
    "Replicate",
    "Rows",
    "Shard",
    "UnknownModeError",
    "batch_type_of",
    "collect_all_to_all",
    "collect_dp_compute",
    "collect_dp_compute_data_proto",
    "collect_lazy_compute_data_proto",
    "collect_nd_compute",
    "collect_nd_compute_dataproto",
    "current_call",
    "dispatch_all_to_all",
    "dispatch_dp_compute",
    "dispatch_dp_compute_data_proto",
    "dispatch_dp_compute_data_proto_with_func",
    "dispatch_lazy_compute_data_proto",
    "dispatch_nd_compute",
    "dispatch_nd_compute_dataproto",
    "dispatch_one_to_all",
    "dummy_direct_rollout_call",
    "get_predefined_dispatch_fn",
    "get_predefined_execute_fn",
    "make_nd_compute_dataproto_dispatch_fn",
    "plan_call",
    "register",
    "register_batch_type",
    "register_dispatch_mode",
    "run_inline",
    "serving",
    "spec_of",
    "specs_of",
    "update_dispatch_mode",
]
