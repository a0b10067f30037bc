"""A MutatingPolicy that ``fix`` prints changes objects as its ClusterPolicy.

The objects that are expected come from Kyverno's rules for patches
(docs/behaviour/engine 7), not from either of the two.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from kyverno_mp.admission.decode import decode as decode_review
from kyverno_mp.cli.fix import to_cel
from kyverno_mp.cli.fix.rewrite.policy import documents_of
from kyverno_mp.cli.fix.rewrite.proof import Pair
from kyverno_mp.cli.fix.to_cel import rewrite
from kyverno_mp.limits import REWRITE_INPUTS_MAX, REWRITE_INPUTS_MIN
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode
from tests.examples import scaled
from tests.unit.cli.conftest import Command

Json = Any
COUNTED = "kyverno_mp.cli.fix.rewrite.inputs.REWRITE_INPUTS_MIN"
INPUTS = min(scaled(REWRITE_INPUTS_MIN) // 4, REWRITE_INPUTS_MAX)


@pytest.fixture(autouse=True)
def _budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare on the requests of this run's budget, as in other property tests."""
    monkeypatch.setattr(COUNTED, INPUTS)
    monkeypatch.setattr(COUNTED.replace("MIN", "MAX"), INPUTS)


def policy(*rules: Json) -> Json:
    named = [{"name": f"r{n}", **rule} for n, rule in enumerate(rules)]
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"rules": named},
    }


def matching(*kinds: str, **resources: Json) -> Json:
    return {"match": {"any": [{"resources": {"kinds": [*kinds], **resources}}]}}


def merge(patch: Json, *kinds: str, **rule: Json) -> Json:
    body = {"mutate": {"patchStrategicMerge": patch}}
    return {**matching(*(kinds or ("Deployment",))), **body, **rule}


def json_patch(operations: Json, *kinds: str, **rule: Json) -> Json:
    body = {"mutate": {"patchesJson6902": yaml.safe_dump(operations)}}
    return {**matching(*(kinds or ("ConfigMap",))), **body, **rule}


def each(entry: Json) -> Json:
    return {**matching("Pod"), "mutate": {"foreach": [entry]}}


def pod_of(raw: Json, kind: str) -> Json:
    """Return an object of a kind that has this Pod."""
    template = {"metadata": {}, "spec": raw}
    if kind == "Pod":
        return template
    spec = {"template": template}
    return {"spec": spec if kind == "Deployment" else {"jobTemplate": {"spec": spec}}}


