"""Make wheels, without what is not needed here, of what a machine with a GPU and no network lacks.

    python integration/gpu/carry.py FOLDER [--there torch numpy ...] [--limit-mib 64]

Takes the distributions that fanfold needs from the environment it runs in, and leaves out those that the other machine
has and all that these need. There, with the same minor version of Python:

    pip install --no-index --no-deps FOLDER/*.whl
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path

from packaging.requirements import Requirement

NEEDED = ("ray", "megatron-core", "tensordict", "psutil", "safetensors", "rich")
# Parts that no driver or worker of fanfold imports; Ray's whole wheel alone is larger than many transfers may be.
UNUSED = re.compile(r"^ray/(jars|rllib|llm|serve|tune|dashboard/client)/|/__pycache__/")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--there", nargs="*", default=["torch", "numpy"], help="distributions the other machine has")
    parser.add_argument("--limit-mib", type=float, default=64.0, help="most that may be carried (default: %(default)s)")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    wheels = [pack(distribution(name), chosen.folder) for name in sorted(to_carry(NEEDED, chosen.there))]
    sizes = {wheel.name: wheel.stat().st_size / 2**20 for wheel in wheels}
    for name, mib in sizes.items():
        print(f"{mib:8.2f} MiB  {name}")
    print(f"{sum(sizes.values()):8.2f} MiB  of at most {chosen.limit_mib:g}")
    return int(sum(sizes.values()) > chosen.limit_mib)


def to_carry(names: Iterable[str], there: Iterable[str]) -> set[str]:
    """Return the distributions that are needed, and those these need, but for what is there already."""
    return closure(names) - closure(there)


def closure(names: Iterable[str]) -> set[str]:
    """Return the installed distributions that some need, themselves among them."""
    found: set[str] = set()
    waiting = [normal(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found and is_installed(name):
            found.add(name)
            waiting += list(requirements(distribution(name)))
    return found


def requirements(package: Distribution) -> Iterator[str]:
    """Name what a distribution needs on this machine, without its extras."""
    for text in package.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield normal(requirement.name)


def is_installed(name: str) -> bool:
    """Say whether a distribution is in this environment."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def normal(name: str) -> str:
    """Write a distribution's name as all tools do."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pack(package: Distribution, folder: Path) -> Path:
    """Make a wheel of an installed distribution."""
    information = next(file.parent for file in package.files or () if file.name == "METADATA")
    (tag, *_) = re.findall(r"^Tag: (.+)$", package.read_text("WHEEL") or "", re.MULTILINE)
    path = folder / f"{str(information).removesuffix('.dist-info')}-{tag}.whl"
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for file in kept(package, information):
            content = Path(str(file.locate())).read_bytes()
            wheel.writestr(zipped(file), content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.writerow([str(file), f"sha256={digest}", len(content)])
        rows.writerow([f"{information}/RECORD", "", ""])
        wheel.writestr(f"{information}/RECORD", record.getvalue(), zipfile.ZIP_DEFLATED)
    return path


def zipped(file: PackagePath) -> zipfile.ZipInfo:
    """Say how a file is kept: compressed, and as executable as it is."""
    about = zipfile.ZipInfo(str(file))
    about.compress_type = zipfile.ZIP_DEFLATED
    about.external_attr = Path(str(file.locate())).stat().st_mode << 16
    return about


def kept(package: Distribution, information: object) -> Iterator[PackagePath]:
    """List the files of a distribution that are carried; its scripts are made anew where it is installed."""
    by_installer = {f"{information}/{name}" for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")}
    for file in package.files or ():
        outside = str(file).startswith("..")
        if not outside and str(file) not in by_installer and not UNUSED.search(str(file)):
            yield file


if __name__ == "__main__":
    sys.exit(main())
