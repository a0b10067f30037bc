"""Keep certificates and webhook configurations: the admission role's controllers.

Room: controllers. Takes: Objects, an Election, documents of policies, Discovery. Gives:
objects in the API server; the pair to serve with. Next: process/cluster.py runs it.
May touch: the API server through kube, the clock.
Source: spec/controllers.md 3.2, 4, 8.

Every replica reads the Secrets, for it serves with them; the lease holder alone writes.
A round is cheap when nothing changed, and mends within one interval what was deleted or
edited. What is registered stays registered when this process dies (3.7).
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from kyverno_mp.controllers.certificates.reconcile import Kept
from kyverno_mp.controllers.certificates.reconcile import read as read_certificates
from kyverno_mp.controllers.certificates.reconcile import reconcile as keep_certificates
from kyverno_mp.controllers.certificates.rules import CertificateRules
from kyverno_mp.controllers.policy_status import PolicyStatuses, Served
from kyverno_mp.controllers.webhook_config.options import WebhookOptions
from kyverno_mp.controllers.webhook_config.reconcile import reconcile
from kyverno_mp.controllers.webhook_config.resources import desired
from kyverno_mp.errors import DependencyError, InputError, LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.lease import Election
from kyverno_mp.policy.cluster_policy import AnyPolicy, ClusterPolicy, Policy
from kyverno_mp.policy.decode import decode
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_TAKEN_AFTER: Final = timedelta(seconds=3)
"""Workers look for a new certificate every second; before they have the first one, the
API server would trust none of their answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the controllers ask of others at each round."""

    documents: Callable[[], Iterable[Json]]
    """Policies as they are in the cluster."""
    directory: Callable[[], Directory]
    options: Callable[[bytes], WebhookOptions]
    """The operator's part, given the CA bundle."""
    static: Callable[[WebhookOptions], list[Json]]
    """Configurations for paths of ours that do not depend on policies."""
    may_register: Callable[[], bool]
    """Whether this pod can answer: nothing that may block is registered before."""
    served: Callable[[], Served]
    """What every worker of this pod has in force."""
    serve_with: Callable[[Kept], None]
    """Takes the pair when it is new."""


class AdmissionControllers:
    """The state between two rounds."""

    def __init__(
        self,
        objects: Objects,
        election: Election,
        rules: CertificateRules,
        inputs: Inputs,
    ) -> None:
        self._objects = objects
        self._guarded = objects.guarded(election.guard)
        self._election = election
        self._rules = rules
        self._inputs = inputs
        self._served = (b"", b"")
        self._serving_since = datetime.max.replace(tzinfo=UTC)
        self._computed: tuple[Directory, bytes, list[Json]] | None = None
        self._policies: list[AnyPolicy] = []
        self._statuses = PolicyStatuses(self._guarded)
        self._terms_held = 0
        self._problems: tuple[str, ...] = ()

    def forget(self) -> None:
        """Compute the configurations anew at the next round: policies changed."""
        self._computed = None

    def step(self, now: datetime) -> bool:
        """Do one round; False when something could not be done now."""
        try:
            kept = self._certificates(now)
            self._serve(kept, now)
            if kept.ca_bundle and self._election.holds():
                if now - self._serving_since < _TAKEN_AFTER:
                    return False
                return self._webhooks(kept.ca_bundle) and self._tell(now)
        except LeaseLost:
            return False
        except DependencyError as error:
            _log.warning("controllers: %s", error.message)
            return False
        return True

    def _certificates(self, now: datetime) -> Kept:
        if not self._election.holds():
            return read_certificates(self._objects, self._rules)
        kept = keep_certificates(self._guarded, self._rules, now)
        if kept.problems != self._problems:
            self._problems = kept.problems
            for problem in kept.problems:
                _log.error("%s", problem)
        return kept

    def _serve(self, kept: Kept, now: datetime) -> None:
        pair = (kept.certificate, kept.key)
        if all(pair) and pair != self._served:
            self._inputs.serve_with(kept)
            if not all(self._served):
                self._serving_since = now
            self._served = pair

    def _webhooks(self, ca_bundle: bytes) -> bool:
        if not self._inputs.may_register():
            return False
        directory = self._inputs.directory()
        known = self._computed
        if known is None or known[0] is not directory or known[1] != ca_bundle:
            known = (directory, ca_bundle, self._wanted(directory, ca_bundle))
            self._computed = known
        reconcile(self._guarded, known[2])
        return True

    def _wanted(self, directory: Directory, ca_bundle: bytes) -> list[Json]:
        options = self._inputs.options(ca_bundle)
        self._policies = list(self._decoded())
        found = desired(self._policies, directory, options)
        return [found.validating, found.mutating, *self._inputs.static(options)]

    def _tell(self, now: datetime) -> bool:
        """Write statuses; False when the workers are not as far as the policies."""
        if self._election.terms_held != self._terms_held:
            self._terms_held = self._election.terms_held
            self._statuses.forget()
        return self._statuses.write(self._policies, self._inputs.served(), now)

    def _decoded(self) -> Iterable[AnyPolicy]:
        for raw in self._inputs.documents():
            try:
                document = decode(raw)
            except InputError as error:
                _log.warning("policy left out of the webhooks: %s", error.message)
                continue
            if isinstance(document, ClusterPolicy | Policy):
                yield document
