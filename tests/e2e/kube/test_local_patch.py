"""Strategic merges agree with kubectl's own, which needs no cluster: ``patch --local``.

A failure means: a patch changes an object in another way than Kubernetes would. What is
known to differ is left out: the order of merged lists (kustomize's merge, which Kyverno
uses, puts the patch's elements first), and what either rejects.
"""

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.values.patches.strategic_merge import merge
from tests.e2e.binaries import find_kubectl
from tests.waiting import HANG_S

NAMES = ("a", "b", "c")
TEXTS = ("1", "2", "x:1")
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
    "imagePullSecrets": "name",
    "ports": "containerPort",
    "hostAliases": "ip",
}
OBJECTS = 12


def some(dice: random.Random, make: Any, most: int = 3) -> list[Any]:
    """Return items of different names."""
    return [make(dice, name) for name in dice.sample(NAMES, dice.randint(0, most))]


def variable(dice: random.Random, name: str) -> dict[str, Any]:
    return {"name": name, "value": dice.choice(TEXTS)}


def mount(dice: random.Random, name: str) -> dict[str, Any]:
    return {"mountPath": f"/{name}", "name": dice.choice(NAMES)}


def port(dice: random.Random, name: str) -> dict[str, Any]:
    number = 80 + NAMES.index(name)
    return {"containerPort": number, "hostPort": dice.randint(1, 3), "protocol": "TCP"}


def container(dice: random.Random, name: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "image": dice.choice(TEXTS)}
    for field, make in (("env", variable), ("volumeMounts", mount), ("ports", port)):
        if dice.random() < 0.5:
            made[field] = some(dice, make)
    if dice.random() < 0.5:
        made["args"] = dice.sample(TEXTS, 2)
    if dice.random() < 0.3:
        made["resources"] = {"limits": {dice.choice(("cpu", "memory")): "1"}}
    return made


def volume(dice: random.Random, name: str) -> dict[str, Any]:
    source: dict[str, Any] = dice.choice(
        ({"emptyDir": {}}, {"configMap": {"name": dice.choice(NAMES)}})
    )
    return {"name": name, **source}


def host_alias(dice: random.Random, name: str) -> dict[str, Any]:
    ip = f"10.0.0.{NAMES.index(name)}"
    return {"ip": ip, "hostnames": dice.sample(NAMES, 2)}


def pod_spec(dice: random.Random) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": some(dice, container)}
    if dice.random() < 0.5:
        spec["volumes"] = some(dice, volume)
    if dice.random() < 0.3:
        spec["hostAliases"] = some(dice, host_alias)
    if dice.random() < 0.3:
        spec["tolerations"] = [{"key": dice.choice(NAMES), "operator": "Exists"}]
    if dice.random() < 0.3:
        spec["nodeSelector"] = {dice.choice(NAMES): dice.choice(TEXTS)}
    if dice.random() < 0.3:
        spec["hostNetwork"] = dice.random() < 0.5
    return spec


def labels(dice: random.Random) -> dict[str, str]:
    return {name: dice.choice(TEXTS) for name in dice.sample(NAMES, 2)}


def pod(dice: random.Random) -> dict[str, Any]:
    metadata = {"name": "p", "namespace": "default", "labels": labels(dice)}
    kind = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    return {**kind, "spec": pod_spec(dice)}


def patch(dice: random.Random) -> dict[str, Any]:
    """Return a patch: parts of another Pod, deletions and replacements among them."""
    spec = pod_spec(dice)
    for listed in (spec["containers"], spec.get("volumes", [])):
        for item in listed:
            if dice.random() < 0.2:
                # The key alone and the order: nothing else counts.
                name = item["name"]
                item.clear()
                item.update({"name": name, "$patch": "delete"})
            elif "image" in item and dice.random() < 0.3:
                item["image"] = None
    if dice.random() < 0.3:
        spec["nodeSelector"] = None
    if dice.random() < 0.2:
        spec["tolerations"] = None
    changed: dict[str, Any] = dict.fromkeys(dice.sample(NAMES, 1))
    return {"metadata": {"labels": labels(dice) | changed}, "spec": spec}


def canonical(value: Any, field: str = "") -> Any:
    """Sort merged lists by their keys; drop empty values."""
    if isinstance(value, dict):
        parts = {name: canonical(item, name) for name, item in value.items()}
        return {
            name: item for name, item in parts.items() if item not in ({}, [], None)
        }
    if isinstance(value, list):
        items = [canonical(item) for item in value]
        key = _KEYS.get(field)
        return sorted(items, key=lambda item: str(item[key])) if key else items
    return value


@pytest.mark.parametrize("seed", range(12))
def test_merges_equal_kubectls(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    given = [pod(dice) for _ in range(OBJECTS)]
    wanted = patch(dice)
    file = tmp_path / "objects.json"
    file.write_text("\n".join(json.dumps(one) for one in given))
    command = [str(find_kubectl()), "patch", "--local", "-f", str(file)]
    flags = ["--type", "strategic", "-p", json.dumps(wanted), "-o", "json"]
    done = subprocess.run(
        [*command, *flags], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    told = _documents(done.stdout)
    assert len(told) == OBJECTS
    for one, theirs in zip(given, told, strict=True):
        ours = merge(json.loads(json.dumps(one)), wanted)
        assert canonical(ours) == canonical(theirs), json.dumps([one, wanted])


def _documents(text: str) -> list[Any]:
    decoder, found, position = json.JSONDecoder(), [], 0
    while position < len(text.rstrip()):
        value, end = decoder.raw_decode(text, position)
        found.append(value)
        position = end + len(text[end:]) - len(text[end:].lstrip())
    return found
