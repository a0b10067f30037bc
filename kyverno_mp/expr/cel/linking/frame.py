"""Define the parts that linking CEL shares: frames, closures, and the Linker protocol.

Room: expr. Takes: literals and names of nodes. Gives: Frame, Run, constant, and Linker,
the part of expr/cel/linking/expressions.py that expr/cel/linking/path.py,
expr/cel/linking/operator.py and expr/cel/linking/macro.py need.
Source: cel-go interpreter/planner.go.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from kyverno_mp.expr.cel.environment import TYPE_NAMES
from kyverno_mp.expr.cel.library import Library
from kyverno_mp.expr.cel.nodes import Const, Node, Select
from kyverno_mp.expr.cel.syntax.names import qualified_name
from kyverno_mp.expr.cel.values import TypeValue, Uint, Value

Frame: TypeAlias = list[Any]
"""The Meter, the variables and the bound names."""
Run: TypeAlias = Callable[[Frame], Value]

_NAMES_OF_TYPES: Final = {
    "timestamp": "google.protobuf.Timestamp",
    "duration": "google.protobuf.Duration",
}


class Failed(NamedTuple):
    """The error of a name's value; it is raised only when the name is used."""

    message: str


def no_value(name: str) -> Failed:
    """Return the error of a variable without a value."""
    return Failed(f"no such attribute(s): {name}")


class Linker(Protocol):
    """Links nodes; expressions.py has the only implementation."""

    library: Library
    cost: int
    """The cost of the unconditional parts linked so far."""

    def slot(self, name: str) -> int:
        """Return the slot of a name; 0 if the name is not bound."""

    def is_record(self, name: str) -> bool:
        """Return whether the value of a name is a Record."""

    def is_lazy(self, name: str) -> bool:
        """Return whether the slot of a name may contain a Failed."""

    def bind(self, names: tuple[str, ...], *, lazy: bool = False) -> int:
        """Bind names to new slots and return the first slot."""

    def unbind(self, names: tuple[str, ...]) -> None:
        """Remove the most recently bound names."""

    def block(self, node: Node) -> tuple[Run, int]:
        """Link a part that may run any number of times; return its cost separately."""

    def branch(self, node: Node) -> Run:
        """Link a conditional part; unless it is cheap, its closure charges its cost."""

    def link(self, node: Node) -> Run:
        """Link one node."""


def constant(value: Value) -> Run:
    """Return a closure that returns ``value``, which callers must not change."""
    return lambda _s: value


def constant_value(node: Node) -> Value:
    """Return the value of a literal."""
    assert type(node) is Const
    return Uint(node.value) if node.kind == "uint" else node.value


def type_value(name: str) -> TypeValue:
    """Return a type as a value; the checker has already validated the name."""
    cel_type = TYPE_NAMES.get(name)
    return TypeValue(name if cel_type is None else _NAMES_OF_TYPES.get(name, name))


def type_of_selection(node: Select) -> TypeValue | None:
    """Return the type that a qualified name denotes, e.g. google.protobuf.Duration."""
    name = qualified_name(node)
    return TypeValue(name) if name in TYPE_NAMES else None
