"""Find the collectors of traces and metrics in the settings.

Room: telemetry. Takes: Settings. Gives: Collector; why one cannot be used. Next:
telemetry/tracing.py, process/metrics_push.py. May touch: files of certificates.
Source: docs/behaviour/controllers 9.2, 9.3.

The address is the operator's; nothing of a policy names it.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kyverno_mp.settings.settings import Settings

GRPC: Final = "grpc"
EXTRA: Final = "otel"


@dataclass(frozen=True, slots=True)
class Collector:
    """A collector of OpenTelemetry. ``ca_file``: "" = the system's authorities."""

    url: str
    protocol: str
    ca_file: str = ""

    @property
    def is_tls(self) -> bool:
        """Whether it is called by TLS."""
        return self.url.startswith("https:")

    def authorities(self) -> bytes | None:
        """Return the certificates of its authorities, None for the system's."""
        return Path(self.ca_file).read_bytes() if self.ca_file else None


def of_traces(settings: Settings) -> Collector | None:
    """Return the collector of traces, None if nothing is traced."""
    if not settings.traces:
        return None
    return _collector(settings, settings.traces_host, settings.traces_port)


def of_metrics(settings: Settings) -> Collector | None:
    """Return the collector to which metrics are pushed, None if they are not."""
    if not (settings.metrics and settings.metrics_push):
        return None
    return _collector(settings, settings.metrics_push_host, settings.metrics_push_port)


def _collector(settings: Settings, host: str, port: int) -> Collector:
    scheme = "https" if settings.otlp_tls else "http"
    return Collector(
        f"{scheme}://{host}:{port}", settings.otlp_protocol, settings.otlp_ca_file
    )


def problem(settings: Settings) -> str:
    """Return why the collectors cannot be used, or ""."""
    if not (settings.traces or settings.metrics_push):
        return ""
    names = "KYVERNO_MP_TRACES, KYVERNO_MP_METRICS_PUSH"
    module = f"opentelemetry.exporter.otlp.proto.{settings.otlp_protocol}"
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        return f"{names}: needs the packages of the extra {EXTRA}"
    return ""
