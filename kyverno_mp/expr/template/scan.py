"""Find ``{{ }}`` in text the way Kyverno's regular expressions do.

Room: expr. Takes: text. Gives: Found, the queries inside. Next: document, expand.
May touch: nothing outside its arguments.
Source: spec/engine.md 3.1; Kyverno pkg/engine/variables/regex/vars.go.
"""

import re
from typing import Final, NamedTuple

# PERF: the alternatives begin with different characters and what they consume is never
# given back (possessive), so the scan is linear in the text.
_VARIABLE: Final = re.compile(r"(\A|[^\\])(\{\{(?:\{[^{}]*\}|[^{}])*+\}\})")

OPENING: Final = "{{"
ESCAPED: Final = "\\{{"


class Found(NamedTuple):
    """One variable in a text, at ``text[start:end]``, braces included.

    ``prefix`` is the character before it, "" at the start of the text; adjacent ones
    are found one per scan because the character before belongs to the match.
    """

    prefix: str
    variable: str
    start: int
    end: int


def find_variables(text: str) -> list[Found]:
    """Return the variables of ``text``, left to right, inner-most ones only."""
    if OPENING not in text:
        return []
    return [
        Found(match[1], match[2], match.start(2), match.end(2))
        for match in _VARIABLE.finditer(text)
    ]


def query_of(variable: str) -> tuple[str, bool]:
    """Return the query inside the braces, and whether it is shallow (``{{- x }}``)."""
    query = variable.replace("{{", "").replace("}}", "").strip()
    if query.startswith("-"):
        return query[1:].strip(), True
    return query, False


def on_delete(query: str) -> str:
    """Return the query as a DELETE request asks it."""
    return query.replace("request.object", "request.oldObject")


def unescape(text: str) -> str:
    """Remove the backslash of escaped braces, the last step of a substitution."""
    return text.replace(ESCAPED, OPENING)
