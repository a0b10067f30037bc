"""Find parts of policies in CEL whose answer differs from that of Kyverno 1.18.

Room: cli. Takes: decoded policies of policies.kyverno.io and their exceptions. Gives:
Concerns. Next: report.
Source: docs/differences.md (corrected); docs/behaviour/cel 5, 7.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from kyverno_mp.cli.lint.checks import Concern
from kyverno_mp.compiler.autogen.cel import copied_constraints
from kyverno_mp.compiler.autogen.mutating import moved
from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.cel.syntax.lex import Token, tokenize
from kyverno_mp.policy.cel_kinds.served import AnyCelDocument
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import rule_type_of

ABSENT_OBJECT: Final = "corrected.absent_object"
AUTOGEN: Final = "corrected.autogen"

AnyOfCel = AnyCelDocument | CelPolicyException
_EXPRESSIONS: Final = frozenset(
    {"expression", "messageExpression", "valueExpression", "subjectExpression"}
)
_SELECTIONS: Final = frozenset({".", ".?"})
_READS: Final = frozenset({*_SELECTIONS, "[", "[?"})
_WITHOUT: Final = {
    "object": frozenset({"DELETE", "*"}),
    "oldObject": frozenset({"CREATE", "CONNECT", "*"}),
}
"""Variable -> the operations in which it has no value."""
_MOVED: Final = (
    ("object.spec", "spec"),
    ("Object.spec", "spec"),
    ("object.metadata.labels", "metadata.labels"),
    ("Object.metadata.labels", "metadata.labels"),
    ("object.metadata.annotations", "metadata.annotations"),
    ("Object.metadata.annotations", "metadata.annotations"),
)
"""The texts that 1.18 replaces in copies of a MutatingPolicy."""


def cel_concerns(document: AnyOfCel) -> Iterator[Concern]:
    """Yield a Concern for each expression that a correction reaches."""
    rule_type = rule_type_of(document.kind)
    is_of_review = rule_type or isinstance(document, CelPolicyException)
    if not is_of_review:
        return  # its only object is always there
    mutates = rule_type == "mutate"
    absent = _absent(document)
    for expression, path in _expressions(document.spec.raw(), "spec"):
        tokens = _tokens(expression)
        for name in sorted(absent):
            if _uses(tokens, name, mutates):
                message = f"{name} without a value is null, not an empty map"
                yield Concern(ABSENT_OBJECT, path, "", message, "note")
    if rule_type == "verifyImages" and "object" in absent:
        message = "on DELETE, the images of oldObject are verified; 1.18 finds none"
        yield Concern(ABSENT_OBJECT, "spec.matchConstraints", "", message, "note")
    if mutates:
        yield from _copies(document.spec)


def _absent(document: AnyOfCel) -> set[str]:
    """Return the variables that can be without a value when the policy runs."""
    if isinstance(document, CelPolicyException):
        return set(_WITHOUT)
    constraints = getattr(document.spec, "match_constraints", None)
    rules = constraints.resource_rules if constraints is not None else ()
    operations = {operation for rule in rules for operation in rule.operations}
    absent = {name for name, among in _WITHOUT.items() if operations & among}
    if rule_type_of(document.kind) in ("mutate", "generate"):
        return absent
    evaluation = getattr(document.spec, "evaluation", None)
    background = getattr(evaluation, "background", None)
    if background is None or background.enabled is not False:
        absent.add("oldObject")
    return absent


def _expressions(value: Json, path: str) -> Iterator[tuple[str, str]]:
    if type(value) is dict:
        for name, item in value.items():
            subpath = f"{path}.{name}"
            if name in _EXPRESSIONS and type(item) is str:
                yield item, subpath
            yield from _expressions(item, subpath)
    elif type(value) is list:
        for index, item in enumerate(value):
            yield from _expressions(item, f"{path}[{index}]")


def _tokens(expression: str) -> Sequence[Token]:
    try:
        tokens, problems = tokenize(expression)
    except ExpressionInvalid:
        return ()
    return () if problems else tokens


def _uses(tokens: Sequence[Token], name: str, is_mutating: bool) -> bool:  # noqa: FBT001 - one kind has further variables
    """Return whether an expression reads the object itself, not only its fields."""
    for at, token in enumerate(tokens):
        if token.kind != "ident" or token.value != name:
            continue
        before = tokens[at - 1].kind if at else ""
        if before in _SELECTIONS and not (
            is_mutating and at > 1 and tokens[at - 2].value == "request"
        ):
            continue
        if tokens[at + 1].kind not in _READS:
            return True
    return False


def _copies(spec: Any) -> Iterator[Concern]:
    """Yield the expressions whose autogen copies differ from those of 1.18."""
    controllers = None
    if spec.autogen is not None and spec.autogen.pod_controllers is not None:
        controllers = spec.autogen.pod_controllers.controllers
    prefixes = [
        prefix
        for _, constraints, prefix in copied_constraints(
            spec.match_constraints, controllers
        )
        if constraints is not None and prefix
    ]
    for expression, path, was_kept in _copied(spec):
        for prefix in prefixes:
            before = expression if was_kept else _by_text(expression, prefix)
            if _values(before) != _values(moved(expression, prefix.split("."))):
                message = "the copies for Pod controllers differ from those of 1.18"
                yield Concern(AUTOGEN, path, "", message, "note")
                break


def _copied(spec: Any) -> Iterator[tuple[str, str, bool]]:
    """Yield (expression, path, whether 1.18 keeps it) of what copies change."""
    for index, named in enumerate(spec.match_conditions):
        yield named.expression, f"spec.matchConditions[{index}].expression", False
    for index, named in enumerate(spec.variables):
        yield named.expression, f"spec.variables[{index}].expression", True
    for index, mutation in enumerate(spec.mutations):
        path = f"spec.mutations[{index}]"
        body, patch = mutation.apply_configuration, mutation.json_patch
        if body is not None:
            yield body.expression, f"{path}.applyConfiguration.expression", False
        if patch is not None:
            yield patch.expression, f"{path}.jsonPatch.expression", True
    for index, note in enumerate(spec.audit_annotations):
        path = f"spec.auditAnnotations[{index}].valueExpression"
        yield note.value_expression, path, True


def _values(expression: str) -> object:
    """Return what decides whether two expressions are equal: no white space."""
    tokens = _tokens(expression)
    return [(token.kind, token.value) for token in tokens] if tokens else expression


def _by_text(expression: str, prefix: str) -> str:
    """Return the copy of 1.18, which replaces text."""
    for path, rest in _MOVED:
        root = path.partition(".")[0]
        expression = expression.replace(path, f"{root}.{prefix}.{rest}")
    stripped = expression.strip()
    if not stripped.startswith("Object{"):
        return expression
    content = stripped.removeprefix("Object{")
    end = _end(content)
    if not end:
        return expression
    head, path = "", "Object"
    for field in prefix.split("."):
        head += f"{path}{{{field}: "
        path += f".{field}"
    closing = "}" * (prefix.count(".") + 2)
    return f"{head}{path}{{{content[:end]}{closing}{content[end + 1 :]}"


def _end(content: str) -> int:
    """Return the position of the brace that closes the object, 0 if it is missing."""
    depth = 1
    for position, character in enumerate(content):
        depth += (character == "{") - (character == "}")
        if not depth:
            return position
    return 0
