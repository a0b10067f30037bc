"""Mutate objects with MutatingPolicies.

Room: program. Takes: MutatingPolicyIR linked once; Facts. Gives: a verdict for the
policy and each of its autogen copies. Next: cli/apply/stages/cel.py.
May touch: external systems only through CEL ports.
Source: docs/behaviour/cel 10.1, 12d; Kyverno
pkg/cel/policies/mpol/{compiler/{policy,applyconfig}.go,engine/engine.go} at v1.18.2,
and (conditions of targets, annotations, server-side apply) v1.19.0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.cel.patches import configuration
from kyverno_mp.expr.cel.values import Value
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.admission_policy import ConstraintsIR
from kyverno_mp.ir.cel import EXTRACTED
from kyverno_mp.ir.cel_policies import MutatingBodyIR, MutatingPolicyIR
from kyverno_mp.limits import MATCHED_KINDS_MAX
from kyverno_mp.program import result
from kyverno_mp.program.admission_policy.match import kind_of
from kyverno_mp.program.admission_policy.mutate import patched
from kyverno_mp.program.bodies.cel_conditions import link_conditions
from kyverno_mp.program.cel_policies.scope import PolicyScope, dialect_of, exempted
from kyverno_mp.program.context.cel_scope import (
    Dialect,
    LinkedExpression,
    Shared,
    link,
    link_variables,
)
from kyverno_mp.program.request import Request, RequestKind
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.validating_policy.constraints import (
    MatchingCost,
    fault_or_match,
    is_by_kind,
    is_selector_free,
)
from kyverno_mp.program.validating_policy.evaluate import annotated
from kyverno_mp.program.validating_policy.exceptions import link_exceptions
from kyverno_mp.program.validating_policy.reads import reads_namespace
from kyverno_mp.program.validating_policy.scope import Facts, before_variables, met
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import whole_numbers
from kyverno_mp.values.typed.merge import Merger
from kyverno_mp.values.typed.schema import Schemas, built_in

_PREFIX = "error applying patch"
_EVERYTHING = ConstraintsIR()
_UNSUPPORTED = "extraction mode: mutation for custom workload CRDs is not yet supported"
"""KYVERNO: as upstream; ``lint`` and the review of the policy say so."""


class Mutated(NamedTuple):
    """The verdict of one copy of a policy; None if the copy does not match.

    ``is_dropped``: upstream's CLI has no response for a copy that does not match.
    """

    copy: str
    result: RuleResult | None
    patched: dict[str, Json] | None = None
    is_dropped: bool = False


class _Mutation(NamedTuple):
    expression: LinkedExpression
    is_json_patch: bool


class _Body:
    """One linked copy of a policy."""

    __slots__ = (
        "annotations",
        "conditions",
        "ir",
        "is_by_kind",
        "known",
        "mutations",
        "target_conditions",
        "variables",
    )

    def __init__(self, ir: MutatingBodyIR, dialect: Dialect) -> None:
        self.ir = ir
        self.is_by_kind = is_by_kind(ir.constraints)
        self.known: dict[RequestKind, bool] = {}
        """Whether requests of a kind match, if nothing else decides it."""
        self.conditions = link_conditions(ir.conditions, dialect)
        self.variables = link_variables(ir.variables, dialect)
        self.mutations = [
            _Mutation(link(mutation.expression, dialect), mutation.is_json_patch)
            for mutation in ir.mutations
        ]
        self.annotations = [*link_variables(ir.annotations, dialect).items()]
        self.target_conditions = link_conditions(ir.target_conditions, dialect)

    def fault_or_match(self, request: Request, kind: RequestKind) -> tuple[bool, str]:
        """Return whether the copy matches, and the error of a bad selector."""
        if not self.is_by_kind:
            return fault_or_match(self.ir.constraints or _EVERYTHING, request)
        is_match = self.known.get(kind)
        if is_match is None:
            if len(self.known) >= MATCHED_KINDS_MAX:
                self.known.clear()
            matched = fault_or_match(self.ir.constraints or _EVERYTHING, request)
            is_match = self.known[kind] = matched[0]
        return is_match, ""


class LinkedMutatingPolicy:
    """One linked policy; safe to share between threads."""

    __slots__ = (
        "_bodies",
        "_exceptions",
        "_schemas",
        "_target",
        "ir",
        "matching",
        "reads_namespace",
    )

    def __init__(
        self,
        ir: MutatingPolicyIR,
        schemas: Schemas | None = None,
        *,
        full_policy: MutatingPolicyIR | None = None,
    ) -> None:
        """``schemas``: the schemas of all kinds; None: only built-in kinds.

        ``full_policy``: the whole policy, if ``ir`` is only a part of it.
        """
        self.ir = full_policy or ir
        self.matching = MatchingCost(body.constraints for body in ir.bodies)
        dialect = dialect_of(ir.policy.kind)
        self._bodies = [_Body(body, dialect) for body in ir.bodies]
        self._exceptions = link_exceptions(ir.exceptions, before_variables(dialect))
        self._schemas = schemas
        targets = ir.targets
        self._target = None
        if targets is not None and targets.expression is not None:
            self._target = link(targets.expression, dialect)
        self.reads_namespace = reads_namespace(self.ir)
        """The result depends on the Namespace's labels or content."""

    def may_match(self, request: Request) -> bool:
        """Return whether a copy matches, or has a bad selector."""
        return any(
            fault_or_match(body.ir.constraints or _EVERYTHING, request) != (False, "")
            for body in self._bodies
        )

    def evaluate(self, facts: Facts, shared: Shared) -> Iterator[Mutated]:
        """Yield the verdict of the original policy, then its copies' verdicts.

        Each copy receives the object as changed by the previous one. ``shared``: the
        request's values, whose ``request.object`` is never changed.
        """
        current = facts
        if shared.kind is None:
            shared.kind = kind_of(facts.request)
        for body in self._bodies:
            is_match, fault = body.fault_or_match(current.request, shared.kind)
            if fault:
                message = f"failed to execute matching: {fault}"
                # KYVERNO: the error has this rule type (docs/behaviour/cel 10.1).
                rule_result = RuleResult(
                    "match", result.VALIDATION, result.ERROR, message
                )
                yield Mutated(body.ir.copy, rule_result)
            elif is_match:
                answer = self._evaluated(body, current, shared, body.conditions)
                yield answer
                if answer.patched is not None:
                    current = facts._replace(
                        request=replace(facts.request, object=answer.patched)
                    )
            else:
                is_dropped = is_selector_free(body.ir.constraints)
                yield Mutated(body.ir.copy, None, is_dropped=is_dropped)

    def mutate_target(self, facts: Facts, shared: Shared) -> Iterator[Mutated]:
        """Yield the verdicts on an existing object, the object in ``facts.request``.

        ``shared``: the trigger's values, including its ``request``.
        """
        for body in self._bodies:
            conditions = body.target_conditions or body.conditions
            yield self._evaluated(body, facts, shared, conditions)

    def mutate_existing(self, facts: Facts, shared: Shared, body: int) -> Mutated:
        """Return the verdict on a target in the background pool.

        ``facts.request`` has the target as its object and the trigger's
        ``review_request``. ``body``: index of the policy's copy that matches the
        target. Match conditions apply to triggers; they apply to targets only if the
        policy has neither constraints nor conditions for targets.
        """
        judging = self._bodies[body]
        conditions = judging.target_conditions
        if not conditions and self.ir.mutates_request:
            conditions = judging.conditions
        return self._evaluated(judging, facts, shared, conditions)

    def triggers(self, facts: Facts, shared: Shared) -> bool:
        """Return whether a request triggers the mutation of existing objects.

        KYVERNO: exceptions are ignored here, and a failed condition counts as not met.
        Raises: BudgetExceeded, and errors from the ports.
        """
        return any(
            fault_or_match(body.ir.constraints or _EVERYTHING, facts.request)[0]
            and self._meets(body, facts, shared)
            for body in self._bodies
            if body.ir.copy != EXTRACTED
        )

    def _meets(self, body: _Body, facts: Facts, shared: Shared) -> bool:
        scope = PolicyScope(facts, shared, body.variables, self.ir.policy.namespace)
        try:
            return met(body.conditions, scope)
        except ExpressionFailed:
            return False

    def targets(self, facts: Facts) -> list[Json] | None:
        """Return the target expression's objects; None if there is no such expression.

        Raises: ExpressionFailed.
        """
        if self._target is None:
            return None
        if self._target.program is None:
            message = (
                f"failed to compile CEL expression for policy {self.ir.policy.name}"
            )
            raise ExpressionFailed("cel.target", f"{message}: {self._target.error}")
        namespace = self.ir.policy.namespace
        variables = self._bodies[0].variables
        scope = PolicyScope(facts, Shared(facts.request), variables, namespace)
        target = scope.value(self._target)
        items = target.get("items") if type(target) is dict else None
        if type(items) is not list:
            return [target]
        # K8S: the items of a list have neither kind nor apiVersion.
        kind = str(target.get("kind") or "").removesuffix("List")
        named = {"apiVersion": target.get("apiVersion"), "kind": kind}
        return [{**named, **item} for item in items if type(item) is dict]

    def _evaluated(
        self,
        body: _Body,
        facts: Facts,
        shared: Shared,
        conditions: Sequence[LinkedExpression],
    ) -> Mutated:
        """Return the verdict on an object for which the conditions must be met."""
        if body.ir.copy == EXTRACTED:
            rule_result = RuleResult("", result.MUTATION, result.SKIP, _UNSUPPORTED)
            return Mutated(body.ir.copy, rule_result)
        namespace = self.ir.policy.namespace
        scope = PolicyScope(facts, shared, body.variables, namespace)
        if facts.request.object is not shared.object:
            scope.replace_object(facts.request.object or None)
        try:
            return self._decided(body, scope, facts, shared, conditions)
        except (ExpressionFailed, BudgetExceeded) as error:
            message = f"failed to evaluate policy: {error.message}"
            kind, code = result.MUTATION, error.code
            rule_result = RuleResult(
                "evaluation", kind, result.ERROR, message, code=code
            )
            return Mutated(body.ir.copy, rule_result)

    def _decided(
        self,
        body: _Body,
        scope: PolicyScope,
        facts: Facts,
        shared: Shared,
        conditions: Sequence[LinkedExpression],
    ) -> Mutated:
        """Return the verdict on a matching object.

        Raises: ExpressionFailed, BudgetExceeded.
        """
        exempt = exempted(self._exceptions, scope, facts, shared, result.MUTATION)
        if exempt is not None:
            return Mutated(body.ir.copy, exempt)
        if not met(conditions, scope):
            rule_result = RuleResult("", result.MUTATION, result.SKIP, "skip")
            return Mutated(body.ir.copy, rule_result)
        resource = facts.request.object
        for mutation in body.mutations:
            value = scope.value(mutation.expression)
            if mutation.is_json_patch:
                # GO: the object is decoded again, which turns its numbers into
                # integers.
                changed = patched(resource, value, facts.runtime)
                if changed is not resource:
                    changed = whole_numbers(changed)
            else:
                changed = _configured(
                    resource,
                    value,
                    self._types_of(resource, facts),
                    facts.runtime,
                    replaces_atomics=self.ir.replaces_atomics,
                )
            resource = changed
            scope.replace_object(resource)
        properties = annotated(body.annotations, scope, quote)
        rule_result = RuleResult(
            "", result.MUTATION, result.PASS, "success", properties
        )
        return Mutated(body.ir.copy, rule_result, resource)

    def _types_of(self, resource: dict[str, Json], facts: Facts) -> Schemas:
        """Return the schemas for merging an object.

        Raises: Preempted where waiting is not allowed, DependencyError, InputError.
        """
        schemas = self._schemas or built_in()
        api_version, kind = resource.get("apiVersion", ""), resource.get("kind", "")
        port = facts.ports.types
        if port is None or (api_version, kind) in schemas.kinds:
            return schemas
        facts.runtime.before_waiting()
        return port.types(api_version, kind, facts.runtime.deadline_ns) or schemas


def _configured(
    resource: dict[str, Json],
    value: Value,
    schemas: Schemas,
    spend: Runtime,
    *,
    replaces_atomics: bool = False,
) -> dict[str, Json]:
    """Return the merged object; ``replaces_atomics``: atomic values can be replaced.

    Raises: ExpressionFailed with upstream's message.
    """
    patch = configuration(value, spend)
    api_version, kind = resource.get("apiVersion", ""), resource.get("kind", "")
    notation = schemas.kinds.get((api_version, kind), "")
    if not notation:
        message = "type converter must not be nil"
        if api_version in schemas.versions:
            message = (
                "failed to convert patch object to typed object: no corresponding type"
                f" for {api_version}, Kind={kind}"
            )
        raise ExpressionFailed("cel.patch", f"{_PREFIX}: {message}")
    patch = {**patch, "apiVersion": api_version, "kind": kind}
    try:
        merged: dict[str, Json] = Merger(schemas, notation, spend).merge(
            resource, patch, replaces_atomics=replaces_atomics
        )
    except ExpressionFailed as error:
        raise ExpressionFailed(error.code, f"{_PREFIX}: {error.message}") from error
    return merged