C, D = {"name": "c", "image": "i"}, {"name": "d", "image": "j"}
PODS: dict[str, tuple[Json, Json, Json]] = {
    "a field": (
        merge({"spec": {"dnsPolicy": "Default"}}, "Pod"),
        {"containers": [C]},
        {"containers": [C], "dnsPolicy": "Default"},
    ),
    "a default": (
        merge(
            {"spec": {"securityContext": {"+(runAsUser)": 7, "+(fsGroup)": 8}}}, "Pod"
        ),
        {"containers": [C], "securityContext": {"fsGroup": 9}},
        {"containers": [C], "securityContext": {"fsGroup": 9, "runAsUser": 7}},
    ),
    "every container": (
        merge({"spec": {"containers": [{"(name)": "?*", "tty": True}]}}, "Pod"),
        {"containers": [C, D]},
        {"containers": [{**C, "tty": True}, {**D, "tty": True}]},
    ),
    "if a container has an image": (
        merge(
            {
                "spec": {
                    "containers": [{"<(image)": "j"}],
                    "imagePullSecrets": [{"name": "s"}],
                }
            },
            "Pod",
        ),
        {"containers": [C, D]},
        {"containers": [C, D], "imagePullSecrets": [{"name": "s"}]},
    ),
    "a map that a configuration cannot change": (
        merge({"spec": {"nodeSelector": {"a/b": "c"}}}, "Pod"),
        {"containers": [C], "nodeSelector": {"d": "e"}},
        {"containers": [C], "nodeSelector": {"d": "e", "a/b": "c"}},
    ),
    "a removed field": (
        merge({"spec": {"hostname": None}}, "Pod"),
        {"containers": [C], "hostname": "h"},
        {"containers": [C]},
    ),
    "an anchor": (
        merge({"spec": {"(dnsPolicy)": "None", "hostPID": False}}, "Pod"),
        {"containers": [C], "dnsPolicy": "None"},
        {"containers": [C], "dnsPolicy": "None", "hostPID": False},
    ),
    "each container": (
        each(
            {
                "list": "request.object.spec.containers",
                "patchStrategicMerge": {
                    "spec": {
                        "containers": [
                            {
                                "(name)": "{{ element.name }}",
                                "resources": {"requests": {"+(cpu)": "1"}},
                            }
                        ]
                    }
                },
            }
        ),
        {"containers": [C, {**D, "resources": {"requests": {"cpu": "2"}}}]},
        {
            "containers": [
                {**C, "resources": {"requests": {"cpu": "1"}}},
                {**D, "resources": {"requests": {"cpu": "2"}}},
            ]
        },
    ),
    "precondition": (
        merge(
            {"spec": {"terminationGracePeriodSeconds": 50}},
            "Pod",
            preconditions={
                "all": [
                    {
                        "key": "{{ request.object.spec.terminationGracePeriodSeconds"
                        " || `0` }}",
                        "operator": "GreaterThan",
                        "value": 50,
                    }
                ]
            },
        ),
        {"containers": [C], "terminationGracePeriodSeconds": 51},
        {"containers": [C], "terminationGracePeriodSeconds": 50},
    ),
}


@pytest.mark.parametrize("name", PODS)
def test_pods_and_controllers_are_changed_as_before(name: str) -> None:
    rule, before, after = PODS[name]
    found = rewrite(policy(rule))
    assert (found.reason, list(found.differences)) == ("", [])
    kinds = ["Pod"] if "foreach" in rule["mutate"] and name != "each container" else []
    for kind in kinds or ("Pod", "Deployment", "CronJob"):
        changed = changes(policy(rule), found.document, kind, pod_of(before, kind))
        assert changed == [pod_of(after, kind)] * 2, kind


