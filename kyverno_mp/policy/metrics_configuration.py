"""Read the ConfigMap ``kyverno-metrics`` into a MetricsConfiguration, key by key.

Room: policy. Takes: the ConfigMap's data, the last valid values. Gives: the exposed
metrics and the rejected keys. Next: leader/configuration.py, which publishes it;
webhook/configured.py and process/roles/health.py, which apply it.
Source: docs/behaviour/controllers 9.2, 10.3; Kyverno
pkg/config/{metricsconfig,types}.go.
"""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec

from kyverno_mp.limits import BUCKETS_MAX
from kyverno_mp.policy.configuration import decode_with
from kyverno_mp.values.go.duration import duration_error, parse_duration

DEFAULT_BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0),
)
"""Kyverno's buckets in seconds, which all its histograms share."""
_COUNTER: Final = "_total"


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """The exposure of one metric: labels and buckets, or disabled."""

    enabled: bool = True
    disabled_labels: tuple[str, ...] = ()
    bucket_boundaries: tuple[float, ...] = ()
    """Empty = the default of all histograms."""


class MetricsConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings for metrics, with the defaults of the code."""

    refresh_interval_s: float = 0.0
    """Interval at which series are reset; 0 = never."""
    include_namespaces: tuple[str, ...] = ()
    """Empty = all namespaces."""
    exclude_namespaces: tuple[str, ...] = ()
    bucket_boundaries: tuple[float, ...] = DEFAULT_BUCKETS
    exposure: dict[str, Exposure] = {}
    """Metric name without ``_total`` -> exposure."""

    def counts(self, namespace: str) -> bool:
        """Return whether events in ``namespace`` are counted; exclusion wins."""
        # KYVERNO: an empty namespace and "-" are always counted (metricsconfig.go).
        if namespace in ("", "-"):
            return True
        if namespace in self.exclude_namespaces:
            return False
        return not self.include_namespaces or namespace in self.include_namespaces

    def exposure_of(self, metric: str) -> Exposure:
        """Return the exposure of a metric."""
        return self.exposure.get(metric.removesuffix(_COUNTER), _AS_IT_IS)

    def buckets_of(
        self, metric: str, default: tuple[float, ...] = ()
    ) -> tuple[float, ...]:
        """Return the bucket boundaries of a histogram.

        ``default``: of a metric that the general boundaries do not fit.
        """
        chosen = self.exposure_of(metric).bucket_boundaries
        return chosen or default or self.bucket_boundaries


_AS_IT_IS: Final = Exposure()


class MetricsDecoded(msgspec.Struct, frozen=True):
    """The decoded ConfigMap, and the reasons why some keys were rejected."""

    configuration: MetricsConfiguration
    problems: tuple[str, ...]


def decode_metrics_configuration(
    data: Mapping[str, str], last: MetricsConfiguration
) -> MetricsDecoded:
    """Read ``data``; ``last`` is used for invalid values."""
    decoded: dict[str, Any] = {}
    problems = [f"{key}: no such key" for key in sorted(data) if key not in _READERS]
    for key, (fields, read) in _READERS.items():
        if key not in data:
            continue
        try:
            decoded.update(read(data[key]))
        except ValueError as error:
            problems.append(f"{key}: {error}; the last good value stays in force")
            decoded.update({name: getattr(last, name) for name in fields})
    return MetricsDecoded(MetricsConfiguration(**decoded), tuple(problems))


def _interval(value: str) -> dict[str, Any]:
    nanoseconds = parse_duration(value)
    if nanoseconds is None:
        raise ValueError(duration_error(value))
    return {"refresh_interval_s": max(0.0, nanoseconds / 1e9)}


class _Namespaces(msgspec.Struct):
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None


_NAMESPACES: Final = msgspec.json.Decoder(_Namespaces | None)


def _namespaces(value: str) -> dict[str, Any]:
    namespaces = decode_with(_NAMESPACES, value) or _Namespaces()
    return {
        "include_namespaces": namespaces.include or (),
        "exclude_namespaces": namespaces.exclude or (),
    }


def _boundaries(value: str) -> dict[str, Any]:
    items = [item.strip() for item in value.split(",")] if value.strip() else []
    boundaries = []
    for item in items:
        try:
            boundaries.append(float(item))
        except ValueError:
            raise ValueError(f"invalid boundary value '{item}'") from None
    return {"bucket_boundaries": _checked(tuple(boundaries))}


def _checked(boundaries: tuple[float, ...]) -> tuple[float, ...]:
    if len(boundaries) > BUCKETS_MAX:
        raise ValueError(f"more than {BUCKETS_MAX} boundaries")
    if not all(math.isfinite(bound) for bound in boundaries):
        raise ValueError("boundaries must be finite")
    if any(low >= high for low, high in pairwise(boundaries)):
        raise ValueError("boundaries must ascend")
    return boundaries


class _Exposed(msgspec.Struct, rename="camel"):
    enabled: bool | None = None
    disabled_label_dimensions: tuple[str, ...] | None = None
    bucket_boundaries: tuple[float, ...] | None = None


_EXPOSURES: Final = msgspec.json.Decoder(dict[str, _Exposed] | None)


def _exposure(value: str) -> dict[str, Any]:
    exposures = decode_with(_EXPOSURES, value) or {}
    # Upstream's chart uses names of counters with _total, which have no effect upstream
    # (docs/behaviour/controllers 14.13). Here both names refer to the metric.
    return {
        "exposure": {
            name.removesuffix(_COUNTER): Exposure(
                enabled=exposure.enabled is not False,
                disabled_labels=exposure.disabled_label_dimensions or (),
                bucket_boundaries=_checked(exposure.bucket_boundaries or ()),
            )
            for name, exposure in exposures.items()
        }
    }


_READERS: Final[
    Mapping[str, tuple[tuple[str, ...], Callable[[str], dict[str, Any]]]]
] = {
    "metricsRefreshInterval": (("refresh_interval_s",), _interval),
    "namespaces": (("include_namespaces", "exclude_namespaces"), _namespaces),
    "bucketBoundaries": (("bucket_boundaries",), _boundaries),
    "metricsExposure": (("exposure",), _exposure),
}
"""Key of the ConfigMap -> (field, parser)."""
