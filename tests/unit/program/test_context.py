"""The JSON context: built-in variables, deferred entries, foreach scopes."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed, KubeUnavailable
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.expr.template.link import link_document
from kyverno_mp.ir.rules import (
    ApiCallEntryIR,
    ConfigMapEntryIR,
    ContextEntryIR,
    GlobalReferenceEntryIR,
    ImageRegistryEntryIR,
    InvalidEntryIR,
    VariableEntryIR,
)
from kyverno_mp.limits import CONTEXT_BYTES_MAX, CONTEXT_NESTING_MAX
from kyverno_mp.program.context.entries import link_entries
from kyverno_mp.program.context.rule_context import RequestContext, RuleContext
from kyverno_mp.program.creation import as_created
from kyverno_mp.program.ports import OFFLINE, ApiRequest, ClusterData
from kyverno_mp.program.request import Request

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "labels": {"app": "x"}},
    "spec": {"containers": [{"name": "c", "image": "nginx:1.2"}]},
}


def scope_of(
    request: Request,
    cluster_data: ClusterData = OFFLINE,
    policy_namespace: str = "",
    rule: str = "",
) -> RuleContext:
    runtime = Runtime(
        now=lambda: datetime(2026, 1, 2, tzinfo=UTC),
        monotonic_ns=lambda: 0,
        ints_are_numbers=request.ints_are_numbers,
    )
    return RequestContext(request, cluster_data, runtime).rule_scope(
        rule, policy_namespace=policy_namespace
    )


def ask(scope: RuleContext, text: str) -> Any:
    return link_document(parse_document(text))(scope)


def failure(scope: RuleContext, query: str) -> str:
    """Return the text of a failed query, without the position."""
    with pytest.raises(ExpressionFailed) as caught:
        ask(scope, f"{{{{ {query} }}}}")
    prefix = f"failed to resolve {query} at path : "
    assert caught.value.message.startswith(prefix)
    return caught.value.message.removeprefix(prefix)


def variable(name: str, **parts: Any) -> VariableEntryIR:
    return VariableEntryIR(
        name, **{key: parse_document(value) for key, value in parts.items()}
    )


def with_entries(
    *entries: ContextEntryIR, cluster_data: ClusterData = OFFLINE
) -> RuleContext:
    scope = scope_of(Request(object=POD), cluster_data)
    scope.add_entries(entries)
    return scope


# Built-in variables.


def test_admission_request() -> None:
    """The whole AdmissionRequest is available, with roles; the review is unchanged."""
    review = {"uid": "u", "operation": "CREATE", "object": POD}
    request = Request(
        object=POD,
        review_request=review,
        ints_are_numbers=True,
        username="system:serviceaccount:ns1:sa1",
        roles=("ns:r",),
    )
    scope = scope_of(request)
    assert ask(scope, "{{ request.roles }}") == ["ns:r"]
    missing = 'JMESPath query failed: Unknown key "clusterRoles" in path'
    assert failure(scope, "request.clusterRoles") == missing
    assert ask(scope, "{{ request.clusterRoles || `[]` }}") == []
    assert ask(scope, "{{ request.oldObject }}") is None
    assert ask(scope, "{{ request.object.metadata.labels.app }}") == "x"
    assert ask(scope, "{{ serviceAccountName }}/{{ serviceAccountNamespace }}") == (
        "sa1/ns1"
    )
    assert set(review) == {"uid", "operation", "object"}


@pytest.mark.parametrize(
    ("username", "name", "namespace"),
    [
        ("alice", "", ""),
        ("an-unrelated-long-namens:sa", "sa", "ns"),
        ("system:serviceaccount:ns", "", ""),
        ("", "", ""),
    ],
)
def test_service_account_names(username: str, name: str, namespace: str) -> None:
    """The prefix is removed by its length, not by its content."""
    scope = scope_of(Request(username=username, has_user_info=True))
    assert ask(scope, "{{ serviceAccountName }}|{{ serviceAccountNamespace }}") == (
        f"{name}|{namespace}"
    )


def test_background_context() -> None:
    """Without a review, only object, namespace and operation are available."""
    scope = scope_of(Request(object=POD, namespace="n"))
    assert set(scope.root["request"]) == {"object", "namespace", "operation"}
    assert "serviceAccountName" not in scope.root
    deleted = scope_of(Request(operation="DELETE", old_object=POD))
    assert "object" not in deleted.root["request"]
    assert ask(deleted, "{{ request.object.kind }}") == "Pod"


def test_images_are_extracted_on_demand() -> None:
    """``images`` costs nothing unless a rule uses it."""
    scope = scope_of(Request(object=POD))
    assert "images" not in scope.root
    assert ask(scope, "{{ my.images || 'none' }}") == "none"
    assert "images" not in scope.root
    assert ask(scope, "{{ images.containers.c.tag }}") == "1.2"
    empty = scope_of(Request(object={"kind": "ConfigMap"}))
    assert failure(empty, "images") == (
        'JMESPath query failed: Unknown key "images" in path'
    )


def test_injected_values() -> None:
    """Injected values of the CLI are merged.

    Values for a rule are visible to that rule only.
    """
    request = Request(
        object=POD,
        variables={"dictionary": {"data": {"env": "dev"}}},
        rule_variables={"r": {"dictionary": {"data": {"n": 1}}}},
    )
    scope = scope_of(request, rule="r")
    assert ask(scope, "{{ dictionary.data }}") == {"env": "dev", "n": 1}
    assert ask(scope_of(request, rule="q"), "{{ dictionary.data }}") == {"env": "dev"}
    assert request.variables == {"dictionary": {"data": {"env": "dev"}}}


# variable entries.


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ({"value": "{{ request.operation }}!"}, "CREATE!"),
        ({"value": {"a": [1]}}, {"a": [1.0]}),
        ({"value": {"a": 1}, "jmes_path": "a"}, 1.0),
        ({"value": {"a": 1}, "jmes_path": "b", "default": "d"}, "d"),
        ({"jmes_path": "request.object.kind"}, "Pod"),
        ({"jmes_path": "request.zz", "default": "d"}, "d"),
        ({"jmes_path": "request.zz || `null`", "default": "d"}, "d"),
        ({"jmes_path": "request.{{ 'operation' }}"}, "CREATE"),
        ({"default": "d"}, "d"),
        ({"value": None, "jmes_path": "request.operation"}, "CREATE"),
    ],
)
def test_variable_values(parts: dict[str, Any], wanted: Any) -> None:
    """value, jmesPath and default combine as in docs/behaviour/engine 3.7."""
    got = ask(with_entries(variable("v", **parts)), "{{ v }}")
    assert (got, type(got)) == (wanted, type(wanted))


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        (
            {"value": {"a": None}, "jmes_path": "a", "default": "d"},
            "failed to add context entry for variable v since it evaluated to nil",
        ),
        (
            {"value": {"a": 1}, "jmes_path": "b"},
            'failed to apply jmespath b to variable <nil>: Unknown key "b" in path',
        ),
        (
            {"jmes_path": "request.zz"},
            (
                "failed to apply jmespath request.zz to variable <nil>:"
                ' JMESPath query failed: Unknown key "zz" in path'
            ),
        ),
        (
            {"value": "{{ zz }}"},
            (
                "failed to substitute variables in context entry v {{ zz }}: failed to"
                ' resolve zz at path : JMESPath query failed: Unknown key "zz" in path'
            ),
        ),
        (
            {"jmes_path": "{{ request.object }}"},
            "jmespath value must be a string v {{ request.object }}: <nil>",
        ),
    ],
)
def test_variable_errors(parts: dict[str, Any], wanted: str) -> None:
    """The text names the failed entry."""
    assert failure(with_entries(variable("v", **parts)), "v") == wanted


def test_entries_load_in_order_and_on_demand() -> None:
    """Later entries can read earlier ones, not the reverse; unused ones never run."""
    scope = with_entries(
        variable("a", value="1"),
        variable("b", value="{{ a }}2"),
        variable("broken", value="{{ zz }}"),
        variable("early", jmes_path="late", default="none"),
        variable("late", value="l"),
    )
    assert ask(scope, "{{ b }}") == "12"
    assert set(scope.root) == {"request", "a", "b"}
    assert ask(scope, "{{ early }}") == "none"
    assert ask(scope, "{{ x.broken || 'no' }}") == "no"
    assert "Unknown key" in failure(scope, "broken.x")


def test_entry_can_replace_itself() -> None:
    """A name declared twice: the later one reads the earlier value."""
    scope = with_entries(
        variable("a", value="1"), variable("a", jmes_path="join('', [a, '2'])")
    )
    assert ask(scope, "{{ a }}") == "12"


def test_entry_has_precedence_over_a_mock() -> None:
    """A loadable entry replaces an injected value when it is first mentioned."""
    request = Request(object=POD, variables={"v": {"mock": True}})
    scope = scope_of(request)
    scope.add_entries([variable("v", value={"real": True})])
    assert ask(scope, "{{ v }}") == {"real": True}


def test_long_chains_terminate() -> None:
    """An endless chain of entries is an error of the policy."""
    length = CONTEXT_NESTING_MAX + 10
    chain = [variable("v0", value="x")]
    chain += [variable(f"v{i}", value=f"{{{{ v{i - 1} }}}}") for i in range(1, length)]
    assert ask(with_entries(*chain), "{{ v20 }}") == "x"
    with pytest.raises(BudgetExceeded):
        ask(with_entries(*chain), f"{{{{ v{length - 1} }}}}")


def test_size_limit() -> None:
    """Entries together may not exceed Kyverno's maxContextSize."""
    half = "x" * (CONTEXT_BYTES_MAX // 2)
    scope = with_entries(variable("a", value=half), variable("b", value=half))
    assert len(ask(scope, "{{ a }}")) == len(half)
    size = 2 * (len(half) + 2)
    assert failure(scope, "b") == (
        f"context size limit exceeded: {size} bytes exceeds limit of"
        f" {CONTEXT_BYTES_MAX} bytes"
    )


def test_bad_entries_fail_at_registration() -> None:
    """An entry without a type or with an invalid name fails the rule."""
    for entry in (InvalidEntryIR("e"), variable("e(", value=1)):
        with pytest.raises(ExpressionFailed) as caught:
            scope_of(Request()).add_entries([entry])
        assert caught.value.message == (
            f"failed to create deferred loader for context entry {entry.name}"
        )


# Entries that reach the cluster data.


class Cluster:
    """All ports with fixed data; ``asked`` records the queries."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def config_map(self, namespace: str, name: str, deadline_ns: int) -> Any:
        del deadline_ns
        self.asked.append((namespace, name))
        if name == "missing":
            raise ExpressionFailed("t", 'configmaps "missing" not found')
        return {"data": {"k": "v"}, "metadata": {"name": name}, "binaryData": {}}

    def call(self, request: ApiRequest, deadline_ns: int) -> Any:
        assert deadline_ns == 0
        self.asked.append(request)
        if request.path == "/down":
            raise KubeUnavailable("t", "failed to GET resource with raw url: /down: x")
        return {"items": [1, 2]}

    def image_data(
        self, reference: str, deadline_ns: int, *, is_tenants: bool = False
    ) -> Any:
        assert (deadline_ns, is_tenants) == (0, False)
        return {"image": reference, "configData": {"size": 5}}

    def opens(self, name: str, namespace: str) -> bool:
        return (name, namespace) == ("known", "team")

    def entry(self, name: str) -> Any:
        self.asked.append(name)
        if name != "known":
            raise ExpressionFailed("t", f"failed to fetch entry key={name}")
        return [len(self.asked)]


def cluster_data_of(cluster: Cluster) -> ClusterData:
    return ClusterData(
        config_maps=cluster, api_calls=cluster, images=cluster, global_context=cluster
    )


def config_map(name: str, namespace: str | None = None) -> ConfigMapEntryIR:
    return ConfigMapEntryIR(
        "cm",
        parse_document(name),
        None if namespace is None else parse_document(namespace),
    )


def test_config_map() -> None:
    """Data and metadata, read once; the namespace defaults to ``default``."""
    cluster = Cluster()
    scope = with_entries(config_map("{{ 'm' }}"), cluster_data=cluster_data_of(cluster))
    assert ask(scope, "{{ cm.data.k }}{{ cm.metadata.name }}") == "vm"
    assert ask(scope, "{{ cm }}") == {"data": {"k": "v"}, "metadata": {"name": "m"}}
    assert cluster.asked == [("default", "m")]


def test_config_map_errors() -> None:
    """A missing ConfigMap, and the namespaces that a namespaced Policy can read."""
    scope = with_entries(
        config_map("missing", "n"), cluster_data=cluster_data_of(Cluster())
    )
    assert failure(scope, "cm.data") == (
        "failed to retrieve config map for context entry cm: failed to get configmap"
        ' n/missing : configmaps "missing" not found'
    )
    own = scope_of(Request(), cluster_data_of(Cluster()), policy_namespace="n")
    own.add_entries([config_map("m", "other")])
    assert failure(own, "cm") == (
        "failed to retrieve config map for context entry cm: context entry cm:"
        ' configMap namespace "other" is different from policy namespace "n"'
    )
    cluster = Cluster()
    own = scope_of(Request(), cluster_data_of(cluster), policy_namespace="n")
    own.add_entries([config_map("m")])
    assert ask(own, "{{ cm.data.k }}") == "v"
    assert cluster.asked == [("n", "m")]


def api_call(call: dict[str, Any], **how: Any) -> ApiCallEntryIR:
    return ApiCallEntryIR("api", parse_document(call), **how)


def test_api_call() -> None:
    """Variables in the mapping are replaced, jmesPath applies, numbers are float64."""
    cluster = Cluster()
    entry = api_call(
        {
            "urlPath": "/api/v1/namespaces/{{ 'n' }}/pods",
            "jmesPath": "sum(items)",
            "data": [{"key": "k", "value": "{{ request.operation }}"}],
        }
    )
    assert (
        ask(with_entries(entry, cluster_data=cluster_data_of(cluster)), "{{ api }}")
        == 3.0
    )
    assert cluster.asked == [
        ApiRequest(method="GET", path="/api/v1/namespaces/n/pods", body={"k": "CREATE"})
    ]


def test_service_call() -> None:
    """A service gets a body on POST only."""
    cluster = Cluster()
    service = {"url": "https://s", "headers": [{"key": "a", "value": "b"}]}
    data = [{"key": "k", "value": 1}]
    for method, body in (("GET", None), ("POST", {"k": 1})):
        entry = api_call({"service": service, "method": method, "data": data})
        ask(with_entries(entry, cluster_data=cluster_data_of(cluster)), "{{ api }}")
        assert cluster.asked.pop() == ApiRequest(
            method=method, url="https://s", headers=(("a", "b"),), body=body
        )
    entry = api_call({"service": service, "method": "PUT"})
    assert failure(
        with_entries(entry, cluster_data=cluster_data_of(cluster)), "api"
    ) == ("failed to fetch data for APICall: invalid request type PUT for APICall api")


def test_api_call_default() -> None:
    """The default replaces a failed call, without jmesPath; a bad variable fails."""
    cluster_data = cluster_data_of(Cluster())
    down = {"urlPath": "/down", "jmesPath": "items"}
    entry = api_call(down, default={"d": 1}, has_default=True)
    assert ask(with_entries(entry, cluster_data=cluster_data), "{{ api }}") == {
        "d": 1.0
    }
    assert failure(with_entries(api_call(down), cluster_data=cluster_data), "api") == (
        "failed to fetch data for APICall: failed to GET resource with raw url:"
        " /down: x"
    )
    bad = api_call({"urlPath": "/{{ zz }}"}, default=1, has_default=True)
    assert failure(with_entries(bad, cluster_data=cluster_data), "api") == (
        "failed to fetch data for APICall: failed to substitute variables in context"
        " entry api /{{ zz }}: failed to resolve zz at path /urlPath: JMESPath query"
        ' failed: Unknown key "zz" in path'
    )


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/api/v1/namespaces/n/../other/secrets", "refers to namespace other"),
        ("/api/v1//namespaces/other/pods", "refers to namespace other"),
        ("/api/v1/nodes", "does not contain a namespace segment"),
        ("/api/v1/namespaces", "does not contain a namespace segment"),
        ("", "path . does not contain a namespace segment"),
    ],
)
def test_namespaced_policies_cannot_call_other_namespaces(
    path: str, wanted: str
) -> None:
    """A Policy must not read other namespaces through its apiCall."""
    cluster = Cluster()
    scope = scope_of(Request(), cluster_data_of(cluster), policy_namespace="n")
    scope.add_entries([api_call({"urlPath": path, "service": {"url": "https://s"}})])
    assert wanted in failure(scope, "api")
    assert cluster.asked == []


def test_image_registry_and_global_reference() -> None:
    """Both apply their jmesPath; a missing global entry is named."""
    cluster_data = cluster_data_of(Cluster())
    image = ImageRegistryEntryIR(
        "img", parse_document("{{ 'nginx' }}"), parse_document("configData.size")
    )
    assert ask(with_entries(image, cluster_data=cluster_data), "{{ img }}") == 5.0
    known = GlobalReferenceEntryIR("g", parse_document("known"), parse_document("[0]"))
    assert ask(with_entries(known, cluster_data=cluster_data), "{{ g }}") == 1.0
    unknown = GlobalReferenceEntryIR("g", parse_document("other"))
    assert failure(with_entries(unknown, cluster_data=cluster_data), "g") == (
        "failed to marshal APICall data for context entry g: failed to fetch entry"
        " key=other"
    )


def test_entries_without_a_port_are_not_registered() -> None:
    """Offline they are unknown keys, unless the CLI has a value of that name."""
    scope = with_entries(config_map("m"), api_call({"urlPath": "/x"}))
    assert failure(scope, "cm") == 'JMESPath query failed: Unknown key "cm" in path'
    assert "Unknown key" in failure(scope, "api")


# foreach.


def test_elements_and_checkpoints() -> None:
    """Inner elements overwrite outer elements and are then removed."""
    scope = scope_of(Request(object=POD))
    before = scope.root
    outer = scope.checkpoint()
    scope.push_element(0, {"x": 1}, 0)
    inner = scope.checkpoint()
    scope.push_element(2, "e", 1)
    assert ask(scope, "{{ element }}{{ elementIndex }}{{ element1 }}") == "e2e"
    assert ask(scope, "{{ element0.x }}{{ elementIndex0 }}") == "10"
    scope.restore(inner)
    assert ask(scope, "{{ element.x }}") == 1
    scope.restore(outer)
    assert scope.root is before


def test_entries_of_a_loop_are_computed_for_each_element() -> None:
    """Entries inside a loop are evaluated again; those outside keep their value."""
    cluster = Cluster()
    scope = with_entries(
        config_map("m"),
        variable("outer", value="o"),
        cluster_data=cluster_data_of(cluster),
    )
    scope.add_entries(
        [GlobalReferenceEntryIR("g", parse_document("known"), parse_document("[0]"))]
    )
    entries = link_entries([variable("inner", value="{{ element }}-{{ outer }}")])
    token = scope.checkpoint()
    seen = []
    for index, element in enumerate(["a", "b"]):
        scope.restore(token)
        scope.push_element(index, element, 0)
        scope.add_entries(entries)
        seen.append(ask(scope, "{{ inner }} {{ cm.data.k }} {{ g }}"))
    assert seen == ["a-o v 2", "b-o v 3"]
    assert cluster.asked == [("default", "m"), "known", "known"]
    scope.restore(token)
    assert "Unknown key" in failure(scope, "inner")
    assert ask(scope, "{{ outer }}") == "o"


# Replacing the object.


def test_set_object_does_not_change_the_request() -> None:
    """Rules of one request share its data, so a change creates a new dict."""
    request = Request(object=POD, review_request={"object": POD}, ints_are_numbers=True)
    scope = scope_of(request)
    scope.set_object({"kind": "Other"})
    assert ask(scope, "{{ request.object.kind }}") == "Other"
    assert request.review_request == {"object": POD}
    assert ask(scope_of(request), "{{ request.object.kind }}") == "Pod"


def test_old_object_as_if_created() -> None:
    """For allowExistingViolations, the old object has a separate scope."""
    request = Request(
        operation="UPDATE", object=POD, old_object={"kind": "Old"}, namespace="n"
    )
    scope = scope_of(request)
    old = scope.shared.of_creation(as_created(request)).rule_scope()
    assert old.operation == "CREATE"
    text = "{{ request.object.kind }} {{ request.operation }} {{ request.namespace }}"
    assert ask(old, text) == "Old CREATE n"
    assert "Unknown key" in failure(old, "request.oldObject.kind")
    assert ask(scope, "{{ request.operation }}") == "UPDATE"


@pytest.mark.parametrize("name", ["", "a/log", "../secrets/a", "..", "a?b"])
def test_variable_fills_one_segment_of_a_namespaced_path(name: str) -> None:
    """Another resource would be read than the review of the author has checked."""
    cluster = Cluster()
    call = {"urlPath": "/api/v1/namespaces/n/pods/{{ request.object.n }}/status"}
    for value, expected in ((name, 0), ("a", 1)):
        request = Request(object={**POD, "n": value})
        scope = scope_of(request, cluster_data_of(cluster), "n")
        scope.add_entries((api_call(call),))
        if expected:
            ask(scope, "{{ api }}")
        else:
            assert "api" in failure(scope, "api")
        assert len(cluster.asked) == expected


def test_global_reference_of_a_namespaced_policy() -> None:
    """Also without entries, and with one that only other namespaces may read."""
    entry = GlobalReferenceEntryIR("g", parse_document("known"))
    text = "context entry g: globalReference is not allowed in namespaced policies"
    for data in (OFFLINE, cluster_data_of(Cluster())):
        scope = scope_of(Request(object=POD), data, "n")
        with pytest.raises(ExpressionFailed, match=text):
            scope.add_entries((entry,))
    scope = scope_of(Request(object=POD), cluster_data_of(Cluster()), "team")
    scope.add_entries((entry,))
    assert ask(scope, "{{ g }}") == [1]
