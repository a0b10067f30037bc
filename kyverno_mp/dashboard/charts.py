"""Compute the shapes of charts: bars, columns and lines of counts.

Room: dashboard. Takes: Counts, the course of a group. Gives: positions and sizes in the
units of the templates' drawings. Next: render.py offers them to the templates.
May touch: nothing outside its arguments.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from kyverno_mp.dashboard.entries import RESULTS, Counts
from kyverno_mp.dashboard.history import Point

_WIDTH: Final = 1000
_HEIGHT: Final = 160
_GAP: Final = 0.15
"""The gap between columns, as a share of a column's width."""


class Rectangle(NamedTuple):
    """A part of a chart: the result that it counts, its position and size."""

    result: str
    x: float
    y: float
    width: float
    height: float


def bar_of(counts: Counts, largest: int) -> list[Rectangle]:
    """Return the parts of a bar as long as the share of ``largest``."""
    parts, left = [], 0.0
    scale = _WIDTH / largest if largest else 0.0
    for result in RESULTS:
        width = counts.of[result] * scale
        if width:
            parts.append(Rectangle(result, left, 0, width, 10))
            left += width
    return parts


def columns_of(points: Sequence[Point]) -> list[Rectangle]:
    """Return the parts of the columns, one column for each point."""
    highest = max(point.counts.total for point in points)
    step, parts = _WIDTH / len(points), []
    for number, point in enumerate(points):
        left, bottom = number * step + step * _GAP / 2, float(_HEIGHT)
        for result in reversed(RESULTS):
            height = _HEIGHT * point.counts.of[result] / highest if highest else 0
            if height:
                bottom -= height
                width = step * (1 - _GAP)
                parts.append(Rectangle(result, left, bottom, width, height))
    return parts


def spark_of(points: Sequence[Point]) -> str:
    """Return the points of a line of the number of problems, "" without a line."""
    if len(points) < 2:  # noqa: PLR2004 - a line has two ends
        return ""
    highest = max(point.counts.problems for point in points) or 1
    step = 100 / (len(points) - 1)
    return " ".join(
        f"{number * step:.1f},{19 - 18 * point.counts.problems / highest:.1f}"
        for number, point in enumerate(points)
    )
