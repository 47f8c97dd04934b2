"""Saving and loading in Megatron's distributed format: any layout writes, any layout reads.

Every step that can fail on one rank is followed by a comparison of notes, so that all ranks raise and none waits.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import queue
import threading
import time
import warnings
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from fanfold.megatron import directories
from fanfold.megatron.errors import CheckpointError
from fanfold.megatron.parallel import accepted
from torch.distributed.checkpoint.api import CheckpointException

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedObject
from megatron.core.dist_checkpointing.strategies import filesystem_async

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fanfold.megatron.config import ModelConfig
    from fanfold.megatron.directories import CheckpointPath
    from fanfold.megatron.model import Built

_FORMAT = 1
# Of the formats for the moments of a distributed optimizer, one that another layout can read.
_RESHARDABLE = {"distrib_optim_sharding_type": "fully_reshardable"}
# What TransformerEngine keeps beside weights, for fp8 alone: with it one kind of attention could not read another's.
_NO_WEIGHT = "_extra_state"
_LOADER = "load_parameter_state_from_fully_reshardable"


def save(built: Built, model: ModelConfig, place: CheckpointPath, *, limit: float, keep: int | None) -> None:
    """Write a checkpoint from all ranks.

    Args:
        built: This rank's part.
        model: The whole model's config, which is kept with the weights.
        place: Where to; the path must be the same file system on all ranks.
        limit: Seconds for writing.
        keep: How many checkpoints to keep below the same path; None keeps all.

    Raises:
        CheckpointError: A rank could not write, or not in time. Earlier checkpoints are as they were.
    """
    first = torch.distributed.get_rank() == 0
    place = replace(place, attempt=_attempt())
    _everywhere(place, "begin", lambda: _begin(place, first=first))
    _everywhere(place, "see the directory", lambda: _check_seen(place))
    try:
        _everywhere(place, "write", lambda: _write(built, place, limit))
        about = _about(built, model, place)
        _everywhere(place, "finish", lambda: place.complete(about) if first else None)
    except CheckpointError:
        if first:
            place.abandon()
        raise
    if keep is not None:
        remove = partial(directories.keep_newest, place.root, keep)
        _everywhere(place, "remove older ones", remove if first else lambda: None)


def load(built: Built, model: ModelConfig, root: Path, step: int | None, *, optimizer: bool) -> int:
    """Read a checkpoint into this rank's part.

    The random states come with the optimizer, where the layout is the one that was saved in; else they start anew.

    Args:
        built: This rank's part.
        model: The whole model's config.
        root: The path that was saved to.
        step: Which checkpoint; the newest when None.
        optimizer: Whether the optimizer's moments are read too.

    Returns:
        The step.

    Raises:
        CheckpointError: There is none, it is of another model, or it cannot be read. When the model differs, nothing
            has changed; an error in the middle of reading leaves the weights undefined.
    """
    found: list[CheckpointPath] = []
    _everywhere(None, "find the checkpoint", lambda: found.append(directories.find(root, step)))
    place = found[0]
    _everywhere(place, "compare", lambda: _check_fits(built, model, place, optimizer=optimizer))
    same_layout = optimizer and directories.read_about(place).get("layout") == _layout(built)
    if not same_layout:
        built.draw_anew(place.step if optimizer else 0)
    _everywhere(place, "read", lambda: _read(built, place, optimizer=optimizer, random=same_layout))
    return place.step


def _attempt() -> str:
    """Return a name that no save before this one had, the same on all ranks."""
    name = [f"{time.time_ns():x}"]
    torch.distributed.broadcast_object_list(name, src=0)
    return name[0]


def _begin(place: CheckpointPath, *, first: bool) -> None:
    if importlib.util.find_spec("psutil") is None:
        # Megatron's writer needs it, does not declare it, and without it hangs for ever.
        raise CheckpointError("saving needs psutil; pip install psutil")
    if first:
        place.begin()


def _check_seen(place: CheckpointPath) -> None:
    if not place.partial.is_dir():
        raise CheckpointError(f"{place.partial} is not there; the path must lie on a file system that all nodes share")


def _write(built: Built, place: CheckpointPath, limit: float) -> None:
    # In two parts, so that the one which has no collectives can be given a limit; by Megatron's own writer, since newer
    # versions take another package's unless told.
    further = accepted(dist_checkpointing.save, async_strategy="mcore")
    state = _state(built, loading=False)
    with _plain_queue():
        request = dist_checkpointing.save(state, str(place.partial), async_sharded_save=True, **further)
    arguments = list(request.async_fn_args)
    if request.preload_fn is not None:
        arguments[1] = request.preload_fn()
    done = _within(limit, request.async_fn, arguments, request.async_fn_kwargs or {})
    _everywhere(place, "write in time", lambda: _check_done(limit, done=done))
    for finish in request.finalize_fns:
        finish()


@contextmanager
def _plain_queue() -> Iterator[None]:
    """Give Megatron's writer an ordinary queue for its results, which here go from a thread to its own process alone.

    It would start a server process for them, which runs the user's script once more where that has no
    `if __name__ == "__main__"`, and outlives a rank that is killed.
    """
    before = getattr(filesystem_async, "_results_queue", None)
    filesystem_async._results_queue = queue.Queue()  # noqa: SLF001  # it has no other door
    try:
        yield
    finally:
        filesystem_async._results_queue = before  # noqa: SLF001  # as above


def _within(limit: float, function: Callable[..., Any] | None, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Run what writes the files on a thread of its own, and say whether it was over in time."""
    if function is None:
        return True
    before = set(multiprocessing.active_children())
    writer = threading.Thread(target=function, args=args, kwargs=kwargs, daemon=True, name="checkpoint writer")
    writer.start()
    writer.join(limit)
    if not writer.is_alive():
        return True
    for process in set(multiprocessing.active_children()) - before:
        process.kill()
    return False


