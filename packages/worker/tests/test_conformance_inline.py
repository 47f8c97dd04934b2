from __future__ import annotations

from typing import Any

from fanfold.worker import InlineBackend, WorkerGroup
from fanfold.worker.testing import Ability, Conformance


class TestInlineBackend(Conformance):
    lacks = frozenset(
        {
            Ability.CONCURRENT,
            Ability.OVERLAP,
            Ability.IMPORT,
            Ability.DEATH,
            Ability.BUSY,
            Ability.DROP,
        }
    )

    @classmethod
    def make_group(cls, pool: Any, recipe: Any, **options: Any) -> WorkerGroup[Any]:
        return WorkerGroup(pool, recipe, backend=InlineBackend(), **options)
