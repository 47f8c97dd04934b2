from pathlib import Path

import pytest

from tools.pages import bash_blocks, blocks_that_run_in, give_environment, runs_in, shell

TEXT = """\
# Page

<!-- runs in: here.py -->
```bash
one
two
```

1. Item:

   <!-- runs in: there.py -->
   ```bash
   three
     four
   ```

```python
no = "bash"
```

Words.
```bash
five
```
"""


def test_blocks_and_what_stands_above_them() -> None:
    assert bash_blocks(TEXT) == [
        ("<!-- runs in: here.py -->", "one\ntwo\n"),
        ("<!-- runs in: there.py -->", "three\n  four\n"),
        ("Words.", "five\n"),
    ]
    assert [runs_in(above) for above, _ in bash_blocks(TEXT)] == ["here.py", "there.py", None]


def test_blocks_are_chosen_by_what_runs_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(TEXT, encoding="utf-8")

    assert blocks_that_run_in(page, "there.py") == ["three\n  four\n"]


def test_a_command_runs_in_its_folder_without_our_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "x")

    assert shell("pwd; echo ${PYTHONPATH:-none}", tmp_path) == f"{tmp_path}\nnone\n"


def test_the_first_failing_line_ends_a_block_and_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"status 3 of\n(?s:.*)before"):
        shell("echo before\n(exit 3)\ntouch after", tmp_path)

    assert not (tmp_path / "after").exists()


def test_a_folder_gets_an_environment_once(tmp_path: Path) -> None:
    give_environment(tmp_path)
    marker = tmp_path / ".venv" / "marker"
    marker.touch()
    give_environment(tmp_path)

    assert marker.exists()
    assert str(tmp_path) in shell(".venv/bin/python -c 'import sys; print(sys.prefix)'", tmp_path)
