"""Check constant arguments of duration, timestamp, matches and format at compile time.

Room: expr. Takes: a function's name and its constant argument; a format and the types
of its arguments. Gives: the errors. Next: expr/cel/check.py.
Source: cel-go's AST validators; docs/behaviour/cel 11, 12c.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from kyverno_mp.expr.cel.functions.regexes import compile_regex, compile_work
from kyverno_mp.expr.cel.functions.text_format import ONLY, Clause, clauses
from kyverno_mp.expr.cel.functions.times import SECOND, parse_timestamp
from kyverno_mp.expr.cel.nodes import Call, Const, ListLit, MapLit, Node
from kyverno_mp.expr.cel.operators import timestamp_result
from kyverno_mp.expr.cel.types import DYN, Substitution, Type
from kyverno_mp.expr.cel.values import CelFailed
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.limits import CEL_REPEATED_MAX
from kyverno_mp.values.go.duration import parse_duration

_REGEX_STEPS: Final = 20
"""The steps for compiling a regular expression, in addition to one per character."""
_MICROSECONDS_PER_STEP: Final = 4


def literal_problem(function: str, const: Const) -> str:
    """Return the validator's error; "" if the constant is valid."""
    if const.kind != "string":
        is_valid = function not in _TIMES or _is_time(function, const)
        return "" if is_valid else f"invalid {function} argument"
    try:
        if function == "duration" and parse_duration(const.value) is None:
            return "invalid duration argument"
        if function == "timestamp":
            parse_timestamp(const.value)
        elif function == "matches":
            check_regex(const.value)
    except CelFailed:
        return f"invalid {function} argument"
    return ""


def check_regex(pattern: str) -> None:
    """Compile a constant expression and charge the policy. Raises: CelFailed."""
    spend(_REGEX_STEPS + len(pattern))
    spend(compile_work(pattern) // _MICROSECONDS_PER_STEP)
    compile_regex(pattern)


_TIMES: Final = ("duration", "timestamp")


def _is_time(function: str, const: Const) -> bool:
    """Return whether a constant that is not a string is valid for the time function."""
    # The type checker accepts null for both types, but it is not a valid constant.
    if const.kind == "null" or (const.kind == "int" and function == "duration"):
        return False
    if const.kind != "int":
        return True
    try:
        timestamp_result(const.value * SECOND)
    except CelFailed:
        return False
    return True


_RUNTIME_NAMES: Final = {
    "timestamp": "google.protobuf.Timestamp",
    "duration": "google.protobuf.Duration",
}
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
"""Letter of a clause -> names of the types that the clause can print."""


def format_problems(
    call: Call, members: Mapping[int, Type]
) -> Iterator[tuple[int, str]]:
    """Yield the position and the text of each error in ``"...".format([...])``.

    ``members``: the types of all nodes in the list, by identity. Values that are not
    literals are checked at run time.
    """
    target, args = call.target, call.args
    if type(target) is not Const or target.kind != "string" or len(args) != 1:
        return
    values = args[0]
    if type(values) is not ListLit:
        return
    used = 0
    for clause in clauses(target.value):
        if type(clause) is not Clause:
            continue
        problem = clause.problem
        if used >= len(values.items) and problem != "unexpected end of string":
            problem = f"index {used} out of range"
        if problem:
            yield call.at, problem
            return
        bad = _misfit(clause.letter, values.items[used], members)
        if bad is not None:
            name = members[id(bad)].name
            name = _RUNTIME_NAMES.get(name, name)
            yield (
                bad.at,
                f"error during formatting: {ONLY[clause.letter]}, was given {name}",
            )
            return
        used += 1
    if len(values.items) > used:
        count = f"expected {used}, got {len(values.items)}"
        yield call.at, f"too many arguments supplied to string.format ({count})"


def _misfit(letter: str, node: Node, members: Mapping[int, Type]) -> Node | None:
    """Return the node that the clause cannot print; None if it can print them all."""
    member = members[id(node)]
    if member != DYN and member.name not in _PRINTED[letter]:
        return node
    if letter != "s":
        return None
    inner: Sequence[Node] = ()
    if type(node) is ListLit:
        inner = node.items
    elif type(node) is MapLit:
        inner = [part for key, value, _ in node.entries for part in (key, value)]
    for element in inner:
        bad = _misfit(letter, element, members)
        if bad is not None:
            return bad
    return None


class Literals:
    """The literals of one expression, recorded by the type checker.

    ``formats_open``: how many calls of ``format`` contain the current node. Inside such
    a call, the list of arguments may mix types, and its members are checked against the
    format.
    """

    def __init__(self) -> None:
        self.formats_open = 0
        self.formats: list[Call] = []
        self._arguments: list[tuple[int, str]] = []
        self._items: list[tuple[list[tuple[int, Type]], bool]] = []
        self._repeated = 0
        self._members: dict[int, Type] = {}
        """Types of the nodes in literals below a format, by the identity of the
        node."""

    @property
    def noted(self) -> tuple[int, int]:
        """The numbers of arguments and lists recorded so far."""
        return len(self._arguments), len(self._items)

    def repeat(self, noted: tuple[int, int]) -> None:
        """Repeat the records made since ``noted``, unless there are many.

        SAFETY: each call may double the records.
        """
        arguments, lists = self._arguments, self._items
        if 2 * len(arguments) - noted[0] <= CEL_REPEATED_MAX:
            spend(len(arguments) - noted[0])
            arguments += arguments[noted[0] :]
        count = sum(len(items) for items, _ in lists[noted[1] :])
        if self._repeated + count <= CEL_REPEATED_MAX:
            spend(count)
            self._repeated += count
            lists += lists[noted[1] :]

    def note_argument(self, node: Call, name: str) -> None:
        """Check the constant first argument of a call."""
        if node.args and type(node.args[0]) is Const:
            const = node.args[0]
            problem = literal_problem(name, const)
            if problem:
                self._arguments.append((const.at, problem))

    def note_member(self, node: Node, member_type: Type) -> None:
        """Record the type of a member of a list or map."""
        if self.formats_open:
            self._members[id(node)] = member_type

    def note_items(self, typed_items: list[tuple[int, Type]], *, every: bool) -> None:
        """Record positions and types that must be equal: items, or keys, or values.

        ``every``: every type that differs is an error, not only the first one.
        """
        if not self.formats_open:
            self._items.append((typed_items, every))

    def problems(self, substitution: Substitution) -> list[tuple[int, str]]:
        """Return the errors of the API server's validators for literals."""
        problems = list(self._arguments)
        members = {
            key: substitution.apply(member_type, final=True)
            for key, member_type in self._members.items()
        }
        for call in self.formats:
            problems.extend(format_problems(call, members))
        for items, every in self._items:
            problems.extend(islice(_mixed(items, substitution), None if every else 1))
        return problems


def _mixed(
    items: list[tuple[int, Type]], substitution: Substitution
) -> Iterator[tuple[int, str]]:
    """Yield the errors of the items whose types differ from the first item's type."""
    first: Type | None = None
    for at, raw in items:
        item_type = substitution.apply(raw, final=True)
        if first is None:
            first = item_type
        elif item_type != first:
            yield at, f"expected type '{first}' but found '{item_type}'"
