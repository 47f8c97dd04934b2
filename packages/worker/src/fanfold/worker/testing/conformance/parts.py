# ruff: noqa: D102  # a test says by its name what it shows, and exact values are its point
"""Parts of a group are called like groups."""

from __future__ import annotations

import pytest
from fanfold.dispatch import Rows
from fanfold.worker import GroupUsageError
from fanfold.worker.testing.conformance.suite import Group, Suite
from fanfold.worker.testing.workers import Probe


class Parts(Suite):
    """Tests of slices and single ranks."""

    def test_parts_call_their_ranks_only(self, shared_group: Group) -> None:
        assert shared_group[1].add(10) == [12]
        assert shared_group[-1].add(10) == [13]
        assert shared_group[0:2].add(10) == [11, 12]
        assert shared_group.slice([2, 0]).add(10) == [11, 13]
        assert shared_group.add.options(ranks=[0, 2])(10) == [11, 13]
        assert shared_group.slice(mesh="pairs", dp=0).add(10) == [11, 12]
        assert shared_group.slice(lambda at: at["dp"] == 1, mesh="pairs").ranks == (2,)
        assert [part.ranks for part in shared_group] == [(0,), (1,), (2,)]

    def test_parts_divide_rows_among_themselves(self, shared_group: Group) -> None:
        assert shared_group[1:].double(Rows(range(5))) == Rows(range(0, 10, 2))
        assert shared_group[1:][1].ranks == (2,)

    def test_closing_a_part_closes_nothing(self, shared_group: Group) -> None:
        with shared_group[0] as part:
            assert part.who() == [(0, 3)]
        with pytest.raises(GroupUsageError, match="closed"):
            part.who()
        assert shared_group.who() == [(0, 3), (1, 3), (2, 3)]

    def test_part_keeps_the_group(self) -> None:
        part = self.make_group([2], Probe)[1]
        assert part.who() == [(1, 2)]
        part._ranks.close()  # noqa: SLF001  # the only way to its end by now
