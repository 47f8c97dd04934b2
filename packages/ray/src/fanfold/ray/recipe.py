"""A worker class, the arguments of its constructor, and what its actors want of Ray besides."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fanfold.ray.single import actor_beside, actor_in_bundle
from fanfold.worker import ClassWithInitArgs, GroupUsageError, RecipeError

from ray.actor import ActorClass

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

# What the group decides for every actor, from its name, its lifetime and its place in the pool.
DECIDED_BY_GROUP = frozenset(
    {"name", "namespace", "lifetime", "get_if_exists", "num_cpus", "num_gpus", "scheduling_strategy",
     "placement_group", "placement_group_bundle_index", "placement_group_capture_child_tasks", "max_restarts"}
)  # fmt: skip


class RayClassWithInitArgs(ClassWithInitArgs):
    """The recipe of a worker on a cluster; a group never changes it.

    Args:
        cls: The worker class, plain or as `ray.remote` decorated it. Of a decorator's options those stay that the group
            does not decide itself (`runtime_env`, `max_concurrency`, `resources`, ...).
        args: Positional arguments of its constructor; object references arrive as their values, as with plain actors.
        kwargs: Keyword arguments of its constructor.

    Raises:
        RecipeError: `cls` is not a class, or its constructor does not take these arguments. Without any arguments this
            is said when a group is started: for attaching to workers that exist, the class is enough.
    """

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        plain = plain_class(cls)
        self._missing: RecipeError | None = None
        try:
            super().__init__(plain, *args, **kwargs)
        except RecipeError as error:
            if args or kwargs or not isinstance(plain, type):
                raise
            # Without any arguments it may be meant for attaching, where nothing is built.
            self.cls, self.args, self.kwargs, self._missing = plain, (), {}, error
        self._options = {key: value for key, value in _options_of(cls).items() if key not in DECIDED_BY_GROUP}

    def __call__(  # noqa: PLR0913, PLR0917  # names and order that users know
        self,
        placement_group: PlacementGroup | None = None,
        placement_group_bundle_idx: int = 0,
        use_gpu: bool = True,
        num_gpus: float = 1,
        sharing_with: Any = None,
        device_name: str = "cuda",
    ) -> Any:
        """Start one actor without a group, in a bundle or beside another actor, and return its handle when it is built.

        With neither, the worker itself is built, in this process.

        Args:
            placement_group: Whose bundle it takes.
            placement_group_bundle_idx: Which bundle.
            use_gpu: Whether it takes GPUs of its bundle.
            num_gpus: How many, or which fraction of one.
            sharing_with: An actor on whose node it runs; it sees that actor's devices and takes none itself.
            device_name: "cpu" is another way to say `use_gpu=False`.
        """
        if sharing_with is not None:
            return actor_beside(self, self._options, sharing_with)
        if placement_group is None:
            return super().__call__()
        gpus = num_gpus if use_gpu and device_name != "cpu" else 0
        return actor_in_bundle(self, self._options, placement_group, placement_group_bundle_idx, gpus)

    def check(self, world_size: int) -> None:
        """Refuse a start with arguments that the constructor does not take, or lists of another length.

        Raises:
            GroupUsageError: Names the argument, what it has and what the group needs.
        """
        if self._missing is not None:
            raise self._missing
        super().check(world_size)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the actors, besides those that the group decides, as a new dictionary."""
        return dict(self._options)

    def update_options(self, options: Mapping[str, Any]) -> None:
        """Add options of the actors, in place; `runtime_env` and `resources` are merged with what is there.

        Raises:
            GroupUsageError: The group decides one of them.
        """
        clash = sorted(DECIDED_BY_GROUP & options.keys())
        if clash:
            raise GroupUsageError(
                f"{', '.join(clash)} cannot be options of {self!r}: the group sets them for each rank; names come from "
                "name_prefix, lifetime from detached, CPUs and GPUs from the pool"
            )
        self._options = merged_options(self._options, options)

    def set_additional_resource(self, additional_resource: Mapping[str, float]) -> None:
        """Add custom resources that each actor takes, in place."""
        self.update_options({"resources": dict(additional_resource)})


def merged_options(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Join options; the second wins, and dictionaries are joined by key all the way down."""
    both = {key: _merged(first[key], second[key]) for key in first.keys() & second.keys()}
    return {**first, **second, **both}


def as_ray_recipe(class_with_init: Any) -> ClassWithInitArgs:
    """Take a class, plain or decorated, or any recipe, wherever a recipe is wanted; what is given is not changed."""
    return class_with_init if isinstance(class_with_init, ClassWithInitArgs) else RayClassWithInitArgs(class_with_init)


def options_of(recipe: ClassWithInitArgs) -> dict[str, Any]:
    """Return what the actors want of Ray besides: the recipe's own options, and those of the roles in it."""
    roles = [options_of(role) for role in getattr(recipe.cls, "raw_cls_dict", {}).values()]
    own = recipe.options if isinstance(recipe, RayClassWithInitArgs) else {}
    return functools.reduce(merged_options, [*roles, own], {})


def plain_class(cls: Any) -> Any:
    """Return the class that `ray.remote` was given; anything else as it is."""
    return getattr(cls, "__ray_actor_class__", cls) if isinstance(cls, ActorClass) else cls


def _options_of(cls: Any) -> dict[str, Any]:
    # No public attribute says what a decorator was given.
    return dict(getattr(cls, "_default_options", {})) if isinstance(cls, ActorClass) else {}


def _merged(first: Any, second: Any) -> Any:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return merged_options(first, second)
    return second
