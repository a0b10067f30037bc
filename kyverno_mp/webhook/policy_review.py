"""Answer the reviews of policies themselves, of exceptions and of global context.

Room: webhook. Takes: the bytes of an AdmissionReview, a view of the cluster. Gives: the
bytes of the answer. Next: rest. May touch: the cluster only through policy/ports.py.
Source: docs/behaviour/controllers 2.1, 2.9, 7; docs/behaviour/engine 10.

Upstream's first text refuses where upstream refuses. What it would take and we could
not run is refused here too, all problems at once: the API server's schema finds those
of structure before, the rest would only show up as a policy that is never ready.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kyverno_mp.admission.decode import decode
from kyverno_mp.admission.encode import allowed, denied
from kyverno_mp.admission.refusal import refusal
from kyverno_mp.compiler.autogen import expand
from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.expression_faults import condition_errors, expression_faults
from kyverno_mp.compiler.index import encode_policy
from kyverno_mp.compiler.type_check import type_warnings
from kyverno_mp.errors import (
    DeadlinePassed,
    DependencyError,
    PolicyInvalid,
    RequestInvalid,
)
from kyverno_mp.expr.compile_budget import TOO_COSTLY, CompileBudget, bounded
from kyverno_mp.limits import POLICY_REVIEW_S_MAX, POLICY_REVIEW_STEPS_MAX
from kyverno_mp.policy.check import check
from kyverno_mp.policy.cluster_policy import ClusterPolicy, Policy, Rule
from kyverno_mp.policy.decode import Document, examine
from kyverno_mp.policy.exception import PolicyException
from kyverno_mp.policy.match_conditions import unregistrable
from kyverno_mp.policy.ports import ClusterView
from kyverno_mp.policy.review import ReviewVerdict, review
from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.request import Request

_NO_POLICY: Final = "admission request does not contain a policy"
_JUDGED: Final = frozenset({"CREATE", "UPDATE"})
_POLICIES: Final = ("ClusterPolicy", "Policy")
_CLEANUPS: Final = ("CleanupPolicy", "ClusterCleanupPolicy")

KINDS_OF_PATH: Final[Mapping[str, tuple[str, ...]]] = {
    "/policyvalidate": _POLICIES,
    "/exceptionvalidate": ("PolicyException",),
    "/celexception/validate": ("PolicyException",),
    "/globalcontextvalidate": ("GlobalContextEntry",),
    "/cleanuppolicyvalidate": _CLEANUPS,
}
"""Which kinds each path judges. Upstream's clean-up controller has a server of its own
with the path ``/validate``; here one server answers for all, so its path has a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewOptions:
    """What the review of policies depends on besides the document."""

    view: ClusterView | None = None
    exceptions_enabled: bool = True
    exception_namespace: str = "*"


class PolicyReview:
    """Judges documents; holds nothing of a request.

    It runs beside an event loop: its steps and its time are bounded, and it lets go of
    the interpreter between them.
    """

    def __init__(
        self,
        options: ReviewOptions,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the options of this role."""
        self._options = options
        self._monotonic_s = monotonic_s

    def answer(self, path: str, body: bytes) -> bytes:
        """Answer one review. Raises: RequestInvalid when it is not one."""
        try:
            request = decode(body, _own_kind)
        except RequestInvalid as error:
            answer = refusal(body, error.code, error.message)
            if answer is None:
                raise
            return answer
        if request.subresource or request.operation not in _JUDGED:
            return allowed(request.uid)
        if metadata_of(request.object).get("deletionTimestamp"):
            # K8S: whoever takes its finalizers off must be let, whatever it says.
            return allowed(request.uid)
        if request.group == "policies.kyverno.io":
            text = f"{request.kind} is not evaluated by this version"
            return allowed(request.uid, [text])
        if request.kind not in KINDS_OF_PATH[path]:
            return denied(request.uid, _NO_POLICY)
        try:
            look = self._looker()
            with bounded(CompileBudget(look, POLICY_REVIEW_STEPS_MAX)):
                verdict = self._judge(request, look)
        except DependencyError as error:
            # A policy that nobody could check is not let in unchecked.
            return denied(request.uid, error.message)
        except PolicyInvalid as error:
            if error.code != TOO_COSTLY:
                raise
            return denied(request.uid, error.message)
        if verdict.error:
            return denied(request.uid, verdict.error)
        return allowed(request.uid, verdict.warnings)

    def _looker(self) -> Callable[[], None]:
        """Return what looks at the clock for one review."""
        end_s = self._monotonic_s() + POLICY_REVIEW_S_MAX

        def look() -> None:
            if self._monotonic_s() > end_s:
                raise DeadlinePassed(
                    "webhook.deadline", "the policy could not be checked in time"
                )
            # Reviews of resources wait for the interpreter beside this thread.
            time.sleep(0)

        return look

    def _judge(self, request: Request, look: Callable[[], None]) -> ReviewVerdict:
        decoded = examine(request.object)
        document = decoded.document
        if document is None or decoded.problems:
            return ReviewVerdict("; ".join(map(str, decoded.problems)))
        rules: Sequence[Rule] = ()
        uncompiled: Sequence[str] = ()
        if isinstance(document, ClusterPolicy | Policy):
            rules, uncompiled = expand(document), condition_errors(document)
        old = examine(request.old_object).document if request.old_object else None
        view = self._options.view
        verdict = review(
            document, rules=rules, old=old, view=view, uncompiled=uncompiled
        )
        if isinstance(document, PolicyException):
            namespace = request.namespace or document.metadata.namespace
            verdict.warnings[:0] = self._exception_warnings(namespace)
        if not verdict.error:
            verdict.error = _what_we_refuse(document, look)
        if isinstance(document, ClusterPolicy | Policy) and not verdict.error:
            self._warn_of_expressions(document, verdict)
        return verdict

    def _warn_of_expressions(
        self, document: ClusterPolicy | Policy, verdict: ReviewVerdict
    ) -> None:
        """Add upstream's type check, then what else can never compile.

        Upstream takes the latter without a word, and every request then fails.
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

    def _exception_warnings(self, namespace: str) -> Sequence[str]:
        options = self._options
        if not options.exceptions_enabled:
            return [
                "PolicyException resources would not be processed until it is enabled."
            ]
        if not options.exception_namespace:
            return ["The exceptionNamespace flag is not set"]
        if options.exception_namespace not in ("*", namespace):
            return [
                "PolicyException resource namespace must match the defined namespace."
            ]
        return []


def _own_kind(_group: str, _version: str, _resource: str) -> str:
    """Take any subresource: those of policies are let pass unread."""
    return ""


def _what_we_refuse(document: Document, look: Callable[[], None]) -> str:
    """Return what keeps a document from running here although upstream takes it.

    It spends what the leader will spend, and is refused where the leader would.
    """
    try:
        with bounded(CompileBudget(look)):
            problems = check(document).problems
            if problems:
                return "; ".join(map(str, problems))
            if not isinstance(document, ClusterPolicy | Policy):
                return ""
            unregistrable_text = unregistrable(document)
            if unregistrable_text:
                return unregistrable_text
            encode_policy(compile_policy(document))
    except PolicyInvalid as error:
        if error.code == TOO_COSTLY:
            return error.message
        return f"{error.where}: {error.message}"
    return ""
