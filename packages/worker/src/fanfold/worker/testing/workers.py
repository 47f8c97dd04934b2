"""The workers of the conformance suite; importable wherever this package is, as a backend's ranks need it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import Dispatch, Execute, Rows, current_call, make_nd_compute_dataproto_dispatch_fn, register
from fanfold.worker import Worker, WorkerGroup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

SETTING = "FANFOLD_CONFORMANCE_SETTING"
AT_IMPORT = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", SETTING)}


class FussyError(Exception):
    """Takes other arguments than it keeps, so that Python's own pickling cannot bring it back."""

    def __init__(self, *, shard: int, reason: str) -> None:
        super().__init__(f"shard {shard}: {reason}")
        self.shard = shard
        self.reason = reason


class LockedError(Exception):
    """Holds what cannot be pickled at all."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Probe(Worker):
    """Does one thing for each test."""

    def __init__(self, label: Any = "plain", *, refuses: int | None = None, log: str | None = None) -> None:
        super().__init__()
        self.label = label
        self.count = 0
        self.journal = log
        self._register_dispatch_collect_info("pairs", self.rank // 2, self.rank % 2 == 0)
        self._register_dispatch_collect_info("backwards", self.world_size - 1 - self.rank, True)
        if self.rank == refuses:
            raise KeyError(f"rank {refuses} has no shard")

    def on_start(self) -> None:
        """Write that it started."""
        self.note("start")

    def on_stop(self) -> None:
        """Write that it stops."""
        self.note("stop")

    def on_peer_lost(self, ranks: Any) -> None:
        """Write who is gone."""
        self.note(f"lost {list(ranks)}")

    def note(self, what: str) -> None:
        """Append a line to the journal, in one write."""
        if self.journal is not None:
            with Path(self.journal).open("a", encoding="utf-8") as file:
                file.write(f"{self.rank} {what}\n")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def who(self) -> tuple[int, int]:
        """Return rank and world size."""
        return self.rank, self.world_size

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def everything(self) -> dict[str, Any]:
        """Return all that a rank knows about itself."""
        info = self.rank_info
        return {
            "info": (info.rank, info.world_size, info.local_rank, info.local_world_size, info.node_rank, info.group),
            "master": self.get_master_addr_port(),
            "environ": {name: os.environ.get(name) for name in (*self.env_keys(), SETTING)},
            "import": dict(AT_IMPORT),
            "label": self.label,
        }

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, a: int, b: int = 1, *, c: int = 0) -> int:
        """Add numbers, and the rank."""
        return a + b + c + self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def echo(self, value: Any) -> Any:
        """Return what was given."""
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def spoil(self, value: Any) -> int:
        """Write into what was given and return its length."""
        value[0] = -1 if isinstance(value, list) else 255
        return len(value)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def remember(self, value: Any) -> int:
        """Keep what was given; return how often this was called on this rank."""
        self.label = value
        self.count += 1
        return self.count

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def recall(self) -> Any:
        """Return what was kept."""
        return self.label

    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def each(self, value: Any) -> Any:
        """Return rank and value."""
        return self.rank, value

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def lead(self, value: Any) -> Any:
        """Return rank and value, on rank 0 only."""
        return self.rank, value

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def double(self, rows: Rows[int]) -> Rows[int]:
        """Double each row."""
        return Rows(2 * row for row in rows)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, uneven="pad")
    def double_padded(self, rows: Rows[int]) -> Rows[int]:
        """Double each row of batches that are equally long everywhere."""
        return Rows(2 * row for row in rows)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, uneven="pad")
    def counted(self, rows: Rows[int]) -> Rows[tuple[int, int]]:
        """Return for each row how many rows this rank has, and how many of them are padding."""
        return Rows((len(rows), current_call().padding) for _ in rows)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("pairs"))
    def by_pairs(self, rows: Rows[int]) -> Rows[tuple[int, int]]:
        """Return each row with the rank that had it."""
        return Rows((self.rank, row) for row in rows)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("backwards"))
    def by_backwards(self, rows: Rows[int]) -> Rows[tuple[int, int]]:
        """Return each row with the rank that had it."""
        return Rows((self.rank, row) for row in rows)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("nowhere"))
    def by_nowhere(self, rows: Rows[int]) -> Rows[int]:
        """Return the rows; its mesh does not exist."""
        return rows

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def later(self, value: int = 0) -> int:
        """Return value and rank added, without the driver waiting."""
        return value + self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def counting(self, stop: int) -> Iterator[int]:
        """Yield numbers."""
        yield from range(stop)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self, ranks: list[int], kind: str = "key") -> int:
        """Fail on some ranks, in one of several ways."""
        if self.rank in ranks:
            raise _ERRORS[kind](self.rank)
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def unpicklable(self) -> Any:
        """Return what cannot travel."""
        return threading.Lock()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def drive(self, group: WorkerGroup[Probe]) -> list[int]:
        """Call another group."""
        return group.add(100 * self.rank)  # type: ignore[no-any-return]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def hold_port(self) -> tuple[str, str]:
        """Return a free port of this rank's node."""
        return self.get_available_master_addr_port()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def write_environment(self, name: str, value: str) -> str | None:
        """Set a variable of this rank's own; return what it was."""
        before = os.environ.get(name)
        os.environ[name] = value
        return before


