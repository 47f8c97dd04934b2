"""Checkpoints: any layout writes, any layout reads; whole or not at all; a resumed run is the uninterrupted one."""

from __future__ import annotations

import errno
import importlib.util
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from fanfold.megatron import CheckpointError, OptimizerConfig, ParallelConfig, model_config
from fanfold.megatron.directories import CheckpointPath, find, steps_of
from fanfold.worker import ClassWithInitArgs, WorkerGroup
from probe import ProbeTrainer, whole, writes_distributed_optimizers
from rank_pool import RankPool
from text import text_batch

LAYOUTS = {
    "alone": ParallelConfig(data=1),
    "tp2": ParallelConfig(tensor=2, data=1),
    "pp2": ParallelConfig(pipeline=2, data=1),
    "tp2-pp2": ParallelConfig(tensor=2, pipeline=2, data=1),
    "dp2-tp2-sp": ParallelConfig(tensor=2, data=2, sequence_parallel=True),
    "cp2": ParallelConfig(context=2, data=1),
}
DISTRIBUTED = OptimizerConfig(distributed=True)
needs_reshardable = pytest.mark.skipif(
    not writes_distributed_optimizers(), reason="this Megatron-Core writes no distributed optimizer that others read"
)


def group_on(pool: RankPool, layout: ParallelConfig, **options: Any) -> Any:
    return WorkerGroup([layout.world_size], ClassWithInitArgs(ProbeTrainer, parallel=layout, **options), backend=pool)


def inline(**options: Any) -> Any:
    return WorkerGroup([1], ClassWithInitArgs(ProbeTrainer, **options))


def train(group: Any, *steps: int) -> list[float]:
    return [
        group.train_model(text_batch(4, 32, padded=True, first=4 * step)).meta_info["metrics"]["loss"][0]
        for step in steps
    ]


PAIRS = [("tp2", "tp2-pp2"), ("tp2-pp2", "dp2-tp2-sp"), ("dp2-tp2-sp", "alone"), ("cp2", "pp2")]
SAVED_AND_LOADED = [
    *(pytest.param(saved, (loaded,), id=f"{saved} to {loaded}") for saved, loaded in PAIRS),
    *(pytest.param(saved, tuple(LAYOUTS), id=f"{saved} to all", marks=pytest.mark.slow) for saved in LAYOUTS),
]


@pytest.mark.parametrize("distributed", [False, pytest.param(True, marks=needs_reshardable)])
@pytest.mark.parametrize(("saved_in", "loaded_in"), SAVED_AND_LOADED)
def test_saved_in_one_layout_and_loaded_in_others(
    pool: RankPool, tmp_path: Path, saved_in: str, loaded_in: tuple[str, ...], *, distributed: bool
) -> None:
    options: dict[str, Any] = {"optimizer": OptimizerConfig(distributed=distributed)}
    with group_on(pool, LAYOUTS[saved_in], seed=1, **options) as group:
        group.init_model()
        train(group, 0, 1)
        assert set(group.save_checkpoint(str(tmp_path))) == {str(tmp_path / "step-00000002")}
        digest = group.state_digest()[0]
        moments = None if distributed else whole(LAYOUTS[saved_in], group.gather_moments())
        losses = train(group, 2, 3)
    for layout in map(LAYOUTS.__getitem__, loaded_in):
        with group_on(pool, layout, seed=2, **options) as group:
            group.init_model()
            assert set(group.load_checkpoint(str(tmp_path))) == {2}
            assert set(group.state_digest()) == {digest}
            if moments is not None:
                loaded = whole(layout, group.gather_moments())
                assert all(torch.equal(loaded[name], moment) for name, moment in moments.items())
            assert train(group, 2, 3) == pytest.approx(losses, abs=2e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"precision": "bf16"}, pytest.param({"optimizer": DISTRIBUTED}, marks=needs_reshardable)],
)
def test_resuming_in_the_same_layout_is_exact(pool: RankPool, tmp_path: Path, options: dict[str, Any]) -> None:
    layout = ParallelConfig(tensor=2, data=2)
    with group_on(pool, layout, **options) as group:
        group.init_model()
        train(group, 0, 1)
        group.save_checkpoint(str(tmp_path))
        losses = train(group, 2, 3)
        digest = group.state_digest()
    with group_on(pool, layout, seed=9, **options) as group:
        group.init_model()
        group.load_checkpoint(str(tmp_path))
        assert train(group, 2, 3) == losses
        assert group.state_digest() == digest


