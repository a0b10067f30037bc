"""Record results that only a review can produce, before the answer is sent.

Room: webhook. Takes: a Request and its PolicyResponses. Gives: nothing; ResultSink
appends. Next: leader/results/writer.py puts the records into EphemeralReports.
May touch: the journal of this process; counts.
Source: docs/behaviour/controllers 2.10, 6.5; docs/pools.md 3, 4.

The records are in the journal when a method returns, so a kill -9 after the answer
loses none. Rows about a Secret never quote its values (results/entries.py).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import msgspec

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import (
    RESULT_RECORD_BYTES_MAX,
    RESULT_ROWS_CACHED_MAX,
    RESULT_ROWS_MAX,
)
from kyverno_mp.program.reporting import (
    IMAGE_VERIFY,
    MUTATE,
    VALIDATE,
    Reporting,
    decisive,
)
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse, RuleResult
from kyverno_mp.program.secrecy import hides_values
from kyverno_mp.queues.journal import Journal
from kyverno_mp.results.entries import Subject, public_row_of, row_facts
from kyverno_mp.results.records import encode_results, encode_row
from kyverno_mp.webhook.audit.records import space_of
from kyverno_mp.webhook.ports import Records

JOURNAL_FULL: Final = "webhook.results_full"
TOO_LARGE: Final = "webhook.result_too_large"
_EVENT: Final = ("Event", frozenset({"", "events.k8s.io"}))
_DELETE: Final = "DELETE"


class ResultSink:
    """Appends records to this worker's journal; thread-safe."""

    def __init__(
        self,
        journal: Journal,
        records: Records,
        reporting: Reporting,
        now_ns: Callable[[], int],
    ) -> None:
        """``now_ns`` returns the wall-clock time."""
        self._journal = journal
        self._records = records
        self._reporting = reporting
        self._now_ns = now_ns
        self._rows: dict[tuple[object, ...], msgspec.Raw] = {}

    def takes(self, request: Request) -> bool:
        """Return whether an object exists whose report gets results of the request.

        KYVERNO: nothing is reported for a dry run, a deletion or an Event, nor for
        objects without an identity, such as the options of a CONNECT (controllers
        2.10).
        """
        return _is_reported(request) and bool(_uid_of(request))

    def validated(self, request: Request, responses: Iterable[PolicyResponse]) -> None:
        """Record results of an allowed request for reports, with their messages."""
        self._append(request, responses)

    def evaluated(
        self,
        request: Request,
        responses: Iterable[PolicyResponse],
        derived: Iterable[PolicyResponse],
    ) -> None:
        """Record results of policies in CEL that scans do not produce.

        ``derived`` are results that a scan also produces, if objects are scanned.
        """
        reporting = self._reporting
        found = [*responses, *(() if reporting.scans else derived)]
        self._append(
            request, [r for r in found if reporting.reports(r.policy, VALIDATE)]
        )

    def mutated(self, request: Request, responses: Iterable[PolicyResponse]) -> None:
        """Record the results of mutate rules.

        KYVERNO: the object may have no uid yet, so its name identifies it (6.6).
        """
        self._append_of(MUTATE, request, responses)

    def verified(self, request: Request, responses: Iterable[PolicyResponse]) -> None:
        """Record the results of verifyImages rules, because scans run later.

        KYVERNO: subresources are not reported (docs/behaviour/images 2.6).
        """
        if not request.subresource:
            found = [
                replace(response, results=decisive(response.results))
                for response in responses
            ]
            self._append_of(IMAGE_VERIFY, request, found)

    def _append_of(
        self, kind: str, request: Request, responses: Iterable[PolicyResponse]
    ) -> None:
        reporting = self._reporting
        if kind in reporting.types and _is_reported(request):
            self._append(
                request, [r for r in responses if reporting.reports(r.policy, kind)]
            )

    def _append(self, request: Request, responses: Iterable[PolicyResponse]) -> None:
        rows = [
            self._row(response.policy, result, request.kind)
            for response in responses
            for result in response.results
            if self._reporting.has(result.status)
        ]
        subject = subject_of(request) if rows else None
        if subject is None:
            return
        at_ns = self._now_ns()
        for start in range(0, len(rows), RESULT_ROWS_MAX):
            part = rows[start : start + RESULT_ROWS_MAX]
            content = encode_results(at_ns, subject, part)
            if len(content) > RESULT_RECORD_BYTES_MAX:
                self._records.error(TOO_LARGE)
            elif not self._journal.append(content, space_of(request)):
                self._records.error(JOURNAL_FULL)

    def _row(self, policy: PolicyIR, rule_result: RuleResult, kind: str) -> msgspec.Raw:
        """Return the encoded row. PERF: most messages are the same for all objects."""
        if rule_result.properties:
            return _encoded(policy, rule_result, kind)
        hides = hides_values(kind)
        content = (
            *(
                rule_result.rule,
                rule_result.status,
                rule_result.message,
                rule_result.exceptions,
            ),
            rule_result.validation,
        )
        key = (*row_facts(policy), *content, hides)
        known = self._rows.get(key)
        if known is None:
            if len(self._rows) >= RESULT_ROWS_CACHED_MAX:
                self._rows.clear()
            known = self._rows[key] = _encoded(policy, rule_result, kind)
        return known


def _encoded(policy: PolicyIR, rule_result: RuleResult, kind: str) -> msgspec.Raw:
    return encode_row(public_row_of(policy, rule_result, kind))


def subject_of(request: Request) -> Subject | None:
    """Return the object of the report, None if the object has no identity.

    KYVERNO: for a subresource, it is the object named by the path (6.6).
    """
    name = request.name or _text(_metadata(request).get("name"))
    uid = "" if request.subresource else _uid_of(request)
    if not (uid or name):
        # It has generateName, and no uid before it is stored.
        return None
    group, version = request.group, request.version
    return Subject(
        api_version=f"{group}/{version}" if group else version,
        kind=request.kind,
        name=name,
        # A Namespace is not namespaced, although its reviews contain a namespace.
        namespace="" if request.kind == "Namespace" else request.namespace,
        uid=uid,
    )


def _is_reported(request: Request) -> bool:
    if request.dry_run or request.operation == _DELETE:
        return False
    return not (request.kind == _EVENT[0] and request.group in _EVENT[1])


def _uid_of(request: Request) -> str:
    return _text(_metadata(request).get("uid"))


def _metadata(request: Request) -> dict[str, object]:
    metadata = request.object.get("metadata")
    return metadata if type(metadata) is dict else {}


def _text(value: object) -> str:
    return value if type(value) is str else ""
