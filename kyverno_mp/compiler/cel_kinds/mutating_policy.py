"""Compile MutatingPolicies with their autogen copies and exceptions.

Room: compiler. Takes: decoded documents. Gives: MutatingPolicyIR. If an expression does
not compile, the whole policy is rejected, as upstream does at admission.
Next: program/cel_policies.
Source: docs/behaviour/cel 4, 5, 7, 10.1; docs/behaviour/v1.19 4, 5; Kyverno
pkg/cel/policies/mpol/compiler/compiler.go, pkg/background/mpol/env.go.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

import msgspec

from kyverno_mp.compiler.admission_policy import build_constraints
from kyverno_mp.compiler.autogen.mutating import copies_of
from kyverno_mp.compiler.cel_kinds.policies import GENERATING_NAMES, opted_in
from kyverno_mp.compiler.cel_kinds.validating_policy import (
    Builder,
    Unusable,
    compile_exception,
    compile_exceptions,
    naming,
    policy_of,
    problems_of_exceptions,
    refuse,
)
from kyverno_mp.compiler.rules.effects import effects_of
from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.linking.program import compile_expression
from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.cel.patches import (
    CONFIGURATION,
    OPERATIONS,
    TYPES,
)
from kyverno_mp.expr.cel.types import Type, map_of
from kyverno_mp.ir.admission_policy import ConstraintsIR, MutationIR
from kyverno_mp.ir.cel_policies import MutatingBodyIR, MutatingPolicyIR, TargetsIR
from kyverno_mp.ir.validating_policy import CelExceptionIR
from kyverno_mp.policy.cel_kinds.policies import MutatingPolicy, MutatingPolicySpec
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException
from kyverno_mp.values.kubernetes.policy_kinds import MUTATING_POLICY

_LIBRARY: Final = partial(kyverno_library, kind=MUTATING_POLICY.name)
_OBJECT: Final = map_of(types.STRING, types.ANY)
_NOT_OF_TARGETS: Final = ("request", "oldObject", "namespaceObject")


def compile_mutating_policy(
    document: MutatingPolicy, exceptions: Iterable[CelPolicyException] = ()
) -> MutatingPolicyIR:
    """Compile a policy with the exceptions that name it.

    Raises: DocumentInvalid with every expression that does not compile.
    """
    builder, bodies = _compiled_bodies(document)
    attached = tuple(
        _of_exception(exception, builder) for exception in naming(exceptions, document)
    )
    refuse(document, builder.problems)
    return _policy_of(document, bodies, attached)


def _of_exception(exception: CelPolicyException, builder: Builder) -> CelExceptionIR:
    before = len(builder.problems)
    compiled = compile_exception(exception, builder)
    named = [(exception.key, problem) for problem in builder.problems[before:]]
    builder.problems[before:] = problems_of_exceptions(named)
    return compiled


def compile_mutating_with_exceptions(
    document: MutatingPolicy,
    exceptions: Iterable[CelPolicyException],
    names: dict[str, Type],
) -> tuple[MutatingPolicyIR, Unusable]:
    """Compile a policy with the exceptions that compile.

    Also return the problems of the others, as ``compile_with_exceptions`` in
    validating_policy.py. Raises: DocumentInvalid.
    """
    builder, bodies = _compiled_bodies(document)
    refuse(document, builder.problems)
    attached, unusable = compile_exceptions(
        naming(exceptions, document),
        lambda: Builder(document.metadata.namespace, names, _LIBRARY),
    )
    return _policy_of(document, bodies, attached), unusable


def _compiled_bodies(document: MutatingPolicy) -> tuple[Builder, list[MutatingBodyIR]]:
    """Compile the original policy and its copies; the builder collects the problems."""
    builder = build_mutating(document)
    bodies = [_body(_builder(document), "", document.spec)]
    for copy, spec in copies_of(document.spec):
        of_copy = _builder(document)
        bodies.append(_body(of_copy, copy, spec))
        builder.problems += of_copy.problems
    return builder, bodies


def _policy_of(
    document: MutatingPolicy,
    bodies: list[MutatingBodyIR],
    attached: tuple[CelExceptionIR, ...],
) -> MutatingPolicyIR:
    evaluation = document.spec.evaluation
    targets = _targets(document)
    return MutatingPolicyIR(
        policy=policy_of(document),
        bodies=tuple(bodies),
        exceptions=attached,
        targets=targets,
        mutates_existing=evaluation is not None
        and opted_in(evaluation.mutate_existing),
        reinvokes=document.spec.reinvocation_policy == "IfNeeded",
        # The expression for targets is evaluated only in the background pool.
        effects=effects_of((list(map(_reviewed, bodies)), attached)),
        skips_background=evaluation is None or evaluation.skip_background_requests,
        replaces_atomics=evaluation is not None and evaluation.use_server_side_apply,
    )


def _reviewed(body: MutatingBodyIR) -> MutatingBodyIR:
    """Return the parts that a review evaluates: targets are for the background pool."""
    return msgspec.structs.replace(body, target_conditions=())


def build_mutating(document: MutatingPolicy) -> Builder:
    """Compile the original policy's expressions, to find their problems."""
    builder = _builder(document)
    _body(builder, "", document.spec)
    return builder


