from pathlib import Path

import pytest

from tools.check_namespace import find_faults
from tools.workspace import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    portion = tmp_path / "packages/thing/src/fanfold/thing"
    portion.mkdir(parents=True)
    (portion / "py.typed").touch()
    (portion / "__init__.py").touch()
    return tmp_path


def test_this_tree_has_no_fault() -> None:
    assert find_faults(ROOT) == []


def test_a_clean_tree_has_no_fault(tree: Path) -> None:
    assert find_faults(tree) == []


@pytest.mark.parametrize("name", ["__init__.py", "fanfold/__init__.py"])
def test_an_init_file_above_the_portion_is_found(tree: Path, name: str) -> None:
    (tree / "packages/thing/src" / name).touch()

    assert f"packages/thing/src/{name}: `fanfold` is a PEP 420 namespace; remove this file" in find_faults(tree)


def test_a_second_portion_is_found(tree: Path) -> None:
    (tree / "packages/thing/src/fanfold/other").mkdir()

    assert find_faults(tree) == ["packages/thing/src/fanfold holds ['other', 'thing'], expected only ['thing']"]


def test_a_missing_marker_is_found(tree: Path) -> None:
    (tree / "packages/thing/src/fanfold/thing/py.typed").unlink()

    assert find_faults(tree) == [
        "packages/thing/src/fanfold/thing/py.typed is missing: type checkers ignore the package",
    ]
