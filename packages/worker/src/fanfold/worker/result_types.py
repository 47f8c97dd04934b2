"""What a call gives on the driver, as a type in words: by the method's own result type and its way of collecting."""

from __future__ import annotations

import ast
import typing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import Mesh, MethodSpec, plan_call

if TYPE_CHECKING:
    from collections.abc import Callable

# Classes of other libraries that are batches although they do not look like one.
_BATCHES = ("Tensor", "ndarray", "TensorDict", "DataFrame", "Table")


def result_type(spec: MethodSpec, returns: str, function: Callable[..., Any]) -> str:
    """Return the type of a call of a method that returns `returns` on each rank."""
    if not spec.blocking:
        return "Call"
    if spec.merge is not None or returns == "Any":
        return "Any"
    each = f"list[{_yielded(returns)}]" if "generator" in spec.kind else returns
    match _collecting(spec):
        case "single":
            return each
        case "list":
            return f"list[{each}]"
        case "join":
            return each if _is_batch(function, returns) else f"list[{each}]"
    return "Any"


def _collecting(spec: MethodSpec) -> Any:
    def method(self: Any, *args: Any) -> None: ...

    for args in ((), (method,)):  # one mode wants a function first
        try:
            return plan_call(replace(spec, uneven="split", balance=None), method, _AnyGroup(), args, {}).collecting
        except Exception:  # noqa: BLE001, S112  # a function of the user's, which wants arguments: its result may be anything
            continue
    return None


class _AnyGroup:
    """Two ranks that have every mesh."""

    world_size = 2

    def mesh(self, name: str) -> Mesh:
        return Mesh.from_dp_ranks(name, [0, 1], [True, True])


def _yielded(returns: str) -> str:
    node = ast.parse(returns, mode="eval").body
    if not isinstance(node, ast.Subscript):
        return "Any"
    inner = node.slice
    return ast.unparse(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)


def _is_batch(function: Callable[..., Any], returns: str) -> bool:
    try:
        found = typing.get_type_hints(function).get("return")
    except Exception:  # noqa: BLE001  # annotations may hold anything; then their words have to do
        found = None
    cls = typing.get_origin(found) or found
    name = returns.split("[", 1)[0].rsplit(".", 1)[-1] if found is None else getattr(cls, "__name__", "")
    return name in _BATCHES or (hasattr(cls, "chunk") and hasattr(cls, "concat"))
