"""What a backend may be unable to do, and the mark on the tests that need it."""

from __future__ import annotations

from enum import Enum

import pytest


class Ability(Enum):
    """One thing that not every backend can do, in words that a skipped test shows."""

    CONCURRENT = "ranks run at the same time, so that methods may wait for each other"
    OVERLAP = "asynchronous calls overlap on one rank"
    ENVIRONMENT = "each rank sees its own rank environment in os.environ"
    IMPORT = "the rank environment is there when the worker's module is imported"
    DEATH = "a rank can die without the driver"
    BUSY = "a call returns to the driver while its method is running"
    DROP = "a call that has not begun can be dropped"
    ASK = "a rank says where it is while it runs"
    WATCH = "the backend knows which ranks are gone"
    RENEW = "single ranks can be replaced"
    TRAVEL = "a group can be given to its own or other workers"


def needs(ability: Ability) -> pytest.MarkDecorator:
    """Mark a test that a backend without this ability cannot pass."""
    return pytest.mark.needs(ability)
