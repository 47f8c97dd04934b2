"""Draw the picture of the README, docs/fan-and-fold.svg: `python -m tools.picture`.

One call fans out to every rank, the results fold back into one value. Drawn by a script so that it can be changed by
changing a number, and so that a test can say whether the file is what the script draws.
"""

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tools.workspace import ROOT

PICTURE = ROOT / "docs" / "fan-and-fold.svg"

STYLE = """
text { font: 15px ui-sans-serif, system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }
.small { font-size: 13px; fill: #57606a; }
.code { font: 17px ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; }
.box { fill: #f6f8fa; stroke: #8c959f; stroke-width: 1.2; }
.first { fill: #0969da; } .second { fill: #bc4c00; }
.way { stroke-width: 2; } .way.first { fill: none; stroke: #0969da; } .way.second { fill: none; stroke: #bc4c00; }
.spare { opacity: 0.45; }
.pair { fill: none; stroke: #8c959f; stroke-dasharray: 4 4; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #9198a1; }
  .box { fill: #161b22; stroke: #656c76; } .pair { stroke: #656c76; }
  .first { fill: #58a6ff; } .second { fill: #f0883e; }
  .way.first { stroke: #58a6ff; } .way.second { stroke: #f0883e; }
}
"""

WIDTH, HEIGHT = 880, 344
ROW_HEIGHT, ROW_GAP = 12, 5
HALVES = ("first", "second")


@dataclass(frozen=True)
class Rows:
    """A stack of rows of a batch: where it stands, how wide it is, and of which half of the batch each row is."""

    x: int
    y: int
    width: int
    halves: tuple[str, ...]

    def draw(self) -> list[str]:
        """One rectangle a row."""
        return [
            f'<rect class="{half}" x="{self.x}" y="{self.y + number * (ROW_HEIGHT + ROW_GAP)}" '
            f'width="{self.width}" height="{ROW_HEIGHT}" rx="3"/>'
            for number, half in enumerate(self.halves)
        ]

    def middle(self, half: str) -> float:
        """The height of the middle of one half."""
        numbers = [number for number, each in enumerate(self.halves) if each == half]
        return self.y + (sum(numbers) / len(numbers)) * (ROW_HEIGHT + ROW_GAP) + ROW_HEIGHT / 2


BATCH = Rows(40, 116, 110, ("first",) * 4 + ("second",) * 4)
RESULT = Rows(730, 116, 110, BATCH.halves)


def text(x: float, y: float, words: str, style: str = "", anchor: str = "middle") -> str:
    """One line of text."""
    return f'<text class="{style}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def way(half: str, start: tuple[float, float], end: tuple[float, float], style: str = "") -> str:
    """A curve that leaves and arrives level."""
    (x, y), (to_x, to_y) = start, end
    bend = (to_x - x) / 2
    curve = f"M{x} {y} C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"
    return f'<path class="way {half} {style}" d="{curve}" marker-end="url(#{half})"/>'


def rank(number: int, x: int, y: int, half: str, *, spare: bool) -> list[str]:
    """One worker process and the rows that it was given."""
    box = f'<rect class="box" x="{x}" y="{y}" width="128" height="98" rx="8"/>'
    rows = Rows(x + 12, y + 32, 104, (half,) * 4).draw()
    return [box, text(x + 64, y + 22, f"rank {number}"), f'<g class="{"spare" if spare else ""}">', *rows, "</g>"]


def arrow_heads() -> str:
    """The two arrow heads."""
    heads = (
        f'<marker id="{half}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path class="{half}" d="M0 0 8 4 0 8z"/></marker>'
        for half in HALVES
    )
    return f"<defs>{''.join(heads)}</defs>"


def draw_driver() -> list[str]:
    """The line of the driver, the batch on the left, the result on the right."""
    code = '<tspan class="code">out = group.train_model(batch)</tspan>'
    return [
        f'<text x="{WIDTH / 2}" y="34" text-anchor="middle">{code}</text>',
        text(95, 104, "batch"),
        text(95, 274, "8 rows", "small"),
        text(785, 104, "out"),
        text(785, 274, "8 rows, same order", "small"),
        *BATCH.draw(),
        *RESULT.draw(),
    ]


def draw_ranks() -> list[str]:
    """Two data-parallel ranks of two tensor-parallel processes each, and the ways to and from them."""
    shapes = []
    for number, (half, y) in enumerate(zip(HALVES, (68, 196), strict=True)):
        middle = y + 49
        shapes += [f'<rect class="pair" x="282" y="{y - 10}" width="316" height="118" rx="12"/>']
        shapes += rank(2 * number, 296, y, half, spare=False) + rank(2 * number + 1, 456, y, half, spare=True)
        shapes += [
            way(half, (156, BATCH.middle(half)), (278, middle)),
            way(half, (602, middle), (724, RESULT.middle(half))),
        ]
    return shapes


def draw() -> str:
    """The whole picture as SVG."""
    words = [
        text(217, 66, "fan out", "small"),
        text(663, 66, "fold back", "small"),
        text(
            WIDTH / 2,
            334,
            "each data-parallel rank gets its rows; of ranks that compute the same, one answers",
            "small",
        ),
    ]
    title = "<title>One call fans out to every rank, the results fold back into one value</title>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    shapes = [head, title, f"<style>{STYLE}</style>", arrow_heads(), *draw_driver(), *draw_ranks(), *words, "</svg>"]
    return "\n".join(shapes) + "\n"


def main(path: Path = PICTURE) -> int:
    """Write the picture."""
    path.write_text(draw(), encoding="utf-8")
    print(f"drew {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
