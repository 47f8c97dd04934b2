"""Try verl's own worker classes and group set-up after `from_verl.py`; prints what was seen as one line of JSON.

python verl_trial.py FOLDER    where FOLDER holds the rewritten package `verl`

What verl imports and is not installed here (transformers, hydra, ...) is stood in for by modules whose every name is a
class that takes anything: enough for class bodies to run. Nothing of verl, fanfold, torch or Ray is stood in for.
"""

import ast
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from fanfold.dispatch import Dispatch
from fanfold.ray import RayWorkerGroup, ResourcePoolManager
from fanfold.worker import Worker, WorkerGroup
from tensordict import TensorDict


class StandsIn(type):
    """The class of stand-ins: any attribute, any subscript, any union of it is one again."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __getitem__(cls, item: Any) -> Any:
        return cls


class Absent(metaclass=StandsIn):
    """Something of a module that is not installed; as a decorator it leaves what it decorates."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules that are stood in for, after every other finder."""

    def __init__(self, tops: Sequence[str]) -> None:
        self.tops = frozenset(tops)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self.tops:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__dict__.update(__path__=[], __version__="0.0", __getattr__=StandsIn.__getattr__.__get__(Absent))
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def imported_outright(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that a program imports and does not try to do without."""
    tried = {id(node) for block in ast.walk(tree) if isinstance(block, ast.Try) for node in below(block.body)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in tried:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and id(node) not in tried and not node.level:
            yield node.module or ""


def below(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    return (node for statement in body for node in ast.walk(statement))


def absent_modules(folder: Path) -> list[str]:
    """Top-level modules that verl imports outright and that are not installed."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in sorted((folder / "verl").rglob("*.py")))
    tops = {name.partition(".")[0] for tree in trees for name in imported_outright(tree)} - {"verl"}
    return sorted(top for top in tops if importlib.util.find_spec(top) is None)


# The trials. Names of verl's are typed Any: whatever they are, it is their own code that runs.


def without_models(cls: Any, **members: Any) -> Any:
    """A worker class of verl's with a constructor that loads nothing; all else is its own."""

    def start(self: Any, **given: Any) -> None:
        Worker.__init__(self)
        self.given = sorted(given)

    return type(cls.__name__, (cls,), {"__init__": start, **members})


def bound_methods(cls: Any) -> dict[str, list[Any]]:
    """What a group of two binds: by method, its mode, whether it blocks, and its signature."""
    found = {}
    with WorkerGroup([2], without_models(cls)) as group:
        for name in group._methods:
            method = getattr(group, name)
            mode = method.spec.dispatch_mode
            called = mode.name if isinstance(mode, Dispatch) else f"mesh {mode.dispatch_fn.args[0]}"
            found[name] = [called, method.spec.blocking, ", ".join(inspect.signature(method).parameters)]
    return found


class Engine:
    """Stands where a rank has a model: notes what it is asked for."""

    is_leader_rank = True

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.asked: list[str] = []

    def initialize(self) -> None:
        self.asked.append("initialize")

    def prepare(self, *items: Any, **named: Any) -> dict[str, Any]:
        return {"rank": self.rank, "items": list(items), **named}

    def train_mini_batch(self, data: Any) -> Any:
        return TensorDict({"row": data["row"] * 10, "rank": data["row"] * 0 + self.rank}, batch_size=data.batch_size)

    def receive_weights(self, global_steps: int) -> str:
        return f"weights {global_steps}"

    async def update_weights(self, weights: Any, **options: Any) -> None:
        self.asked.append(f"{weights} as {options['wire_format']}")


def calls(workers: Any, checkpoints: Any) -> dict[str, Any]:
    """Real calls through real method bodies of verl's."""

    def four_ranks(self: Any) -> None:
        self.actor, self.enable_routing_replay = Engine(self.rank), False
        inner = without_models(workers.TrainingWorker)()
        inner._register_dispatch_collect_info("train", dp_rank=self.rank // 2, is_collect=self.rank % 2 == 0)
        self.set_dispatch_collect(mesh_name="actor", **inner.get_dispatch_collect())

    def two_ranks(self: Any) -> None:
        self.checkpoint_engine = self.server_adapter = Engine(self.rank)

    seen: dict[str, Any] = {}
    batch = TensorDict({"row": torch.arange(5)}, batch_size=[5])
    with WorkerGroup([4], without_models(workers.ActorRolloutRefWorker, on_start=four_ranks)) as group:
        trained = group.update_actor(batch)
        seen["update_actor"] = [trained["row"].tolist(), trained["rank"].tolist()]
        seen["dp_size"] = [group.mesh("actor").size(), max(group.query_dispatch_info("actor")) + 1]
        try:
            group._query_dispatch_info("actor")
        except AttributeError as error:
            seen["_query_dispatch_info"] = "did you mean 'query_dispatch_info'" in str(error)
    with WorkerGroup([2], without_models(checkpoints.CheckpointEngineWorker, on_start=two_ranks)) as group:
        seen["prepare"] = group.execute_checkpoint_engine(["prepare"] * 2, ["a", "b"], size=[7, 8]).get()
        seen["update_weights"] = group.update_weights(global_steps=3).get()
        seen["asked"] = group.execute(lambda worker: worker.server_adapter.asked)
        seen["is_leader_rank"] = group.is_leader_rank()
    return seen


class SetUpIsDoneError(Exception):
    """Raised where the set-up goes on to what is no worker group."""


class Config(types.SimpleNamespace):
    """Stands where verl has a configuration."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


class Selecting:
    """Stands where omegaconf has `OmegaConf`."""

    @staticmethod
    def select(config: Config, name: str) -> Any:
        return config.get(name)


def set_up(trainers: Any, workers: Any) -> dict[str, Any]:
    """Run verl's own `init_workers` as far as there are groups, with an actor and a critic in one pool."""

    class Pools(ResourcePoolManager):
        def check_resource_available(self) -> None:
            """There is no cluster to ask."""

    def in_this_process(resource_pool: Any, ray_cls_with_init: Any, **options: Any) -> Any:
        inspect.signature(RayWorkerGroup).bind(resource_pool, ray_cls_with_init, **options)
        return WorkerGroup(resource_pool, ray_cls_with_init, backend="inline")

    def stop(**_: Any) -> None:
        raise SetUpIsDoneError

    def start_engine(self: Any) -> None:
        self.engine = Engine(self.rank)

    def init_model(self: Any) -> None:
        self.is_ready = True

    role = trainers.Role
    actor = without_models(workers.ActorRolloutRefWorker, init_model=init_model)
    critic = without_models(workers.TrainingWorker, on_start=start_engine)
    settings = Config(engine=Config(), model=None, optim=None, checkpoint=None, ppo_infer_max_token_len_per_gpu=1)
    settings.ppo_max_token_len_per_gpu = 1
    trainer = object.__new__(trainers.RayPPOTrainer)
    trainer.__dict__.update(
        config=Config(actor_rollout_ref=Config(), critic=settings, trainer=Config(), global_profiler=Config()),
        device_name="cpu",
        hybrid_engine=True,
        ray_worker_group_cls=in_this_process,
        ref_in_actor=False,
        resource_pool_manager=Pools(
            {"global_pool": [2]}, {role.ActorRollout: "global_pool", role.Critic: "global_pool"}
        ),
        role_worker_mapping={role.ActorRollout: ray.remote(actor), role.Critic: ray.remote(critic)},
        use_critic=True,
        use_reference_policy=False,
        use_rm=False,
    )
    trainers.OmegaConf = Selecting
    importlib.import_module("verl.experimental.reward_loop").__dict__["RewardLoopManager"] = stop
    try:
        trainer.init_workers()
    except SetUpIsDoneError:
        return {
            "actor": trainer.actor_rollout_wg.execute(lambda worker: [worker.given, worker.is_ready]),
            "critic": trainer.critic_wg.execute(lambda worker: [worker.given, worker.engine.asked]),
            "loss": trainer.critic_wg.execute(lambda worker: worker.loss_fn.func.__module__),
            "apart": [hasattr(trainer.actor_rollout_wg, "train_batch"), hasattr(trainer.critic_wg, "update_actor")],
        }
    raise AssertionError("init_workers ended before its reward loop")


def main(folder: Path) -> None:
    """Run the trials."""
    absent = absent_modules(folder)
    sys.meta_path.append(Finder(absent))
    sys.path.insert(0, str(folder))
    workers = importlib.import_module("verl.workers.engine_workers")
    checkpoints = importlib.import_module("verl.checkpoint_engine.base")
    trainers = importlib.import_module("verl.trainer.ppo.ray_trainer")
    classes = [workers.TrainingWorker, workers.ActorRolloutRefWorker, checkpoints.CheckpointEngineWorker]
    report = {
        "bound": {cls.__name__: bound_methods(cls) for cls in classes},
        "calls": calls(workers, checkpoints),
        "set_up": set_up(trainers, workers),
        "absent": absent,
        "verl_left": sorted(name for name in sys.modules if name.startswith("verl.single_controller")),
        "dataclass": dataclasses.is_dataclass(checkpoints.TensorMeta),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
