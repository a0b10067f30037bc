"""A namespaced policy reaches only its own namespace, however a path is written."""

import pytest

from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_store import PolicyStore, exception_filter
from kyverno_mp.program.ports import ApiRequest, ClusterData, ObjectQuery
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.jsonvalue import Json
from tests.fuzz.bench import Bench, pod

RULE = """
apiVersion: kyverno.io/v1
kind: Policy
metadata: {name: p, namespace: default}
spec:
  validationFailureAction: Enforce
  background: false
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Pod]}}]}
    context: [CONTEXT]
    validate:
      message: m
      deny:
        conditions:
          all: [{key: "{{ to_string(found) }}", operator: Equals, value: "nothing"}]
"""


class Cluster:
    """A cluster that answers every query and records the queries."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        assert deadline_ns
        self.asked.append(request.path or request.url)
        return {"secret": "s"}

    def config_map(self, namespace: str, name: str, deadline_ns: int) -> Json:
        assert deadline_ns
        self.asked.append(f"{namespace}/{name}")
        return {"data": {"secret": "s"}}


def judge(context: str, **annotations: str) -> tuple[bool, list[str]]:
    """Judge a Pod with annotations; return (allowed, queries to the cluster)."""
    cluster = Cluster()
    cluster_data = ClusterData(config_maps=cluster, api_calls=cluster)
    bench = Bench(RULE.replace("CONTEXT", context), cluster_data=cluster_data)
    made = pod()
    made["metadata"]["annotations"] = annotations
    response = bench.ask(made)
    assert "webhook.defect" not in bench.records.errors
    return response["allowed"], cluster.asked


CALL = (
    "{name: found, apiCall:"
    ' {urlPath: "{{ request.object.metadata.annotations.path }}"}}'
)
MAP = (
    "{name: found, configMap: {name: m, namespace:"
    ' "{{ request.object.metadata.annotations.namespace }}"}}'
)


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/kube-system/secrets",
        "/api/v1/namespaces/default/../kube-system/secrets",
        "/api/v1/namespaces/default/pods/../../kube-system/secrets",
        "/api/v1//namespaces//kube-system/secrets",
        "//api/v1/namespaces/kube-system/secrets",
        "/api/v1/namespaces/default/%2e%2e/kube-system/secrets",
        "/api/v1/namespaces/default%2f..%2fkube-system/secrets",
        "/api/v1/namespaces/kube-system/secrets?x=/../../default",
        "/api/v1/namespaces/kube-system/secrets#/../../default",
        "/api/v1/namespaces/default/..\\..\\kube-system",
        "/api/v1/secrets",
        "/api/v1/pods?x=/api/v1/namespaces/default",
        "/version",
        "",
    ],
)
def test_api_calls_stay_in_the_namespace(path: str) -> None:
    """CVE-2026-22039 (GHSA-8p9x-46gm-qfx2): the substituted path is checked."""
    assert judge(CALL, path=path) == (False, [])


def test_api_calls_within_the_namespace_are_allowed() -> None:
    """CVE-2026-22039: the check must not block allowed calls."""
    path = "/api/v1/namespaces/default/pods?limit=1"
    assert judge(CALL, path=path) == (True, [path])


@pytest.mark.parametrize("namespace", ["kube-system", "default/../kube-system", "*"])
def test_config_maps_stay_in_the_namespace(namespace: str) -> None:
    """CVE-2026-41068 (GHSA-cvq5-hhx3-f99p): reads of ConfigMaps are checked, too."""
    assert judge(MAP, namespace=namespace) == (False, [])


def test_namespaced_policies_cannot_call_services() -> None:
    """Namespaced policies cannot call services.

    GHSA-fmqp-4wfc-w3v7, GHSA-qr4g-8hrp-c4rw, GHSA-459x-q9hg-4gpq.
    """
    call = (
        "{name: found, apiCall: {method: GET, service: {url:"
        ' "http://169.254.169.254/latest/meta-data"}}}'
    )
    assert judge(call) == (False, [])


class Objects:
    """Objects of all namespaces; records the queries."""

    def __init__(self) -> None:
        self.asked: list[ObjectQuery] = []

    def objects(self, asked: ObjectQuery, deadline_ns: int) -> list[Json]:
        assert deadline_ns
        self.asked.append(asked)
        metadata = {"name": "m", "namespace": "kube-system"}
        raw = {"kind": asked.kind, "metadata": metadata, "data": {"secret": "s"}}
        return [{"apiVersion": "v1", **raw}]


CEL = """
apiVersion: kyverno.io/v1
kind: Policy
metadata: {name: p, namespace: default}
spec:
  validationFailureAction: Enforce
  background: false
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate:
      cel:
        PARAMS
        expressions: [{expression: "EXPRESSION", message: m}]
