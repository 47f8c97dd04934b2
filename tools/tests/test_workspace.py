from pathlib import Path

import pytest

from tools.workspace import Package, declared_siblings, read_package, read_workspace, requirement_name


def package(name: str, *requirements: str, **extras: tuple[str, ...]) -> Package:
    return Package(name, Path(name), f"fanfold-{name}", "0.1.0", requirements, extras, {})


def test_the_five_packages_and_their_declared_siblings() -> None:
    packages = read_workspace()

    assert {name: declared_siblings(packages, name) for name in packages} == {
        "dataproto": (),
        "dispatch": (),
        "megatron": ("dataproto", "dispatch", "worker"),
        "ray": ("dispatch", "worker"),
        "worker": ("dispatch",),
    }


def test_siblings_of_siblings_count_and_extras_do_not() -> None:
    packages = {
        "a": package("a", "fanfold-b>=0.1,<0.2", "torch>=2.6"),
        "b": package("b", "fanfold_c[fast]>=0.1,<0.2"),
        "c": package("c", more=("fanfold-d>=0.1,<0.2",)),
        "d": package("d"),
    }

    assert declared_siblings(packages, "a") == ("b", "c")


def test_siblings_of_a_group_count_where_the_group_is_asked_for() -> None:
    groups: dict[str, tuple[str, ...]] = {"test": ("fanfold-b[testing]", "pytest")}
    packages = {
        "a": Package("a", Path("a"), "fanfold-a", "0.1.0", (), {}, groups),
        "b": package("b", "fanfold-c"),
        "c": package("c"),
    }

    assert declared_siblings(packages, "a", "test") == ("b", "c")
    assert declared_siblings(packages, "a") == ()


def test_packages_that_require_each_other_end() -> None:
    packages = {"a": package("a", "fanfold-b"), "b": package("b", "fanfold-a")}

    assert declared_siblings(packages, "a") == ("b",)


def test_a_package_is_read_from_its_pyproject(tmp_path: Path) -> None:
    folder = tmp_path / "thing"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "fanfold-thing"\nversion = "1.2.3"\ndependencies = ["numpy>=2"]\n'
        '[project.optional-dependencies]\ncli = ["rich"]\n'
        '[dependency-groups]\ntest = ["pytest", {include-group = "other"}]\nother = []\n',
        encoding="utf-8",
    )

    found = read_package(folder)

    assert (found.name, found.distribution, found.version, found.module) == (
        "thing",
        "fanfold-thing",
        "1.2.3",
        "fanfold.thing",
    )
    assert found.requirements == ("numpy>=2",)
    assert found.extras == {"cli": ("rich",)}
    assert found.groups == {"test": ("pytest",), "other": ()}


@pytest.mark.parametrize(
    ("requirement", "name"),
    [
        ("numpy>=2.1; python_version >= '3.13'", "numpy"),
        ("Fanfold_Worker[testing]>=0.1,<0.2", "fanfold-worker"),
        ("fanfold-dispatch @ git+https://example.org/x", "fanfold-dispatch"),
    ],
)
def test_the_name_of_a_requirement(requirement: str, name: str) -> None:
    assert requirement_name(requirement) == name


def test_a_requirement_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="starts with a distribution name"):
        requirement_name(">=2")
