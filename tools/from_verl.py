"""Move code that was written for verl's worker groups over to fanfold: its imports, and a list of what needs a look.

python tools/from_verl.py PATH ...            shows what would change, as a diff, and the places to look at
python tools/from_verl.py PATH ... --write    changes the files

A PATH is a Python file, or a folder with all below it. Names that fanfold has are imported from fanfold, others stay.
Nothing but imports is ever changed; formatting and comments stay.
"""

import argparse
import ast
import difflib
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that it starts as a script, from anywhere

from tools.verl_habits import BY_HAND, Finding, find_habits
from tools.verl_names import MODULES, NO_PLACE, STAY, WHOLE_MODULES

LINE_LENGTH = 120
SKIPPED = frozenset({"__pycache__", "build", "dist", "node_modules", "site-packages"})


@dataclass(frozen=True)
class Edit:
    """A statement that changes: from one offset of the text to another, the lines that take its place."""

    start: int
    stop: int
    lines: tuple[str, ...]


@dataclass
class Rewriting:
    """What becomes of one file."""

    old: str
    new: str
    statements: int = 0
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Source:
    """The text of a file, and where in it a place of its syntax tree is."""

    text: str
    lines: list[str]
    starts: list[int]

    @classmethod
    def of(cls, text: str) -> "Source":
        """Take a text apart; lines end where Python's parser ends them."""
        lines = io.StringIO(text, newline="").readlines()
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        return cls(text, lines, starts)

    def offset(self, line: int, column: int) -> int:
        """The offset of a place; columns of a syntax tree count the bytes of UTF-8."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.stmt) -> tuple[int, int]:
        """Where a statement begins and ends."""
        assert node.end_lineno is not None  # a parsed statement
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)


def rewrite(text: str, module: str = "", *, is_package: bool = False) -> Rewriting:
    """Rewrite the imports of a program and find what needs a look.

    Args:
        text: The program.
        module: Its dotted name, by which its relative imports are understood.
        is_package: Whether it is the `__init__` of that package.

    Raises:
        SyntaxError: It is no Python program.
    """
    source, tree = Source.of(text), ast.parse(text)
    done = Rewriting(text, text, findings=list(find_habits(tree)))
    package = module if is_package else module.rpartition(".")[0]
    edits = []
    for node in ast.walk(tree):
        lines: tuple[str, ...] | None = None
        if isinstance(node, ast.ImportFrom):
            lines = _from_import(node, _absolute(node, package), done.findings)
        elif isinstance(node, ast.Import):
            lines = _plain_import(node, done.findings)
        if lines is not None and isinstance(node, ast.stmt):
            start, stop = source.span(node)
            comments = _comments(text[start:stop])
            edits.append(Edit(start, stop, _laid_out(source, node, (*comments, *lines))))
    done.statements = len(edits)
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        done.new = done.new[: edit.start] + "".join(edit.lines) + done.new[edit.stop :]
    done.findings.sort()
    return done


def _absolute(node: ast.ImportFrom, package: str) -> str:
    parts = package.split(".") if package else []
    above = parts[: len(parts) - node.level + 1] if node.level and node.level <= len(parts) else []
    return ".".join(filter(None, [*above, node.module])) if node.level == 0 or above else ""


def _from_import(node: ast.ImportFrom, module: str, findings: list[Finding]) -> tuple[str, ...] | None:
    """The statements that take the place of `from module import names`; None where nothing changes."""
    homes: dict[str, list[str]] = {}
    left: list[ast.alias] = []
    for alias in node.names:
        home, name = _home_of(module, alias.name)
        if home is None:
            left.append(alias)
            findings.extend(_about_left(node.lineno, module, alias.name))
            continue
        homes.setdefault(home, []).append(_renamed(name, alias.asname or (alias.name if name != alias.name else None)))
    if not homes:
        return None
    stays = [(f"{'.' * node.level}{node.module or ''}", [_renamed(each.name, each.asname) for each in left])]
    return tuple(
        f"from {home} import {', '.join(sorted(names, key=str.lower))}"
        for home, names in [*sorted(homes.items()), *(stays if left else [])]
    )


def _home_of(module: str, name: str) -> tuple[str | None, str]:
    """Where a name of a module of verl lives now, and what it is called there."""
    if name in MODULES.get(module, {}):
        return MODULES[module][name], name
    whole = WHOLE_MODULES.get(f"{module}.{name}")
    if whole is not None:
        home, _, called = whole.rpartition(".")
        return home, called
    return None, name


def _about_left(line: int, module: str, name: str) -> Iterator[Finding]:
    full = f"{module}.{name}"
    if full in STAY or not (module in MODULES or full in MODULES):
        return
    if module == "verl" and full not in MODULES:
        return  # of the rest of verl nothing is said
    if module == "verl.utils.ray_utils" and name not in NO_PLACE:
        return
    if name == "*":
        advice = "name what is used; `*` brings verl's own classes, which do not mix with fanfold's"
    elif full in MODULES:
        advice = f"import the names themselves; they are in {', '.join(sorted(set(MODULES[full].values())))}"
    else:
        advice = NO_PLACE.get(name, "fanfold has no such name; it is still verl's own")
    yield Finding(line, BY_HAND, f"from {module} import {name}", advice)


def _plain_import(node: ast.Import, findings: list[Finding]) -> tuple[str, ...] | None:
    """The statements that take the place of `import module as name`; None where nothing changes."""
    lines, changed = [], False
    for alias in node.names:
        home = WHOLE_MODULES.get(alias.name)
        if home is not None and alias.asname is not None:
            lines.append(f"import {home} as {alias.asname}")
            changed = True
            continue
        lines.append(f"import {_renamed(alias.name, alias.asname)}")
        if alias.name in MODULES and alias.name not in ("verl", "verl.utils.ray_utils"):
            homes = ", ".join(sorted(set(MODULES[alias.name].values())))
            findings.append(
                Finding(
                    node.lineno, BY_HAND, f"import {alias.name}", f"import the names themselves; they are in {homes}"
                )
            )
    return tuple(lines) if changed else None


def _renamed(name: str, asname: str | None) -> str:
    return f"{name} as {asname}" if asname and asname != name else name


def _comments(statement: str) -> list[str]:
    """The comments inside a statement of several lines."""
    if "#" not in statement:
        return []
    tokens = tokenize.generate_tokens(io.StringIO(statement).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def _laid_out(source: Source, node: ast.stmt, lines: Sequence[str]) -> tuple[str, ...]:
    """The lines as they stand in the file: below each other, or on one line where other statements stand there too."""
    first = source.lines[node.lineno - 1]
    start = source.offset(node.lineno, node.col_offset) - source.starts[node.lineno - 1]
    stop = source.offset(node.end_lineno or 0, node.end_col_offset or 0)
    after = source.text[stop : source.starts[node.end_lineno or 0]].strip()
    indent, newline = first[:start], "\r\n" if first.endswith("\r\n") else "\n"
    if indent.strip() or after.startswith(";"):
        return ("; ".join(line for line in lines if not line.startswith("#")),)
    folded = [part for line in lines for part in _folded(line, indent, after)]
    return (f"{newline}{indent}".join(folded),)


def _folded(line: str, indent: str, after: str) -> list[str]:
    """An import as one line where it fits, else one name a line."""
    if line.startswith("#") or len(indent) + len(line) + (len(after) + 2 if after else 0) <= LINE_LENGTH:
        return [line]
    head, _, names = line.partition(" import ")
    return [f"{head} import (", *(f"    {name}," for name in names.split(", ")), ")"] if names else [line]


# Files.


def python_files(paths: Sequence[Path]) -> Iterator[Path]:
    """All Python files that are meant; without what tools put into a folder."""
    for path in paths:
        if path.is_dir():
            for below in sorted(path.rglob("*.py")):
                parts = below.relative_to(path).parts
                if not any(part in SKIPPED or part.startswith(".") for part in parts):
                    yield below
        else:
            yield path


def module_name(path: Path) -> str:
    """The dotted name of a file, as far up as there are packages."""
    parts = [] if path.stem == "__init__" else [path.stem]
    folder = path.resolve().parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def is_replaced(module: str) -> bool:
    """Say whether a module is itself what fanfold takes the place of."""
    return module == "verl.protocol" or module.startswith("verl.single_controller")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0, or 1 where a file could not be read as Python."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--write", action="store_true", help="change the files")
    chosen = parser.parse_args(arguments)
    missing = [path for path in chosen.paths if not path.exists()]
    if missing:
        parser.error(f"there is no {', '.join(map(str, missing))}")
    return run(list(python_files(chosen.paths)), write=chosen.write)


def run(files: Sequence[Path], *, write: bool) -> int:
    """Rewrite files, or show what would change; then say what to look at."""
    rows: list[tuple[str, Finding]] = []
    read, changed, statements, failed = 0, 0, 0, 0
    for path in files:
        name = module_name(path)
        if is_replaced(name):
            continue
        try:
            with tokenize.open(path) as opened:
                encoding = opened.encoding
            text = path.read_bytes().decode(encoding)
            done = rewrite(text, name, is_package=path.stem == "__init__")
        except (SyntaxError, UnicodeDecodeError) as error:
            print(f"{path}: left alone, it is no Python program: {error}", file=sys.stderr)
            failed += 1
            continue
        read, statements = read + 1, statements + done.statements
        rows += [(f"{path}:{finding.line}", finding) for finding in done.findings]
        if done.new == done.old:
            continue
        changed += 1
        sys.stdout.writelines(difference(path, done))
        if write:
            replace_text(path, done.new.encode(encoding))
    print_table(rows)
    print(
        f"{read} files read, {statements} imports in {changed} of them {'rewritten' if write else 'would change'}, "
        f"{len(rows)} places to look at." + ("" if write or not changed else " Nothing was written; --write does it.")
    )
    return 1 if failed else 0


def replace_text(path: Path, content: bytes) -> None:
    """Put a new file in a file's place: whole or not at all, and never into other links to it, such as a cache's."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.chmod(path.stat().st_mode & 0o7777)
    new.replace(path)


def difference(path: Path, done: Rewriting) -> Iterator[str]:
    """The change of one file as a unified diff."""
    old, new = done.old.splitlines(keepends=True), done.new.splitlines(keepends=True)
    return difflib.unified_diff(old, new, str(path), str(path), n=1)


def print_table(rows: Sequence[tuple[str, Finding]]) -> None:
    """Print the places to look at: where, what becomes of it, what it is, what to do."""
    cells = [(where, finding.kind, finding.what, finding.advice) for where, finding in rows]
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(3)]
    for row in cells:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]))


if __name__ == "__main__":
    sys.exit(main())
