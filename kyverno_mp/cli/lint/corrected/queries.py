"""Find JMESPath queries and variables whose answer differs from that of Kyverno 1.18.

Room: cli. Takes: a block as written. Gives: Concerns. Next: rules.
Source: docs/differences.md (corrected); docs/behaviour/engine 3.1, 9.2.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from kyverno_mp.cli.lint.checks import Concern
from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.conditions.numbers import duration_text_ns, is_milli
from kyverno_mp.expr.jmespath.nodes import (
    Function,
    Literal,
    MultiSelectHash,
    MultiSelectList,
    Node,
    children_of,
)
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.template.scan import OPENING, find_variables
from kyverno_mp.policy.checks.rules.calls import queries_in
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.quantity import parse_quantity

BRACES: Final = "corrected.braces"
LABEL_MATCH: Final = "corrected.label_match"
ARITHMETIC: Final = "corrected.arithmetic"

_SHALLOW: Final = re.compile(r"(?:\A|[^\\])(\{\{(?:\{[^{}]*\}|[^{}])*+\}\})")
"""The variables that 1.18 finds: one level of braces. Linear, as in scan.py."""
_ARITHMETIC: Final = frozenset({"add", "sum", "subtract", "divide", "modulo"})
_NESTED: Final = (dict, list)


def query_concerns(value: Json, path: str, rule: str = "") -> Iterator[Concern]:
    """Yield a Concern for each query below ``path`` that a correction reaches."""
    for string, subpath in _texts(value, path):
        shallow = {match.span(1) for match in _SHALLOW.finditer(string)}
        if any(
            (variable.start, variable.end) not in shallow
            for variable in find_variables(string)
        ):
            message = (
                "a variable with two levels of braces is a query, not literal text"
            )
            yield Concern(BRACES, subpath, rule, message, "note")
    for query, subpath in queries_in(value, path):
        try:
            root = parse(query)
        except ExpressionInvalid:
            continue  # reported by the policy's checks
        for code, message in dict.fromkeys(_calls(root)):
            yield Concern(code, subpath, rule, message, "note")


def _texts(value: Json, path: str) -> Iterator[tuple[str, str]]:
    """Yield each text and key with a variable, and its path."""
    if type(value) is dict:
        for key, item in value.items():
            if OPENING in key:
                yield key, path
            yield from _texts(item, f"{path}.{key}")
    elif type(value) is list:
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")
    elif type(value) is str and OPENING in value:
        yield value, path


def _calls(root: Node) -> Iterator[tuple[str, str]]:
    pending = [root]
    while pending:
        node = pending.pop()
        pending.extend(children_of(node))
        if not isinstance(node, Function):
            continue
        if node.name == "label_match" and any(map(_is_nested, node.arguments)):
            yield LABEL_MATCH, "label_match compares nested values deeply"
        if node.name in _ARITHMETIC and _is_of_durations(_operands(node.arguments)):
            message = f"{node.name}: m beside a duration is minutes, not milli"
            yield ARITHMETIC, message


def _is_nested(node: Node) -> bool:
    """Return whether an argument is a map or a list with maps or lists."""
    if isinstance(node, MultiSelectHash):
        inner = (MultiSelectHash, MultiSelectList)
        return any(isinstance(child, inner) for _, child in node.pairs)
    value = node.value if isinstance(node, Literal) else None
    if type(value) is dict:
        return any(type(item) in _NESTED for item in value.values())
    return False


def _operands(arguments: Sequence[Node]) -> list[Node]:
    """Return the operands; those of ``sum`` are in a list."""
    operands: list[Node] = []
    for argument in arguments:
        if isinstance(argument, MultiSelectList):
            operands += argument.children
        elif isinstance(argument, Literal) and type(argument.value) is list:
            operands += [Literal(item) for item in argument.value]
        else:
            operands.append(argument)
    return operands


def _is_of_durations(operands: Sequence[Node]) -> bool:
    """Return whether a text such as ``5m`` may stand beside a duration.

    1.18 reads the text as a quantity, and refuses to mix it with a duration.
    """
    values = [operand.value for operand in operands if isinstance(operand, Literal)]
    durations = [value for value in values if _is_only_duration(value)]
    is_known = len(values) == len(operands)
    return bool(durations) and (not is_known or any(map(is_milli, values)))


def _is_only_duration(value: Json) -> bool:
    return duration_text_ns(value) is not None and parse_quantity(value) is None
