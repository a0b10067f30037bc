"""Read rendered manifests, and compare them regardless of their origin."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
Key = tuple[str, str]
Document = dict[str, Any]
_BY_HELM = ("app.kubernetes.io/managed-by", "helm.sh/chart")


def documents_of(text: str) -> dict[Key, Document]:
    """Return documents by kind and name; duplicates are not allowed."""
    found: dict[Key, Document] = {}
    for one in yaml.load_all(text, Loader=yaml.CSafeLoader):
        if one is not None:
            key = one["kind"], one["metadata"]["name"]
            assert key not in found, key
            found[key] = one
    return found


def manifest(name: str) -> dict[Key, Document]:
    """Return the documents of a manifest in deploy/."""
    return documents_of((DEPLOY / name).read_text())


def plain(documents: dict[Key, Document]) -> dict[Key, Document]:
    """Remove Helm's additions, and parse JSON in ConfigMaps: its spacing may differ.

    Helm itself creates the namespace of a release.
    """
    return {
        key: _plain(document)
        for key, document in documents.items()
        if document["kind"] != "Namespace"
    }


def _plain(document: Document) -> Document:
    metadata = dict(document["metadata"])
    labels = metadata.pop("labels", {})
    annotations = metadata.pop("annotations", {})
    kept = {key: value for key, value in labels.items() if key not in _BY_HELM}
    noted = {
        key: value
        for key, value in annotations.items()
        if key != "helm.sh/resource-policy"
    }
    found = {**document, "metadata": {**metadata, "labels": kept, "notes": noted}}
    if document["kind"] == "ConfigMap":
        found["data"] = {key: _read(value) for key, value in document["data"].items()}
    return found


def _read(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def strings(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string below a value, with its path."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from strings(one, f"{path}.{key}")
    elif isinstance(value, list):
        for one in value:
            yield from strings(one, path)
    elif isinstance(value, str):
        yield path, value


def assert_all_in(documents: dict[Key, Document], namespace: str) -> None:
    """Assert that all references to our namespace have this name."""
    seen = set()
    for document in documents.values():
        if document["kind"] == "CustomResourceDefinition":
            continue
        for path, text in strings(document):
            if path.endswith(".namespace"):
                assert text == namespace, (document["kind"], path)
                seen.add(path)
            # Filters of the ConfigMap; Secrets' names and the audience are constant.
            assert ",kyverno," not in text, path
            assert '"kyverno"' not in text, path
    assert {".metadata.namespace", ".subjects.namespace"} <= seen
    data = documents["ConfigMap", "kyverno"]["data"]
    assert f"[*/*,{namespace},*]" in data["resourceFilters"].split()
    (selector,) = json.loads(data["webhooks"])["namespaceSelector"]["matchExpressions"]
    assert selector["values"] == ["kube-system", namespace]
    deployment = documents["Deployment", "kyverno-admission-controller"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one for one in container["env"]}
    own = env["KYVERNO_MP_NAMESPACE"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert own == "metadata.namespace"
    secrets = {env[f"KYVERNO_MP_{word}_SECRET_NAME"]["value"] for word in ("CA", "TLS")}
    roles = [one for (kind, _), one in documents.items() if kind == "Role"]
    granted = {
        name
        for role in roles
        for rule in role["rules"]
        if rule["resources"] == ["secrets"]
        for name in rule.get("resourceNames", ())
    }
    assert secrets <= granted
