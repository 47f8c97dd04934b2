from __future__ import annotations

from collections.abc import Iterator

import pytest
from rank_pool import RankPool


@pytest.fixture(scope="session")
def pool() -> Iterator[RankPool]:
    """Four processes, enough for every layout that is compared."""
    ranks = RankPool(4)
    yield ranks
    ranks.close()
