from __future__ import annotations

from typing import Any

from fanfold.worker import WorkerGroup
from fanfold.worker.processes import ProcessesBackend
from fanfold.worker.testing import Ability, Conformance


class TestProcessesBackend(Conformance):
    lacks = frozenset({Ability.TRAVEL})

    @classmethod
    def make_group(cls, pool: Any, recipe: Any, **options: Any) -> WorkerGroup[Any]:
        return WorkerGroup(pool, recipe, backend=ProcessesBackend(), **options)