def _check_done(limit: float, *, done: bool) -> None:
    if not done:
        raise CheckpointError(f"writing was not over within {limit:g} s; is the file system slow, or a writer gone?")


def _read(built: Built, place: CheckpointPath, *, optimizer: bool, random: bool) -> None:
    with warnings.catch_warnings():
        # torch warns Megatron-Core of classes on their way out, of the order of arguments, of ranks that read by
        # themselves: nothing that a caller can change.
        warnings.simplefilter("ignore")
        asked = _state(built, loading=True, optimizer=optimizer, random=random)
        state = dist_checkpointing.load(asked, str(place.final))
    _put_weights(built.module, state["model"])
    built.random.update(state.get("random", {}))
    if optimizer:
        _read_moments(built, state["optimizer"])
    else:
        built.optimizer.reload_model_params()


def _put_weights(module: Any, weights: dict[str, Any]) -> None:
    missing, unknown = module.load_state_dict(weights, strict=False)
    missing = [name for name in missing if not name.endswith(_NO_WEIGHT)]
    assert not missing, f"_check_fits has let pass a checkpoint without {missing}"
    assert not unknown, f"Megatron has read {unknown}, which was not asked for"


def _weights(module: Any) -> dict[str, Any]:
    return {name: weight for name, weight in module.sharded_state_dict().items() if not name.endswith(_NO_WEIGHT)}


def _read_moments(built: Built, state: dict[str, Any]) -> None:
    if not _is_distributed(built):
        # Megatron writes no step where it is 0, and misses it when it reads.
        state.get("optimizer", state)["state"].setdefault("common_step", torch.zeros(()))
        built.optimizer.load_state_dict(state)
        return
    (part,) = built.optimizer.chained_optimizers
    moments = state.pop("param_state")
    part.load_state_dict(state)
    # torch's Adam keeps the step beside the moments, where Megatron's loader takes it for a moment, and misses it in
    # the file. It also left one tensor there for all weights, which Adam would then count up once for each of them.
    adam = part.optimizer
    steps = {weight: kept.pop("step") for weight, kept in adam.state.items() if "step" in kept}
    part.load_parameter_state_from_fully_reshardable(moments)
    for weight, step in steps.items():
        adam.state[weight]["step"] = step.clone()


def _is_distributed(built: Built) -> bool:
    return bool(built.wrapped.ddp_config.use_distributed_optimizer)


def _check_reshardable(built: Built) -> None:
    parts = getattr(built.optimizer, "chained_optimizers", [built.optimizer])
    if _is_distributed(built) and not all(hasattr(part, _LOADER) for part in parts):
        raise CheckpointError(
            "this version of Megatron-Core writes no distributed optimizer that another layout can read; "
            "use OptimizerConfig(distributed=False), or a newer megatron-core"
        )


