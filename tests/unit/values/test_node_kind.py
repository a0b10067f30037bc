"""Test a merge's errors for parts of the wrong kind, as printed by Kyverno 1.18.2."""

from typing import Any

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.program.mutate.anchors import prepare, preprocess
from kyverno_mp.values.patches.strategic_merge import merge

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
START = "wrong node kind: expected"
CONTENTS = "node contents:\n"


@pytest.mark.parametrize(
    ("resource", "patch", "text"),
    [
        (
            {**POD, "spec": "100Mi"},
            {"spec": {"securityContext": {"fsGroup": 2000, "runAsNonRoot": True}}},
            (
                f"{START} ScalarNode but got MappingNode: {CONTENTS}"
                '{"securityContext": {"fsGroup": 2000, "runAsNonRoot": true}}\n'
            ),
        ),
        (
            {**POD, "spec": {"containers": [{"name": "a"}, False]}},
            {"spec": {"containers": [{"name": "a", "image": "b"}]}},
            f"{START} MappingNode but got ScalarNode: {CONTENTS}false\n",
        ),
        (
            {**POD, "spec": []},
            {"spec": {"a": 1.0}},
            f'{START} SequenceNode but got MappingNode: {CONTENTS}{{"a": 1}}\n',
        ),
    ],
)
def test_error_names_the_actual_node_kind(resource: Any, patch: Any, text: str) -> None:
    with pytest.raises(ExpressionFailed) as caught:
        merge(resource, patch)
    assert caught.value.message == text


def test_anchors_in_a_list_against_another_node_kind() -> None:
    patch = prepare({"containers": [{"(name)": "*", "p": 1}]})
    with pytest.raises(ExpressionFailed) as caught:
        preprocess(patch, {"containers": "30m"})
    assert caught.value.message == (
        f"failed to preProcess rule: {START} SequenceNode but got ScalarNode:"
        f' {CONTENTS}"30m"\n'
    )
