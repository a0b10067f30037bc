"""Derive autogen copies of a MutatingPolicy on Pods for Pod controllers.

Room: compiler. Takes: the spec of a MutatingPolicy. Gives: copies with rewritten
expressions and match constraints. Next: compiler/cel_kinds/mutating_policy.py.
Source: docs/behaviour/cel 7; Kyverno pkg/cel/policies/mpol/autogen, which replaces
text. Here, the tokens of the expression decide, so white space, literals, comments and
constructors anywhere in an expression make no difference.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from kyverno_mp.compiler.autogen.cel import copied_constraints
from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.cel.syntax.lex import Token, tokenize
from kyverno_mp.policy.cel_kinds.admission_policy import Mutation
from kyverno_mp.policy.cel_kinds.policies import MutatingPolicySpec

_ROOTS: Final = frozenset({"object", "oldObject"})
_TYPE: Final = "Object"
_SELECTIONS: Final = frozenset({".", ".?"})
_INDEXES: Final = frozenset({"[", "[?"})
_OF_TEMPLATE: Final = frozenset({"labels", "annotations"})
"""The metadata of a Pod that its template has; the rest is the controller's own."""
_PATCH: Final = "JSONPatch"
_POINTERS: Final = frozenset({"path", "from"})
_SEEN: Final = len("/spec")
_OPENING: Final = frozenset({"{", "(", "[", "[?"})
_CLOSING: Final = frozenset({"}", ")", "]"})
_BEFORE_ARGUMENTS: Final = frozenset({"ident", ")", "]"})
_BEFORE_FIELDS: Final = frozenset({"{", ","})

_Edits = list[tuple[int, int, str]]
"""(start, end, new text) of the parts to replace."""


def copies_of(spec: MutatingPolicySpec) -> Iterator[tuple[str, MutatingPolicySpec]]:
    """Yield (configuration name, spec) of each copy."""
    controllers = None
    if spec.autogen is not None and spec.autogen.pod_controllers is not None:
        controllers = spec.autogen.pod_controllers.controllers
    for name, constraints, prefix in copied_constraints(
        spec.match_constraints, controllers
    ):
        if constraints is None:
            # Without constraints the copy would match everything; upstream's process
            # panics.
            continue
        replace = msgspec.structs.replace
        if not prefix:
            yield name, replace(spec, match_constraints=constraints)
            continue
        path = prefix.split(".")
        conditions, variables = (
            tuple(
                replace(named, expression=moved(named.expression, path))
                for named in each
            )
            for each in (spec.match_conditions, spec.variables)
        )
        annotations = tuple(
            replace(
                audit_annotation,
                value_expression=moved(audit_annotation.value_expression, path),
            )
            for audit_annotation in spec.audit_annotations
        )
        yield (
            name,
            replace(
                spec,
                match_constraints=constraints,
                match_conditions=conditions,
                variables=variables,
                audit_annotations=annotations,
                mutations=tuple(
                    _mutation(mutation, path) for mutation in spec.mutations
                ),
            ),
        )


def _mutation(mutation: Mutation, path: Sequence[str]) -> Mutation:
    replace = msgspec.structs.replace
    body, patch = mutation.apply_configuration, mutation.json_patch
    if body is not None:
        body = replace(body, expression=moved(body.expression, path))
    if patch is not None:
        patch = replace(patch, expression=moved(patch.expression, path))
    return replace(mutation, apply_configuration=body, json_patch=patch)


def moved(expression: str, path: Sequence[str]) -> str:
    """Return an expression on Pods as one on the objects that have the Pod at ``path``.

    An invalid expression is returned unchanged; the policy itself reports it.
    """
    try:
        tokens, problems = tokenize(expression)
    except ExpressionInvalid:
        return expression
    if problems:
        return expression
    edits: _Edits = []
    for at, token in enumerate(tokens):
        if token.kind != "ident":
            continue
        before = tokens[at - 1].kind if at else ""
        if token.value in _ROOTS and (
            before not in _SELECTIONS or _is_request(tokens, at)
        ):
            edits += _read(tokens, at, path)
        elif token.value == _TYPE and before not in _SELECTIONS:
            edits += _constructed(tokens, at, path)
        elif token.value == _PATCH and tokens[at + 1].kind == "{":
            edits += _patched(expression, tokens, at + 1, path)
    for start, end, new in sorted(edits, reverse=True):
        expression = expression[:start] + new + expression[end:]
    return expression


