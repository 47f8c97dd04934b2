"""The checks of fanfold. `nox` runs the starred ones: all that must pass before a change lands.

nox -s lint types boundaries        while you write: a minute
nox -t dispatch                     the tests of one package, on every Python that is here
nox -s "tests(worker-3.12)" -- -x   what follows -- goes to pytest
nox -s bench -- dispatch            the measurements of one package

Everything is installed below .venv and .nox of this clone. Pythons are looked for on the PATH and among pyenv's.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tools.check_wheels import stale_files, wheel_of  # noqa: E402 (the line above makes `tools` importable)
from tools.interpreters import default_version, find_interpreters  # noqa: E402
from tools.uv import uv_executable  # noqa: E402
from tools.workspace import PYTHONS, declared_siblings, read_workspace  # noqa: E402

PACKAGES = read_workspace(ROOT)
FOUND = find_interpreters()
DEFAULT = default_version(FOUND)
ON_EVERY_PYTHON = ("dispatch", "worker")
WORK = ROOT / ".nox"
UV = uv_executable()

# Nothing of the caller's Python may reach an environment. One thread each: on a small machine, ranks that all start a
# thread pool as wide as the machine spend their time waiting for each other. Bytecode is kept, also where a caller or a
# container image turned that off: each rank would compile torch anew, which takes longer than to import it.
CLEAN: Mapping[str, str | None] = {
    "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    "PYTHONDONTWRITEBYTECODE": None,
    "PYTHONHOME": None,
    "PYTHONPATH": None,
    "UV_PYTHON": None,
    "VIRTUAL_ENV": None,
}


def matrix(packages: Iterable[str], pythons: Iterable[str]) -> list[tuple[str, str]]:
    """Each package on each Python, package by package."""
    versions = tuple(pythons)
    return [(package, version) for package in packages for version in versions]


def named(pairs: list[tuple[str, str]], *, tagged: bool = False) -> list[nox.param]:
    """The pairs as parameters called `dispatch-3.11`."""
    return [nox.param(*pair, id="-".join(pair), tags=[pair[0]] if tagged else []) for pair in pairs]


DAILY_TESTS = [
    *matrix(ON_EVERY_PYTHON, FOUND or [DEFAULT]),
    *matrix([name for name in PACKAGES if name not in ON_EVERY_PYTHON], [DEFAULT]),
]

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "none"  # uv makes the environments below, so that several sessions can share one
nox.options.sessions = [
    *("pythons", "lint", "types", "boundaries"),
    *(f"tests({package}-{version})" for package, version in DAILY_TESTS),
    *("wheels", "docs", "integration"),
]


def run(session: nox.Session, *command: str | Path, cwd: Path = ROOT, env: Mapping[str, str | None] = CLEAN) -> None:
    """Run a command in a folder, with a clean environment."""
    with session.chdir(cwd) if cwd != ROOT else nullcontext():
        session.run(*map(str, command), env={**CLEAN, **env}, external=True)


def passes(session: nox.Session, *command: str | Path, env: Mapping[str, str | None] = CLEAN) -> bool:
    """Run a command; false where it fails, so that what comes after it is still looked at."""
    try:
        run(session, *command, env=env)
    except CommandFailed:
        return False
    return True


# Environments.


def python_argument(session: nox.Session, version: str) -> str:
    """What `uv --python` gets for a version: the interpreter found here. A missing one skips the session.

    Where no supported Python was found at all, uv is asked for the default one: it may be able to download it.
    """
    if version not in FOUND and FOUND:
        session.skip(f"no Python {version} on this machine (PATH and pyenv); install it to run this")
    return str(FOUND.get(version, version))


def sync(session: nox.Session, folder: Path, *selection: str) -> Path:
    """An environment that holds what uv.lock says of the selection; its bin folder."""
    python = python_argument(session, DEFAULT)
    run(
        session,
        UV,
        "sync",
        "-q",
        "--locked",
        *selection,
        "--python",
        python,
        env={"UV_PROJECT_ENVIRONMENT": str(folder)},
    )
    return folder / "bin"


def dev_tools(session: nox.Session) -> Path:
    """The development tools alone: there in seconds, in a clone that has nothing yet."""
    return sync(session, WORK / "dev", "--only-group", "dev")


def everything(session: nox.Session) -> Path:
    """The environment of a developer, .venv: all packages editable, all extras, all groups."""
    return sync(session, ROOT / ".venv", "--all-packages", "--all-extras", "--all-groups")


def fresh(session: nox.Session, name: str, version: str) -> Path:
    """A new empty environment; its bin folder."""
    folder = WORK / name
    run(session, UV, "venv", "-q", "--clear", "--python", python_argument(session, version), folder)
    return folder / "bin"


# Wheels.

BUILT: dict[str, Path] = {}


def wheel(session: nox.Session, name: str) -> Path:
    """The wheel of one package, built from its source distribution, once a run."""
    if name not in BUILT:
        folder = WORK / "wheels" / name
        shutil.rmtree(folder, ignore_errors=True)
        run(session, UV, "build", "-q", "--out-dir", folder, PACKAGES[name].folder)
        BUILT[name] = wheel_of(PACKAGES[name], folder)
    return BUILT[name]


def install_alone(
    session: nox.Session, bin_folder: Path, name: str, *options: str, groups: tuple[str, ...] = ()
) -> None:
    """Install the wheels of a package and of its declared siblings, and what options and groups add; nothing else.

    The wheels are given by path, and what was installed is compared with them: the version stays the same from build to
    build, and a cached older wheel of that version would be taken without a word.
    """
    wheels = {each: wheel(session, each) for each in (name, *declared_siblings(PACKAGES, name, *groups))}
    added = [f"--group={PACKAGES[name].folder}/pyproject.toml:{group}" for group in groups]
    refresh = [f"--refresh-package={PACKAGES[each].distribution}" for each in wheels]
    command: tuple[str | Path, ...] = (
        UV,
        "pip",
        "install",
        "-q",
        "--no-sources",
        "--python",
        bin_folder / "python",
        *refresh,
    )
    run(session, *command, *wheels.values(), *options, *added)
    (site_packages,) = bin_folder.parent.glob("lib/python*/site-packages")
    stale = [file for path in wheels.values() for file in stale_files(path, site_packages)]
    if stale:
        session.error(f"the installation does not hold the wheels built a moment ago: {', '.join(stale)}")


@contextmanager
def outside_the_tree(name: str) -> Iterator[Path]:
    """A folder far from src with what the tests of a package may read: tests, README, docs, pytest's configuration."""
    folder = PACKAGES[name].folder
    with tempfile.TemporaryDirectory(prefix=f"fanfold-{name}-") as temporary:
        copy = Path(temporary) / name
        shutil.copytree(folder / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        if (folder / "docs").is_dir():
            shutil.copytree(folder / "docs", copy / "docs")
        shutil.copy(folder / "README.md", copy)
        shutil.copy(folder / "pyproject.toml", copy)
        yield copy


def run_tests_alone(session: nox.Session, bin_folder: Path, name: str) -> None:
    """The tests of a package against what is installed."""
    path = os.pathsep.join((str(bin_folder), os.environ["PATH"]))
    with outside_the_tree(name) as copy:
        command: tuple[str | Path, ...] = (
            bin_folder / "python",
            "-P",
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            *session.posargs,
        )
        run(session, *command, cwd=copy, env={"PATH": path, "VIRTUAL_ENV": str(bin_folder.parent)})


# Sessions.


@nox.session
def pythons(session: nox.Session) -> None:
    """Say which Pythons are here, which are missing, and which one the checks use."""
    for version in PYTHONS:
        session.log(f"Python {version}: {FOUND.get(version, 'MISSING, its sessions are skipped')}")
    session.log(f"the checks use {DEFAULT}; uv is {UV}")


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff's rules and format, and the spelling."""
    tools = dev_tools(session)
    commands = (("ruff", "check"), ("ruff", "format", "--check"), ("codespell",))
    failed = [command for command, *rest in commands if not passes(session, tools / command, *rest)]
    if failed:
        session.error(
            f"{', '.join(dict.fromkeys(failed))} found faults; `ruff check --fix` and `ruff format` mend many"
        )


@nox.session
def types(session: nox.Session) -> None:
    """Strict mypy over sources and tests of everything, one package at a time."""
    mypy = everything(session) / "mypy"
    paths = [(f"packages/{name}",) for name in PACKAGES] + [("integration",), ("tools", "docs", "noxfile.py")]
    failed = [
        some
        for some in paths
        if not passes(session, mypy, *some, *session.posargs, env={"MYPYPATH": f"{some[0]}/tests:{some[0]}/bench"})
    ]
    if failed:
        session.error(f"mypy found faults in {', '.join(path for some in failed for path in some)}")


@nox.session
def boundaries(session: nox.Session) -> None:
    """The directions of imports, the namespace, the sibling versions, the tree; and the tests of tools/."""
    tools = everything(session)
    run(session, tools / "lint-imports", "--no-logo", "--no-cache", "pyproject.toml", "tools/cycles.toml")
    for check in ("namespace", "versions", "imports", "tree"):
        run(session, tools / "python", "-m", f"tools.check_{check}")
    run(session, tools / "pytest", "tools", "-m", "not installs", *session.posargs)


@nox.session
@nox.parametrize(("package", "version"), named(matrix(PACKAGES, PYTHONS), tagged=True))
def tests(session: nox.Session, package: str, version: str) -> None:
    """Test one package alone: its wheel, its declared siblings' wheels, its test group, outside src."""
    bin_folder = fresh(session, f"tests-{package}-{version}", version)
    install_alone(session, bin_folder, package, groups=("test",))
    run_tests_alone(session, bin_folder, package)


@nox.session
@nox.parametrize(("package", "version"), named(matrix(PACKAGES, (PYTHONS[0], PYTHONS[-1]))))
def lowest(session: nox.Session, package: str, version: str) -> None:
    """Test one package alone with the lowest versions of what it requires."""
    bin_folder = fresh(session, f"lowest-{package}-{version}", version)
    names = (package, *declared_siblings(PACKAGES, package, "test"))
    projects = [f"--requirements={PACKAGES[name].folder}/pyproject.toml" for name in names]
    install_alone(
        session, bin_folder, package, "--resolution=lowest-direct", "--all-extras", *projects, groups=("test",)
    )
    run(session, UV, "pip", "list", "--python", bin_folder / "python")
    run_tests_alone(session, bin_folder, package)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build all wheels, look into them, install each alone and import it; install from a clone as the README says."""
    for name in PACKAGES:
        wheel(session, name)
    tools = everything(session)
    run(session, tools / "python", "-m", "tools.check_wheels", WORK / "wheels")
    for name, package in PACKAGES.items():
        bin_folder = fresh(session, f"wheels-{name}", DEFAULT)
        install_alone(session, bin_folder, name)
        program = (
            f"import {package.module} as door; print(door.__name__, len(door.__all__), 'names from', door.__file__)"
        )
        run(session, bin_folder / "python", "-P", "-c", program)
    run(session, tools / "pytest", "tools", "-m", "installs", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build docs/ with warnings as errors, and run every code block of the pages and of the README."""
    tools = everything(session)
    output = ROOT / "docs" / "_build" / "html"
    run(session, tools / "sphinx-build", "-W", "--keep-going", "-q", "-E", "-b", "html", "docs", output)
    session.log(f"built {output}/index.html")
    run(session, tools / "pytest", "docs", *session.posargs)


@nox.session
def integration(session: nox.Session) -> None:
    """The packages together: detached Megatron training on a local Ray cluster, and what can go wrong there."""
    run(session, everything(session) / "pytest", "integration", *session.posargs)


@nox.session
def integration_gpu(session: nox.Session) -> None:
    """The detached flow on real GPUs; says aloud that it skipped where there are none."""
    run(session, everything(session) / "python", "integration/gpu/run.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure: `nox -s bench -- dataproto` runs packages/dataproto/bench/*.py, `-- plane` one of them; no name all."""
    python = everything(session) / "python"
    scripts = {name: sorted((package.folder / "bench").glob("[!_]*.py")) for name, package in PACKAGES.items()}
    known = {script.stem: [script] for found in scripts.values() for script in found} | scripts
    names = [name for name in session.posargs if name in known] or list(PACKAGES)
    options = [argument for argument in session.posargs if argument not in known]
    chosen = list(dict.fromkeys(script for name in names for script in known[name]))
    if not chosen:
        session.error(f"no bench/*.py in {', '.join(names)}")
    for script in chosen:
        run(session, python, script, *options)


@nox.session
def deep(session: nox.Session) -> None:
    """Property tests with 3,000 examples each, and what is marked slow: `nox -s deep -- dispatch`; no name runs all."""
    python = everything(session) / "python"
    names = [name for name in session.posargs if name in PACKAGES] or list(PACKAGES)
    options = [argument for argument in session.posargs if argument not in PACKAGES]
    profile = ("-p", "tools.hypothesis_profiles", "--hypothesis-profile=deep")
    for name in names:
        has_slow = "slow:" in (PACKAGES[name].folder / "pyproject.toml").read_text(encoding="utf-8")
        chosen = ("-m", "hypothesis or slow" if has_slow else "hypothesis", "--timeout=3600")
        run(
            session,
            python,
            "-m",
            "pytest",
            *profile,
            *chosen,
            *options,
            cwd=PACKAGES[name].folder,
            env={"PYTHONPATH": str(ROOT)},
        )


@nox.session
def chaos(session: nox.Session) -> None:
    """Somebody dies at 200 random moments, 50 groups start at once, 10,000 calls leave no memory: most of an hour."""
    settings = {"FANFOLD_CHAOS_ROUNDS": "200", "FANFOLD_MANY_GROUPS": "50", "FANFOLD_SOAK_CALLS": "10000"}
    names = [f"tests/test_{name}.py" for name in ("chaos", "many_groups", "soak")]
    pytest = everything(session) / "pytest"
    run(session, pytest, "--timeout=1800", *names, *session.posargs, cwd=PACKAGES["ray"].folder, env=settings)
