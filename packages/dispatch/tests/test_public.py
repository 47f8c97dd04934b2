"""The one door of the package, pinned."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import fanfold
from fanfold import dispatch

NAMES = """
DISPATCH_MODE_FN_REGISTRY MAGIC_ATTR ArgumentError BatchLike BatchType BatchTypeError CallContext CallPlan
CollectError DirectCallError Dispatch DivideError DuplicateModeError Execute FanfoldError GroupLike GroupSlice
InlineGroup Mesh MeshAxis MeshError MethodSpec ModeFunctions NoCallError PerRank Piece RegistrationError Replicate
Rows Shard UnknownModeError batch_type_of collect_all_to_all collect_dp_compute collect_dp_compute_data_proto
collect_lazy_compute_data_proto collect_nd_compute collect_nd_compute_dataproto current_call dispatch_all_to_all
dispatch_dp_compute dispatch_dp_compute_data_proto dispatch_dp_compute_data_proto_with_func
dispatch_lazy_compute_data_proto dispatch_nd_compute dispatch_nd_compute_dataproto dispatch_one_to_all
dummy_direct_rollout_call get_predefined_dispatch_fn get_predefined_execute_fn make_nd_compute_dataproto_dispatch_fn
plan_call register register_batch_type register_dispatch_mode run_inline serving spec_of specs_of update_dispatch_mode
"""


def test_the_public_names() -> None:
    assert sorted(dispatch.__all__) == sorted(NAMES.split())
    assert all(hasattr(dispatch, name) for name in dispatch.__all__)


def test_every_public_name_is_documented() -> None:
    undocumented = [
        name
        for name in dispatch.__all__
        if callable(getattr(dispatch, name)) and not (getattr(dispatch, name).__doc__ or "").strip()
    ]
    assert undocumented == []


def test_types_are_shipped_and_the_namespace_is_free() -> None:
    assert importlib.resources.files("fanfold.dispatch").joinpath("py.typed").is_file()
    assert getattr(fanfold, "__file__", None) is None  # a namespace that several distributions share
    assert not any((Path(place) / "__init__.py").exists() for place in fanfold.__path__)
