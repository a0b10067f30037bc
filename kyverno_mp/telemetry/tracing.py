"""Start what sends traces, in each process after its fork.

Room: telemetry. Takes: Settings, the role of the process. Gives: the tracer; the
description of the process for collectors. Next: telemetry/traces.py.
May touch: imports the SDK, if it is on; starts a thread.
Source: docs/behaviour/controllers 9.3.
"""

import importlib
import socket
from typing import TYPE_CHECKING, Final

from kyverno_mp.errors import SettingInvalid
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.collector import of_metrics, of_traces, problem
from kyverno_mp.telemetry.traces import Tracer, install

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

_ADMISSION: Final = "kyverno-admission-controller"
_SERVICES: Final = {
    "background": "kyverno-background-controller",
    "cleanup": "kyverno-cleanup-controller",
    "reports": "kyverno-reports-controller",
}
"""Role -> service.name as upstream; the other roles are its admission controller."""
COMMAND: Final = "kyverno-mp"
"""The service of commands."""


def load(settings: Settings) -> None:
    """Import before the fork what sending needs, so that processes share it."""
    collector = of_traces(settings) or of_metrics(settings)
    if collector is not None:
        otlp = importlib.import_module("kyverno_mp.telemetry.otlp")
        otlp.load(collector)


def start_tracing(settings: Settings, role: str) -> Tracer | None:
    """Start the tracer of this process, after its fork; None if nothing is traced."""
    collector = of_traces(settings)
    if collector is None:
        return None
    from kyverno_mp.telemetry.otlp import span_sender

    tracer = Tracer(
        span_sender(collector, resource_of(settings, role)),
        sampled=1.0 if role == COMMAND else settings.traces_sampled,
        slow_ns=int(settings.traces_slow_policy_ms * 1e6),
    )
    install(tracer)
    return tracer


def start_command(settings: Settings) -> Tracer | None:
    """Start the tracer of a command. Raises: SettingInvalid."""
    reason = problem(settings)
    if reason:
        raise SettingInvalid("settings.invalid", reason)
    return start_tracing(settings, COMMAND)


def resource_of(settings: Settings, role: str) -> "Resource":
    """Return the description of this process."""
    from kyverno_mp.telemetry.otlp import resource_of as describe

    service = COMMAND if role == COMMAND else _SERVICES.get(role, _ADMISSION)
    pod = settings.pod_name or socket.gethostname()
    return describe(service, pod, settings.namespace, role)
