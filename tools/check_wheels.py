"""Look into built wheels: what must be in one, what must not, and whether an installation holds exactly that."""

import sys
import zipfile
from email.parser import Parser
from pathlib import Path

from tools.workspace import Package, read_workspace

FORBIDDEN_NAMES = ("__pycache__", "tests", "changelog.d", "bench")


def wheel_of(package: Package, folder: Path) -> Path:
    """The one wheel of a package in a folder.

    Raises:
        FileNotFoundError: there is none, or more than one.
    """
    pattern = f"{package.distribution.replace('-', '_')}-*.whl"
    found = sorted(folder.rglob(pattern))
    if len(found) != 1:
        raise FileNotFoundError(f"got {len(found)} files {pattern} below {folder}, expected exactly 1")
    return found[0]


def check_names(package: Package, names: list[str]) -> list[str]:
    """What is wrong with the file names in a wheel."""
    inside = f"fanfold/{package.name}/"
    metadata = f"{package.distribution.replace('-', '_')}-{package.version}.dist-info/"
    required = (f"{inside}__init__.py", f"{inside}py.typed", f"{metadata}licenses/LICENSE", f"{metadata}METADATA")
    faults = [f"lacks {name}" for name in required if name not in names]
    faults += [f"holds {name}" for name in names if not name.startswith((inside, metadata))]
    faults += [f"holds {name}" for name in names if set(Path(name).parts) & set(FORBIDDEN_NAMES)]
    return faults


def check_metadata(package: Package, text: str) -> list[str]:
    """What is wrong with the METADATA of a wheel: version, licence, README, requirements."""
    message = Parser().parsestr(text)
    expected = {
        "Name": package.distribution,
        "Version": package.version,
        "License-Expression": "Apache-2.0",
        "Description-Content-Type": "text/markdown",
    }
    faults = [
        f"{key} is {message[key]!r}, expected {value!r}" for key, value in expected.items() if message[key] != value
    ]
    readme = (package.folder / "README.md").read_text(encoding="utf-8")
    if str(message.get_payload()).strip() != readme.strip():
        faults.append("the long description is not the README")
    if any("@" in requirement for requirement in message.get_all("Requires-Dist", [])):
        faults.append("requires something by address: an index would refuse it")
    return faults


def check_wheel(package: Package, wheel: Path) -> list[str]:
    """One line for each fault of one wheel, beginning with its file name."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        faults = check_names(package, names) + check_metadata(package, archive.read(metadata).decode())
    return [f"{wheel.name}: {fault}" for fault in faults]


def stale_files(wheel: Path, site_packages: Path) -> list[str]:
    """Files of a wheel that an installation lacks or holds with other content: an older wheel of the same version."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith(("/", "RECORD"))]
        return [
            name
            for name in names
            if not (site_packages / name).is_file() or (site_packages / name).read_bytes() != archive.read(name)
        ]


def main(folder: str) -> int:
    """Check the wheels of all packages in a folder; print the faults; 1 if there are any."""
    packages = read_workspace()
    faults = [fault for package in packages.values() for fault in check_wheel(package, wheel_of(package, Path(folder)))]
    print(
        "\n".join(faults)
        if faults
        else f"wheels: {len(packages)} looked into, nothing missing, nothing that does not belong"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
