"""Rewrite one rule, with its copies for the controllers of Pods, as checks in CEL.

Room: cli. Takes: a rule and its copies. Gives: Checks. Next: policy.py.
Source: docs/behaviour/engine 2, 5, 6; docs/behaviour/cel 6.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.cli.fix.rewrite.cel import (
    OLD_POD,
    POD,
    Moved,
    as_one,
    moved,
    path_of_copy,
)
from kyverno_mp.cli.fix.rewrite.cluster_reads import read_variables
from kyverno_mp.cli.fix.rewrite.conditions import conditions_of, has_variables
from kyverno_mp.cli.fix.rewrite.deny import conditions_expression
from kyverno_mp.cli.fix.rewrite.foreach import foreach_test
from kyverno_mp.cli.fix.rewrite.match import CONNECT, Matched, Resource, matched
from kyverno_mp.cli.fix.rewrite.messages import message_of
from kyverno_mp.cli.fix.rewrite.query_values import Code, Names, Value
from kyverno_mp.cli.fix.rewrite.skipping import patterns_expression
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten, negated
from kyverno_mp.cli.fix.rewrite.typed import Typed, root_of
from kyverno_mp.cli.fix.rewrite.variables import with_context
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.meta import NamedExpression
from kyverno_mp.policy.fields.validation import Validation
from kyverno_mp.values.jsonvalue import Json

RESOURCE: Final = "variables.resource"
_PATTERN_OPERATIONS: Final = ("CREATE", "UPDATE")
_DENY_OPERATIONS: Final = ("CREATE", "UPDATE", "DELETE")
_CONNECTS: Final = f"request.operation == '{CONNECT}'"
"""A condition that holds for all requests to which a rule on subresources applies."""
_POD_PARTS: Final = frozenset({"spec", "metadata"})
_KEY: Final = re.compile(r"[=^<X+]?\(?(\w+)\)?")
_OBJECT: Final = "request.object."
_POD_TYPE: Final = "=core.v1.Pod"


class Check(NamedTuple):
    """One test in CEL, for the object and for the old object.

    ``is_sure``: the test is no error, whatever the object.
    """

    matched: Matched
    old_guard: str
    body: str
    old_body: str
    message: str
    allows_existing: bool
    is_sure: bool = True
    message_expression: str = ""
    preconditions: tuple[NamedExpression, ...] = ()
    variables: tuple[NamedExpression, ...] = ()


class _Roots(NamedTuple):
    """Names of the object in expressions: the object, and the Pod or its template."""

    whole: str
    pod: str

    def names(self, resources: Sequence[Resource]) -> Names:
        """Return the names that queries use."""
        names: dict[str, Value] = {
            "request.object": root_of(resources, self.whole),
            "request.oldObject": root_of(resources, "oldObject"),
            "request.operation": Code("request.operation", "string", is_name=True),
            "request.namespace": Code("request.namespace", "string", is_name=True),
            "request.name": Code("request.name", "string", is_name=True),
            "request.userInfo.username": Code("request.userInfo.username", "string"),
        }
        if self.pod != self.whole:
            pod = Typed(self.pod, "", (_POD_TYPE,))
            for part in _POD_PARTS:
                names[f"request.object.{part}"] = pod.field(part)
        return names


def names_of(resources: Sequence[Resource]) -> Names:
    """Return the names that queries of a rule use, for objects of these resources."""
    return _Roots("object", "object").names(resources)


def checks_of(copies: Sequence[Rule], action: str) -> list[Check]:
    """Rewrite a rule and its copies. Raises: NotRewritten, with the rule's name."""
    reason: NotRewritten | None = None
    if len(copies) > 1:
        try:
            return _as_one(copies, action)
        except NotRewritten as error:
            reason = error
    try:
        return [check for rule in copies for check in _apart(rule, action)]
    except NotRewritten as error:
        raise NotRewritten(f"rule {copies[0].name}: {reason or error}") from error


