"""How much of the machine a training step uses: tokens a second, share of the matrix rate, memory, cost of the call.

One rank through a worker group, as a driver uses it. Prints one line, a JSON object. B rows, T tokens, L layers, h
hidden size.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")

import ray  # it reads the environment
import torch
from fanfold.dataproto import DataProto, position_ids_from_mask
from fanfold.dispatch import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from fanfold.megatron import MegatronTrainer, ModelConfig, OptimizerConfig, model_config
from fanfold.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

# What each device is measured with: the model, and B x T. The CPU's is as large as a laptop does in a second or two.
SHAPES: dict[str, tuple[ModelConfig, int, int]] = {
    "cuda": (model_config("llama-1b"), 16, 1024),
    "cpu": (ModelConfig(hidden_size=256, ffn_hidden_size=704, num_layers=4, num_attention_heads=4), 16, 128),
}
MULTIPLICATIONS = 20


class Measured(MegatronTrainer):
    """A trainer that says what its steps and its device do."""

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"))
    def timed_step(self, batch: DataProto) -> DataProto:
        """Train, and put the seconds into the metrics; reading the loss has waited for the device."""
        start = time.perf_counter()
        result = self.train_model(batch)
        result.meta_info["metrics"]["seconds"] = time.perf_counter() - start
        return result

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def matrix_rate(self, rows: int) -> float:
        """Return the floating-point operations a second of the model's largest multiplication, by itself."""
        left = torch.randn(rows, self.model.hidden_size, device=self.tensor_device, dtype=self.device.dtype)
        right = torch.randn(2 * self.model.ffn_hidden_size, self.model.hidden_size, device=left.device).to(left.dtype)
        seconds = []
        for _ in range(3):
            self.wait()
            start = time.perf_counter()
            for _ in range(MULTIPLICATIONS):
                torch.nn.functional.linear(left, right)
            self.wait()
            seconds.append(time.perf_counter() - start)
        return 2.0 * left.numel() * len(right) * MULTIPLICATIONS / min(seconds)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def peak_bytes(self) -> int:
        """Return the most memory that was in use: of the GPU, or of this process."""
        if self.device.kind == "cuda":
            return torch.cuda.max_memory_allocated()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def wait(self) -> None:
        """Wait for what the device still has to do."""
        if self.device.kind == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=list(SHAPES), required=True)
    parser.add_argument("--steps", type=int, default=10)
    chosen = parser.parse_args()
    on_gpu = chosen.device == "cuda"
    ray.init(  # a cluster of its own, also where this machine has one already
        address="local",
        num_cpus=2,
        num_gpus=int(on_gpu),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    model, rows, tokens = SHAPES[chosen.device]
    group: Any = RayWorkerGroup(
        RayResourcePool(process_on_nodes=[1], use_gpu=on_gpu),
        RayClassWithInitArgs(Measured, model=model, device=chosen.device, optimizer=OptimizerConfig(1e-4)),
    )
    print(json.dumps(measure(group, model, text(rows, tokens), chosen.steps)))
    group.close()
    ray.shutdown()


def measure(group: Any, model: ModelConfig, batch: DataProto, steps: int) -> dict[str, Any]:
    """Train some steps and return the figures; the first three steps, which warm up, do not count."""
    group.init_model()
    walls, insides, losses = [], [], []
    for _ in range(steps + 3):
        start = time.perf_counter()
        metrics = group.timed_step(batch).meta_info["metrics"]
        walls.append(time.perf_counter() - start)
        insides.append(metrics["seconds"][0])
        losses.append(metrics["loss"][0])
    wall, inside = statistics.median(walls[3:]), statistics.median(insides[3:])
    around = statistics.median(wall - inside for wall, inside in zip(walls[3:], insides[3:], strict=True))
    assert batch.batch is not None
    rows, tokens = batch.batch["input_ids"].shape
    rate = group.matrix_rate(rows * tokens)[0]
    return {
        "batch": f"{rows} x {tokens}",
        "parameters": model.parameter_count,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "step_seconds": round(wall, 4),
        "tokens_per_second": round(rows * tokens / wall),
        "matrix_tflops": round(rate / 1e12, 3),
        "utilisation": round(operations(model, rows, tokens) / inside / rate, 4),
        "peak_gib": round(group.peak_bytes()[0] / 2**30, 3),
        "call_share": round(around / wall, 4),
    }


def operations(model: ModelConfig, rows: int, tokens: int) -> float:
    """Count the floating-point operations of a step: 6 a weight that multiplies and token, and attention's products.

    Attention is counted as causal: 6 L h T a token, half of what a whole square would be. The embedding multiplies
    nothing.
    """
    weights = model.parameter_count - model.vocab_size * model.hidden_size
    attention = 6 * model.num_layers * model.hidden_size * tokens
    return float(rows * tokens * (6 * weights + attention))


def text(rows: int, tokens: int) -> DataProto:
    """Return rows of this Python's own source, as bytes."""
    source = b"".join(Path(module.__file__ or "").read_bytes() for module in (argparse, logging))
    ids = torch.tensor(list((source * (1 + rows * tokens // len(source)))[: rows * tokens])).view(rows, tokens)
    mask = torch.ones_like(ids)
    columns = {"input_ids": ids, "attention_mask": mask, "position_ids": position_ids_from_mask(mask)}
    return DataProto.from_dict(tensors=columns)


if __name__ == "__main__":
    main()
