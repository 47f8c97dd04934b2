import shutil
import zipfile
from pathlib import Path

import pytest

from tools.check_wheels import check_wheel, stale_files, wheel_of
from tools.workspace import Package

METADATA = """\
Metadata-Version: 2.4
Name: fanfold-thing
Version: 0.1.0
License-Expression: Apache-2.0
Description-Content-Type: text/markdown
Requires-Dist: fanfold-other<0.2,>=0.1

# A thing
"""
CONTENT = {
    "fanfold/thing/__init__.py": "__all__: list[str] = []\n",
    "fanfold/thing/py.typed": "",
    "fanfold_thing-0.1.0.dist-info/METADATA": METADATA,
    "fanfold_thing-0.1.0.dist-info/licenses/LICENSE": "Apache",
    "fanfold_thing-0.1.0.dist-info/RECORD": "",
}


@pytest.fixture
def package(tmp_path: Path) -> Package:
    folder = tmp_path / "packages" / "thing"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("# A thing\n", encoding="utf-8")
    return Package("thing", folder, "fanfold-thing", "0.1.0", (), {}, {})


def write_wheel(folder: Path, content: dict[str, str]) -> Path:
    path = folder / "fanfold_thing-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return path


def test_a_good_wheel_has_no_fault(package: Package, tmp_path: Path) -> None:
    assert check_wheel(package, write_wheel(tmp_path, CONTENT)) == []


@pytest.mark.parametrize("name", ["fanfold/thing/py.typed", "fanfold_thing-0.1.0.dist-info/licenses/LICENSE"])
def test_a_missing_file_is_found(package: Package, tmp_path: Path, name: str) -> None:
    wheel = write_wheel(tmp_path, {key: text for key, text in CONTENT.items() if key != name})

    assert check_wheel(package, wheel) == [f"{wheel.name}: lacks {name}"]


@pytest.mark.parametrize("name", ["fanfold/__init__.py", "tests/test_a.py", "fanfold/other/__init__.py"])
def test_a_file_that_does_not_belong_is_found(package: Package, tmp_path: Path, name: str) -> None:
    wheel = write_wheel(tmp_path, CONTENT | {name: ""})

    assert f"{wheel.name}: holds {name}" in check_wheel(package, wheel)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("Version: 0.1.0", "Version: 0.0.9", "Version is '0.0.9', expected '0.1.0'"),
        ("# A thing", "# Another", "the long description is not the README"),
        (
            "fanfold-other<0.2,>=0.1",
            "fanfold-other @ file:///x",
            "requires something by address: an index would refuse it",
        ),
    ],
)
def test_wrong_metadata_is_found(package: Package, tmp_path: Path, old: str, new: str, fault: str) -> None:
    content = CONTENT | {"fanfold_thing-0.1.0.dist-info/METADATA": METADATA.replace(old, new)}
    wheel = write_wheel(tmp_path, content)

    assert check_wheel(package, wheel) == [f"{wheel.name}: {fault}"]


def test_an_installation_of_an_older_wheel_is_seen(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, CONTENT)
    site_packages = tmp_path / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages)
    assert stale_files(wheel, site_packages) == []

    (site_packages / "fanfold/thing/__init__.py").write_text("older", encoding="utf-8")
    (site_packages / "fanfold/thing/py.typed").unlink()

    assert stale_files(wheel, site_packages) == ["fanfold/thing/__init__.py", "fanfold/thing/py.typed"]


def test_none_or_two_wheels_are_refused(package: Package, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="got 0 files"):
        wheel_of(package, tmp_path)
    wheel = write_wheel(tmp_path, CONTENT)
    assert wheel_of(package, tmp_path) == wheel
    shutil.copy(wheel, wheel.with_name("fanfold_thing-0.0.9-py3-none-any.whl"))
    with pytest.raises(FileNotFoundError, match="got 2 files"):
        wheel_of(package, tmp_path)
