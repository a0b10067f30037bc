"""Parse a resourceFilters text, and report parts without an effect.

Room: policy. Takes: the text. Gives: the parts of each filter; the problem with the
text. Next: program/matching/filters.py, which compiles them; settings/texts.py and
policy/configuration.py, which reject texts with problems.
Source: docs/behaviour/engine 1.8; docs/behaviour/controllers 10.3.
"""

import re
from typing import Final

_FILTER: Final = re.compile(r"\[([^\[\]]*)\]")
_PARTS: Final = 3
_SHOWN: Final = 40


def filters_in(filters: str) -> list[list[str]]:
    """Return the parts of each filter as written; ignore text outside of filters."""
    return [filter_parts.split(",") for filter_parts in _FILTER.findall(filters)]


def filters_problem(filters: str) -> str:
    """Describe what is ignored or never matches in ``filters``, "" for none."""
    outside = _FILTER.sub(" ", filters).strip(" \t\r\n,")
    if outside:
        return f"expected [Kind,namespace,name][...], found {outside[:_SHOWN]!r}"
    for parts in filters_in(filters):
        filter_shown = "[" + ",".join(parts) + "]"
        if len(parts) != _PARTS:
            return f"{filter_shown}: expected three parts, [Kind,namespace,name]"
        if any(part != part.strip() for part in parts):
            return f"{filter_shown}: spaces count, and no name contains spaces"
        if not parts[0]:
            return f"{filter_shown}: expected a kind before the first comma"
    return ""
