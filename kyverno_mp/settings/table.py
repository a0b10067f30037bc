"""Render the table of settings in docs/settings.md from the code.

Room: settings. Takes: the fields of Settings. Gives: Markdown. Next:
tests/unit/docs/test_tables.py.
"""

import dataclasses
from typing import get_type_hints

from kyverno_mp.settings.fields import Facts, facts_of, span_of, variable_of
from kyverno_mp.settings.settings import Settings


def table() -> str:
    """Return the Markdown table, one row per setting in the order of declaration."""
    hints = get_type_hints(Settings)
    rows = ["| variable | default | unit, range | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(Settings):
        facts = facts_of(field)
        default = facts.auto or _shown(field.default)
        bounds = _range(facts, hints[field.name])
        rows.append(f"| `{variable_of(field)}` | {default} | {bounds} | {facts.doc} |")
    return "\n".join(rows) + "\n"


def _shown(default: object) -> str:
    if default == "":
        return "none"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _range(facts: Facts, kind: type) -> str:
    if kind is bool:
        return "true, false"
    if facts.choices:
        return ", ".join(facts.choices)
    span = span_of(facts)
    if not span:
        return "text"
    word = f", or `{facts.word}`" if facts.word else ""
    return f"{facts.unit}, {span}{word}"
