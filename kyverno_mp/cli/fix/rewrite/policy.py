"""Rewrite a ClusterPolicy as policies in CEL.

Room: cli. Takes: a ClusterPolicy. Gives: a document for each type of its rules, or
NotRewritten with the construct that has no equivalent. Next: proof.py compares both.
Source: docs/behaviour/engine 2, 5, 6; docs/behaviour/cel 2, 6.

A rule on Pods becomes one validation for Pods and all their controllers, also those for
which ValidatingPolicies have no autogen (ReplicationControllers).
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from kyverno_mp.cli.fix.rewrite.cel import pod_variables
from kyverno_mp.cli.fix.rewrite.generator_calls import calls_of, generation_of
from kyverno_mp.cli.fix.rewrite.match import CONNECT, Resource, kinds_clause
from kyverno_mp.cli.fix.rewrite.mutate import (
    Change,
    changes_of,
    guards_of,
    mutations,
)
from kyverno_mp.cli.fix.rewrite.objects import Choice, written
from kyverno_mp.cli.fix.rewrite.rules import RESOURCE, Check, checks_of
from kyverno_mp.cli.fix.rewrite.texts import (
    NotRewritten,
    all_of,
    bracketed,
    negated,
)
from kyverno_mp.compiler.autogen.rules import expand
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, Rule
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import OF_TYPE

_RESOURCE_OF: Final = "object.?metadata.hasValue() ? object : oldObject"
_ANNOTATIONS: Final = "pod-policies.kyverno.io/"
_PODS: Final = "pods"
_PREFIXES: Final = ("autogen", "autogen-cronjob")
_NAME_MAX: Final = 63


def documents_of(policy: AnyPolicy) -> list[tuple[AnyPolicy, Json]]:
    """Return the policies that replace a ClusterPolicy. Raises: NotRewritten.

    Each with the ClusterPolicy of the rules that it replaces.
    """
    _refuse_spec(policy)
    found = []
    for rule_type, write in _WRITERS.items():
        rules = tuple(
            rule for rule in policy.spec.rules if rule.types() == (rule_type,)
        )
        if rules:
            spec = msgspec.structs.replace(policy.spec, rules=rules)
            part = msgspec.structs.replace(policy, spec=spec)
            found.append((part, _document(part, rule_type, write(part))))
    for rule in policy.spec.rules:
        types = rule.types()
        if len(types) != 1 or types[0] not in _WRITERS:
            text = " and ".join(types) or "no type"
            raise NotRewritten(f"rule {rule.name}: {text}")
    return found


def _validating(policy: AnyPolicy) -> Json:
    spec = policy.spec
    actions = {_action_of(policy, rule) for rule in spec.rules}
    if len(actions) > 1:
        raise NotRewritten("rules with different failureActions")
    (action,) = actions
    checks = [
        check for copies in _copies(policy) for check in checks_of(copies, action)
    ]
    validations = [_validation(check, checks) for check in checks]
    evaluation = {"background": {"enabled": spec.background}}
    return {
        "validationActions": ["Deny" if action == "Enforce" else "Audit"],
        **_common(policy, **evaluation),
        "matchConstraints": {"resourceRules": _resource_rules(checks)},
        "matchConditions": _conditions(checks),
        "variables": _variables(checks, validations),
        "validations": validations,
    }


def _mutating(policy: AnyPolicy) -> Json:
    changes = [change for copies in _copies(policy) for change in changes_of(copies)]
    conditions, own = _conditions_of(changes)
    return {
        **_common(policy),
        # Upstream's webhook of ClusterPolicies is called again, too.
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": {"resourceRules": _resource_rules(changes)},
        "matchConditions": conditions,
        "mutations": mutations(changes, own),
    }


def _generating(policy: AnyPolicy) -> Json:
    changes = [change for copies in _copies(policy) for change in calls_of(copies)]
    conditions, own = _conditions_of(changes)
    calls = [
        change.part if guard == "true" else Choice(guard, change.part, "true")
        for change, guard in zip(changes, own, strict=True)
    ]
    return {
        "evaluation": _evaluation_of(policy),
        "matchConstraints": {"resourceRules": _resource_rules(changes)},
        "matchConditions": conditions,
        "generate": [{"expression": written(call)} for call in calls],
    }


_WRITERS: Final = {
    "mutate": _mutating,
    "validate": _validating,
    "generate": _generating,
}
"""The type of rules -> the function that writes the spec of their policy."""


def _common(policy: AnyPolicy, **evaluation: Json) -> Json:
    """Return what a policy with a failurePolicy and autogen begins with."""
    return {
        "failurePolicy": policy.spec.failure_policy or "Fail",
        "evaluation": {"admission": {"enabled": policy.spec.admission}, **evaluation},
        "autogen": {"podControllers": {"controllers": []}},
    }


def _evaluation_of(policy: AnyPolicy) -> Json:
    """Return ``evaluation`` of a policy whose rules generate. Raises: NotRewritten."""
    spec = policy.spec
    if spec.use_server_side_apply:
        raise NotRewritten("useServerSideApply")
    found = []
    for rule in spec.rules:
        generate = generation_of(rule)
        existing = generate.generate_existing
        enabled = {
            "synchronize": generate.synchronize,
            "generateExisting": (
                spec.generate_existing if existing is None else existing
            ),
            "orphanDownstreamOnPolicyDelete": (
                generate.orphan_downstream_on_policy_delete
            ),
        }
        found.append((enabled, rule.skip_background_requests))
    if any(one != found[0] for one in found):
        raise NotRewritten("rules that differ in synchronize or the like")
    enabled, skips = found[0]
    evaluation: Json = {"admission": {"enabled": spec.admission}}
    evaluation |= {name: {"enabled": True} for name, on in enabled.items() if on}
    return evaluation if skips else {**evaluation, "skipBackgroundRequests": False}


def _conditions_of(changes: Sequence[Change]) -> tuple[list[Json], list[str]]:
    """Return the conditions of all changes, and what each one tests itself."""
    guards = guards_of(changes)
    is_shared = len(set(guards)) == 1
    conditions: list[Json] = [
        {"name": f"condition-{number}", "expression": text}
        for number, text in enumerate(guards[0] if is_shared else (), 1)
    ]
    return conditions, ["true" if is_shared else all_of(one) for one in guards]


def _document(policy: AnyPolicy, rule_type: str, spec: Json) -> Json:
    """Return the document, without the empty fields of the spec."""
    timeout = _timeout_of(policy)
    if timeout:
        spec["webhookConfiguration"] = {"timeoutSeconds": timeout}
    spec = {name: value for name, value in spec.items() if value}
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
        "kind": OF_TYPE[rule_type].name,
        "metadata": metadata,
        "spec": spec,
    }


def resources_of(policy: AnyPolicy) -> set[Resource]:
    """Return the resources that a policy matches. Raises: NotRewritten."""
    of_rules: list[Check | Change] = []
    for copies in _copies(policy):
        if copies[0].mutate is not None:
            of_rules += changes_of(copies)
        elif copies[0].generate is not None:
            of_rules += calls_of(copies)
        else:
            of_rules += checks_of(copies, "")
    return {resource for one in of_rules for resource in one.matched.resources}


def _copies(policy: AnyPolicy) -> list[list[Rule]]:
    """Return each rule with its copies for controllers and CronJobs."""
    rules = expand(policy)
    generated = {rule.name: rule for rule in rules}
    found = []
    for rule in policy.spec.rules:
        names = (f"{prefix}-{rule.name}"[:_NAME_MAX] for prefix in _PREFIXES)
        copies = [generated.pop(name) for name in names if name in generated]
        found.append([generated.pop(rule.name, rule), *copies])
    return [*found, *([rule] for rule in generated.values())]


def _refuse_spec(policy: AnyPolicy) -> None:
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


def _timeout_of(policy: AnyPolicy) -> int:
    webhook = policy.spec.webhook_configuration
    own = webhook.timeout_seconds if webhook is not None else None
    return own or policy.spec.webhook_timeout_seconds or 0


def _action_of(policy: AnyPolicy, rule: Rule) -> str:
    own = rule.validate.failure_action if rule.validate is not None else None
    return (own or policy.spec.validation_failure_action).capitalize()


def _variables(checks: Sequence[Check], validations: Sequence[Json]) -> list[Json]:
    """Return the variables that the validations use. Raises: NotRewritten."""
    own: dict[str, str] = {}
    for variable in dict.fromkeys(one for check in checks for one in check.variables):
        if own.setdefault(variable.name, variable.expression) != variable.expression:
            raise NotRewritten(f"two variables of the name {variable.name}")
    texts = [*own.values()]
    for validation in validations:
        texts += [validation["expression"], validation.get("messageExpression", "")]
    # An expression of the policy reads ``object`` also for deletions, old_guard is "".
    reviews_deletions = any(
        check.old_guard and "DELETE" in check.matched.operations for check in checks
    )
    found = pod_variables(texts, RESOURCE if reviews_deletions else "object")
    texts += [one["expression"] for one in found]
    if any(RESOURCE in text for text in texts):
        found.insert(0, {"name": "resource", "expression": _RESOURCE_OF})
    if {one["name"] for one in found} & set(own):
        raise NotRewritten("a variable with the name of a variable of the rewrite")
    found += [{"name": name, "expression": text} for name, text in own.items()]
    return found


def _resource_rules(checks: Sequence[Check | Change]) -> list[Json]:
    """Return a resource rule for each group and version, with all operations."""
    operations = [
        one
        for one in ("CREATE", "UPDATE", "DELETE", CONNECT)
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


def _guards(check: Check, checks: Sequence[Check]) -> tuple[str, ...]:
    """Return the conditions under which a rule applies. Raises: NotRewritten."""
    guards = [check.matched.guard]
    every = {resource for other in checks for resource in other.matched.resources}
    others = every - set(check.matched.resources)
    kinds = _kinds_of(check.matched.resources)
    if len({bool(resource.subresource) for resource in every}) > 1:
        raise NotRewritten("rules on subresources beside other rules")
    if kinds & _kinds_of(others):
        raise NotRewritten("kinds of one name in several groups or versions")
    # Another group may use the resource name for another kind.
    if others or any(
        one.group == "*" and not one.subresource for one in check.matched.resources
    ):
        reviews_deletions = any("DELETE" in one.matched.operations for one in checks)
        root = RESOURCE if reviews_deletions else "object"
        guards.insert(0, kinds_clause(kinds, root))
    wanted = {operation for other in checks for operation in other.matched.operations}
    if set(check.matched.operations) != wanted:
        operations = ", ".join(f"'{one}'" for one in check.matched.operations)
        guards.insert(0, f"request.operation in [{operations}]")
    return tuple(guard for guard in guards if guard != "true")


def _conditions(checks: Sequence[Check]) -> list[Json]:
    """Return matchConditions for what restricts all rules alike."""
    if len({_guards(check, checks) for check in checks}) > 1:
        return []
    guard = all_of(_guards(checks[0], checks)).replace(RESOURCE, f"({_RESOURCE_OF})")
    found = [] if guard == "true" else [{"name": "match", "expression": guard}]
    return [*found, *_shared_preconditions(checks)]


def _shared_preconditions(checks: Sequence[Check]) -> list[Json]:
    """Return the preconditions of the only rule in CEL.

    matchConditions cannot use variables.
    """
    given = checks[0].preconditions
    is_shared = all(check.preconditions == given for check in checks)
    if not is_shared or any("variables." in one.expression for one in given):
        return []
    return [one.raw() for one in given]


def _validation(check: Check, checks: Sequence[Check]) -> Json:
    is_shared = bool(_conditions(checks))
    guard = "true" if is_shared else all_of(_guards(check, checks))
    precondition = all_of(one.expression for one in check.preconditions)
    body = check.body
    if precondition != "true" and not (is_shared and _shared_preconditions(checks)):
        # Unlike "||", the conditional operator keeps an error of the condition.
        body = f"{bracketed(precondition)} ? {bracketed(body)} : true"
    clauses = [body]
    if check.allows_existing:
        violated = negated(check.old_body)
        existing = all_of(("request.operation == 'UPDATE'", check.old_guard, violated))
        if check.is_sure:
            clauses.append(existing)
        else:
            # Unlike "||", the conditional operator keeps an error of the test.
            clauses = [f"{bracketed(body)} ? true : {bracketed(existing)}"]
    if guard != "true":
        clauses.insert(0, f"!({guard})")
    whole = clauses[0] if len(clauses) == 1 else " || ".join(map(bracketed, clauses))
    found: Json = {"expression": whole}
    if check.message_expression:
        found["messageExpression"] = check.message_expression
    elif check.message:
        found["message"] = check.message
    return found


def _kinds_of(resources: Sequence[Resource] | set[Resource]) -> set[str]:
    return {resource.kind for resource in resources}
