"""Hugging Face's names, shapes and files: out of any layout, into any layout, and the model is the same one."""

from __future__ import annotations

import json
import resource
from typing import TYPE_CHECKING, Any

import pytest
import reference
import torch
from fanfold.megatron import CheckpointError, ModelConfig, ParallelConfig, model_config_from_huggingface
from fanfold.megatron.huggingface import HuggingFaceReader, from_huggingface, names_of, to_huggingface
from fanfold.megatron.weights import stage_of, weight_shapes
from fanfold.worker import ClassWithInitArgs, WorkerGroup
from hypothesis import given
from hypothesis import strategies as st
from probe import ProbeTrainer
from safetensors.torch import load_file, save_file
from text import text_batch

if TYPE_CHECKING:
    from pathlib import Path

    from rank_pool import RankPool

MODEL = ModelConfig(hidden_size=64, ffn_hidden_size=96, num_attention_heads=8, num_query_groups=4, num_layers=4)
TIED = ModelConfig(
    num_query_groups=4, hidden_size=64, ffn_hidden_size=96, num_layers=4, share_embeddings=True, rotary_base=500
)

sizes = st.sampled_from([(8, 8), (8, 4), (8, 1), (4, 2), (2, 2)])


@given(heads=sizes)
def test_cutting_and_joining_is_identity(heads: tuple[int, int]) -> None:
    config = ModelConfig(hidden_size=16 * heads[0], num_attention_heads=heads[0], num_query_groups=heads[1])
    for name, shape in weight_shapes(config).items():
        whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
        parts = to_huggingface(name, whole, config)
        assert [theirs for theirs, _ in parts] == names_of(name)
        assert torch.equal(from_huggingface([part for _, part in parts], config), whole)


def test_shapes_are_those_of_the_model() -> None:
    shapes = weight_shapes(MODEL)
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == MODEL.parameter_count
    assert sum(torch.Size(shape).numel() for shape in weight_shapes(TIED).values()) == TIED.parameter_count
    assert [stage_of(name, MODEL, 2) for name in shapes] == sorted(stage_of(name, MODEL, 2) for name in shapes)
    assert stage_of("decoder.layers.1.mlp.linear_fc2.weight", MODEL, 2) == 0
    assert stage_of("decoder.layers.2.mlp.linear_fc2.weight", MODEL, 2) == 1


def group_on(pool: RankPool | None, layout: ParallelConfig, **options: Any) -> Any:
    recipe = ClassWithInitArgs(ProbeTrainer, parallel=layout, **options)
    return WorkerGroup([layout.world_size], recipe, backend=pool or "inline")


@pytest.mark.parametrize("model", [MODEL, TIED])
def test_out_of_one_layout_and_into_others(pool: RankPool, tmp_path: Path, model: ModelConfig) -> None:
    target = tmp_path / "llama"
    with group_on(pool, ParallelConfig(tensor=2, pipeline=2, data=1), model=model, seed=1) as group:
        group.init_model()
        group.train_model(text_batch(4, 24))
        group.export_hf(str(target), file_bytes=100_000)
        digest = set(group.state_digest())
        scores = group.compute_log_prob(text_batch(2, 24)).batch["log_probs"]
        collected = group.collect_weights(bucket_bytes=20_000)
    assert len(digest) == 1
    assert len(list(target.glob("*.safetensors"))) > 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["llama"]
    assert model_config_from_huggingface(target) == model

    files = {name: weight for file in target.glob("*.safetensors") for name, weight in load_file(file).items()}
    assert json.loads((target / "model.safetensors.index.json").read_text())["weight_map"].keys() == files.keys()
    for rank in collected:
        assert rank.keys() == files.keys()
        assert all(torch.equal(weight, files[name]) for name, weight in rank.items())
    ids = text_batch(2, 24).batch
    assert ids is not None
    predicted = reference.huggingface_logits(files, model, ids["input_ids"][1]).log_softmax(-1)
    wanted = predicted[:-1].gather(1, ids["input_ids"][1, 1:, None]).squeeze(1)
    assert float((scores[1, 1:] - wanted).abs().max()) < 1e-5

    for layout in (ParallelConfig(data=1), ParallelConfig(tensor=2, data=1), ParallelConfig(pipeline=2, data=2)):
        with group_on(pool, layout, model=model, seed=2) as group:
            group.init_model()
            group.load_hf(str(target))
            assert set(group.state_digest()) == digest
            assert group.train_model(text_batch(4, 24)).meta_info["metrics"]["step"][0] == 1


