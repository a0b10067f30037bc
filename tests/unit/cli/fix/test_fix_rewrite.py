"""A rewritten policy decides as before, and parts without an equivalent are named.

The tests compare only the decisions of both policies, never their expressions.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from kyverno_mp.admission.decode import decode as decode_review
from kyverno_mp.cli.fix import to_cel
from kyverno_mp.cli.fix.rewrite.inputs import reviews
from kyverno_mp.cli.fix.rewrite.match import Resource
from kyverno_mp.cli.fix.rewrite.policy import documents_of
from kyverno_mp.cli.fix.rewrite.proof import Pair
from kyverno_mp.cli.fix.rewrite.texts import negated
from kyverno_mp.cli.fix.to_cel import rewrite
from kyverno_mp.compiler.autogen.rules import expand
from kyverno_mp.limits import REWRITE_INPUTS_MAX, REWRITE_INPUTS_MIN
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode
from tests.examples import scaled
from tests.unit.cli.conftest import Command

Json = Any
PODS = {"any": [{"resources": {"kinds": ["Pod"]}}]}
SERVICES = {"any": [{"resources": {"kinds": ["Service"]}}]}
INPUTS = min(scaled(REWRITE_INPUTS_MIN), REWRITE_INPUTS_MAX)
COUNTED = "kyverno_mp.cli.fix.rewrite.inputs.REWRITE_INPUTS_MIN"


@pytest.fixture(autouse=True)
def _budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare on the requests of this run's budget, as in other property tests."""
    monkeypatch.setattr(COUNTED, INPUTS)


def policy(rule: Json, **spec: Json) -> Json:
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {
            "validationFailureAction": "Enforce",
            "rules": [{"name": "r", "match": SERVICES, **rule}],
            **spec,
        },
    }


def pattern(value: Json, **rule: Json) -> Json:
    return policy({**rule, "validate": {"message": "m", "pattern": value}})


def deny(*conditions: Json, **rule: Json) -> Json:
    denied = {"deny": {"conditions": {"any": list(conditions)}}}
    return policy({**rule, "validate": {"message": "m", **denied}})


def cel(*expressions: Json, variables: Json = (), **rule: Json) -> Json:
    moved = {"expressions": list(expressions), "variables": list(variables)}
    return policy({**rule, "validate": {"message": "m", "cel": moved}})


def condition(key: str, operator: str, value: Json) -> Json:
    return {"key": f"{{{{ {key} }}}}", "operator": operator, "value": value}


