"""The `fanfold` command: what it needs is an extra, and it says how to get it."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEEDED = ("cyclopts", "rich")
_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 where something is wrong, 2 for wrong use."""
    absent = [name for name in _NEEDED if not _is_there(name)]
    if absent:
        sys.stderr.write(f"fanfold needs {' and '.join(absent)}: pip install 'fanfold-ray[cli]'\n")
        return _USAGE
    # At first use: the extra may be absent.
    cli = importlib.import_module("fanfold.ray.cli")
    return int(cli.run(sys.argv[1:] if arguments is None else list(arguments)))


def _is_there(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True
