"""Read the conformance cases and sort them by required capability.

The folder that place.py finds contains data of Kyverno's own suites with the real
program's verdicts. A case runs here if its tags only need implemented capabilities; the
others are counted by the missing capability.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.conformance.place import PRESENT, ROOT

# tag prefix -> required capability; the first match names the missing one.
MISSING = (
    ("rule:verifyImages", "verifyImages"),
    ("rule:validate.manifests", "validate.manifests"),
)


@dataclass(frozen=True)
class Case:
    """One case of the ``cli`` or ``policies`` suite."""

    id: str
    folder: Path
    tags: tuple[str, ...]
    missing: str
    """The capability that is not implemented yet; "" if the case runs."""
    exit_code: int
    files: tuple[Path, ...] = ()
    """All files of the case: its folder may contain another case's folder."""

    def data(self, name: str) -> Any:
        """Return a JSON file of the case's folder, or None."""
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None


def _missing(raw: dict[str, Any]) -> str:
    if raw["needs-network"]:
        return "network"
    for tag in raw["tags"]:
        for prefix, capability in MISSING:
            if tag.startswith(prefix):
                return capability
    return ""


@cache
def all_cases() -> tuple[Case, ...]:
    """Return the cases of both suites, in the order of the index."""
    if not PRESENT:
        return ()
    index = json.loads((ROOT / "index.json").read_text())
    return tuple(
        Case(
            raw["id"],
            ROOT / raw["path"],
            tuple(raw["tags"]),
            _missing(raw),
            raw["oracle"]["real_exit"],
            tuple(ROOT / name for name in raw["files"]),
        )
        for raw in index["cases"]
        if raw["suite"] in ("cli", "policies")
    )


def runnable() -> Iterator[Case]:
    """Yield the cases that only need implemented capabilities."""
    return (case for case in all_cases() if not case.missing)


@cache
def oracle_rows() -> dict[str, list[dict[str, str]]]:
    """Return the rows that the real ``test`` command printed, by case id."""
    data: dict[str, list[dict[str, str]]] = json.loads(
        (ROOT / "oracle-rows.json").read_text()
    )["cases"]
    return data
