"""Declare one setting next to its default, unit, range and description.

Room: settings. Takes: nothing. Gives: setting(), Facts, read by settings/settings.py,
read.py and table.py.
Source: docs/architecture.md 2 (every setting in one typed module, the table in
docs/settings.md generated).
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

PREFIX = "KYVERNO_MP_"
_FACTS = "facts"


@dataclass(frozen=True, slots=True)
class Facts:
    """Unit, range and description of one setting, also for docs/settings.md.

    ``low`` and ``high`` bound a number (both included); ``choices`` bound a string.
    ``auto`` describes a default that is computed at start. ``word``: a word that
    selects the default of a number.
    """

    doc: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    auto: str = ""
    word: str = ""


def span_of(facts: Facts) -> str:
    """Return the bounds of a number in full, e.g. ``1048576 to 68719476736``."""
    if facts.low is None or facts.high is None:
        return ""
    bounds = [str(int(n)) if n == int(n) else str(n) for n in (facts.low, facts.high)]
    return " to ".join(bounds)


def setting(default: str | float | bool, facts: Facts) -> Any:  # noqa: FBT001 - a default may be a bool
    """Return a dataclass field with these facts in its metadata."""
    return dataclasses.field(default=default, metadata={_FACTS: facts})


def facts_of(field: "dataclasses.Field[Any]") -> Facts:
    """Return the facts that ``setting`` stored."""
    facts = field.metadata[_FACTS]
    assert isinstance(facts, Facts)
    return facts


def variable_of(field: "dataclasses.Field[Any]") -> str:
    """Return the environment variable of a field, e.g. ``KYVERNO_MP_HEALTH_PORT``."""
    return variable(field.name)


def variable(name: str) -> str:
    """Return the environment variable of the setting called ``name``."""
    return PREFIX + name.upper()
