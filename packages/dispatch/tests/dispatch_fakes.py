"""Small real things that tests share: batches of the two shapes dispatch knows, and groups without workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import CallPlan, Mesh, MethodSpec, plan_call, register_batch_type, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


@dataclass
class Table:
    """A batch by shape alone: named columns of equal length, nothing registered."""

    columns: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        return Table({name: column[key] for name, column in self.columns.items()})

    def chunk(self, chunks: int) -> list[Table]:
        size = len(self) // chunks
        return [self[place * size : (place + 1) * size] for place in range(chunks)]

    def select(self, names: Sequence[str]) -> Table:
        return Table({name: self.columns[name] for name in names})

    @staticmethod
    def concat(tables: Iterable[Table]) -> Table:
        parts = list(tables)
        return Table({name: [row for part in parts for row in part.columns[name]] for name in parts[0].columns})


def table(rows: int) -> Table:
    return Table({"x": list(range(rows)), "name": [f"row {row}" for row in range(rows)]})


class Later:
    """Rows that are not here yet; whoever counts them waits, which `waited` notes."""

    def __init__(self, source: Callable[[], Table], part: tuple[int, int] | None = None) -> None:
        self._source = source
        self._part = part
        self.waited = 0

    def __len__(self) -> int:
        self.waited += 1
        return len(self.get())

    def __getitem__(self, rows: slice) -> Later:
        return Later(lambda: self.get()[rows])

    def part(self, place: int, places: int) -> Later:
        return Later(self.get, (place, places))

    def columns(self) -> list[str]:
        self.waited += 1
        return list(self.get().columns)

    def get(self) -> Table:
        whole = self._source()
        if self._part is None:
            return whole
        place, places = self._part
        rows, left = divmod(len(whole), places)
        start = place * rows + min(place, left)
        return Table({name: column[start : start + rows + (place < left)] for name, column in whole.columns.items()})

    @staticmethod
    def concat(parts: Sequence[Later]) -> Later:
        return Later(lambda: Table.concat(part.get() for part in parts))


register_batch_type(Later, part=Later.part, columns=Later.columns)


class Group:
    """A group that can only be planned for."""

    def __init__(self, world_size: int, *meshes: Mesh) -> None:
        self._world_size = world_size
        self._meshes = {mesh.name: mesh for mesh in meshes}

    @property
    def world_size(self) -> int:
        return self._world_size

    def mesh(self, name: str) -> Mesh:
        return self._meshes[name]


def plan(method: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> CallPlan:
    """The plan of a marked method, as a worker group would make it."""
    spec = spec_of(method)
    assert isinstance(spec, MethodSpec)
    return plan_call(spec, method, group, args, kwargs, owner="Trainer")


def run(plan_: CallPlan, function: Callable[..., Any]) -> Any:
    """Run a plan with a function of (rank, *args, **kwargs) and collect."""
    results = {}
    for rank in plan_.ranks:
        args, kwargs = plan_.arguments(rank)
        results[rank] = function(rank, *args, **kwargs)
    return plan_.collect({rank: results[rank] for rank in plan_.collected})
