from __future__ import annotations

import math

import pytest
from fanfold.megatron import (
    LayoutError,
    LearningRate,
    ModelConfig,
    ModelConfigError,
    OptimizerConfig,
    ParallelConfig,
    model_config,
)


def test_presets() -> None:
    assert model_config("tiny") == ModelConfig(
        hidden_size=128, ffn_hidden_size=352, num_layers=2, num_attention_heads=4
    )
    large = model_config("llama-1b")
    assert (large.hidden_size, large.ffn_hidden_size, large.num_layers, large.num_attention_heads) == (
        2048,
        5504,
        24,
        16,
    )
    assert large.parameter_count == 24 * (4 * 2048 * 2048 + 3 * 2048 * 5504 + 2 * 2048) + 2 * 256 * 2048 + 2048
    assert model_config("tiny", num_layers=4).num_layers == 4


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"hidden_size": 130}, "num_attention_heads=4 must divide hidden_size=130"),
        ({"num_query_groups": 3}, "num_query_groups=3 must divide num_attention_heads=4"),
        ({"num_layers": 0}, "num_layers=0 must be a whole number of 1 or more"),
        ({"vocab_size": 2.5}, "vocab_size=2.5 must be a whole number of 1 or more"),
        ({"hidden_dropout": 1.0}, "hidden_dropout=1.0 must be at least 0 and below 1"),
        ({"attention_dropout": -0.1}, "attention_dropout=-0.1 must be at least 0 and below 1"),
        ({"hidden_size": 12}, "hidden_size / num_attention_heads = 3 must be even"),
    ],
)
def test_models_that_cannot_be(change: dict[str, object], text: str) -> None:
    with pytest.raises(ModelConfigError, match=text.replace("(", r"\(")):
        model_config("tiny", **change)


def test_unknown_preset_names_those_that_exist() -> None:
    with pytest.raises(ModelConfigError, match="no preset is named 'huge'; there are llama-1b, tiny"):
        model_config("huge")


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (ParallelConfig(tensor=3), "tensor=3 does not divide num_attention_heads=4; take one of 1, 2, 4"),
        (ParallelConfig(pipeline=4), "pipeline=4 does not divide num_layers=2; take one of 1, 2"),
        (ParallelConfig(expert=2, data=2), "expert=2 needs a model with experts"),
    ],
)
def test_layouts_that_do_not_divide_the_model(layout: ParallelConfig, text: str) -> None:
    with pytest.raises(LayoutError, match=text):
        model_config("tiny").check_layout(layout)


def test_layout_that_does_not_divide_the_key_value_heads() -> None:
    with pytest.raises(LayoutError, match="tensor=4 does not divide num_query_groups=2"):
        ModelConfig(num_query_groups=2).check_layout(ParallelConfig(tensor=4))


@pytest.mark.parametrize(
    ("layout", "longest", "pieces"),
    [
        (ParallelConfig(context=2), 4094, 4),
        (ParallelConfig(tensor=2, sequence_parallel=True), 4095, 2),
        (ParallelConfig(tensor=2, context=2, sequence_parallel=True), 4092, 8),
    ],
)
def test_layouts_that_cannot_cut_the_longest_row(layout: ParallelConfig, longest: int, pieces: int) -> None:
    text = f"into {pieces} equal pieces, and the longest, max_sequence_length={longest}, .* a multiple of {pieces}"
    with pytest.raises(LayoutError, match=text):
        model_config("tiny", max_sequence_length=longest).check_layout(layout)
    model_config("tiny", max_sequence_length=longest - longest % pieces).check_layout(layout)


def test_learning_rates() -> None:
    assert (
        OptimizerConfig(learning_rate=3e-4).schedule.at(1)
        == OptimizerConfig(learning_rate=3e-4).schedule.at(999)
        == 3e-4
    )
    linear = LearningRate(1.0, warmup_steps=4, decay="linear", decay_steps=10, floor=0.5)
    assert [linear.at(step) for step in (1, 2, 4, 5, 10, 15, 99)] == [0.25, 0.5, 1.0, 1.0, 0.75, 0.5, 0.5]
    cosine = LearningRate(2.0, decay="cosine", decay_steps=4)
    assert [cosine.at(step) for step in (1, 2, 3, 5)] == pytest.approx([2.0, 1 + math.sqrt(0.5), 1.0, 0.0])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: LearningRate(1e-3, floor=2e-3), "0 <= floor <= peak"),
        (lambda: LearningRate(math.nan), "0 <= floor <= peak"),
        (lambda: LearningRate(1e-3, warmup_steps=-1), "steps are 0 or more"),
        (lambda: LearningRate(1e-3, decay="linear"), "decay='linear' and decay_steps=0 do not go together"),
        (lambda: LearningRate(1e-3, decay="step"), "decay='step' must be"),  # type: ignore[arg-type]
        (lambda: OptimizerConfig(beta1=1.0), "beta1=1.0 must be at least 0 and below 1"),
        (lambda: OptimizerConfig(clip_grad=-1), "clip_grad=-1 must be 0 or more"),
    ],
)
def test_settings_that_cannot_be(make: object, text: str) -> None:
    with pytest.raises(ModelConfigError, match=text):
        make()  # type: ignore[operator]
