from __future__ import annotations

import pytest
import torch
from fanfold.megatron import ModelConfig, ModelConfigError
from fanfold.megatron.weights import EMBEDDING, OUTPUT, Division, division_of, initial_weight, whole_model_name
from hypothesis import given
from hypothesis import strategies as st

divisions = st.builds(Division, st.sampled_from([None, 0, 1]), st.sampled_from([1, 2]))


@given(division=divisions, ranks=st.sampled_from([1, 2, 4]))
def test_joining_the_shards_is_identity(division: Division, ranks: int) -> None:
    whole = torch.arange(16.0 * 24).view(16, 24)
    shards = [division.shard(whole, ranks, rank) for rank in range(ranks)]
    assert torch.equal(division.join(shards), whole)
    assert {division.whole_shape(shard.shape, ranks) for shard in shards} == {(16, 24)}


def test_gate_and_up_are_divided_each_by_itself() -> None:
    whole = torch.arange(8.0).view(8, 1)
    assert division_of("decoder.layers.3.mlp.linear_fc1.weight").shard(whole, 2, 1).flatten().tolist() == [2, 3, 6, 7]


def test_names_of_the_undivided_model() -> None:
    assert whole_model_name("decoder.layers.1.mlp.linear_fc2.weight", 12) == "decoder.layers.13.mlp.linear_fc2.weight"
    assert whole_model_name(OUTPUT, 12) == OUTPUT
    with pytest.raises(ModelConfigError, match=r"no weight named 'decoder.layers.0.mlp.bias'"):
        division_of("decoder.layers.0.mlp.bias")


def test_a_weight_depends_on_name_and_seed_alone() -> None:
    config = ModelConfig(num_layers=8)
    torch.manual_seed(1)
    first = initial_weight(EMBEDDING, (256, 64), config, 3)
    state = torch.get_rng_state()
    assert torch.equal(first, initial_weight(EMBEDDING, (256, 64), config, 3))
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(first, initial_weight(EMBEDDING, (256, 64), config, 4))
    assert not torch.equal(first, initial_weight(OUTPUT, (256, 64), config, 3))
    assert torch.equal(first, initial_weight(OUTPUT, (256, 64), ModelConfig(share_embeddings=True), 3))
    assert float(first.std()) == pytest.approx(0.02, rel=0.02)
    assert float(initial_weight("decoder.layers.0.mlp.linear_fc2.weight", (256, 64), config, 3).std()) == pytest.approx(
        0.005, rel=0.02
    )
    assert torch.equal(initial_weight("decoder.final_layernorm.weight", (4,), config, 3), torch.ones(4))
