"""Validate by policies in CEL: deny, warn, and record audit results.

Room: webhook. Takes: a Review and its CelPlan. Gives: the answer's bytes.
Next: review (allow, deny). May touch: the sink, the results for reports.
Source: docs/behaviour/cel 6 (admission); docs/behaviour/controllers 2.8; Kyverno
pkg/webhooks/resource/vpol/handler.go.

Everything is evaluated before the answer, because warnings need it. The results become
events and metrics. Results that scans do not produce are sent to the reports pool.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Generic, Protocol

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import ROUTES_KEPT_MAX
from kyverno_mp.program.image_policies.plan import DigestPlan, ImagePlan
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, FAIL, PolicyResponse
from kyverno_mp.program.validating_policy.group import Verdict, Verdicts
from kyverno_mp.program.validating_policy.plan import WARN, CelPlan
from kyverno_mp.program.validating_policy.planner import is_in_namespace
from kyverno_mp.webhook.ports import PlanT_co
from kyverno_mp.webhook.review.review import ABANDONED, Failure, Handler, PlanT, Review

AnyPlan = CelPlan | ImagePlan
_WORDS = {FAIL: "failed", ERROR: "error"}


class PlannerOfCel(Protocol[PlanT_co]):
    """Creates the plans of one kind from one generation of the snapshot."""

    def plan(
        self,
        request: Request,
        names: frozenset[str],
        *,
        is_namespaced: bool,
        pace: Pace | None = None,
    ) -> PlanT_co | None:
        """Select the policies of a path, None if none applies."""

    def require(self, keys: Iterable[str]) -> None:
        """Raise SnapshotUnusable unless the worker knows these policies."""


class CelPlans(Generic[PlanT]):
    """Plans with the snapshot in force, for cluster or for namespaced policies."""

    __slots__ = ("_current", "_is_namespaced")

    def __init__(
        self,
        current: Callable[[], PlannerOfCel[PlanT] | None],
        *,
        is_namespaced: bool,
    ) -> None:
        self._current = current
        self._is_namespaced = is_namespaced

    def plan(
        self,
        request: Request,
        failure_policies: frozenset[str],
        policy_key: str,
        pace: Pace | None = None,
    ) -> PlanT | None:
        """Select the policies that the path names.

        Raises: SnapshotUnusable before the first snapshot and for an unknown policy, so
        that the API server applies the failurePolicy; Preempted from ``pace``.
        """
        del failure_policies  # paths of these webhooks contain only the names
        names, keys = self._named(request, policy_key)
        if names is None:
            return None
        planner = self._planner()
        if keys:
            planner.require(keys)
            # The worker knows the policies now, but an older planner may not.
            planner = self._planner()
        return planner.plan(
            request, names, is_namespaced=self._is_namespaced, pace=pace
        )

    def _named(
        self, request: Request, policy_key: str
    ) -> tuple[frozenset[str] | None, Iterable[str]]:
        """Return the names in a path that apply to the request, or None, and the keys.

        A path of namespaced policies without namespaces, as upstream registers it, does
        not tell which policies this worker must know.
        """
        if not self._is_namespaced:
            names = _names_of(policy_key)
            return names, names
        if not policy_key.startswith("/"):
            return _names_of(policy_key), ()
        namespace = request.namespace
        own_names = _names_by_namespace(policy_key).get(namespace)
        if own_names is None or not is_in_namespace(request):
            return None, ()
        return own_names, [f"{namespace}/{name}" for name in own_names]

    def _planner(self) -> PlannerOfCel[PlanT]:
        planner = self._current()
        if planner is None:
            raise SnapshotUnusable("webhook.no_snapshot", "no policies are loaded yet")
        return planner


class CelValidatingHandler(Handler[AnyPlan]):
    """The handler of ``/vpol`` and of ``/nvpol``, ``/ivpol`` and ``/nivpol``."""

    __slots__ = ()

    def evaluate(self, review: Review, plan: AnyPlan, pace: Pace | None) -> bytes:
        """Answer with the verdicts of all policies."""
        verdicts = plan.run(review.deadline_ns, pace)
        if review.is_abandoned():
            return ABANDONED
        review.note_left_out(plan.left_out)
        return self._answer(review, plan, verdicts)

    def evaluate_rest(
        self, review: Review, plan: AnyPlan, failure: Failure, _pace: Pace
    ) -> bytes:
        """Answer with the verdicts so far; other policies' failurePolicy decides."""
        review.note_left_out(plan.left_out)
        gradual, request = review.dependencies.gradual, review.request
        failing = [
            policy
            for policy in plan.unfinished_failing()
            if gradual.enforces(policy, request)
        ]
        return self._answer(
            review, plan, plan.verdicts(), failure=failure, failing=failing
        )

    def _answer(
        self,
        review: Review,
        plan: AnyPlan,
        verdicts: Verdicts,
        *,
        failure: Failure | None = None,
        failing: Sequence[PolicyIR] = (),
    ) -> bytes:
        """``failing``: unfinished policies that therefore deny."""
        texts = [] if failure is None else [failure.message]
        reasons = list(texts) if failing else []
        if not verdicts.is_quiet:
            gradual = review.dependencies.gradual
            verdicts = gradual.verdicts_in_force(verdicts, review.request)
            reasons += _reasons(verdict for verdict in verdicts.found if verdict.denies)
            warning = (verdict for verdict in verdicts.found if WARN in verdict.actions)
            texts = [*texts, *_reasons(warning)]
        responses = verdicts.responses
        if reasons:
            denying = [each.response.policy for each in verdicts.found if each.denies]
            review.count_denial([*failing, *denying])
            review.report(responses, blocked=True)
            return review.deny("; ".join(reasons), responses, texts)
        return self._allow(review, plan, verdicts, texts)

    def _allow(
        self, review: Review, _plan: AnyPlan, verdicts: Verdicts, texts: Sequence[str]
    ) -> bytes:
        _pass_on(review, verdicts)
        return review.allow(texts, verdicts.responses)


