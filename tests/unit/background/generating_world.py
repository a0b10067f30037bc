"""GeneratingPolicies in the small cluster of world.py, and their triggers.

Next: test_generating.py, test_generating_watches.py. May touch: the fake API server.
"""

import os
from typing import Any

from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.egress.namespaces import LiveNamespaces
from kyverno_mp.egress.objects import LiveObjects
from kyverno_mp.egress.resources import LiveResources
from kyverno_mp.program.ports import CelPorts, ClusterData
from kyverno_mp.settings.settings import Settings
from tests.unit.background.world import (
    CONFIG_MAPS,
    REQUESTS,
    SECRETS,
    Term,
    identity,
    stored,
    term,
)
from tests.unit.kube.fake_api import FakeApi

Json = Any
CEL = "/apis/policies.kyverno.io/v1beta1"
OUT = f"{CONFIG_MAPS.format('a')}/out"
CLONE = f"{SECRETS.format('a')}/source"
SOURCE = f"{SECRETS.format('z')}/source"
DATA = """generator.apply(object.metadata.namespace, [{
  "apiVersion": dyn("v1"), "kind": dyn("ConfigMap"),
  "metadata": dyn({"name": "out"}),
  "data": dyn({"from": object.metadata.annotations["value"]})}])"""
CLONES = """generator.apply(object.metadata.namespace,
  [resource.get("v1", "secrets", "z", "source")])"""
UPPER = DATA.replace('"out"', '"other"')


def data_of(api: FakeApi) -> ClusterData:
    client = api.client()
    kinds = LiveKinds(lambda: None, client)
    # This look-up loads the kinds that the leader would have published.
    assert kinds.plural_of("v1", "ConfigMap")
    objects = LiveObjects(client, kinds)
    return ClusterData(
        objects=objects,
        scopes=objects,
        random_bytes=os.urandom,
        cel=CelPorts(
            resources=LiveResources(lambda: client, kinds.plural_of),
            own_resources=LiveResources(
                lambda: client, kinds.plural_of, is_namespaced=True
            ),
            namespaces=LiveNamespaces(lambda _name: None, client),
        ),
    )


def held(api: FakeApi, **changes: Any) -> Any:
    given = {"settings": Settings(namespace="kyverno"), **changes}
    return term(api, cluster_data=data_of(api), **given)


def policy(  # noqa: PLR0913 - the parts of an object
    api: FakeApi,
    *generations: str,
    name: str = "p",
    namespace: str = "",
    generation: int = 1,
    operations: tuple[str, ...] = ("CREATE", "UPDATE"),
    sync: bool = True,
    evaluation: Json = None,
    **spec: Json,
) -> Json:
    """Store a policy on ConfigMaps with the label ``team``."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": ["pods"],
    }
    constraints = {
        "resourceRules": [rule],
        "objectSelector": {"matchLabels": {"team": "blue"}},
    }
    given = {
        "matchConstraints": constraints,
        "generate": [{"expression": one} for one in generations or (DATA,)],
        "evaluation": {"synchronize": {"enabled": sync}, **(evaluation or {})},
        **spec,
    }
    base = f"{CEL}/namespaces/{namespace}/namespaced" if namespace else f"{CEL}/"
    return api.put(
        f"{base}generatingpolicies/{name}",
        apiVersion="policies.kyverno.io/v1beta1",
        kind="NamespacedGeneratingPolicy" if namespace else "GeneratingPolicy",
        metadata={"generation": generation},
        spec=given,
    )


def trigger(
    api: FakeApi, name: str = "t", *, value: str = "1", team: str = "blue"
) -> Json:
    """Store a Pod in namespace ``a``."""
    return api.put(
        f"/api/v1/namespaces/a/pods/{name}",
        apiVersion="v1",
        kind="Pod",
        metadata={"labels": {"team": team}, "annotations": {"value": value}},
    )


def request(  # noqa: PLR0913 - the parts of a request
    api: FakeApi,
    raw: Json,
    *,
    name: str = "ur",
    policy_name: str = "p",
    operation: str = "CREATE",
    deletes: bool = False,
    carried: bool = False,
) -> None:
    """Store an UpdateRequest as the leader creates it from a recorded review."""
    review: Json = {
        "uid": "1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": raw["metadata"]["name"],
        "namespace": "a",
        "operation": operation,
        "userInfo": {"username": "alice"},
    }
    if carried:
        review["oldObject"] = raw
    rule = {"rule": "p", "trigger": identity(raw), "deleteDownstream": deletes}
    api.put(
        f"{REQUESTS}/{name}",
        apiVersion="kyverno.io/v2",
        kind="UpdateRequest",
        spec={
            "requestType": "cel-generate",
            "policy": policy_name,
            "ruleContext": [rule],
            "context": {
                "admissionRequestInfo": {
                    "operation": operation,
                    "admissionRequest": review,
                }
            },
        },
    )


def source(api: FakeApi, value: str = "1") -> Json:
    """Store the source that policies clone, beside another object of its kind."""
    return api.put(SOURCE, apiVersion="v1", kind="Secret", data={"from": value})


def generated(api: FakeApi, one: Term, **changes: Any) -> Json:
    """Let a new trigger generate an object; return the trigger."""
    raw = trigger(api)
    request(api, raw, **changes)
    one.settle()
    return raw


def content(api: FakeApi, path: str = OUT) -> str | None:
    found = stored(api, path)
    return None if found is None else found["data"]["from"]
