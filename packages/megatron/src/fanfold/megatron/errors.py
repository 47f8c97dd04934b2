"""What can go wrong with Megatron workers. Every class is also the built-in that fits."""

from __future__ import annotations

from fanfold.dispatch import FanfoldError


class MegatronError(FanfoldError):
    """Root of everything `fanfold.megatron` raises by itself."""


class LayoutError(MegatronError, ValueError):
    """Parallel sizes that cannot be: with each other, with the number of ranks, or with the model."""


class LayoutClashError(MegatronError, RuntimeError):
    """A second layout was asked for in a process that already has one."""


class ModelConfigError(MegatronError, ValueError):
    """A model that cannot be: a size that does not divide another, or an unknown preset."""


class DeviceError(MegatronError, RuntimeError):
    """A device, backend or number type that this process does not have or that do not go together."""


class BatchError(MegatronError, ValueError):
    """Rows that cannot be trained on: a missing column, a wrong shape, a token the model does not know.

    Attributes:
        rank: The rank that found it.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        self.message = message
        self.rank = rank
        super().__init__(message, rank)

    def __str__(self) -> str:
        return self.message if self.rank is None else f"rank {self.rank}: {self.message}"


class NonFiniteLossError(MegatronError, FloatingPointError):
    """The loss or the gradient norm of a step is NaN or infinite; weights and optimizer are as they were.

    Attributes:
        where: What was not finite, by rank and micro-batch.
        step: Number of the step that was not done, from 1.
    """

    def __init__(self, where: str, step: int) -> None:
        self.where = where
        self.step = step
        super().__init__(where, step)

    def __str__(self) -> str:
        return (
            f"step {self.step} was not done: {self.where}; the weights are those of step {self.step - 1}. "
            "Lower the learning rate, look at the rows, or say on_non_finite='skip' to leave such steps out"
        )


class NotInitialisedError(MegatronError, RuntimeError):
    """A method needs the model, and `init_model` has not run on this rank."""


class HeadError(MegatronError, TypeError):
    """A language model was asked for values, or a value model for tokens; or a loss is for the other kind."""


class OffloadedError(MegatronError, RuntimeError):
    """A method needs what `offload` has moved to the host."""


class CheckpointError(MegatronError, RuntimeError):
    """A checkpoint could not be written or read; what was there before is as it was."""
