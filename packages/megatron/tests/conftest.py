from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rank_pool import RankPool

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def pool() -> Iterator[RankPool]:
    """Four processes, enough for every layout that is compared."""
    ranks = RankPool(4)
    yield ranks
    ranks.close()
