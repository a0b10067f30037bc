"""Read the cases of image verification.

Takes: the folder ``images`` of the conformance data (its README describes it). Gives:
ImageCases, texts with their placeholders replaced.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.conformance.place import ROOT

FOLDER = ROOT / "images"
PRESENT = (FOLDER / "index.json").is_file()
_CLOSED = "127.0.0.1:1"
_TEXTS = (".yaml", ".json")


@dataclass(frozen=True)
class ImageCase:
    """One case: ``raw`` is its entry in the index."""

    id: str
    raw: dict[str, Any]

    @property
    def folder(self) -> Path:
        return FOLDER / self.id

    @property
    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((self.folder / "case.yaml").read_text())
        return found

    def text(self, name: str) -> str:
        file = self.folder / name
        return file.read_text() if file.is_file() else ""


@cache
def image_cases() -> tuple[ImageCase, ...]:
    """Return the cases whose verdicts count: not those that show a defect."""
    if not PRESENT:
        return ()
    index = json.loads((FOLDER / "index.json").read_text())
    cases = [ImageCase(raw["id"], raw) for raw in index["cases"]]
    return tuple(case for case in cases if not case.info.get("defect"))


def filled(text: str, registry: str, canned: str) -> str:
    """Replace the placeholders."""
    for name, value in (
        ("{{REGISTRY}}", registry),
        ("{{REKOR}}", f"http://{canned}"),
        ("{{TUF}}", f"http://{canned}/tuf"),
        ("{{HTTP}}", canned),
        ("{{CLOSED}}", _CLOSED),
    ):
        text = text.replace(name, value)
    return text


def masked(text: str, registry: str, canned: str) -> str:
    """Put the placeholders back into what the program printed."""
    text = text.replace(registry, "{{REGISTRY}}").replace(canned, "{{HTTP}}")
    return text.replace(f"{_CLOSED}/", "{{CLOSED}}/")
