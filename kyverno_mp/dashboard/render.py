"""Fill the templates of the pages: each value is escaped, however it gets there.

Room: dashboard. Takes: the name of a template, its values. Gives: HTML, and the
Content-Security-Policy of a page. Next: pages.py, pod_pages.py, site.py, and the report
command of cli. May touch: the files of ``templates``, read once.
Source: CSP Level 3; jinja2 (autoescape, finalize, StrictUndefined).

SAFETY: names and messages of objects and policies are untrusted. The environment
escapes every value and replaces its invalid characters; no template uses ``safe``.
"""

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kyverno_mp import __version__
from kyverno_mp.dashboard.entries import RESULTS, Counts
from kyverno_mp.dashboard.history import Point
from kyverno_mp.dashboard.query import link
from kyverno_mp.dashboard.style import TEMPLATES, style_sheet

_WIDTH: Final = 1000
_HEIGHT: Final = 160
_GAP: Final = 0.15
"""The gap between columns, as a share of a column's width."""
_MESSAGE_LENGTH_MAX: Final = 2000
_MIB: Final = 1024 * 1024
_NAMES: Final = {name: name.capitalize() for name in RESULTS}
TITLES: Final = {
    "policy": "Policies",
    "namespace": "Namespaces",
    "severity": "Severities",
    "category": "Categories",
}


def render(template: str, **values: Any) -> str:
    """Return a page. ``template``: its file's name without ``.html``.

    Raises: jinja2.UndefinedError for a value that the template needs and is not there.
    """
    return _environment().get_template(f"{template}.html").render(values)


@cache
def security_policy(form_action: str = "'none'") -> str:
    """Return the Content-Security-Policy: no scripts, no requests, only this style.

    ``form_action``: the allowed targets of forms.
    """
    digest = base64.b64encode(sha256(style_sheet().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none';"
        f" form-action {form_action}"
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        finalize=_printable,
        loader=FileSystemLoader(TEMPLATES),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(
        bar=bar_of,
        columns=columns_of,
        counted=_counted,
        duration=_duration,
        message=_message,
        mib=lambda size: size / _MIB,
        number="{:,}".format,
        share=_share,
        spark=spark_of,
        utc=lambda time_s: datetime.fromtimestamp(time_s, UTC),
    )
    environment.globals.update(
        NAMES=_NAMES,
        RESULTS=RESULTS,
        # The digest of the Content-Security-Policy applies to exactly this text.
        STYLE=Markup(style_sheet()),  # noqa: S704 - our own file
        TITLES=TITLES,
        VERSION=__version__,
        link=link,
        security_policy=security_policy,
    )
    # Available in every template, also in imported macros and blocks.
    environment.globals["parts"] = environment.get_template("parts.html").module
    return environment


def _printable(value: object) -> object:
    """Replace characters that are invalid in HTML or that reorder text."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(
        character if character.isprintable() or character in "\n\t" else "\ufffd"
        for character in value
    )


def _share(number: int, total: int) -> str:
    """Return a share in percent."""
    if not total or not number:
        return "0 %"
    share = 100 * number / total
    # Rounding must not turn a share into none or all.
    if share < 1:
        return "< 1 %"
    return f"{min(99, round(share))} %" if number < total else "100 %"


def _counted(number: int, word: str) -> str:
    """Return ``1 report`` or ``2,000 reports``."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _duration(microseconds: float) -> str:
    if microseconds < 1000:  # noqa: PLR2004 - units
        return f"{microseconds:.0f} µs"
    if microseconds < 1_000_000:  # noqa: PLR2004 - units
        return f"{microseconds / 1000:.1f} ms"
    return f"{microseconds / 1e6:,.1f} s"


def _message(message: str) -> str:
    """Return a message, truncated if it is very long."""
    if len(message) <= _MESSAGE_LENGTH_MAX:
        return message
    return message[:_MESSAGE_LENGTH_MAX] + " ..."


class Paging(NamedTuple):
    """One page of a list. ``number``: from 1."""

    number: int
    pages: int
    links: Sequence[tuple[str, str]]
    """Names and targets of other pages; "" for a page that is not there."""


def paging_of(path: str, number: int, pages: int, **fields: str) -> Paging:
    """Return the links of a page of a list. ``fields``: the rest of the query."""
    targets = (
        ("First", 1),
        ("Previous", number - 1),
        ("Next", number + 1),
        ("Last", pages),
    )
    return Paging(
        number,
        pages,
        [
            (
                name,
                link(path, **fields, page=target)
                if 1 <= target <= pages and target != number
                else "",
            )
            for name, target in targets
        ],
    )


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
