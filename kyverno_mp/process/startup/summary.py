"""Summarise in one line which policies are in force and which items were omitted.

Room: process. Takes: the leader's Status. Gives: Summary.
Next: process/banner.py, process/roles/health.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from kyverno_mp.leader.status import PolicyStatus, Status
from kyverno_mp.policy.cel_kinds.served import SERVED_CEL_KINDS

_NAMED_MAX: Final = 3
_CHANGES: Final = frozenset({"mutate", "generate"})
"""Rules of these types neither enforce nor audit."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of policies in force; names of policies that are not."""

    policies: int
    enforcing: int
    """Policies with a rule that can deny requests."""
    changing: int
    """Policies that only mutate or generate."""
    rules: int
    """Rules in force, including those of autogen."""
    rejected: tuple[str, ...]
    """Policies without a version in force."""
    partial: tuple[str, ...]
    """Policies with only an earlier version, or only some rules, in force."""
    problems: int
    """Files, documents and values that could not be used."""
    cel_kinds: tuple[str, ...] = ()
    """The kinds of policies.kyverno.io in force, which have separate URL paths."""

    def fields(self) -> dict[str, object]:
        """Return the summary for a log line."""
        return asdict(self)

    def text(self) -> str:
        """Return the summary as one line."""
        line = (
            f"{_count(self.policies, 'policy')} in force with"
            f" {_count(self.rules, 'rule')} (autogen included):"
            f" {self.enforcing} enforce,"
            f" {self.policies - self.enforcing - self.changing} audit"
        )
        if self.changing:
            line += f", {self.changing} mutate or generate"
        left_out = []
        if self.rejected:
            left_out.append(_named(self.rejected))
        if self.partial:
            left_out.append(f"parts of {_named(self.partial)}")
        if self.problems:
            left_out.append(_count(self.problems, "problem"))
        if not left_out:
            return f"{line}; nothing omitted"
        return f"{line}; omitted: {', '.join(left_out)} (reasons in /policies)"


def summary_of(status: Status) -> Summary:
    """Summarise the leader's last publication."""
    active = [policy for policy in status.policies if policy.rules]
    judging = [one for one in active if not _changes(one)]
    return Summary(
        policies=len(active),
        enforcing=sum(one.mode == "enforce" for one in judging),
        changing=len(active) - len(judging),
        rules=sum(len(one.rules) for one in active),
        rejected=_keys(one for one in status.policies if not one.rules),
        partial=_keys(one for one in active if not one.ready),
        problems=len(status.problems),
        cel_kinds=tuple(sorted({one.kind for one in active} & SERVED_CEL_KINDS)),
    )


def _changes(policy: PolicyStatus) -> bool:
    return all(rule.rule_type in _CHANGES for rule in policy.rules)


def _keys(policies: Iterable[PolicyStatus]) -> tuple[str, ...]:
    return tuple(
        f"{policy.namespace}/{policy.name}" if policy.namespace else policy.name
        for policy in policies
    )


def _count(number: int, word: str) -> str:
    if number == 1:
        return f"1 {word}"
    many = word.removesuffix("y") + "ies" if word.endswith("y") else word + "s"
    return f"{number} {many}"


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED_MAX])
    more = len(names) - _NAMED_MAX
    rest = f" and {more} more" if more > 0 else ""
    return f"{_count(len(names), 'policy')} ({shown}{rest})"