TYPE = "request.object.spec.externalName || 'ClusterIP'"
MANY = condition("length(request.object.spec.ports)", "GreaterThan", "2")
ANCHORED = {"(name)": "a", "value": "b"}
REWRITTEN: dict[str, Json] = {
    "texts": pattern({"spec": {"type": "ClusterIP | Node?ort & !Load*"}}),
    "not": pattern({"spec": {"type": "!NodePort"}}),
    "something": pattern({"metadata": {"labels": {"app.kubernetes.io/name": "?*"}}}),
    "anything": pattern({"spec": {"type": "*"}}),
    "booleans": pattern({"spec": {"=(publishNotReadyAddresses)": False}}),
    "boolean texts": pattern({"spec": {"=(x)": "false"}}),
    "numbers": pattern({"spec": {"=(healthCheckNodePort)": 0, "x": -3}}),
    "amounts": pattern({"spec": {"x": ">=10 & <1Gi", "y": "!5"}}),
    "missing is zero": pattern({"spec": {"x": "<5"}}),
    **{
        f"{operator}0": pattern({"spec": {"=(x)": f"{operator}0"}})
        for operator in ("", "!", "<", "<=", ">", ">=")
    },
    "null": pattern({"spec": {"x": None}}),
    "negation": pattern({"spec": {"X(externalIPs)": "null"}}),
    "lists": pattern({"spec": {"ports": [{"name": "?*", "=(port)": ">1024"}]}}),
    "lists of texts": pattern({"spec": {"=(externalIPs)": ["10.*"]}}),
    "any pattern": policy(
        {
            "validate": {
                "message": "m",
                "anyPattern": [{"spec": {"type": "A"}}, {"spec": {"=(x)": "B"}}],
            }
        }
    ),
    "a number as a text": deny(MANY),
    "a condition": pattern({"spec": {"(type)": "A", "externalName": "?*"}}),
    "a condition in a list": pattern(
        {"spec": {"ports": [{"(name)": "a*", "port": ">1024"}], "type": "A"}}
    ),
    "a condition below an optional list": pattern(
        {
            "spec": {
                "containers": [
                    {"name": "?*", "=(env)": [{"(name)": "a", "value": "b"}]}
                ]
            }
        },
        match=PODS,
    ),
    "a condition beside a negation": pattern(
        {"spec": {"(type)": "A", "X(externalIPs)": "null", "=(x)": "B"}}
    ),
    "conditions in any pattern": policy(
        {
            "validate": {
                "message": "m",
                "anyPattern": [
                    {"spec": {"(type)": "A", "x": "B"}},
                    {"spec": {"(type)": "C", "x": "D"}},
                ],
            }
        }
    ),
    "a range": pattern({"spec": {"ports": [{"port": "5-7 | 10-12"}]}}),
    "outside of a range": pattern({"spec": {"x": "5!-7"}}),
    "a range of amounts": pattern({"spec": {"x": "1Ki-1Mi"}}),
    "no such annotation": pattern(
        {"metadata": {"=(annotations)": {"X(a.b/*)": "null", "X(*-c)": "?*"}}}
    ),
    "autogen": pattern({"spec": {"=(hostPID)": "false"}}, match=PODS),
    "names": pattern(
        {"spec": {"type": "A"}},
        match={
            "any": [
                {"resources": {"kinds": ["Service"], "names": ["a*", "b"]}},
                {"resources": {"kinds": ["Secret"], "namespaces": ["n?"]}},
            ]
        },
        exclude={"any": [{"resources": {"namespaces": ["n1"], "names": ["b"]}}]},
    ),
    "operations": pattern(
        {"spec": {"type": "A"}},
        match={
            "any": [{"resources": {"kinds": ["Service"], "operations": ["UPDATE"]}}]
        },
    ),
    "selector": pattern(
        {"spec": {"type": "A"}},
        match={
            "any": [
                {
                    "resources": {
                        "kinds": ["Service"],
                        "selector": {"matchLabels": {"a/b": "c"}},
                    }
                }
            ]
        },
    ),
    "a selector with a wildcard": pattern(
        {"spec": {"type": "A"}},
        match={
            "any": [
                {
                    "resources": {
                        "kinds": ["Service"],
                        "selector": {"matchLabels": {"a": "?*", "c": "d-*"}},
                    }
                }
            ]
        },
    ),
    "match all": pattern(
        {"spec": {"type": "A"}},
        match={
            "all": [
                {"resources": {"kinds": ["Service", "Secret"]}},
                {"resources": {"kinds": ["Service"], "names": ["a"]}},
            ]
        },
    ),
    "preconditions": pattern(
        {"spec": {"type": "A"}},
        preconditions={
            "all": [
                condition("request.operation || 'BACKGROUND'", "NotEquals", "UPDATE"),
                condition(TYPE, "AnyNotIn", ["B", "C"]),
            ]
        },
    ),
    **{
        f"deny {operator}": deny(condition(TYPE, operator, value))
        for operator, value in (
            ("Equals", "NodePort"),
            ("NotEquals", "NodePort"),
            ("AnyIn", ["NodePort", "LoadBalancer"]),
            ("AllIn", ["NodePort", "LoadBalancer"]),
            ("AnyNotIn", ["NodePort", "LoadBalancer"]),
            ("AllNotIn", ["NodePort", "LoadBalancer"]),
        )
    },
    **{
        f"deny {query} {operator}": deny(condition(query, operator, value))
        for query, operator, value in (
            ("request.object.spec.externalName", "Equals", "a*"),
            ("request.object.spec.externalName || ''", "NotEquals", "x"),
            ("request.object.spec.ports[].name", "AnyIn", ["a", "b?"]),
            ("request.object.spec.ports[].name", "AllIn", ["a", "b"]),
            ("request.object.spec.ports[].name", "AnyNotIn", ["a", "b"]),
            ("request.object.spec.ports[].name", "AllNotIn", ["a", "b"]),
            ("request.object.spec.ports[].name || ''", "AnyNotIn", ["a", "b"]),
            ("request.object.spec.ports[?name=='a'].port", "AnyIn", [80, 81]),
            ("request.object.spec.ports[].port", "GreaterThan", 1024),
            ("request.object.spec.externalIPs", "AnyIn", ["10.*", "x"]),
            ("request.object.spec.externalIPs || ''", "AllNotIn", ["x", "y"]),
            ("length(request.object.spec.ports)", "GreaterThan", 1),
            ("request.object.spec.ports || `[]` | length(@)", "Equals", 0),
            ("length(keys(request.object.metadata.labels))", "LessThan", 1),
            ("contains(request.object.spec.externalIPs, 'x')", "Equals", True),
            ("contains(request.object.spec.externalName, 'x')", "NotEquals", True),
            ("request.object.spec.ports[].name | contains(@, 'x')", "AnyIn", [True]),
            ("request.object.spec.publishNotReadyAddresses || `false`", "Equals", True),
            ("to_upper(request.object.spec.externalName)", "Equals", "AB"),
            ("starts_with(request.object.spec.externalName, 'x')", "Equals", False),
            ("request.object.metadata.annotations.\"x/y\" || 'none'", "Equals", "z"),
        )
    },
    "deny constants": deny(
        {
            "key": ["a", "b"],
            "operator": "AnyNotIn",
            "value": "{{ request.object.spec.ports[].name }}",
        }
    ),
    "foreach": policy(
        {
            "validate": {
                "message": "{{ request.object.spec.x }} in {{ request.namespace }}",
                "foreach": [
                    {
                        "list": "request.object.spec.ports",
                        "preconditions": {
                            "all": [condition("element.name || ''", "NotEquals", "b")]
                        },
                        "deny": {
                            "conditions": {
                                "any": [condition("element.name || ''", "Equals", "x")]
                            }
                        },
                    }
                ],
            }
        }
    ),
    "foreach pattern": policy(
        {
            "validate": {
                "message": "m",
                "foreach": [
                    {"list": "request.object.spec.ports", "pattern": {"name": "a*|b"}}
                ],
            },
        }
    ),
    "foreach of pods": policy(
        {
            "match": PODS,
            "validate": {
                "message": "m",
                "foreach": [
                    {
                        "list": "request.object.spec.[initContainers, containers][]",
                        "deny": {
                            "conditions": {
                                "any": [condition("element.image", "Equals", "a/*")]
                            }
                        },
                    }
                ],
            },
        }
    ),
    "deny deletions": deny(condition("request.operation", "Equals", "DELETE")),
    "deny a name": deny(
        condition(TYPE, "NotEquals", "A"),
        match={"any": [{"resources": {"kinds": ["Service"], "names": ["a"]}}]},
    ),
    "cel": cel(
        {"expression": "object.spec.?type.orValue('') != 'NodePort'"},
        {"expression": "!has(object.spec.x) || object.spec.x > 3", "message": "x"},
        match={
            "any": [{"resources": {"kinds": ["Service"], "operations": ["CREATE"]}}]
        },
    ),
    "cel of pods": cel(
        {"expression": "variables.of.all(c, c.image.startsWith('a/'))"},
        {
            "expression": "object.metadata.?name.orValue('') != 'b'",
            "messageExpression": "'not ' + object.kind",
        },
        variables=[{"name": "of", "expression": "object.spec.containers"}],
        match=PODS,
    ),
    "cel preconditions": cel(
        {"expression": "object.spec.type != 'NodePort'"},
        match={
            "any": [{"resources": {"kinds": ["Service"], "operations": ["UPDATE"]}}]
        },
        celPreconditions=[{"name": "a", "expression": "object.spec.x == 'a'"}],
    ),
    "a custom kind": cel(
        {"expression": "object.spec.project != 'default'"},
        match={"any": [{"resources": {"kinds": ["argoproj.io/*/Application"]}}]},
    ),
    "audit": {
        **pattern({"spec": {"type": "A"}}),
        "spec": {
            **pattern({"spec": {"type": "A"}})["spec"],
            "validationFailureAction": "Audit",
        },
    },
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_policy_and_rewrite_have_the_same_verdicts(name: str) -> None:
    found = rewrite(REWRITTEN[name])
    assert (found.reason, list(found.differences)) == ("", [])
    assert found.document is not None
    assert INPUTS <= found.requests <= REWRITE_INPUTS_MAX
    _assert_denies_and_allows(name, found.document)


def _assert_denies_and_allows(name: str, document: Json) -> None:
    """Otherwise, the comparison would prove nothing."""
    before = decode(REWRITTEN[name])
    assert isinstance(before, ClusterPolicy)
    pair = Pair(before, document)
    kinds = {
        one: Resource(*rest)
        for one, *rest in (
            ("Service", "", "v1", "services", "Service"),
            ("Pod", "", "v1", "pods", "Pod"),
            ("Application", "argoproj.io", "v1alpha1", "applications", "Application"),
        )
    }
    anchors = "a condition below an optional list"
    names = ("autogen", "cel of pods", "foreach of pods", anchors)
    pods = dict.fromkeys(names, "Pod")
    others = {**pods, "a custom kind": "Application"}
    resource = kinds[others.get(name, "Service")]
    left = {True, False}
    for _, body in reviews(before.spec.rules, [resource]):
        left.discard(bool(pair.verdicts(decode_review(body))[0]))
        if not left:
            return
    raise AssertionError(f"no request has this verdict: {left}")


def test_cel_of_pods_and_controllers_stays_one_expression() -> None:
    """A person would not write the paths of all controllers again."""
    found = rewrite(REWRITTEN["cel of pods"]).document
    assert found is not None
    raw = found["spec"]
    expressions = [one["expression"] for one in raw["validations"]]
    assert expressions == [
        "variables.of.all(c, c.image.startsWith('a/'))",
        "variables.pod.metadata.?name.orValue('') != 'b'",
    ]
    assert raw["variables"][-1] == {
        "name": "of",
        "expression": "variables.pod.spec.containers",
    }
    plurals = {name for rule in rules_of(raw) for name in rule["resources"]}
    assert {"pods", "cronjobs", "deployments", "replicationcontrollers"} <= plurals


def rules_of(raw: Json) -> Json:
    return raw["matchConstraints"]["resourceRules"]


@pytest.mark.parametrize(("before", "verdict"), [(True, False), (False, True)])
def test_kubectl_debug_of_a_pod(before: bool, verdict: bool) -> None:  # noqa: FBT001
    """Both policies allow a Pod that already violated them."""
    raw = REWRITTEN["autogen"]
    pair = Pair(_decoded(raw), rewrite(raw).document)
    request = _request("Pod", "pods", {"hostPID": True})
    old = {**request["object"], "spec": {"hostPID": before}}
    request.update(operation="UPDATE", subResource="ephemeralcontainers", oldObject=old)
    assert _denied(pair, request) == (verdict, verdict)


@pytest.mark.parametrize(
    ("kind", "group", "denied"),
    [
        ("Service", "serving.example.com", True),
        ("v1/Service", "serving.example.com", True),
        ("apps/v1/Deployment", "serving.example.com", False),
    ],
)
def test_kinds_of_other_groups(
    kind: str,
    group: str,
    denied: bool,  # noqa: FBT001 - a parameter
) -> None:
    """A kind without a group matches this kind in every group."""
    kinds = {"any": [{"resources": {"kinds": [kind]}}]}
    raw = pattern({"spec": {"type": "A"}}, match=kinds)
    pair = Pair(_decoded(raw), rewrite(raw).document)
    name = kind.rpartition("/")[2]
    request = _request(name, f"{name.lower()}s", {"type": "B"}, group)
    assert _denied(pair, request) == (denied, denied)


def test_other_kind_with_the_same_resource_name() -> None:
    raw = REWRITTEN["not"]
    pair = Pair(_decoded(raw), rewrite(raw).document)
    request = _request("Other", "services", {"type": "NodePort"}, "example.com")
    assert _denied(pair, request) == (False, False)


@pytest.mark.parametrize(
    ("kind", "version", "path", "key"),
    [
        ("ClusterRole", "rbac.authorization.k8s.io/v1", ("rules",), "verbs"),
        ("Role", "rbac.authorization.k8s.io/v1", ("rules",), "verbs"),
        ("EndpointSlice", "discovery.k8s.io/v1", ("endpoints",), "addresses"),
        ("EndpointSlice", "discovery.k8s.io/v1", ("ports",), "name || ''"),
        ("LimitRange", "v1", ("spec", "limits"), "type"),
        ("CSINode", "storage.k8s.io/v1", ("spec", "drivers"), "name"),
    ],
)
@pytest.mark.parametrize("value", [None, [], "absent"])
def test_lists_that_kubernetes_writes_as_null(
    kind: str, version: str, path: tuple[str, ...], key: str, value: Json
) -> None:
    """Go writes an empty list as null where its type lacks ``omitempty``."""
    body = {
        "list": f"request.object.{'.'.join(path)}",
        "deny": {"conditions": {"any": [condition(f"element.{key}", "AnyIn", ["y"])]}},
    }
    match = {"any": [{"resources": {"kinds": [kind]}}]}
    raw = policy({"match": match, "validate": {"message": "m", "foreach": [body]}})
    found = rewrite(raw)
    if found.document is None:
        assert path != ("rules",), found
        return
    document: Json = {"apiVersion": version, "kind": kind, "metadata": {"name": "n"}}
    owner = document
    for part in path[:-1]:
        owner = owner.setdefault(part, {})
    if value != "absent":
        owner[path[-1]] = value
    group, _, number = version.rpartition("/")
    review = {
        "uid": "u",
        "operation": "CREATE",
        "kind": {"group": group, "version": number, "kind": kind},
        "resource": {"group": group, "version": number, "resource": f"{kind.lower()}s"},
        "name": "n",
        "object": document,
        "userInfo": {"username": "u"},
    }
    request = decode_review(msgspec.json.encode({"request": review}))
    before, after = Pair(_decoded(raw), found.document).verdicts(request)
    assert bool(before) == bool(after), (before, after)


@pytest.mark.parametrize(
    ("operator", "given", "denied"),
    [
        ("AnyIn", "Node*", True),
        ("AllIn", "*", True),
        ("AnyNotIn", "Node*", False),
        ("AnyIn", "Node\\E*", False),
        ("Equals", "Node*", False),
    ],
)
def test_wildcards_in_the_object(operator: str, given: Json, denied: bool) -> None:  # noqa: FBT001 - a parameter
    """Lists of values also match wildcards of the object's own value."""
    value = "NodePort" if operator == "Equals" else ["NodePort", "LoadBalancer"]
    raw = deny(condition(TYPE, operator, value))
    pair = Pair(_decoded(raw), rewrite(raw).document)
    request = _request("Service", "services", {"externalName": given})
    assert _denied(pair, request) == (denied, denied)


def test_a_condition_on_a_field_of_a_list() -> None:
    """The list has no fields, so the default applies; this is no error."""
    key = "request.object.spec.x.name || 'none'"
    raw = deny(
        condition(key, "Equals", "none"),
        match={"any": [{"resources": {"kinds": ["Application"]}}]},
    )
    pair = Pair(_decoded(raw), rewrite(raw).document)
    for given, denied in (([{"name": "a"}], True), ({"name": "a"}, False)):
        request = _request("Application", "applications", {"x": given}, "argoproj.io")
        assert _denied(pair, request) == (denied, denied)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("deny AnyIn", ".matches('[*?]')", ".matches('[+]')"),
        ("deny Equals", "!= 'NodePort'", "== 'NodePort'"),
        ("foreach", "'x'", "'y'"),
        ("lists", ".all(", ".exists("),
        ("autogen", "variables.oldPod", "variables.pod"),
        (
            "names",
            ".orValue(object.metadata.?generateName.orValue(''))",
            ".orValue('')",
        ),
    ],
)
def test_the_requests_show_a_defect(
    monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str
) -> None:
    original = documents_of

    def wrong(given: ClusterPolicy) -> Json:
        ((part, found),) = original(given)
        spec = found["spec"]
        changed = [*spec["validations"], *spec.get("matchConditions", ())]
        before = [one["expression"] for one in changed]
        for one in changed:
            one["expression"] = one["expression"].replace(old, new)
        assert before != [one["expression"] for one in changed]
        return [(part, found)]

    monkeypatch.setattr(to_cel, "documents_of", wrong)
    assert rewrite(REWRITTEN[name]).differences


