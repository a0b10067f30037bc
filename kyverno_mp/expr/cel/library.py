"""Define how CEL functions are declared, and find their overloads by name.

Room: expr. Takes: the declarations of functions/. Gives: Declaration, Overload,
Library. Next: catalogue.py, check.py (types), expr/cel/linking/expressions.py
(implementations). Source: docs/behaviour/cel
11.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from kyverno_mp.expr.cel.types import Type, parse_signature
from kyverno_mp.expr.effects import EFFECT_PURE

Implementation: TypeAlias = Callable[..., Any]
"""Called with the Meter and the values; the receiver is the first value."""


class Declaration(NamedTuple):
    """An overload declared in functions/; some are implemented in linking/ instead."""

    signature: str
    implementation: Implementation | None
    is_member: bool
    cost: int
    effects: int = EFFECT_PURE

    @property
    def name(self) -> str:
        """Return the name that expressions use."""
        return self.signature.partition("(")[0].strip()


CALL_COST: Final = 4
"""The cost of a call in addition to cel-go's one unit: the choice of the overload and
two frames. A function whose smallest call costs more declares its cost, and a test
verifies this."""


def function(
    signature: str,
    implementation: Implementation | None = None,
    *,
    cost: int = CALL_COST,
) -> Declaration:
    """Declare a function, e.g. ``sets.contains(list(T), list(T)) -> bool``.

    ``cost``: the fixed units of a call. The part that depends on the sizes of the
    arguments is charged by the implementation, before the work.
    """
    return Declaration(signature, implementation, is_member=False, cost=cost)


def member(
    signature: str,
    implementation: Implementation | None = None,
    *,
    cost: int = CALL_COST,
    effects: int = EFFECT_PURE,
) -> Declaration:
    """Declare a member function; the receiver is the first type."""
    return Declaration(
        signature, implementation, is_member=True, cost=cost, effects=effects
    )


class Overload(NamedTuple):
    """One overload with parsed types."""

    args: tuple[Type, ...]
    result: Type
    implementation: Implementation | None
    cost: int = CALL_COST


class Library:
    """Functions by name and call style, for checking and linking."""

    __slots__ = ("functions", "members", "roots")

    def __init__(self, declarations: Iterable[Declaration]) -> None:
        self.functions: dict[str, list[Overload]] = {}
        self.members: dict[str, list[Overload]] = {}
        for declared in declarations:
            name, args, result = parse_signature(declared.signature)
            table = self.members if declared.is_member else self.functions
            overload = Overload(args, result, declared.implementation, declared.cost)
            table.setdefault(name, []).append(overload)
        self.roots = frozenset(n.split(".")[0] for n in self.functions if "." in n)

    def extended(self, declarations: Iterable[Declaration]) -> "Library":
        """Return a library with additional functions; this library stays unchanged."""
        more = Library(declarations)
        merged = Library(())
        for table, base, added in (
            (merged.functions, self.functions, more.functions),
            (merged.members, self.members, more.members),
        ):
            table.update({name: list(overloads) for name, overloads in base.items()})
            for name, overloads in added.items():
                table.setdefault(name, []).extend(overloads)
        merged.roots = self.roots | more.roots
        return merged
