"""Compile one policy: autogen, then every rule into its record.

Room: compiler. Takes: a decoded ClusterPolicy or Policy and the PolicyExceptions in
force. Gives: CompiledPolicy. Next: snapshot (bytes), program (closures).
Source: docs/behaviour/engine 0.4, 2, 6.9, 8.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from kyverno_mp.compiler.autogen.rules import RuleOfKinds, expand, rules_of_kinds
from kyverno_mp.compiler.described import describe
from kyverno_mp.compiler.review_reads import reads_review
from kyverno_mp.compiler.rules.body import build_validate
from kyverno_mp.compiler.rules.context import build_entries
from kyverno_mp.compiler.rules.effects import effects_of
from kyverno_mp.compiler.rules.generate import build_generate
from kyverno_mp.compiler.rules.match import (
    build_exclude,
    build_match,
    build_selector,
)
from kyverno_mp.compiler.rules.mutate import build_mutate
from kyverno_mp.compiler.rules.verify_images import action_of, build_verify_images
from kyverno_mp.errors import ExpressionInvalid, PolicyInvalid, Where
from kyverno_mp.expr.conditions.parse import parse_conditions
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.ir.cel import NamedExpressionIR
from kyverno_mp.ir.rules import (
    ActionIR,
    CompiledPolicy,
    OverrideIR,
    PolicyIR,
    RuleIR,
)
from kyverno_mp.policy.capabilities import missing_capability
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, Policy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.fields.meta import NamedExpression
from kyverno_mp.policy.fields.validation import (
    CEL,
    FailureActionOverride,
    Validation,
)

_NO_VALIDATION: Final = Validation()
_VALIDATES: Final = ("validate",)


def compile_policy(
    document: AnyPolicy,
    exceptions: Sequence[PolicyException] = (),
    known_as: str = "",
    *,
    verifies: bool = False,
    unusable: dict[str, str] | None = None,
) -> CompiledPolicy:
    """Compile the policy; raises PolicyInvalid naming policy, rule and reason.

    ``exceptions``: all PolicyExceptions; only those that name the policy are used.
    ``known_as``: the policy's name in exceptions, if it differs from the key.
    ``verifies``: the caller verifies images; otherwise verifyImages rules are not
    evaluated. ``unusable``: receives the exceptions that take too many steps, with the
    reason; they exempt nothing. If it is None, such an exception makes the compilation
    fail.
    Cost: about a millisecond for a policy of two rules with autogen.
    """
    rules = []
    for each in _computed(document):
        try:
            rules.append(_rule(each, verifies=verifies))
        except ExpressionInvalid as error:
            raise _invalid(document, each.rule.name, error) from error
    if exceptions:
        rules = _exempted(
            document, rules, exceptions, known_as or document.key, unusable
        )
    rules = [msgspec.structs.replace(rule, effects=effects_of(rule)) for rule in rules]
    return CompiledPolicy(_policy(document, rules), tuple(rules))


def _exempted(
    document: AnyPolicy,
    rules: list[RuleIR],
    exceptions: Sequence[PolicyException],
    known_as: str,
    unusable: dict[str, str] | None,
) -> list[RuleIR]:
    """Return the rules with their exceptions."""
    # PERF: start of the command line, which rarely needs exceptions.
    from kyverno_mp.compiler.rules.exceptions import (
        ExceptionInvalid,
        compile_exceptions,
        named_rules,
    )

    named = named_rules(exceptions, known_as, rules)
    try:
        by_rule = compile_exceptions(named, unusable)
    except ExceptionInvalid as invalid:
        name = rules[invalid.rule].name
        raise _invalid(document, name, invalid.error) from invalid.error
    return [
        msgspec.structs.replace(rule, exceptions=by_rule.get(number, ()))
        for number, rule in enumerate(rules)
    ]


def _invalid(document: AnyPolicy, rule: str, error: ExpressionInvalid) -> PolicyInvalid:
    """Add the policy, the original rule, the field and the column to the error."""
    named = [named_rule.name for named_rule in document.spec.rules]
    bare = rule.removeprefix("autogen-cronjob-").removeprefix("autogen-")
    written = rule if rule in named else bare
    path = f"spec.rules[{named.index(written)}]" if written in named else "spec.rules"
    if error.where.path:
        path = f"{path}.{error.where.path.removeprefix('.')}"
    location = Where(
        policy=document.key, rule=rule, path=path, column=error.where.column
    )
    return PolicyInvalid(error.code, error.message, location)


def _computed(document: AnyPolicy) -> list[RuleOfKinds]:
    """Return the rules in execution order; autogen for validation differs.

    KYVERNO: the autogen annotation ``all`` affects only the other rule types
    (docs/behaviour/engine 2.1).
    """
    validating = [
        each for each in rules_of_kinds(document) if "validate" in each.rule.types()
    ]
    if all(rule.types() == _VALIDATES for rule in document.spec.rules):
        return validating  # so do the rules that autogen adds
    other_rules = [r for r in expand(document) if "validate" not in r.types()]
    return [*validating, *map(RuleOfKinds, other_rules)]


def _policy(document: AnyPolicy, rules: Sequence[RuleIR]) -> PolicyIR:
    spec, metadata = document.spec, document.metadata
    hooks = spec.webhook_configuration
    failure_policy = (hooks.failure_policy if hooks else None) or spec.failure_policy
    namespace = ""
    if isinstance(document, Policy):
        namespace = metadata.namespace or "default"
    return msgspec.structs.replace(
        describe(document.kind, metadata, namespace),
        action=_action(
            spec.validation_failure_action,
            spec.validation_failure_action_overrides,
        ),
        rule_actions=tuple((r.name, r.rule_type, r.action) for r in rules),
        failure_policy=failure_policy or "Fail",
        apply_rules=spec.apply_rules or "All",
        admission=spec.admission,
        background=spec.background,
        emit_warning=spec.emit_warning,
        fine_grained=bool(hooks and hooks.match_conditions),
        namespace_implied=bool(namespace) and not metadata.namespace,
        match_conditions=_match_conditions(hooks.match_conditions if hooks else ()),
        review_rules=tuple(
            r.name for r in rules if r.rule_type == "validate" and reads_review(r)
        ),
    )


def _action(action: str | None, overrides: Iterable[FailureActionOverride]) -> ActionIR:
    """KYVERNO: the deprecated lower-case actions are also accepted (engine 6.9)."""
    return ActionIR(
        (action or "").capitalize(),
        tuple(
            OverrideIR(
                (override.action or "").capitalize(),
                override.namespaces,
                build_selector(override.namespace_selector),
            )
            for override in overrides
        ),
    )


def _rule(limited: RuleOfKinds, *, verifies: bool) -> RuleIR:
    """Compile a rule, without its exceptions and effects."""
    rule = limited.rule
    types = rule.types()
    validate, mutate, generate = rule.validate, rule.mutate, rule.generate
    body = validate or _NO_VALIDATION
    lacking = missing_capability(rule, verifies=verifies)
    return RuleIR(
        name=rule.name,
        rule_type=types[0] if types else "",
        # The first faulty expression is reported, so the order matters: body, context,
        # preconditions.
        validate=build_validate(validate) if validate is not None else None,
        mutate=(
            build_mutate(rule, mutate)
            if mutate is not None and "mutate" in types
            else None
        ),
        context=build_entries(rule.context),
        match=msgspec.structs.replace(
            build_match(rule.match),
            only_kinds=limited.only,
            never_kinds=limited.never,
        ),
        exclude=build_exclude(rule.exclude),
        preconditions=(
            parse_conditions(rule.preconditions)
            if rule.preconditions is not None
            else None
        ),
        action=(
            _action(action_of(rule), ())
            if rule.verify_images
            else _action(body.failure_action, body.failure_action_overrides)
        ),
        report_properties=tuple(
            (key, parse_document(template))
            for key, template in sorted(rule.report_properties.items())
        ),
        unsupported=lacking,
        skip_background_requests=rule.skip_background_requests,
        generate=(
            build_generate(generate)
            if generate is not None and "generate" in types
            else None
        ),
        cel_preconditions=_cel_preconditions(rule.cel_preconditions or (), body.cel),
        verify_images=(
            build_verify_images(rule) if rule.verify_images and verifies else None
        ),
    )


# PERF: imported late for a fast start of the command line, which rarely needs CEL.


def _match_conditions(
    conditions: Sequence[NamedExpression],
) -> tuple[NamedExpressionIR, ...]:
    if not conditions:
        return ()
    from kyverno_mp.compiler.rules.cel import build_match_conditions

    return build_match_conditions(conditions)


def _cel_preconditions(
    preconditions: Sequence[NamedExpression], cel: CEL | None
) -> tuple[NamedExpressionIR, ...]:
    if not preconditions:
        return ()
    from kyverno_mp.compiler.rules.cel import build_cel_preconditions

    return build_cel_preconditions(preconditions, cel)
