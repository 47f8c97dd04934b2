"""Attach to the detached trainers by name and train them on the bytes of real text; this process creates no worker."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from fanfold.dataproto import DataProto, position_ids_from_mask
from fanfold.dataproto import FanfoldError as DataError
from fanfold.dispatch import FanfoldError
from fanfold.ray import BrokenGroupError, RayClassWithInitArgs, RayWorkerGroup, connect
from options import interrupt_on_termination, parse, report, text_files
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from server import Trainer


def main() -> int:
    """Run the command line."""
    chosen = parse()
    return report(lambda: client(chosen), debug=chosen.debug, expected=(FanfoldError, DataError))


def client(chosen: argparse.Namespace) -> None:
    """Attach, train, and print the result as one JSON object."""
    started = time.perf_counter()
    connect(chosen.address, chosen.namespace)
    interrupt_on_termination()
    try:
        group = RayWorkerGroup.from_detached(chosen.name, ray_cls_with_init=RayClassWithInitArgs(Trainer))
    except BrokenGroupError as error:
        raise BrokenGroupError(
            f"{error}. Here: `server.py --replace` ends what is left of it and makes it anew"
        ) from error
    about = group.describe()[0]
    attached = time.perf_counter()
    losses = train(group, batches(chosen), chosen.steps)
    seconds = {**earlier_phases(), "attach": attached - started, "train": time.perf_counter() - attached}
    result = {
        "steps": chosen.steps,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "ranks": group.world_size,
        "layout": about["layout"],
        "device": about["device"],
        "server_exited_before_client": not runs(*about["server"]),
        "seconds": {phase: round(value, 2) for phase, value in seconds.items()},
    }
    publish(result, chosen)


def train(group: Any, data: Iterator[DataProto], steps: int) -> list[float]:
    """Train step by step and return the loss of each step, showing it while it goes."""
    losses = []
    with progress_bar() as progress:
        task = progress.add_task("train", total=steps, loss=float("nan"), norm=float("nan"), speed=0.0)
        for batch, _ in zip(data, range(steps), strict=False):
            began = time.perf_counter()
            metrics = group.train_model(batch).meta_info["metrics"]
            speed = int(batch["attention_mask"].sum()) / (time.perf_counter() - began)
            losses.append(metrics["loss"][0])
            progress.update(task, advance=1, loss=losses[-1], norm=metrics["grad_norm"][0], speed=speed)
    return losses


def batches(chosen: argparse.Namespace) -> Iterator[DataProto]:
    """Draw batches of B = batch-size rows of T = seq-length bytes, without end; the same for the same seed."""
    text = np.frombuffer(b"".join(path.read_bytes() for path in text_files(chosen.text)), dtype=np.uint8)
    random = np.random.default_rng(chosen.seed)
    while True:
        yield draw_batch(text, random, chosen.batch_size, chosen.seq_length)


def draw_batch(text: np.ndarray, random: np.random.Generator, rows: int, length: int) -> DataProto:
    """Cut rows of uneven length out of the text: prompts are padded on the left, continuations on the right.

    Returns:
        `input_ids`, `attention_mask`, `position_ids`, each [B, T] int64.
    """
    lengths = random.integers(max(2, 3 * length // 4), length + 1, size=rows)
    starts = random.integers(0, len(text) - length + 1, size=rows)
    columns = np.arange(length)
    left = (np.arange(rows) % 2 == 0)[:, None]
    mask = np.where(left, columns >= (length - lengths)[:, None], columns < lengths[:, None])
    tokens = np.where(mask, text[starts[:, None] + columns], 0)
    attention_mask = torch.from_numpy(mask.astype(np.int64))
    return DataProto.from_dict(
        tensors={
            "input_ids": torch.from_numpy(tokens.astype(np.int64)),
            "attention_mask": attention_mask,
            "position_ids": position_ids_from_mask(attention_mask),
        }
    )


def progress_bar() -> Progress:
    """Return a progress bar on standard error, with loss, gradient norm and speed."""
    return Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn(
            "loss {task.fields[loss]:.3f}  gradient norm {task.fields[norm]:.2f}  {task.fields[speed]:,.0f} tokens/s"
        ),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


def runs(host: str, pid: int) -> bool:
    """Say whether a process of this machine runs; one of another machine is not ours to ask about."""
    if host != platform.node():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def earlier_phases() -> dict[str, float]:
    """Return the seconds of the phases before this one, which run.sh hands on as `cluster=5.1 server=9.8`."""
    pairs = (entry.split("=") for entry in os.environ.get("PHASE_SECONDS", "").split())
    return {phase: float(seconds) for phase, seconds in pairs}


def publish(result: dict[str, Any], chosen: argparse.Namespace) -> None:
    """Print the result as the last line of standard output, and write it to the file that was asked for."""
    line = json.dumps(result)
    if chosen.json:
        chosen.json.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    sys.exit(main())
