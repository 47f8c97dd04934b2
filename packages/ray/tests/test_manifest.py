from __future__ import annotations

from typing import Any

import ray
from fanfold.dispatch import Dispatch, register
from fanfold.ray.manifest import schema_of
from fanfold.worker import Worker


class Plain(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, amount: int, twice: bool = False) -> int:
        return amount * (1 + twice)


class WithOneMore(Plain):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def get(self) -> int:
        return 0


def test_a_class_that_ray_decorated_is_called_in_the_same_way() -> None:
    # Ray writes into the class that it is given, so a client that decorates it would not fit a server that does not.
    before = schema_of(Plain)
    decorated: Any = ray.remote(Plain)

    assert decorated is not Plain
    assert schema_of(Plain) == before
    assert schema_of(WithOneMore) != before
