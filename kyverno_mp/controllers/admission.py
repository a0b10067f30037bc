"""Keep certificates and webhook configurations: the admission role's controllers.

Room: controllers. Takes: Objects, an Election, documents of policies, Discovery. Gives:
objects in the API server; the pair to serve with. Next: process/cluster.py runs it.
May touch: the API server through kube, the clock.
Source: spec/controllers.md 3.2, 3.6, 4, 8.

Every replica reads the Secrets, for it serves with them; the lease holder alone writes.
A round is cheap when nothing changed, and mends within one interval what was deleted or
edited. What is registered stays registered when this process dies (3.7).
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from kyverno_mp.controllers.certificates.overlap import Overlap
from kyverno_mp.controllers.certificates.plan import certificates_of, is_trusted
from kyverno_mp.controllers.certificates.reconcile import Kept
from kyverno_mp.controllers.certificates.reconcile import read as read_certificates
from kyverno_mp.controllers.certificates.reconcile import reconcile as keep_certificates
from kyverno_mp.controllers.certificates.rules import CertificateRules
from kyverno_mp.controllers.health_lease import HealthLease
from kyverno_mp.controllers.policy_status import (
    InForce,
    PolicyName,
    PolicyStatuses,
    Served,
    name_of,
)
from kyverno_mp.controllers.webhook_config.collect import KnownEntries
from kyverno_mp.controllers.webhook_config.options import WebhookOptions
from kyverno_mp.controllers.webhook_config.reconcile import reconcile
from kyverno_mp.controllers.webhook_config.resources import (
    RESOURCE_MUTATING,
    RESOURCE_VALIDATING,
    desired,
)
from kyverno_mp.errors import DependencyError, InputError, KubeRefused, LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.lease import Election
from kyverno_mp.policy.cluster_policy import AnyPolicy, ClusterPolicy, Policy
from kyverno_mp.policy.decode import decode
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_OF_RESOURCES: Final = (RESOURCE_VALIDATING, RESOURCE_MUTATING)
_WRITTEN_MAX: Final = 64
"""Versions of our own writing that are known again when the watch tells of them."""
_TAKEN_AFTER: Final = timedelta(seconds=3)
"""Workers look for a new certificate every second; before they have the first one, the
API server would trust none of their answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the controllers ask of others at each round."""

    documents: Callable[[], Iterable[bytes]]
    """Policies as they are in the cluster, as JSON."""
    directory: Callable[[], Directory]
    options: Callable[[bytes], WebhookOptions]
    """The operator's part, given the CA bundle."""
    owner: Callable[[], Json | None]
    """With which object the configurations go, asked at each round of the holder."""
    static: Callable[[WebhookOptions], list[Json]]
    """Configurations for paths of ours that do not depend on policies."""
    may_register: Callable[[], bool]
    """Whether this pod can answer: nothing that may block is registered before."""
    served: Callable[[], Served]
    """What every worker of this pod has in force."""
    kept: Callable[[], Mapping[PolicyName, str]]
    """Earlier versions, as JSON, in force in place of those that were refused."""
    behind: Callable[[AnyPolicy], Sequence[str]]
    """Which other replicas do not enforce a policy as it is now."""
    serve_with: Callable[[Kept], None]
    """Takes the pair when it is new."""


