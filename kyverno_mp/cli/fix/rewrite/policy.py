"""Rewrite a ClusterPolicy as a ValidatingPolicy.

Room: cli. Takes: a ClusterPolicy. Gives: the document of the ValidatingPolicy, or
NotRewritten with the construct that has no equivalent. Next: proof.py compares both.
May touch: nothing outside its arguments.
Source: docs/behaviour/engine 2, 5, 6; docs/behaviour/cel 2, 6.

Each rule and each autogen rule becomes a validation. So controllers for which
ValidatingPolicies have no autogen (ReplicationControllers) are checked, too.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from kyverno_mp.cli.fix.rewrite.cel import Moved, as_one, moved, pod_variables
from kyverno_mp.cli.fix.rewrite.deny import conditions_expression, deny_expression
from kyverno_mp.cli.fix.rewrite.match import Matched, Resource, kinds_clause, matched
from kyverno_mp.cli.fix.rewrite.pattern import pattern_expression
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten, all_of, any_of, bracketed
from kyverno_mp.compiler.autogen.rules import expand
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy, Rule
from kyverno_mp.policy.fields.meta import NamedExpression
from kyverno_mp.policy.fields.validation import Validation
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import VALIDATING_POLICY

_PATTERN_OPERATIONS: Final = ("CREATE", "UPDATE")
_DENY_OPERATIONS: Final = ("CREATE", "UPDATE", "DELETE")
"""Without CONNECT, which applies only to subresources."""
_RESOURCE: Final = "variables.resource"
_RESOURCE_OF: Final = "object.?metadata.hasValue() ? object : oldObject"
_ANNOTATIONS: Final = "pod-policies.kyverno.io/"
_VARIABLE: Final = "{{"
_PODS: Final = "pods"
_PREFIXES: Final = ("autogen", "autogen-cronjob")
_COPIES: Final = 3
_NAME_MAX: Final = 63


class _Check(NamedTuple):
    """One rule in CEL, for the object and for the old object."""

    matched: Matched
    old_guard: str
    body: str
    old_body: str
    message: str
    allows_existing: bool
    message_expression: str = ""
    preconditions: tuple[NamedExpression, ...] = ()
    variables: tuple[NamedExpression, ...] = ()


def rewritten(policy: ClusterPolicy) -> Json:
    """Return the ValidatingPolicy. Raises: NotRewritten."""
    spec = policy.spec
    _refuse_spec(policy)
    actions = {_action_of(policy, rule) for rule in spec.rules}
    if len(actions) > 1:
        raise NotRewritten("rules with different failureActions")
    (action,) = actions
    checks = [check for copies in _copies(policy) for check in _checks(copies, action)]
    raw: Json = {
        "validationActions": ["Deny" if action == "Enforce" else "Audit"],
        "failurePolicy": spec.failure_policy or "Fail",
        "evaluation": {
            "admission": {"enabled": spec.admission},
            "background": {"enabled": spec.background},
        },
        "autogen": {"podControllers": {"controllers": []}},
        "matchConstraints": {"resourceRules": _resource_rules(checks)},
    }
    timeout = _timeout_of(policy)
    if timeout:
        raw["webhookConfiguration"] = {"timeoutSeconds": timeout}
    validations = [_validation(check, checks) for check in checks]
    for field, value in (
        ("matchConditions", _conditions(checks)),
        ("variables", _variables(checks, validations)),
        ("validations", validations),
    ):
        if value:
            raw[field] = value
    metadata: Json = {"name": policy.metadata.name}
    if policy.metadata.labels:
        metadata["labels"] = dict(policy.metadata.labels)
    kept = {
        key: value
        for key, value in policy.metadata.annotations.items()
        if not key.startswith(_ANNOTATIONS)
    }
    if kept:
        metadata["annotations"] = kept
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": VALIDATING_POLICY.name,
        "metadata": metadata,
        "spec": raw,
    }


def resources_of(policy: ClusterPolicy) -> set[Resource]:
    """Return the resources that a policy matches. Raises: NotRewritten."""
    return {
        resource
        for copies in _copies(policy)
        for check in _checks(copies, "")
        for resource in check.matched.resources
    }


def _copies(policy: ClusterPolicy) -> list[list[Rule]]:
    """Return each rule with its copies for controllers and CronJobs."""
    rules = expand(policy)
    generated = {rule.name: rule for rule in rules}
    found = []
    for rule in policy.spec.rules:
        names = (f"{prefix}-{rule.name}"[:_NAME_MAX] for prefix in _PREFIXES)
        copies = [generated.pop(name) for name in names if name in generated]
        found.append([generated.pop(rule.name, rule), *copies])
    return [*found, *([rule] for rule in generated.values())]


def _refuse_spec(policy: ClusterPolicy) -> None:
    spec = policy.spec
    webhook = spec.webhook_configuration
    for is_given, what in (
        (spec.apply_rules == "One", "applyRules: One"),
        (bool(spec.validation_failure_action_overrides), "failureActionOverrides"),
        (webhook is not None and bool(webhook.match_conditions), "matchConditions"),
        (
            webhook is not None and webhook.failure_policy is not None,
            "failurePolicy in webhookConfiguration",
        ),
        (spec.emit_warning, "emitWarning"),
        (not spec.rules, "a policy without rules"),
    ):
        if is_given:
            raise NotRewritten(what)


def _timeout_of(policy: ClusterPolicy) -> int:
    webhook = policy.spec.webhook_configuration
    own = webhook.timeout_seconds if webhook is not None else None
    return own or policy.spec.webhook_timeout_seconds or 0


def _action_of(policy: ClusterPolicy, rule: Rule) -> str:
    own = rule.validate.failure_action if rule.validate is not None else None
    return (own or policy.spec.validation_failure_action).capitalize()


def _checks(copies: Sequence[Rule], action: str) -> list[_Check]:
    """Rewrite a rule and its copies. Raises: NotRewritten, with the rule's name."""
    made = []
    for rule in copies:
        try:
            made.append(_made(rule, action))
        except NotRewritten as error:
            raise NotRewritten(f"rule {rule.name}: {error}") from error
    return _together(copies, made) or [check for checks in made for check in checks]


