"""The package's one door: a name is added or taken away on purpose."""

import fanfold.megatron


def test_the_door() -> None:
    assert sorted(fanfold.megatron.__all__) == sorted(
        [
            "PRESETS",
            "BatchError",
            "CheckpointError",
            "CrossEntropy",
            "DeviceError",
            "DevicePlan",
            "HeadError",
            "LayoutClashError",
            "LayoutError",
            "LearningRate",
            "MegatronError",
            "MegatronTrainer",
            "MegatronWorker",
            "ModelConfig",
            "ModelConfigError",
            "ModelProvider",
            "ModelWorker",
            "NonFiniteLossError",
            "NotInitialisedError",
            "OffloadedError",
            "OptimizerConfig",
            "ParallelConfig",
            "PolicyGradient",
            "Sampling",
            "TokenLoss",
            "ValueLoss",
            "in_megatron",
            "model_config",
            "model_config_from_huggingface",
        ]
    )
    assert all(hasattr(fanfold.megatron, name) for name in fanfold.megatron.__all__)
