"""The batch container for reinforcement learning and training: tensors, per-row Python objects and metadata in one value."""
