"""Rewrite the test whether texts are in a list that is known only at run time.

Room: cli. Takes: a key or a list of keys, a list. Gives: an expression. Next:
conditions.py.
Source: docs/behaviour/engine 4.6.
"""

from typing import Final

from kyverno_mp.cli.fix.rewrite.query_values import Code, Stream, Value, present
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten, all_of, any_of, literal
from kyverno_mp.cli.fix.rewrite.typed import Typed
from kyverno_mp.expr.conditions.membership import MODES

PATTERN: Final = (
    r"r'(?s)^\Q' + {key}.replace(r'\E', r'\E\\E\Q')"
    r".replace('*', r'\E.*\Q').replace('?', r'\E.\Q') + r'\E$'"
)
"""Matches a text against the wildcards of another one."""


def in_stream(key: Value, operator: str, values: Stream) -> str:
    """Return the test whether a key, or elements of a list, are in another list."""
    keys = key if isinstance(key, Stream) else None
    taken = [loop.name for loop in keys.loops] if keys is not None else []
    stream = values.renamed(taken)
    element = stream.value
    if element.kind != "string":
        raise NotRewritten(f"{operator} of values that are no texts")

    def hit(plain: str, *, is_name: bool) -> str:
        test = _alike(element, plain, is_name=is_name)
        return stream.quantified("exists", test, lenient=True)

    if keys is not None and keys.value.kind == "string":
        if operator not in ("AnyIn", "AllNotIn"):
            raise NotRewritten(f"{operator} of two lists")
        test = _alike(element, keys.value.plain, is_name=keys.value.is_name)
        test = keys.quantified("exists", test, lenient=True)
        # The other list is read even if there are no keys: an error is an error.
        found = stream.quantified("exists", test, lenient=True)
        if operator == "AnyIn":
            return found
        outermost = keys.loops[0].items
        return all_of((present(outermost) if outermost.maybe else "true", f"!{found}"))
    if not isinstance(key, Code | Typed) or key.kind != "string":
        raise NotRewritten(f"{operator} of a key of unknown type")
    if stream.loops[0].items.maybe:
        raise NotRewritten(f"{operator} with a list that can be missing")
    if key.is_name and element.is_name and len(stream.loops) == 1:
        negation = "!" if MODES[operator].negated else ""
        # A name is never empty, so a missing value differs from it.
        found = f"{key.plain} in {stream.mapped(literal(''))}"
        return f"{negation}({found})" if negation else found
    if isinstance(key, Typed) and key.maybe:
        raise NotRewritten(f"{operator} of a field that can be missing")
    found = hit(key.plain, is_name=key.is_name)
    return f"!{found}" if MODES[operator].negated else found


def _alike(element: Typed, plain: str, *, is_name: bool) -> str:
    """Return the test whether two texts are equal, wildcards of both included."""
    clauses = [f"{element.plain} == {plain}"]
    for text, pattern, has_none in (
        (plain, element.plain, element.is_name),
        (element.plain, plain, is_name),
    ):
        if not has_none:
            matched = f"{text}.matches({PATTERN.format(key=pattern)})"
            clauses.append(f"{pattern}.matches('[*?]') && {matched}")
    return any_of(clauses)
