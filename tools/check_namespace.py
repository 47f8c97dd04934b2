"""Refuse an __init__.py in the `fanfold` namespace: with one, whichever package is found first hides all others."""

import sys
from pathlib import Path

from tools.workspace import ROOT


def find_faults(root: Path) -> list[str]:
    """One line for each file or folder that breaks the namespace or the typing marker."""
    faults = []
    for source in sorted((root / "packages").glob("*/src")):
        name = source.parent.name
        places = (source / "__init__.py", source / "fanfold" / "__init__.py", source / "fanfold" / "__init__.pyi")
        faults += [
            f"{place.relative_to(root)}: `fanfold` is a PEP 420 namespace; remove this file"
            for place in places
            if place.exists()
        ]
        portions = sorted(path.name for path in (source / "fanfold").iterdir() if path.name != "__pycache__")
        if portions != [name]:
            faults.append(f"{source.relative_to(root)}/fanfold holds {portions}, expected only {[name]}")
        if not (source / "fanfold" / name / "py.typed").is_file():
            faults.append(
                f"{source.relative_to(root)}/fanfold/{name}/py.typed is missing: type checkers ignore the package"
            )
    return faults


def main() -> int:
    """Print the faults; 1 if there are any."""
    faults = find_faults(ROOT)
    print("\n".join(faults) if faults else "namespace: five portions, no __init__.py above them, all typed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
