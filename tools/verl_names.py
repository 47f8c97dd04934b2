"""Where the names of verl's worker groups are in fanfold: by module of verl, by name."""

from collections.abc import Mapping

BATCH = dict.fromkeys(
    (
        *("DataProto", "DataProtoConfig", "DataProtoFuture", "DataProtoItem", "all_gather_data_proto", "collate_fn"),
        *("deserialize_single_tensor", "deserialize_tensordict", "fold_batch_dim", "pad_dataproto_to_divisor"),
        *("serialize_single_tensor", "serialize_tensordict", "unfold_batch_dim", "union_numpy_dict"),
        *("union_tensor_dict", "unpad_dataproto"),
    ),
    "fanfold.dataproto",
)
TENSORDICTS = dict.fromkeys(
    (
        *("assert_tensordict_eq", "assign_non_tensor", "assign_non_tensor_data", "assign_non_tensor_stack"),
        *("chunk_tensordict", "concat_nested_tensors", "concat_tensordict", "concat_tensordict_with_none_bsz"),
        *("contiguous", "get", "get_keys", "get_non_tensor_data", "get_tensordict", "index_select_tensor_dict"),
        *("list_of_dict_to_tensordict", "make_iterator", "maybe_fix_3d_position_ids", "nested_tensor_from_tensor_list"),
        *("pad_to_divisor", "pop", "pop_keys", "union_tensor_dict", "unpad", "unwrap_non_tensor_data"),
    ),
    "fanfold.dataproto.tensordicts",
)
MARKS = dict.fromkeys(
    (
        *("DISPATCH_MODE_FN_REGISTRY", "MAGIC_ATTR", "Dispatch", "Execute", "collect_all_to_all", "collect_dp_compute"),
        *("collect_dp_compute_data_proto", "collect_lazy_compute_data_proto", "collect_nd_compute"),
        *("collect_nd_compute_dataproto", "dispatch_all_to_all", "dispatch_dp_compute"),
        *("dispatch_dp_compute_data_proto", "dispatch_dp_compute_data_proto_with_func"),
        *("dispatch_lazy_compute_data_proto", "dispatch_nd_compute", "dispatch_nd_compute_dataproto"),
        *("dispatch_one_to_all", "dummy_direct_rollout_call", "get_predefined_dispatch_fn"),
        *("get_predefined_execute_fn", "make_nd_compute_dataproto_dispatch_fn", "register", "register_dispatch_mode"),
        "update_dispatch_mode",
    ),
    "fanfold.dispatch",
)
WORKER = {"Worker": "fanfold.worker"}
GROUP = dict.fromkeys(("ClassWithInitArgs", "ResourcePool", "WorkerGroup"), "fanfold.worker")
CLUSTER = dict.fromkeys(
    (
        *("RayClassWithInitArgs", "RayResourcePool", "RayWorkerGroup", "ResourcePoolManager", "SubRayResourcePool"),
        *("create_colocated_worker_cls", "create_colocated_worker_cls_fused", "create_colocated_worker_raw_cls"),
        *("extract_pg_from_exist", "merge_resource_pool", "sort_placement_group_by_node_ip", "split_resource_pool"),
    ),
    "fanfold.ray",
)
HELPERS = dict.fromkeys(("parallel_put", "ray_noset_visible_devices"), "fanfold.ray")

MODULES: Mapping[str, Mapping[str, str]] = {
    "verl": {"DataProto": "fanfold.dataproto"},
    "verl.protocol": BATCH,
    "verl.single_controller": WORKER | GROUP,
    "verl.single_controller.base": WORKER | GROUP,
    "verl.single_controller.base.decorator": MARKS,
    "verl.single_controller.base.worker": WORKER,
    "verl.single_controller.base.worker_group": GROUP,
    "verl.single_controller.ray": CLUSTER,
    "verl.single_controller.ray.base": CLUSTER | WORKER | GROUP,
    "verl.utils.ray_utils": HELPERS,
    "verl.utils.tensordict_utils": TENSORDICTS,
}

# Modules whose every name has one home: `import` of the module itself can follow.
WHOLE_MODULES: Mapping[str, str] = {
    "verl.protocol": "fanfold.dataproto",
    "verl.single_controller.base.decorator": "fanfold.dispatch",
    "verl.single_controller.base.worker": "fanfold.worker",
    "verl.single_controller.base.worker_group": "fanfold.worker",
    "verl.utils.tensordict_utils": "fanfold.dataproto.tensordicts",
}

# These have nothing to do with groups and stay where they are.
STAY = frozenset({"verl.__version__", "verl.utils.ray_utils.auto_await", "verl.utils.ray_utils.get_event_loop"})

# What has no place here, by name, and what to do instead.
NO_PLACE: Mapping[str, str] = {
    "BatchData": "use batch_type_of(value) of fanfold.dispatch: .length, .rows, .parts, .concat",
    "DistGlobalInfo": "keep the dataclass in your own code, or read worker.rank_info",
    "DistRankInfo": "keep the dataclass in your own code, or read worker.rank_info",
    "WorkerHelper": "derive from Worker, which has get_available_master_addr_port()",
    "_check_dispatch_mode": "leave it out: register() refuses a wrong mode itself",
    "_check_execute_mode": "leave it out: register() refuses a wrong mode itself",
    "_padding_size_key": "read current_call().padding of fanfold.dispatch in the method; results lose it by themselves",
    "check_workers_alive": "use group.start_worker_aliveness_check()",
    "func_generator": "leave it out: groups bind their methods themselves",
    "get_master_addr_port": "read group.master_address and group.master_port",
    "get_random_string": "leave name_prefix out: groups choose a unique one",
}
