"""Strategic merges agree with kubectl's, which are the API server's own.

A failure means: a patch without anchors changes a built-in object in another way than
Kubernetes. Documented differences are left out of what is compared: kustomize puts what
a patch names in front (docs/behaviour/engine 7.3); Kyverno drops empty maps from
patches; Kubernetes leaves nulls in elements that it adds.
"""

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.program.mutate.strategic import StrategicPatch
from kyverno_mp.values.patches.strategic_merge import merge
from tests.e2e.binaries import find_kubectl

SEEDS = range(60)
_OBJECTS = 12
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "hostAliases": "ip",
}
"""Lists that are merged, by which key; finalizers are merged by value."""
_NOTHING: tuple[Any, ...] = ({}, [], None)


class _Maker:
    """A generator of objects, and of patches for them, with fields of a Pod."""

    def __init__(self, seed: int, *, patches: bool) -> None:
        self._chance = random.Random(seed)
        self._patches = patches

    def _some(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Take some of the fields; a patch deletes one now and then."""
        taken: dict[str, Any] = {}
        for key, make in fields.items():
            if self._chance.random() < 0.5:
                deletes = self._patches and self._chance.random() < 0.15
                value = None if deletes else make()
                if value != {}:
                    taken[key] = value
        return taken

    def _word(self) -> str:
        return self._chance.choice(["a", "b", "c", "d"])

    def _words(self) -> list[str]:
        count = self._chance.randint(1, 3)
        return self._chance.sample(["a", "b", "c", "d"], count)

    def _keyed(self, key: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
        return [{key: word, **self._some(fields)} for word in self._words()]

    def _labels(self) -> dict[str, Any]:
        return self._some(dict.fromkeys("abc", self._word))

    def _containers(self) -> list[dict[str, Any]]:
        limits = {"limits": self._labels, "requests": self._labels}
        return self._keyed(
            "name",
            {
                "image": self._word,
                "args": self._words,
                "env": lambda: self._keyed("name", {"value": self._word}),
                "volumeMounts": lambda: self._keyed("mountPath", {"name": self._word}),
                "resources": lambda: self._some(limits),
            },
        )

    def pod(self) -> dict[str, Any]:
        """Return a Pod, or a patch of one."""
        metadata = {
            "labels": self._labels,
            "annotations": self._labels,
            "finalizers": self._words,
        }
        spec = {
            "containers": self._containers,
            "initContainers": self._containers,
            "volumes": lambda: self._keyed("name", {"emptyDir": self._labels}),
            "imagePullSecrets": lambda: self._keyed("name", {}),
            "hostAliases": lambda: self._keyed("ip", {"hostnames": self._words}),
            "nodeSelector": self._labels,
            "nodeName": self._word,
            "tolerations": lambda: [{"key": self._word()}],
        }
        made = self._some({"metadata": lambda: self._some(metadata)})
        return {**made, "spec": self._some(spec)}


def _object(seed: int) -> dict[str, Any]:
    made = _Maker(seed, patches=False).pod()
    metadata = {"name": f"pod-{seed}", **made.get("metadata", {})}
    return {**made, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def _comparable(value: Any, name: str = "") -> Any:
    """Sort merged lists; drop empty and null values."""
    if isinstance(value, dict):
        found = {key: _comparable(item, key) for key, item in value.items()}
        return {key: item for key, item in found.items() if item not in _NOTHING}
    if isinstance(value, list):
        items = [_comparable(item) for item in value]
        if name == "finalizers":
            return sorted(items)
        key = _KEYS.get(name)
        return items if key is None else sorted(items, key=lambda item: item[key])
    return value


@pytest.fixture(scope="module")
def kubectl() -> Path:
    """Return the machine's kubectl, or that of the end-to-end tests."""
    try:
        return find_kubectl()
    except FileNotFoundError as error:
        pytest.skip(f"no kubectl to compare with: {error}")


@pytest.mark.parametrize("seed", SEEDS)
def test_merges_agree_with_kubectl(seed: int, kubectl: Path, tmp_path: Path) -> None:
    objects = [_object(seed * _OBJECTS + number) for number in range(_OBJECTS)]
    patch = _Maker(seed, patches=True).pod()
    path = tmp_path / "objects.json"
    items = {"apiVersion": "v1", "kind": "List", "items": objects}
    path.write_text(json.dumps(items))
    command = [str(kubectl), "patch", "--local", "--type=strategic", "-o", "json"]
    command += ["-f", str(path), "-p", json.dumps(patch)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    linked = StrategicPatch(patch, has_holes=False)
    for given in objects:
        wanted, end = json.JSONDecoder().raw_decode(said)
        said = said[end:].lstrip()
        wanted = _comparable(wanted)
        assert _comparable(merge(given, patch)) == wanted
        assert _comparable(linked.apply(given, ())) == wanted
    assert not said
