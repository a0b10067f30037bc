"""Reviews of any shape get an answer, and a forbidden Pod never passes.

Every value of a review is replaced with values of every type, singly and several at
once, and evaluated by the sample policies and by rules that use the whole language.
"""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.webhook.http_errors import HttpError
from tests.fuzz.bench import Bench

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "config" / "samples"
POLICIES = "\n---\n".join(
    path.read_text() for path in sorted((SAMPLES / "policies").glob("*.yaml"))
)
GOOD = json.loads((SAMPLES / "reviews" / "pod-allowed.json").read_text())
BAD = json.loads((SAMPLES / "reviews" / "pod-denied.json").read_text())
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 2**63, 2**64 - 1, 10**30, 1e308, "", "x", "*", "?*"),
    *("\u0000", "\U0001f600", "{{ request.object }}", "1Gi", "9" * 400, "-5s", "1.2.3"),
    *([], {}, [None], ["a"], [{}], [[]], {"": ""}, {"a": None}, {"name": 1}),
    *([1, "a", None, {}], {"a": {"b": [1, {"c": None}]}}, "a" * 1000),
)
LANGUAGE = (Path(__file__).parent / "language.yaml").read_text()

Path_ = tuple[Any, ...]


def places(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of each value in a document."""
    if path:
        yield path
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        yield from places(child, (*path, key))


def put(document: Any, path: Path_, value: Any) -> None:
    """Replace a value."""
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = copy.deepcopy(value)


def answer(bench: Bench, document: Any) -> bool:
    """Post; return whether it was allowed. An HTTP error counts as rejected."""
    try:
        response = bench.post(json.dumps(document).encode())
    except HttpError as refusal:
        return refusal.status < 400
    if not response["allowed"]:
        assert response["status"]["message"]
    return bool(response["allowed"])


def test_each_value_of_each_type() -> None:
    """An odd value never makes a Pod pass that its normal form does not."""
    bench = Bench(POLICIES)
    assert answer(bench, GOOD)
    assert not answer(bench, BAD)
    emptied = {("request", "object"), ("request", "object", "spec", "containers")}
    for base in (GOOD, BAD):
        for path in list(places(base)):
            for odd in ODD:
                document = copy.deepcopy(base)
                put(document, path, odd)
                allowed = answer(bench, document)
                # An object that is no longer a Pod or has no container violates no
                # rule.
                if base is BAD and path[:2] == ("request", "object") and odd:
                    assert not allowed, (path, odd)
                elif base is BAD and path[:2] == ("request", "object"):
                    assert not allowed or path in emptied, (path, odd)
    assert "webhook.defect" not in bench.records.errors


@pytest.mark.parametrize("seed", range(4))
def test_many_odd_values_at_once(seed: int) -> None:
    """No review causes an internal error, whatever the rules read."""
    draw = random.Random(seed)
    bench = Bench(LANGUAGE)
    for _ in range(1500):
        document = copy.deepcopy(draw.choice((GOOD, BAD)))
        request = document["request"]
        if draw.random() < 0.3:
            request["operation"] = draw.choice(["UPDATE", "DELETE", "CONNECT"])
            request["oldObject"] = copy.deepcopy(request["object"])
        for _ in range(draw.choice((1, 2, 4, 8))):
            part = draw.choice(("object", "object", "oldObject"))
            found = list(places(request[part]))
            if found:
                put(request[part], draw.choice(found), draw.choice(ODD))
        answer(bench, document)
    assert "webhook.defect" not in bench.records.errors
