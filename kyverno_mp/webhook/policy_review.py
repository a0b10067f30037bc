"""Review policies, PolicyExceptions and GlobalContextEntries themselves.

Room: webhook. Takes: the bytes of an AdmissionReview, a view of the cluster. Gives: the
bytes of the answer. Next: rest. May touch: the cluster only through policy/ports.py.
Source: docs/behaviour/controllers 2.1, 2.9, 7; docs/behaviour/engine 10.

If upstream rejects a document, the answer contains upstream's first message. Documents
that upstream accepts but we could not run are also rejected, with all problems at once.
The API server's schema already finds structural problems, and other problems would
otherwise appear only as a policy that is never ready.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kyverno_mp.admission.decode import decode
from kyverno_mp.admission.encode import allowed, denied
from kyverno_mp.admission.refusal import refusal
from kyverno_mp.compiler.autogen.cel import copy_warnings
from kyverno_mp.compiler.autogen.rules import expand
from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.cel_kinds.exception_review import (
    condition_problems,
    cost_problem,
)
from kyverno_mp.compiler.cel_kinds.review import entry_problems, refusals, too_large
from kyverno_mp.compiler.expression_faults import condition_errors, expression_faults
from kyverno_mp.compiler.index import encode_policy
from kyverno_mp.compiler.linked_size import why_too_large
from kyverno_mp.compiler.type_check import type_warnings
from kyverno_mp.errors import (
    DeadlinePassed,
    DependencyError,
    PolicyInvalid,
    RequestInvalid,
)
from kyverno_mp.expr.compile_budget import TOO_COSTLY, CompileBudget, bounded
from kyverno_mp.limits import POLICY_REVIEW_S_MAX, POLICY_REVIEW_STEPS_MAX
from kyverno_mp.policy.cel_kinds.policies import (
    is_cel_policy,
)
from kyverno_mp.policy.cel_kinds.served import (
    AnyCelDocument,
    authorization_mode,
    decode_cel_document,
    decode_served,
    is_served,
)
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CelPolicyException,
    shown_kind,
)
from kyverno_mp.policy.check import check
from kyverno_mp.policy.checks.cleanup import run_warnings
from kyverno_mp.policy.checks.long_texts import long_texts
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, Rule
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.expiry import EXPIRED, standing
from kyverno_mp.policy.match_conditions import unregistrable
from kyverno_mp.policy.ports import ClusterView, closed
from kyverno_mp.policy.problems import DocumentInvalid, Problem
from kyverno_mp.policy.reading.decode import Decoded, Document, examine
from kyverno_mp.policy.review import ReviewVerdict, review
from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes import policy_kinds as kinds
from kyverno_mp.webhook.author_review import (
    approval_refusal,
    author_refusal,
    has_changed,
    is_of_tenant,
)

_NO_POLICY: Final = "admission request does not contain a policy"
_JUDGED: Final = frozenset({"CREATE", "UPDATE"})

KINDS_OF_PATH: Final[Mapping[str, tuple[str, ...]]] = {
    "/policyvalidate": kinds.WITH_RULES.names,
    "/exceptionvalidate": (kinds.POLICY_EXCEPTION.kind,),
    "/celexception/validate": (kinds.POLICY_EXCEPTION.kind,),
    "/globalcontextvalidate": ("GlobalContextEntry",),
    "/cleanuppolicyvalidate": kinds.CLEANUP_POLICY.names,
}
"""The kinds that each path reviews.

Upstream's clean-up controller has a separate server with the path ``/validate``. Here,
one server handles all paths, so this path has a different name.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewOptions:
    """The inputs of a policy review other than the document."""

    view: ClusterView | None = None
    exceptions_enabled: bool = True
    exception_namespace: str = "*"
    exceptions_need_approval: bool = False
    """Who writes an exception needs the verb ``approve``."""
    ttl_needs_delete: bool = False
    """A TTL label is rejected if its writer may not delete the object."""
    decided: Callable[[Request, str, bytes, float], None] | None = None
    """Called with each request, its path, its answer and the duration in seconds."""


