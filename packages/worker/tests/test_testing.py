"""The conformance suite as other people use it: in a folder of their own, and with backends that are wrong."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "backends.md").read_text(encoding="utf-8")


def _run(folder: Path, program: str, *options: str) -> str:
    (folder / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = ["-p", "fanfold.worker.testing", "--strict-markers"]\n'
    )
    (folder / "test_backend.py").write_text(textwrap.dedent(program))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def test_backend_of_the_page_passes_in_a_folder_of_its_own(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    said = _run(tmp_path, "\n".join(blocks), "-rs")
    assert re.search(r"\b\d\d passed, \d\d skipped", said), said
    assert "this backend lacks TRAVEL: a group can be given" in said


WRONG = """
    from fanfold.worker import InlineBackend, Success, WorkerGroup
    from fanfold.worker.backend import StartedRank
    from fanfold.worker.inline import InlineHandle
    from fanfold.worker.testing import Ability, Conformance

    class Wrong(InlineBackend):
        {fault}

    class TestWrong(Conformance):
        lacks = frozenset(Ability) - {{Ability.ENVIRONMENT, Ability.RENEW, Ability.WATCH}}

        @classmethod
        def make_group(cls, pool, recipe, **options):
            return WorkerGroup(pool, recipe, backend=Wrong(), **options)
"""


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("place = lambda self, value: value", "test_a_rank_cannot_write_into_the_callers_argument"),
        ("stop = lambda self, ranks, limit: None", "test_close_ends_the_ranks"),
        (
            "call_all = lambda self, ranks, requests: InlineBackend.call_all(self, ranks[::-1], requests)",
            "test_lists_for_each_rank",
        ),
        (
            "fetch = lambda self, handle: Success(getattr(handle.outcome, 'value', None))",
            "test_error_is_of_the_class_that_was_raised",
        ),
    ],
    ids=["shares arguments", "ends nothing", "mixes ranks up", "hides errors"],
)
def test_wrong_backend_fails(fault: str, found: str, tmp_path: Path) -> None:
    said = _run(tmp_path, WRONG.format(fault=fault), "-rf", "--tb=no", "-k", found)
    assert re.search(rf"^FAILED .*{found}", said, re.MULTILINE), said
