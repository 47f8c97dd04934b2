"""How the tests of the conformance suite make groups, and how long they wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from fanfold.worker import WorkerGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanfold.worker.testing.abilities import Ability

Group = WorkerGroup[Any]


class Suite:
    """What all tests use: a class of yours says how groups are made, and what its backend lacks."""

    lacks: ClassVar[frozenset[Ability]] = frozenset()
    shared_name: ClassVar[str] = "conform-"
    patience: ClassVar[float] = 60.0

    @classmethod
    def make_group(cls, pool: Any, recipe: Any, **options: Any) -> Group:
        """Start a group that owns its ranks; takes what `WorkerGroup` takes, but for the backend."""
        raise NotImplementedError

    @classmethod
    def until(cls, condition: Callable[[], object]) -> None:
        """Wait for something that has to become true."""
        end = time.monotonic() + cls.patience
        while not condition():
            assert time.monotonic() < end, f"{condition} did not become true within {cls.patience} s"
            time.sleep(0.01)
