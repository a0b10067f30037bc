"""Read the properties and exceptions of published policies for the pages.

Room: dashboard. Takes: PolicySegment. Gives: Published: severities, categories, and the
PolicyExceptions in force with their rules. Next: pages.py.
Cost: decodes every rule, once per generation.
"""

from dataclasses import dataclass, field
from datetime import datetime

from kyverno_mp.dashboard.activity import About
from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.limits import DASHBOARD_EXCEPTIONS_MAX
from kyverno_mp.policy.expiry import written
from kyverno_mp.snapshot.policies import PolicySegment


@dataclass(frozen=True, slots=True)
class Exempted:
    """An exception in force.

    ``rules``: the rules that it names, as "policy: rule". ``expires``: the time of its
    end, as RFC 3339; "": it stays.
    """

    key: str
    rules: tuple[str, ...]
    expires: str = ""

    def is_expired(self, now: datetime) -> bool:
        """Return whether it has no effect any more."""
        return bool(self.expires) and datetime.fromisoformat(self.expires) <= now


@dataclass(slots=True)
class Published:
    """The policies in force. ``exceptions_count`` includes unlisted exceptions."""

    generation: int = 0
    about: dict[str, About] = field(default_factory=dict)
    exceptions: tuple[Exempted, ...] = ()
    exceptions_count: int = 0
    problem: str = ""


def published_of(segment: PolicySegment) -> Published:
    """Return the policies and exceptions of a generation."""
    published = Published(segment.generation)
    named: dict[str, list[str]] = {}
    expires: dict[str, str] = {}
    try:
        for position in range(segment.policy_count):
            policy = segment.policy(position)
            published.about[policy.key] = About(policy.severity, policy.category)
            for number in range(segment.rules_of(position)):
                rule = segment.rule(position, number)
                for exception in rule.exceptions:
                    if exception.expires_at_ns is not None:
                        expires[exception.key] = written(exception.expires_at_ns)
                    named.setdefault(exception.key, []).append(
                        f"{policy.key}: {rule.name}"
                    )
    except SnapshotUnusable as error:
        # The pages show this problem and the data that could be read.
        published.problem = error.message
    published.exceptions_count = len(named)
    keys = sorted(named)[:DASHBOARD_EXCEPTIONS_MAX]
    published.exceptions = tuple(
        Exempted(key, tuple(named[key]), expires.get(key, "")) for key in keys
    )
    return published
