"""Find conditions whose answer differs from that of Kyverno 1.18.

Room: cli. Takes: a block with conditions as written. Gives: Concerns. Next: rules.
Source: docs/differences.md (corrected); docs/behaviour/engine 4.

A variable is judged by what its query can return: a comparison that the correction
cannot reach, e.g. of ``request.operation``, is not named.
"""

import re
from collections.abc import Iterator
from typing import Final

from kyverno_mp.cli.lint.checks import Concern
from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.conditions.numbers import as_durations, is_milli
from kyverno_mp.expr.conditions.ordering import COMPARATORS
from kyverno_mp.expr.jmespath.functions.calls import KYVERNO
from kyverno_mp.expr.jmespath.nodes import (
    And,
    Comparator,
    Field,
    FilterProjection,
    Flatten,
    Function,
    IndexExpression,
    Literal,
    MultiSelectHash,
    MultiSelectList,
    Node,
    Not,
    Or,
    Pipe,
    Projection,
    Subexpression,
    ValueProjection,
    children_of,
)
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.template.scan import OPENING, find_variables, query_of
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.quantity import parse_quantity

NOT_EQUALS: Final = "corrected.not_equals"
MILLI: Final = "corrected.milli"
LIST_KEY: Final = "corrected.list_key"

_DATA: Final = frozenset(
    {"matchExpressions", "pattern", "anyPattern", "patchStrategicMerge", "data"}
)
"""Fields whose content may look like a condition, but is data."""
_UNEQUAL: Final = frozenset({"notequal", "notequals"})
_EQUALITY: Final = frozenset({"equal", "equals", *_UNEQUAL})
_ORDERING: Final = frozenset(COMPARATORS)
_DURATIONS: Final = frozenset(f"Duration{name}" for name in COMPARATORS)

_TEXT: Final = "text"
_NUMBER: Final = "number"
_LIST: Final = "list"
_WORD: Final = "word"
"""A text that is never a number or a quantity."""
_SCALAR: Final = frozenset({_TEXT, _NUMBER})
_OTHER: Final = frozenset[str]()
_WORDS: Final = frozenset(
    {"operation", "kind", "apiVersion", "group", "resource", "phase", "type", "uid"}
    | {"name", "namespace", "generateName", "username", "serviceAccountName"}
    | {"serviceAccountNamespace", "registry", "path", "image", "digest", "reason"}
)
"""Fields of Kubernetes and Kyverno with names and fixed words."""
_NUMBERS: Final = frozenset(
    {"replicas", "containerPort", "hostPort", "nodePort", "runAsUser", "runAsGroup"}
    | {"fsGroup", "generation", "priority", "parallelism", "completions"}
    | {"terminationGracePeriodSeconds", "initialDelaySeconds", "elementIndex"}
)
"""Fields of Kubernetes that are whole numbers."""
_RETURNED: Final = {
    "string": frozenset({_TEXT}),
    "number": frozenset({_NUMBER}),
    "any": _SCALAR,
}
_STANDARD: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(
        ("length", "abs", "avg", "ceil", "floor", "to_number"), frozenset({_NUMBER})
    ),
    **dict.fromkeys(
        ("map", "sort", "sort_by", "keys", "values", "to_array"), frozenset({_LIST})
    ),
    **dict.fromkeys(("contains", "starts_with", "ends_with", "merge"), _OTHER),
    "type": frozenset({_WORD}),
}
"""What the functions of JMESPath itself return, whose entries do not say it."""
_QUANTITY_CHARACTERS: Final = re.compile(r"[0-9.eEkKMGTPmnui+-]*\Z")


def condition_concerns(value: Json, path: str, rule: str = "") -> Iterator[Concern]:
    """Yield a Concern for each condition below ``path`` that a correction can reach."""
    if type(value) is dict:
        if "key" in value and type(value.get("operator")) is str:
            yield from _condition(value, path, rule)
        for name, item in value.items():
            if name not in _DATA:
                yield from condition_concerns(item, f"{path}.{name}", rule)
    elif type(value) is list:
        for index, item in enumerate(value):
            yield from condition_concerns(item, f"{path}[{index}]", rule)


def _condition(condition: dict[str, Json], path: str, rule: str) -> Iterator[Concern]:
    key, value, operator = (
        condition["key"],
        condition.get("value"),
        condition["operator"],
    )
    lower = operator.lower()
    if lower in _UNEQUAL and _may_be_undecided(key, value):
        message = (
            "a quantity and another text, or an integer and a fraction, are unequal"
        )
        yield Concern(NOT_EQUALS, path, rule, f"{operator}: {message}", "note")
    if (operator in _ORDERING or lower in _EQUALITY) and _is_of_milli(key, value):
        message = "m beside a number is milli, not minutes"
        yield Concern(MILLI, path, rule, f"{operator}: {message}", "note")
    if operator in _ORDERING | _DURATIONS and _LIST in _kinds_of(key):
        message = "a list as key holds if any of its elements does"
        yield Concern(LIST_KEY, path, rule, f"{operator}: {message}", "note")