def _together(copies: Sequence[Rule], made: Sequence[list[_Check]]) -> list[_Check]:
    """Return the checks of a rule in CEL, which are also those of its copies."""
    cels = [rule.validate.cel for rule in copies if rule.validate is not None]
    if len(copies) != _COPIES or None in cels:
        return []
    matches = [checks[0].matched for checks in made]
    if len({(one.operations, one.guard) for one in matches}) > 1:
        return []
    found = as_one(
        [moved(rule, cel) for rule, cel in zip(copies, cels, strict=True) if cel]
    )
    if found is None:
        return []
    resources = [resource for one in matches for resource in one.resources]
    match = matches[0]._replace(resources=tuple(dict.fromkeys(resources)))
    assert copies[0].validate is not None
    return _cel_checks(match, found, copies[0].validate.message)


def _made(rule: Rule, action: str) -> list[_Check]:
    validate = _refuse_rule(rule)
    if validate.cel is not None:
        match = matched(rule, _DENY_OPERATIONS, "object")
        if "DELETE" in match.operations:
            match = matched(rule, _DENY_OPERATIONS, _RESOURCE)
        return _cel_checks(match, moved(rule, validate.cel), validate.message)
    denies = validate.deny is not None
    operations = _DENY_OPERATIONS if denies else _PATTERN_OPERATIONS
    found = matched(rule, operations, _RESOURCE if denies else "object")
    old = matched(rule, operations, "oldObject")
    if rule.preconditions:
        condition = conditions_expression(rule.preconditions, "object")
        found = found._replace(guard=all_of((found.guard, condition)))
    check = _Check(
        matched=found,
        old_guard=old.guard,
        # KYVERNO: for a deletion, ``request.object`` is the old object.
        body=_body(validate, _RESOURCE if denies else "object"),
        old_body=_body(validate, "oldObject"),
        message=validate.message,
        # KYVERNO: the old object is matched like a CREATE, and without preconditions.
        allows_existing=action == "Enforce"
        and not rule.preconditions
        and validate.allow_existing_violations
        and "CREATE" in found.operations
        and "UPDATE" in found.operations,
    )
    return [check]


def _cel_checks(match: Matched, given: Moved, message: str) -> list[_Check]:
    return [
        _Check(
            matched=match,
            old_guard="",
            body=one.expression.strip(),
            old_body="",
            message=one.message or message,
            allows_existing=False,
            message_expression=one.message_expression,
            preconditions=given.preconditions,
            variables=given.variables,
        )
        for one in given.expressions
    ]


def _variables(checks: Sequence[_Check], validations: Sequence[Json]) -> list[Json]:
    """Return the variables that the validations use. Raises: NotRewritten."""
    own: dict[str, str] = {}
    for variable in dict.fromkeys(one for check in checks for one in check.variables):
        if own.setdefault(variable.name, variable.expression) != variable.expression:
            raise NotRewritten(f"two variables of the name {variable.name}")
    texts = [*own.values()]
    for validation in validations:
        texts += [validation["expression"], validation.get("messageExpression", "")]
    found = pod_variables(texts)
    if any(_RESOURCE in text for text in texts):
        found.insert(0, {"name": "resource", "expression": _RESOURCE_OF})
    if {one["name"] for one in found} & set(own):
        raise NotRewritten("a variable with the name of a variable of the rewrite")
    found += [{"name": name, "expression": text} for name, text in own.items()]
    return found


