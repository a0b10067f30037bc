"""Compute which policies every worker of this pod has in force.

Room: leader. Takes: the leader's status, the control page. Gives: InForce by policy.
Next: leader/control/wire.py, for the controllers of statuses and replicas.
May touch: the control page, from which it removes the rows of killed workers.
Source: docs/architecture.md 3 (generations); docs/behaviour/controllers 3.8.
"""

from typing import Final

from kyverno_mp.controllers.policy_status import (
    InForce,
    PolicyName,
    Reported,
    Served,
    name_of,
)
from kyverno_mp.controllers.replicas import Versions
from kyverno_mp.leader.cluster import LivePolicies
from kyverno_mp.leader.status import Status, StatusReader
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.policies import POLICIES
from kyverno_mp.telemetry.page import is_running

_NOTHING: Final[Served] = {}


class ServedPolicies:
    """The policies of the last publication, computed once per publication."""

    def __init__(self, reader: StatusReader, page: ControlPage) -> None:
        self._reader = reader
        self._page = page
        self._status: Status | None = None
        self._served: Served = {}

    def read(self) -> Served:
        """Return the policies in force; empty until every worker has attached them.

        Cost: small; it returns the same object until the next publication.
        """
        status = self._reader.read()
        if not attached_by_all(self._page, status.generation):
            return _NOTHING
        if status is not self._status:
            self._status = status
            self._served = {
                (policy.kind, policy.namespace, policy.name): InForce(
                    policy.ready, policy.message, policy.generation
                )
                for policy in status.policies
            }
        return self._served


def settled_versions(policies: LivePolicies, control: ControlPage) -> Versions | None:
    """Return the versions that all workers use, empty before the first publication.

    None while workers still attach a publication.
    """
    versions, generation = policies.settled
    if versions and not attached_by_all(control, generation):
        return None
    return versions


def attached_by_all(control: ControlPage, generation: int) -> bool:
    """Return whether workers exist and all serve one generation of the policies."""
    # A killed worker never attaches a generation.
    control.clear_stale(is_running)
    workers = control.workers()
    return bool(workers) and all(
        worker.generations.get(POLICIES, 0) >= generation for worker in workers
    )


def earlier_versions_of(status: Status) -> dict[PolicyName, str]:
    """Return the earlier versions that are in force in place of rejected ones."""
    return {
        (policy.kind, policy.namespace, policy.name): policy.in_force
        for policy in status.policies
        if policy.in_force
    }


def version_of(policies: LivePolicies, policy: Reported) -> tuple[str, int]:
    """Return the resource and the version of a policy, 0 if it is deleted."""
    kind, namespace, name = name_of(policy)
    return policies.version_of(kind, (namespace, name))