def test_each_rule_is_tried_with_all_its_objects() -> None:
    """Autogen rules multiply the requests, and hide no value of the policy."""
    raw = pattern({"spec": {f"=(f{n})": f"v{n}" for n in range(6)}}, match=PODS)
    rules = expand(_decoded(raw))
    kinds = {"Pod": "pods", "Deployment": "deployments", "CronJob": "cronjobs"}
    resources = [Resource("*", "*", plural, kind, "") for kind, plural in kinds.items()]
    seen = dict.fromkeys(kinds, "")
    for shown, body in reviews(rules, resources):
        request = decode_review(body)
        if request.operation == "CREATE" and request.kind in seen:
            seen[request.kind] += shown
    for text in seen.values():
        assert all(f'"f{n}":"v{n}z"' in text for n in range(6))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (
            {
                "apiVersion": "kyverno.io/v2",
                "kind": "PolicyException",
                "metadata": {"name": "e", "namespace": "n"},
                "spec": {"exceptions": [{"policyName": "p", "ruleNames": ["r"]}]},
            },
            "PolicyException e exempts from it",
        ),
        (
            {
                "apiVersion": "policies.kyverno.io/v1",
                "kind": "ValidatingPolicy",
                "metadata": {"name": "p"},
            },
            "a ValidatingPolicy has the same name",
        ),
    ],
)
def test_other_documents_withhold_the_policy(
    command: Command, tmp_path: Path, other: Json, reason: str
) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(REWRITTEN["not"]))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(other))
    done = command("fix", "policy", tmp_path, "--to", "ValidatingPolicy")
    assert done.code == 1
    assert done.out == ""
    assert done.err.endswith(f"p: not rewritten: {reason}\n")


