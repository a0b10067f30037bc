"""Write the leader's health, as it sees its cluster, to a small file.

Room: leader. Takes: whether callers trust us, the age of the policies, the unreadable
resources. Gives: LeaderHealth (written), reasons_against, stale_resources.
Next: process/roles/health.py answers probes with it.
May touch: ``leader_health.json`` in the runtime folder.
Source: docs/architecture.md 2; docs/behaviour/controllers 2.1 (readiness: the
certificate is valid now).
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from kyverno_mp.controllers.global_context_status import State
from kyverno_mp.limits import ENTRIES_SHOWN_MAX
from kyverno_mp.queues.reconcile import Result
from kyverno_mp.snapshot.room import replace_record
from kyverno_mp.values.kubernetes.policy_kinds import (
    CEL_GROUP,
    POLICY_EXCEPTION,
    WITH_RULES,
)
from kyverno_mp.values.records import UNDECODABLE

NAME: Final = "leader-health"
ALL: Final = "all"
"""The only key."""
_EVERY_S: Final = 1.0
_FAILING_S_MAX: Final = 60.0
"""Every restart of an API server causes shorter failures than this."""
_POLICIES: Final = frozenset(
    resource.plural for resource in (*WITH_RULES.stored, POLICY_EXCEPTION)
)
_CEL: Final = f".{CEL_GROUP}"
"""The suffix of the plural names of policies in CEL and their exceptions."""


class FailingResource(msgspec.Struct, frozen=True):
    """A resource that the leader cannot read, and since when (monotonic)."""

    resource: str
    since_ns: int
    reason: str


class LeaderHealth(msgspec.Struct, frozen=True):
    """The leader's health.

    ``confirmed_ns``: when the API server last confirmed the policies, monotonic.
    """

    trusted: bool
    confirmed_ns: int
    failing: tuple[FailingResource, ...] = ()
    problems: tuple[str, ...] = ()
    """Other problems, which make the pod degraded, never unready."""


_NAME = "leader_health.json"
_DECODER = msgspec.json.Decoder(LeaderHealth)


class LeaderHealthController:
    """Writes the record if it changed; call ``reconcile`` from one thread only."""

    def __init__(self, directory: Path, health: Callable[[], LeaderHealth]) -> None:
        self._directory = directory
        self._health = health
        self._written: LeaderHealth | None = None

    def reconcile(self, _key: str) -> Result:
        """Write the current health; in a full folder, the next look tries again."""
        current = self._health()
        if current != self._written and write_leader_health(self._directory, current):
            self._written = current
        return Result(after_s=_EVERY_S)


def write_leader_health(directory: Path, health: LeaderHealth) -> bool:
    """Replace the file; return False if the old one stays, in a full folder."""
    return replace_record(directory / _NAME, msgspec.json.encode(health))


def read_leader_health(directory: Path) -> LeaderHealth | None:
    """Return the last record, None if none exists yet."""
    try:
        return _DECODER.decode((directory / _NAME).read_bytes())
    except (OSError, *UNDECODABLE):
        return None


def confirmed_at(watched_ns: Iterable[int], *, publishes: bool, before_ns: int) -> int:
    """Return when the API server last confirmed the policies in force.

    A restarted leader that cannot read all its inputs or write the snapshot may receive
    policies, but it cannot publish them to the workers. ``before_ns`` is the last
    confirmation for the previous leader, or the start of the first one.
    """
    return min(watched_ns, default=before_ns) if publishes else before_ns


def reasons_against(
    health: LeaderHealth | None, *, now_ns: int, age_s_max: float, webhook: bool = True
) -> tuple[str, ...]:
    """Return the reasons why a pod in a cluster is not ready.

    If ``age_s_max`` is 0, policies of any age are acceptable. ``webhook``: whether the
    pod receives reviews, for which it needs a certificate and recent policies.
    """
    if health is None:
        return ("the leader has not reported on the cluster yet",)
    if not webhook:
        return ()
    reasons = []
    if not health.trusted:
        reasons.append("the certificate of the cluster is not served or not valid")
    age_s = (now_ns - health.confirmed_ns) / 1e9
    if age_s_max and age_s > age_s_max:
        reasons.append(f"the watches of policies have been silent for {age_s:.0f} s")
    return tuple(reasons)


def stale_resources(health: LeaderHealth | None, *, now_ns: int) -> tuple[str, ...]:
    """Return what is wrong: resources that have long been unreadable, other problems.

    This does not make the pod unready, because the last publication stays in force.
    """
    stale = tuple(
        f"{failing.resource} could not be read for {age_s:.0f} s"
        f" ({failing.reason or 'see the log of the leader'}):"
        f" {_meaning(failing.resource)} may be old"
        for failing in (health.failing if health else ())
        if (age_s := (now_ns - failing.since_ns) / 1e9) > _FAILING_S_MAX
    )
    return (*stale, *(health.problems if health else ()))


def context_problems(states: Mapping[str, State]) -> tuple[str, ...]:
    """Return the GlobalContextEntries that cannot be read."""
    unready = [(name, state[1]) for name, state in states.items() if not state[0]]
    more = len(unready) - ENTRIES_SHOWN_MAX
    return (
        *(
            f"GlobalContextEntry {name} cannot be read: {message or 'not ready'}"
            for name, message in sorted(unready)[:ENTRIES_SHOWN_MAX]
        ),
        *((f"{more} more GlobalContextEntries cannot be read",) if more > 0 else ()),
    )


def _meaning(resource: str) -> str:
    if resource in _POLICIES or resource.endswith(_CEL):
        return "policies"
    # A single object, selected by name, is a ConfigMap of the operator.
    return "the configuration" if "/" in resource else "their data for policies"
