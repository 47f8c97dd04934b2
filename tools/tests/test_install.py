"""The lines below "Install" in the README, run as they are: from a clone of this repository, into a new project."""

import re
import subprocess
from pathlib import Path

import pytest

from tools.pages import blocks_that_run_in, give_environment, shell
from tools.readme_command import README
from tools.workspace import ROOT, declared_siblings, read_workspace

pytestmark = [pytest.mark.installs, pytest.mark.timeout(900)]

PACKAGES = read_workspace()
FROM_GIT, FROM_WHEELS = blocks_that_run_in(README, "tools/tests/test_install.py")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of what is committed."""
    folder = tmp_path_factory.mktemp("clone") / "fanfold"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True, timeout=120)
    return folder


def installed(folder: Path) -> set[str]:
    """Which of our packages the environment of a folder holds."""
    names = shell("uv pip list --format=freeze", folder)
    return {line.split(" ")[0].split("=")[0] for line in names.splitlines() if line.startswith("fanfold-")}


def expected(name: str) -> set[str]:
    return {PACKAGES[each].distribution for each in (name, *declared_siblings(PACKAGES, name))}


def test_there_is_a_line_for_each_package() -> None:
    assert sorted(re.findall(r"#subdirectory=packages/(\w+)'", FROM_GIT)) == sorted(PACKAGES)


@pytest.mark.parametrize("line", FROM_GIT.splitlines(), ids=lambda line: line.split()[2].strip("'"))
def test_a_package_from_git(line: str, clone: Path, tmp_path: Path) -> None:
    give_environment(tmp_path)
    shell("uv init -q --bare --name trial", tmp_path)

    shell(line.replace("<this repository>", f"file://{clone}"), tmp_path)

    (name,) = re.findall(r"packages/(\w+)'", line)
    assert installed(tmp_path) == expected(name)
    program = f"import fanfold.{name} as door; assert door.__all__; print(door.__file__)"
    assert str(tmp_path) in shell(f".venv/bin/python -c '{program}'", tmp_path)


def test_wheels_from_a_clone(clone: Path) -> None:
    give_environment(clone)

    shell(FROM_WHEELS, clone)

    assert installed(clone) == expected("worker")
    assert len(list((clone / "dist").glob("*.whl"))) == len(PACKAGES)
