"""The tests that every backend has to pass, for backends of other people too; and a backend that fails on purpose.

It is a pytest plugin. In the `pyproject.toml` of the backend's package::

    [tool.pytest.ini_options]
    addopts = ["-p", "fanfold.worker.testing"]

and one class in its tests, whose name begins with `Test`::

    from fanfold.worker import WorkerGroup
    from fanfold.worker.testing import Ability, Conformance

    class TestMyBackend(Conformance):
        lacks = frozenset({Ability.TRAVEL})

        @classmethod
        def make_group(cls, pool, recipe, **options):
            return WorkerGroup(pool, recipe, backend=MyBackend(), **options)

`make_group` takes what `WorkerGroup` takes and returns a group that owns its ranks; it may be a group class of your
own. `lacks` names what the backend cannot do; the tests that need it are skipped, and each of them says so. Most tests
share one group of three ranks, `[2, 1]`; the others start at most three. A class or module fixture of the backend's own
may prepare what it needs (a cluster): give it `autouse=True`. A test waits up to `Conformance.patience` seconds for
what should happen at once; nothing is measured.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("fanfold.worker.testing.conformance")  # before it is imported

from typing import TYPE_CHECKING  # noqa: E402

from fanfold.worker.testing.abilities import Ability, needs  # noqa: E402
from fanfold.worker.testing.conformance import Conformance  # noqa: E402
from fanfold.worker.testing.faults import Fault, FaultyBackend  # noqa: E402
from fanfold.worker.testing.workers import Probe  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanfold.worker import WorkerGroup

__all__ = ["Ability", "Conformance", "Fault", "FaultyBackend", "Probe", "needs"]


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers", "needs(ability): a conformance test that a backend without this ability cannot pass"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what a backend says that it cannot do."""
    lacks: frozenset[Ability] = getattr(getattr(item, "cls", None), "lacks", frozenset())
    for marker in item.iter_markers("needs"):
        if marker.args[0] in lacks:
            pytest.skip(f"this backend lacks {marker.args[0].name}: {marker.args[0].value}")


@pytest.fixture(scope="class")
def shared_group(request: pytest.FixtureRequest) -> Iterator[WorkerGroup[Probe]]:
    """Three ranks on two nodes, the same for all tests of a class that leave them as they were."""
    with request.cls.make_group([2, 1], Probe, name_prefix=request.cls.shared_name) as group:
        yield group
