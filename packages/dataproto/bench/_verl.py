"""verl's container for the comparison: from the package registry, without its dependencies, into a temporary folder."""

import importlib
import importlib.abc
import importlib.machinery
import inspect
import shutil
import subprocess
import sys
from collections.abc import MutableSequence
from pathlib import Path
from types import ModuleType
from typing import Any

VERSION = "0.9.1"
UV = Path(__file__).resolve().parents[3] / ".uv" / "bin" / "uv"


class _Nothing(ModuleType):
    """Stands for a package that verl imports beside its container and that is not installed here."""

    __path__: MutableSequence[str] = []  # noqa: RUF012 (as the base class says it)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *_, **__: None})


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what verl itself asks for and no other finder has found; other packages do without what they lack."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".", maxsplit=1)[0] in {"verl", "torch_npu", "modelscope"} or _asked_by() != "verl":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Nothing(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


def _asked_by() -> str:
    """Top package of the module whose import statement is being executed."""
    frame = inspect.currentframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name not in {__name__, "importlib", "importlib._bootstrap", "importlib._bootstrap_external"}:
            return name.split(".", maxsplit=1)[0]
        frame = frame.f_back
    return ""


def load(folder: Path) -> Any:
    """Install verl into `folder` and return its `DataProto`, or the reason why it cannot be had."""
    if not (folder / "verl").exists():
        found = shutil.which("uv") or (str(UV) if UV.exists() else None)
        # Without a cache, because uv links files of a target folder to it: who edits one edits it for everybody.
        command = (
            [found, "pip", "install", "--no-cache", "--python", sys.executable]
            if found
            else [sys.executable, "-m", "pip", "install", "--no-cache-dir"]
        )
        done = subprocess.run(
            [*command, "--no-deps", "--target", str(folder), f"verl=={VERSION}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return f"verl {VERSION} could not be installed: {done.stderr.strip().splitlines()[-1:]}"
    sys.path.insert(0, str(folder))
    finder = _Absent()
    sys.meta_path.append(finder)
    try:
        container = importlib.import_module("verl.protocol").DataProto
    except Exception as error:  # noqa: BLE001 (whatever its import raises, the comparison is left out and says so)
        return f"verl {VERSION} could not be imported: {type(error).__name__}: {error}"
    finally:
        sys.meta_path.remove(finder)
    return container
