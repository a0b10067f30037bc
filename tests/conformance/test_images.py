"""``kyverno-mp apply`` gives the real program's rows for images, patches and exit code.

A failure means: an image that Kyverno rejects is admitted, or the reverse.
"""

import contextlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.cli.main import run
from tests.conformance.image_cases import (
    PRESENT,
    ImageCase,
    filled,
    image_cases,
    masked,
    tuf_root,
    tuf_routes,
)
from tests.conformance.ledger import differs
from tests.conformance.place import ABSENT
from tests.image_rig import Contents, serving

pytestmark = pytest.mark.skipif(not PRESENT, reason=ABSENT)

_PROBE = "probe"
_REPORT = "apply"


@pytest.fixture(scope="module")
def canned() -> Contents:
    return Contents()


@pytest.fixture(scope="module")
def hosts(canned: Contents) -> Iterator[tuple[str, str]]:
    registry = Contents()
    with (
        serving(registry, is_canned=False) as host,
        serving(canned, is_canned=True) as http,
    ):
        for case in image_cases():
            text = filled(case.text("registry.json"), host, http)
            if text:
                registry.load_registry(json.loads(text))
        canned.load_canned(tuf_routes())
        yield host, http


class _Seen:
    """The result of a run: rows, whether it failed, and the patched object."""

    def __init__(self, code: int, report: str, hosts: tuple[str, str]) -> None:
        self.failed = code != 0
        self.rows: list[tuple[str, str, str, str, str]] = []
        self.patched: Any = None
        documents = report[report.find("apiVersion:") :] if report else ""
        for document in yaml.safe_load_all(documents):
            for row in (document or {}).get("results") or []:
                self._add(row, hosts)

    def _add(self, row: dict[str, Any], hosts: tuple[str, str]) -> None:
        message = masked(row.get("message", ""), *hosts)
        if row["policy"] == _PROBE:
            self.patched = json.loads(message) if message.startswith("{") else message
        about = row["resources"][0]
        place = "/".join(
            about.get(key, "") for key in ("apiVersion", "kind", "namespace", "name")
        )
        self.rows.append(
            (row["policy"], row.get("rule", ""), place, row["result"], message)
        )


def _apply(case: ImageCase, hosts: tuple[str, str], folder: Path) -> _Seen:
    for file in case.folder.glob("*.yaml"):
        (folder / file.name).write_text(filled(file.read_text(), *hosts))
    given = filled(yaml.safe_dump(case.info.get("args") or []), *hosts)
    arguments = [
        str(folder / one) if (folder / one).is_file() else one
        for one in yaml.safe_load(given)
    ]
    out = io.StringIO()
    files = ["apply", str(folder / "policy.yaml"), "-r", str(folder / "resource.yaml")]
    with contextlib.redirect_stdout(out):
        code = run([*files, "-p", *arguments])
    return _Seen(code, out.getvalue(), hosts)


@pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in image_cases()])
def test_rows(
    case: ImageCase,
    hosts: tuple[str, str],
    canned: Contents,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = filled(case.text("http.json"), *hosts)
    if answers:
        # Several cases use the same path.
        canned.load_canned(json.loads(answers))
    if case.info.get("tuf"):
        place = tuf_root(tmp_path / "tuf", hosts[1])
        monkeypatch.setenv("TUF_ROOT", str(place))
    expected = json.loads(case.text("expected.json"))
    seen = _apply(case, hosts, tmp_path)
    if "crash" in expected:
        passed = [row for row in seen.rows if row[3] == "pass"]
        same = seen.failed and not passed
        with differs(f"images/{case.id}", _REPORT, same=same):
            assert seen.failed
            assert not passed
        return
    wanted = Counter(
        (row["policy"], row["rule"], row["resource"], row["result"])
        for row in expected["rows"]
    )
    found = Counter(row[:4] for row in seen.rows)
    texts = _unmatched_texts(expected["rows"], seen)
    patched = "patched" not in expected or expected["patched"] == seen.patched
    same = (
        wanted == found
        and seen.failed == bool(expected["exit"])
        and patched
        and not texts
    )
    with differs(f"images/{case.id}", _REPORT, same=same):
        assert sorted(found.elements()) == sorted(wanted.elements())
        assert seen.failed == bool(expected["exit"])
        if "patched" in expected:
            assert seen.patched == expected["patched"]
        assert not texts


def _unmatched_texts(rows: list[dict[str, Any]], seen: _Seen) -> list[str]:
    """Return the expected texts without a row; each row matches one of them."""
    left = [row for row in seen.rows if row[0] != _PROBE]
    missing = []
    for row in sorted(rows, key=lambda one: "prefix" in one):
        if row["policy"] == _PROBE:
            continue
        for candidate in left:
            text = candidate[4]
            same = (
                text.startswith(row["prefix"])
                if "prefix" in row
                else text.strip() == row["message"].strip()
            )
            if same and candidate[3] == row["result"]:
                left.remove(candidate)
                break
        else:
            missing.append(row.get("prefix") or row["message"])
    return missing
