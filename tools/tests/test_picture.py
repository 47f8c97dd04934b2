from xml.etree import ElementTree as ET

from tools.picture import BATCH, PICTURE, RESULT, draw
from tools.workspace import ROOT

SVG = "{http://www.w3.org/2000/svg}"


def test_the_file_is_what_the_script_draws() -> None:
    assert PICTURE.read_text(encoding="utf-8") == draw(), "run `python -m tools.picture`"


def test_it_is_well_formed_and_has_both_colour_schemes() -> None:
    picture = ET.fromstring(draw())

    style = picture.findtext(f"{SVG}style")
    assert style is not None
    assert "@media (prefers-color-scheme: dark)" in style


def test_as_many_rows_come_back_as_were_sent() -> None:
    assert RESULT.halves == BATCH.halves
    assert len(BATCH.halves) == 8


def test_the_readme_shows_it() -> None:
    assert "(docs/fan-and-fold.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")
