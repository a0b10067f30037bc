"""Compare two verdicts about one request, and count the changes.

Room: cli. Takes: Verdicts before and after, a Line. Gives: Change records and Tables.
Next: output.
Source: docs/replay.md (changes).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kyverno_mp.cli.replay.verdicts import ALLOWED, DENIED, UNDECIDABLE, Verdict
from kyverno_mp.limits import REPLAY_LISTED_MAX
from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.recording.format import Answer, Line

NOW_DENIED: Final = "denied"
NOW_ALLOWED: Final = "allowed"
MUTATED: Final = "mutated"
NOT_DECIDABLE: Final = "undecidable"
CHANGES: Final = (NOW_DENIED, NOT_DECIDABLE, MUTATED, NOW_ALLOWED)
"""Values of --fail-on, in the order of the output."""
UNCHANGED: Final = "unchanged"
_OPERATIONS_SHOWN: Final = 3
_NOT_ANSWERED: Final = (("", "the recorded answer was that of a failurePolicy"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One request whose verdict changes, or may change."""

    change: str
    time_ms: int
    webhook: str
    operation: str
    kind: str
    namespace: str
    name: str
    user: str
    policies: tuple[str, ...]
    """Policies that deny now, denied before, mutate differently or are undecided."""
    reasons: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Missing data of undecided policies: "policy p: ConfigMap a/b"."""


@dataclass(slots=True)
class Tables:
    """All counts of one run."""

    requests: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    by: dict[str, dict[str, Counter[str]]] = field(
        default_factory=lambda: {"policy": {}, "namespace": {}, "user": {}}
    )
    """Dimension -> value -> change -> number of requests."""
    needs: Counter[str] = field(default_factory=Counter)
    listed: list[Change] = field(default_factory=list)

    def add(self, change: Change | None) -> None:
        """Count one request; None means that its verdict does not change."""
        self.requests += 1
        if change is None:
            self.changes[UNCHANGED] += 1
            return
        self.changes[change.change] += 1
        for policy in change.policies or ("(none)",):
            self._count("policy", policy, change.change)
        self._count("namespace", change.namespace or "(cluster)", change.change)
        self._count("user", change.user or "(none)", change.change)
        self.needs.update(change.needs)
        if len(self.listed) < REPLAY_LISTED_MAX:
            self.listed.append(change)

    def _count(self, dimension: str, value: str, change: str) -> None:
        self.by[dimension].setdefault(value, Counter())[change] += 1


def recorded_verdict(answer: Answer) -> Verdict:
    """Return the recorded answer as a verdict."""
    if answer.failed:
        return Verdict(UNDECIDABLE, undecided=_NOT_ANSWERED)
    outcome = ALLOWED if answer.allowed else DENIED
    return Verdict(outcome, tuple(answer.policies), patch=tuple(answer.patch))


def unchanged_policies(
    before: Mapping[str, object], after: Mapping[str, object]
) -> frozenset[str]:
    """Return the keys of policies that are equal in both sets."""
    return frozenset(key for key, policy in after.items() if before.get(key) == policy)


def change_of(
    line: Line, webhook: str, before: Verdict, after: Verdict, unchanged: frozenset[str]
) -> Change | None:
    """Return the change of a verdict, None if it stays the same.

    ``unchanged``: policies that decide as before, even if the decision is unknown.
    """
    if UNDECIDABLE in (before.outcome, after.outcome):
        if decide_alike(before, after, unchanged):
            return None
        undecided = {*before.undecided, *after.undecided}
        policies = sorted({policy for policy, _ in undecided if policy})
        needs = [
            f"policy {policy}: {need}" if policy else need
            for policy, need in sorted(undecided)
        ]
        return _change(NOT_DECIDABLE, line, webhook, policies, needs=needs)
    if after.outcome == DENIED and before.outcome == ALLOWED:
        return _change(NOW_DENIED, line, webhook, after.policies, reasons=after.reasons)
    if after.outcome == ALLOWED and before.outcome == DENIED:
        return _change(
            NOW_ALLOWED, line, webhook, before.policies, reasons=before.reasons
        )
    if after.outcome == ALLOWED and after.patch != before.patch:
        policies = sorted({*before.policies, *after.policies} - unchanged)
        reasons = _differences(before, after)
        return _change(MUTATED, line, webhook, policies, reasons=reasons)
    return None


def _differences(before: Verdict, after: Verdict) -> tuple[str, ...]:
    """Describe the first operations that only one of the patches has."""
    differences = [
        f"no longer: {_text_of(operation)}"
        for operation in before.patch
        if operation not in after.patch
    ]
    differences += [
        f"now: {_text_of(operation)}"
        for operation in after.patch
        if operation not in before.patch
    ]
    rest = len(differences) - _OPERATIONS_SHOWN
    more = [f"{rest} more operations"] if rest > 0 else []
    return tuple(differences[:_OPERATIONS_SHOWN] + more)


def _text_of(operation: dict[str, Json]) -> str:
    value = f" = {json_text(operation['value'])}" if "value" in operation else ""
    return f"{operation.get('op')} {operation.get('path')}{value}"


def decide_alike(before: Verdict, after: Verdict, unchanged: frozenset[str]) -> bool:
    """Return whether both verdicts lack the same data and otherwise agree."""
    taking = before.took_part | after.took_part
    if not taking or "" in taking:
        return False
    if before.took_part == after.took_part and taking <= unchanged:
        return True
    unknown = {policy for policy, _ in (*before.undecided, *after.undecided)}
    return (
        before.is_validated
        and after.is_validated
        and before.outcome == after.outcome
        and before.undecided == after.undecided
        and unknown <= unchanged
    )


def _change(
    change: str,
    line: Line,
    webhook: str,
    policies: "tuple[str, ...] | list[str]",
    *,
    reasons: tuple[str, ...] = (),
    needs: "tuple[str, ...] | list[str]" = (),
) -> Change:
    request = line.request
    user = _mapping(request.get("userInfo"))
    return Change(
        change=change,
        time_ms=line.time_ms,
        webhook=webhook,
        operation=_text(request.get("operation")),
        kind=line.kind[2],
        namespace=_text(request.get("namespace")),
        name=_name(request),
        user=_text(user.get("username")),
        policies=tuple(policies),
        reasons=reasons,
        needs=tuple(needs),
    )


def _name(request: dict[str, Json]) -> str:
    """Return the object's name, or its generateName followed by ``*``."""
    name = _text(request.get("name"))
    if name:
        return name
    metadata = _mapping(_mapping(request.get("object")).get("metadata"))
    generated = _text(metadata.get("generateName"))
    return _text(metadata.get("name")) or (f"{generated}*" if generated else "")


def _text(value: Json) -> str:
    return value if type(value) is str else ""


def _mapping(value: Json) -> dict[str, Json]:
    return value if type(value) is dict else {}
