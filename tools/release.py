"""Release one package: `python -m tools.release prepare dispatch 0.2.0`, and after commit and tag `... check dispatch`.

`prepare` refuses what would make a bad release, then sets the version and turns the fragments of changelog.d/ into a
section of CHANGELOG.md. `check` says whether what is checked out is that release. Neither commits, tags or uploads.
"""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tools.check_versions import as_numbers, find_faults
from tools.workspace import ROOT, Package, read_package, read_workspace

VERSION = re.compile(r"\d+\.\d+\.\d+")
USAGE = "usage: python -m tools.release prepare PACKAGE VERSION\n       python -m tools.release check PACKAGE"


class ReleaseRefusedError(ValueError):
    """What keeps the release from being made, one fault a line."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


def tag_of(name: str, version: str) -> str:
    """The tag of a release: each package has its own line of tags."""
    return f"{name}-v{version}"


def git(root: Path, *arguments: str) -> str:
    """What a git command prints.

    Raises:
        subprocess.CalledProcessError: git failed; its words are on standard error.
    """
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


def tags(root: Path) -> set[str]:
    """All tags of the clone."""
    return set(git(root, "tag", "--list").split())


def fragments(package: Package) -> list[str]:
    """The names of the changelog fragments that wait for a release."""
    return sorted(path.name for path in (package.folder / "changelog.d").glob("*.md"))


def sibling_faults(root: Path, name: str, version: str) -> list[str]:
    """Sibling ranges in this tree that would not admit the new version."""
    packages = read_workspace(root)
    return find_faults(packages | {name: replace(packages[name], version=version)})


def faults_before(root: Path, name: str, version: str) -> list[str]:
    """Why a version of a package cannot be prepared; empty if it can."""
    if VERSION.fullmatch(version) is None:
        return [f"got version {version!r}, expected three numbers like 0.2.0"]
    package = read_package(root / "packages" / name)
    known = tags(root)
    faults = []
    if tag_of(name, version) in known:
        faults.append(f"{tag_of(name, version)} exists already: choose the next version")
    if as_numbers(version) < as_numbers(package.version):
        faults.append(f"{version} is older than {package.version} in packages/{name}/pyproject.toml")
    if version == package.version and tag_of(name, version) not in known and f"## {version} " in changelog(package):
        faults.append(f"{version} is prepared already: commit it and tag it {tag_of(name, version)}")
    if not fragments(package):
        faults.append(f"packages/{name}/changelog.d/ is empty: say what changed, in a file like faster-plan.changed.md")
    if changed := git(root, "status", "--porcelain").splitlines():
        faults.append(f"{len(changed)} files are not committed: a release is made from what is committed")
    return faults + sibling_faults(root, name, version)


def changelog(package: Package) -> str:
    """The text of a package's CHANGELOG.md."""
    return (package.folder / "CHANGELOG.md").read_text(encoding="utf-8")


def set_version(package: Package, version: str) -> None:
    """Write the version into pyproject.toml; nothing else changes there."""
    path = package.folder / "pyproject.toml"
    old, new = f'\nversion = "{package.version}"\n', f'\nversion = "{version}"\n'
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise ReleaseRefusedError([f"got {text.count(old)} lines {old.strip()} in {path}, expected exactly 1"])
    path.write_text(text.replace(old, new), encoding="utf-8")


def prepare(root: Path, name: str, version: str) -> str:
    """Set the version and write the changelog section; what to do next, in words.

    Raises:
        ReleaseRefusedError: something speaks against it; nothing was changed.
    """
    if faults := faults_before(root, name, version):
        raise ReleaseRefusedError(faults)
    package = read_package(root / "packages" / name)
    set_version(package, version)
    command = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", version]
    subprocess.run(command, check=True, cwd=package.folder, stdout=subprocess.DEVNULL, timeout=60)
    return "\n".join(
        [
            f"{package.distribution} {version} is prepared. Read `git diff HEAD`, then:",
            "  uv lock",
            f'  git commit -am "release: {package.distribution} {version}" && git tag {tag_of(name, version)}',
            f"  uv run python -m tools.release check {name}",
        ]
    )


def faults_after(root: Path, name: str) -> list[str]:
    """Why what is checked out is not a release of the package; empty if it is."""
    package = read_package(root / "packages" / name)
    tag = tag_of(name, package.version)
    faults = []
    if tag not in set(git(root, "tag", "--points-at", "HEAD").split()):
        faults.append(f"the commit that is checked out does not have the tag {tag}")
    if f"\n## {package.version} " not in changelog(package):
        faults.append(f"packages/{name}/CHANGELOG.md has no section for {package.version}")
    if waiting := fragments(package):
        faults.append(f"changelog.d/ still holds {', '.join(waiting)}")
    if changed := git(root, "status", "--porcelain").splitlines():
        faults.append(f"{len(changed)} files are not committed")
    return faults + find_faults(read_workspace(root))


def check(root: Path, name: str) -> str:
    """What to do next with a release that is in order, in words.

    Raises:
        ReleaseRefusedError: what is checked out is no release of the package.
    """
    if faults := faults_after(root, name):
        raise ReleaseRefusedError(faults)
    package = read_package(root / "packages" / name)
    files = f"dist/{package.distribution.replace('-', '_')}-{package.version}*"
    return "\n".join(
        [
            f"{package.distribution} {package.version} is in order:",
            f"  uv build --package {package.distribution} --out-dir dist",
            f"  uv publish {files}",
            f"  git push origin HEAD {tag_of(name, package.version)}",
        ]
    )


def act(arguments: list[str], root: Path) -> str | None:
    """Run one of the two commands; its words, or None where the command line is none of ours."""
    match arguments:
        case ["prepare", name, version] if name in read_workspace(root):
            return prepare(root, name, version)
        case ["check", name] if name in read_workspace(root):
            return check(root, name)
    return None


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Run a command line and print what it says; 2 for a wrong one, 1 for a refusal."""
    try:
        words = act(arguments, root)
    except ReleaseRefusedError as refusal:
        print(refusal, file=sys.stderr)
        return 1
    print(words or f"{USAGE}\npackages: {', '.join(read_workspace(root))}", file=sys.stdout if words else sys.stderr)
    return 0 if words else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
