"""Reconcile the certificates: the CA bundle to register and the pair to serve.

Room: controllers. Takes: Objects, an Election, CertificateRules. Gives: the CA bundle
to register, the pair to serve with. Next: controllers/webhook_config/controller.py
registers the bundle. May touch: the API server through kube, the clock.
Source: docs/behaviour/controllers 4, 8.

Every replica reads the Secrets, because it serves them; only the lease holder writes.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from kyverno_mp.controllers.certificates.overlap import Overlap
from kyverno_mp.controllers.certificates.plan import certificates_of, is_trusted
from kyverno_mp.controllers.certificates.reconcile import CertificateSecrets
from kyverno_mp.controllers.certificates.reconcile import read as read_secrets
from kyverno_mp.controllers.certificates.reconcile import reconcile as renew_secrets
from kyverno_mp.controllers.certificates.rules import CertificateRules
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.lease import Election
from kyverno_mp.queues.clock import Clock
from kyverno_mp.queues.reconcile import Result

_log = logging.getLogger(__name__)
NAME: Final = "certmanager-controller"
ALL: Final = "all"
"""The only key."""
_RESYNC_S: Final = 10.0
_FOLLOW_S: Final = 1.0
"""A replica without the lease polls the Secrets at this interval."""
_TAKEN_AFTER: Final = timedelta(seconds=3)
"""Workers check for a new certificate every second. Until they have the first one, the
API server trusts none of their answers."""


class CertificateController:
    """The certificates of one replica; call ``reconcile`` from one thread only."""

    def __init__(
        self,
        objects: Objects,
        election: Election,
        rules: CertificateRules,
        clock: Clock,
        serve_with: Callable[[CertificateSecrets], None],
        on_bundle: Callable[[], object],
    ) -> None:
        """Take the callbacks for a new pair and for a new ``ca_bundle``."""
        self._objects = objects
        self._guarded = objects.guarded(election.guard)
        self._election = election
        self._rules = rules
        self._clock = clock
        self._serve_with = serve_with
        self._on_bundle = on_bundle
        self._overlap = Overlap()
        self._bundle = b""
        self._announced = b""
        self._served = (b"", b"")
        self._serving_since = datetime.max.replace(tzinfo=UTC)
        self._is_taken = False
        """Whether the workers have their first certificate."""
        self._problems: tuple[str, ...] = ()

    def reconcile(self, _key: str) -> Result:
        """Renew certificates that are due, and serve the current pair.

        Raises: DependencyError, LeaseLost.
        """
        now = self._clock.now()
        secrets = self._secrets(now)
        self._bundle = self._overlap.bundle(secrets.ca_bundle, now)
        served = self._serve(secrets, now)
        if self.ca_bundle() != self._announced:
            self._announced = self.ca_bundle()
            self._on_bundle()
        return Result(after_s=self._again_s(now, served=served))

    def ca_bundle(self) -> bytes:
        """Return the CA bundle for callers, empty until workers can serve with it."""
        return b"" if self._untaken(self._clock.now()) > timedelta(0) else self._bundle

    def is_trusted(self) -> bool:
        """Return whether callers that trust the cluster's CA bundle trust us now."""
        now = self._clock.now()
        if self._untaken(now) > timedelta(0):
            return False
        leaf = self._served[0]
        return is_trusted(certificates_of(leaf), certificates_of(self._bundle), now)

    def _untaken(self, now: datetime) -> timedelta:
        """Return how long workers may still lack their first certificate."""
        if not all(self._served):
            return _TAKEN_AFTER
        if self._is_taken:
            # This stays true even if the wall clock is set back.
            return timedelta(0)
        left = _TAKEN_AFTER - (now - self._serving_since)
        self._is_taken = left <= timedelta(0)
        return min(left, _TAKEN_AFTER)

    def _again_s(self, now: datetime, *, served: bool) -> float:
        if not served or not self._election.holds():
            return _FOLLOW_S
        left_s = self._untaken(now).total_seconds()
        return min(_RESYNC_S, left_s) if left_s > 0 else _RESYNC_S

    def _secrets(self, now: datetime) -> CertificateSecrets:
        if not self._election.holds():
            return read_secrets(self._objects, self._rules)
        secrets = renew_secrets(self._guarded, self._rules, now)
        if secrets.problems != self._problems:
            self._problems = secrets.problems
            for problem in secrets.problems:
                _log.error("%s", problem)
        return secrets

    def _serve(self, secrets: CertificateSecrets, now: datetime) -> bool:
        """Serve the pair; return False while the previous pair must still be served."""
        pair = (secrets.certificate, secrets.key)
        if not all(pair) or pair == self._served:
            return True
        if self._overlap.waits(pair, self._served[0], self._bundle, now):
            return False
        self._serve_with(secrets)
        if not all(self._served):
            self._serving_since = now
        self._served = pair
        return True
