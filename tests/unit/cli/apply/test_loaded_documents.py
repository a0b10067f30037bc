"""Compare the policies loaded from a file with the real program's.

A failure means: a policy is loaded that upstream skips, or vice versa: names, labels,
status, null in maps of strings, empty lists, repeated keys. Kyverno 1.18.2's own loader
produced the answers in ``loaded_documents.json``.
"""

import json
from pathlib import Path

import pytest

from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.cli.sources.policy_set import PolicySet

_CASES = json.loads(Path(__file__).with_name("loaded_documents.json").read_text())
_NEIGHBOUR = """
---
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: neighbour}
spec: {rules: []}
"""


def _load(tmp_path: Path, text: str) -> PolicySet:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    return load_policies([str(file)])


def _count(found: PolicySet) -> int:
    return len(found.documents) + len(found.admission)


@pytest.mark.parametrize("case", _CASES)
def test_result_equals_the_kubectl_loaders(
    tmp_path: Path, case: dict[str, str]
) -> None:
    """Either only the document is skipped, or the whole path with its neighbour."""
    found = _load(tmp_path, case["text"] + _NEIGHBOUR)
    wanted = {"loaded": 2, "left out": 1, "path left out": 0}[case["answer"]]
    assert _count(found) == wanted
    assert bool(found.failed_paths) == (wanted < 2)


def test_annotations_are_limited_in_size(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "p", "annotations": {"a": "x" * 262_144}},
            "spec": {"rules": []},
        }
    )
    assert _count(_load(tmp_path, text)) == 0
    assert _count(_load(tmp_path, text.replace("xx", "x", 1))) == 1


def test_null_in_a_list_of_strings(tmp_path: Path) -> None:
    """Metadata is read into Go's maps of strings; maps of the spec lose their nulls."""
    text = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p, labels: {a: null}, annotations: {b: null}}
spec:
  rules:
  - name: r
    match:
      any:
      - resources:
          kinds: [Pod]
          annotations: {c: null}
          selector: {matchLabels: {d: null}}
    validate: {pattern: {metadata: {name: "?*"}}}
"""
    (policy,) = _load(tmp_path, text).documents
    assert policy.metadata.labels == {"a": ""}
    assert policy.metadata.annotations == {"b": ""}
    resources = policy.spec.rules[0].match.any[0].resources
    assert resources.annotations == {}
    assert resources.selector is not None
    assert resources.selector.match_labels == {}
