"""Render metric families as the Prometheus text format.

Room: telemetry. Takes: merged series and gauges. Gives: text for GET /metrics.
May touch: nothing. Source: Prometheus exposition format 0.0.4.
"""

from collections.abc import Iterable, Mapping

from kyverno_mp.telemetry.collect import Merged
from kyverno_mp.telemetry.families import BUCKETS, CELLS_PER_HISTOGRAM, Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_BOUNDS = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")


def render(
    recorded: Merged, gauges: Mapping[Family, Mapping[tuple[str, ...], float]]
) -> str:
    """Return all families, sorted by label values, each with its help and type."""
    lines: list[str] = []
    for family, series in recorded.items():
        if family.kind == "histogram":
            _histogram(lines, family, series)
        else:
            _plain(lines, family, {k: v[0] for k, v in series.items()})
    for family, values in gauges.items():
        _plain(lines, family, values)
    return "\n".join(lines) + "\n"


def _head(lines: list[str], name: str, kind: str, text: str) -> None:
    lines.append(f"# HELP {name} {text}")
    lines.append(f"# TYPE {name} {kind}")


def _plain(
    lines: list[str], family: Family, values: Mapping[tuple[str, ...], float]
) -> None:
    _head(lines, family.name, family.kind, family.text)
    for labels, value in sorted(values.items()):
        words = _words(family.labels, labels)
        lines.append(f"{family.name}{_braced(words)} {_number(value)}")


def _histogram(
    lines: list[str], family: Family, series: Mapping[tuple[str, ...], list[float]]
) -> None:
    ordered = [(_words(family.labels, k), v) for k, v in sorted(series.items())]
    if family.counted_as:
        _head(lines, family.counted_as, "counter", family.counted_text)
        for words, cells in ordered:
            total = sum(cells[: CELLS_PER_HISTOGRAM - 1])
            lines.append(f"{family.counted_as}{_braced(words)} {_number(total)}")
    _head(lines, family.name, "histogram", family.text)
    for words, cells in ordered:
        lead = words + "," if words else ""
        total = 0.0
        for bound, seen in zip(_BOUNDS, cells, strict=False):
            total += seen
            lines.append(f'{family.name}_bucket{{{lead}le="{bound}"}} {_number(total)}')
        lines.append(f"{family.name}_sum{_braced(words)} {_number(cells[-1])}")
        lines.append(f"{family.name}_count{_braced(words)} {_number(total)}")


def _words(names: Iterable[str], values: Iterable[str]) -> str:
    return ",".join(
        f'{name}="{value.translate(_ESCAPES)}"'
        for name, value in zip(names, values, strict=True)
    )


def _braced(words: str) -> str:
    return f"{{{words}}}" if words else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
