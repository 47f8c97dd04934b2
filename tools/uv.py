"""Where uv is: the one that runs us, the clone's own, or the one on the PATH."""

import os
from collections.abc import Mapping
from pathlib import Path

from tools.workspace import ROOT


def uv_executable(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> str:
    """The uv to start; `uvx` and `uv run` say which they are in UV."""
    own = root / ".uv" / "bin" / "uv"
    return environment.get("UV") or (str(own) if own.exists() else "uv")