OTHERS: dict[str, tuple[Json, str, Json, Json]] = {
    "labels": (
        merge({"metadata": {"labels": {"a/b": "c"}}}, "ConfigMap", "Secret"),
        "Secret",
        {"metadata": {"labels": {"d": "e"}}},
        {"metadata": {"labels": {"d": "e", "a/b": "c"}}},
    ),
    "a value of the object": (
        merge(
            {"metadata": {"labels": {"of": "{{request.object.type || 'none'}}-x"}}},
            "Secret",
        ),
        "Secret",
        {"type": "t"},
        {"type": "t", "metadata": {"labels": {"of": "t-x"}}},
    ),
    "excluded": (
        merge(
            {"data": {"a": "b"}},
            "ConfigMap",
            exclude=matching("ConfigMap", names=["n"])["match"],
        ),
        "ConfigMap",
        {},
        {},
    ),
    "added with its parents": (
        json_patch([{"op": "add", "path": "/metadata/labels/a~1b", "value": "c"}]),
        "ConfigMap",
        {},
        {"metadata": {"labels": {"a/b": "c"}}},
    ),
    "removed if present": (
        json_patch([{"op": "remove", "path": "/data"}]),
        "ConfigMap",
        {"data": {"a": "b"}},
        {},
    ),
    "the end of a list that is missing": (
        json_patch([{"op": "add", "path": "/metadata/finalizers/-", "value": "a/b"}]),
        "ConfigMap",
        {},
        {"metadata": {"finalizers": ["a/b"]}},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_objects_are_changed_as_before(name: str) -> None:
    rule, kind, before, after = OTHERS[name]
    found = rewrite(policy(rule))
    assert (found.reason, list(found.differences)) == ("", [])
    assert changes(policy(rule), found.document, kind, before) == [after] * 2


def test_changed_containers_stay_in_their_place() -> None:
    """A merge moves what it changes to the front; nobody wants that."""
    raw = policy(
        merge({"spec": {"containers": [{"(image)": "j*", "tty": True}]}}, "Pod")
    )
    found = rewrite(raw)
    assert (found.reason, list(found.differences)) == ("", [])
    changed = {**D, "tty": True}
    assert changes(
        raw, found.document, "Pod", pod_of({"containers": [C, D]}, "Pod")
    ) == [
        pod_of({"containers": [changed, C]}, "Pod"),
        pod_of({"containers": [C, changed]}, "Pod"),
    ]


def test_order_of_init_containers_counts() -> None:
    """They start one after another."""
    patch = {"spec": {"initContainers": [{"(image)": "j*", "tty": True}]}}
    found = rewrite(policy(merge(patch, "Pod")))
    assert not found.documents
    assert found.differences


def test_index_of_each_element() -> None:
    rule = each(
        {
            "list": "request.object.spec.containers",
            "patchesJson6902": yaml.safe_dump(
                [
                    {
                        "op": "add",
                        "path": "/spec/containers/{{elementIndex}}/env/-",
                        "value": {"name": "I", "value": "v"},
                    }
                ]
            ),
        }
    )
    found = rewrite(policy(rule))
    assert (found.reason, list(found.differences)) == ("", [])
    before = pod_of({"containers": [C, {**D, "env": [{"name": "e"}]}]}, "Pod")
    new = {"name": "I", "value": "v"}
    after = [{**C, "env": [new]}, {**D, "env": [{"name": "e"}, new]}]
    changed = changes(policy(rule), found.document, "Pod", before)
    assert changed == [pod_of({"containers": after}, "Pod")] * 2


def test_values_that_are_read_as_yaml_are_not_rewritten() -> None:
    """A variable in a JSON patch becomes a part of its YAML, line ends included."""
    operation = {
        "op": "add",
        "path": "/metadata/labels/of",
        "value": "{{ request.object.data.a || 'x' }}",
    }
    found = rewrite(policy(json_patch([operation])))
    assert not found.documents
    assert found.reason == "rule r0: a variable in the value of a JSON patch"


def test_replacing_what_can_be_missing_is_not_rewritten() -> None:
    """Upstream denies the request; a MutatingPolicy leaves the object as it is."""
    operation = {"op": "replace", "path": "/data/a", "value": "x"}
    found = rewrite(policy(json_patch([operation])))
    assert not found.documents
    assert found.reason == "rule r0: a replaced field that can be missing, /data/a"


def test_an_empty_list_meets_global_anchors_and_a_missing_one_does_not() -> None:
    """As upstream's engine does, which the proof evaluates beside it."""
    labels = {"metadata": {"labels": {"a": "b"}}}
    rule = merge({**labels, "spec": {"volumes": [{"<(emptyDir)": {}}]}}, "Pod")
    found = rewrite(policy(rule))
    assert (found.reason, list(found.differences)) == ("", [])
    for volumes, is_changed in (([], True), (None, False)):
        own = {"containers": [C]} | ({} if volumes is None else {"volumes": volumes})
        before = pod_of(own, "Pod")
        after = changes(policy(rule), found.document, "Pod", before)
        assert [one != before for one in after] == [is_changed] * 2


VERSIONS = {"Deployment": ("apps", "deployments"), "CronJob": ("batch", "cronjobs")}


def changes(raw: Json, document: Json, kind: str, body: Json) -> list[Json]:
    """Return the object as both policies leave it, without what is always there."""
    before = decode(raw)
    assert isinstance(before, ClusterPolicy)
    group, plural = VERSIONS.get(kind, ("", f"{kind.lower()}s"))
    version = f"{group}/v1" if group else "v1"
    metadata = {"name": "n", "namespace": "s", **body.get("metadata", {})}
    request = {
        "uid": "u",
        "kind": {"group": group, "version": "v1", "kind": kind},
        "resource": {"group": group, "version": "v1", "resource": plural},
        "name": "n",
        "namespace": "s",
        "operation": "CREATE",
        "userInfo": {"username": "ann"},
        "object": {"apiVersion": version, "kind": kind, **body, "metadata": metadata},
    }
    head = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    review = decode_review(msgspec.json.encode({**head, "request": request}))
    pair = Pair(before, document)
    assert pair.verdicts(review) == ("", "")
    return [_without_head(one, body) for one in pair.changed(review)]


def _without_head(changed: Json, body: Json) -> Json:
    metadata = {
        key: value
        for key, value in changed["metadata"].items()
        if key not in ("name", "namespace")
    }
    rest = {
        k: v for k, v in changed.items() if k not in ("apiVersion", "kind", "metadata")
    }
    return {
        **rest,
        **({"metadata": metadata} if metadata or "metadata" in body else {}),
    }


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("a field", "'Default'", "'None'"),
        ("a default", "orValue(7)", "orValue(6)"),
        ("if a container has an image", "exists(container", "all(container"),
        ("a map that a configuration cannot change", "a~1b", "a~1c"),
        ("a removed field", "'remove'", "'test'"),
        ("precondition", "> 50", "> 51"),
        ("each container", "?cpu", "?memory"),
    ],
)
def test_the_requests_show_a_defect(
    monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str
) -> None:
    """A converter with a defect is shown the object that comes out otherwise."""
    original = documents_of

    def wrong(given: ClusterPolicy) -> Json:
        ((part, document),) = original(given)
        text = msgspec.json.encode(document["spec"]).decode()
        assert old in text
        return [
            (part, {**document, "spec": msgspec.json.decode(text.replace(old, new))})
        ]

    monkeypatch.setattr(to_cel, "documents_of", wrong)
    monkeypatch.setattr(COUNTED.replace("MIN", "MAX"), 4 * INPUTS)
    found = rewrite(policy(PODS[name][0]))
    assert not found.documents
    assert found.differences


