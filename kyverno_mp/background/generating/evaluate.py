"""Evaluate a GeneratingPolicy for one trigger.

Room: background. Takes: a Task, a ReadyGenerating, the trigger. Gives: Evaluation.
Next: background/generating/run.py. May touch: what the CEL ports can access.
Source: docs/behaviour/cel 10.2; Kyverno pkg/cel/policies/gpol/engine/engine.go.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.generating.policies import (
    Generators,
    ReadyGenerating,
)
from kyverno_mp.background.generating.sources import (
    Reading,
    SourceNotFound,
    Sources,
)
from kyverno_mp.background.generating.wanted import Collector
from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.objects.triggers import request_of, review_resource
from kyverno_mp.background.results import Wanted
from kyverno_mp.background.update_request import Task
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel.outside import ResourcePort
from kyverno_mp.program import result
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.request import Request
from kyverno_mp.program.secrecy import withheld
from kyverno_mp.program.validating_policy.scope import Facts, ReviewShared
from kyverno_mp.telemetry.families import GENERATING_RESULTS
from kyverno_mp.values.jsonvalue import Json

_EXCEPTION: Final = "exception"
_CAUSE: Final = "background_scan"
"""KYVERNO: 1.19 counts every trigger of a GeneratingPolicy as a background scan."""


class Evaluated(NamedTuple):
    """The objects that a policy generates, and the evaluated version of the policy."""

    policy: ReadyGenerating
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Evaluates policies; threads may share it."""

    dependencies: BackgroundDependencies
    policies: Generators
    kinds: Kinds

    def evaluate(
        self, task: Task, policy: ReadyGenerating, trigger: Json
    ) -> Evaluated | None:
        """Return the objects that the policy generates, or None if it does not apply.

        A policy that does not apply is read live and checked again, because the watch
        may lag behind admission. Raises: SourceNotFound; other InputErrors,
        DependencyError.
        """
        evaluated = self._evaluate(task, policy, trigger)
        if evaluated is None and task.request is not None:
            live = self.policies.live(policy.name)
            if live is not None and live.uid == policy.stored.uid:
                newest = self.policies.ready(live)
                if newest.version != policy.version:
                    policy = newest
                    evaluated = self._evaluate(task, policy, trigger)
        return None if evaluated is None else Evaluated(policy, evaluated)

    def _evaluate(
        self, task: Task, policy: ReadyGenerating, trigger: Json
    ) -> Wanted | None:
        request = self._request(task, policy, trigger)
        policy_ir = policy.ir.policy
        if policy_ir.namespace and request.namespace != policy_ir.namespace:
            # SAFETY: a tenant's policy must never read objects of other namespaces.
            return None
        data = self.dependencies.cluster_data
        engine, deadline_ns = self.dependencies.engine()
        runtime = engine.open(request, deadline_ns).runtime
        runtime.begin_policy(policy.linked, is_tenant=bool(policy_ir.namespace))
        sources = Sources()
        named = task.trigger
        sources.saw(named.uid, named.api_version, named.kind)
        namespace = self._namespace(task, request, deadline_ns)
        if namespace is not None:
            sources.saw_object({**namespace, "apiVersion": "v1", "kind": "Namespace"})
        collector = Collector(policy.name, task.trigger, self.kinds, sources)
        is_review = bool(task.admission)
        facts = Facts(
            request,
            runtime,
            data.cel._replace(
                generator=collector,
                resources=_noted(data.cel.resources, sources),
                own_resources=_noted(data.cel.own_resources, sources),
            ),
            namespace,
            is_review=is_review,
        )
        shared = ReviewShared(request) if is_review else Shared(request)
        began_ns = engine.now_ns()
        rule_result = policy.linked.evaluate(
            facts, shared, reads_all=task.deletes_clones
        )
        if rule_result is None:
            return None
        self._count(policy, request, rule_result.status, engine.now_ns() - began_ns)
        if rule_result.status == result.PASS and rule_result.rule != _EXCEPTION:
            return Wanted(collector.objects, rule_result, request)
        error = ExpressionFailed("background.policy", rule_result.message)
        if rule_result.status == result.ERROR and policy.reads_secrets:
            rule_result.message = withheld(error.code)
        if self.dependencies.results is not None:
            self.dependencies.results.generated(policy_ir, rule_result, request)
        if rule_result.status == result.ERROR:
            raise SourceNotFound.of(error, sources) if sources.missing else error
        return None

    def _count(
        self, policy: ReadyGenerating, request: Request, status: str, took_ns: int
    ) -> None:
        policy_ir = policy.ir.policy
        labels = (
            *(
                policy_ir.namespace or "-",
                policy_ir.name,
                request.kind,
                request.namespace,
            ),
            *(request.operation.lower(), _CAUSE, status),
        )
        seconds = took_ns / 1e9
        self.dependencies.metrics.observe(GENERATING_RESULTS, labels, seconds)

    def _request(self, task: Task, policy: ReadyGenerating, trigger: Json) -> Request:
        """Return the request to evaluate; its resource is taken from the constraints.

        Raises: ExpressionFailed, DependencyError.
        """
        data = self.dependencies.cluster_data
        request = request_of(task, trigger, data, policy.assumed_operation)
        if request.operation not in ("DELETE", "CONNECT"):
            # A trigger that exists is evaluated in its current state.
            request.operation = policy.operation_of(request.operation)
        if request.review_request is None:
            resource = self.kinds.of_kind(task.trigger.api_version, task.trigger.kind)
            request.review_request = {"resource": review_resource(resource)}
        else:
            request.review_request["operation"] = request.operation
            request.namespace = str(task.admission.get("namespace") or "")
            request.review_request["namespace"] = request.namespace
        return request

    def _namespace(self, task: Task, request: Request, deadline_ns: int) -> Json | None:
        """Return ``namespaceObject``; None for a cluster-scoped object."""
        name = request.namespace
        if request.kind == "Namespace" and not request.group:
            name = request.name if task.operation != "DELETE" else ""
        namespaces = self.dependencies.cluster_data.cel.namespaces
        if not name or namespaces is None:
            return None
        namespace = namespaces.namespace(name, deadline_ns)
        return None if namespace is None else {"spec": {}, "status": {}, **namespace}


def _noted(port: ResourcePort | None, sources: Sources) -> ResourcePort | None:
    return None if port is None else Reading(port, sources)
