"""Drivers under `uv run`, whose workers Ray starts through `uv run` too.

Ray 2.43 and later look for `uv run` among the driver's parents, and then have every worker process build an environment
of its own in a copy of the driver's folder. That is meant for clusters whose nodes have nothing but Ray; where the
environment is there already, workers are silent for minutes, or for ever where the folder is not all of the project.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import ray
from ray._private import ray_constants  # no public way says it to `ray.init` alone

if TYPE_CHECKING:
    from collections.abc import Iterator

_SWITCH = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
_ADVICE = (
    f"connect by fanfold.ray.connect(), or set {_SWITCH}=0 before ray is imported, and workers are run by the nodes' "
    "own Python"
)
_logger = logging.getLogger("fanfold.ray")


@contextmanager
def workers_without_uv_run() -> Iterator[None]:
    """Keep `ray.init` in the block from starting workers through `uv run`, unless the user's environment names it."""
    if _SWITCH in os.environ or not getattr(ray_constants, _SWITCH, False):
        yield
        return
    setattr(ray_constants, _SWITCH, False)
    try:
        yield
    finally:
        setattr(ray_constants, _SWITCH, True)


def uv_run_command() -> str:
    """Return the command by which workers of this driver are started where that is `uv run`, else nothing."""
    command = str(ray.get_runtime_context().runtime_env.get("py_executable") or "")
    words = command.split()
    return command if len(words) > 1 and os.path.basename(words[0]) == "uv" and words[1] == "run" else ""  # noqa: PTH119


def slow_start_note() -> str:
    """Say why workers may have no process for long, where this driver is under `uv run`."""
    command = uv_run_command()
    return (
        f"; Ray starts each worker by `{command}`, which may build an environment first: {_ADVICE}" if command else ""
    )


@cache
def warn_of_uv_run() -> None:
    """Log once that the workers of this driver build their own environment."""
    command = uv_run_command()
    if command and os.environ.get(_SWITCH) != "1":
        _logger.warning(
            "this driver runs under `uv run`, so Ray starts every worker by `%s` in a copy of its folder, which may "
            "take minutes or fail; %s (=1 says that it is meant, and this warning ends)",
            command,
            _ADVICE,
        )
