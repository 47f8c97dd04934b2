"""Import each package in a fresh interpreter and look at what came along.

The import contracts read the source; this looks at what really happens, third-party packages included.
"""

import subprocess
import sys
from collections.abc import Collection

SIBLINGS = frozenset({"fanfold.dataproto", "fanfold.dispatch", "fanfold.megatron", "fanfold.ray", "fanfold.worker"})
HEAVY = frozenset({"megatron", "numpy", "ray", "tensordict", "torch"})

FORBIDDEN = {
    "fanfold.dispatch": HEAVY | SIBLINGS - {"fanfold.dispatch"},
    "fanfold.worker": HEAVY | SIBLINGS - {"fanfold.dispatch", "fanfold.worker"},
    "fanfold.dataproto": {"megatron", "ray"} | SIBLINGS - {"fanfold.dataproto"},
    "fanfold.ray": {"megatron", "tensordict", "torch"}
    | SIBLINGS - {"fanfold.dispatch", "fanfold.ray", "fanfold.worker"},
    "fanfold.megatron": {"ray", "fanfold.ray"},
}


def modules_after_import(module: str) -> frozenset[str]:
    """The names in `sys.modules` of a fresh interpreter once it has imported `module`.

    Raises:
        RuntimeError: the import failed; the text holds the interpreter's own.
    """
    program = f"import sys\nimport {module}\nprint('\\n'.join(sorted(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    if answer.returncode != 0:
        raise RuntimeError(f"`import {module}` failed in a fresh interpreter:\n{answer.stderr}")
    return frozenset(answer.stdout.split())


def find_intruders(module: str, forbidden: Collection[str]) -> list[str]:
    """Which of the forbidden modules `import module` brings along, sorted."""
    return sorted(modules_after_import(module) & frozenset(forbidden))


def main() -> int:
    """Print what each package must not bring and whether it does; 1 if one does."""
    status = 0
    for module, forbidden in FORBIDDEN.items():
        intruders = find_intruders(module, forbidden)
        status = 1 if intruders else status
        verdict = f"brings {', '.join(intruders)}" if intruders else "clean"
        print(f"import {module}: {verdict} (forbidden: {', '.join(sorted(forbidden))})")
    return status


if __name__ == "__main__":
    sys.exit(main())
