"""Check periodically that the API server reaches our webhook.

Room: controllers. Takes: Objects guarded by the lease, the time. Gives:
HealthLease: whether webhooks that may block can stay registered.
Next: controllers/webhook_config/controller.py. May touch: one Lease, through kube.
Source: docs/behaviour/controllers 3.6; Kyverno pkg/controllers/webhook (watchdog) at
v1.18.2.

The Lease ``kyverno-health`` is written unchanged; when the API server processes the
write, our own webhook ``/verifymutate`` puts the time into an annotation. If that time
stays the same for ten writes, the API server does not reach us, and none of our
webhooks may block requests.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from kyverno_mp.errors import DependencyError, KubeConflict, KubeNotFound
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.lease import LEASES
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
HEALTH_LEASE: Final = "kyverno-health"
LAST_REQUEST: Final = "kyverno.io/last-request-time"
_LABELS: Final = {"app.kubernetes.io/name": "kyverno"}
_TICK_S: Final = 10.0
_SLACK_S: Final = 1.0
"""Reconciles run about every ten seconds, not exactly."""
_SILENCE_S: Final = 100.0


class HealthLease:
    """The lease holder's observations of the annotation.

    Upstream compares the annotation with its own clock. Here the annotation must have
    changed in the last 100 s by a monotonic clock. A replica that takes over the lease
    after an outage therefore checks first, and an old annotation does not remove
    webhooks (14.16).
    """

    def __init__(
        self,
        objects: Objects,
        namespace: str,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._key = (namespace, HEALTH_LEASE)
        self._clock_s = clock_s
        self._asked_s: float | None = None
        self._moved_s = 0.0
        self._seen = ""
        self._written: Json | None = None
        """The Lease as the API server returned it last."""

    def forget(self) -> None:
        """Start over, after another replica held the lease."""
        self._asked_s = None

    def answers(self) -> bool:
        """Return whether the API server reached our webhook in the last 100 s."""
        if self._asked_s is None:
            return True
        return self._clock_s() - self._moved_s < _SILENCE_S

    def tick(self, now: datetime) -> None:
        """Write the Lease when due. Raises: LeaseLost, nothing else."""
        started_s = self._clock_s()
        if self._asked_s is None:
            self._moved_s = started_s
        elif started_s - self._asked_s < _TICK_S - _SLACK_S:
            return
        self._asked_s = started_s
        try:
            seen = _time_of(self._write(now))
        except DependencyError as error:
            _log.warning("lease %s: %s", HEALTH_LEASE, error.message)
            return
        if seen != self._seen:
            self._seen, self._moved_s = seen, started_s

    def _write(self, now: datetime) -> Json:
        known, self._written = self._written, None
        if known is not None:
            try:
                self._written = self._objects.replace(LEASES, known)
            except (KubeConflict, KubeNotFound):
                pass
            else:
                return self._written
        self._written = self._read_and_write(now)
        return self._written

    def _read_and_write(self, now: datetime) -> Json:
        found = self._objects.find(LEASES, self._key)
        if found is None:
            return self._objects.create(LEASES, self._new(now))
        metadata = found["metadata"]
        metadata["labels"] = {**(metadata.get("labels") or {}), **_LABELS}
        return self._objects.replace(LEASES, found)

    def _new(self, now: datetime) -> Json:
        namespace, name = self._key
        return {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": dict(_LABELS),
                "annotations": {
                    LAST_REQUEST: now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                },
            },
        }


def _time_of(raw: Json) -> str:
    annotations = (raw.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(LAST_REQUEST))
