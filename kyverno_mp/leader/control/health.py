"""Leader health: how the leader of this pod stands with its cluster, in a small file.

Room: leader. Takes: whether callers trust us, when policies were heard of, what cannot
be read. Gives: LeaderHealth (written), reasons_against, what_is_old.
Next: process/health.py answers probes by it.
May touch: ``leader_health.json`` in the runtime folder.
Source: docs/architecture.md 2; docs/behaviour/controllers 2.1 (readiness: the
certificate verifies now).
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from kyverno_mp.queues.reconcile import Result

NAME: Final = "leader-health"
ALL: Final = "all"
"""The one key."""
_EVERY_S: Final = 1.0
_FAILING_S_MAX: Final = 60.0
"""Shorter ones come with every API server that is replaced."""
_POLICIES: Final = frozenset({"clusterpolicies", "policies", "policyexceptions"})


class Failing(msgspec.Struct, frozen=True):
    """A resource that the leader cannot read. ``since_ns``: monotonic."""

    resource: str
    since_ns: int
    reason: str


class LeaderHealth(msgspec.Struct, frozen=True):
    """``heard_ns``: when the API server last said anything of policies, monotonic."""

    trusted: bool
    heard_ns: int
    failing: tuple[Failing, ...] = ()


_NAME = "leader_health.json"
_DECODER = msgspec.json.Decoder(LeaderHealth)


class LeaderHealthController:
    """Writes the record again and again; ``reconcile`` is for one thread."""

    def __init__(self, directory: Path, health: Callable[[], LeaderHealth]) -> None:
        self._directory = directory
        self._health = health

    def reconcile(self, _key: str) -> Result:
        """Write how the leader stands with its cluster now."""
        write_leader_health(self._directory, self._health())
        return Result(after_s=_EVERY_S)


def write_leader_health(directory: Path, health: LeaderHealth) -> None:
    """Replace the file in one step; a reader sees the old or the new, never half."""
    temporary = directory / (_NAME + ".new")
    temporary.write_bytes(msgspec.json.encode(health))
    temporary.replace(directory / _NAME)


def read_leader_health(directory: Path) -> LeaderHealth | None:
    """Return the last record, None when there is none yet."""
    try:
        return _DECODER.decode((directory / _NAME).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def heard_of_policies(
    words_ns: Iterable[int], *, publishes: bool, before_ns: int
) -> int:
    """Return when policies in force were last told of by the API server.

    A leader that began again and could not yet publish, for it cannot read all it needs
    or write the snapshot, may hear of policies: that reaches no worker. ``before_ns``:
    when the leader before it had heard of them, or when the first one began.
    """
    return min(words_ns) if publishes else before_ns


def reasons_against(
    health: LeaderHealth | None, *, now_ns: int, age_s_max: float
) -> tuple[str, ...]:
    """Return what speaks against getting reviews in a cluster.

    ``age_s_max`` 0: however old the policies are.
    """
    if health is None:
        return ("the leader has not told of the cluster",)
    reasons = []
    if not health.trusted:
        reasons.append("the certificate of the cluster is not served or not valid")
    age_s = (now_ns - health.heard_ns) / 1e9
    if age_s_max and age_s > age_s_max:
        reasons.append(f"nothing was heard of policies for {age_s:.0f} s")
    return tuple(reasons)


def what_is_old(health: LeaderHealth | None, *, now_ns: int) -> tuple[str, ...]:
    """Return what has not been readable for long, and what that means.

    No reason against getting reviews: what was published last stays in force.
    """
    return tuple(
        f"{one.resource} cannot be read for {age_s:.0f} s"
        f" ({one.reason or 'see the log of the leader'}):"
        f" {_meaning(one.resource)} may be old"
        for one in (health.failing if health else ())
        if (age_s := (now_ns - one.since_ns) / 1e9) > _FAILING_S_MAX
    )


def _meaning(resource: str) -> str:
    if resource in _POLICIES:
        return "policies"
    # One object by its name is what the operator configures us by.
    return "the configuration" if "/" in resource else "what policies know of them"
