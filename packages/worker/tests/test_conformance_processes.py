from __future__ import annotations

from typing import Any

from fanfold.worker import WorkerGroup
from fanfold.worker.processes import ProcessesBackend
from fanfold.worker.testing import Conformance


class TestProcessesBackend(Conformance):
    @classmethod
    def make_group(cls, pool: Any, recipe: Any, **options: Any) -> WorkerGroup[Any]:
        return WorkerGroup(pool, recipe, backend=ProcessesBackend(), **options)
