# ruff: noqa: INP001, S603  a part of a script that fetches a wheel
"""verl's single controller for the comparison: from the package registry, without its dependencies.

verl imports far more than its controller needs, in the driver and in every rank. What is not installed here is stood in
for by empty modules, so that its own controller code runs as it is.
"""

import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "0.9.1"
UV = Path(__file__).resolve().parents[3] / ".uv" / "bin" / "uv"

STAND_IN = """
import importlib.abc as _abc, importlib.machinery as _machinery, sys as _sys
from types import ModuleType as _ModuleType


class _Nothing(_ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *_, **__: None})

    def __reduce_ex__(self, protocol):
        return _Nothing, (self.__name__,)


class _Absent(_abc.MetaPathFinder, _abc.Loader):
    def find_spec(self, fullname, path, target=None):
        own = {"verl", "torch_npu", "modelscope", "torch", "fanfold", *_sys.stdlib_module_names}
        if fullname.split(".", 1)[0] in own or (fullname.startswith("ray.") and "experimental" not in fullname):
            return None
        return _machinery.ModuleSpec(fullname, self, is_package=True) if _is_asked_by_verl() else None

    def create_module(self, spec):
        return _Nothing(spec.name)

    def exec_module(self, module):
        pass


def _is_asked_by_verl():
    # Others know what to do without a package that is not there.
    frame = _sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name.split(".")[0] not in ("importlib", "_frozen_importlib", "_frozen_importlib_external"):
            return name.split(".")[0] == "verl"
        frame = frame.f_back
    return False


_absent = _Absent()
_sys.meta_path.append(_absent)
"""


END = """
import verl.single_controller.ray.base

_sys.meta_path.remove(_absent)
for _name in [name for name, module in _sys.modules.items() if isinstance(module, _Nothing)]:
    del _sys.modules[_name]  # others ask whether it is there
"""


def prepare(folder: Path) -> str:
    """Install verl into `folder`, ready to be imported from there; returns why not, or nothing."""
    if not (folder / "verl").exists():
        found = shutil.which("uv") or (str(UV) if UV.exists() else None)
        # Copies and no cache: uv links the files of a folder to its cache, and one of them is written to below.
        by_uv = [str(found), "pip", "install", "--no-cache", "--link-mode=copy", "--python", sys.executable]
        command = by_uv if found else [sys.executable, "-m", "pip"]
        done = subprocess.run(
            [*command, *([] if found else ["install"]), "--no-deps", "--target", str(folder), f"verl=={VERSION}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return f"verl {VERSION} could not be installed: {done.stderr.strip().splitlines()[-1:]}"
    door = folder / "verl" / "__init__.py"
    text = door.read_text(encoding="utf-8")
    if "_Absent" not in text:
        door.write_text(STAND_IN + text + END, encoding="utf-8")
    return ""