def _apart(rule: Rule, action: str) -> list[Check]:
    validate = _refuse_rule(rule)
    match, whole = _match(rule, validate)
    roots, old = _Roots(whole, whole), _Roots("oldObject", "oldObject")
    if validate.cel is not None:
        return _cel_checks(match, moved(rule, validate.cel), validate.message)
    return [_check(rule, match, roots, old, action)]


def _as_one(copies: Sequence[Rule], action: str) -> list[Check]:
    """Return the checks of a rule, which are also those of its copies."""
    first = copies[0]
    bodies = [_refuse_rule(rule) for rule in copies]
    pairs = [_match(rule, body) for rule, body in zip(copies, bodies, strict=True)]
    matches = [match for match, _ in pairs]
    if len({(one.operations, one.guard) for one in matches}) > 1:
        raise NotRewritten("controllers that match otherwise than Pods")
    resources = [resource for one in matches for resource in one.resources]
    match = matches[0]._replace(resources=tuple(dict.fromkeys(resources)))
    paths = [path_of_copy(rule.name, first.name) for rule in copies]
    if bodies[0].cel is not None:
        cels = [
            moved(rule, body.cel)
            for rule, body in zip(copies, bodies, strict=True)
            if body.cel
        ]
        found = as_one(list(zip(cels, paths, strict=True)))
        if found is None:
            raise NotRewritten("controllers that are tested otherwise than Pods")
        return _cel_checks(match, found, bodies[0].message)
    texts = {
        _text_for_pods(rule, path) for rule, path in zip(copies, paths, strict=True)
    }
    if len(texts) > 1:
        raise NotRewritten("controllers that are tested otherwise than Pods")
    roots = _Roots(pairs[0][1], f"variables.{POD}")
    old = _Roots("oldObject", f"variables.{OLD_POD}")
    return [_check(first, match, roots, old, action)]


def _text_for_pods(rule: Rule, path: str) -> bytes:
    """Return the tests of a rule with the paths of a Pod."""
    raw = rule.raw()
    validate = {
        key: value
        for key, value in raw["validate"].items()
        if key not in ("message", "pattern", "anyPattern")
    }
    kept = [raw.get("preconditions"), raw.get("context"), validate]
    text = msgspec.json.encode(kept)
    for name in ("object", "oldObject"):
        for part in _POD_PARTS:
            text = text.replace(
                f"request.{name}.{path}{part}".encode(),
                f"request.{name}.{part}".encode(),
            )
    return text


def _match(rule: Rule, validate: Validation) -> tuple[Matched, str]:
    """Return what the rule matches, and the name of the object in its tests."""
    denies = validate.deny is not None or validate.cel is not None
    is_deletion_seen = denies or _can_fail(rule)
    operations = _DENY_OPERATIONS if is_deletion_seen else _PATTERN_OPERATIONS
    if validate.deny is not None:
        operations = (*operations, CONNECT)
    match = matched(rule, operations, "object")
    if "DELETE" not in match.operations:
        return match, "object"
    # KYVERNO: for a deletion, ``request.object`` is the old object.
    return matched(rule, operations, RESOURCE), RESOURCE


def _can_fail(rule: Rule) -> bool:
    """Return whether a precondition reads a field of the object without a default."""
    if not rule.preconditions:
        return False
    text = msgspec.json.encode(rule.preconditions).decode()
    variables = (part.partition("}}")[0] for part in text.split("{{")[1:])
    return any(_OBJECT in query and "||" not in query for query in variables)


