"""Record a worker's metrics in its metric page.

Room: webhook. Takes: results of reviews. Gives: ports.Records. Next: telemetry.record.
May touch: the page of this process.
Source: docs/behaviour/controllers 9.2 (names and label values).

SAFETY: the page has one writer, the thread that creates PageRecords; threads of the
slow lane and of the audit queue pass their counts to that thread's event loop.
"""

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from threading import get_ident
from typing import Final

from kyverno_mp.policy.cel_kinds.served import SERVED_CEL_KINDS
from kyverno_mp.program.reporting import IMAGE_VERIFY as _IMAGES
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import IMAGE_VERIFY, PolicyResponse, SharedResponses
from kyverno_mp.telemetry.families import (
    IMAGE_POLICY_RESULTS,
    MUTATING_RESULTS,
    VALIDATING_RESULTS,
)
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.webhook.audit.records import space_of
from kyverno_mp.webhook.route import (
    CEL_WEBHOOKS,
    IVPOL,
    IVPOL_MUTATE,
    MPOL,
    MUTATE,
    MUTATING,
    NIVPOL,
    NIVPOL_MUTATE,
    NMPOL,
    VALIDATE,
)

_WEBHOOK: Final = {
    name: "MutatingWebhookConfiguration"
    if name in MUTATING
    else "ValidatingWebhookConfiguration"
    for name in (VALIDATE, MUTATE, *CEL_WEBHOOKS)
}
_OF_IMAGES: Final = frozenset({IVPOL, NIVPOL, IVPOL_MUTATE, NIVPOL_MUTATE})
_PATHS: Final = {name: ("POST", f"/{name}") for name in _WEBHOOK}
_Outcome = tuple[str, str, str, bool, str, Hashable]
_LOWER: Final = {
    "CREATE": "create",
    "UPDATE": "update",
    "DELETE": "delete",
    "CONNECT": "connect",
}


