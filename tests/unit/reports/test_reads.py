"""Reads of context entries and expressions that the API server does not answer.

A failure means: a row is an error after an outage although a fresh scan would find a
result, until the scan interval has passed.
"""

from typing import Any

import pytest

from kyverno_mp.egress.resources import LiveResources
from kyverno_mp.limits import KUBE_ATTEMPTS_MAX
from kyverno_mp.program.ports import CelPorts
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.test_validating_policies import CALLS, vpol
from tests.unit.reports.world import (
    new_cluster,
    pod,
    policy,
    report_of,
    results,
    term,
)

Json = Any
MAP = "/api/v1/namespaces/a/configmaps/c"
READ = f"^GET {MAP}"
ENTRIES = {
    "configMap": {"name": "m", "configMap": {"name": "c", "namespace": "a"}},
    "apiCall": {"name": "m", "apiCall": {"urlPath": MAP}},
}


def reading(entry: Json) -> Json:
    """Return a policy that passes if the ConfigMap has ``k: v``."""
    condition = {"key": "{{ m.data.k }}", "operator": "NotEquals", "value": "v"}
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "context": [entry],
        "validate": {"deny": {"conditions": {"any": [condition]}}},
    }
    return policy("p", rule)


def statuses(api: FakeApi, raw: Json) -> list[str]:
    return [status for _, _, status in results(report_of(api, raw))]


@pytest.mark.parametrize(
    ("faults", "is_retried"), [([500] * KUBE_ATTEMPTS_MAX, True), ([403], False)]
)
@pytest.mark.parametrize("reader", [*ENTRIES, "resource", "namespaced"])
def test_outage_is_no_lasting_error(
    api: FakeApi, reader: str, faults: list[int], *, is_retried: bool
) -> None:
    """A denied read is an error until the next scan, as in upstream."""
    world = new_cluster(api)
    api.put(MAP, apiVersion="v1", kind="ConfigMap", data={"k": "v"})
    client = api.client()
    cel = CelPorts(
        resources=LiveResources(lambda: client, lambda _version, _kind: ""),
        own_resources=LiveResources(
            lambda: client, lambda _version, _kind: "", is_namespaced=True
        ),
    )
    if reader in ENTRIES:
        world.serve(reading(ENTRIES[reader]))
    else:
        namespace = "a" if reader == "namespaced" else ""
        calls = CALLS.replace("'a', ", "") if namespace else CALLS
        world.serve(vpol("v", calls, namespace=namespace))
    raw = pod(api, team="t")
    api.fault(READ, *faults)
    with term(api, world, cel=cel) as one:
        one.settle()
        assert "error" in statuses(api, raw)
        one.pass_s(60)
        assert ("error" in statuses(api, raw)) is not is_retried
        assert ("pass" in statuses(api, raw)) or not is_retried
        one.pass_s(3700)
        assert set(statuses(api, raw)) == {"pass"}