_ERRORS: dict[str, Any] = {
    "key": lambda rank: KeyError(f"shard {rank}"),
    "file": lambda rank: FileNotFoundError(2, "no such shard", f"/data/{rank}"),
    "fussy": lambda rank: FussyError(shard=rank, reason="unreadable"),
    "locked": lambda _: LockedError(),
    "number": lambda rank: ValueError(f"row {17 * rank} is empty"),
    "stop": StopIteration,
}


class Rendezvous(Worker):
    """Ranks that wait for each other, through files in a folder."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def meet(self, name: str, patience: float = 30.0) -> int:
        """Return how many ranks are there, once all are."""
        (self.folder / f"{name}-{self.rank}").touch()
        end = time.monotonic() + patience
        while len(list(self.folder.glob(f"{name}-*"))) < self.world_size:
            if time.monotonic() > end:
                raise TimeoutError(f"rank {self.rank} met nobody")
            time.sleep(0.005)
        return self.world_size

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def wait_for(self, name: str, ranks: list[int] | None = None, patience: float = 30.0) -> str:
        """Wait on some ranks until a file appears; return "cancelled" as soon as nobody wants the result."""
        end = time.monotonic() + patience
        while ranks is None or self.rank in ranks:
            if self.cancelled():
                (self.folder / f"{name}-cancelled-{self.rank}").touch()
                return "cancelled"
            if (self.folder / name).exists():
                break
            if time.monotonic() > end:
                raise TimeoutError(f"rank {self.rank} waited {patience} s for {name}")
            time.sleep(0.005)
        return name

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail_or_wait(self, failing: int, name: str) -> str:
        """Fail on one rank and wait for a file on the others."""
        if self.rank == failing:
            raise KeyError(f"shard {failing}")
        return self.wait_for(name)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def die(self, rank: int, name: str, how: str = "kill") -> str:
        """End the process of one rank, and wait for a file on the others."""
        if self.rank != rank:
            return self.wait_for(name)
        sys.stdout.write("these are\nmy last words\n")
        sys.stdout.flush()
        if how == "exit":
            sys.exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
        return "unreachable"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def process(self) -> int:
        """Return the number of this rank's process."""
        return os.getpid()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def log_call(self, entry: int) -> int:
        """Write that the call began."""
        (self.folder / f"began-{entry}-{self.rank}").touch()
        return entry


class Talker(Worker):
    """Calls that overlap: one waits until another has come."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = asyncio.Event()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def listen(self) -> str:
        """Wait for a word."""
        await asyncio.wait_for(self.arrived.wait(), 30)
        return f"heard on {self.rank}"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def speak(self) -> str:
        """Say a word."""
        self.arrived.set()
        return f"spoken on {self.rank}"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def add_async(self, value: int) -> int:
        """Add the rank after a moment."""
        await asyncio.sleep(0.01)
        return value + self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def counting_async(self, stop: int) -> AsyncIterator[int]:
        """Yield numbers, asynchronously."""
        for number in range(stop):
            await asyncio.sleep(0)
            yield number

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def fail_async(self) -> None:
        """Fail after a moment."""
        await asyncio.sleep(0)
        raise KeyError(f"shard {self.rank}")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def who(self) -> int:
        """Return the rank, without waiting."""
        return self.rank


class Stranger:
    """A worker that is no `Worker`."""

    def __init__(self, start: int) -> None:
        self.total = start

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, number: int) -> int:
        """Add a number."""
        self.total += number
        return self.total


class Headless(Worker):
    """A worker that does not call `super().__init__()`."""

    def __init__(self) -> None:
        self.ready = True

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def who(self) -> int:
        """Return the rank."""
        return self.rank


class Actor(Worker):
    """One role of several."""

    def __init__(self, step: int = 1) -> None:
        super().__init__()
        self.step = step
        self.weights = 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update(self) -> int:
        """Change the weights."""
        self.weights += self.step
        return self.weights

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def who(self) -> tuple[str, int]:
        """Say the role's class and the rank."""
        return "Actor", self.rank


class Critic(Worker):
    """Another role, which looks at its sibling."""

    def __init__(self) -> None:
        super().__init__()
        self.register_mesh_rank("critics", self.rank)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def who(self) -> tuple[str, int]:
        """Say the role's class and the rank."""
        return "Critic", self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def weights_of(self, role: str) -> int | None:
        """Return the weights of another role in this process."""
        sibling = self.get_fused_worker_by_name(role)
        return None if sibling is None else sibling.weights

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("critics"))
    async def judge(self, rows: Rows[int]) -> Rows[int]:
        """Return values, asynchronously."""
        await asyncio.sleep(0)
        return Rows(row + 1 for row in rows)


def free_folder() -> str:
    """Return a new folder that ranks of this machine can write into."""
    return tempfile.mkdtemp(prefix="fanfold-")
