"""Several worker classes in one process of each rank: an explicit table of roles, each with a name of its own.

A call says which role and which method it means, as two words: no prefix, nothing to split, nothing to clash.
"""

from __future__ import annotations

import copyreg
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, cast

from fanfold.worker.errors import GroupUsageError
from fanfold.worker.executing import callable_of
from fanfold.worker.recipe import ClassWithInitArgs, as_recipe
from fanfold.worker.worker import Worker, be_sibling, overrides_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TABLE = "raw_cls_dict"


class RolesMeta(type):
    """The class of generated classes: they travel as their table of roles, not by a name that nobody else knows."""


class RolesWorker(Worker, metaclass=RolesMeta):
    """One process's worker that holds one worker for each role; made by `create_colocated_worker_raw_cls`."""

    is_fused_worker = True
    raw_cls_dict: Mapping[str, ClassWithInitArgs] = {}

    def __init__(self) -> None:
        super().__init__()
        siblings: dict[str, Any] = {}
        self.__dict__["fused_worker_dict"] = siblings
        try:
            for role, recipe in self.raw_cls_dict.items():
                siblings[role] = recipe.build(partial(be_sibling, role=role, siblings=siblings))
        except BaseException:
            with suppress(Exception):  # the error that is on its way says more
                self.on_stop()  # what the earlier roles hold would live as long as that error does
            raise

    def on_start(self) -> None:
        """Start the roles, in order."""
        for worker in self._with_hook("on_start"):
            worker.on_start()

    def on_stop(self) -> None:
        """Stop the roles, the last one first."""
        for worker in reversed(self._with_hook("on_stop")):
            worker.on_stop()

    def on_peer_lost(self, ranks: Sequence[int]) -> None:
        """Tell the roles, in order."""
        for worker in self._with_hook("on_peer_lost"):
            worker.on_peer_lost(ranks)

    def _with_hook(self, hook: str) -> list[Any]:
        return [worker for worker in self.fused_worker_dict.values() if overrides_hook(type(worker), hook)]

    def __getattr__(self, name: str) -> Any:
        # A role is an attribute of the worker that holds it.
        siblings = self.__dict__.get("fused_worker_dict", {})
        if name not in siblings:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}; its roles: {', '.join(siblings) or 'not built yet'}"
            )
        return siblings[name]


@dataclass(frozen=True)
class RoleCall:
    """A method, or a function of the worker, meant for one role; as a function of the worker that holds the roles."""

    role: str
    method: str | Callable[..., Any]

    def __call__(self, worker: Any, *args: Any, **kwargs: Any) -> Any:
        """Run it on the worker of that role."""
        return callable_of(worker.fused_worker_dict[self.role], self.method)(*args, **kwargs)

    @property
    def __name__(self) -> str:
        method = self.method if isinstance(self.method, str) else getattr(self.method, "__name__", repr(self.method))
        return f"{self.role}.{method}"


def create_colocated_worker_raw_cls(class_dict: Mapping[str, ClassWithInitArgs | type]) -> type[RolesWorker]:
    """Make the class of a worker that holds one worker for each role, and needs no arguments itself.

    Args:
        class_dict: By role, its worker class with the arguments of its constructor.

    Raises:
        GroupUsageError: There is no role, a role's name is no name for an attribute, or a role has roles itself.
    """
    if not hasattr(class_dict, "items"):
        raise GroupUsageError(f"roles are a table {{'actor': ClassWithInitArgs(Actor, ...), ...}}; got {class_dict!r}")
    if not class_dict:
        raise GroupUsageError("a worker with roles needs at least one: {'actor': ClassWithInitArgs(Actor, ...), ...}")
    for role in class_dict:
        name = str(role)
        if name is not role or not name.isidentifier() or name.startswith("_") or iskeyword(name):
            raise GroupUsageError(
                f"{role!r} cannot be the name of a role: it has to be a name for an attribute, such as 'actor'"
            )
    table = {role: as_recipe(recipe) for role, recipe in class_dict.items()}
    nested = [role for role, recipe in table.items() if roles_of(recipe.cls)]
    if nested:
        raise GroupUsageError(f"role {nested[0]!r} has roles itself; roles do not nest: put all of them into one table")
    name = f"FusedWorker_{'_'.join(table)}"
    return cast("type[RolesWorker]", RolesMeta(name, (RolesWorker,), {_TABLE: table, "__module__": __name__}))


def create_colocated_worker_cls(class_dict: Mapping[str, ClassWithInitArgs | type]) -> ClassWithInitArgs:
    """Make the recipe of a worker that holds one worker for each role.

    The group's methods are those of its roles: `group.actor.update(...)`; `group.spawn({"actor", "critic"})` gives
    a group for each role.

    Raises:
        GroupUsageError: There is no role, or a role's name is no name for an attribute.
    """
    return RolesRecipe(create_colocated_worker_raw_cls(class_dict))


create_colocated_worker_cls_fused = create_colocated_worker_cls


class RolesRecipe(ClassWithInitArgs):
    """The recipe of a worker with roles: what is checked and cut for a rank are the recipes of its roles."""

    def for_rank(self, rank: int) -> ClassWithInitArgs:
        """Return the recipe with each role's own arguments for that rank."""
        return create_colocated_worker_cls({role: recipe.for_rank(rank) for role, recipe in roles_of(self.cls).items()})

    def check(self, world_size: int) -> None:
        """Refuse lists with one item for each rank that have another length, in any role."""
        for recipe in roles_of(self.cls).values():
            recipe.check(world_size)


def roles_of(cls: type) -> Mapping[str, ClassWithInitArgs]:
    """Return the recipes of a class's roles; nothing for a class without roles."""
    return cls.raw_cls_dict if isinstance(cls, RolesMeta) and issubclass(cls, RolesWorker) else {}


def _as_table(cls: RolesMeta) -> Any:
    return (create_colocated_worker_raw_cls, (dict(roles_of(cls)),)) if roles_of(cls) else cls.__qualname__


copyreg.pickle(RolesMeta, _as_table)