def _state(built: Built, *, loading: bool, optimizer: bool = True, random: bool = True) -> dict[str, Any]:
    weights = _weights(built.module)
    if not optimizer:
        return {"model": weights}
    _check_reshardable(built)
    further = {"metadata": _RESHARDABLE} if _is_distributed(built) else {}
    moments = built.optimizer.sharded_state_dict(weights, is_loading=loading, **further)
    state = {"model": weights, "optimizer": moments}
    return {**state, "random": _random(built)} if random else state


def _random(built: Built) -> ShardedObject:
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return ShardedObject("random", built.random, global_shape=(ranks,), global_offset=(rank,))


def _layout(built: Built) -> dict[str, Any]:
    return {**asdict(built.parallel), "device": built.device.type}


def _check_fits(built: Built, model: ModelConfig, place: CheckpointPath, *, optimizer: bool) -> None:
    about = directories.read_about(place)
    if about["format"] != _FORMAT:
        raise CheckpointError(f"{place.final} has format {about['format']}; this version reads format {_FORMAT}")
    for key, shape in _local_shapes(built).items():
        saved = about["shapes"].get(key)
        if saved != shape:
            raise CheckpointError(
                f"{place.final} is of another model: there {key} has the shape {saved or 'of nothing'}, here {shape}; "
                f"it was saved with {_different(about['model'], asdict(model))}"
            )
    here = _kind(built)
    if optimizer and any(about[field] != value for field, value in here.items()):
        raise CheckpointError(
            f"{place.final} was saved with another kind of optimizer: {_different(about, here)}; "
            "take the same, or optimizer=False for the weights alone"
        )


def _about(built: Built, model: ModelConfig, place: CheckpointPath) -> dict[str, Any]:
    about = {"format": _FORMAT, "step": place.step, "model": asdict(model)}
    return {**about, **_kind(built), "layout": _layout(built), "shapes": _shapes(built)}


def _kind(built: Built) -> dict[str, Any]:
    return {"precision": "bf16" if built.config.bf16 else "float32", "distributed": _is_distributed(built)}


def _local_shapes(built: Built) -> dict[str, list[int]]:
    """Return the whole shapes of the weights on this stage; layers are stacked under one name."""
    weights = _weights(built.module).values()
    return {weight.key: list(weight.global_shape) for weight in weights if hasattr(weight, "global_shape")}


def _shapes(built: Built) -> dict[str, list[int]]:
    stages: list[dict[str, list[int]]] = [{}] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(stages, _local_shapes(built))
    return {key: shape for stage in stages for key, shape in stage.items()}


def _different(saved: dict[str, Any], ours: dict[str, Any]) -> str:
    fields = [
        f"{field}={saved.get(field)} (here {value})" for field, value in ours.items() if saved.get(field) != value
    ]
    return ", ".join(fields) or "the same config"


def raise_together(what: str, problem: str | None) -> None:
    """Raise on every rank what went wrong on one.

    Raises:
        CheckpointError: Something did, with the first rank that says so.
    """
    texts: list[str | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(texts, problem)
    failed = [(rank, text) for rank, text in enumerate(texts) if text is not None]
    if failed:
        rank, text = failed[0]
        others = f" (and {len(failed) - 1} more ranks)" if len(failed) > 1 else ""
        raise CheckpointError(f"{what}: rank {rank}{others} {text}")


def _everywhere(place: CheckpointPath | None, what: str, action: Callable[[], Any]) -> None:
    """Do something on every rank, and raise on every rank when it failed on one."""
    problem: BaseException | None = None
    try:
        action()
    except (Exception, CheckpointException) as error:  # noqa: BLE001  # whatever it was, the others must hear of it
        problem = error
    said = f"could not {what}: {_text(problem)}" if problem else None
    try:
        raise_together(f"checkpoint {place.final}" if place else "checkpoint", said)
    except CheckpointError as error:
        raise error from problem


def _text(problem: BaseException) -> str:
    return str(problem) if isinstance(problem, CheckpointError) else f"{type(problem).__name__}: {problem}"
