"""Read the conformance cases and sort them by need.

The folder that place.py finds holds data of Kyverno's own suites with the
verdicts of the real program. A case runs here when its tags need only what is built;
the others are counted by the capability that they miss.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.conformance.place import PRESENT, ROOT

# tag prefix -> the capability it needs; the first that fits names the case's gap.
MISSING = (
    ("evaluation:Envoy", "CEL kinds"),
    ("evaluation:HTTP", "CEL kinds"),
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
    """The capability that is not built yet; "" when the case runs."""
    exit_code: int
    files: tuple[Path, ...] = ()
    """All files of the case: another case's folder may lie inside its own."""

    def data(self, name: str) -> Any:
        """Return a JSON file of the case's folder, None when there is none."""
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
    """Yield the cases that need only what is built."""
    return (case for case in all_cases() if not case.missing)


@cache
def oracle_rows() -> dict[str, list[dict[str, str]]]:
    """Return the rows that the real ``test`` command printed, by case id."""
    data: dict[str, list[dict[str, str]]] = json.loads(
        (ROOT / "oracle-rows.json").read_text()
    )["cases"]
    return data
