"""Encode and decode the operator's configuration as a segment for the workers.

Room: snapshot. Takes: Configured. Gives: values of the data segment ``settings``, and
Configured decoded from it. Next: leader/configuration.py, webhook/configured.py,
process/roles/health.py.
Source: docs/architecture.md 3 (shared data segments); docs/behaviour/controllers 10.3.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.policy.configuration import Configuration
from kyverno_mp.policy.metrics_configuration import MetricsConfiguration
from kyverno_mp.snapshot.data import DataSegment, encode_value
from kyverno_mp.values.records import RecordType

SETTINGS: Final = "settings"
"""Name of the segment."""
_KYVERNO: Final = "kyverno"
_METRICS: Final = "metrics"
_CONFIGURATION: Final = RecordType(Configuration)
_METRICS_CONFIGURATION: Final = RecordType(MetricsConfiguration)


@dataclass(frozen=True, slots=True)
class Configured:
    """The content of both ConfigMaps, or of the settings that replace them."""

    configuration: Configuration = field(default_factory=Configuration)
    metrics: MetricsConfiguration = field(default_factory=MetricsConfiguration)


def values_of(configured: Configured) -> Mapping[str, bytes]:
    """Return the content of the segment."""
    return {
        _KYVERNO: encode_value(msgspec.to_builtins(configured.configuration)),
        _METRICS: encode_value(msgspec.to_builtins(configured.metrics)),
    }


def configured_of(segment: DataSegment) -> Configured:
    """Decode the segment. Raises: SnapshotUnusable."""
    try:
        return Configured(
            _CONFIGURATION.convert(segment.get(_KYVERNO)),
            _METRICS_CONFIGURATION.convert(segment.get(_METRICS)),
        )
    except msgspec.ValidationError as error:
        raise SnapshotUnusable(
            "snapshot.record", f"the configuration cannot be read: {error}"
        ) from error