def _may_be_undecided(key: Json, value: Json) -> bool:
    """Return whether 1.18 may find a key neither equal nor unequal to a value."""
    if _is_variable(key):
        kinds = _kinds_of(key)
        if _is_variable(value):
            return _TEXT in kinds and bool({_TEXT, _WORD} & _kinds_of(value))
        if type(value) is str:
            return _TEXT in kinds and bool(value) and parse_quantity(value) is None
        return _NUMBER in kinds and _is_fraction(value)
    if type(key) is str and parse_quantity(key) is not None:
        if _is_variable(value):
            return bool({_TEXT, _WORD} & _kinds_of(value))
        return (
            type(value) is str
            and bool(value)
            and as_durations(key, value) is None
            and parse_quantity(value) is None
        )
    if type(key) is not int:
        return False
    return _NUMBER in _kinds_of(value) if _is_variable(value) else _is_fraction(value)


def _is_of_milli(key: Json, value: Json) -> bool:
    """Return whether one side is a number and the other may be a text as ``500m``."""
    for side, opposite in ((key, value), (value, key)):
        if type(side) in (int, float):
            return is_milli(opposite) or (
                _is_variable(opposite) and _names_cpu(opposite)
            )
        if is_milli(side) and _is_variable(opposite):
            return _NUMBER in _kinds_of(opposite)
    return False


def _is_fraction(value: Json) -> bool:
    return type(value) is float and not value.is_integer()


def _is_variable(value: Json) -> bool:
    return type(value) is str and OPENING in value


def _kinds_of(value: Json) -> frozenset[str]:
    """Return the kinds of values that one side of a condition can have."""
    if type(value) is list:
        return frozenset({_LIST})
    if not _is_variable(value):
        return _OTHER
    variables = find_variables(value)
    if len(variables) == 1 and (variables[0].start, variables[0].end) == (
        0,
        len(value),
    ):
        root = _parsed(variables[0].variable)
        return _kinds(root) if root is not None else _OTHER
    rest = value
    for variable in variables:
        rest = rest.replace(variable.variable, "")
    is_quantity = _QUANTITY_CHARACTERS.match(rest) is not None
    return frozenset({_TEXT if is_quantity else _WORD})


def _parsed(variable: str) -> Node | None:
    try:
        return parse(query_of(variable)[0])
    except ExpressionInvalid:
        return None


def _kinds(node: Node) -> frozenset[str]:
    match node:
        case Literal(value):
            return _kinds_of_literal(value)
        case Field(name):
            if name in _WORDS:
                return frozenset({_WORD})
            return frozenset({_NUMBER}) if name in _NUMBERS else _SCALAR
        case Function(name, _):
            return _returned(name or "")
        case Or(left, right) | And(left, right):
            return _kinds(left) | _kinds(right)
        case Pipe(_, right) | Subexpression(_, right):
            return _kinds(right)
        case Projection() | FilterProjection() | ValueProjection():
            return frozenset({_LIST})
        case Flatten() | MultiSelectList():
            return frozenset({_LIST})
        case Not() | Comparator() | MultiSelectHash():
            return _OTHER
        case IndexExpression():
            return _SCALAR
    return _SCALAR


def _kinds_of_literal(value: Json) -> frozenset[str]:
    if type(value) is list:
        return frozenset({_LIST})
    if type(value) is str:
        return frozenset({_WORD if parse_quantity(value) is None else _TEXT})
    return frozenset({_NUMBER}) if type(value) in (int, float) else _OTHER


def _returned(function: str) -> frozenset[str]:
    if function in _STANDARD:
        return _STANDARD[function]
    kinds = KYVERNO[function].returns if function in KYVERNO else ()
    return _OTHER.union(*map(_of_function, kinds))


def _of_function(kind: str) -> frozenset[str]:
    if kind.startswith("array"):
        return frozenset({_LIST})
    return _RETURNED.get(kind, _OTHER)


def _names_cpu(value: str) -> bool:
    """Return whether a query reads a field ``cpu``, whose values are as ``500m``."""
    pending = [
        root
        for variable in find_variables(value)
        if (root := _parsed(variable.variable)) is not None
    ]
    while pending:
        node = pending.pop()
        if isinstance(node, Field) and node.name == "cpu":
            return True
        pending.extend(children_of(node))
    return False
