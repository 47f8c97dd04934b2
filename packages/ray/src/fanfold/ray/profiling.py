"""What methods spend their time on: Nsight Systems around a rank's process, a profiler around single calls."""

from __future__ import annotations

import cProfile
import importlib
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fanfold.worker import GroupUsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

Kind = Literal["torch", "python"]

_ENDINGS = {"torch": "json", "python": "pstats"}
_NOTHING = nullcontext()
_CAPTURES_PER_STEP = 6  # a step of reinforcement learning starts and ends that many ranges


@dataclass(frozen=True)
class ProfileWindow:
    """Which calls of a method are profiled, and where what is found is written.

    Attributes:
        method: The method's name.
        folder: A folder on the ranks' nodes; made if it is not there.
        skip: How many calls go by first.
        calls: How many are profiled then.
        kind: "torch": a trace for chrome://tracing or Perfetto; "python": for `python -m pstats`.
        options: What torch's profiler is given besides, such as `record_shapes=True`.
    """

    method: str
    folder: str
    skip: int = 0
    calls: int = 1
    kind: Kind = "torch"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in _ENDINGS:
            raise GroupUsageError(f"kind is 'torch' or 'python'; got {self.kind!r}")
        if self.skip < 0 or self.calls < 1:
            raise GroupUsageError(f"skip is 0 or more, and calls at least 1; got skip={self.skip}, calls={self.calls}")
        if self.options and self.kind == "python":
            raise GroupUsageError(f"only torch's profiler takes options; got {', '.join(self.options)}")

    def file(self, rank: int, number: int) -> str:
        """Return the file of one rank and one call, counted from 0 since the window was opened."""
        return str(Path(self.folder) / f"{self.method}-call{number}-rank{rank}.{_ENDINGS[self.kind]}")

    def files(self, rank: int) -> list[str]:
        """Return all files that a rank will write."""
        return [self.file(rank, number) for number in range(self.skip, self.skip + self.calls)]


class Profiles:
    """The windows that are open on one rank, by method."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._windows: dict[str, tuple[ProfileWindow, int]] = {}

    def open(self, window: ProfileWindow) -> list[str]:
        """Open a window, instead of one that may be open for the method, and return the files to come.

        Raises:
            ModuleNotFoundError: There is no torch here.
        """
        if window.kind == "torch":
            importlib.import_module("torch.profiler")  # at first use, and now rather than in the middle of a call
        Path(window.folder).mkdir(parents=True, exist_ok=True)
        self._windows[window.method] = window, 0
        return window.files(self._rank)

    def around(self, method: str) -> AbstractContextManager[Any]:
        """Return what goes around a call: nothing in most cases."""
        if method not in self._windows:
            return _NOTHING
        window, number = self._windows.pop(method)
        if number + 1 < window.skip + window.calls:
            self._windows[method] = window, number + 1
        return _NOTHING if number < window.skip else _profiled(window, window.file(self._rank, number))


@contextmanager
def _profiled(window: ProfileWindow, file: str) -> Iterator[None]:
    profiler: Any
    if window.kind == "python":
        profiler, write = cProfile.Profile(), "dump_stats"
    else:
        profiler = importlib.import_module("torch.profiler").profile(**window.options)
        write = "export_chrome_trace"
    try:
        with profiler:
            yield
    finally:
        getattr(profiler, write)(file)


def nsight_environment(
    profile_steps: Sequence[int] | None, worker_nsight_options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the runtime environment of ranks that run under Nsight Systems; nothing unless steps are to be profiled.

    Without "capture-range-end", profiling ends after as many ranges as the steps have. What is given is not changed.

    Raises:
        GroupUsageError: There are steps but no options.
    """
    if profile_steps is None:
        return {}
    if not worker_nsight_options:
        raise GroupUsageError(
            f"profile_steps={list(profile_steps)} needs worker_nsight_options, such as "
            '{"trace": "cuda,nvtx", "capture-range": "cudaProfilerApi"}'
        )
    end = f"repeat-shutdown:{_CAPTURES_PER_STEP * len(profile_steps)}"
    return {"nsight": {"capture-range-end": end, **worker_nsight_options}}
