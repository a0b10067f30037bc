"""Track which objects of a resource to evaluate again, and by which policies.

Room: reports. Takes: the rules that may match the resource, the changes. Gives:
Scanned. Next: reports/scan/coordinator.py lists the due objects.
Source: docs/pools.md 4.

A changed policy only makes its own rows outdated, so objects are evaluated by this
policy alone. The unit is the policy, because a rule may depend on the other rules of
its policy (``applyRules: One``).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from kyverno_mp.kube.resource import Resource
from kyverno_mp.queues.work_queue import Backoff
from kyverno_mp.reports.feed import Keys, joined_keys
from kyverno_mp.reports.plan import ScannedRule, signature_of
from kyverno_mp.reports.scan.watches import KindWatch

EVERYWHERE: Final = ""
_BACKOFF: Final = Backoff(least_s=1.0, most_s=300.0)
_NONE: Final[Keys] = frozenset()
Known: TypeAlias = Mapping[tuple[str, str, str], tuple[bytes, Keys]]
"""Policy -> a digest of its rules, and their keys."""


class Scanned:
    """One resource that is scanned."""

    def __init__(self, watch: KindWatch, rules: list[ScannedRule]) -> None:
        self.watch = watch
        self._known: Known = {}
        self.take_rules(rules)
        self.due: dict[str, Keys | None] = {}
        """Namespaces with objects to evaluate (``EVERYWHERE`` = all), and the keys of
        the rules to evaluate (None = all)."""
        self.started_s = 0.0
        self._failures = 0
        self._paused_until_s = float("-inf")
        self._watch_lists = 0
        """The lists of the watch when a list failed."""

    def mark(
        self, namespaces: Iterable[str], now_s: float, only: Keys | None = None
    ) -> None:
        """Mark the objects of namespaces for evaluation.

        ``only``: by the policies with these rules; None = by all.
        """
        for namespace in namespaces:
            self.due[namespace] = joined_keys(self.due.get(namespace, _NONE), only)
        if self.due:
            self.started_s = self.started_s or now_s

    def is_to_list(self, now_s: float) -> bool:
        """Return whether there is a due list that may be started now."""
        # The first list of a watch delivers all objects.
        informer = self.watch.informer
        is_over = now_s >= self._paused_until_s or informer.lists > self._watch_lists
        return bool(self.due) and informer.synced and is_over

    def lists(self) -> list[tuple[str, Keys | None]]:
        """Return the namespaces to list, and the rules to evaluate for each."""
        if EVERYWHERE in self.due and self.due[EVERYWHERE] is None:
            return [(EVERYWHERE, None)]
        return sorted(self.due.items(), key=lambda entry: entry[0])

    def listed(self, namespace: str) -> None:
        """Record that a list is complete."""
        if self.due.pop(namespace) is None and namespace == EVERYWHERE:
            self.due.clear()
        self._failures = 0

    def failed(self, now_s: float) -> None:
        """List again after a back-off, or when the watch can list the objects."""
        self._watch_lists = self.watch.informer.lists
        self._failures += 1
        self._paused_until_s = now_s + _BACKOFF.pause_s(self._failures)

    @property
    def resource(self) -> Resource:
        """The resource."""
        return self.watch.resource

    def take_rules(self, rules: list[ScannedRule]) -> Keys:
        """Record the digests of the rules.

        Return the keys of all rules of changed, added or removed policies.
        """
        before, self._known = self._known, known_of(rules)
        self.reads_labels = any(rule.reads_labels for rule in rules)
        self.reads_data = any(rule.reads_data for rule in rules)
        return changed_keys(before, self._known)


def known_of(rules: Iterable[ScannedRule]) -> Known:
    """Return the digests that show whether the rules of a resource have changed."""
    rules_of: dict[tuple[str, str, str], list[ScannedRule]] = {}
    for rule in rules:
        policy = rule.policy
        rules_of.setdefault((policy.kind, policy.namespace, policy.name), []).append(
            rule
        )
    return {
        policy: (
            signature_of(policy_rules),
            frozenset(rule.key for rule in policy_rules),
        )
        for policy, policy_rules in rules_of.items()
    }


def changed_keys(before: Known, after: Known) -> Keys:
    """Return the keys of all rules of changed, added or removed policies."""
    return frozenset(_changed(before, after))


def _changed(before: Known, after: Known) -> Iterator[bytes]:
    """Yield the old and new keys of policies that differ."""
    for policy in before.keys() | after.keys():
        if before.get(policy) != after.get(policy):
            for versions in (before, after):
                yield from versions.get(policy, (b"", _NONE))[1]