"""
PARAMS = "paramKind: {apiVersion: v1, kind: Secret}"


@pytest.mark.parametrize(
    "reference",
    [
        "{name: m, namespace: kube-system, parameterNotFoundAction: Deny}",
        "{name: m, parameterNotFoundAction: Deny}",
        "{selector: {}, parameterNotFoundAction: Deny}",
        "{selector: {}, namespace: kube-system, parameterNotFoundAction: Deny}",
    ],
)
def test_parameters_stay_in_the_namespace(reference: str) -> None:
    """CVE-2026-41068 (GHSA-cvq5-hhx3-f99p): CEL's parameters are checked, too."""
    objects = Objects()
    params = f"{PARAMS}\n        paramRef: {reference}"
    text = CEL.replace("PARAMS", params).replace(
        "EXPRESSION", "params.data.secret=='s'"
    )
    response = Bench(text, cluster_data=ClusterData(objects=objects)).ask(pod())
    assert response["allowed"] is False
    assert {one.namespace for one in objects.asked} <= {"default"}


@pytest.mark.parametrize(
    "expression",
    [
        "http.Get('http://169.254.169.254/latest').size() > 0",
        "http.Post('http://169.254.169.254/latest', {}).size() > 0",
        "http.Client('pem').Get('https://kubernetes.default').size() > 0",
    ],
)
def test_cel_of_namespaced_policies_has_no_http_library(expression: str) -> None:
    """CVE-2026-4789 (GHSA-rggm-jjmc-3394): a policy's author could call any address."""
    text = CEL.replace("PARAMS", "").replace("EXPRESSION", expression)
    response = Bench(text).ask(pod())
    assert response["allowed"] is False
    assert "undeclared reference to 'http'" in " ".join(
        response["status"]["message"].split()
    )


GUARDED = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
spec:
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate: {failureAction: Enforce, message: m, pattern: {metadata: {name: x}}}
"""
EXCEPTION = """
apiVersion: kyverno.io/v2
kind: PolicyException
metadata: {name: e, namespace: NAMESPACE}
spec:
  exceptions: [{policyName: p, ruleNames: [r]}]
  match: {any: [{resources: {kinds: [Pod]}}]}
"""


@pytest.mark.parametrize(
    ("settings", "namespace", "counts"),
    [
        (Settings(), "default", False),
        (Settings(), "kyverno", False),
        (Settings(exception_namespace="security"), "default", False),
        (Settings(exception_namespace="security"), "security", True),
        (Settings(exception_namespace="*"), "default", True),
        (
            Settings(exception_namespace="*", policy_exceptions=False),
            "default",
            False,
        ),
        (Settings(standalone=True), "default", True),
    ],
)
def test_exceptions_apply_only_in_configured_namespaces(
    settings: Settings,
    namespace: str,
    counts: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """CVE-2024-48921 (GHSA-qjvc-p88j-j9rm): exceptions of any namespace applied."""
    library = PolicyStore(exception_filter(settings))
    files = {"p.yaml": GUARDED, "e.yaml": EXCEPTION.replace("NAMESPACE", namespace)}
    changed = {name: text.encode() for name, text in files.items()}
    policy_set = library.update(Changes(changed, ()))
    without = PolicyStore(lambda _: False).update(Changes(changed, ()))
    assert (policy_set.encoded != without.encoded) is counts
    assert any("is ignored" in text for text in policy_set.problems) is not counts
