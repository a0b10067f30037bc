"""Check constant arguments of duration, timestamp, matches and format when compiling.

Room: expr. Takes: a function's name and its constant argument; a format and the types
of its arguments. Gives: the errors. Next: check.py.
May touch: nothing outside its arguments.
Source: cel-go's AST validators; docs/behaviour/cel 11, 12c.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kyverno_mp.expr.cel.functions.regexes import compile_regex, compile_work
from kyverno_mp.expr.cel.functions.text_format import ONLY, Clause, clauses
from kyverno_mp.expr.cel.functions.times import parse_timestamp
from kyverno_mp.expr.cel.nodes import Call, Const, ListLit, MapLit, Node
from kyverno_mp.expr.cel.types import DYN, Type
from kyverno_mp.expr.cel.values import CelFailed
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.values.duration import parse_duration

_REGEX_STEPS: Final = 20
"""To compile one, beside a step for each character."""
_MICROSECONDS_PER_STEP: Final = 4


def literal_problem(function: str, const: Const) -> str:
    """Return the validator's text, "" if the constant is valid."""
    if const.kind != "string":
        # For the type checker null may be a duration, but it is not a valid one.
        is_none = const.kind == "null" and function in ("duration", "timestamp")
        return f"invalid {function} argument" if is_none else ""
    try:
        if function == "duration" and parse_duration(const.value) is None:
            return "invalid duration argument"
        if function == "timestamp":
            parse_timestamp(const.value)
        elif function == "matches":
            spend(_REGEX_STEPS + len(const.value))
            spend(compile_work(const.value) // _MICROSECONDS_PER_STEP)
            compile_regex(const.value)
    except CelFailed:
        return f"invalid {function} argument"
    return ""


_PRINTED: Final[dict[str, frozenset[str]]] = {
    "s": frozenset(
        {"list", "map", "int", "uint", "double", "bool", "string", "bytes", "type"}
        | {"google.protobuf.Timestamp", "google.protobuf.Duration", "null_type"}
        | {"timestamp", "duration"}
    ),
    "d": frozenset({"int", "uint"}),
    "f": frozenset({"double", "string"}),
    "e": frozenset({"double", "string"}),
    "b": frozenset({"int", "uint", "bool"}),
    "x": frozenset({"int", "uint", "string", "bytes"}),
    "X": frozenset({"int", "uint", "string", "bytes"}),
    "o": frozenset({"int", "uint"}),
}
"""Letter of a clause -> names of the types that it prints."""


def format_problems(
    call: Call, members: Mapping[int, Type]
) -> Iterator[tuple[int, str]]:
    """Yield position and text of the errors in ``"...".format([...])``.

    ``members``: the types of all nodes in the list, by identity. Values that are not
    literals are checked at run time.
    """
    target, args = call.target, call.args
    if type(target) is not Const or target.kind != "string" or len(args) != 1:
        return
    given = args[0]
    if type(given) is not ListLit:
        return
    used = 0
    for clause in clauses(target.value):
        if type(clause) is not Clause:
            continue
        problem = clause.problem
        if used >= len(given.items) and problem != "unexpected end of string":
            problem = f"index {used} out of range"
        if problem:
            yield call.at, problem
            return
        bad = _misfit(clause.letter, given.items[used], members)
        if bad is not None:
            name = members[id(bad)].name
            yield (
                bad.at,
                f"error during formatting: {ONLY[clause.letter]}, was given {name}",
            )
            return
        used += 1
    if len(given.items) > used:
        count = f"expected {used}, got {len(given.items)}"
        yield call.at, f"too many arguments supplied to string.format ({count})"


def _misfit(letter: str, node: Node, members: Mapping[int, Type]) -> Node | None:
    """Return the node that the clause cannot print, None if there is none."""
    found = members[id(node)]
    if found != DYN and found.name not in _PRINTED[letter]:
        return node
    if letter != "s":
        return None
    inner: Sequence[Node] = ()
    if type(node) is ListLit:
        inner = node.items
    elif type(node) is MapLit:
        inner = [part for key, value, _ in node.entries for part in (key, value)]
    for one in inner:
        bad = _misfit(letter, one, members)
        if bad is not None:
            return bad
    return None
