"""The API server accepts existing objects of Kyverno's users with our definitions.

They are the objects that the real program accepted in its own suites. A failure means:
a user's policy can no longer be applied, or fields are dropped when it is stored.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.place import ABSENT, PRESENT, ROOT
from tests.e2e.api import Api, Refused
from tests.e2e.chainsaw.expressions import fill
from tests.e2e.chainsaw.index import Case, all_cases
from tests.e2e.chainsaw.manifests import read_objects
from tests.e2e.chainsaw.objects import Objects
from tests.e2e.chainsaw.read import Unreadable, read_test
from tests.e2e.crds import install_crds

GROUPS = ("kyverno.io/", "policies.kyverno.io/", "wgpolicyk8s.io/", "openreports.io/")

pytestmark = [
    pytest.mark.skipif(not PRESENT, reason=ABSENT),
    pytest.mark.timeout(1200),
]


def _is_ours(raw: Any) -> bool:
    version = raw.get("apiVersion") if isinstance(raw, dict) else None
    return isinstance(version, str) and version.startswith(GROUPS)


def _of_chainsaw(case: Case) -> Iterator[dict[str, Any]]:
    test = read_test(ROOT / case.test)
    for step in test.steps:
        names = {
            "namespace": "default",
            "test": {"metadata": {"name": test.name}},
            **{one.name: one.value for one in step.bindings},
        }
        for operation in step.tries:
            if operation.name not in ("apply", "create") or operation.expect:
                continue
            try:
                objects = read_objects(operation.fields, test.folder, names)
            except Unreadable:
                continue
            for raw in filter(_is_ours, objects):
                yield fill(raw, names) if operation.is_templated else raw


def _accepted() -> Iterator[tuple[str, dict[str, Any]]]:
    for case in all_cases():
        if case.verdict:
            for raw in _of_chainsaw(case):
                yield case.id, raw
    for path in sorted(ROOT.rglob("webhook.json")):
        recorded = json.loads(path.read_text())
        if not recorded.get("refused"):
            for raw in filter(_is_ours, recorded["policies"] + recorded["exceptions"]):
                yield str(path.parent.relative_to(ROOT)), raw


def _for_cluster(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the object in an existing namespace, without server-set fields."""
    meta = {
        key: value
        for key, value in (raw.get("metadata") or {}).items()
        if key in ("name", "generateName", "labels", "annotations")
    }
    return {
        **{key: value for key, value in raw.items() if key != "status"},
        "metadata": meta,
    }


def test_objects_accepted_by_kyverno_are_accepted(api: Api) -> None:
    install_crds(api)
    objects = Objects(api, "default")
    seen: dict[str, str] = {}
    refused = []
    for case, raw in _accepted():
        wanted = _for_cluster(raw)
        key = json.dumps(wanted, sort_keys=True, default=str)
        if key in seen:
            continue
        seen[key] = case
        try:
            stored = objects.create(objects.locate(wanted), dry_run=True)
        except Refused as error:
            refused.append(f"{case}: {wanted['kind']}: {error}")
            continue
        if lost := list(_lost(wanted.get("spec"), stored.get("spec"), "spec")):
            refused.append(f"{case}: {wanted['kind']} lost {lost[:3]}")
    assert len(seen) > 1000
    assert not refused, "\n".join(refused)


def _lost(written: Any, stored: Any, path: str) -> Iterator[str]:
    """Yield the paths of fields that the API server did not keep."""
    if isinstance(written, dict) and isinstance(stored, dict):
        for key, value in written.items():
            if value is not None and key not in stored:
                yield f"{path}.{key}"
            elif value is not None:
                yield from _lost(value, stored[key], f"{path}.{key}")
    elif isinstance(written, list) and isinstance(stored, list):
        if len(written) != len(stored):
            yield path
        for index, (one, other) in enumerate(zip(written, stored, strict=False)):
            yield from _lost(one, other, f"{path}[{index}]")
    elif written != stored:
        yield path