@dataclass(frozen=True, slots=True)
class _Basis:
    """Of what, besides the policies, the configurations are computed."""

    directory: Directory
    ca_bundle: bytes
    owner: Json | None
    answers: bool
    kept: Mapping[PolicyName, str]


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
        self._overlap = Overlap()
        self._ca_bundle = b""
        self._computed: tuple[_Basis, list[Json]] | None = None
        self._left_alone: tuple[str, ...] = ()
        self._policies: list[AnyPolicy] = []
        self._decoded: dict[bytes, AnyPolicy | None] = {}
        self._entries = KnownEntries()
        self._written: deque[str] = deque(maxlen=_WRITTEN_MAX)
        self._registered: list[Json] = []
        """What the API server had when it was last compared."""
        self._statuses = PolicyStatuses(self._guarded)
        self._health = HealthLease(self._guarded, rules.namespace)
        self._terms_held = 0
        self._problems: tuple[str, ...] = ()

    def forget(self) -> None:
        """Compute the configurations anew at the next round: policies changed."""
        self._computed = None

    def wrote(self, version: str) -> bool:
        """Tell whether a configuration has this resource version by our own writing."""
        return version in self._written

    def register(self) -> bool:
        """Write at once what changed policies change in the webhooks.

        Only what differs from what was written last is compared with the API server:
        one call to read and one to write. False when that is left to the next round.
        """
        if self._computed is None or not self._election.holds():
            return False
        basis = replace(self._computed[0], kept=self._inputs.kept())
        try:
            wanted = self._wanted(basis)
            changed = [one for one in wanted if one not in self._registered]
            self._reconcile(changed)
        except (DependencyError, LeaseLost):
            # The round does it all again, and says what is wrong.
            return False
        self._computed, self._registered = (basis, wanted), wanted
        return True

    def tell(self, now: datetime) -> bool:
        """Write the statuses of policies; False when some must wait for the workers."""
        if self._computed is None or not self._election.holds():
            return True
        try:
            return self._tell(now)
        except LeaseLost:
            return True
        except DependencyError as error:
            _log.warning("statuses: %s", error.message)
            return False

    def is_trusted(self, now: datetime) -> bool:
        """Tell whether callers who know the cluster's authority trust us now."""
        if now - self._serving_since < _TAKEN_AFTER:
            return False
        leaf, bundle = self._served[0], self._ca_bundle
        return is_trusted(certificates_of(leaf), certificates_of(bundle), now)

    def step(self, now: datetime) -> bool:
        """Do one round; False when something could not be done now."""
        try:
            kept = self._certificates(now)
            self._ca_bundle = self._overlap.bundle(kept.ca_bundle, now)
            served = self._serve(kept, now)
            if self._ca_bundle and self._election.holds():
                if now - self._serving_since < _TAKEN_AFTER:
                    return False
                done = self._webhooks(self._ca_bundle, now) and self._tell(now)
                return done and served
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

    def _serve(self, kept: Kept, now: datetime) -> bool:
        """Serve with the pair; False while the one before is to be served on."""
        pair = (kept.certificate, kept.key)
        if not all(pair) or pair == self._served:
            return True
        if self._overlap.waits(pair, self._served[0], self._ca_bundle, now):
            return False
        self._inputs.serve_with(kept)
        if not all(self._served):
            self._serving_since = now
        self._served = pair
        return True

    def _webhooks(self, ca_bundle: bytes, now: datetime) -> bool:
        directory = self._inputs.directory()
        # Before the API server told what it serves no policy would be of any resource,
        # and what an earlier process registered would be emptied.
        if not self._inputs.may_register() or not directory.resources:
            return False
        if self._election.terms_held != self._terms_held:
            self._terms_held = self._election.terms_held
            self._statuses.forget()
            self._health.forget()
        basis = _Basis(
            directory,
            ca_bundle,
            self._inputs.owner(),
            self._health.answers(),
            self._inputs.kept(),
        )
        if self._computed is None or self._computed[0] != basis:
            if not basis.answers:
                _log.error("the API server does not reach us, no policy is enforced")
            self._computed = (basis, self._wanted(basis))
        try:
            self._registered = []
            self._reconcile(self._computed[1])
            self._registered = self._computed[1]
        except KubeRefused as error:
            if error.code != "kube.invalid":
                raise
            # What our own view of a policy's match conditions did not see.
            _log.error("webhooks without match conditions: %s", error.message)
            self._computed = (basis, self._wanted(basis, fine_grained=False))
            self._reconcile(self._computed[1])
        self._health.tick(now)
        return True

    def _reconcile(self, wanted: Sequence[Json]) -> None:
        def note(raw: Json) -> None:
            self._written.append(str(raw["metadata"].get("resourceVersion")))

        reconcile(self._guarded, wanted, create_only=self._left_alone, on_written=note)

    def _wanted(self, basis: "_Basis", *, fine_grained: bool = True) -> list[Json]:
        options = replace(
            self._inputs.options(basis.ca_bundle),
            owner=basis.owner,
            fine_grained=fine_grained,
        )
        self._left_alone = () if options.auto_update else _OF_RESOURCES
        self._policies = list(self._decode(self._inputs.documents()))
        # KYVERNO: nothing is registered that may block while nobody reaches us (3.6).
        judging = self._judging(basis.kept) if basis.answers else ()
        found = desired(judging, basis.directory, options, self._entries)
        return [found.validating, found.mutating, *self._inputs.static(options)]

    def _judging(self, kept: Mapping[PolicyName, str]) -> list[AnyPolicy]:
        """Return the policies in the versions by which workers judge.

        Where one was refused, requests must come by what the last valid version names.
        """
        found = [one for one in self._policies if name_of(one) not in kept]
        earlier = (_decoded(text.encode()) for text in kept.values())
        return [*found, *(one for one in earlier if one is not None)]

    def _tell(self, now: datetime) -> bool:
        """Write statuses; False when the workers are not as far as the policies."""
        served = self._inputs.served()
        if not self._health.answers():
            served = {
                name_of(one): InForce(ready=False, generation=one.metadata.generation)
                for one in self._policies
            }
        behind = self._inputs.behind
        return self._statuses.write(self._policies, served, now, behind)

    def _decode(self, documents: Iterable[bytes]) -> Iterator[AnyPolicy]:
        """Give the policies; one whose text is as before is the same object."""
        known, self._decoded = self._decoded, {}
        for text in documents:
            found = known[text] if text in known else _decoded(text)
            self._decoded[text] = found
            if found is not None:
                yield found


def _decoded(text: bytes) -> AnyPolicy | None:
    try:
        document = decode(msgspec.json.decode(text))
    except InputError as error:
        _log.warning("policy left out of the webhooks: %s", error.message)
        return None
    return document if isinstance(document, ClusterPolicy | Policy) else None
