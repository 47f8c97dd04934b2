"""Find the Pythons of this machine: on the PATH and among pyenv's, without asking anything to download one."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.workspace import PYTHONS


def _pyenv_versions(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("PYENV_ROOT") or Path(environment.get("HOME", "/")) / ".pyenv") / "versions"


def _patch_number(folder: Path) -> int:
    match = re.fullmatch(r"\d+\.\d+\.(\d+)", folder.name)
    return int(match.group(1)) if match else -1


def candidates(version: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Paths that may be a Python of this minor version, the likeliest first."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        yield Path(sys.base_prefix) / "bin" / f"python{version}"
    folders = sorted(_pyenv_versions(environment).glob(f"{version}.*"), key=_patch_number, reverse=True)
    yield from (folder / "bin" / f"python{version}" for folder in folders)
    for command in (f"python{version}", "python3"):
        if found := shutil.which(command, path=environment.get("PATH")):
            yield Path(found)


def version_of(executable: Path) -> str | None:
    """The minor version that an executable says it is, or None where it does not run.

    A pyenv shim lies on the PATH for each installed version and refuses to run the ones that are not selected.
    """
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run([executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)
    except OSError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def find_interpreter(version: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """A Python of this minor version that runs, or None."""
    return next((path for path in candidates(version, environment) if version_of(path) == version), None)


def find_interpreters(environment: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """The supported Pythons of this machine by minor version; the missing ones are left out."""
    found = {version: find_interpreter(version, environment) for version in PYTHONS}
    return {version: path for version, path in found.items() if path is not None}


def default_version(found: Mapping[str, Path]) -> str:
    """The Python of the daily checks: the one that runs this if it is supported, else the oldest that is here."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if running in found:
        return running
    return next(iter(found), PYTHONS[0])
