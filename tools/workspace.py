"""What the pyproject.toml files say about the packages: names, versions, declared siblings."""

import re
import tomllib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")


@dataclass(frozen=True)
class Package:
    """One folder below packages/: `name` is the folder, `distribution` what pip installs, `module` what is imported."""

    name: str
    folder: Path
    distribution: str
    version: str
    requirements: tuple[str, ...]
    extras: dict[str, tuple[str, ...]]
    groups: dict[str, tuple[str, ...]]

    @property
    def module(self) -> str:
        """The import name, `fanfold.dispatch` for `dispatch`."""
        return f"fanfold.{self.name}"


def requirement_name(requirement: str) -> str:
    """The normalised distribution name at the start of a requirement."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    if match is None:
        raise ValueError(f"got {requirement!r}, expected a requirement that starts with a distribution name")
    return re.sub(r"[-_.]+", "-", match.group(1)).lower()


def _strings(table: dict[str, list[Any]]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(item for item in items if isinstance(item, str)) for key, items in table.items()}


def read_package(folder: Path) -> Package:
    """Read one package's pyproject.toml."""
    data = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    project = data["project"]
    return Package(
        name=folder.name,
        folder=folder,
        distribution=project["name"],
        version=project["version"],
        requirements=tuple(project.get("dependencies", ())),
        extras=_strings(project.get("optional-dependencies", {})),
        groups=_strings(data.get("dependency-groups", {})),
    )


def read_workspace(root: Path = ROOT) -> dict[str, Package]:
    """All packages by folder name, in alphabetical order."""
    folders = sorted(path.parent for path in (root / "packages").glob("*/pyproject.toml"))
    return {folder.name: read_package(folder) for folder in folders}


def declared_siblings(packages: dict[str, Package], name: str, *groups: str) -> tuple[str, ...]:
    """The packages that `name` declares, also in these of its groups, and those that they declare in turn.

    An installation of `name` alone may hold these and nothing else of the workspace; `name` itself is left out.
    """
    by_distribution = {package.distribution: package.name for package in packages.values()}
    own = packages[name]
    waiting = [*own.requirements, *chain.from_iterable(own.groups.get(group, ()) for group in groups)]
    found: set[str] = set()
    while waiting:
        sibling = by_distribution.get(requirement_name(waiting.pop()))
        if sibling is not None and sibling != name and sibling not in found:
            found.add(sibling)
            waiting.extend(packages[sibling].requirements)
    return tuple(sorted(found))
