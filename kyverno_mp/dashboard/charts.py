"""Draw counts over time.

Room: dashboard. Takes: the course of a group. Gives: SVG. Next: pages.py.
May touch: nothing outside its arguments.
Source: WCAG 2.2 (1.1.1): the caption describes the chart in words.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from kyverno_mp.dashboard.entries import RESULTS
from kyverno_mp.dashboard.history import Point
from kyverno_mp.dashboard.markup import NAMES, time_of

_WIDTH: Final = 1000
_HEIGHT: Final = 160
_GAP: Final = 0.15
"""The gap between columns, as a share of a column's width."""


def columns(points: Sequence[Point], what: str) -> str:
    """Return a chart with a column for each point, and a caption.

    ``what``: the things that a column counts.
    """
    if not points:
        return (
            '<p class="soft">There is no chart yet: numbers are recorded at intervals,'
            " the first ones a minute apart.</p>"
        )
    highest = max(one.counts.total for one in points)
    step = _WIDTH / len(points)
    parts = []
    for at, one in enumerate(points):
        left, bottom = at * step, float(_HEIGHT)
        for name in reversed(RESULTS):
            height = _HEIGHT * one.counts.of[name] / highest if highest else 0
            if height:
                bottom -= height
                parts.append(
                    f'<rect class="{name}" x="{left + step * _GAP / 2:.1f}"'
                    f' y="{bottom:.1f}" width="{step * (1 - _GAP):.1f}"'
                    f' height="{height:.1f}"></rect>'
                )
    return (
        f'<figure><svg class="columns" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'
        f'<div class="axis" aria-hidden="true"><span>{_clock(points[0])}</span>'
        f"<span>{_clock(points[-1])}</span></div>"
        f"<figcaption>{_caption(points, what)}</figcaption></figure>"
    )


def _clock(point: Point) -> str:
    return datetime.fromtimestamp(point.time_s, UTC).strftime("%H:%M")


def _caption(points: Sequence[Point], what: str) -> str:
    first, last = (
        time_of(datetime.fromtimestamp(one.time_s, UTC))
        for one in (points[0], points[-1])
    )
    most = max(one.counts.total for one in points)
    worst = max(one.counts.problems for one in points)
    latest = points[-1].counts
    said = ", ".join(
        f"{latest.of[name]:,} {NAMES[name].lower()}"
        for name in RESULTS
        if latest.of[name]
    )
    return (
        f"{what}, {first} to {last}. At most {most:,}, of which problems (fail, error,"
        f" warn) at most {worst:,}. Latest: {said or 'none'}."
    )


def spark(points: Sequence[Point]) -> str:
    """Return a sparkline of the number of problems over time."""
    if len(points) < 2:  # noqa: PLR2004 - a line has two ends
        return ""
    highest = max(one.counts.problems for one in points) or 1
    step = 100 / (len(points) - 1)
    line = " ".join(
        f"{at * step:.1f},{19 - 18 * one.counts.problems / highest:.1f}"
        for at, one in enumerate(points)
    )
    return (
        '<svg class="spark" viewBox="0 0 100 20" preserveAspectRatio="none"'
        f' aria-hidden="true"><polyline points="{line}"></polyline></svg>'
    )
