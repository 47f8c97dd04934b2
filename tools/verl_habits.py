"""Code written for verl's worker groups that fanfold refuses, or does otherwise: found in a syntax tree, by name."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

REFUSED, DIFFERS, BY_HAND = "refused", "differs", "by hand"


@dataclass(frozen=True, order=True)
class Finding:
    """One place to look at."""

    line: int
    kind: str
    what: str
    advice: str


class Advice(NamedTuple):
    """What becomes of a habit, and what to do."""

    kind: str
    text: str


GROUP_OPTIONS: Mapping[str, Advice] = {
    "ray_wait_register_center_timeout": Advice(REFUSED, "say start_timeout=SECONDS"),
}

KEYWORDS: Mapping[str, Mapping[str, Advice]] = {
    "RayWorkerGroup": GROUP_OPTIONS,
    "ResourcePool": {"n_gpus_per_node": Advice(REFUSED, "leave it out; nothing ever read it")},
    "__init__": {"cuda_visible_devices": Advice(REFUSED, "leave it out; the rank reads its environment")},
    "get_placement_groups": {"device_name": Advice(REFUSED, "leave it out; the pool's use_gpu decides")},
}

ATTRIBUTES: Mapping[str, Advice] = {
    "_bind_worker_method": Advice(REFUSED, "leave it out; groups bind their methods themselves"),
    "_block_until_all_workers_alive": Advice(REFUSED, "leave it out; the constructor returns when all ranks are ready"),
    "_collect_info": Advice(REFUSED, "ask group.mesh(name).collectors()"),
    "_dispatch_info": Advice(REFUSED, "ask group.mesh(name).size(): into how many shares rows are divided"),
    "_execute_remote_single_worker": Advice(
        REFUSED, "call group[rank].method() or group.workers[rank].method.remote()"
    ),
    "_init_with_resource_pool": Advice(REFUSED, "leave it out; pass resource_pool to the constructor"),
    "_is_worker_alive": Advice(REFUSED, "use group.start_worker_aliveness_check(on_lost=...)"),
    "_query_collect_info": Advice(REFUSED, "write query_collect_info(mesh), without the underscore"),
    "_query_dispatch_info": Advice(REFUSED, "write query_dispatch_info(mesh), without the underscore"),
    "get_availale_master_addr_port": Advice(REFUSED, "write get_available_master_addr_port()"),
    "spawn_fused": Advice(REFUSED, "write spawn()"),
    "start_worker_aliveness_check": Advice(
        DIFFERS, "wakes the main thread as Ctrl-C does and ends with the group; on_lost= says otherwise"
    ),
}

# A list of as many items as there are ranks used to be dealt out by these.
DEALT_OUT = frozenset({"execute_all", "execute_all_async", "execute_all_sync"})

STRINGS: Mapping[str, Advice] = {
    "DISABLE_WORKER_INIT": Advice(DIFFERS, "is not set; nothing ever read it"),
    "VERL_AUTO_PADDING": Advice(DIFFERS, "is not read; FANFOLD_AUTO_PADDING=1, or @register(..., uneven='pad')"),
    "VERL_DATAPROTO_SERIALIZATION_METHOD": Advice(DIFFERS, "is not read; there is one wire format"),
    "_verl_auto_padding": Advice(DIFFERS, "is not read; write DataProtoConfig.auto_padding_key"),
}

# What a group is itself; a registered method of that name is refused when the group is made.
GROUP_NAMES = frozenset(
    {
        *("close", "execute", "execute_all", "execute_all_async", "execute_all_sync", "execute_rank_zero"),
        *("execute_rank_zero_async", "execute_rank_zero_sync", "from_detached", "fuse", "master_address"),
        *("master_port", "mesh", "mesh_names", "placement", "plan", "ranks", "recover", "roles", "run", "slice"),
        *("spawn", "start_worker_aliveness_check", "stop_worker_aliveness_check", "typed", "why_stuck"),
        *("worker_names", "workers", "world_size"),
    }
)
NO_METHODS = frozenset({"classmethod", "property", "staticmethod"})


def find_habits(tree: ast.AST) -> Iterator[Finding]:
    """Yield what to look at in a syntax tree, in no order."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for what, advice in _habits_of(node):
            yield Finding(line, advice.kind, what, advice.text)


def _habits_of(node: ast.AST) -> Iterator[tuple[str, Advice]]:
    match node:
        case ast.Call():
            yield from _in_call(node)
        case ast.Attribute(attr=name) if name in ATTRIBUTES:
            yield f".{name}", ATTRIBUTES[name]
        case ast.Subscript(slice=ast.Constant(value=str(key)), ctx=ast.Store()) if key in GROUP_OPTIONS:
            yield f"[{key!r}] =", GROUP_OPTIONS[key]
        case ast.Dict():
            yield from ((f"{key!r}:", GROUP_OPTIONS[key]) for key in _texts(node) if key in GROUP_OPTIONS)
        case ast.Constant(value=str(text)) if text in STRINGS:
            yield repr(text), STRINGS[text]
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from _in_method(node)
        case ast.ExceptHandler(type=ast.Name(id="AssertionError")):
            yield "except AssertionError", _NO_ASSERTIONS


_NO_ASSERTIONS = Advice(
    DIFFERS, "mistakes raise FanfoldError and the built-in that fits: ValueError, KeyError, TypeError, RuntimeError"
)


def _in_call(call: ast.Call) -> Iterator[tuple[str, Advice]]:
    name = called(call.func)
    for keyword in call.keywords:
        known = {**KEYWORDS.get(name, {}), **(GROUP_OPTIONS if name == "dict" else {})}
        if keyword.arg in known:
            yield f"{name}({keyword.arg}=)", known[keyword.arg]
    if name == "ResourcePoolManager" and len(call.args) > 2:  # noqa: PLR2004  the third one moved
        yield (
            "ResourcePoolManager(_, _, _)",
            Advice(DIFFERS, "the third is resource_pool_dict; name them"),
        )
    if name in DEALT_OUT and len(call.args) + len(call.keywords) > 1:
        yield (
            f".{name}(...)",
            Advice(DIFFERS, "lists go whole to every rank; PerRank([...]) gives each an item"),
        )
    if name == "DataProtoFuture" and (call.args or call.keywords):
        yield (
            "DataProtoFuture(...)",
            Advice(BY_HAND, "futures come from calls, or DataProtoFuture.concat(references)"),
        )
    if name == "raises" and call.args and called(call.args[0]) == "AssertionError":
        yield "raises(AssertionError)", _NO_ASSERTIONS


def _in_method(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, Advice]]:
    marks = [called(mark.func if isinstance(mark, ast.Call) else mark) for mark in method.decorator_list]
    if "register" not in marks:
        return
    if method.name in GROUP_NAMES:
        yield f"def {method.name}", Advice(REFUSED, "rename it: a group has an attribute of that name itself")
    for mark in NO_METHODS.intersection(marks):
        yield f"@{mark} def {method.name}", Advice(REFUSED, "register a plain method that takes self")


def called(function: ast.expr) -> str:
    """The last part of a name: of `a.b.c`, `c`; empty for anything else."""
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _texts(table: ast.Dict) -> list[str]:
    return [key.value for key in table.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
