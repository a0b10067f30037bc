"""Compile Validating- and MutatingAdmissionPolicies with their bindings.

Room: compiler. Takes: decoded documents. Gives: AdmissionPolicyIR. If an expression
does not compile, the record keeps the error, and the policy reports it at run time.
Next: program/admission_policy.
Source: docs/behaviour/cli 21; Kyverno pkg/admissionpolicy/compiler.go.
"""

from collections.abc import Iterable

import msgspec

from kyverno_mp.compiler.described import describe
from kyverno_mp.compiler.rules.cel import (
    build_validations,
    build_variables,
    cel_environment,
    compile_conditions,
    compile_text,
)
from kyverno_mp.compiler.rules.match import build_selector
from kyverno_mp.expr.cel.environment import Environment
from kyverno_mp.expr.cel.patches import (
    CONFIGURATION,
    OPERATIONS,
    TYPES,
    patch_library,
)
from kyverno_mp.expr.cel.types import Type
from kyverno_mp.ir.admission_policy import (
    AdmissionPolicyIR,
    BindingIR,
    ConstraintsIR,
    MutationIR,
    ParamRefIR,
    ResourceRuleIR,
)
from kyverno_mp.ir.cel import CelValidationIR
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.policy.cel_kinds.admission_policy import (
    AdmissionBinding,
    AdmissionPolicy,
    MatchResources,
    MutatingSpec,
    Mutation,
    NamedRuleWithOperations,
    ValidatingSpec,
)
from kyverno_mp.policy.fields.validation import ParamRef


def compile_admission_policy(
    document: AdmissionPolicy, bindings: Iterable[AdmissionBinding]
) -> AdmissionPolicyIR:
    """Compile the policy with the bindings that refer to it; never raises."""
    spec = document.spec
    fields: dict[str, Type] = {}
    # KYVERNO: neither the CLI nor a scan has an authorizer (pkg/admissionpolicy).
    environment = cel_environment(
        fields, params=spec.param_kind is not None, authorizer=False
    )
    if isinstance(spec, MutatingSpec):
        environment.constructors = TYPES
        environment.library = patch_library()
    variables = build_variables(spec.variables, fields, environment)
    validations: tuple[CelValidationIR, ...] = ()
    if isinstance(spec, ValidatingSpec):
        validations = build_validations(spec.validations, "", environment, environment)
    return AdmissionPolicyIR(
        policy=_policy(document),
        constraints=build_constraints(spec.match_constraints),
        conditions=compile_conditions(spec.match_conditions, environment),
        variables=variables,
        validations=validations,
        mutations=(
            tuple(_mutation(each, environment) for each in spec.mutations)
            if isinstance(spec, MutatingSpec)
            else ()
        ),
        bindings=tuple(
            _binding(binding) for binding in bindings if _is_bound(document, binding)
        ),
        param_kind=(kind.api_version, kind.kind)
        if (kind := spec.param_kind) is not None
        else ("", ""),
    )


def _mutation(mutation: Mutation, environment: Environment) -> MutationIR:
    is_json_patch = mutation.patch_type == "JSONPatch"
    body = mutation.json_patch if is_json_patch else mutation.apply_configuration
    expected = OPERATIONS if is_json_patch else CONFIGURATION
    expression = "" if body is None else body.expression
    return MutationIR(compile_text(expression, environment, expected)[0], is_json_patch)


def _is_bound(document: AdmissionPolicy, binding: AdmissionBinding) -> bool:
    return (
        binding.kind == f"{document.kind}Binding"
        and binding.spec.policy_name == document.metadata.name
    )


def _binding(binding: AdmissionBinding) -> BindingIR:
    return BindingIR(
        name=binding.metadata.name,
        constraints=build_constraints(binding.spec.match_resources),
        params=_params(binding.spec.param_ref),
    )


def _params(ref: ParamRef | None) -> ParamRefIR | None:
    if ref is None:
        return None
    return ParamRefIR(
        ref.name,
        ref.namespace,
        build_selector(ref.selector),
        ref.parameter_not_found_action == "Allow",
    )


def build_constraints(match_resources: MatchResources | None) -> ConstraintsIR | None:
    """Convert matchConstraints or matchResources."""
    if match_resources is None:
        return None
    return ConstraintsIR(
        rules=tuple(_rule(rule) for rule in match_resources.resource_rules),
        excluded=tuple(_rule(rule) for rule in match_resources.exclude_resource_rules),
        namespace_selector=build_selector(match_resources.namespace_selector),
        object_selector=build_selector(match_resources.object_selector),
    )


def _rule(rule: NamedRuleWithOperations) -> ResourceRuleIR:
    return ResourceRuleIR(
        groups=rule.api_groups,
        versions=rule.api_versions,
        resources=rule.resources,
        names=rule.resource_names,
        operations=rule.operations,
        scope=rule.scope,
    )


def _policy(document: AdmissionPolicy) -> PolicyIR:
    """Return the policy's metadata for the reports that a background scan writes."""
    return msgspec.structs.replace(
        describe(document.kind, document.metadata),
        failure_policy=document.spec.failure_policy,
        admission=False,
    )
