"""Reconcile the webhook configurations with the policies, as the lease holder.

Room: controllers. Takes: Objects, an Election, Inputs. Gives: configurations in the API
server; Registered: the policies they cover. Next:
controllers/policy_status_controller.py.
May touch: the API server through kube, the clock. Source:
docs/behaviour/controllers 3.2, 3.6.

The key decides the scope of a reconcile:
- ``POLICIES``: policies changed. Only configurations that differ from the last written
  ones are compared with the API server: one call to read and one to write.
- ``ALL``: compare everything, at least every ten seconds. This repairs deleted or
  edited configurations. A configuration is read only if the watch shows another version
  than the last comparison, or after ten minutes, in case of a missed event.
- ``REFUSED``: a generation was published; reconcile only if the set of earlier versions
  that are kept in place of rejected ones changed.
- ``CONFIGURATION``: the operator's options changed; compute everything again.
- any other key: one of our configurations changed; compare everything, unless the
  change was our own write.

Registered webhooks stay registered when this process dies (3.7).
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kyverno_mp.controllers.health_lease import HealthLease
from kyverno_mp.controllers.policy_status import PolicyName
from kyverno_mp.controllers.webhook_config.cel import (
    cel_mutating_webhooks,
    cel_webhooks,
)
from kyverno_mp.controllers.webhook_config.cel_documents import DecodedCelPolicies
from kyverno_mp.controllers.webhook_config.collect import KnownEntries
from kyverno_mp.controllers.webhook_config.options import WebhookOptions
from kyverno_mp.controllers.webhook_config.policies import (
    DecodedPolicies,
    policies_in_force,
)
from kyverno_mp.controllers.webhook_config.reconcile import RESOURCES, reconcile
from kyverno_mp.controllers.webhook_config.resources import (
    RESOURCE_MUTATING,
    RESOURCE_VALIDATING,
    desired,
    without_bootstrap,
)
from kyverno_mp.errors import DependencyError, KubeRefused, LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.lease import Election
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.queues.clock import Clock
from kyverno_mp.queues.pace import Pace
from kyverno_mp.queues.reconcile import Result
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
NAME: Final = "webhook-controller"
ALL: Final = "all"
POLICIES: Final = "policies"
REFUSED: Final = "refused"
CONFIGURATION: Final = "configuration"
_RESYNC_S: Final = 10.0
_FOLLOW_S: Final = 1.0
"""A replica without the lease or a certificate checks again after this time."""
_OF_RESOURCES: Final = (RESOURCE_VALIDATING, RESOURCE_MUTATING)
_TRUST_S: Final = 600.0
"""How long configurations are not read that did not change according to the watch."""
_WRITTEN_MAX: Final = 64
"""Resource versions of our own writes, to recognize them in the watch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The inputs that the controller reads at each reconcile."""

    documents: Callable[[], Iterable[bytes]]
    """Returns the cluster's policies, as JSON."""
    cel_documents: Callable[[], Iterable[bytes]] = tuple
    """Returns the cluster's policies in CEL, as JSON."""
    directory: Callable[[], Directory]
    ca_bundle: Callable[[], bytes]
    """Returns the CA bundle for callers, empty until workers can serve with it."""
    options: Callable[[bytes], WebhookOptions]
    """Returns the operator's options for a CA bundle."""
    owner: Callable[[], Json | None]
    """Returns the owner of the configurations; called for each full comparison."""
    static: Callable[[WebhookOptions], list[Json]]
    """Returns the configurations that do not depend on policies."""
    may_register: Callable[[], bool]
    """Returns whether this pod can answer; until then, no blocking webhook is
    registered."""
    kept: Callable[[], Mapping[PolicyName, str]]
    """Returns the earlier versions, as JSON, that stay in force in place of rejected
    ones."""
    health: HealthLease
    """Writes objects only while the same election is held."""
    version_of: Callable[[str], str]
    """Returns the resource version of one of our configurations by its key.

    It is "" if there is none, or if the watch is interrupted.
    """


