"""The detached flow, two ranks on one device, and the use of the machine: on a GPU, or its small part on the CPU.

    python integration/gpu/run.py [--device cuda|cpu]

Prints one line per check, and says aloud what is unproven where there is no GPU. Status 1 if a check failed. What is
measured on the CPU is printed, and its goals, which are a GPU's, are not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
FLOW = HERE.parent / "detached_worker" / "run.sh"
LIMIT = 300.0  # seconds for one part
UTILISATION, CALL_SHARE = 0.45, 0.02  # goals on a GPU: at least, at most


def main() -> int:
    """Run every check on this machine's GPU, or else on its CPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    there = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cuda", "cpu"], default=there)
    device = parser.parse_args().device
    if device == "cuda":
        print(f"on {torch.cuda.get_device_name()}, {torch.cuda.device_count()} of them", flush=True)
    else:
        print("CPU PART ALONE: no GPU is used; NOTHING is proven on CUDA", flush=True)
    failed = [name for name, check in CHECKS.items() if not _passes(name, partial(check, device))]
    print(f"{len(CHECKS) - len(failed)} passed, {len(failed)} failed, on {device}")
    return 1 if failed else 0


def the_flow_on_one_rank_and_on_two(device: str) -> str:
    """The detached flow learns, and two tensor-parallel ranks, on one GPU over gloo, give the losses of one."""
    one, two = (flow(device, "--tp", tp) for tp in ("1", "2"))
    _expect(5.2 < one["first_loss"] < 5.9, f"first loss {one['first_loss']} is not near ln 256")
    _expect(one["last_loss"] < 3.0, f"last loss {one['last_loss']} is not below 3.0")
    difference = max(abs(one[name] - two[name]) for name in ("first_loss", "last_loss"))
    _expect(difference < 0.05, f"losses differ by {difference}: {one} {two}")
    losses = f"loss {one['first_loss']:.3f} to {one['last_loss']:.3f}"
    return f"{losses} on {one['device']}; {two['device']} with tensor=2 differs by {difference:.1g}"


def use_of_the_machine(device: str) -> str:
    """A step of the large model, on the CPU of a small one, uses what the device can do."""
    seen = python_script(HERE / "throughput.py", "--device", device)
    _expect(seen["last_loss"] < seen["first_loss"], f"the loss did not fall: {seen}")
    if device == "cuda":
        _expect(seen["utilisation"] >= UTILISATION, f"utilisation below {UTILISATION}: {seen}")
        _expect(seen["call_share"] < CALL_SHARE, f"dispatch and collect take more than {CALL_SHARE}: {seen}")
    return json.dumps(seen)


CHECKS: dict[str, Callable[[str], str]] = {
    "detached flow, one rank and two": the_flow_on_one_rank_and_on_two,
    "use of the machine": use_of_the_machine,
}


def flow(device: str, *options: str) -> dict[str, Any]:
    """Run the detached flow and return its result."""
    return result_of(shutil.which("bash") or "bash", str(FLOW), "--device", device, *options)


def python_script(script: Path, *options: str) -> dict[str, Any]:
    """Run a script that prints its result, and return that."""
    return result_of(sys.executable, str(script), *options)


def result_of(*command: str) -> dict[str, Any]:
    """Run a command whose last line of output is a JSON object."""
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


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
