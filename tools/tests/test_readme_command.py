import subprocess
import sys
from pathlib import Path

import pytest

from tools.readme_command import README, command_of
from tools.workspace import ROOT

TEXT = "# T\n\n## Try it\n\nWords.\n\n```bash\nrun me\n```\n\n## Test it\n\n```bash\ntest me\n```\n\nMore.\n"


@pytest.mark.parametrize(("heading", "command"), [("Try it", "run me"), ("Test it", "test me")])
def test_the_one_line_of_a_section(heading: str, command: str) -> None:
    assert command_of(TEXT, heading) == command


@pytest.mark.parametrize(
    "text",
    [
        "## Test it\n\nnothing\n",
        "## Test it\n\n```bash\none\ntwo\n```\n",
        "## Test it\n\n```bash\none\n```\n\n```bash\ntwo\n```\n",
    ],
)
def test_anything_but_one_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected 1 block of 1 line"):
        command_of(text, "Test it")


def test_a_missing_section_is_refused() -> None:
    with pytest.raises(ValueError, match="got 0 headings '## Test it'"):
        command_of("# T\n", "Test it")


@pytest.mark.parametrize("heading", ["Try it", "Test it"])
def test_the_readme_sets_itself_up_in_one_line(heading: str) -> None:
    command = command_of(README.read_text(encoding="utf-8"), heading)

    assert command.startswith("python3 -m venv .uv && .uv/bin/pip -q install uv && ")


def test_ci_runs_exactly_the_test_command(tmp_path: Path) -> None:
    """The script is run in a copy of the tree whose README asks for something harmless."""
    for name in (".ci/run", "tools/readme_command.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    command = f"pwd && '{sys.executable}' -c 'import sys; print(repr(sys.stdin.read()))'"
    (tmp_path / "README.md").write_text(f"## Test it\n\n```bash\n{command}\n```\n", encoding="utf-8")

    answer = subprocess.run(
        ["bash", str(tmp_path / ".ci/run")], capture_output=True, text=True, check=True, cwd="/", input="typed"
    )

    assert answer.stdout.splitlines() == [f"+ {command}", str(tmp_path), "''"]


def test_a_failing_command_fails_the_script(tmp_path: Path) -> None:
    for name in (".ci/run", "tools/readme_command.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "README.md").write_text("## Test it\n\n```bash\nexit 7\n```\n", encoding="utf-8")

    answer = subprocess.run(["bash", str(tmp_path / ".ci/run")], capture_output=True, check=False)

    assert answer.returncode == 7
