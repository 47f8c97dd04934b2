"""The lines below "Install" in the README, run as they are: from a clone of this repository, into a new project."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.readme_command import README, section
from tools.uv import uv_executable
from tools.workspace import ROOT, declared_siblings, read_workspace

pytestmark = [pytest.mark.installs, pytest.mark.timeout(900)]

PACKAGES = read_workspace()
BLOCKS: list[str] = re.findall(
    r"^```bash\n(.*?)^```$", section(README.read_text("utf-8"), "Install"), re.MULTILINE | re.DOTALL
)


def shell(command: str, folder: Path) -> str:
    """What a line prints, run by bash in a folder with a .venv of its own, our uv first on the PATH."""
    if not (folder / ".venv").exists():
        base = Path(sys.base_prefix) / "bin" / "python3"
        subprocess.run([uv_executable(), "venv", "-q", "--python", base, folder / ".venv"], check=True, timeout=60)
    left_out = {"VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment["PATH"] = os.pathsep.join((str(Path(uv_executable()).parent), environment["PATH"]))
    answer = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert answer.returncode == 0, f"{command}\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of what is committed."""
    folder = tmp_path_factory.mktemp("clone") / "fanfold"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True, timeout=120)
    return folder


def installed(project: Path) -> set[str]:
    """Which of our packages an environment holds."""
    names = shell("uv pip list --format=freeze", project)
    return {line.split(" ")[0].split("=")[0] for line in names.splitlines() if line.startswith("fanfold-")}


def expected(name: str) -> set[str]:
    return {PACKAGES[each].distribution for each in (name, *declared_siblings(PACKAGES, name))}


def test_there_is_a_line_for_each_package() -> None:
    named = re.findall(r"#subdirectory=packages/(\w+)'", BLOCKS[0])

    assert sorted(named) == sorted(PACKAGES)


@pytest.mark.parametrize("line", BLOCKS[0].splitlines(), ids=lambda line: line.split()[2].strip("'"))
def test_a_package_from_git(line: str, clone: Path, tmp_path: Path) -> None:
    shell("uv init -q --bare --name trial", tmp_path)

    shell(line.replace("<this repository>", f"file://{clone}"), tmp_path)

    (name,) = re.findall(r"packages/(\w+)'", line)
    assert installed(tmp_path) == expected(name)
    program = f"import fanfold.{name} as door; assert door.__all__; print(door.__file__)"
    assert str(tmp_path) in shell(f".venv/bin/python -c '{program}'", tmp_path)


def test_wheels_from_a_clone(clone: Path, tmp_path: Path) -> None:
    build, install = BLOCKS[1].splitlines()
    shell(build, clone)
    shell(install, clone)

    assert installed(clone) == expected("worker")
    assert len(list((clone / "dist").glob("*.whl"))) == len(PACKAGES)