def test_requests_for_other_groups_and_subresources() -> None:
    rules = expand(_decoded(REWRITTEN["autogen"]))
    pods = Resource("*", "*", "pods", "Pod")
    asked = [decode_review(body) for _, body in reviews(rules, [pods])]
    assert {one.group for one in asked} == {"", "example.com"}
    assert {one.subresource for one in asked} == {"", "ephemeralcontainers"}


def _decoded(raw: Json) -> ClusterPolicy:
    found = decode(raw)
    assert isinstance(found, ClusterPolicy)
    return found


def _request(kind: str, plural: str, spec: Json, group: str = "") -> Json:
    version = f"{group}/v1" if group else "v1"
    metadata = {"name": "a", "namespace": "n"}
    return {
        "uid": "u",
        "kind": {"group": group, "version": "v1", "kind": kind},
        "resource": {"group": group, "version": "v1", "resource": plural},
        **metadata,
        "operation": "CREATE",
        "userInfo": {"username": "ann"},
        "object": {
            "apiVersion": version,
            "kind": kind,
            "metadata": metadata,
            "spec": spec,
        },
    }


def _denied(pair: Pair, request: Json) -> tuple[bool, bool]:
    head = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    body = msgspec.json.encode({**head, "request": request})
    before, after = pair.verdicts(decode_review(body))
    return bool(before), bool(after)


