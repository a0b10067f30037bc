"""Expressions read the objects of a list as Go's client provides them."""

import json
from typing import Any, cast

import pytest

from kyverno_mp.egress.resources import LiveResources
from kyverno_mp.kube.rest import Call, Client


class Answering:
    """A client whose API server returns one answer to all calls."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def call(self, _call: Call, _deadline_ns: int) -> bytes:
        return json.dumps(self._answer).encode()


def listed(answer: object) -> Any:
    client = cast("Client", Answering(answer))
    resources = LiveResources(lambda: client, lambda _version, _kind: "")
    return resources.list("v1", "secrets", "a", {}, 0)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({}, {"apiVersion": "v1", "kind": "Secret"}),
        ({"kind": "Odd"}, {"kind": "Odd"}),
        ({"apiVersion": "v2"}, {"apiVersion": "v2"}),
    ],
)
def test_list_items_have_the_lists_kind(
    item: dict[str, Any], expected: dict[str, Any]
) -> None:
    """The API server omits the kind; unstructured.decodeToList sets it."""
    found = listed({"apiVersion": "v1", "kind": "SecretList", "items": [item]})
    assert found["items"] == [expected]


@pytest.mark.parametrize(
    "answer", [{"kind": "List"}, {"kind": "List", "items": [1]}, {"items": [{}]}, []]
)
def test_other_answers_are_unchanged(answer: object) -> None:
    assert listed(answer) == answer
