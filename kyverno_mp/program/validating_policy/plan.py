"""Evaluate the policies in CEL that one review concerns.

Room: program. Takes: the linked policies of source.py, a path's names. Gives: CelPlan
and CelPlanner, run by webhook/review/cel_validating.py. Next: evaluate.py.
May touch: the cluster only through the ports of CEL.
Source: docs/behaviour/cel 3, 6; Kyverno pkg/webhooks/resource/vpol/handler.go.

Pure policies run before those that may wait for calls, so that a slow call takes no
time from them. A policy that cannot be evaluated affects no other policy.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kyverno_mp.errors import (
    DeadlinePassed,
    Error,
    ExpressionFailed,
    Preempted,
    SnapshotUnusable,
    without_frames,
)
from kyverno_mp.expr.scope import Pace, Runtime
from kyverno_mp.limits import REVIEW_MESSAGES_CHARACTERS_MAX
from kyverno_mp.program import result
from kyverno_mp.program.admission_policy.match import resource_of
from kyverno_mp.program.bodies.outcome import cut, shortened
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.planner import SLOW
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse, RuleResult
from kyverno_mp.program.validating_policy.evaluate import LinkedValidatingPolicy
from kyverno_mp.program.validating_policy.scope import Facts, ReviewShared
from kyverno_mp.program.validating_policy.source import CelPolicySource
from kyverno_mp.values.jsonvalue import Json

DENY: Final = "Deny"
WARN: Final = "Warn"
UNKNOWN: Final = "webhook.policy_unknown"


@dataclass(slots=True)
class Verdict:
    """The response of one policy, and the policy's actions.

    ``denies``: a failure or an error denies the request. An error of the service, not
    of an expression, does so only with failurePolicy Fail.
    """

    response: PolicyResponse
    actions: tuple[str, ...]
    denies: bool
    is_derived: bool = False
    """A scan finds the same results."""


class CelPlan:
    """The policies that may apply to one request, selected and not yet run."""

    __slots__ = (
        "_done",
        "_engine",
        "_failed",
        "_policies",
        "_request",
        "fails",
        "left_out",
        "needs_io",
        "reads_namespace",
        "reads_registry",
    )

    def __init__(
        self,
        engine: Engine,
        request: Request,
        policies: Sequence[LinkedValidatingPolicy],
    ) -> None:
        self._engine = engine
        self._request = request
        self._policies = policies
        self._done: dict[int, list[RuleResult]] = {}
        self._failed: set[int] = set()
        """Policies that could not be evaluated, by no fault of an expression."""
        self.left_out: list[tuple[LinkedValidatingPolicy, Exception]] = []
        """They, and why; also the policies of which an exception failed."""
        self.needs_io = any(one.ir.effects & SLOW for one in policies)
        self.fails = any(map(_fails, policies))
        self.reads_namespace = any(one.reads_namespace for one in policies)
        # Image data in CEL is not read here.
        self.reads_registry = False

    def run(self, deadline_ns: int, pace: Pace | None = None) -> list[Verdict]:
        """Evaluate all policies. Raises: Preempted, DeadlinePassed."""
        self._done, self._failed, self.left_out = {}, set(), []
        request = self._request
        runtime = self._engine.open(request, deadline_ns, pace).runtime
        ports = self._engine.cluster_data.cel
        namespace = None
        if self.reads_namespace:
            namespace = namespace_object(self._engine, request, deadline_ns)
        faults: list[ExpressionFailed] = []
        facts = Facts(request, runtime, ports, namespace, is_review=True, faults=faults)
        shared = ReviewShared(request)
        characters_left = REVIEW_MESSAGES_CHARACTERS_MAX
        ordered = sorted(
            enumerate(self._policies), key=lambda one: bool(one[1].ir.effects & SLOW)
        )
        for at, linked in ordered:
            policy = linked.ir.policy
            runtime.begin_policy(linked, is_tenant=bool(policy.namespace))
            try:
                self._done[at] = _results(linked, facts, shared)
            except Preempted:
                raise
            except Exception as error:
                if isinstance(error, DeadlinePassed) and self._is_over(runtime):
                    raise
                self._failed.add(at)
                self.left_out.append((linked, without_frames(error)))
                self._done[at] = [_not_evaluated(error)]
            self.left_out += [(linked, fault) for fault in faults]
            faults.clear()
            characters_left -= bound(self._done[at], characters_left)
        return self.verdicts()

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts so far, in policy order."""
        found = []
        for at, linked in enumerate(self._policies):
            results = self._done.get(at)
            if not results:
                continue
            enforces = DENY in linked.ir.actions
            response = PolicyResponse(
                linked.ir.policy, results, "Enforce" if enforces else "Audit"
            )
            denies = _fails(linked) if at in self._failed else enforces
            found.append(
                Verdict(response, linked.ir.actions, denies, linked.is_derived)
            )
        return found

    def unfinished_fails(self) -> bool:
        """Return whether the failurePolicy of a policy without a verdict denies."""
        return any(
            _fails(linked)
            for at, linked in enumerate(self._policies)
            if at not in self._done
        )

    def _is_over(self, runtime: Runtime) -> bool:
        end_ns = runtime.review_deadline_ns
        return not end_ns or self._engine.now_ns() >= end_ns


