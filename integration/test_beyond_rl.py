"""A job without torch, as users run it: the same exact result on every backend."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from running import environment

SCRIPT = Path(__file__).parent / "beyond_rl" / "traffic.py"
ROWS = 10_001


def report_of(backend: str, env: dict[str, str]) -> Any:
    command = [sys.executable, str(SCRIPT), "--backend", backend]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=200, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """The report, counted without tables and without ranks."""
    requests: Counter[str] = Counter()
    volume: Counter[str] = Counter()
    for number in range(ROWS):
        requests[f"/{number * number % 7}"] += 1
        volume[f"/{number * number % 7}"] += number * 7919 % 50021
    return {
        "totals": {"requests": ROWS, "failed": 104, "largest": max(n * 7919 % 50021 for n in range(ROWS))},
        "pages": [{"page": p, "bytes_count_sum": requests[p], "bytes_sum_sum": volume[p]} for p in sorted(requests)],
        "torch": [False] * 4,  # the driver and three ranks
    }


@pytest.mark.parametrize("backend", ["inline", "processes"])
def test_on_this_machine(backend: str, expected: dict[str, Any]) -> None:
    assert report_of(backend, environment()) == expected


def test_on_ray(on_cluster: dict[str, str], expected: dict[str, Any]) -> None:
    assert report_of("ray", on_cluster) == expected


def test_the_script_stays_short() -> None:
    text = SCRIPT.read_text(encoding="utf-8")

    assert len(text.splitlines()) < 60
    assert "import torch" not in text
