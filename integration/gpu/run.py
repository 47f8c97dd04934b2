"""What only a GPU can show: the detached flow on CUDA, and two ranks that share one GPU.

Prints one line per check, and says aloud that nothing was checked where there is no GPU. Status 1 if a check failed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

RUN = Path(__file__).parents[1] / "detached_worker" / "run.sh"
LIMIT = 300.0  # seconds for one flow


def main() -> int:
    """Run every check on this machine's GPU."""
    if not torch.cuda.is_available():
        print("SKIPPED: this machine has no GPU; NOTHING was checked on CUDA")
        return 0
    print(f"on {torch.cuda.get_device_name()}, {torch.cuda.device_count()} of them")
    failed = [name for name, check in CHECKS.items() if not _passes(name, check)]
    print(f"{len(CHECKS) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def flow(*options: str) -> dict[str, Any]:
    """Run the detached flow and return its result."""
    done = subprocess.run(
        [shutil.which("bash") or "bash", str(RUN), "--device", "cuda", *options],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"run.sh {' '.join(options)} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def one_rank_learns() -> str:
    """One rank on NCCL and bfloat16 learns what the CPU learns."""
    result = flow("--tp", "1")
    _expect(5.2 < result["first_loss"] < 5.9, f"first loss {result['first_loss']} is not near ln 256")
    _expect(result["last_loss"] < 3.0, f"last loss {result['last_loss']} is not below 3.0")
    return f"loss {result['first_loss']:.3f} to {result['last_loss']:.3f} on {result['device']}"


def two_ranks_share_a_gpu() -> str:
    """Two tensor-parallel ranks on the GPUs that are there give the losses of one, as exactly as bfloat16 is."""
    one, two = (flow("--tp", tp, "--steps", "5") for tp in ("1", "2"))
    difference = abs(one["last_loss"] - two["last_loss"])
    _expect(difference < 0.05, f"losses differ by {difference}: {one} {two}")
    return f"losses differ by {difference:.4f}, {two['device']}"


def a_billion_weights() -> str:
    """The full model takes ten steps of 16 x 1024 tokens."""
    result = flow("--preset", "llama-1b", "--tp", "1", "--batch-size", "16", "--seq-length", "1024", "--steps", "10")
    _expect(result["last_loss"] < result["first_loss"], f"the loss did not fall: {result}")
    return f"{result['seconds']['train'] / result['steps']:.2f} s a step"


CHECKS: dict[str, Callable[[], str]] = {
    "one rank learns": one_rank_learns,
    "two ranks share a GPU": two_ranks_share_a_gpu,
    "a billion weights": a_billion_weights,
}


def _passes(name: str, check: Callable[[], str]) -> bool:
    try:
        print(f"ok      {name}: {check()}", flush=True)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"FAILED  {name}: {error}", flush=True)
        return False
    return True


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(otherwise)


if __name__ == "__main__":
    sys.exit(main())
