import json
from xml.etree import ElementTree as ET

import pytest

from tools.plane_picture import FIGURES, PICTURE, Axis, draw, lines_of
from tools.workspace import ROOT

SVG = "{http://www.w3.org/2000/svg}"
FOUND = json.loads(FIGURES.read_text(encoding="utf-8"))


def test_the_file_is_what_the_numbers_draw() -> None:
    assert PICTURE.read_text(encoding="utf-8") == draw(FOUND), "run `python -m tools.plane_picture`"


def test_every_side_of_every_line_is_a_dot() -> None:
    picture = ET.fromstring(draw(FOUND))

    dots = [dot.findtext(f"{SVG}title") for dot in picture.iter(f"{SVG}circle")]
    assert len([dot for dot in dots if dot]) == sum(map(len, lines_of(FOUND).values()))
    assert "@media (prefers-color-scheme: dark)" in str(picture.findtext(f"{SVG}style"))


def test_ten_times_as_much_is_as_far_wherever_it_stands() -> None:
    axis = Axis([0.2, 700.0])

    assert axis.ticks() == [0.1, 1.0, 10.0, 100.0, 1000.0]
    assert axis.x(2.0) - axis.x(0.2) == pytest.approx(axis.x(700.0) - axis.x(70.0), abs=0.2)


def test_the_page_shows_it() -> None:
    assert "{image} data-plane.svg" in (ROOT / "docs" / "data-plane.md").read_text(encoding="utf-8")
