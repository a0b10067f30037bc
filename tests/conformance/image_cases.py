"""Read the cases of image verification.

Takes: the folder ``images`` of the conformance data (its README describes it). Gives:
ImageCases, with the placeholders in texts replaced.
"""

import base64
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
    """Return the cases whose verdicts count, without those that show a defect."""
    if not PRESENT:
        return ()
    index = json.loads((FOLDER / "index.json").read_text())
    cases = [ImageCase(raw["id"], raw) for raw in index["cases"]]
    return tuple(case for case in cases if not case.info.get("defect"))


@cache
def _tuf_files() -> dict[str, str]:
    """Return the files of the TUF repository, in base64, by path."""
    files: dict[str, str] = json.loads((FOLDER / "common/tuf.json").read_text())[
        "files"
    ]
    return files


def tuf_routes() -> dict[str, Any]:
    """Return the TUF repository as prepared answers."""
    return {
        "routes": [
            {"path": f"/tuf/{path}", "body64": data}
            for path, data in _tuf_files().items()
        ]
    }


def tuf_root(folder: Path, canned: str) -> Path:
    """Write the files of TUF_ROOT: the trusted root and the mirror."""
    folder.mkdir()
    (folder / "root.json").write_bytes(base64.b64decode(_tuf_files()["root.json"]))
    remote = json.dumps({"mirror": f"http://{canned}/tuf"})
    (folder / "remote.json").write_text(remote)
    return folder


def filled(text: str, registry: str, canned: str) -> str:
    """Replace the placeholders."""
    for name, value in (
        ("{{REGISTRY}}", registry),
        ("{{REKOR}}", f"http://{canned}"),
        ("{{TUF}}", f"http://{canned}/tuf"),
        ("{{TUF_ROOT}}", _tuf_files().get("root.json", "")),
        ("{{HTTP}}", canned),
        ("{{CLOSED}}", _CLOSED),
    ):
        text = text.replace(name, value)
    return text


def masked(text: str, registry: str, canned: str) -> str:
    """Replace values in the program's output with their placeholders."""
    text = text.replace(registry, "{{REGISTRY}}").replace(canned, "{{HTTP}}")
    return text.replace(f"{_CLOSED}/", "{{CLOSED}}/")
