from __future__ import annotations

from typing import Any

from fanfold.worker import WorkerGroup
from fanfold.worker.testing import Ability, Conformance
from fanfold.worker.threads import ThreadsBackend


class TestThreadsBackend(Conformance):
    lacks = frozenset({Ability.ENVIRONMENT, Ability.IMPORT, Ability.DEATH})

    @classmethod
    def make_group(cls, pool: Any, recipe: Any, **options: Any) -> WorkerGroup[Any]:
        return WorkerGroup(pool, recipe, backend=ThreadsBackend(), **options)
