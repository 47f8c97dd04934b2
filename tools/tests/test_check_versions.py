from pathlib import Path

import pytest

from tools.check_versions import find_faults
from tools.workspace import Package, read_workspace


def package(name: str, *requirements: str, version: str = "0.1.0") -> Package:
    return Package(name, Path(name), f"fanfold-{name}", version, requirements, {}, {})


def faults(requirement: str, sibling_version: str) -> list[str]:
    return find_faults({"a": package("a", requirement), "b": package("b", version=sibling_version)})


def test_this_tree_has_no_fault() -> None:
    assert find_faults(read_workspace()) == []


@pytest.mark.parametrize("version", ["0.1.0", "0.1.9"])
def test_a_range_that_admits_the_sibling(version: str) -> None:
    assert faults("fanfold-b>=0.1,<0.2", version) == []


def test_a_sibling_that_ran_ahead() -> None:
    refusal = "does not admit fanfold-b 0.2.0: widen the range or release in order"

    assert faults("fanfold-b>=0.1,<0.2", "0.2.0") == [
        f"packages/a/pyproject.toml: 'fanfold-b>=0.1,<0.2' {refusal}",
    ]


def test_a_lower_bound_that_is_not_released() -> None:
    assert len(faults("fanfold-b>=0.1.5,<0.2", "0.1.4")) == 1


@pytest.mark.parametrize("requirement", ["fanfold-b", "fanfold-b==0.1.0", "fanfold-b>=0.1"])
def test_a_pin_or_an_open_end_is_refused(requirement: str) -> None:
    (fault,) = faults(requirement, "0.1.0")

    assert "expected a range like 'fanfold-b>=0.1,<0.2'" in fault


def test_an_extra_of_a_sibling_is_checked_too() -> None:
    packages = {
        "a": Package("a", Path("a"), "fanfold-a", "0.1.0", (), {"x": ("fanfold-b[y]==1",)}, {}),
        "b": package("b"),
    }

    assert len(find_faults(packages)) == 1


def test_a_distribution_with_another_name_is_found() -> None:
    wrong = Package("a", Path("a"), "fan-fold-a", "0.1.0", (), {}, {})

    assert find_faults({"a": wrong}) == ["packages/a is called fan-fold-a, expected fanfold-a"]
