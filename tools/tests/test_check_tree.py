import subprocess
from pathlib import Path

import pytest

from tools.check_tree import faults_in_lock, faults_in_text, faults_of_place, find_faults
from tools.workspace import ROOT

# Taken apart, or this file would be found itself.
SLASH = "/"


def test_this_tree_has_no_fault() -> None:
    assert find_faults(ROOT) == []


@pytest.mark.parametrize("path", [f"{SLASH}root/.cache", f"{SLASH}home/someone/code"])
def test_a_path_of_one_machine_is_found(path: str) -> None:
    assert list(faults_in_text(f"first line\nsee {path} for more\n")) == [f"2: names a path of one machine: {path}"]


@pytest.mark.parametrize(
    "text",
    ["packages/worker/tests", "https://example.org/root/page", "~/work/tree", "$HOME/root/x", "/tmp/x", "/usr/bin/env"],
)
def test_what_is_no_path_of_one_machine(text: str) -> None:
    assert list(faults_in_text(text)) == []


@pytest.mark.parametrize("setting", ["index-url", "extra-index-url", "find-links"])
def test_a_package_index_is_found(setting: str) -> None:
    assert list(faults_in_text(f"[tool.uv]\n{setting} = 'x'\n")) == [
        "0: sets a package index; users and their machines choose their own",
    ]


def test_a_lock_file_against_another_index_is_found() -> None:
    text = 'source = { registry = "https://mirror.example/simple" }\nurl = "https://files.pythonhosted.org/x.whl"\n'

    assert list(faults_in_lock(text)) == ["0: locked against mirror.example; lock against the public index"]


def test_only_tracked_files_are_looked_at(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    path = f"{SLASH}root/secret"
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "tracked.md").write_text(path, encoding="utf-8")
    (docs / "other.md").write_text(path, encoding="utf-8")
    (docs / "big.bin").write_bytes(bytes(1_000_001))
    subprocess.run(["git", "-C", str(tmp_path), "add", "docs/tracked.md", "docs/big.bin"], check=True)

    assert find_faults(tmp_path) == [
        "docs/big.bin:0: 1000001 bytes; at most 1000000 in the repository",
        f"docs/tracked.md:1: names a path of one machine: {path}",
    ]


@pytest.mark.parametrize(
    "path",
    ["README.md", "tools/x.py", "packages/worker/changelog.d/.gitkeep", "packages/ray/changelog.d/a-b2.added.md"],
)
def test_a_file_in_its_place(path: str) -> None:
    assert list(faults_of_place(path)) == []


@pytest.mark.parametrize(
    "path", ["scratch.py", "notes/x.md", "packages/ray/changelog.d/a.md", "packages/ray/changelog.d/a.feature.md"]
)
def test_a_file_out_of_place(path: str) -> None:
    assert len(list(faults_of_place(path))) == 1
