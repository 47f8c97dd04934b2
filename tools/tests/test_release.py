import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.release import ReleaseRefusedError, check, faults_after, faults_before, fragments, main, prepare
from tools.workspace import ROOT, read_package, read_workspace

Git = Callable[..., str]


def project(name: str, version: str, *requirements: str) -> str:
    text = (ROOT / "packages/dispatch/pyproject.toml").read_text(encoding="utf-8")
    towncrier = "\n[".join(part for part in text.split("\n[") if part.lstrip("[").startswith("tool.towncrier"))
    listed = ", ".join(f'"{requirement}"' for requirement in requirements)
    head = f'[project]\nname = "fanfold-{name}"\nversion = "{version}"\ndependencies = [{listed}]\n'
    return f"{head}\n[{towncrier}"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clean clone with two packages; `wide` requires `thin`, which has two fragments."""
    for name, requirements in (("thin", ()), ("wide", ("fanfold-thin>=0.1,<0.2",))):
        folder = tmp_path / "packages" / name
        (folder / "changelog.d").mkdir(parents=True)
        (folder / "pyproject.toml").write_text(project(name, "0.1.0", *requirements), encoding="utf-8")
        text = f"# Changelog of fanfold-{name}\n\n<!-- towncrier release notes start -->\n"
        (folder / "CHANGELOG.md").write_text(text, encoding="utf-8")
    waiting = tmp_path / "packages/thin/changelog.d"
    (waiting / "limit.fixed.md").write_text("A limit holds.\n", encoding="utf-8")
    (waiting / "explain.added.md").write_text("`explain` prints\nthe plan.\n", encoding="utf-8")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/changelog.md.jinja").write_bytes((ROOT / "tools/changelog.md.jinja").read_bytes())
    return tmp_path


@pytest.fixture
def git(tree: Path) -> Git:
    def run(*arguments: str) -> str:
        identity = ("-c", "user.name=Tester", "-c", "user.email=tester@example.org")
        command = ["git", "-C", str(tree), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    run("init", "-q")
    run("add", "-A")
    run("commit", "-qm", "start")
    return run


def test_a_release_from_fragments_to_tag(tree: Path, git: Git) -> None:
    words = prepare(tree, "thin", "0.1.1")

    folder = tree / "packages/thin"
    assert 'git commit -am "release: fanfold-thin 0.1.1" && git tag thin-v0.1.1' in words
    assert read_package(folder).version == "0.1.1"
    assert fragments(read_package(folder)) == []
    title, _, section = (folder / "CHANGELOG.md").read_text(encoding="utf-8").partition("release notes start -->\n")
    assert title.startswith("# Changelog of fanfold-thin")
    heading, _, body = section.strip().partition("\n")
    assert heading.startswith("## 0.1.1 (20")
    assert body == "\n### Added\n\n- `explain` prints\n  the plan.\n\n### Fixed\n\n- A limit holds."

    git("commit", "-qam", "release: fanfold-thin 0.1.1")
    assert faults_after(tree, "thin") == ["the commit that is checked out does not have the tag thin-v0.1.1"]
    git("tag", "thin-v0.1.1")
    assert "uv publish dist/fanfold_thin-0.1.1*" in check(tree, "thin")
    assert git("status", "--porcelain") == ""


def test_the_first_release_keeps_the_version(tree: Path, git: Git) -> None:
    prepare(tree, "thin", "0.1.0")
    git("commit", "-qam", "release")

    assert read_package(tree / "packages/thin").version == "0.1.0"
    assert "0.1.0 is prepared already: commit it and tag it thin-v0.1.0" in faults_before(tree, "thin", "0.1.0")


def test_a_version_that_a_sibling_does_not_admit_is_refused(tree: Path, git: Git) -> None:
    with pytest.raises(ReleaseRefusedError, match=r"does not admit fanfold-thin 0\.2\.0"):
        prepare(tree, "thin", "0.2.0")

    assert git("status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("name", "version", "fault"),
    [
        ("thin", "0.2", "got version '0.2', expected three numbers like 0.2.0"),
        ("thin", "0.0.9", "0.0.9 is older than 0.1.0 in packages/thin/pyproject.toml"),
        ("wide", "0.1.1", "packages/wide/changelog.d/ is empty"),
    ],
)
@pytest.mark.usefixtures("git")
def test_a_bad_release_is_refused_before_anything_changes(tree: Path, name: str, version: str, fault: str) -> None:
    found = faults_before(tree, name, version)

    assert found[0].startswith(fault)


def test_a_version_that_has_its_tag_is_refused(tree: Path, git: Git) -> None:
    git("tag", "thin-v0.1.1")

    assert faults_before(tree, "thin", "0.1.1") == ["thin-v0.1.1 exists already: choose the next version"]


def test_changes_that_are_not_committed_are_refused(tree: Path, git: Git) -> None:
    git("tag", "unrelated")
    (tree / "packages/thin/new.py").touch()

    assert faults_before(tree, "thin", "0.1.1") == [
        "1 files are not committed: a release is made from what is committed",
    ]


@pytest.mark.usefixtures("git")
def test_what_is_no_release_is_told_why(tree: Path) -> None:
    assert faults_after(tree, "thin") == [
        "the commit that is checked out does not have the tag thin-v0.1.0",
        "packages/thin/CHANGELOG.md has no section for 0.1.0",
        "changelog.d/ still holds explain.added.md, limit.fixed.md",
    ]


@pytest.mark.usefixtures("git")
def test_the_command_line(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "thin", "0.1.1"], tree) == 0
    assert "fanfold-thin 0.1.1 is prepared" in capsys.readouterr().out
    assert main(["check", "thin"], tree) == 1
    assert "does not have the tag thin-v0.1.1" in capsys.readouterr().err
    assert main(["prepare", "thick", "0.1.1"], tree) == 2
    assert "packages: thin, wide" in capsys.readouterr().err


def test_each_package_of_this_tree_has_the_same_changelog_settings() -> None:
    texts = [(package.folder / "pyproject.toml").read_text(encoding="utf-8") for package in read_workspace().values()]
    settings = [tomllib.loads(text)["tool"]["towncrier"] for text in texts]

    assert [setting.pop("name") for setting in settings] == [
        package.distribution for package in read_workspace().values()
    ]
    assert settings == [settings[0]] * 5
