"""Draw what the bench of the data plane found: `python -m tools.plane_picture`, from docs/data-plane.json.

One line for each thing that was measured, a dot for each side, milliseconds on a logarithmic axis. The numbers come
from `python packages/ray/bench/plane.py --json docs/data-plane.json`; a test says whether the file is what they draw.
"""

import json
import math
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from tools.workspace import ROOT

FIGURES = ROOT / "docs" / "data-plane.json"
PICTURE = ROOT / "docs" / "data-plane.svg"

SIDES = {"raw Ray": "raw", "bare numpy": "raw", "fanfold": "own", "verl": "verl"}
LEGEND = {"raw": "raw Ray, data in the store beforehand", "own": "fanfold", "verl": "verl"}

STYLE = """
text { font: 13px ui-sans-serif, system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }
.small { font-size: 12px; fill: #57606a; }
.paper { fill: #ffffff; } .grid { stroke: #d8dee4; } .span { stroke: #afb8c1; stroke-width: 2; }
.raw { fill: #6e7781; } .own { fill: #0969da; } .verl { fill: #bc4c00; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #9198a1; }
  .paper { fill: #0d1117; } .grid { stroke: #30363d; } .span { stroke: #656c76; }
  .raw { fill: #9198a1; } .own { fill: #58a6ff; } .verl { fill: #f0883e; }
}
"""

WIDTH, LEFT, RIGHT, TOP, BOTTOM, LINE = 950, 400, 36, 66, 48, 24


def lines_of(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Milliseconds by what was measured and by side; figures without another side have no place in the picture."""
    made: dict[str, dict[str, float]] = {}
    for figure in found["figures"]:
        name, times = figure["name"].split(": fanfold /")[0], figure["milliseconds"]
        if "fanfold" in times and len(times.keys() & SIDES.keys()) > 1 and "ways" not in name:
            made[name] = {side: times[side] for side in SIDES if side in times}
    return made


class Axis:
    """Where a number of milliseconds stands, whole powers of ten at both ends."""

    def __init__(self, numbers: list[float]) -> None:
        self.first, self.last = math.floor(math.log10(min(numbers))), math.ceil(math.log10(max(numbers)))

    def x(self, milliseconds: float) -> float:
        """The place, in the units of the picture."""
        share = (math.log10(milliseconds) - self.first) / max(1, self.last - self.first)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def ticks(self) -> list[float]:
        """The powers of ten."""
        return [10.0**power for power in range(self.first, self.last + 1)]


def draw(found: Mapping[str, Any]) -> str:
    """The whole picture as SVG."""
    lines = lines_of(found)
    axis = Axis([each for times in lines.values() for each in times.values()])
    height = TOP + LINE * len(lines) + BOTTOM
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Milliseconds of the data plane, by side, on a logarithmic axis</title>",
        f'<style>{STYLE}</style><rect class="paper" width="{WIDTH}" height="{height}"/>',
        *_legend(),
        *_grid(axis, height),
    ]
    for number, (name, times) in enumerate(lines.items()):
        shapes += _line(axis, TOP + LINE * (number + 0.5), name, times)
    return "\n".join([*shapes, "</svg>", ""])


def _legend() -> list[str]:
    made = []
    for number, (style, words) in enumerate(LEGEND.items()):
        x = LEFT + (0, 280, 380)[number]
        made.append(f'<circle class="{style}" cx="{x}" cy="22" r="6"/>')
        made.append(f'<text x="{x + 12}" y="27">{escape(words)}</text>')
    return made


def _grid(axis: Axis, height: int) -> list[str]:
    made = []
    for tick in axis.ticks():
        x = axis.x(tick)
        made.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{height - BOTTOM + 6}"/>')
        made += [
            f'<text class="small" x="{x}" y="{y}" text-anchor="middle">{tick:g} ms</text>'
            for y in (TOP - 14, height - BOTTOM + 22)
        ]
    return made


def _line(axis: Axis, y: float, name: str, times: Mapping[str, float]) -> list[str]:
    places = [axis.x(each) for each in times.values()]
    return [
        f'<text x="{LEFT - 14}" y="{y + 4}" text-anchor="end">{escape(name.partition(" ")[2])}</text>',
        f'<line class="span" x1="{min(places)}" x2="{max(places)}" y1="{y}" y2="{y}"/>',
        *(
            f'<circle class="{SIDES[side]}" cx="{axis.x(each)}" cy="{y}" r="6"><title>{escape(side)}: {each:.3g} ms'
            "</title></circle>"
            for side, each in times.items()
        ),
    ]


def main(path: Path = PICTURE) -> int:
    """Write the picture."""
    path.write_text(draw(json.loads(FIGURES.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"drew {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
