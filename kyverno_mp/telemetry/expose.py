"""Render metric families as the Prometheus text format or as OpenMetrics.

Room: telemetry. Takes: merged series and gauges. Gives: text for GET /metrics.
Next: process/roles/health.py.
Source: Prometheus exposition format 0.0.4; OpenMetrics 1.0.0.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kyverno_mp.policy.metrics_configuration import MetricsConfiguration
from kyverno_mp.telemetry.collect import Cells, Merged
from kyverno_mp.telemetry.families import Family

_UNITS: Final = ("seconds", "bytes")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_DEFAULT: Final = MetricsConfiguration()
_Rows = list[tuple[str, Cells]]
"""Label values as text -> cells, in the order of label values."""


class PlainText:
    """The text format that every version of Prometheus reads."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"
    end: Sequence[str] = ()
    """Lines after the last family."""

    @staticmethod
    def head(name: str, kind: str, text: str) -> list[str]:
        """Return the lines before a family's samples."""
        return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    @staticmethod
    def bound(value: float) -> str:
        """Return the upper bound of a bucket."""
        return f"{value:.12g}"


class OpenMetrics:
    """The OpenMetrics format: units, counter names without suffix, and an end mark."""

    content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    end: Sequence[str] = ("# EOF",)
    """Without this line, readers know that the text was truncated."""

    @staticmethod
    def head(name: str, kind: str, text: str) -> list[str]:
        """Return the lines before a family's samples."""
        if kind == "counter":
            name = name.removesuffix("_total")
        unit = name.rpartition("_")[2]
        units = [f"# UNIT {name} {unit}"] if unit in _UNITS else []
        return [f"# TYPE {name} {kind}", *units, f"# HELP {name} {text}"]

    @staticmethod
    def bound(value: float) -> str:
        """Return the upper bound of a bucket in its canonical spelling."""
        text = f"{value:.12g}"
        return f"{text}.0" if text.isdecimal() else text


Format = type[PlainText] | type[OpenMetrics]


def format_for(accept: str) -> Format:
    """Return the format that a client prefers, according to its Accept header."""
    best = {PlainText: 0.0, OpenMetrics: 0.0}
    for part in accept.lower().split(","):
        media, _, rest = part.partition(";")
        kind = {"application/openmetrics-text": OpenMetrics, "text/plain": PlainText}
        found = kind.get(media.strip())
        if found is not None:
            best[found] = max(best[found], _weight(rest))
    return OpenMetrics if best[OpenMetrics] > best[PlainText] else PlainText


def _weight(parameters: str) -> float:
    for one in parameters.split(";"):
        name, _, value = one.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def render(
    recorded: Merged,
    gauges: Mapping[Family, Mapping[tuple[str, ...], float]],
    configuration: MetricsConfiguration = _DEFAULT,
    form: Format = PlainText,
) -> str:
    """Return all families that have samples, each with help and type."""
    lines: list[str] = []
    for family, series in recorded.items():
        if family.kind == "histogram":
            _histogram(lines, family, series, configuration, form)
        else:
            _plain(lines, family, series, configuration, form)
    for family, values in gauges.items():
        cells = {labels: [value] for labels, value in values.items()}
        _plain(lines, family, cells, configuration, form)
    lines += form.end
    return "\n".join(lines) + "\n"


def _plain(
    lines: list[str],
    family: Family,
    series: Mapping[tuple[str, ...], Cells],
    configuration: MetricsConfiguration,
    form: Format,
) -> None:
    if not configuration.exposure_of(family.name).enabled:
        return
    lines += form.head(family.name, family.kind, family.text)
    for words, cells in _rows(family, family.name, series, configuration):
        lines.append(f"{family.name}{_braced(words)} {_number(cells[0])}")


def _histogram(
    lines: list[str],
    family: Family,
    series: Mapping[tuple[str, ...], Cells],
    configuration: MetricsConfiguration,
    form: Format,
) -> None:
    counter = family.counted_as
    if counter and configuration.exposure_of(counter).enabled:
        lines += form.head(counter, "counter", family.counted_text)
        for words, cells in _rows(family, counter, series, configuration):
            lines.append(f"{counter}{_braced(words)} {_number(sum(cells[:-1]))}")
    if not configuration.exposure_of(family.name).enabled:
        return
    bounds = configuration.buckets_of(family.name, family.buckets)
    texts = (*(form.bound(bound) for bound in bounds), "+Inf")
    lines += form.head(family.name, "histogram", family.text)
    for words, cells in _rows(family, family.name, series, configuration):
        _buckets(lines, family.name, words, zip(texts, cells, strict=False))
        lines.append(f"{family.name}_sum{_braced(words)} {_number(cells[-1])}")
        count = _number(sum(cells[:-1]))
        lines.append(f"{family.name}_count{_braced(words)} {count}")


def _buckets(
    lines: list[str], name: str, words: str, counts: Iterable[tuple[str, float]]
) -> None:
    lead = words + "," if words else ""
    total = 0.0
    for bound, seen in counts:
        total += seen
        lines.append(f'{name}_bucket{{{lead}le="{bound}"}} {_number(total)}')


def _rows(
    family: Family,
    metric: str,
    series: Mapping[tuple[str, ...], Cells],
    configuration: MetricsConfiguration,
) -> _Rows:
    return [
        (_words(labels), cells)
        for labels, cells in rows_of(family, metric, series, configuration)
    ]


def rows_of(
    family: Family,
    metric: str,
    series: Mapping[tuple[str, ...], Cells],
    configuration: MetricsConfiguration,
) -> list[tuple[dict[str, str], Cells]]:
    """Omit unwanted namespaces and labels; add up rows that become equal.

    ``metric``: the family's name, or that of its counter. None if it is not exposed.
    """
    exposure = configuration.exposure_of(metric)
    if not exposure.enabled:
        return []
    kept = [
        at
        for at, name in enumerate(family.labels)
        if name not in exposure.disabled_labels
    ]
    space = family.labels.index(family.by_namespace) if family.by_namespace else -1
    names = [family.labels[at] for at in kept]
    found: dict[tuple[str, ...], Cells] = {}
    for labels, cells in series.items():
        if space >= 0 and not configuration.counts(labels[space]):
            continue
        key = tuple([labels[at] for at in kept])
        known = found.get(key)
        # KYVERNO: of gauges whose labels become equal, one is used, as in
        # OpenTelemetry.
        if known is None or family.kind == "gauge":
            found[key] = cells
        else:
            found[key] = [a + b for a, b in zip(known, cells, strict=True)]
    return [(dict(zip(names, key, strict=True)), found[key]) for key in sorted(found)]


def _words(labels: Mapping[str, str]) -> str:
    return ",".join(
        f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()
    )


def _braced(words: str) -> str:
    return f"{{{words}}}" if words else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
