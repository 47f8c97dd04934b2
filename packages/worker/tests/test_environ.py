from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from fanfold.worker.environ import LentEnvironment, raw
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from fanfold.worker.environ import Changes

NAMES = [f"FANFOLD_TEST_{letter}" for letter in "ABCD"]
values = st.text(alphabet="xyz=: é", max_size=4)
environments = st.dictionaries(st.sampled_from(NAMES), st.one_of(st.none(), values))
steps = st.lists(st.tuples(environments, environments), max_size=5)


def _seen() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in NAMES}


def _write(changes: Changes) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@given(home=environments, ranks=steps)
def test_each_rank_sees_its_own_and_home_is_as_it_was(home: Changes, ranks: list[tuple[Changes, Changes]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.delenv(name, raising=False)
        for name, value in home.items():
            if value is not None:
                patch.setenv(name, value)
        before = dict(os.environ)
        at_home = _seen()
        with LentEnvironment() as lent:
            for variables, own in ranks:
                lent.lend(raw(variables))
                expected = {**at_home, **variables}
                assert _seen() == expected
                _write(own)
                assert lent.take_changes() == raw({name: v for name, v in own.items() if expected[name] != v})
                assert lent.take_changes() == {}
        assert dict(os.environ) == before


def test_programs_that_a_rank_starts_see_it() -> None:
    code = "import os; print(os.environ.get('FANFOLD_TEST_A'))"
    with LentEnvironment() as lent:
        lent.lend(raw({"FANFOLD_TEST_A": "7"}))
        assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"7\n"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"None\n"
