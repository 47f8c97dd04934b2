"""The rules behind the built-in modes, as values that planning can read.

A custom dispatch function can only be called. A built-in one also carries a rule, so that a call is planned (which rows
of which argument go where) before anything is cut.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fanfold.dispatch.mesh import Mesh
    from fanfold.dispatch.protocols import GroupLike

F = TypeVar("F", bound="Callable[..., Any]")
Rule = TypeVar("Rule")

Unmarked = Literal["whole", "lists", "lists_or_whole", "rows", "direct"]
Collected = Literal["single", "list", "join"]


class MeshAxis(NamedTuple):
    """A mesh by name, and how a mode uses it.

    Attributes:
        mesh: the name under which the group knows it.
        axis: rows are divided along it; None for the mesh's own choice.
        collect: which place of other axes results are collected from, instead of the mesh's own choice.
    """

    mesh: str
    axis: str | None = None
    collect: Mapping[str, int] | None = None

    def of(self, group: GroupLike) -> Mesh:
        """The group's mesh, used this way.

        Raises:
            MeshError: it does not cover the group, or has no such axis.
        """
        mesh = group.mesh(self.mesh)
        mesh.check_covers(group.world_size)
        return mesh.along(self.axis, self.collect)


class DispatchRule(NamedTuple):
    """What becomes of arguments that carry no mark.

    Attributes:
        unmarked: "whole"; "lists": item i to rank i; "lists_or_whole": the same if all are lists; "rows": batches are
            divided, everything else goes whole; "direct": there is no call through the group.
        along: what divides; None for all ranks of the group.
        function_first: the first positional argument is a function.
    """

    unmarked: Unmarked
    along: MeshAxis | None = None
    function_first: bool = False


class CollectRule(NamedTuple):
    """What becomes of results.

    Attributes:
        kind: "single": the value of the only rank; "list": one entry per rank; "join": batches are put together in
            data-parallel order, other values are a list.
        along: which ranks are collected and in which order; None for all ranks in rank order.
    """

    kind: Collected
    along: MeshAxis | None = None


class _RuleBook(Generic[Rule]):
    """Which rule a built-in function follows."""

    def __init__(self) -> None:
        self._makers: dict[Any, Callable[..., Rule]] = {}

    def follows(self, maker: Callable[..., Rule]) -> Callable[[F], F]:
        """Mark a built-in function; of a partial, `maker` receives the bound arguments."""

        def remember(function: F) -> F:
            self._makers[function] = maker
            return function

        return remember

    def rule_of(self, function: Any) -> Rule | None:
        """The rule of a built-in function or a partial of one; None for a custom one."""
        bound = function if isinstance(function, partial) else partial(function)
        try:
            maker = self._makers.get(bound.func)
        except TypeError:  # an unhashable callable is nobody's built-in
            return None
        return None if maker is None else maker(*bound.args, **bound.keywords)


dispatch_rules: _RuleBook[DispatchRule] = _RuleBook()
collect_rules: _RuleBook[CollectRule] = _RuleBook()
