"""The commands that talk to a cluster, run as a user runs them, on a real one."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.api import Api
from tests.e2e.conftest import Cluster

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def run(
    cluster: Cluster, *arguments: object, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run kyverno-mp with the cluster's kubeconfig; the exit code must be ``code``."""
    done = subprocess.run(
        [sys.executable, "-m", "kyverno_mp", *map(str, arguments)],
        env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    """Give a namespace of the test's own, labelled as of team a."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    metadata = {"name": name, "labels": {"team": "a"}}
    api.create("/api/v1/namespaces", {"metadata": metadata})
    yield name
    api.ask("DELETE", f"/api/v1/namespaces/{name}")


def version(name: str, *, storage: bool) -> dict[str, Any]:
    spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": spec}}
    return {
        "name": name,
        "served": True,
        "storage": storage,
        "schema": {"openAPIV3Schema": schema},
    }


def definition(group: str, *, scope: str, old_is_stored: bool) -> dict[str, Any]:
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget"}
    versions = [
        version("v1", storage=not old_is_stored),
        version("v1alpha1", storage=old_is_stored),
    ]
    spec = {"group": group, "scope": scope, "names": names, "versions": versions}
    return {"metadata": {"name": f"widgets.{group}"}, "spec": spec}


@pytest.mark.parametrize("scope", ["Namespaced", "Cluster"])
def test_migrate(cluster: Cluster, api: Api, scope: str) -> None:
    """After it nothing in etcd needs the old version: it can be taken away."""
    group = f"x{uuid.uuid4().hex[:8]}.example.org"
    name, path = f"widgets.{group}", f"{CRDS}/widgets.{group}"
    api.create(CRDS, definition(group, scope=scope, old_is_stored=True))
    wait_established(api, path)
    inside = "/namespaces/default" if scope == "Namespaced" else ""
    widgets = f"/apis/{group}/v1alpha1{inside}/widgets"
    # More than a page.
    for number in range(520):
        api.create(
            widgets,
            {
                "apiVersion": f"{group}/v1alpha1",
                "kind": "Widget",
                "metadata": {"name": f"w{number}"},
                "spec": {"size": number},
            },
        )
    try:
        already = run(cluster, "migrate", "--resource", name)
        assert "already up to date, nothing to do" in already.stdout

        found = api.get(path)
        found["spec"] = definition(group, scope=scope, old_is_stored=False)["spec"]
        replace(api, path, found)
        assert api.get(path)["status"]["storedVersions"] == ["v1alpha1", "v1"]
        # K8S: the server's handlers learn of it by a watch of their own.
        time.sleep(1)
        done = run(cluster, "migrate", "--resource", name)
        assert done.stdout.splitlines() == [
            f"migrating resource: {name} ...",
            "stored version: v1",
            "migrating resources...",
            "patching status...",
        ]
        found = api.get(path)
        assert found["status"]["storedVersions"] == ["v1"]
        found["spec"]["versions"].pop()
        replace(api, path, found)
        kept = api.get(f"/apis/{group}/v1{inside}/widgets?limit=1000")["items"]
        assert {one["spec"]["size"] for one in kept} == set(range(520))
    finally:
        api.ask("DELETE", path)


def test_migrate_of_what_is_not_there(cluster: Cluster) -> None:
    done = run(cluster, "migrate", "--resource", "nothing.example.org", code=1)
    assert "not found" in done.stderr


def test_migrate_of_nothing(cluster: Cluster) -> None:
    assert run(cluster, "migrate").stdout == ""


def replace(api: Api, path: str, raw: dict[str, Any]) -> None:
    status, body = api.ask("PUT", path, raw)
    assert status == 200, body


def wait_established(api: Api, path: str) -> None:
    for _ in range(200):
        conditions = api.get(path).get("status", {}).get("conditions", [])
        if any(
            c["type"] == "Established" and c["status"] == "True" for c in conditions
        ):
            return
    raise AssertionError(json.dumps(conditions))