def test_what_a_directory_lacks_is_named_and_nothing_changes(tmp_path: Path) -> None:
    with group_on(None, ParallelConfig(data=1), model=MODEL) as group:
        group.init_model()
        before = group.state_digest()
        target = tmp_path / "llama"
        group.export_hf(str(target))
        (file,) = target.glob("*.safetensors")
        # Memory of their own: what is mapped from a file that is written anew ends the process.
        weights = {name: weight.clone() for name, weight in load_file(file).items()}
        wrong = dict(weights)
        del wrong["model.layers.2.self_attn.k_proj.weight"]
        for changed, text in (
            (wrong, r"rank 0 the Hugging Face model has no model.layers.2.self_attn.k_proj.weight; it has 38 weights"),
            (
                {**weights, "model.norm.weight": torch.ones(65)},
                r"there model.norm.weight has the shape \[65\], here \[64\]",
            ),
        ):
            save_file(changed, file)
            with pytest.raises(CheckpointError, match=text):
                group.load_hf(str(target))
        with pytest.raises(CheckpointError, match=r"has no weights: no \*.safetensors in it"):
            group.load_hf(str(tmp_path))
        assert group.state_digest() == before


def test_a_model_that_has_something_else(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"it has no config\.json"):
        model_config_from_huggingface(tmp_path)
    good = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 256,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }
    (tmp_path / "config.json").write_text(json.dumps(good))
    read = model_config_from_huggingface(tmp_path)
    assert (read.num_query_groups, read.attention_dropout) == (8, 0.0)
    (tmp_path / "config.json").write_text(json.dumps({**good, "attention_dropout": 0.1}))
    assert model_config_from_huggingface(tmp_path).attention_dropout == 0.1
    for field, value in (("model_type", "gpt2"), ("attention_bias", True), ("rope_scaling", {"factor": 8})):
        (tmp_path / "config.json").write_text(json.dumps({**good, field: value}))
        with pytest.raises(CheckpointError, match=f"says {field}="):
            model_config_from_huggingface(tmp_path)


def test_a_full_disk_is_an_error_on_all_ranks_and_leaves_the_old_export(pool: RankPool, tmp_path: Path) -> None:
    target = tmp_path / "llama"
    with group_on(pool, ParallelConfig(tensor=2, data=1), model=MODEL) as group:
        group.init_model()
        group.export_hf(str(target))
        digest = group.state_digest()
        group.limit_file_size(10_000)
        try:
            with pytest.raises(CheckpointError, match=f"writing {target}: rank 0 .*Error"):
                group.export_hf(str(target))
        finally:
            group.limit_file_size(resource.RLIM_INFINITY)
        group.load_hf(str(target))
        assert group.state_digest() == digest


def test_reader_reads_one_weight_at_a_time(tmp_path: Path) -> None:
    weights = {
        theirs: torch.full(part.shape, 1.0)
        for name, shape in weight_shapes(MODEL).items()
        for theirs, part in to_huggingface(name, torch.zeros(shape), MODEL)
    }
    save_file(weights, tmp_path / "model.safetensors")
    reader = HuggingFaceReader(tmp_path, MODEL)
    found = reader.read("decoder.layers.3.self_attention.linear_qkv.weight")
    assert found is not None
    assert found.shape == (128, 64)
