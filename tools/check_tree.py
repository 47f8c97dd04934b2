"""Look for what does not belong into a public tree: paths of one machine, private indexes, big files."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.workspace import ROOT

MACHINE_PATH = re.compile(r"(?<![\w.~>}-])/(?:root|work|home/\w+|Users/\w+)/[\w.~-]+")
INDEX_SETTING = re.compile(r"^\s*(?:extra-)?(?:index-url|find-links|trusted-host)\s*=", re.MULTILINE)
LOCKED_SOURCE = re.compile(r'\b(?:registry|url) = "https?://([^/"]+)')
PUBLIC_HOSTS = frozenset({"pypi.org", "files.pythonhosted.org"})
LARGEST_FILE = 1_000_000
FRAGMENT = re.compile(r"packages/\w+/changelog\.d/(?:\.gitkeep|[a-z0-9-]+\.(?:added|changed|removed|fixed)\.md)")
TOP = frozenset(
    {
        *(".ci", ".gitignore", ".python-version", "CONTRIBUTING.md", "LICENSE", "README.md", "RELEASING.md", "docs"),
        *("integration", "noxfile.py", "packages", "pyproject.toml", "tools", "uv.lock"),
    }
)


def tracked_files(root: Path) -> list[Path]:
    """Files that git tracks and that are still there."""
    command = ["git", "-C", str(root), "ls-files", "-z"]
    names = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.decode().split("\0")
    return [root / name for name in names if name and (root / name).is_file()]


def faults_in_text(text: str) -> Iterator[str]:
    """What is wrong with the text of one file, in words that follow its name."""
    for number, line in enumerate(text.splitlines(), start=1):
        for match in MACHINE_PATH.finditer(line):
            yield f"{number}: names a path of one machine: {match.group()}"
    if INDEX_SETTING.search(text):
        yield "0: sets a package index; users and their machines choose their own"


def faults_in_lock(text: str) -> Iterator[str]:
    """Hosts in a lock file that only one machine or company reaches."""
    for host in sorted(set(LOCKED_SOURCE.findall(text)) - PUBLIC_HOSTS):
        yield f"0: locked against {host}; lock against the public index"


def faults_in_file(path: Path) -> Iterator[str]:
    """What is wrong with one tracked file."""
    content = path.read_bytes()
    if path.name == "uv.lock":
        yield from faults_in_lock(content.decode())
        return
    if len(content) > LARGEST_FILE:
        yield f"0: {len(content)} bytes; at most {LARGEST_FILE} in the repository"
    if b"\0" not in content:
        yield from faults_in_text(content.decode())


def faults_of_place(path: str) -> Iterator[str]:
    """What is wrong with where a file lies: at the top without being known there, or a misnamed changelog fragment."""
    top = path.split("/", maxsplit=1)[0]
    if top not in TOP:
        yield f"0: {top} is new at the top of the repository; put it into one of the folders there"
    if "/changelog.d/" in path and not FRAGMENT.fullmatch(path):
        yield "0: a changelog fragment is called like faster-plan.changed.md (added, changed, removed, fixed)"


def find_faults(root: Path) -> list[str]:
    """One line for each fault in the tracked files, `path:line: what`."""
    files = {str(path.relative_to(root)): path for path in tracked_files(root)}
    return [
        f"{name}:{fault}" for name, path in files.items() for fault in (*faults_of_place(name), *faults_in_file(path))
    ]


def main() -> int:
    """Print the faults; 1 if there are any."""
    faults = find_faults(ROOT)
    print("\n".join(faults) if faults else "tree: no path of one machine, no private index, no big file")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
