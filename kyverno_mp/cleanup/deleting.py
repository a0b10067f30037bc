"""Compile a stored DeletingPolicy, and plan its runs.

Room: cleanup. Takes: a StoredPolicy, the PolicyExceptions that name it. Gives:
``compiled_in_cel``, DeletingPlan. Next: cleanup/runner.py. May touch: what the
CEL ports can access.
Source: docs/behaviour/cel 10.3; Kyverno pkg/controllers/deleting/controller.go,
pkg/cel/policies/dpol/engine.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from kyverno_mp.cleanup.plan import Judge, OfPolicy, WantedKind, exact_texts
from kyverno_mp.cleanup.policy import (
    CompiledPolicy,
    StoredPolicy,
    schedule_and_options,
)
from kyverno_mp.compiler.cel_kinds.policies import (
    EXCEPTION_NAMES_OF_DELETING,
    compile_deleting_policy,
)
from kyverno_mp.compiler.cel_kinds.review import review
from kyverno_mp.compiler.linked_size import (
    EXCEPTION_TOO_LARGE,
    exceptions_over_budget,
)
from kyverno_mp.errors import ExpressionFailed, PolicyInvalid, Where
from kyverno_mp.expr.compile_budget import CompileBudget, bounded
from kyverno_mp.ir.admission_policy import ResourceRuleIR
from kyverno_mp.ir.cel_policies import DeletingPolicyIR
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.resource import Resource
from kyverno_mp.limits import LINKED_EXCEPTIONS_OF_POLICY_BYTES_MAX
from kyverno_mp.policy.cel_kinds.policies import DeletingPolicy, decode_cel_policy
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.program.cel_policies.delete import LinkedDeletingPolicy
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.program.validating_policy.scope import Facts, names_any
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.jsonvalue import Json

_NAMESPACE: Final = frozenset({"namespaceObject"})
_ANY: Final = "*"


def compiled_in_cel(
    stored: StoredPolicy,
    exceptions: Sequence[CelPolicyException],
    digest: bytes,
    settings: Settings,
) -> CompiledPolicy:
    """Compile a policy with its exceptions; ``digest``: the digest of the exceptions.

    A policy with an unusable exception is rejected, so that no object is deleted that
    the exception's author wants to keep. Raises: PolicyInvalid with the reason.
    """
    raw = {
        "apiVersion": stored.resource.api_version,
        "kind": stored.kind,
        "metadata": {"name": stored.name, "namespace": stored.namespace},
        "spec": msgspec.json.decode(stored.spec),
    }
    location = Where(policy=stored.shown)
    try:
        policy = decode_cel_policy(raw)
        assert isinstance(policy, DeletingPolicy)
        with bounded(CompileBudget()):
            _check(policy, location)
            ir = compile_deleting_policy(
                policy, exceptions, exception_names=EXCEPTION_NAMES_OF_DELETING
            )
    except DocumentInvalid as error:
        reason = "; ".join(map(str, error.problems))
        raise PolicyInvalid("cleanup.policy", reason, location) from error
    large = exceptions_over_budget(ir.exceptions, stored.shown)
    if large:
        reason = (
            f"PolicyException {min(large)}: the exceptions of its namespace would take"
            f" more than {LINKED_EXCEPTIONS_OF_POLICY_BYTES_MAX >> 20} MiB of memory"
        )
        raise PolicyInvalid(EXCEPTION_TOO_LARGE, reason, location)
    schedule, options = schedule_and_options(stored, ir.schedule, settings)
    return CompiledPolicy(
        stored, DeletingPlan(LinkedDeletingPolicy(ir)), schedule, options, digest
    )


def _check(policy: DeletingPolicy, location: Where) -> None:
    problems = list(review(policy))
    if problems:
        raise DocumentInvalid(problems, location)


class DeletingPlan(OfPolicy):
    """The plan of a DeletingPolicy or NamespacedDeletingPolicy."""

    def __init__(self, linked: LinkedDeletingPolicy) -> None:
        super().__init__(linked.ir)
        self._linked = linked
        constraints = linked.ir.constraints
        self._rules = () if constraints is None else constraints.rules

    def kinds(self, directory: Directory) -> Iterator[WantedKind]:
        """Return the resources that the rules name, in each version."""
        for group, version, plural in dict.fromkeys(
            (group, version, plural)
            for rule in self._rules
            for group in rule.groups
            for version in rule.versions
            for plural in rule.resources
        ):
            yield _wanted(group, version, plural, directory)

    def exact(self, resource: Resource) -> tuple[list[str], list[str]]:
        """Return the only names of the objects, [] = any; namespaces are unlimited."""
        naming = [rule for rule in self._rules if _names(rule, resource)]
        return exact_texts(rule.names for rule in naming), []

    def judge(self, data: ClusterData) -> Judge:
        """Return the judge of the objects of one run."""
        return _DeletingJudge(self._linked, data)


class _DeletingJudge:
    """Decides by constraints, exceptions and conditions."""

    names_resources = True

    def __init__(self, linked: LinkedDeletingPolicy, data: ClusterData) -> None:
        self._linked = linked
        self._ports = data.cel
        ir = linked.ir
        self._is_namespaced = bool(ir.policy.namespace)
        self.reads_labels = (
            ir.constraints is not None and ir.constraints.namespace_selector is not None
        )
        self.reads_namespace = _reads_namespace(ir)

    def selects(self, request: Request) -> bool:
        policy_namespace = self._linked.ir.policy.namespace
        if policy_namespace and request.namespace != policy_namespace:
            return False
        return self._linked.matches(request)

    def holds(self, context: RequestContext, namespace: Json | None) -> bool:
        request, runtime = context.request, context.runtime
        runtime.begin_policy(self._linked, is_tenant=self._is_namespaced)
        if self.reads_namespace and namespace is None:
            namespace = self._namespace(request.namespace)
        return self._linked.holds(Facts(request, runtime, self._ports, namespace))

    def _namespace(self, name: str) -> Json | None:
        """Return ``namespaceObject``: null for a cluster-scoped object.

        Raises: ExpressionFailed, DependencyError if the namespace is unknown.
        """
        namespaces = self._ports.namespaces
        if not name:
            return None
        namespace = None if namespaces is None else namespaces.namespace(name, 0)
        if namespace is None:
            raise ExpressionFailed("cleanup.namespace", f"namespace {name} is unknown")
        return namespace


def _wanted(group: str, version: str, plural: str, directory: Directory) -> WantedKind:
    kind = "/".join(filter(None, (group, version, plural)))
    if _ANY in (group, version) or _ANY in plural:
        # Upstream lists the resources by these literal names, and finds none.
        return WantedKind(
            kind, (), f"{kind}: clean-up supports no wildcards in resources"
        )
    if "/" in plural:
        return WantedKind(kind, (), f"{kind}: a subresource cannot be deleted")
    resources = [
        resource
        for resource in directory.resources
        if (resource.group, resource.version, resource.plural)
        == (group, version, plural)
        and not resource.subresource
    ]
    return WantedKind(kind, resources, is_versioned=True)


def _names(rule: ResourceRuleIR, resource: Resource) -> bool:
    return (
        resource.group in rule.groups
        and resource.version in rule.versions
        and resource.plural in rule.resources
    )


def _reads_namespace(ir: DeletingPolicyIR) -> bool:
    named = [*ir.conditions, *ir.variables]
    named += [
        condition for exception in ir.exceptions for condition in exception.conditions
    ]
    return any(names_any(expression.expression, _NAMESPACE) for expression in named)