def namespace_object(engine: Engine, request: Request, deadline_ns: int) -> Json:
    """Return ``namespaceObject``, None for an object in no namespace.

    A Namespace that is being created is in no cluster.
    """
    objects = engine.cluster_data.cel.namespaces
    if not request.namespace or objects is None:
        return None
    if _is_namespace(request) and request.operation == "CREATE":
        return None
    found = objects.namespace(request.namespace, deadline_ns)
    return None if found is None else {"spec": {}, "status": {}, **found}


class CelPlanner:
    """Creates plans from one snapshot generation."""

    __slots__ = ("_engine", "_knows", "_source")

    def __init__(
        self, engine: Engine, source: CelPolicySource, knows: Callable[[str], bool]
    ) -> None:
        """``knows`` returns whether a policy key exists, or existed until now."""
        self._engine = engine
        self._source = source
        self._knows = knows

    def plan(
        self,
        request: Request,
        names: frozenset[str],
        *,
        is_namespaced: bool,
        pace: Pace | None = None,
    ) -> CelPlan | None:
        """Select the policies of a path; None when none applies.

        ``names``: those of the path, empty = all. Raises: Preempted, as ``pace`` does.
        """
        if is_namespaced and not is_in_namespace(request):
            return None
        namespace = request.namespace if is_namespaced else ""
        found = self._source.candidates(request, namespace, pace)
        policies = [one for one in found if not names or one.ir.policy.name in names]
        return CelPlan(self._engine, request, policies) if policies else None

    def require(self, keys: Iterable[str]) -> None:
        """Do nothing if the worker knows these policies.

        Raises: SnapshotUnusable for a policy that another replica registered and that
        this worker does not know yet.
        """
        for key in keys:
            if not self._knows(key):
                raise SnapshotUnusable(UNKNOWN, f"policy {key} is not known yet")


def is_in_namespace(request: Request) -> bool:
    """Return whether the policies of the request's namespace concern its object.

    The Namespace itself is not an object in it (docs/differences.md).
    """
    return bool(request.namespace) and not _is_namespace(request)


def _is_namespace(request: Request) -> bool:
    """K8S: other groups may have a kind Namespace, too."""
    group, _, resource = resource_of(request)
    return (group, resource) == ("", "namespaces")


def _results(
    linked: LinkedValidatingPolicy, facts: Facts, shared: ReviewShared
) -> list[RuleResult]:
    return [
        answer.result
        for answer in linked.evaluate(facts, shared)
        if answer.result is not None
    ]


def bound(results: Sequence[RuleResult], left: int) -> int:
    """Shorten texts beyond what is left for the review; return their characters."""
    count = 0
    for each in results:
        texts = (each.message, *each.properties.values())
        count += sum(map(len, texts))
        if count > left:
            each.message = shortened(each.message)
            each.properties = {
                name: shortened(text) for name, text in each.properties.items()
            }
    return count


def _fails(linked: LinkedValidatingPolicy) -> bool:
    return linked.ir.policy.failure_policy == "Fail" and DENY in linked.ir.actions


def _not_evaluated(error: Exception) -> RuleResult:
    """Return the error of a policy that could not be evaluated."""
    text = "internal error, see the log"
    if isinstance(error, Error):
        text = f"{error.message} ({error.code})"
    return RuleResult(
        "evaluation",
        result.VALIDATION,
        result.ERROR,
        cut(f"failed to load context: {text}"),
    )
