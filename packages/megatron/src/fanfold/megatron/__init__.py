"""Megatron-Core workers in any parallel layout, with or without a GPU."""