REFUSED: list[tuple[Json, str]] = [
    (
        pattern({"spec": {"(ports)": [{"(name)": "a"}], "type": "A"}}),
        "an anchor (key) below another one",
    ),
    (pattern({"spec": {"<(type)": "A"}}), "anchor <(key)"),
    (pattern({"spec": {"^(ports)": [{"name": "a"}]}}), "anchor ^(key)"),
    (
        pattern({"metadata": {"labels": {"a*": "b"}}}),
        "wildcards in names of labels or annotations",
    ),
    (pattern({"spec": {"x": "<1h"}}), "the duration 1h in a pattern"),
    (pattern({"spec": {"x": "{{ request.name }}"}}), "variables in the pattern"),
    (
        pattern({}, context=[{"name": "x", "imageRegistry": {"reference": "y"}}]),
        "context entry x, which is no variable",
    ),
    (pattern({}, reportProperties={"a": "b"}), "reportProperties"),
    (
        pattern({}, match={"any": [{"resources": {"kinds": ["X"]}}]}),
        "kind X, whose resource is not known",
    ),
    (pattern({}, match={"any": [{"resources": {"kinds": ["*"]}}]}), "kind *"),
    (
        pattern({}, match={"any": [{**SERVICES["any"][0], "roles": ["r"]}]}),
        "roles or subjects in match",
    ),
    (
        pattern(
            {},
            match={
                "any": [
                    {
                        "resources": {
                            "kinds": ["Service"],
                            "selector": {"matchLabels": {"a": "*"}},
                        }
                    }
                ]
            },
        ),
        "selector in match",
    ),
    (
        deny(condition("request.object.spec.x", "Equals", "A")),
        "Equals of a value of unknown type",
    ),
    (deny(condition("sum(request.object.spec.x)", "Equals", 1)), "JMESPath sum()"),
    (deny(condition("request.roles", "Equals", "A")), "variable request"),
    (deny(condition(TYPE, "GreaterThan", "A")), "the order of a string and A"),
    (deny(condition(TYPE, "Equals", "5")), "the amount 5 of a condition"),
    (policy({"verifyImages": [{"imageReferences": ["*"]}]}), "verifyImages"),
    (policy({"validate": {"podSecurity": {"level": "baseline"}}}), "podSecurity"),
    (
        policy(
            {
                "validate": {
                    "cel": {
                        "expressions": [{"expression": "params.x"}],
                        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
                    }
                }
            }
        ),
        "paramKind",
    ),
    (cel({"expression": "authorizer.path('/').check('get').allowed()"}), "authorizer"),
]


