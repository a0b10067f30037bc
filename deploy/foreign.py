"""Read the table of Kyverno's values that the chart does not use.

Takes: deploy/kyverno-values.yaml. Gives: HARMLESS and REFUSED by path, and their places
in the chart's schema. Next: deploy/chart.py, which puts them into the chart;
deploy/values.py, which converts a file of Kyverno's values. May touch: that file.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

_TABLE: Final = yaml.safe_load(
    (Path(__file__).resolve().parent / "kyverno-values.yaml").read_text()
)
_CHOICE: Final = re.compile(r"\{([^}]*)\}")


class Refused(NamedTuple):
    """A value that is an error unless it is neutral, which asks for nothing."""

    neutral: tuple[str, ...]
    """The neutral values as JSON."""
    why: str

    def is_neutral(self, value: object) -> bool:
        """Return whether a value asks for nothing."""
        return compact(value) in self.neutral


def compact(value: object) -> str:
    """Return a value as JSON, as Helm's ``toJson`` writes it."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _expanded(path: str) -> Iterator[str]:
    """Yield the paths that a path with ``{a,b}`` stands for."""
    parts = _CHOICE.split(path)
    choices = [part.split(",") if n % 2 else [part] for n, part in enumerate(parts)]
    return map("".join, itertools.product(*choices))


HARMLESS: Final[Mapping[str, str]] = {
    path: row["why"] for row in _TABLE["harmless"] for path in _expanded(row["path"])
}
"""Path -> why the value, with all below it, has no effect."""
REFUSED: Final[Mapping[str, Refused]] = {
    path: Refused(tuple(map(compact, row["neutral"])), row["why"])
    for row in _TABLE["refused"]
    for path in _expanded(row["path"])
}


def harmless_above(path: str) -> str:
    """Return the harmless path at or above a path; "" if there is none."""
    words = path.split(".")
    above = (".".join(words[: n + 1]) for n in range(len(words)))
    return next((one for one in above if one in HARMLESS), "")


def add_to(schema: dict[str, Any]) -> None:
    """Add the paths to a schema, where each of them accepts any value."""
    for path in sorted({*HARMLESS, *REFUSED}):
        part = schema
        *above, last = path.split(".")
        for word in above:
            if "properties" not in part:
                break
            part = part["properties"].setdefault(
                word,
                {"type": "object", "properties": {}, "additionalProperties": False},
            )
        else:
            if "properties" in part:
                part["properties"].setdefault(last, {})


def for_chart() -> str:
    """Return the file from which the chart's templates read the table."""
    refused = [
        {"path": path, "neutral": list(row.neutral), "why": row.why}
        for path, row in sorted(REFUSED.items())
    ]
    table = {"harmless": dict(sorted(HARMLESS.items())), "refused": refused}
    return json.dumps(table, indent=1) + "\n"
