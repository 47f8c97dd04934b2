from __future__ import annotations

from typing import Any

from fanfold.worker import WorkerGroup
from fanfold.worker.testing import Ability, Conformance, FaultyBackend
from fanfold.worker.threads import ThreadsBackend


class TestFaultyBackendWithoutFaults(Conformance):
    """It does what the backend inside does, in whatever order replies are told of."""

    lacks = frozenset({Ability.ENVIRONMENT, Ability.IMPORT, Ability.DEATH, Ability.TRAVEL})

    @classmethod
    def make_group(cls, pool: Any, recipe: Any, **options: Any) -> WorkerGroup[Any]:
        return WorkerGroup(pool, recipe, backend=FaultyBackend(ThreadsBackend(), shuffle=7), **options)
