"""Compile GeneratingPolicies and DeletingPolicies with their exceptions.

Room: compiler. Takes: decoded documents. Gives: GeneratingPolicyIR, DeletingPolicyIR.
If an expression does not compile, the whole policy is rejected, as upstream does at
admission. Next: program/cel_policies.
Source: docs/behaviour/cel 4, 5, 10.2, 10.3; Kyverno
pkg/cel/policies/{gpol,dpol}/compiler/compiler.go.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from kyverno_mp.compiler.admission_policy import build_constraints
from kyverno_mp.compiler.cel_kinds.template import compile_template
from kyverno_mp.compiler.cel_kinds.validating_policy import (
    BOOL,
    EXCEPTION_NAMES,
    NAMES,
    Builder,
    Unusable,
    compile_exceptions,
    is_on,
    naming,
    problems_of_exceptions,
    refuse,
    usable,
)
from kyverno_mp.compiler.described import describe
from kyverno_mp.compiler.rules.effects import effects_of
from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.library import Library
from kyverno_mp.expr.cel.types import Type, object_type, opaque_type
from kyverno_mp.expr.effects import EFFECT_CLUSTER, EFFECT_PURE
from kyverno_mp.ir.cel_policies import (
    DeletingPolicyIR,
    GeneratingPolicyIR,
    GenerationIR,
)
from kyverno_mp.policy.cel_kinds.policies import (
    DeletingPolicy,
    GeneratingPolicy,
    Generation,
)
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException, Enabled
from kyverno_mp.values.kubernetes.policy_kinds import DELETING_POLICY, GENERATING_POLICY

GENERATING_NAMES: Final[dict[str, Type]] = {
    **NAMES,
    "generator": opaque_type("generator.Context"),
}
EXCEPTION_NAMES_OF_GENERATING: Final = EXCEPTION_NAMES
"""Variables in an exception's conditions when they are evaluated in a service."""
_GENERATING: Final = partial(kyverno_library, kind=GENERATING_POLICY.name)
_DELETING_NAMES: Final[dict[str, Type]] = {
    **NAMES,
    # KYVERNO: a type without fields, so an expression can read nothing from it.
    "exceptions": object_type("compiler.Exception"),
}
EXCEPTION_NAMES_OF_DELETING: Final = {
    name: kind for name, kind in _DELETING_NAMES.items() if name in EXCEPTION_NAMES
}
"""Variables in an exception's conditions in a service, like EXCEPTION_NAMES."""
_DELETING: Final = partial(kyverno_library, kind=DELETING_POLICY.name)


def compile_generating_policy(
    document: GeneratingPolicy, exceptions: Iterable[CelPolicyException] = ()
) -> GeneratingPolicyIR:
    """Compile a policy with the given exceptions, even if they name other policies.

    Raises: DocumentInvalid with every expression that does not compile.
    """
    return usable(document, *compile_generating_with(document, exceptions, None))


def compile_generating_with(
    document: GeneratingPolicy,
    exceptions: Iterable[CelPolicyException],
    exception_names: dict[str, Type] | None,
) -> tuple[GeneratingPolicyIR, Unusable]:
    """Compile a policy with the exceptions that compile.

    Also return the problems of the other exceptions, each with the exception's key.
    ``exception_names``: the variables in exceptions' conditions; None: the policy's.
    Raises: DocumentInvalid with every expression of the policy that does not compile.
    """
    spec = document.spec
    builder = _generating(document)
    conditions = builder.conditions(spec.match_conditions)
    variables = builder.variables(spec.variables)
    generations = _generations(builder, document)
    annotations = builder.annotations(spec.audit_annotations)
    refuse(document, builder.problems)
    attached, unusable = compile_exceptions(
        exceptions,
        lambda: _of_exceptions(builder, document, exception_names, _GENERATING),
    )
    evaluation = spec.evaluation
    compiled = GeneratingPolicyIR(
        policy=msgspec.structs.replace(
            describe(document.kind, document.metadata, document.metadata.namespace),
            admission=evaluation is None or is_on(evaluation.admission),
            background=False,
        ),
        constraints=build_constraints(spec.match_constraints),
        conditions=conditions,
        variables=variables,
        generations=generations,
        exceptions=attached,
        generates_existing=evaluation is not None
        and opted_in(evaluation.generate_existing),
        synchronizes=is_synchronized(document),
        orphans_downstream=evaluation is not None
        and opted_in(evaluation.orphan_downstream_on_policy_delete),
        effects=_writes(generations)
        | effects_of((conditions, variables, generations, annotations, attached)),
        annotations=annotations,
        skips_background=evaluation is None or evaluation.skip_background_requests,
        applies_server_side=spec.use_server_side_apply,
    )
    return compiled, unusable


