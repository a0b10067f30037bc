"""Find ``{{ }}`` in a string like Kyverno's regular expressions.

Room: expr. Takes: text. Gives: FoundVariable records and their queries. Next: document,
expand.
Source: docs/behaviour/engine 3.1; Kyverno pkg/engine/variables/regex/vars.go, which
knows one level of braces in a query; with more, the variable is literal text there.
"""

import re
from typing import Final, NamedTuple

_BRACES_DEEP: Final = 16
"""The levels of braces in a query; beyond them, a text is not a variable."""


def _query(levels: int) -> str:
    """Return the expression of a text whose braces are balanced."""
    balanced = "[^{}]*+"
    for _ in range(levels):
        # Two opening braces begin a variable inside, which is substituted first.
        balanced = rf"(?:\{{(?!\{{){balanced}\}}|[^{{}}])*+"
    return balanced


# PERF: the alternatives start with different characters and are possessive (no
# backtracking), so the scan is linear in the text, for each level of braces.
_VARIABLE: Final = re.compile(rf"(\A|[^\\])(\{{\{{{_query(_BRACES_DEEP)}\}}\}})")

OPENING: Final = "{{"
ESCAPED: Final = "\\{{"


class FoundVariable(NamedTuple):
    """One variable in a string, at ``text[start:end]`` including the braces.

    ``prefix`` is the preceding character, "" at the start of the text. The prefix is
    part of the match, so only one of two adjacent variables is found per scan.
    """

    prefix: str
    variable: str
    start: int
    end: int


def find_variables(string: str) -> list[FoundVariable]:
    """Return the innermost variables of ``string``, from left to right."""
    if OPENING not in string:
        return []
    return [
        FoundVariable(match[1], match[2], match.start(2), match.end(2))
        for match in _VARIABLE.finditer(string)
    ]


def query_of(variable: str) -> tuple[str, bool]:
    """Return the query in the braces, and whether it is shallow (``{{- x }}``)."""
    query = variable.removeprefix(OPENING).removesuffix("}}").strip()
    if query.startswith("-"):
        return query[1:].strip(), True
    return query, False


def on_delete(query: str) -> str:
    """Return the query for a DELETE request."""
    return query.replace("request.object", "request.oldObject")


def unescape(string: str) -> str:
    """Remove the backslashes of escaped braces, the last step of a substitution."""
    return string.replace(ESCAPED, OPENING)
