from __future__ import annotations

import inspect
from typing import Any

import pytest
from fanfold.worker import UnknownOptionError, Worker, WorkerGroup
from fanfold.worker.processes import ProcessesBackend


class Plain(Worker):
    pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"naem_prefix": "x"}, r"WorkerGroup has no option 'naem_prefix'; did you mean 'name_prefix'\?"),
        ({"call_timout": 1}, "did you mean 'call_timeout'"),
        ({"zzz": 1}, "WorkerGroup has no option 'zzz'; it takes resource_pool, class_with_init, backend"),
    ],
)
def test_misspelt_option_of_a_group(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownOptionError, match=message) as caught:
        WorkerGroup([1], Plain, **options)
    assert isinstance(caught.value, TypeError)


def test_signature_stays_readable() -> None:
    assert list(inspect.signature(WorkerGroup).parameters)[:3] == ["resource_pool", "class_with_init", "backend"]


def test_misspelt_option_of_a_call() -> None:
    with WorkerGroup([1], Plain) as group, pytest.raises(UnknownOptionError, match="did you mean 'timeout'"):
        group.query_dispatch_info.options(timout=3)


def test_misspelt_option_of_a_backend() -> None:
    with pytest.raises(TypeError, match="pyhton"):
        ProcessesBackend(pyhton="python3")  # type: ignore[call-arg]
