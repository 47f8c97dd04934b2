import sys
from pathlib import Path

from tools.interpreters import candidates, default_version, find_interpreter, version_of

RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


def executable(path: Path, answer: str, status: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {answer}\nexit {status}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_pyenv_versions_are_found_newest_first(tmp_path: Path) -> None:
    for version in ("3.9.2", "3.9.18", "3.10.1"):
        executable(tmp_path / "versions" / version / "bin" / f"python{version.rpartition('.')[0]}", "3.9")

    found = list(candidates("3.9", {"PYENV_ROOT": str(tmp_path), "PATH": ""}))

    assert found == [tmp_path / "versions/3.9.18/bin/python3.9", tmp_path / "versions/3.9.2/bin/python3.9"]


def test_pyenv_is_looked_for_in_the_home_folder(tmp_path: Path) -> None:
    path = executable(tmp_path / ".pyenv/versions/3.9.1/bin/python3.9", "3.9")

    assert find_interpreter("3.9", {"HOME": str(tmp_path), "PATH": ""}) == path


def test_a_shim_that_refuses_is_passed_over_for_the_python3_that_runs(tmp_path: Path) -> None:
    executable(tmp_path / "python3.9", "shim", status=127)
    real = executable(tmp_path / "python3", "3.9")

    assert find_interpreter("3.9", {"HOME": str(tmp_path), "PATH": str(tmp_path)}) == real


def test_another_version_under_the_right_name_is_passed_over(tmp_path: Path) -> None:
    executable(tmp_path / "python3.9", "3.8")

    assert find_interpreter("3.9", {"HOME": str(tmp_path), "PATH": str(tmp_path)}) is None


def test_the_version_of_the_running_python() -> None:
    assert version_of(Path(sys.executable)) == RUNNING


def test_what_is_not_there_has_no_version(tmp_path: Path) -> None:
    assert version_of(tmp_path / "python") is None


def test_the_running_python_is_the_default_if_it_is_supported() -> None:
    assert default_version({"3.0": Path("a"), RUNNING: Path("b")}) == RUNNING
    assert default_version({"3.0": Path("a")}) == "3.0"
    assert default_version({}) == "3.11"