def _is_request(tokens: Sequence[Token], at: int) -> bool:
    return at > 1 and tokens[at - 2].value == "request"


def _read(tokens: Sequence[Token], at: int, path: Sequence[str]) -> _Edits:
    """Return the edits of a read of the object, e.g. ``object.spec.x``."""
    step, key, *rest = [*tokens[at + 1 : at + 5], *[tokens[-1]] * 4][:4]
    if step.kind in _INDEXES and key.kind == "string":
        following = [*tokens[at + 4 : at + 6], tokens[-1], tokens[-1]][:2]
        if _moves(str(key.value), following):
            inner = "".join(f'"{name}"][' for name in path)
            return [(key.at, key.at, inner)]
    elif step.kind in _SELECTIONS and _moves(str(key.value), rest):
        return [(key.at, key.at, "".join(f"{name}." for name in path))]
    return []


def _moves(field: str, following: Sequence[Token]) -> bool:
    """Return whether a field of the Pod is part of the template."""
    if field == "spec":
        return True
    step, key = following
    is_step = step.kind in _SELECTIONS or step.kind in _INDEXES
    return field == "metadata" and is_step and key.value in _OF_TEMPLATE


def _constructed(tokens: Sequence[Token], at: int, path: Sequence[str]) -> _Edits:
    """Return the edits of a constructor: ``Object{...}`` or ``Object.spec{...}``."""
    token, following = tokens[at], tokens[at + 1]
    end = token.at + len(_TYPE)
    if following.kind == ".":
        return [(end, end, "".join(f".{name}" for name in path))]
    closing = _closing(tokens, at + 1) if following.kind == "{" else None
    if closing is None:
        return []
    head, name = "", _TYPE
    for field in path:
        head += f"{name}{{{field}: "
        name += f".{field}"
    return [
        (token.at, end, head + name),
        (closing.at, closing.at, "}" * len(path)),
    ]


def _patched(
    expression: str, tokens: Sequence[Token], at: int, path: Sequence[str]
) -> _Edits:
    """Return the edits of the pointers of ``JSONPatch{...}``, also of computed ones.

    A text that continues another one (``"/metadata/" + "spec"``) is no beginning.
    """
    edits: _Edits = []
    is_group: list[bool] = []
    """For each open brace, whether its content is a value of the pointer."""
    is_pointer = False
    for position in range(at, len(tokens)):
        token, before = tokens[position], tokens[position - 1].kind
        if token.kind in _OPENING:
            is_group.append(token.kind == "(" and before not in _BEFORE_ARGUMENTS)
        elif token.kind in _CLOSING:
            is_group.pop()
            if not is_group:
                break
        elif token.kind == "ident" and len(is_group) == 1 and before in _BEFORE_FIELDS:
            is_pointer = token.value in _POINTERS and tokens[position + 1].kind == ":"
        elif token.kind == "string" and before != "+":
            pointer, start = str(token.value), expression.find("/", token.at)
            is_seen = expression.startswith(
                pointer[:_SEEN], start
            )  # not so with escapes
            if is_pointer and all(is_group[1:]) and is_seen and _is_moved(pointer):
                edits.append((start, start, "".join(f"/{name}" for name in path)))
    return edits


def _is_moved(pointer: str) -> bool:
    """Return whether a JSON pointer of a Pod leads into the template."""
    parts = [*pointer.split("/"), "", ""]
    if parts[0]:
        return False
    return parts[1] == "spec" or (parts[1] == "metadata" and parts[2] in _OF_TEMPLATE)


def _closing(tokens: Sequence[Token], at: int) -> Token | None:
    """Return the brace that closes the one at ``at``, None if it is missing."""
    depth = 0
    for token in tokens[at:]:
        depth += (token.kind == "{") - (token.kind == "}")
        if not depth:
            return token
    return None
