"""Write parts of CEL expressions.

Room: cli. Takes: values of a policy. Gives: CEL expressions; NotRewritten, raised for
constructs without an equivalent.
Next: pattern.py, match.py, deny.py.
Source: docs/behaviour/cel 11, 12; RE2's syntax.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from kyverno_mp.values.wildcard import contains_wildcard

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = frozenset(
    (
        *("as", "break", "const", "continue", "else", "false", "for", "function"),
        *("if", "import", "in", "let", "loop", "null", "namespace", "package"),
        *("return", "true", "var", "void", "while"),
    )
)
"""Words that CEL does not allow as field names."""
_TEXT: Final = re.compile(r"(?<!\w)r'[^']*'|'(?:[^'\\]|\\.)*+'")
"""A raw text, or one with escapes."""
_COMPARISON: Final = re.compile(r"([\w.?()'\[\]]++) ([=!]=) ([\w.-]++|'[^'\\]*+')")
_OPPOSITE: Final = {"==": "!=", "!=": "=="}
_END: Final = (")", 0)
_OF_RE2: Final = re.compile(r"[\\.+*?()|\[\]{}^$]")


class NotRewritten(Exception):
    """A rule cannot be rewritten; the message names the construct."""


def literal(value: str) -> str:
    """Return a CEL string literal."""
    found = value.replace("\\", "\\\\").replace("'", "\\'")
    for char, escape in (("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        found = found.replace(char, escape)
    return f"'{found}'"


def items(values: Iterable[str]) -> str:
    """Return a CEL list of string literals."""
    return f"[{', '.join(map(literal, values))}]"


def field(holder: str, key: str) -> str:
    """Return an expression that selects an existing field."""
    if is_name(key):
        return f"{holder}.{key}"
    return f"{holder}[{literal(key)}]"


def has(holder: str, key: str) -> str:
    """Return an expression that tests whether a map has a key."""
    if is_name(key):
        return f"has({holder}.{key})"
    return f"{literal(key)} in {holder}"


def absent(holder: str, key: str) -> str:
    """Return an expression that tests whether a map lacks a key."""
    return f"!{has(holder, key)}" if is_name(key) else f"!({has(holder, key)})"


def like(text: str, pattern: str) -> str:
    """Return an expression that matches a string against a wildcard pattern."""
    if not contains_wildcard(pattern):
        return f"{text} == {literal(pattern)}"
    bare = pattern.strip("*")
    if pattern == "?*":
        return f"{text} != ''"
    if bare and not contains_wildcard(bare) and "**" not in pattern:
        method = {
            (True, True): "contains",
            (False, True): "startsWith",
            (True, False): "endsWith",
        }[pattern.startswith("*"), pattern.endswith("*")]
        return f"{text}.{method}({literal(bare)})"
    inner = _OF_RE2.sub(lambda one: "\\" + one.group(), pattern)
    inner = inner.replace("\\*", ".*").replace("\\?", ".")
    return f"{text}.matches({literal(f'(?s)^{inner}$')})"


def any_of(clauses: Iterable[str]) -> str:
    """Return the disjunction of the clauses."""
    found = list(dict.fromkeys(clauses))
    return found[0] if len(found) == 1 else " || ".join(map(bracketed, found))


def all_of(clauses: Iterable[str]) -> str:
    """Return the conjunction of the clauses; "true" without clauses."""
    found = [clause for clause in dict.fromkeys(clauses) if clause != "true"]
    if not found:
        return "true"
    return found[0] if len(found) == 1 else " && ".join(map(bracketed, found))


def negated(clause: str) -> str:
    """Return the negation of the clause."""
    comparison = _COMPARISON.fullmatch(clause)
    if comparison:
        left, sign, right = comparison.groups()
        return f"{left} {_OPPOSITE[sign]} {right}"
    if is_negation(clause):
        return clause[2:-1]
    if clause.startswith("!") and is_member(clause[1:]):
        return clause[1:]
    is_safe = re.fullmatch(r"[\w.]+(?:\((?:'[^'\\]*')?\))?", clause) or (
        is_member(clause) and clause[0] not in "!-["
    )
    return f"!{clause}" if is_safe else f"!({clause})"


def is_negation(text: str) -> bool:
    """Return whether the whole text is ``!(...)``."""
    if not text.startswith("!("):
        return False
    ends = (at for at, (char, depth) in enumerate(_code(text)) if (char, depth) == _END)
    return next(ends, None) == len(text) - 1


def is_member(clause: str) -> bool:
    """Return whether an expression has no operator outside of parentheses."""
    return bool(clause) and all(
        depth or char not in " !-'" for char, depth in _code(clause)
    )


def _code(clause: str) -> Iterator[tuple[str, int]]:
    """Yield each letter, with that of texts blanked, and the depth of brackets."""
    depth = 0
    for char in _TEXT.sub(lambda found: "x" * len(found[0]), clause):
        depth += (char in "([{") - (char in ")]}")
        yield char, depth


def bracketed(clause: str) -> str:
    """Return the clause, in parentheses unless it is safe without them."""
    if re.fullmatch(r"!?has\([^()]*\)|!?[\w.]+", clause) or re.fullmatch(
        r"[\w.]+ [=!]= (?:[\w.-]+|'[^'\\]*')|!?[\w.]+\((?:'[^'\\]*')?\)", clause
    ):
        return clause
    return f"({clause})"


def is_name(key: str) -> bool:
    """Return whether a key can be written without quotes."""
    return bool(_NAME.fullmatch(key)) and key not in _RESERVED