@dataclass(frozen=True, slots=True)
class Registered:
    """The policies that the configurations cover, and the lease term of the write."""

    policies: tuple[AnyPolicy, ...]
    term: int
    cel: tuple[AnyServedPolicy, ...] = ()


@dataclass(frozen=True, slots=True)
class _Basis:
    """The inputs, other than policies, of the computed configurations."""

    directory: Directory
    ca_bundle: bytes
    owner: Json | None
    answers: bool
    kept: Mapping[PolicyName, str]


class WebhookController:
    """The configurations of one cluster; call ``reconcile`` from one thread only."""

    def __init__(
        self,
        objects: Objects,
        election: Election,
        inputs: Inputs,
        clock: Clock,
        *,
        compare_all: Callable[[], object],
        on_registered: Callable[[], object],
    ) -> None:
        """``compare_all`` adds the key ``ALL``.

        ``on_registered`` is called each time ``registered`` is set.
        """
        self._guarded = objects.guarded(election.guard)
        self._election = election
        self._inputs = inputs
        self._health = inputs.health
        self._clock = clock
        self._compare_all = compare_all
        self._on_registered = on_registered
        self._pace = Pace()
        self._policies = DecodedPolicies()
        self._entries = KnownEntries()
        self._cel_policies = DecodedCelPolicies()
        self._cel: tuple[AnyServedPolicy, ...] = ()
        self._computed: tuple[_Basis, list[Json]] | None = None
        self._written_last: list[Json] = []
        """The API server's configurations after the last comparison."""
        self._versions: deque[str] = deque(maxlen=_WRITTEN_MAX)
        self._compared: dict[str, tuple[str, Json]] = {}
        """By key: the version of a configuration, and the one that it is equal to."""
        self._compared_since_s = 0.0
        self._create_only: tuple[str, ...] = ()
        self._current: tuple[AnyPolicy, ...] = ()
        self._term = 0
        self.registered: Registered | None = None
        """The configurations in the API server according to our last write."""

    def reconcile(self, key: str) -> Result:
        """Reconcile the configurations within the scope of the key.

        Raises: DependencyError, LeaseLost.
        """
        if key == POLICIES:
            return self._reconcile_changed()
        if key == ALL:
            return self._reconcile_all()
        if key == REFUSED:
            return self._reconcile_changed() if self._kept_moved() else Result()
        if key == CONFIGURATION:
            self._computed = None
            self._compare_all()
        elif self._inputs.version_of(key) not in self._versions:
            self._compare_all()
        return Result()

    def _kept_moved(self) -> bool:
        return (
            self._computed is not None and self._computed[0].kept != self._inputs.kept()
        )

    def answers(self) -> bool:
        """Return whether the API server reaches our webhook, as far as is known."""
        return self._health.answers()

    def _reconcile_changed(self) -> Result:
        if not self._election.holds():
            self._computed = None
            return Result()
        began_s = self._clock.monotonic_s()
        wait_s = self._pace.wait_s(began_s)
        if wait_s > 0:
            return Result(after_s=wait_s)
        if not self._write_changed():
            # The full comparison repeats the work and reports the error.
            self._computed = None
            self._compare_all()
        self._pace.worked(began_s, self._clock.monotonic_s())
        return Result()

    def _write_changed(self) -> bool:
        """Write configurations that changed with the policies; False on failure."""
        if self._computed is None or self._term != self._election.terms_held:
            return False
        basis = replace(self._computed[0], kept=self._inputs.kept())
        try:
            wanted = self._wanted(basis)
            self._write(one for one in wanted if one not in self._written_last)
        except (DependencyError, LeaseLost):
            return False
        self._computed, self._written_last = (basis, wanted), wanted
        self._announce()
        return True

    def _reconcile_all(self) -> Result:
        if not self._election.holds():
            self._computed = None
            return Result(after_s=_FOLLOW_S)
        ca_bundle, directory = self._inputs.ca_bundle(), self._inputs.directory()
        if not ca_bundle:
            return Result(after_s=_FOLLOW_S)
        # Before discovery, no policy would match any resource, and this process would
        # clear the configurations of an earlier one.
        if not self._inputs.may_register() or not directory.resources:
            return Result(retry=True)
        self._begin_term()
        basis = _Basis(
            directory,
            ca_bundle,
            self._inputs.owner(),
            self._health.answers(),
            self._inputs.kept(),
        )
        if self._computed is None or self._computed[0] != basis:
            if not basis.answers:
                _log.error(
                    "the API server does not reach this service: no policy is enforced"
                )
            self._computed = (basis, self._wanted(basis))
        self._write_all(*self._computed)
        self._health.tick(self._clock.now())
        self._announce()
        return Result(after_s=_RESYNC_S)

    def _begin_term(self) -> None:
        if self._term != self._election.terms_held:
            self._term = self._election.terms_held
            self._health.forget()
            self._compared.clear()
        now_s = self._clock.monotonic_s()
        if not self._compared or now_s - self._compared_since_s >= _TRUST_S:
            self._compared.clear()
            self._compared_since_s = now_s

    def _write_all(self, basis: _Basis, wanted: list[Json]) -> None:
        self._written_last = []
        try:
            self._write(wanted)
            self._written_last = wanted
        except KubeRefused as error:
            if error.code != "kube.invalid":
                raise
            # The API server rejects a match condition that our own check accepted.
            _log.error("webhooks without match conditions: %s", error.message)
            self._computed = (basis, self._wanted(basis, fine_grained=False))
            self._write(self._computed[1])

    def _write(self, wanted: Iterable[Json]) -> None:
        def note(desired: Json, stored: Json) -> None:
            version = str(stored["metadata"].get("resourceVersion"))
            self._compared[_key_of(desired)] = version, desired
            if version not in self._versions:
                self._versions.append(version)

        reconcile(
            self._guarded,
            (one for one in wanted if not self._is_unchanged(one)),
            create_only=self._create_only,
            on_compared=note,
        )

    def _is_unchanged(self, desired: Json) -> bool:
        """Return whether the last comparison of a configuration is still valid."""
        key = _key_of(desired)
        version, compared = self._compared.get(key, ("", None))
        watched = self._inputs.version_of(key)
        return bool(version) and version == watched and compared == desired

    def _wanted(self, basis: _Basis, *, fine_grained: bool = True) -> list[Json]:
        options = replace(
            self._inputs.options(basis.ca_bundle),
            owner=basis.owner,
            fine_grained=fine_grained,
        )
        self._create_only = () if options.auto_update else _OF_RESOURCES
        self._current = self._policies.decode(self._inputs.documents())
        # KYVERNO: while we are unreachable, register no blocking webhook (3.6).
        policies: Sequence[AnyPolicy] = ()
        if basis.answers:
            policies = policies_in_force(self._current, basis.kept)
        found = desired(policies, basis.directory, options, self._entries)
        self._cel = self._cel_policies.decode(self._inputs.cel_documents())
        if basis.answers:
            in_force = self._cel_policies.in_force(self._cel, basis.kept)
            found.validating["webhooks"] += cel_webhooks(in_force, options)
            found.mutating["webhooks"] += cel_mutating_webhooks(in_force, options)
        if options.exclude_bootstrap:
            without_bootstrap(found.validating["webhooks"] + found.mutating["webhooks"])
        return [found.validating, found.mutating, *self._inputs.static(options)]

    def _announce(self) -> None:
        self.registered = Registered(self._current, self._term, self._cel)
        self._on_registered()


def _key_of(desired: Json) -> str:
    """Return the key of a configuration, as events of its watch have it."""
    return f"{RESOURCES[desired['kind']].plural}/{desired['metadata']['name']}"