@pytest.mark.parametrize(("raw", "reason"), REFUSED)
def test_fields_without_equivalent_are_named(raw: Json, reason: str) -> None:
    found = rewrite(raw)
    assert found.document is None
    assert found.reason == f"rule r: {reason}"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"applyRules": "One"}, "applyRules: One"),
        (
            {"validationFailureActionOverrides": [{"action": "Audit"}]},
            "failureActionOverrides",
        ),
        (
            {
                "webhookConfiguration": {
                    "matchConditions": [{"name": "a", "expression": "true"}]
                }
            },
            "matchConditions",
        ),
    ],
)
def test_policies_with_more_than_rules(spec: Json, reason: str) -> None:
    rule = {"validate": {"message": "m", "pattern": {"spec": {"type": "A"}}}}
    assert rewrite(policy(rule, **spec)).reason == reason


def test_actions_labels_and_settings_are_kept() -> None:
    raw = REWRITTEN["audit"]
    raw = {
        **raw,
        "metadata": {
            "name": "p",
            "labels": {"l": "m"},
            "annotations": {
                "policies.kyverno.io/severity": "high",
                "pod-policies.kyverno.io/autogen-controllers": "none",
            },
        },
        "spec": {**raw["spec"], "failurePolicy": "Ignore", "background": False},
    }
    found = rewrite(raw).document
    assert found is not None
    assert found["metadata"] == {
        "name": "p",
        "labels": {"l": "m"},
        "annotations": {"policies.kyverno.io/severity": "high"},
    }
    assert found["spec"]["validationActions"] == ["Audit"]
    assert found["spec"]["failurePolicy"] == "Ignore"
    assert found["spec"]["evaluation"] == {
        "admission": {"enabled": True},
        "background": {"enabled": False},
    }


