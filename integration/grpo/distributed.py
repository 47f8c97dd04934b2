"""The same loop on groups of ranks: in this process, in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from arguments import Arguments, attempt, parse, report
from fanfold.megatron import ParallelConfig
from fanfold.worker import ClassWithInitArgs, WorkerGroup, create_colocated_worker_cls
from loop import Models
from workers import Critic, Judge, Policy, Reference

MakeGroup = Callable[[str, ClassWithInitArgs, int], Any]


@contextmanager
def models_on_ranks(chosen: Arguments) -> Iterator[Models]:
    """Make the groups, or find them where they stayed loaded."""
    layout = ParallelConfig(tensor=chosen.tp, data=chosen.dp)
    roles = {"actor": Policy, "reference": Reference} | (
        {"critic": Critic} if chosen.settings.algorithm == "ppo" else {}
    )
    recipes = {role: ClassWithInitArgs(cls, parallel=layout, **chosen.recipe(role)) for role, cls in roles.items()}
    with ExitStack() as ends:
        on_ray = chosen.backend == "ray"
        make = _on_ray(chosen, len(recipes), ends) if on_ray else _on_this_machine(chosen.backend, ends)
        groups = _placed(chosen.placement, recipes, make, layout.world_size)
        judge = make("judge", ClassWithInitArgs(Judge, chosen.reward), chosen.judges)
        _write_pids(chosen, {**groups, "judge": judge})
        yield Models(judge=judge, take_turns=chosen.placement == "colocated", **groups)


def _placed(placement: str, recipes: Mapping[str, ClassWithInitArgs], make: MakeGroup, ranks: int) -> dict[str, Any]:
    if placement == "split":
        return {role: make(role, recipe, ranks) for role, recipe in recipes.items()}
    together = make("models", create_colocated_worker_cls(recipes), ranks)
    return together.spawn()  # type: ignore[no-any-return]


def _on_this_machine(backend: str, ends: ExitStack) -> MakeGroup:
    def make(_: str, recipe: ClassWithInitArgs, ranks: int) -> Any:
        return ends.enter_context(WorkerGroup([ranks], recipe, backend=backend))

    return make


def _on_ray(chosen: Arguments, models: int, ends: ExitStack) -> MakeGroup:
    import ray  # noqa: PLC0415  # the other backends need no Ray
    from fanfold.ray import NoSuchGroupError, RayResourcePool, RayWorkerGroup, connect  # noqa: PLC0415

    connect(chosen.address)
    ends.callback(ray.shutdown)
    processes = chosen.tp * chosen.dp * (1 if chosen.placement == "colocated" else models) + chosen.judges
    share = min(1.0, int(100 * ray.cluster_resources().get("CPU", 1.0) / processes) / 100)

    def make(name: str, recipe: ClassWithInitArgs, ranks: int) -> Any:
        if chosen.attach:
            try:
                found = RayWorkerGroup.from_detached(f"{chosen.attach}-{name}", ray_cls_with_init=recipe)
                return ends.enter_context(found)
            except NoSuchGroupError:
                pass  # they are loaded now, and stay
        pool = RayResourcePool(
            [ranks],
            use_gpu=False if name == "judge" or chosen.device == "cpu" else None,
            cpus_per_process=share,
            detached=bool(chosen.attach),
        )
        prefix = f"{chosen.attach}-{name}" if chosen.attach else None
        if not chosen.attach:
            ends.enter_context(pool)
        return ends.enter_context(RayWorkerGroup(pool, recipe, name_prefix=prefix, detached=bool(chosen.attach)))

    return make


def _write_pids(chosen: Arguments, groups: Mapping[str, Any]) -> None:
    pids = {role: group.execute(_pid) for role, group in groups.items()}
    (chosen.out / "workers.json").write_text(json.dumps(pids), encoding="utf-8")


def _pid(_: Any) -> int:
    return os.getpid()


def stop(chosen: Arguments) -> None:
    """End the models that stayed loaded under a name; those that are gone already are fine."""
    from fanfold.ray import connect, stop_group  # noqa: PLC0415  # the other backends need no Ray

    connect(chosen.address)
    for name in ("models", "actor", "reference", "critic", "judge"):
        stop_group(f"{chosen.attach}-{name}")


if __name__ == "__main__":
    asked = parse(__doc__, groups=True)
    sys.exit(attempt(lambda: stop(asked), asked) if asked.stop else report(models_on_ranks, asked))