class DigestHandler(CelValidatingHandler):
    """The handler of ``/ivpol/mutate`` and of ``/nivpol/mutate``.

    Its policies are evaluated, and reported, by the validating webhook.
    """

    __slots__ = ()

    def takes(self, request: Request) -> bool:
        """K8S: the object of a deletion cannot be changed."""
        return request.operation != "DELETE"

    def _allow(
        self, review: Review, plan: AnyPlan, verdicts: Verdicts, texts: Sequence[str]
    ) -> bytes:
        assert isinstance(plan, DigestPlan)
        review.report(verdicts.responses, blocked=False)
        return review.allow(texts, verdicts.responses, plan.patch)


def _reasons(verdicts: Iterable[Verdict]) -> Iterator[str]:
    for verdict in verdicts:
        yield from _messages(verdict.response)


def _messages(response: PolicyResponse) -> Iterator[str]:
    """Yield upstream's message of each result that is not a pass or a skip."""
    for rule_result in response.results:
        word = _WORDS.get(rule_result.status)
        if word is not None:
            why = f" ({'; '.join(rule_result.reasons)})" if rule_result.reasons else ""
            yield f"Policy {response.policy.name} {word}: {rule_result.message}{why}"


def _pass_on(review: Review, verdicts: Verdicts) -> None:
    """Record events and results of an allowed review; a failure changes no answer."""
    dependencies, request = review.dependencies, review.request
    if request.dry_run or not verdicts.found:
        return
    try:
        sink = dependencies.sink
        # Passes and skips by conditions become events only if successes do.
        if sink is not None and (not verdicts.is_quiet or sink.records_successes):
            responses = verdicts.responses
            enforced = [
                response for response in responses if response.action == "Enforce"
            ]
            audited = [each for each in responses if each.action != "Enforce"]
            sink.deliver(request, enforced, audited, _as_it_is)
        if dependencies.results is not None and dependencies.results.takes(request):
            dependencies.results.evaluated(
                request,
                [each.response for each in verdicts.found if not each.is_derived],
                [each.response for each in verdicts.found if each.is_derived],
            )
    except Exception as error:  # noqa: BLE001 - the exit for internal errors
        review.note(error)


def _as_it_is(response: PolicyResponse) -> PolicyResponse:
    return response


@lru_cache(maxsize=ROUTES_KEPT_MAX)
def _names_of(tail: str) -> frozenset[str]:
    """Return the names in the rest of a path.

    PERF: there are few different paths, some with many names.
    """
    return frozenset(filter(None, tail.split("/")))


@lru_cache(maxsize=ROUTES_KEPT_MAX)
def _names_by_namespace(tail: str) -> Mapping[str, frozenset[str]]:
    """Return the names in ``/<namespace>/<name>/...``, by namespace."""
    names_of: dict[str, set[str]] = {}
    parts = iter(tail.split("/")[1:])
    for namespace, name in zip(parts, parts, strict=True):
        names_of.setdefault(namespace, set()).add(name)
    return {namespace: frozenset(names) for namespace, names in names_of.items()}