def test_differing_rewrite_is_withheld(
    monkeypatch: pytest.MonkeyPatch, command: Command, tmp_path: Path
) -> None:
    """After a simulated defect, nothing is written, and the request is shown."""
    original = documents_of

    def wrong(given: ClusterPolicy) -> Json:
        ((part, found),) = original(given)
        found["spec"]["validations"][0]["expression"] = "true"
        return [(part, found)]

    monkeypatch.setattr(to_cel, "documents_of", wrong)
    monkeypatch.setattr(COUNTED, REWRITE_INPUTS_MIN)
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump(REWRITTEN["not"]))
    before = file.read_text()
    done = command("fix", "policy", file, "--to", "ValidatingPolicy", "--save")
    assert done.code == 1
    assert file.read_text() == before
    first, request, old, new, *_ = done.err.splitlines()
    assert "not rewritten: " in first
    assert first.endswith(f" of {REWRITE_INPUTS_MIN} requests differ")
    assert msgspec.json.decode(request)["operation"] in ("CREATE", "UPDATE")
    assert old.startswith("    ClusterPolicy: fail: ")
    assert new == "    ValidatingPolicy: allowed"


@pytest.mark.parametrize(
    ("clause", "negation"),
    [
        ("a == '('", "a != '('"),
        ("a[?1].orValue('') == 'b'", "a[?1].orValue('') != 'b'"),
        ("a.b != 'b'", "a.b == 'b'"),
        ("a.b('x == y') == 'b'", "!(a.b('x == y') == 'b')"),
        ("!(a || b)", "a || b"),
        ("!a.exists(x, x == ') ')", "a.exists(x, x == ') ')"),
        (r"!a.exists(x, x == '\\')", r"a.exists(x, x == '\\')"),
        ("!(a == '(' || b) || c.d(')')", "!(!(a == '(' || b) || c.d(')'))"),
        (r"!(a == '\\') || b == '\\'", r"!(!(a == '\\') || b == '\\')"),
        (r"!(a == '\'(') || c.d(')')", r"!(!(a == '\'(') || c.d(')'))"),
        ("a.b(r'\\') || c", "!(a.b(r'\\') || c)"),
    ],
)
def test_negation_of_a_clause(clause: str, negation: str) -> None:
    """Brackets and quotes within texts are no code."""
    assert negated(clause) == negation


def test_command(
    monkeypatch: pytest.MonkeyPatch, command: Command, tmp_path: Path
) -> None:
    monkeypatch.setattr(COUNTED, REWRITE_INPUTS_MIN)
    kept = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump_all([REWRITTEN["not"], kept, REFUSED[0][0]]))
    done = command("fix", "policy", tmp_path, "--to", "ValidatingPolicy")
    assert done.code == 1
    (shown,) = yaml.safe_load_all(done.out)
    assert shown["kind"] == "ValidatingPolicy"
    told = f"rewritten; both decide {REWRITE_INPUTS_MIN} requests alike"
    reason = "rule r: an anchor (key) below another one"
    assert done.err.splitlines() == [
        f"{file}: ClusterPolicy p: {told}",
        f"{file}: ClusterPolicy p: not rewritten: {reason}",
    ]
    assert (
        command("fix", "policy", file, "--to", "ValidatingPolicy", "--save").code == 1
    )
    kinds = [one["kind"] for one in yaml.safe_load_all(file.read_text())]
    assert kinds == ["ValidatingPolicy", "ConfigMap", "ClusterPolicy"]