def _check(
    rule: Rule, match: Matched, roots: _Roots, old: _Roots, action: str
) -> Check:
    validate = rule.validate
    assert validate is not None
    names = with_context(rule.context, roots.names(match.resources), reads=True)
    old_names = with_context(rule.context, old.names(match.resources), reads=True)
    message, message_expression = message_of(validate.message, names)
    preconditions: tuple[NamedExpression, ...] = ()
    if rule.preconditions:
        text = guarded_conditions(rule.preconditions, names, roots.whole)
        if match.operations != (CONNECT,) or text != _CONNECTS:
            preconditions = (NamedExpression(name="preconditions", expression=text),)
    body = _body(validate, names, roots)
    if "DELETE" in match.operations and validate.deny is None:
        # KYVERNO: a pattern does not judge deletions, but the preconditions can fail.
        body = f"request.operation == 'DELETE' || ({body})"
    # KYVERNO: the old object is matched like a CREATE, and without preconditions.
    allows_existing = (
        action == "Enforce"
        and not rule.preconditions
        and validate.allow_existing_violations
        and "CREATE" in match.operations
        and "UPDATE" in match.operations
    )
    old_body = _body(validate, old_names, old) if allows_existing else ""
    reads = read_variables(rule.context, names)
    if old_body and reads != read_variables(rule.context, old_names):
        raise NotRewritten("a context entry for the object and for the old object")
    texts = (
        body,
        old_body,
        message_expression,
        *(one.expression for one in preconditions),
    )
    return Check(
        matched=match,
        old_guard=matched(rule, match.operations, "oldObject").guard,
        body=body,
        old_body=old_body,
        message=message,
        allows_existing=allows_existing,
        is_sure=validate.deny is None and validate.foreach is None,
        message_expression=message_expression,
        preconditions=preconditions,
        variables=tuple(
            one
            for one in reads
            if any(re.search(rf"\bvariables\.{one.name}\b", text) for text in texts)
        ),
    )


def _body(validate: Validation, names: Names, roots: _Roots) -> str:
    if validate.deny is not None:
        if not validate.deny.conditions:
            return "false"
        conditions = guarded_conditions(validate.deny.conditions, names, roots.whole)
        return negated(conditions)
    if validate.foreach is not None:
        return foreach_test(validate.foreach, names)
    patterns = [validate.pattern] if validate.pattern is not None else []
    if type(validate.any_pattern) is list:
        patterns += validate.any_pattern
    if not patterns:
        raise NotRewritten("a rule without pattern, anyPattern or deny")
    root = names["request.object"]
    if roots.pod != roots.whole:
        if not set(_keys(patterns)) <= _POD_PARTS:
            raise NotRewritten("a pattern that tests more than a Pod")
        root = Typed(roots.pod, "", (_POD_TYPE,))
    assert isinstance(root, Typed)
    return patterns_expression(patterns, root)


def _keys(patterns: Sequence[Json]) -> Iterator[str]:
    for pattern in patterns:
        for key in pattern if type(pattern) is dict else ():
            found = _KEY.fullmatch(key)
            yield found.group(1) if found else ""


def guarded_conditions(raw: Json, names: Names, root: str) -> str:
    """Return an expression for conditions; on fields of unknown type with guards."""
    try:
        return conditions_of(raw, names)
    except NotRewritten as error:
        if any(
            isinstance(one, Typed) and "variables.pod" in one.plain
            for one in names.values()
        ):
            raise
        try:
            return conditions_expression(raw, root)
        except NotRewritten:
            raise error from None


def _cel_checks(match: Matched, given: Moved, message: str) -> list[Check]:
    return [
        Check(
            matched=match,
            old_guard="",
            body=one.expression.strip(),
            old_body="",
            message=one.message or message,
            allows_existing=False,
            is_sure=False,
            message_expression=one.message_expression,
            preconditions=given.preconditions,
            variables=given.variables,
        )
        for one in given.expressions
    ]


def _refuse_rule(rule: Rule) -> Validation:
    validate = rule.validate
    if validate is None or rule.types() != ("validate",):
        raise NotRewritten("no validate rule")
    is_cel = validate.cel is not None
    for is_given, what in (
        (bool(rule.report_properties), "reportProperties"),
        (bool(rule.cel_preconditions) and not is_cel, "celPreconditions"),
        (bool(rule.preconditions or rule.context) and is_cel, "preconditions of cel"),
        (validate.pod_security is not None, "podSecurity"),
        (validate.manifests is not None, "manifests"),
        (validate.assertion is not None, "assert"),
        (bool(validate.failure_action_overrides), "failureActionOverrides"),
        (has_variables(validate.pattern), "variables in the pattern"),
        (has_variables(validate.any_pattern), "variables in the pattern"),
    ):
        if is_given:
            raise NotRewritten(what)
    return validate
