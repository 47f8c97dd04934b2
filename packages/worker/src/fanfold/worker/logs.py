"""Logging, imported at first use: it costs a tenth of a second on a cold disk."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from fanfold.worker.rank import RankInfo

logger = logging.getLogger("fanfold.worker")


class RankLogger(logging.LoggerAdapter[logging.Logger]):
    """Puts group, role and rank into each record, and in front of each message."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add what says where a record comes from; a user's own `extra` stays."""
        where = dict(self.extra or {})
        kwargs["extra"] = {**where, **kwargs.get("extra", {})}
        role = f" {where['role']}" if where["role"] else ""
        return f"[{where['group']}{role} rank {where['rank']}/{where['world_size']}] {msg}", kwargs


def rank_logger(cls: type, info: RankInfo, role: str) -> RankLogger:
    """Return the logger of a worker: named after its class, so that a user's own levels and handlers apply."""
    where = {"group": info.group, "role": role, "rank": info.rank, "world_size": info.world_size}
    return RankLogger(logging.getLogger(f"{cls.__module__}.{cls.__qualname__}"), where)
