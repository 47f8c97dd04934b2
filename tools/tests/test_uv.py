from pathlib import Path

from tools.uv import uv_executable


def test_the_uv_that_runs_us_comes_first_then_the_own_one_then_the_path(tmp_path: Path) -> None:
    assert uv_executable(tmp_path, {}) == "uv"
    own = tmp_path / ".uv" / "bin" / "uv"
    own.parent.mkdir(parents=True)
    own.touch()
    assert uv_executable(tmp_path, {}) == str(own)
    assert uv_executable(tmp_path, {"UV": "/somewhere/uv"}) == "/somewhere/uv"
