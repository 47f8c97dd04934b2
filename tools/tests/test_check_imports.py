from pathlib import Path

import pytest

from tools.check_imports import FORBIDDEN, SIBLINGS, find_intruders, modules_after_import


def test_each_package_is_looked_at_and_none_forbids_itself() -> None:
    assert set(FORBIDDEN) == SIBLINGS
    assert [module for module, forbidden in FORBIDDEN.items() if module in forbidden] == []


def test_what_an_import_brings_is_seen() -> None:
    assert {"json", "json.decoder"} <= modules_after_import("json")
    assert find_intruders("json", {"json.decoder", "torch"}) == ["json.decoder"]


def test_an_import_inside_an_imported_module_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outer.py").write_text("import inner\n", encoding="utf-8")
    (tmp_path / "inner.py").write_text("import colorsys\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert find_intruders("outer", {"colorsys"}) == ["colorsys"]


def test_a_failing_import_is_no_clean_import() -> None:
    with pytest.raises(RuntimeError, match="No module named 'no_such_module'"):
        modules_after_import("no_such_module")