def compile_trigger(
    document: GeneratingPolicy,
    exceptions: Iterable[CelPolicyException],
    names: dict[str, Type],
) -> tuple[GeneratingPolicyIR, Unusable]:
    """Compile what a worker needs: the match constraints of the trigger.

    Raises: DocumentInvalid.
    """
    compiled, unusable = compile_generating_with(
        document, naming(exceptions, document), names
    )
    return msgspec.structs.replace(compiled, exceptions=()), unusable


def compile_deleting_policy(
    document: DeletingPolicy,
    exceptions: Iterable[CelPolicyException] = (),
    *,
    exception_names: dict[str, Type] | None = None,
) -> DeletingPolicyIR:
    """Compile a policy with the exceptions that name it.

    ``exception_names``: the variables in exceptions' conditions; None: the policy's.
    Raises: DocumentInvalid with every expression that does not compile.
    """
    spec = document.spec
    builder = _deleting(document)
    # KYVERNO: here conditions can use variables.
    variables = builder.variables(spec.variables)
    conditions = builder.conditions(spec.conditions, "spec.conditions")
    refused = builder.problems
    attached, unusable = compile_exceptions(
        naming(exceptions, document),
        lambda: _of_exceptions(builder, document, exception_names, _DELETING),
    )
    refuse(document, [*refused, *problems_of_exceptions(unusable)])
    return DeletingPolicyIR(
        policy=msgspec.structs.replace(
            describe(document.kind, document.metadata, document.metadata.namespace),
            admission=False,
            background=False,
        ),
        constraints=build_constraints(spec.match_constraints),
        conditions=conditions,
        variables=variables,
        schedule=spec.schedule,
        propagation=spec.deletion_propagation_policy,
        exceptions=attached,
        effects=effects_of((conditions, variables, attached)),
    )


def build_generating(document: GeneratingPolicy) -> Builder:
    """Compile the expressions to find their problems."""
    builder = _generating(document)
    builder.conditions(document.spec.match_conditions)
    builder.variables(document.spec.variables)
    _generations(builder, document)
    builder.annotations(document.spec.audit_annotations)
    return builder


def build_deleting(document: DeletingPolicy) -> Builder:
    """Compile the expressions to find their problems."""
    builder = _deleting(document)
    builder.variables(document.spec.variables)
    builder.conditions(document.spec.conditions, "spec.conditions")
    return builder


def _generating(document: GeneratingPolicy) -> Builder:
    return Builder(document.metadata.namespace, GENERATING_NAMES, _GENERATING)


def _deleting(document: DeletingPolicy) -> Builder:
    return Builder(document.metadata.namespace, _DELETING_NAMES, _DELETING)


def _generations(
    builder: Builder, document: GeneratingPolicy
) -> tuple[GenerationIR, ...]:
    return tuple(
        _generation(builder, generation, f"spec.generate[{index}]")
        for index, generation in enumerate(document.spec.generate)
    )


def _generation(builder: Builder, generation: Generation, path: str) -> GenerationIR:
    if generation.template is None:
        field = f"{path}.expression"
        return GenerationIR(builder.compiled(generation.expression, field, BOOL)[0])
    if generation.expression:
        reason = "only one of expression or template may be set"
        return GenerationIR(builder.refused("", path, reason))
    field = f"{path}.template"
    return GenerationIR(documents=compile_template(builder, generation.template, field))


def _writes(generations: Iterable[GenerationIR]) -> int:
    """Return the effects of templates: as those of ``generator.apply``."""
    return (
        EFFECT_CLUSTER
        if any(generation.documents for generation in generations)
        else EFFECT_PURE
    )


def _of_exceptions(
    builder: Builder,
    document: GeneratingPolicy | DeletingPolicy,
    names: dict[str, Type] | None,
    library: Callable[..., Library],
) -> Builder:
    """Return a builder without problems, with the given variables or the policy's."""
    if names is not None:
        return Builder(document.metadata.namespace, names, library)
    builder.problems = []
    return builder


def is_synchronized(policy: GeneratingPolicy) -> bool:
    """Return whether generated objects are synchronised with their triggers."""
    evaluation = policy.spec.evaluation
    return evaluation is not None and opted_in(evaluation.synchronize)


def opted_in(switch: Enabled | None) -> bool:
    """Return whether a switch that is off by default is on."""
    return switch is not None and switch.enabled is True
