"""Hold what a JMESPath query reads, as expressions.

Room: cli. Gives: Typed, Stream, Code, Constant, Moment or Default, the values of a
query. Next: jmespath.py, which makes them.
Source: docs/behaviour/engine 3, 9.

A projection such as ``rules[].verbs[]`` is no list here, but nested loops, because CEL
tests its elements with ``exists`` and ``all``.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kyverno_mp.cli.fix.rewrite.typed import Typed
from kyverno_mp.values.jsonvalue import Json


class Code(NamedTuple):
    """An expression without a missing value; ``kind`` as in Typed."""

    plain: str
    kind: str
    is_name: bool = False


class Constant(NamedTuple):
    """A literal."""

    value: Json


class Loop(NamedTuple):
    """All elements of a list; ``filters``: conditions on an element."""

    items: Typed
    name: str
    filters: tuple[str, ...] = ()


class Stream(NamedTuple):
    """The elements of a projection, without nulls."""

    loops: tuple[Loop, ...]
    value: Typed

    def quantified(self, macro: str, test: str, *, lenient: bool) -> str:
        """Return an expression that tests elements; ``macro``: exists or all.

        ``lenient``: without the outermost list there are no elements; otherwise, this
        is an error.
        """
        for number, loop in reversed(tuple(enumerate(self.loops))):
            items = loop.items.default("[]") if number or lenient else loop.items.plain
            clauses = [*loop.filters]
            if number == len(self.loops) - 1 and self.value.maybe:
                clauses.append(present(self.value))
            if macro == "exists":
                inner = " && ".join((*clauses, _inner(test, "||") if clauses else test))
            else:
                inner = " || ".join((*(f"!({one})" for one in clauses), test))
            test = f"{items}.{macro}({loop.name}, {inner})"
        return test

    def mapped(self, default: str) -> str:
        """Return the list of the values of the only loop, with a default."""
        (loop,) = self.loops
        items = loop.items.default("[]")
        if loop.filters:
            items += f".filter({loop.name}, {' && '.join(loop.filters)})"
        return f"{items}.map({loop.name}, {self.value.default(default)})"

    def renamed(self, taken: Sequence[str]) -> "Stream":
        """Return the stream with other names for elements than the ones given."""
        stream = self
        for loop in self.loops:
            if loop.name in taken:
                name = f"other{loop.name[:1].upper()}{loop.name[1:]}"
                stream = stream.with_name(loop.name, name)
        return stream

    def with_name(self, name: str, other: str) -> "Stream":
        """Return the stream with another name for the elements of a loop."""
        word = re.compile(rf"(?<![\w.']){name}(?![\w'(])")

        def typed(value: Typed) -> Typed:
            plain, maybe = (word.sub(other, one) for one in (value.plain, value.maybe))
            return value._replace(plain=plain, maybe=maybe)

        loops = tuple(
            Loop(
                typed(loop.items),
                other if loop.name == name else loop.name,
                tuple(word.sub(other, one) for one in loop.filters),
            )
            for loop in self.loops
        )
        return Stream(loops, typed(self.value))


class Moment(NamedTuple):
    """The time when a stored object was created; the object has it."""

    plain: str


class Default(NamedTuple):
    """``value || constant``."""

    value: "Typed | Stream | Code"
    constant: Json


Value: TypeAlias = Typed | Code | Constant | Stream | Default | Moment
Names: TypeAlias = Mapping[str, Value]


def present(value: Typed) -> str:
    """Return an expression that tests whether an optional value is present."""
    if value.maybe.count("?") == 1 and ".?" in value.maybe:
        return f"has({value.plain})"
    return f"{value.maybe}.hasValue()"


def _inner(test: str, operator: str) -> str:
    return f"({test})" if f" {operator} " in test or " ? " in test else test
