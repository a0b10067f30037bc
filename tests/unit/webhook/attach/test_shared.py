"""Cluster data from files, as rules read it."""

from typing import Any

import pytest
import yaml

from kyverno_mp.leader.objects import answer_of, api_answers
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.webhook.shared import SharedClusterData
from tests.fuzz.bench import Bench

POLICY = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: no-root}
spec:
  rules:
  - name: user
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate:
      failureAction: Enforce
      message: an image runs as root
      foreach:
      - list: request.object.spec.containers
        context:
        - name: data
          imageRegistry: {reference: "{{ element.image }}"}
        deny:
          conditions:
            all:
            - key: "{{ data.configData.config.User || '' }}"
              operator: Equals
              value: ""
"""
GIVEN = """
apiVersion: kyverno-mp.io/v1alpha1
kind: ImageData
metadata: {name: a}
spec: {reference: "example.com/app:1", data: {configData: {config: {User: app}}}}
---
apiVersion: kyverno-mp.io/v1alpha1
kind: ImageData
metadata: {name: b}
spec: {reference: "example.com/root:1", data: {configData: {config: {}}}}
---
apiVersion: kyverno-mp.io/v1alpha1
kind: ImageData
metadata: {name: c}
spec: {reference: "example.com/gone:1", error: "manifest unknown"}
"""


class _Segment:
    """A data segment that is already attached."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def get(self, key: str) -> Any:
        return self.values.get(key)


def _cluster_data() -> ClusterData:
    answers = api_answers([])
    answers.update(answer_of(raw) for raw in yaml.safe_load_all(GIVEN))
    names = ("namespaces", "configmaps", "roles", "globalcontext")
    segments: dict[str, Any] = {name: lambda: _Segment({}) for name in names}
    segments["apicalls"] = lambda: _Segment(answers)
    return ClusterData(images=SharedClusterData(segments))


@pytest.mark.parametrize(
    ("image", "allowed", "words"),
    [
        ("example.com/app:1", True, ""),
        ("example.com/root:1", False, "an image runs as root"),
        ("example.com/gone:1", False, "manifest unknown"),
        ("example.com/other:1", False, "no data is given for it"),
    ],
)
def test_given_images(image: str, allowed: bool, words: str) -> None:  # noqa: FBT001 - a column of the table
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": image}]},
    }
    response = Bench(POLICY, cluster_data=_cluster_data()).ask(pod)
    assert response["allowed"] is allowed
    text = " ".join(response.get("status", {}).get("message", "").split())
    assert words in text
