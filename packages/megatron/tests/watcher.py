"""A role that looks at another one; in a module of its own, which every process can import."""

from __future__ import annotations

from fanfold.dispatch import Dispatch, register
from fanfold.worker import Worker


class Watcher(Worker):
    """A role beside, which reads the actor's weights bucket by bucket."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sum_of_actor(self) -> float:
        weights = self.get_fused_worker_by_name("actor").weights(bucket_bytes=1 << 14)
        return sum(float(weight.double().sum()) for _, weight in weights)