def _builder(document: MutatingPolicy) -> Builder:
    builder = Builder(document.metadata.namespace, GENERATING_NAMES, _LIBRARY)
    builder.environment.constructors = TYPES
    return builder


def _body(builder: Builder, copy: str, spec: MutatingPolicySpec) -> MutatingBodyIR:
    # KYVERNO: variables are declared first, so match conditions can use them.
    variables = builder.variables(spec.variables)
    conditions = builder.conditions(spec.match_conditions)
    target_conditions = builder.conditions(
        spec.target_match_conditions, "spec.targetMatchConditions"
    )
    return MutatingBodyIR(
        copy=copy,
        constraints=build_constraints(spec.match_constraints),
        conditions=conditions,
        variables=variables,
        mutations=tuple(_mutations(builder, spec)),
        annotations=builder.annotations(spec.audit_annotations),
        target_conditions=target_conditions,
    )


def _mutations(builder: Builder, spec: MutatingPolicySpec) -> Iterable[MutationIR]:
    """Compile the mutations; one without the expression of its type is a no-op."""
    for index, mutation in enumerate(spec.mutations):
        is_json_patch = mutation.patch_type == "JSONPatch"
        body = mutation.json_patch if is_json_patch else mutation.apply_configuration
        if body is None:
            continue
        field = "jsonPatch" if is_json_patch else "applyConfiguration"
        expected = OPERATIONS if is_json_patch else CONFIGURATION
        path = f"spec.mutations[{index}].{field}.expression"
        expression, _ = builder.compiled(body.expression, path, (expected,))
        yield MutationIR(expression, is_json_patch)


def _targets(document: MutatingPolicy) -> TargetsIR | None:
    targets = document.spec.target_match_constraints
    if targets is None:
        return None
    constraints = build_constraints(targets) or ConstraintsIR()
    if not targets.expression:
        return TargetsIR(constraints)
    return TargetsIR(constraints, _target_expression(document, targets.expression))


def _target_expression(document: MutatingPolicy, source: str) -> Expression:
    """Compile the target expression. KYVERNO: a compile error appears at run time."""
    builder = _builder(document)
    builder.variables(document.spec.variables)
    environment = builder.environment
    environment.variables = {
        name: kind
        for name, kind in environment.variables.items()
        if name not in _NOT_OF_TARGETS
    }
    try:
        expression, kind = compile_expression(source, environment)
    except ExpressionInvalid as error:
        return Expression(source, error=error.message)
    if kind != _OBJECT:
        return Expression(source, error="output type must be a map")
    return expression