@pytest.mark.timeout(600)  # two more sets of processes, each of which imports Megatron-Core
def test_a_rank_is_killed_after_any_step_and_the_run_goes_on_as_if_not(tmp_path: Path) -> None:
    layout, losses = ParallelConfig(tensor=2, data=1), []
    first = RankPool(2)
    with group_on(first, layout) as group:
        group.init_model()
        for step in range(4):
            losses += train(group, step)
            group.save_checkpoint(str(tmp_path))
        os.kill(first.pids[1], signal.SIGKILL)
        with pytest.raises(Exception, match="ProbeTrainer_0:1"):
            train(group, 4)
    first.close()
    second = RankPool(2)
    with group_on(second, layout, seed=7) as group:
        group.init_model()
        for step in (3, 1, 2):
            assert group.load_checkpoint(str(tmp_path), step=step) == [step, step]
            assert train(group, *range(step, 4)) == losses[step:]
    second.close()


@pytest.mark.skipif(writes_distributed_optimizers(), reason="this Megatron-Core writes distributed optimizers")
def test_a_distributed_optimizer_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with inline(optimizer=DISTRIBUTED) as group:
        group.init_model()
        with pytest.raises(CheckpointError, match="writes no distributed optimizer that another layout can read"):
            group.save_checkpoint(str(tmp_path))
        assert list(tmp_path.iterdir()) == []


def test_only_the_newest_are_kept_and_a_step_can_be_chosen(tmp_path: Path) -> None:
    with inline() as group:
        group.init_model()
        digests = {}
        for step in range(1, 5):
            train(group, step)
            group.save_checkpoint(str(tmp_path), keep=2)
            digests[step] = group.state_digest()
        assert steps_of(tmp_path) == [3, 4]
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]
        assert group.load_checkpoint(str(tmp_path), step=3) == [3]
        assert group.state_digest() == digests[3]
        with pytest.raises(CheckpointError, match="has no complete checkpoint of step 2; it has the steps 3, 4"):
            group.load_checkpoint(str(tmp_path), step=2)


def test_the_same_step_is_replaced(tmp_path: Path) -> None:
    with inline() as group:
        group.init_model()
        group.save_checkpoint(str(tmp_path))
        first = group.state_digest()
        group.init_model()
        group.save_checkpoint(str(tmp_path))
        assert group.load_checkpoint(str(tmp_path)) == [0]
        assert group.state_digest() == first
        assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000000"]


def test_a_half_written_one_is_never_found(tmp_path: Path) -> None:
    place = CheckpointPath(tmp_path, 7)
    place.begin()
    (place.partial / "common.pt").write_bytes(b"half")
    (tmp_path / "step-00000009").mkdir()  # without what a complete one says of itself
    assert steps_of(tmp_path) == []
    with pytest.raises(CheckpointError, match="has no complete checkpoint; it has none"):
        find(tmp_path, None)
    with pytest.raises(CheckpointError, match="has no complete checkpoint; it has none"):
        find(tmp_path / "nowhere", None)


def complete(root: Path, attempt: str) -> None:
    place = CheckpointPath(root, 7, attempt)
    place.begin()
    (place.partial / "weights").write_text(attempt)
    place.complete({"attempt": attempt})


def test_a_replacement_that_is_interrupted_leaves_the_first(tmp_path: Path) -> None:
    complete(tmp_path, "first")
    second = CheckpointPath(tmp_path, 7, "second")
    second.begin()
    second.final.rename(second.replaced)  # and its process is killed
    assert steps_of(tmp_path) == []
    assert (find(tmp_path, 7).final / "weights").read_text() == "first"
    second.final.rename(second.replaced)  # as before, and nobody looks before the next attempt begins
    complete(tmp_path, "third")
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000007"]
    assert (find(tmp_path, 7).final / "weights").read_text() == "third"


def test_a_replacement_that_gets_no_name_leaves_the_first(tmp_path: Path) -> None:
    complete(tmp_path, "first")
    gone = CheckpointPath(tmp_path, 7, "gone")
    gone.begin()
    real = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if path == gone.partial:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, target)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="No space left"):
            gone.complete({})
    gone.abandon()
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000007"]
    assert (find(tmp_path, None).final / "weights").read_text() == "first"


