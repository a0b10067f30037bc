"""Render metric families as the Prometheus text format.

Room: telemetry. Takes: merged series and gauges. Gives: text for GET /metrics.
May touch: nothing. Source: Prometheus exposition format 0.0.4.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kyverno_mp.policy.metrics_configuration import Exposure, MetricsConfiguration
from kyverno_mp.telemetry.collect import Cells, Merged
from kyverno_mp.telemetry.families import Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_DEFAULT: Final = MetricsConfiguration()
_Rows = list[tuple[str, Cells]]
"""Label values as text -> cells, sorted by label values."""


def render(
    recorded: Merged,
    gauges: Mapping[Family, Mapping[tuple[str, ...], float]],
    configuration: MetricsConfiguration = _DEFAULT,
) -> str:
    """Return all families that have to be shown, each with its help and type."""
    lines: list[str] = []
    for family, series in recorded.items():
        if family.kind == "histogram":
            _histogram(lines, family, series, configuration)
        else:
            _plain(lines, family, series, configuration)
    for family, values in gauges.items():
        cells = {labels: [value] for labels, value in values.items()}
        _plain(lines, family, cells, configuration)
    return "\n".join(lines) + "\n"


def _plain(
    lines: list[str],
    family: Family,
    series: Mapping[tuple[str, ...], Cells],
    configuration: MetricsConfiguration,
) -> None:
    exposure = configuration.exposure_of(family.name)
    if not exposure.enabled:
        return
    _head(lines, family.name, family.kind, family.text)
    for words, cells in _rows(family, series, exposure, configuration):
        lines.append(f"{family.name}{_braced(words)} {_number(cells[0])}")


def _histogram(
    lines: list[str],
    family: Family,
    series: Mapping[tuple[str, ...], Cells],
    configuration: MetricsConfiguration,
) -> None:
    counter = family.counted_as
    exposure = configuration.exposure_of(counter)
    if counter and exposure.enabled:
        _head(lines, counter, "counter", family.counted_text)
        for words, cells in _rows(family, series, exposure, configuration):
            lines.append(f"{counter}{_braced(words)} {_number(sum(cells[:-1]))}")
    exposure = configuration.exposure_of(family.name)
    if not exposure.enabled:
        return
    bounds = configuration.buckets_of(family.name)
    texts = (*(f"{bound:.12g}" for bound in bounds), "+Inf")
    _head(lines, family.name, "histogram", family.text)
    for words, cells in _rows(family, series, exposure, configuration):
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


def _head(lines: list[str], name: str, kind: str, text: str) -> None:
    lines.append(f"# HELP {name} {text}")
    lines.append(f"# TYPE {name} {kind}")


def _rows(
    family: Family,
    series: Mapping[tuple[str, ...], Cells],
    exposure: Exposure,
    configuration: MetricsConfiguration,
) -> _Rows:
    """Leave out unwanted namespaces and labels; add up rows that become equal."""
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
        # KYVERNO: of gauges that become equal, one wins, as in OpenTelemetry.
        if known is None or family.kind == "gauge":
            found[key] = cells
        else:
            found[key] = [a + b for a, b in zip(known, cells, strict=True)]
    return [(_words(names, key), found[key]) for key in sorted(found)]


def _words(names: Sequence[str], values: Sequence[str]) -> str:
    return ",".join(
        f'{name}="{value.translate(_ESCAPES)}"'
        for name, value in zip(names, values, strict=True)
    )


def _braced(words: str) -> str:
    return f"{{{words}}}" if words else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
