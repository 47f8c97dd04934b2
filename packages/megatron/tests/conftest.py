from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from rank_pool import RankPool

if TYPE_CHECKING:
    from collections.abc import Iterator

# No deadlines: a slow machine breaks no law. The same examples each time; `HYPOTHESIS_PROFILE=deep` looks elsewhere.
settings.register_profile("quick", deadline=None, max_examples=100, derandomize=True)
settings.register_profile("deep", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session")
def pool() -> Iterator[RankPool]:
    """Four processes, enough for every layout that is compared."""
    ranks = RankPool(4)
    yield ranks
    ranks.close()
