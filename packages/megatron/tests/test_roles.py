"""Several Megatron roles in one process of each rank: one layout, one set of process groups, each its own model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from fanfold.dataproto import DataProto
from fanfold.megatron import LayoutClashError, MegatronTrainer, ModelConfig, ParallelConfig, ValueLoss
from fanfold.worker import ClassWithInitArgs, WorkerGroup, create_colocated_worker_cls
from text import text_batch
from watcher import Watcher

if TYPE_CHECKING:
    from rank_pool import RankPool


def roles(layout: ParallelConfig, critic_layout: ParallelConfig | None = None, **critic: Any) -> ClassWithInitArgs:
    actor = ClassWithInitArgs(MegatronTrainer, parallel=layout, seed=1)
    options = {"parallel": critic_layout or layout, "model": ModelConfig(head="value"), "seed": 2, **critic}
    return create_colocated_worker_cls(
        {"actor": actor, "critic": ClassWithInitArgs(MegatronTrainer, **options), "watcher": Watcher}
    )


def test_roles_share_process_groups_and_keep_their_models(pool: RankPool) -> None:
    layout, seen = ParallelConfig(tensor=2, data=2), []
    for one, backend in ((False, pool), (True, "inline")):
        parallel = ParallelConfig(data=1) if one else layout
        started: Any = WorkerGroup([parallel.world_size], roles(parallel), backend=backend)
        with started as group:
            group.actor.init_model()
            group.critic.init_model()
            batch = text_batch(4, 24, padded=True)
            values = group.critic.compute_values(batch).batch["values"]
            batch = batch.union(DataProto.from_dict(tensors={"returns": torch.ones(4, 24), "values": values}))
            results = [group.actor.train_model(batch), group.critic.train_model(batch, loss=ValueLoss())]
            results.append(group.actor.train_model(batch))
            losses = [result.meta_info["metrics"]["loss"][0] for result in results]
            sums = group.watcher.sum_of_actor()
            assert sums == pytest.approx([sums[0]] * parallel.world_size)
            seen.append([*losses, sums[0]])
    assert seen[0] == pytest.approx(seen[1], rel=1e-5)


@pytest.mark.parametrize(
    ("layout", "options"),
    [(ParallelConfig(data=2), {}), (None, {"precision": "bf16"})],
    ids=["another layout", "another precision"],
)
def test_roles_that_want_different_process_groups_are_refused(
    pool: RankPool, layout: ParallelConfig | None, options: dict[str, Any]
) -> None:
    with pytest.raises(Exception, match=r"runs Megatron with tensor=2.* and MegatronTrainer asks for") as caught:
        WorkerGroup([2], roles(ParallelConfig(tensor=2, data=1), layout, **options), backend=pool)
    found = [caught.value, caught.value.__cause__]
    assert any(isinstance(error, LayoutClashError) for error in found)
