"""Policies in CEL on a real control plane, and ServiceAccounts as their triggers.

Takes: a connection, a namespace of the test. Next: test_mutating_policies.py,
test_generating_policies.py. May touch: policies, objects in that namespace.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import psutil

from tests.e2e.api import Api
from tests.e2e.background import Space
from tests.e2e.conftest import Cluster
from tests.e2e.product import Product
from tests.waiting import wait_for

Json = Any
_GROUP: Final = "/apis/policies.kyverno.io/v1beta1"


class Policies:
    """The policies of one test."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.paths: list[str] = []

    def put(
        self,
        space: Space,
        *,
        kind: str = "MutatingPolicy",
        namespaced: bool = False,
        **spec: Json,
    ) -> str:
        """Create a policy and wait until it is in force; return its path."""
        plural = f"{kind[:-1].lower()}ies"
        base = f"{_GROUP}/{plural}"
        if namespaced:
            kind = f"Namespaced{kind}"
            base = f"{_GROUP}/namespaces/{space.name}/namespaced{plural}"
        name = f"{space.name}-{len(self.paths)}"
        raw = {
            "apiVersion": "policies.kyverno.io/v1beta1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        self._api.create(base, raw)
        self.paths.append(f"{base}/{name}")
        wait_for(partial(self._is_ready, self.paths[-1]))
        return self.paths[-1]

    def _is_ready(self, path: str) -> bool:
        status = self._api.get(path).get("status") or {}
        return (status.get("conditionStatus") or {}).get("ready") is True


def matched(resource: str, *operations: str) -> Json:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": list(operations or ("CREATE", "UPDATE")),
        "resources": [resource],
    }
    return {"resourceRules": [rule]}


def inside(space: Space) -> Json:
    """Return the condition that limits a cluster policy to the test's namespace."""
    expression = f"request.namespace == '{space.name}'"
    return [{"name": "inside", "expression": expression}]


def put_triggers(cluster: Cluster, space: Space, names: Iterable[str]) -> None:
    """Create ServiceAccounts; a rejected one is retried until it is accepted."""
    with Api(cluster.access) as own:
        one = Space(own, space.name)
        for name in names:
            wait_for(partial(_is_accepted, one, name))


def _is_accepted(space: Space, name: str) -> bool:
    """Return whether it was accepted; an unavailable webhook denies it."""
    try:
        asked = {"metadata": {"name": name}}
        return space.api.ask("POST", space.accounts, asked)[0] == 201
    except OSError:
        # It is unknown whether it was accepted.
        space.api.close()
        return space.api.ask("GET", f"{space.accounts}/{name}")[0] == 200


def victim(running: Product, role: str) -> int:
    """Return the process to kill: for the webhook role, a worker."""
    pid = running.processes()[role]
    if role != "webhook":
        return pid
    workers = psutil.Process(pid).children()
    return workers[0].pid if workers else pid
