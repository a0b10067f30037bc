"""ClusterPolicies that ``fix`` rewrites decide the recorded reviews as before.

A failure means: a ValidatingPolicy printed by the command line decides differently from
its ClusterPolicy, for an object of Kyverno's own tests.
"""

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.admission.decode import decode as decode_review
from kyverno_mp.cli.fix.policy import fix_policy
from kyverno_mp.cli.fix.rewrite.proof import Pair
from kyverno_mp.cli.fix.to_cel import Rewrite, rewrite
from kyverno_mp.errors import RequestInvalid
from kyverno_mp.limits import REWRITE_INPUTS_MIN
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode
from tests.conformance.place import ABSENT, PRESENT, ROOT
from tests.examples import scaled

Json = Any
_SAMPLES = Path(__file__).resolve().parents[2] / "config/samples/policies"
_PARTS = 10
"""The recordings are compared in parts, which processes share."""
_REWRITTEN_MIN = 3
"""The recorded policies of a part that are rewritten; fewer mean rejected policies."""
_REVIEWS_MIN = 30
_WITHHELD_MAX = 3
"""Of all parts. An error beside a false condition decides in CEL, not in Kyverno, or
the reverse."""
_SAMPLES_MIN = 13


INPUTS = scaled(REWRITE_INPUTS_MIN)


@pytest.fixture(autouse=True)
def _budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare on the requests of this run's budget, as in other property tests."""
    counted = "kyverno_mp.cli.fix.rewrite.inputs.REWRITE_INPUTS_MIN"
    monkeypatch.setattr(counted, INPUTS)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of this run, which all of its processes have."""
    base = tmp_path_factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = run / "withheld"
    folder.mkdir(exist_ok=True)
    return folder


@cache
def recordings() -> tuple[Path, ...]:
    return tuple(sorted(ROOT.rglob("webhook.json"))) if PRESENT else ()


def pairs_of(raw: Json, found: Rewrite) -> Pair:
    current = json.loads(json.dumps(raw))
    fix_policy(current)
    before = decode(current)
    assert isinstance(before, ClusterPolicy)
    return Pair(before, found.document)


def rewritten_in(policies: list[Json]) -> Iterator[Pair]:
    for raw in policies:
        if raw.get("kind") != "ClusterPolicy":
            continue
        found = known_rewrite(json.dumps(raw))
        # What differs on generated requests is shown, and never given.
        assert not (found.document and found.differences), found
        if found.document is not None:
            yield pairs_of(raw, found)


@cache
def known_rewrite(text: str) -> Rewrite:
    """Return the rewrite; policies are recorded in several cases."""
    return rewrite(json.loads(text))


@pytest.mark.skipif(not PRESENT, reason=ABSENT)
@pytest.mark.parametrize("part", range(_PARTS))
def test_recorded_reviews_keep_their_verdicts(part: int, shared: Path) -> None:
    policies, reviews = 0, 0
    withheld: set[str] = set()
    for path in recordings()[part::_PARTS]:
        recorded = json.loads(path.read_text())
        withheld |= {
            raw["metadata"]["name"]
            for raw in recorded["policies"]
            if raw.get("kind") == "ClusterPolicy"
            and known_rewrite(json.dumps(raw)).differences
        }
        if recorded["refused"]:
            continue
        pairs = list(rewritten_in(recorded["policies"]))
        policies += len(pairs)
        for review in recorded["reviews"]:
            body = json.dumps({"request": {"uid": "u", **review["request"]}}).encode()
            for pair in pairs:
                try:
                    request = decode_review(body)
                except RequestInvalid:
                    continue
                before, after = pair.verdicts(request)
                assert bool(before) == bool(after), (path, review, before, after)
                reviews += 1
    assert policies >= _REWRITTEN_MIN
    assert reviews >= _REVIEWS_MIN
    # The part that ends last reads the names of all parts.
    (shared / f"{part}.tmp").write_text("\n".join(withheld))
    (shared / f"{part}.tmp").rename(shared / f"{part}.txt")
    names = {name for file in shared.glob("*.txt") for name in file.read_text().split()}
    assert len(names) <= _WITHHELD_MAX, names


def test_samples_are_rewritten_or_rejected() -> None:
    count = 0
    for path in sorted(_SAMPLES.glob("*.yaml")):
        for raw in yaml.safe_load_all(path.read_text()):
            found = rewrite(raw)
            assert not found.differences, path
            assert (found.document is None) == bool(found.reason), path
            count += found.document is not None
    assert count >= _SAMPLES_MIN