def test_attempts_do_not_meet_and_leave_nothing(tmp_path: Path) -> None:
    first, second = (CheckpointPath(tmp_path, 7, attempt) for attempt in "ab")
    first.begin()
    (first.partial / "file").write_text("half")
    first.abandon()
    assert list(tmp_path.iterdir()) == []
    first.begin()  # and its process is killed
    second.begin()
    assert [entry.name for entry in tmp_path.iterdir()] == [".partial-step-00000007-b"]
    second.complete({})
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000007"]
    assert steps_of(tmp_path) == [7]


def test_weights_alone_start_a_new_training(tmp_path: Path) -> None:
    with inline() as group:
        group.init_model()
        train(group, 0, 1)
        group.save_checkpoint(str(tmp_path))
        digest = group.state_digest()
    with inline(seed=4, optimizer=DISTRIBUTED) as group:
        group.init_model()
        with pytest.raises(CheckpointError, match=r"another kind of optimizer: distributed=False \(here True\)"):
            group.load_checkpoint(str(tmp_path))
        assert group.load_checkpoint(str(tmp_path), optimizer=False) == [0]
        assert group.state_digest() == digest
        train(group, 2)


def test_a_checkpoint_of_another_model_changes_nothing(tmp_path: Path) -> None:
    with inline() as group:
        group.init_model()
        group.save_checkpoint(str(tmp_path))
    for model, text in (
        ({"ffn_hidden_size": 256}, r"linear_fc2.weight has the shape \[2, 128, 352\], here \[2, 128, 256\]"),
        ({"num_layers": 4}, r"has the shape \[2, \d+.*\], here \[4, .*num_layers=2 \(here 4\)"),
        ({"vocab_size": 512}, r"word_embeddings.weight has the shape \[256, 128\], here \[512, 128\]"),
    ):
        with inline(model=model_config("tiny", **model)) as group:
            group.init_model()
            before = group.state_digest()
            with pytest.raises(CheckpointError, match=text):
                group.load_checkpoint(str(tmp_path))
            assert group.state_digest() == before


def test_a_full_disk_leaves_the_earlier_checkpoint(pool: RankPool, tmp_path: Path) -> None:
    with group_on(pool, LAYOUTS["tp2"]) as group:
        group.init_model()
        train(group, 0)
        group.save_checkpoint(str(tmp_path))
        digest = group.state_digest()
        train(group, 1)
        group.limit_file_size(50_000)
        try:
            with pytest.raises(CheckpointError, match=r"rank \d.* could not write"):
                group.save_checkpoint(str(tmp_path))
        finally:
            group.limit_file_size(resource.RLIM_INFINITY)
        assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000001"]
        assert group.save_checkpoint(str(tmp_path))[0].endswith("step-00000002")
        assert group.load_checkpoint(str(tmp_path), step=1) == [1, 1]
        assert group.state_digest() == digest


def test_a_save_that_takes_too_long_ends(pool: RankPool, tmp_path: Path) -> None:
    with group_on(pool, LAYOUTS["tp2"]) as group:
        group.init_model()
        with pytest.raises(CheckpointError, match="could not write in time: writing was not over within 1e-06 s"):
            group.save_checkpoint(str(tmp_path), time_limit=1e-6)
        assert list(tmp_path.iterdir()) == []
        digest = group.state_digest()
        group.save_checkpoint(str(tmp_path))
        group.init_model()
        group.load_checkpoint(str(tmp_path))
        assert group.state_digest() == digest


def test_without_psutil_saving_says_so_and_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "psutil" else real(name))
    with inline() as group:
        group.init_model()
        with pytest.raises(CheckpointError, match="saving needs psutil"):
            group.save_checkpoint(str(tmp_path))


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with inline() as group:
        group.init_model()
        with pytest.raises(CheckpointError, match=r"rank 0 could not begin: .*Error"):
            group.save_checkpoint(str(tmp_path / "file" / "below"))
        with pytest.raises(CheckpointError, match="keep=0 must be 1 or more"):
            group.save_checkpoint(str(tmp_path), keep=0)