REFUSED: list[tuple[Json, str]] = [
    (
        {
            **matching("Secret"),
            "mutate": {
                "targets": [{"apiVersion": "v1", "kind": "ConfigMap"}],
                "patchStrategicMerge": {"data": {"a": "b"}},
            },
        },
        "mutate with targets",
    ),
    (
        merge({"spec": {"x": {"y": 1}}}),
        "a patch of object.spec.x, whose type is not known",
    ),
    (merge({"spec": {"X(replicas)": 1}}), "anchor X(replicas)"),
    (
        json_patch([{"op": "move", "from": "/data/a", "path": "/data/b"}]),
        "a JSON patch with other operations than add, remove and replace",
    ),
    (
        json_patch(
            [{"op": "add", "path": "/spec/rules/0/host", "value": "h"}], "Ingress"
        ),
        "an added field of an element of a list",
    ),
]


@pytest.mark.parametrize(("rule", "reason"), REFUSED)
def test_parts_without_equivalent_are_named(rule: Json, reason: str) -> None:
    found = rewrite(policy(rule))
    assert found.documents == ()
    assert found.reason == f"rule r0: {reason}"


def test_rules_of_two_types_become_two_policies(
    command: Command, tmp_path: Path
) -> None:
    denies = {
        **matching("ConfigMap"),
        "validate": {"message": "m", "pattern": {"metadata": {"labels": {"a": "b"}}}},
    }
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump(policy(OTHERS["labels"][0], denies)))
    done = command("fix", "policy", file, "--to", "CEL", "--save")
    assert done.code == 0
    assert "rewritten as MutatingPolicy and ValidatingPolicy; both decide" in done.err
    written = file.read_text()
    assert [
        (one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(written)
    ] == [
        ("MutatingPolicy", "p"),
        ("ValidatingPolicy", "p"),
    ]


def test_another_kind_than_requested_is_named(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump(policy(OTHERS["labels"][0])))
    done = command("fix", "policy", file, "--to", "ValidatingPolicy")
    assert (done.code, done.out) == (1, "")
    assert "not rewritten: it becomes a MutatingPolicy (--to CEL)" in done.err
