"""Compare what the packages say about each other: every declared sibling range must admit the sibling's version."""

import re
import sys
from itertools import chain

from tools.workspace import Package, read_workspace, requirement_name

RANGE = re.compile(r"^(?P<name>[a-z-]+)(\[[a-z,-]+\])?>=(?P<low>\d+\.\d+(\.\d+)?),<(?P<high>\d+\.\d+(\.\d+)?)$")


def as_numbers(version: str) -> tuple[int, ...]:
    """`0.1` and `0.1.0` as the same comparable value."""
    numbers = [int(part) for part in version.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))


def check_sibling(package: Package, requirement: str, sibling: Package) -> str | None:
    """What is wrong with one declared sibling range, or None."""
    where = f"packages/{package.name}/pyproject.toml: {requirement!r}"
    match = RANGE.match(requirement)
    if match is None:
        return f"{where}: expected a range like '{sibling.distribution}>=0.1,<0.2', never == or an open end"
    if not as_numbers(match["low"]) <= as_numbers(sibling.version) < as_numbers(match["high"]):
        return f"{where} does not admit {sibling.distribution} {sibling.version}: widen the range or release in order"
    return None


def find_faults(packages: dict[str, Package]) -> list[str]:
    """One line for each sibling range that is malformed or does not admit the version in this tree."""
    by_distribution = {package.distribution: package for package in packages.values()}
    faults = []
    for package in packages.values():
        for requirement in chain(package.requirements, *package.extras.values()):
            sibling = by_distribution.get(requirement_name(requirement))
            if sibling is not None and sibling is not package:
                faults.append(check_sibling(package, requirement, sibling))
        if package.distribution != f"fanfold-{package.name}":
            faults.append(f"packages/{package.name} is called {package.distribution}, expected fanfold-{package.name}")
    return [fault for fault in faults if fault is not None]


def main() -> int:
    """Print versions and faults; 1 if there are any."""
    packages = read_workspace()
    print("versions: " + ", ".join(f"{package.distribution} {package.version}" for package in packages.values()))
    faults = find_faults(packages)
    print("\n".join(faults) if faults else "sibling ranges admit the versions in this tree")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
