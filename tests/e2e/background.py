"""Rules for the background pool on a real control plane, and their results.

ServiceAccounts are the triggers, because creating and deleting them is immediate;
ConfigMaps are the targets, because the background account can write them without a
further grant. Takes: a connection, a namespace of the test. Next: test_background.py,
test_background_faults.py. May touch: policies, objects in that namespace.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.e2e.api import Api
from tests.e2e.namespaces import end_namespace
from tests.waiting import unique, wait_for

BACKGROUND: Final = "kyverno-background-controller"
USER: Final = f":{BACKGROUND}"
POLICIES: Final = "/apis/kyverno.io/v1/clusterpolicies"
REQUESTS: Final = "/apis/kyverno.io/v2/namespaces/kyverno/updaterequests"
ROLES: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
POOL: Final = {"BACKGROUND_WORKERS": "4", "POD_NAME": "first"}
MATCHED: Final = {"team": "blue"}
_OWN: Final = frozenset({"kube-root-ca.crt"})
Json = Any


class Space:
    """One namespace, the policies that match in it, and its objects."""

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name
        self.maps = f"/api/v1/namespaces/{name}/configmaps"
        self.accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
        self.policies: list[str] = []

    def policy(self, *rules: Json, name: str = "p", **spec: Json) -> str:
        """Create a policy and wait until it is in force; return its path."""
        own = f"{self.name}-{name}"
        raw = {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": own},
            "spec": {"rules": list(rules), **spec},
        }
        self.policies.append(own)
        self.api.create(POLICIES, raw)
        wait_for(lambda: self.is_ready(own))
        return f"{POLICIES}/{own}"

    def is_ready(self, policy: str) -> bool:
        found = self.api.get(f"{POLICIES}/{policy}").get("status") or {}
        return any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in found.get("conditions") or ()
        )

    def rule(self, name: str = "r", **body: Json) -> Json:
        """Return a rule for the labelled ServiceAccounts of this namespace."""
        resources = {
            "kinds": ["ServiceAccount"],
            "namespaces": [self.name],
            "selector": {"matchLabels": MATCHED},
        }
        return {"name": name, "match": {"any": [{"resources": resources}]}, **body}

    def generate(self, rule: str = "r", /, **fields: Json) -> Json:
        """Return a rule that generates a ConfigMap with the name of its trigger."""
        target = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "{{ request.object.metadata.name }}",
            "namespace": self.name,
            "synchronize": True,
        }
        return self.rule(rule, generate={**target, **fields})

    def trigger(self, name: str = "t", **labels: str) -> str:
        """Create a trigger; return its path."""
        metadata = {"name": name, "labels": {**MATCHED, **labels}}
        self.api.create(self.accounts, {"metadata": metadata})
        return f"{self.accounts}/{name}"

    def put(self, name: str, **data: str) -> str:
        """Create a ConfigMap; return its path."""
        self.api.create(self.maps, {"metadata": {"name": name}, "data": data})
        return f"{self.maps}/{name}"

    def found(self, name: str) -> Json | None:
        """Return a ConfigMap, or None."""
        status, body = self.api.ask("GET", f"{self.maps}/{name}")
        return body if status == 200 else None

    def data(self, name: str) -> Json | None:
        """Return the content of a ConfigMap, or None."""
        found = self.found(name)
        return None if found is None else found.get("data") or {}

    def version(self, name: str) -> str:
        """Return the version of a ConfigMap."""
        found = self.found(name)
        return "" if found is None else str(found["metadata"]["resourceVersion"])

    def names(self) -> set[str]:
        """Return the names of all ConfigMaps except Kubernetes' own."""
        items = self.api.get(self.maps)["items"]
        return {one["metadata"]["name"] for one in items} - _OWN

    def requests(self) -> list[Json]:
        """Return the existing UpdateRequests."""
        found: list[Json] = self.api.get(REQUESTS)["items"]
        return found

    def await_data(self, name: str, **data: str) -> None:
        wait_for(lambda: self.data(name) == data)

    def await_done(self) -> None:
        """Wait until no request is left."""
        wait_for(lambda: not self.requests())


@contextlib.contextmanager
def space_in(api: Api, etcd_url: str | None = None) -> Iterator[Space]:
    """Yield a namespace; it is deleted with its policies."""
    made = Space(api, f"bg-{unique()}")
    api.create("/api/v1/namespaces", {"metadata": {"name": made.name}})
    try:
        yield made
    finally:
        for one in made.policies:
            api.ask("DELETE", f"{POLICIES}/{one}")
        for one in made.requests():
            api.ask("DELETE", f"{REQUESTS}/{one['metadata']['name']}")
        end_namespace(api, etcd_url, made.name)


def stays(condition: Callable[[], bool], seconds: float = 1.5) -> bool:
    """Return whether a condition holds for the whole time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not condition():
            return False
        time.sleep(0.1)
    return True
