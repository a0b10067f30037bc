"""Compute the results of reviews and the cost of each rule from the metrics.

Room: dashboard. Takes: the merged series of all processes, the metadata of
policies. Gives: Activity. Next: pages.py.
Source: docs/metrics.md (kyverno_policy_execution_duration_seconds).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kyverno_mp.dashboard.entries import (
    DIMENSIONS,
    RESULTS,
    Counts,
    Group,
    sorted_groups,
)
from kyverno_mp.telemetry.collect import Merged
from kyverno_mp.telemetry.families import ADMISSION, OVERFLOW
from kyverno_mp.telemetry.families import RESULTS as MEASURED

_CLUSTER: Final = "-"
"""The label's value for a cluster-wide policy."""
_AT: Final = {name: number for number, name in enumerate(MEASURED.labels)}


@dataclass(frozen=True, slots=True)
class About:
    """The severity and category from a policy's annotations."""

    severity: str = ""
    category: str = ""


NOTHING: Final = About()


@dataclass(slots=True)
class Cost:
    """The number of evaluations of a rule, and their total time."""

    count: int = 0
    seconds: float = 0.0

    @property
    def mean_us(self) -> float:
        """The mean time of one evaluation, in microseconds."""
        return 1e6 * self.seconds / self.count if self.count else 0.0


class Pace(NamedTuple):
    """The reviews of the last seconds."""

    per_s: float
    mean_us: float


@dataclass(slots=True)
class Activity:
    """Counts since the processes started. ``costs``: by policy, then by rule."""

    reviews: int = 0
    seconds: float = 0.0
    """The time of all reviews."""
    totals: Counts = field(default_factory=Counts)
    by: dict[str, dict[str, Counts]] = field(
        default_factory=lambda: {dimension: {} for dimension in DIMENSIONS}
    )
    costs: dict[str, dict[str, Cost]] = field(default_factory=dict)

    def groups(self, dimension: str) -> list[Group]:
        """Return the counts by one of DIMENSIONS."""
        return sorted_groups(self.by[dimension], dimension)

    def cost_of(self, policy: str) -> Cost:
        """Return the cost of all rules of a policy."""
        rules = self.costs.get(policy, {}).values()
        return Cost(
            sum(rule.count for rule in rules), sum(rule.seconds for rule in rules)
        )


def activity_of(merged: Merged, about: Mapping[str, About]) -> Activity:
    """Return the counts and costs. ``about``: by the key of the policy."""
    activity = Activity()
    for cells in merged.get(ADMISSION, {}).values():
        activity.reviews += int(sum(cells[:-1]))
        activity.seconds += cells[-1]
    for labels, cells in merged.get(MEASURED, {}).items():
        count, seconds = int(sum(cells[:-1])), cells[-1]
        key = _key(labels)
        rules = activity.costs.setdefault(key, {})
        cost = rules.setdefault(labels[_AT["rule_name"]], Cost())
        cost.count += count
        cost.seconds += seconds
        result = labels[_AT["rule_result"]]
        if result in RESULTS:
            description = about.get(key, NOTHING)
            values = {
                "policy": key,
                "namespace": labels[_AT["resource_namespace"]],
                "severity": description.severity,
                "category": description.category,
            }
            _count(activity, values, result, count)
    return activity


def _count(
    activity: Activity, values: Mapping[str, str], result: str, count: int
) -> None:
    activity.totals.of[result] += count
    for dimension, label in values.items():
        groups = activity.by[dimension]
        value = "" if label == _CLUSTER else label
        if value not in groups:
            groups[value] = Counts()
        groups[value].of[result] += count


def _key(labels: tuple[str, ...]) -> str:
    namespace, name = labels[_AT["policy_namespace"]], labels[_AT["policy_name"]]
    return name if namespace in (_CLUSTER, OVERFLOW) else f"{namespace}/{name}"