class PageRecords:
    """Records in the page of ``recorder``."""

    __slots__ = (
        "_admission",
        "_cel",
        "_errors",
        "_http",
        "_loop",
        "_mutations",
        "_owner",
        "_recorder",
    )

    def __init__(self, recorder: Recorder, loop: asyncio.AbstractEventLoop) -> None:
        """``loop`` must run in the thread that calls this constructor."""
        self._recorder = recorder
        self._loop = loop
        self._owner = get_ident()
        self._admission = recorder.admission
        self._http = recorder.http
        self._errors = recorder.errors
        self._cel = recorder.series(VALIDATING_RESULTS)
        self._mutations = recorder.series(MUTATING_RESULTS)

    def review(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        *,
        allowed: bool,
        seconds: float,
    ) -> None:
        """Count one answered review and the results of its rules; thread-safe."""
        if get_ident() != self._owner:
            again = partial(self.review, allowed=allowed, seconds=seconds)
            self._hand_over(partial(again, request, webhook, responses))
            return
        labels = (
            request.kind,
            space_of(request),
            _LOWER[request.operation],
            "true" if allowed else "false",
            _WEBHOOK[webhook],
        )
        self._admission.observe(labels, seconds)
        self._http.observe(_PATHS[webhook], seconds)
        if responses:
            if webhook in (MPOL, NMPOL):
                self._cel_mutations(request, responses, seconds)
            elif webhook in _OF_IMAGES:
                self._cel_images(request, responses, seconds)
            elif webhook in CEL_WEBHOOKS:
                self._cel_results(request, responses, seconds)
            else:
                self._results(request, webhook, responses, seconds)

    def _cel_results(
        self, request: Request, responses: Sequence[PolicyResponse], seconds: float
    ) -> None:
        """Count the results of policies in CEL.

        PERF: reviews with the same outcome share their responses and are one series.
        """

        def members() -> list[tuple[str, ...]]:
            return [_cel_labels(request, response) for response in responses]

        if type(responses) is SharedResponses:
            space = space_of(request)
            key = (responses.outcome, request.kind, space, request.operation)
            self._recorder.policies.observe(key, members, seconds)
            return
        share = seconds / len(responses)
        for labels in members():
            self._cel.observe(labels, share)

    def _cel_mutations(
        self, request: Request, responses: Sequence[PolicyResponse], seconds: float
    ) -> None:
        share = seconds / len(responses)
        for response in responses:
            policy = response.policy
            labels = (
                "true" if policy.background else "false",
                policy.namespace or "-",
                policy.name,
                request.kind,
                space_of(request),
                _LOWER[request.operation],
                "admission_request",
                response.results[0].status,
            )
            self._mutations.observe(labels, share)

    def _cel_images(
        self, request: Request, responses: Sequence[PolicyResponse], seconds: float
    ) -> None:
        share = seconds / len(responses)
        observe = self._recorder.series(IMAGE_POLICY_RESULTS).observe
        for response in responses:
            observe(_cel_labels(request, response), share)

    def _results(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        seconds: float,
    ) -> None:
        """Count equal outcomes of equal requests together.

        PERF: one series per rule and review would cost 5 us. SAFETY: a key refers to no
        policy, because keys are kept longer than a snapshot.
        """
        key: _Outcome = (
            request.kind,
            space_of(request),
            request.operation,
            request.dry_run,
            webhook,
            responses.outcome
            if type(responses) is SharedResponses
            else tuple([_identity(r) for r in responses]),
        )

        def members() -> list[tuple[str, ...]]:
            return [row for r in responses for row in _rows(request, webhook, r)]

        self._recorder.rules.observe(key, members, seconds)

    def audit(
        self,
        request: Request,
        webhook: str,
        responses: Sequence[PolicyResponse],
        seconds: float,
    ) -> None:
        """Count the results of auditing policies, which do not delay the caller."""
        self._results(request, webhook, responses, seconds)

    def http(self, method: str, path: str, seconds: float) -> None:
        """Count one HTTP request."""
        self._http.observe((method, path), seconds)

    def error(self, code: str) -> None:
        """Count one error by its code; thread-safe."""
        if get_ident() != self._owner:
            self._hand_over(partial(self.error, code))
            return
        self._errors.count((code,))

    def _hand_over(self, count: Callable[[], None]) -> None:
        # The loop can already be closed when a late thread ends.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(count)


def _cel_labels(request: Request, response: PolicyResponse) -> tuple[str, ...]:
    policy = response.policy
    return (
        "Kubernetes",
        "true" if policy.background else "false",
        policy.namespace or "-",
        policy.name,
        request.kind,
        space_of(request),
        _LOWER[request.operation],
        "admission_request",
        response.results[0].status,
    )


def _identity(response: PolicyResponse) -> Hashable:
    """Return everything that ``_rows`` reads of a response."""
    policy = response.policy
    return (
        policy.kind,
        policy.namespace,
        policy.name,
        policy.background,
        response.action,
        response.passed,
        response.skipped,
        _details(response) if response.results else (),
    )


def _details(response: PolicyResponse) -> tuple[tuple[str, str, str], ...]:
    return tuple([(r.rule, r.status, r.rule_type) for r in response.results])


def _rows(
    request: Request, webhook: str, response: PolicyResponse
) -> list[tuple[str, ...]]:
    """Return the labels of each rule's result (telemetry.families.RESULTS)."""
    policy = response.policy
    if policy.kind in SERVED_CEL_KINDS:
        return []  # counted with the answer, in a separate family
    statuses = (
        *((rule, "pass", "") for rule in response.passed),
        *((rule, "skip", "") for rule in response.skipped),
        *_details(response),
    )
    return [
        (
            response.action.lower() or "audit",
            "namespaced" if policy.namespace else "cluster",
            "true" if policy.background else "false",
            policy.namespace or "-",
            policy.name,
            request.kind,
            space_of(request),
            _LOWER[request.operation],
            rule,
            status,
            # Other results are labelled with the webhook: validate or mutate.
            _IMAGES if kind == IMAGE_VERIFY else webhook,
            "admission_request",
            "true" if request.dry_run else "false",
        )
        for rule, status, kind in statuses
    ]