class PolicyReview:
    """Reviews documents; keeps no state of a request.

    It runs in a thread next to an event loop. Its steps and its time are bounded, and
    it releases the interpreter lock between steps.
    """

    def __init__(
        self,
        options: ReviewOptions,
        monotonic_s: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Take the options of this role, and its clocks."""
        self._options = options
        self._monotonic_s = monotonic_s
        self._now_ns = now_ns

    def answer(self, path: str, body: bytes, *, is_proved: bool = True) -> bytes:
        """Answer one review; anyone could have sent it unless it ``is_proved``.

        Raises: RequestInvalid for invalid input.
        """
        try:
            # Subresources of policies are allowed without a review.
            request = decode(body, lambda *_resource: "")
        except RequestInvalid as error:
            answer = refusal(body, error.code, error.message)
            if answer is None:
                raise
            return answer
        decided = self._options.decided
        if decided is None or not is_proved:
            return self._answer(path, request)
        started_s = self._monotonic_s()
        answer = self._answer(path, request)
        decided(request, path, answer, self._monotonic_s() - started_s)
        return answer

    def _answer(self, path: str, request: Request) -> bytes:
        if request.subresource or request.operation not in _JUDGED:
            return allowed(request.uid)
        is_deleted = metadata_of(request.object).get("deletionTimestamp")
        if is_deleted and not has_changed(request):
            # K8S: an object that is being deleted must stay writable, so that its
            # finalizers can be removed. SAFETY: it stays in force until then.
            return allowed(request.uid)
        if is_of_tenant(request) and has_changed(request):
            problems = list(long_texts(request.object))
            if problems:
                return denied(request.uid, "; ".join(map(str, problems)))
        if request.group == "policies.kyverno.io":
            return self._answer_cel(request)
        if request.kind not in KINDS_OF_PATH[path]:
            return denied(request.uid, _NO_POLICY)
        try:
            check_time = self._time_check()
            with bounded(CompileBudget(check_time, POLICY_REVIEW_STEPS_MAX)):
                verdict = self._check(request, check_time)
        except DependencyError as error:
            # A policy that could not be checked is not admitted.
            return denied(request.uid, error.message)
        except PolicyInvalid as error:
            if error.code != TOO_COSTLY:
                raise
            return denied(request.uid, error.message)
        if verdict.error:
            return denied(request.uid, verdict.error)
        return allowed(request.uid, verdict.warnings)

    def _answer_cel(self, request: Request) -> bytes:
        """Review a policy in CEL, or an exception for such policies.

        KYVERNO: the reasons of a denial are repeated as warnings.
        """
        raw = request.object
        if not (is_served(raw) or is_cel_policy(raw)):
            from kyverno_mp.compiler.cel_kinds.authorization import refusals_of

            with bounded(CompileBudget(self._time_check(), POLICY_REVIEW_STEPS_MAX)):
                found = refusals_of(raw)
            # A later release of Kyverno may add a kind.
            where = "the webhook" if authorization_mode(raw) else "this version"
            warning = f"{shown_kind(raw)} is not evaluated by {where}"
            return _judged(request, found, [warning])
        try:
            with bounded(CompileBudget(self._time_check(), POLICY_REVIEW_STEPS_MAX)):
                metadata = {**metadata_of(raw), "namespace": request.namespace}
                document = decode_cel_document({**raw, "metadata": metadata})
                if isinstance(document, CelPolicyException):
                    problem = cost_problem(document)
                    problem = problem or _new_faults(request, document)
                    problem = problem or self._unapproved(request)
                    if problem:
                        return denied(request.uid, problem)
                    warnings = self._exception_warnings(request, document)
                    return allowed(request.uid, warnings)
                found = refusals(document)
                found = found or too_large(document) or self._closed(document)
                found = found or self._refused_author(request, document)
                warnings = list(map(": ".join, copy_warnings(document)))
                if not found:
                    warnings += run_warnings(document)
        except DocumentInvalid as error:
            return denied(request.uid, "; ".join(map(str, error.problems)))
        except (DependencyError, PolicyInvalid) as error:
            return denied(request.uid, error.message)
        return _judged(request, found, warnings)

    def _closed(self, document: AnyCelDocument) -> list[str]:
        view = self._options.view
        opens = closed if view is None else view.opens
        return [
            entry_problem.upstream for entry_problem in entry_problems(document, opens)
        ]

    def _refused_author(self, request: Request, document: AnyCelDocument) -> list[str]:
        reason = author_refusal(request, document, self._options.view)
        return [reason] if reason else []

    def _time_check(self) -> Callable[[], None]:
        """Return a function that checks the time limit of one review."""
        end_s = self._monotonic_s() + POLICY_REVIEW_S_MAX

        def check_time() -> None:
            if self._monotonic_s() > end_s:
                raise DeadlinePassed(
                    "webhook.deadline", "the policy could not be checked in time"
                )
            # Yield: reviews of resources need the interpreter, too.
            time.sleep(0)

        return check_time

    def _check(self, request: Request, check_time: Callable[[], None]) -> ReviewVerdict:
        decoded = examine(request.object)
        document = decoded.document
        if document is None or decoded.problems:
            return ReviewVerdict("; ".join(map(str, decoded.problems)))
        before = examine(request.old_object) if request.old_object else None
        if unread := _newly_ignored(decoded, before):
            return ReviewVerdict("; ".join(unread))
        rules: Sequence[Rule] = ()
        uncompiled: Sequence[str] = ()
        if isinstance(document, AnyPolicy):
            rules, uncompiled = expand(document), condition_errors(document)
        old = before.document if before is not None else None
        view = self._options.view
        verdict = review(
            document, rules=rules, old=old, view=view, uncompiled=uncompiled
        )
        if isinstance(document, PolicyException):
            verdict.warnings[:0] = self._exception_warnings(request, document)
        if not verdict.error:
            verdict.error = _why_not_servable(document, check_time)
        if isinstance(document, PolicyException) and not verdict.error:
            verdict.error = _new_faults(request, document) or self._unapproved(request)
        if not verdict.error:
            verdict.error = author_refusal(request, document, view)
        if isinstance(document, AnyPolicy) and not verdict.error:
            self._warn_of_expressions(document, verdict)
        return verdict

    def _warn_of_expressions(self, document: AnyPolicy, verdict: ReviewVerdict) -> None:
        """Add warnings of upstream's type check and of expressions that never compile.

        Upstream accepts expressions that never compile without a warning, and then
        every request fails.
        """
        view, places = self._options.view, set()
        if view is not None and not verdict.is_cut_short:
            for warning in type_warnings(document, view):
                places.add(warning.place)
                verdict.warnings.append(str(warning))
        verdict.warnings.extend(
            str(fault)
            for fault in expression_faults(document)
            if fault.path not in places
        )

    def _unapproved(self, request: Request) -> str:
        """Raises: DependencyError."""
        if not self._options.exceptions_need_approval:
            return ""
        return approval_refusal(request, self._options.view)

    def _exception_warnings(
        self, request: Request, document: PolicyException | CelPolicyException
    ) -> list[str]:
        options, warnings = self._options, []
        namespace = request.namespace or document.metadata.namespace
        if not options.exceptions_enabled:
            warnings.append(
                "PolicyException resources would not be processed until it is enabled."
            )
        elif not options.exception_namespace:
            warnings.append("The exceptionNamespace flag is not set")
        elif options.exception_namespace not in ("*", namespace):
            warnings.append(
                "PolicyException resource namespace must match the defined namespace."
            )
        if standing(document.expires_at_ns, self._now_ns()) == EXPIRED:
            warnings.append("The PolicyException has expired; it exempts nothing.")
        return warnings


def _newly_ignored(decoded: Decoded, old: Decoded | None) -> list[str]:
    """Return the names that nothing reads, and that no earlier version has.

    A stored policy with such a name can still be changed.
    """
    known = {problem.path for problem in old.ignored} if old is not None else ()
    return [str(problem) for problem in decoded.ignored if problem.path not in known]


def _new_faults(
    request: Request, document: PolicyException | CelPolicyException
) -> str:
    """Return the faults of conditions and annotations that the stored version lacks.

    So a stored exception can still be changed; until then it exempts nothing.
    """
    faults = condition_problems(document)
    if faults and request.old_object:
        stored = _stored_faults(request.old_object)
        faults = [fault for fault in faults if fault not in stored]
    return "; ".join(f"{one} [{one.code}]" for one in faults)


def _stored_faults(raw: Json) -> list[Problem]:
    try:
        found = decode_served(raw) if is_served(raw) else examine(raw).document
    except DocumentInvalid:
        return []
    if isinstance(found, PolicyException | CelPolicyException):
        return condition_problems(found)
    return []


def _judged(
    request: Request, found: Sequence[str], warnings: Sequence[str] = ()
) -> bytes:
    """Answer with the errors of a policy in CEL, which are repeated as warnings."""
    if not found:
        return allowed(request.uid, warnings)
    unique = list(dict.fromkeys(found))
    text = unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"
    return denied(request.uid, text, unique)


def _why_not_servable(document: Document, check_time: Callable[[], None]) -> str:
    """Return why a document cannot run here although upstream accepts it.

    The check costs the same steps as in the leader, and fails in the same cases.
    """
    try:
        with bounded(CompileBudget(check_time)):
            problems = check(document).problems
            if problems:
                return "; ".join(map(str, problems))
            if isinstance(document, PolicyException):
                return cost_problem(document)
            if not isinstance(document, AnyPolicy):
                return ""
            unregistrable_text = unregistrable(document)
            if unregistrable_text:
                return unregistrable_text
            encoded = encode_policy(compile_policy(document, verifies=True))
            return why_too_large(encoded, document.metadata.namespace)
    except PolicyInvalid as error:
        if error.code == TOO_COSTLY:
            return error.message
        return f"{error.where}: {error.message}"
