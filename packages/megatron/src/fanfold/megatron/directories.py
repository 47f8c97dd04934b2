"""Where checkpoints lie, and how one comes to be there: whole or not at all.

A checkpoint is the directory `step-00000012` below the caller's path. It is written under a name that nobody looks for,
and gets its own by one rename when it is complete.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fanfold.megatron.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"^step-(\d{8,})$")
_ABOUT = "fanfold.json"


@dataclass(frozen=True)
class CheckpointPath:
    """The place of one checkpoint.

    Attributes:
        root: The caller's path.
        step: Number of the last step that the checkpoint contains.
        attempt: Which attempt to write it this is: what one that was given up still writes meets no other's files.
    """

    root: Path
    step: int
    attempt: str = ""

    @property
    def final(self) -> Path:
        """Where it lies when it is complete."""
        return self.root / f"step-{self.step:08d}"

    @property
    def partial(self) -> Path:
        """Where it is written."""
        return self.root / f".partial-step-{self.step:08d}{self.attempt and '-'}{self.attempt}"

    @property
    def replaced(self) -> Path:
        """Where one of the same step lies until the new one has its name."""
        return self.root / f".replaced-step-{self.step:08d}"

    def begin(self) -> None:
        """Make an empty place to write to; what interrupted saves of this step left is removed."""
        recover(self.root)
        for name in ("partial", "abandoned"):
            for left in self.root.glob(f".{name}-step-{self.step:08d}*"):
                shutil.rmtree(left, ignore_errors=True)
        self.partial.mkdir(parents=True)

    def complete(self, about: dict[str, Any]) -> None:
        """Give the written checkpoint its name; one of the same step that was there is replaced."""
        (self.partial / _ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")
        for file in self.partial.iterdir():
            _flush(file)
        _flush(self.partial)
        shutil.rmtree(self.replaced, ignore_errors=True)
        if self.final.exists():
            self.final.rename(self.replaced)
        try:
            self.partial.rename(self.final)
        except OSError:
            recover(self.root)
            raise
        _flush(self.root)
        shutil.rmtree(self.replaced, ignore_errors=True)

    def abandon(self) -> None:
        """Remove what was written so far."""
        # By another name first: a writer that was given up, and still runs, finds the place gone and adds nothing.
        abandoned = self.partial.with_name(f".abandoned{self.partial.name.removeprefix('.partial')}")
        if self.partial.exists():
            self.partial.rename(abandoned)
        shutil.rmtree(abandoned, ignore_errors=True)


def recover(root: Path) -> None:
    """Give back its name to a checkpoint whose replacement was interrupted between its two renames."""
    for replaced in root.glob(".replaced-step-*"):
        final = root / replaced.name.removeprefix(".replaced-")
        if (replaced / _ABOUT).is_file() and not final.exists():
            with suppress(FileNotFoundError):  # another rank was faster
                replaced.rename(final)


def steps_of(root: Path) -> list[int]:
    """List the steps of the complete checkpoints below a path, oldest first."""
    if not root.is_dir():
        return []
    matches = (_NAME.match(entry.name) for entry in root.iterdir() if (entry / _ABOUT).is_file())
    return sorted(int(match[1]) for match in matches if match)


def find(root: Path, step: int | None) -> CheckpointPath:
    """Find a checkpoint by its step, or the newest.

    Raises:
        CheckpointError: There is none; the text names those that exist.
    """
    recover(root)
    steps = steps_of(root)
    if step is None and steps:
        return CheckpointPath(root, steps[-1])
    if step is not None and step in steps:
        return CheckpointPath(root, step)
    wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
    have = f"it has the steps {', '.join(map(str, steps))}" if steps else "it has none"
    raise CheckpointError(f"{root} has no complete {wanted}; {have}")


def read_about(place: CheckpointPath) -> dict[str, Any]:
    """Read what the checkpoint says of itself."""
    about: dict[str, Any] = json.loads((place.final / _ABOUT).read_text(encoding="utf-8"))
    return about


def keep_newest(root: Path, keep: int) -> None:
    """Remove all complete checkpoints but the newest few."""
    for step in steps_of(root)[:-keep]:
        shutil.rmtree(CheckpointPath(root, step).final)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