def _refuse_rule(rule: Rule) -> Validation:
    validate = rule.validate
    if validate is None or rule.types() != ("validate",):
        raise NotRewritten("no validate rule")
    for is_given, what in (
        (bool(rule.context), "context"),
        (bool(rule.report_properties), "reportProperties"),
        (bool(rule.cel_preconditions) and validate.cel is None, "celPreconditions"),
        (bool(rule.preconditions) and validate.cel is not None, "preconditions of cel"),
        (validate.foreach is not None, "foreach"),
        (validate.pod_security is not None, "podSecurity"),
        (validate.manifests is not None, "manifests"),
        (validate.assertion is not None, "assert"),
        (bool(validate.failure_action_overrides), "failureActionOverrides"),
        (_VARIABLE in validate.message, "variables in the message"),
        (_has_variables(validate.pattern), "variables in the pattern"),
        (_has_variables(validate.any_pattern), "variables in the pattern"),
    ):
        if is_given:
            raise NotRewritten(what)
    return validate


def _has_variables(value: Json) -> bool:
    if type(value) is str:
        return _VARIABLE in value or "$(" in value
    if type(value) is dict:
        return any(_has_variables(one) for pair in value.items() for one in pair)
    return type(value) is list and any(map(_has_variables, value))


def _body(validate: Validation, root: str) -> str:
    if validate.deny is not None:
        return deny_expression(validate.deny, root)
    if validate.pattern is not None:
        return pattern_expression(validate.pattern, root)
    if type(validate.any_pattern) is list and validate.any_pattern:
        return any_of(pattern_expression(one, root) for one in validate.any_pattern)
    raise NotRewritten("a rule without pattern, anyPattern or deny")


def _resource_rules(checks: Sequence[_Check]) -> list[Json]:
    """Return a resource rule for each group and version, with all operations."""
    operations = [
        one
        for one in ("CREATE", "UPDATE", "DELETE", "CONNECT")
        if any(one in check.matched.operations for check in checks)
    ]
    found: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        for resource in check.matched.resources:
            plurals = found.setdefault((resource.group, resource.version), [])
            added = [resource.plural]
            if resource.plural == _PODS:
                added.append(f"{_PODS}/ephemeralcontainers")
            plurals += [plural for plural in added if plural not in plurals]
    return [
        {
            "apiGroups": [group],
            "apiVersions": [version],
            "operations": list(operations),
            "resources": plurals,
        }
        for (group, version), plurals in found.items()
    ]


def _guards(check: _Check, checks: Sequence[_Check]) -> tuple[str, ...]:
    """Return the conditions under which a rule applies. Raises: NotRewritten."""
    guards = [check.matched.guard]
    every = {resource for other in checks for resource in other.matched.resources}
    others = every - set(check.matched.resources)
    kinds = _kinds_of(check.matched.resources)
    if kinds & _kinds_of(others):
        raise NotRewritten("kinds of one name in several groups or versions")
    # Another group may use the resource name for another kind.
    if others or any(one.group == "*" for one in check.matched.resources):
        reviews_deletions = any("DELETE" in one.matched.operations for one in checks)
        root = _RESOURCE if reviews_deletions else "object"
        guards.insert(0, kinds_clause(kinds, root))
    wanted = {operation for other in checks for operation in other.matched.operations}
    if set(check.matched.operations) != wanted:
        operations = ", ".join(f"'{one}'" for one in check.matched.operations)
        guards.insert(0, f"request.operation in [{operations}]")
    return tuple(guard for guard in guards if guard != "true")


def _conditions(checks: Sequence[_Check]) -> list[Json]:
    """Return matchConditions for what restricts all rules alike."""
    if len({_guards(check, checks) for check in checks}) > 1:
        return []
    guard = all_of(_guards(checks[0], checks)).replace(_RESOURCE, f"({_RESOURCE_OF})")
    found = [] if guard == "true" else [{"name": "match", "expression": guard}]
    return [*found, *_shared_preconditions(checks)]


def _shared_preconditions(checks: Sequence[_Check]) -> list[Json]:
    """Return the preconditions of the only rule in CEL.

    matchConditions cannot use variables.
    """
    given = checks[0].preconditions
    is_shared = all(check.preconditions == given for check in checks)
    if not is_shared or any("variables." in one.expression for one in given):
        return []
    return [one.raw() for one in given]


def _validation(check: _Check, checks: Sequence[_Check]) -> Json:
    is_shared = bool(_conditions(checks))
    guard = "true" if is_shared else all_of(_guards(check, checks))
    precondition = all_of(one.expression for one in check.preconditions)
    body = check.body
    if precondition != "true" and not (is_shared and _shared_preconditions(checks)):
        # Unlike "||", the conditional operator keeps an error of the condition.
        body = f"{bracketed(precondition)} ? {bracketed(body)} : true"
    clauses = [body]
    if guard != "true":
        clauses.insert(0, f"!({guard})")
    if check.allows_existing:
        existing = [
            "request.operation == 'UPDATE'",
            check.old_guard,
            f"!({check.old_body})",
        ]
        clauses.append(all_of(existing))
    whole = clauses[0] if len(clauses) == 1 else " || ".join(map(bracketed, clauses))
    found: Json = {"expression": whole}
    if check.message_expression:
        found["messageExpression"] = check.message_expression
    elif check.message:
        found["message"] = check.message
    return found


def _kinds_of(resources: Sequence[Resource] | set[Resource]) -> set[str]:
    return {resource.kind for resource in resources}
