"""Megatron-Core workers in any parallel layout, with or without a GPU.

Importing this package does not import Megatron-Core: that happens on the ranks.
"""

from fanfold.megatron.config import PRESETS, ModelConfig, ModelProvider, OptimizerConfig, model_config
from fanfold.megatron.device import DevicePlan
from fanfold.megatron.errors import (
    BatchError,
    CheckpointError,
    DeviceError,
    HeadError,
    LayoutClashError,
    LayoutError,
    MegatronError,
    ModelConfigError,
    NonFiniteLossError,
    NotInitialisedError,
    OffloadedError,
)
from fanfold.megatron.huggingface import model_config_from_huggingface
from fanfold.megatron.losses import CrossEntropy, PolicyGradient, TokenLoss, ValueLoss
from fanfold.megatron.model_worker import ModelWorker
from fanfold.megatron.sampling import Sampling
from fanfold.megatron.schedule import LearningRate
from fanfold.megatron.topology import ParallelConfig
from fanfold.megatron.trainer import MegatronTrainer
from fanfold.megatron.worker import MegatronWorker, in_megatron

__all__ = [
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
