"""Record the results of generate and mutate-existing rules for the reports.

Room: background. Takes: results of a rule for a trigger, and the written objects.
Gives: RuleResults. Next: leader/results/writer.py puts the records into
EphemeralReports. May touch: a journal of this process; counts.
Source: docs/behaviour/controllers 6.2, 6.5; Kyverno pkg/background/{generate,mutate},
pkg/utils/report/results.go.

The row is in the report of the trigger. A row of a mutate-existing rule describes one
target, even if there are several, because their rows have the same key.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.background.objects.downstream import CREATED, Done
from kyverno_mp.background.update_request import Task
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import RESULT_RECORD_BYTES_MAX
from kyverno_mp.pool.sinks import Metrics
from kyverno_mp.program import result
from kyverno_mp.program.generate.pattern import Generated
from kyverno_mp.program.generate.rule import ElementsFailed
from kyverno_mp.program.reporting import GENERATE, MUTATE_EXISTING, Reporting
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.secrecy import hides_values
from kyverno_mp.results.entries import Row, Subject, public_row_of
from kyverno_mp.results.records import encode_results, encode_row
from kyverno_mp.telemetry.families import ERRORS
from kyverno_mp.values.jsonvalue import Json

JOURNAL_FULL: Final = "background.results_full"
TOO_LARGE: Final = "background.result_too_large"
_EVENT: Final = ("Event", frozenset({"", "events.k8s.io"}))
_GENERATED: Final = "generated-resources"
_TARGET: Final = "patched-target"
_WORST: Final = (result.ERROR, result.FAIL, result.WARNING, result.PASS, result.SKIP)
"""Decides which result is reported when there are several targets."""


Objects = list[Generated]


class Wanted(NamedTuple):
    """The objects that a matching rule generates for a trigger."""

    objects: Objects
    result: RuleResult
    request: Request
    problem: ElementsFailed | None = None
    """The error of the elements that failed."""

    def check(self) -> None:
        """Raise the error of the elements that failed, if any."""
        if self.problem is not None:
            raise self.problem


@dataclass(frozen=True, slots=True)
class RuleResults:
    """Appends records to a journal; threads may share it. ``now_ns``: wall clock."""

    append: Callable[[bytes], bool]
    """Appends to the journal; returns False when it is full."""
    reporting: Reporting
    metrics: Metrics
    now_ns: Callable[[], int]

    def generated(
        self,
        policy: PolicyIR,
        rule_result: RuleResult,
        request: Request,
        named: Sequence[Generated] = (),
    ) -> None:
        """Record a generate rule. ``named``: its objects (``is_named``)."""
        # KYVERNO: a result without objects is reported regardless of allowedResults.
        if named and not self.reporting.has(rule_result.status):
            return
        names = "; ".join(
            _named(generated.target.api_version, generated.resource)
            for generated in named
        )
        self._record(GENERATE, policy, rule_result, request, {_GENERATED: names})

    def mutated(
        self,
        policy: PolicyIR,
        results: Iterable[RuleResult],
        request: Request,
        kinds: Sequence[str] | None,
    ) -> None:
        """Record a mutate-existing rule. ``kinds``: of its targets; None = unknown."""
        reported = [
            rule_result
            for rule_result in results
            if self.reporting.has(rule_result.status)
        ]
        if not reported:
            return
        worst = min(reported, key=lambda rule_result: _WORST.index(rule_result.status))
        target = worst.patched_target
        # The message of a pass has only what the property has: the target's name.
        hides = worst.status != result.PASS and (
            kinds is None or any(map(hides_values, kinds))
        )
        named = _named(str(target.get("apiVersion")), target) if target else ""
        self._record(
            *(MUTATE_EXISTING, policy, worst, request, {_TARGET: named}), hides=hides
        )

    def mutated_target(
        self, policy: PolicyIR, rule_result: RuleResult, request: Request
    ) -> None:
        """Record a MutatingPolicy for one target, the object of ``request``.

        KYVERNO: unlike for a rule, the row is in the report of the target.
        """
        if self.reporting.has(rule_result.status):
            self._record(MUTATE_EXISTING, policy, rule_result, request, {})

    def _record(
        self,
        rule_type: str,
        policy: PolicyIR,
        rule_result: RuleResult,
        request: Request,
        properties: dict[str, str],
        *,
        hides: bool = False,
    ) -> None:
        subject = _subject_of(request)
        if subject is None or not self.reporting.reports(policy, rule_type):
            return
        kind = "Secret" if hides else request.kind
        row = public_row_of(policy, rule_result, kind)
        if not hides_values(request.kind):
            # Names of objects may contain values of the trigger.
            row = _with(row, properties)
        content = encode_results(self.now_ns(), subject, [encode_row(row)])
        if len(content) > RESULT_RECORD_BYTES_MAX:
            self.metrics.count(ERRORS, (TOO_LARGE,))
        elif not self.append(content):
            self.metrics.count(ERRORS, (JOURNAL_FULL,))


def is_named(done: Done, task: Task) -> bool:
    """Return whether the row names an object that a rule generates.

    KYVERNO: after a review, it names the objects that are new. A run without one, such
    as that of a new holder of the lease, may find objects of an earlier run; its row
    replaces that of the earlier run, so it names them, too.
    """
    return done.action == CREATED or (done.is_own and task.request is None)


def _with(row: Row, properties: dict[str, str]) -> Row:
    present = {name: value for name, value in properties.items() if value}
    return msgspec.structs.replace(row, properties={**row.properties, **present})


def _named(api_version: str, raw: Json) -> str:
    """Return an object's name in upstream's format, with Go's text of its kind."""
    metadata = raw.get("metadata") or {}
    group, _, version = api_version.rpartition("/")
    name = f"{group}/{version}, Kind={raw.get('kind')} Name={metadata.get('name')}"
    namespace = metadata.get("namespace")
    return f"{name} Namespace={namespace}" if namespace else name


def _subject_of(request: Request) -> Subject | None:
    """Return the trigger, or None if it is gone or cannot have a report."""
    if request.kind == _EVENT[0] and request.group in _EVENT[1]:
        return None
    metadata = request.object.get("metadata") or {}
    if request.operation == "DELETE" or request.subresource or not metadata.get("uid"):
        return None
    group, version = request.group, request.version
    return Subject(
        api_version=f"{group}/{version}" if group else version,
        kind=request.kind,
        name=str(metadata.get("name") or ""),
        namespace=str(metadata.get("namespace") or ""),
        uid=str(metadata["uid"]),
    )
