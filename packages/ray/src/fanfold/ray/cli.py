"""The commands: each looks at one thing, prints it as a table or as JSON, and returns an exit status."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Parameter
from fanfold.dispatch import FanfoldError
from fanfold.ray import doctor as examination
from fanfold.ray.connecting import NAMESPACE, connect
from fanfold.ray.looking import LogReader, records_of, see_group, statuses
from fanfold.ray.registry import list_groups, stop_group
from fanfold.worker.stuck import render
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fanfold.ray.custodian import GroupState

app = App(
    name="fanfold",
    help="Look at, and end, groups of ranks that live on a Ray cluster.",
    version_flags=[],
    suppress_keyboard_interrupt=False,
)

_FOLLOW_EVERY = 0.5  # seconds between looks at a log that is followed
_INTERRUPTED = 130
_USAGE = 2
_COLORS = {"good": "green", "ready": "green", "starting": "yellow", "warning": "yellow", "bad": "red", "broken": "red"}


@Parameter(name="*")
@dataclasses.dataclass(frozen=True)
class Where:
    """Which cluster, and where names are looked up.

    Attributes:
        address: `auto`, or host:port.
        namespace: The namespace of the groups.
        json: Print JSON instead of tables.
    """

    address: str = "auto"
    namespace: str = NAMESPACE
    json: bool = False


HERE = Where()


def run(arguments: Sequence[str]) -> int:
    """Run one command; what is expected to go wrong is a few lines on standard error, not a stack trace."""
    try:
        return int(app(list(arguments), exit_on_error=False, print_error=True, result_action="return_value") or 0)
    except CycloptsError:
        return _USAGE
    except FanfoldError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


@app.command
def ls(*, where: Where = HERE) -> int:
    """List the detached groups of the cluster, of all namespaces."""
    connect(where.address, where.namespace)
    groups = list_groups()
    if where.json:
        return _json([dataclasses.asdict(group) for group in groups])
    rows = [_row(group) for group in groups]
    _table(("group", "namespace", "ranks", "state", "age", "last client"), rows, nothing="no detached groups")
    return 0


@app.command
def describe(name: str, /, *, where: Where = HERE) -> int:
    """Show the ranks of a group, where they run, and what can be called."""
    connect(where.address, where.namespace)
    seen = see_group(name, where.namespace)
    data = seen.as_data()
    if where.json:
        return _json(data)
    head = (
        f"{name} in {data['namespace']!r}: ",
        _colored(data["state"]),
        f", {data['class']}, {_time(data['age'])} old",
    )
    Console().print(Text.assemble(*head))
    rows = [
        (
            str(rank["rank"]),
            rank["name"],
            rank["node"],
            ", ".join(rank["gpu_ids"]) or "-",
            str(rank["pid"]) if rank["alive"] else Text("gone", style="red"),
            "; ".join(f"{mesh} {_coordinates(at)}" for mesh, at in rank["coordinates"].items()) or "-",
        )
        for rank in data["ranks"]
    ]
    _table(("rank", "worker", "node", "GPU", "pid", "coordinates"), rows)
    _table(("method", "dispatch"), list(data["methods"].items()), nothing="no registered methods")
    return 0 if seen.condition == "ready" else 1


@app.command
def logs(
    name: str,
    /,
    *,
    rank: int | None = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    lines: int = 20,
    where: Where = HERE,
) -> int:
    """Print what ranks have printed last.

    Args:
        name: Name of the group.
        rank: Only this rank's.
        follow: Go on with what they print, until Ctrl-C.
        lines: How many lines of each rank's output and error output.
        where: Which cluster.
    """
    connect(where.address, where.namespace)
    records = records_of(see_group(name, where.namespace), rank)
    reader = LogReader({record.rank: record.answer for record in records}, lines)
    _print_lines(reader.news(), as_json=where.json)
    while follow:
        time.sleep(_FOLLOW_EVERY)
        _print_lines(reader.news(), as_json=where.json)
    return 0


@app.command(name="why-stuck")
def why_stuck(name: str, /, *, limit: float = 5.0, where: Where = HERE) -> int:
    """Show what each rank is running, since when, and at which line.

    Args:
        name: Name of the group.
        limit: Seconds to wait for an answer.
        where: Which cluster.
    """
    connect(where.address, where.namespace)
    seen = see_group(name, where.namespace)
    found = statuses(seen, limit)
    if where.json:
        return _json([status._asdict() for status in found.values()])
    sys.stdout.write(render(found, {record.rank: record.name for record in seen.manifest.ranks}) + "\n")
    return 0


@app.command
def stop(name: str, /, *, where: Where = HERE) -> int:
    """End a group: its ranks, and its placement groups unless others live in them. One that is gone already is fine."""
    connect(where.address, where.namespace)
    stopped = stop_group(name, where.namespace)
    if where.json:
        return _json({"group": name, "stopped": stopped})
    sys.stdout.write(f"{name} {'has ended' if stopped else 'was not there'}\n")
    return 0


@app.command
def doctor(*, where: Where = HERE) -> int:
    """Check the cluster before GPUs are spent on it: nodes, room, memory, versions, what is left over."""
    connect(where.address, where.namespace)
    findings = examination.examine()
    status = 1 if any(finding.verdict == "bad" for finding in findings) else 0
    if where.json:
        _json([dataclasses.asdict(finding) for finding in findings])
        return status
    _table(("check", "", "finding"), [(f.check, _colored(f.verdict), f.text) for f in findings])
    return status


def _row(group: GroupState) -> tuple[str | Text, ...]:
    ranks, state = str(len(group.worker_names)), _colored(group.state)
    return group.group, group.namespace, ranks, state, _time(group.age), _time(group.silence)


def _json(data: Any) -> int:
    sys.stdout.write(json.dumps(data, indent=2, default=str) + "\n")
    return 0


def _print_lines(lines: Iterable[tuple[int, str]], *, as_json: bool) -> None:
    for rank, line in lines:
        sys.stdout.write((json.dumps({"rank": rank, "line": line}) if as_json else f"{rank:>4} | {line}") + "\n")
    sys.stdout.flush()


def _table(columns: Sequence[str], rows: Sequence[Sequence[str | Text]], nothing: str = "") -> None:
    if not rows:
        sys.stdout.write(f"{nothing}\n")
        return
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))  # no markup in names
    Console().print(table)


def _colored(word: str) -> Text:
    return Text(word, style=_COLORS.get(word, ""))


def _time(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _coordinates(at: dict[str, int]) -> str:
    return ",".join(f"{axis}={place}" for axis, place in at.items())
