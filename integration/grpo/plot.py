"""Draw the mean reward of runs over their steps: `python plot.py run-0 run-1 --out reward.svg`.

The thin line is each step's mean, the thick one the mean of ten steps around it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

from journal import read_lines

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 300, 56, 16, 16, 44
COLOURS = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a")
TEXT = 'font-family="sans-serif" font-size="12" fill="#555"'


def rewards_of(folder: Path) -> list[float]:
    """Return the mean reward of each step of a run."""
    return [line["reward"] for line in read_lines(folder / "metrics.jsonl")]


def smoothed(values: list[float], width: int = 10) -> list[float]:
    """Return the mean around each value; less is taken at both ends."""
    return [fmean(values[max(0, at - width // 2) : at + width // 2 + 1]) for at in range(len(values))]


def picture(runs: dict[str, list[float]]) -> str:
    """Return an SVG picture of runs by name."""
    steps = max(map(len, runs.values()))
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    parts += [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *_axes(steps)]
    for number, (name, rewards) in enumerate(runs.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(_line(rewards, steps, f'stroke="{colour}" stroke-width="1" stroke-opacity="0.3"'))
        parts.append(_line(smoothed(rewards), steps, f'stroke="{colour}" stroke-width="2"'))
        x, y = WIDTH - RIGHT - 120, HEIGHT - BOTTOM - 14 - 18 * number
        parts.append(f'<text x="{x}" y="{y}" font-family="sans-serif" font-size="12" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _axes(steps: int) -> list[str]:
    made = []
    for reward in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(reward)
        made.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        made.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end" {TEXT}>{reward:g}</text>')
    for step in {0, steps // 2, steps - 1}:
        made.append(f'<text x="{_x(step, steps)}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" {TEXT}>{step}</text>')
    made.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}" text-anchor="middle" {TEXT}>step</text>')
    middle = f'x="14" y="{HEIGHT / 2}" transform="rotate(-90 14 {HEIGHT / 2})"'
    return [*made, f'<text {middle} text-anchor="middle" {TEXT}>mean reward</text>']


def _line(values: list[float], steps: int, how: str) -> str:
    points = " ".join(f"{_x(step, steps)},{_y(value)}" for step, value in enumerate(values))
    return f'<polyline points="{points}" fill="none" {how}/>'


def _x(step: int, steps: int) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * step / max(1, steps - 1), 1)


def _y(reward: float) -> float:
    return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - reward), 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    parser.add_argument("--out", type=Path, required=True, help="the picture, as SVG")
    asked = parser.parse_args()
    asked.out.write_text(picture({run.name: rewards_of(run) for run in asked.runs}), encoding="utf-8")
