"""What importing the package costs, looked at in fresh interpreters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fanfold.dispatch

# Modules that cost much or start something; each is loaded at first need, if ever.
HEAVY = (
    "asyncio",
    "multiprocessing",
    "socket",
    "logging",
    "subprocess",
    "concurrent.futures",
    "importlib.metadata",
    "json",
)
SOURCES = Path(fanfold.dispatch.__file__).parents[2]


def fresh(code: str) -> str:
    """Run in an interpreter that sees the standard library and this package alone."""
    start = f"import sys; sys.path.insert(0, {str(SOURCES)!r})\n"
    command = [sys.executable, "-I", "-S", "-c", start + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def modules_after(code: str) -> set[str]:
    return set(json.loads(fresh(f"{code}\nloaded = list(sys.modules)\nimport json; print(json.dumps(loaded))")))


def test_the_standard_library_is_enough() -> None:
    loaded = modules_after("import fanfold.dispatch")
    foreign = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) - {"__main__", "fanfold"}
    assert foreign == set()
    assert {name for name in loaded if name.startswith("fanfold.") and not name.startswith("fanfold.dispatch")} == set()


def test_nothing_heavy_is_loaded() -> None:
    assert modules_after("import fanfold.dispatch") & set(HEAVY) == set()


def test_a_call_of_plain_values_loads_nothing_heavy_either() -> None:
    code = """
from fanfold.dispatch import register, run_inline
class Worker:
    @register()
    def add(self, x, y): return x + y
assert run_inline("add", [Worker(), Worker()], [1, 2], [3, 4]) == [4, 6]
"""
    assert modules_after(code) & set(HEAVY) == set()


def test_importing_costs_at_most_45_ms_of_cpu_above_a_bare_interpreter() -> None:
    def cpu_seconds(code: str) -> float:
        # The child's own count of its CPU time: other processes on the machine do not enter into it.
        return float(fresh(f"{code}\nimport os; t = os.times(); print(t.user + t.system)"))

    def least(code: str) -> float:
        return min(cpu_seconds(code) for _ in range(7))

    # os.times counts in clock ticks.
    assert least("import fanfold.dispatch") - least("pass") <= 0.045 + 1 / os.sysconf("SC_CLK_TCK")
