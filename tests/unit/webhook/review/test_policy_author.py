"""A namespaced policy does nothing for its author that the author may not do directly.

For each way in which a policy can write or read with the service's permissions, the
test derives from the same table that the author needs each permission: all of them are
enough, and without any of them the policy is rejected.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.policy.ports import Author, BuiltInKinds, ClusterView
from kyverno_mp.values.kubernetes.api_path import fixed_path
from kyverno_mp.webhook.policy_review import PolicyReview, ReviewOptions

Json = Any
Grant = tuple[str, str, str]
ALL: Grant = ("*", "*", "*")
MATCH: Json = {"any": [{"resources": {"kinds": ["ConfigMap"]}}]}
MAPS: Json = {
    "resourceRules": [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["configmaps"],
        }
    ]
}
PATCH: Json = {"patchStrategicMerge": {"spec": {"hard": {"pods": "100"}}}}
RBAC = "rbac.authorization.k8s.io"


class Cluster:
    """Grants of one user; notes the questions."""

    def __init__(self, grants: Iterable[Grant], *, is_up: bool = True) -> None:
        self._grants = set(grants)
        self._is_up = is_up
        self.authors: list[Author] = []

    def author_may(
        self, author: Author, attributes: Mapping[str, str], deadline_ns: int
    ) -> bool:
        assert deadline_ns > 0
        namespace = attributes["namespace"]
        assert namespace in ("team", "of this service")
        if not self._is_up:
            raise KubeUnavailable("t", "the API server does not answer")
        self.authors.append(author)
        resource = attributes["resource"]
        if attributes.get("subresource"):
            resource += f"/{attributes['subresource']}"
        if namespace != "team":
            resource = f"{resource} of this service"
        asked = (attributes["verb"], attributes.get("group", ""), resource)
        # All permissions in a namespace are none in another one.
        is_all = ALL in self._grants and namespace == "team"
        return is_all or asked in self._grants


def review(
    raw: Json,
    cluster: Cluster | None,
    old: Json = None,
    *,
    needs_approval: bool = False,
) -> str:
    """Return the reason of a denial, "" if the policy is admitted."""
    group, _, version = raw["apiVersion"].rpartition("/")
    request = {
        "uid": "u",
        "operation": "UPDATE" if old else "CREATE",
        "kind": {"group": group, "version": version, "kind": raw["kind"]},
        "namespace": raw["metadata"].get("namespace", ""),
        "userInfo": {"username": "eve", "groups": ["g"], "extra": {"scope": ["a"]}},
        "object": raw,
        "oldObject": old,
    }
    view = ClusterView(
        kinds=BuiltInKinds(), authors=cluster, opens=lambda _entry, _namespace: True
    )
    path = "/cleanuppolicyvalidate" if "Cleanup" in raw["kind"] else "/policyvalidate"
    if raw["kind"] == "PolicyException":
        path = "/exceptionvalidate"
    options = ReviewOptions(view=view, exceptions_need_approval=needs_approval)
    answer = PolicyReview(options, lambda: 0.0).answer(
        path, json.dumps({"request": request}).encode()
    )
    response = json.loads(answer)["response"]
    return "" if response["allowed"] else str(response["status"]["message"])


def legacy(body: Json) -> Json:
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "Policy",
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {"rules": [{"name": "r", "match": MATCH, **body}]},
    }


def cleanup(kind: str) -> Json:
    return {
        "apiVersion": "kyverno.io/v2",
        "kind": "CleanupPolicy",
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {
            "match": {"any": [{"resources": {"kinds": [kind]}}]},
            "schedule": "0 * * * *",
        },
    }


def in_cel(kind: str, **spec: Json) -> Json:
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": f"Namespaced{kind}",
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {"matchConstraints": MAPS, **spec},
    }


def target(api_version: str, kind: str, **fields: str) -> Json:
    one = {"apiVersion": api_version, "kind": kind, "namespace": "team", **fields}
    return legacy({"mutate": {"targets": [one], **PATCH}})


def generate(kind: str, api_version: str = "v1", **fields: Json) -> Json:
    made = {
        "apiVersion": api_version,
        "kind": kind,
        "name": "made",
        "namespace": "team",
        **fields,
    }
    if "clone" not in fields:
        made["data"] = {"data": {"a": "b"}}
    return legacy({"generate": made})


def generate_list(kind: str) -> Json:
    cloned = {"namespace": "team", "kinds": [kind]}
    return legacy({"generate": {"namespace": "team", "cloneList": cloned}})


def call(path: str, **fields: str) -> Json:
    entry = {"name": "read", "apiCall": {"urlPath": path, **fields}}
    deny = {"message": "m", "deny": {"conditions": {}}}
    return legacy({"context": [entry], "validate": deny})


def reading(text: str) -> Json:
    return in_cel(
        "ValidatingPolicy",
        variables=[{"name": "v", "expression": text}],
        validations=[{"expression": "true"}],
    )


def mutating(resource: str) -> Json:
    rule = {**MAPS["resourceRules"][0], "resources": [resource]}
    return in_cel(
        "MutatingPolicy",
        evaluation={"mutateExisting": {"enabled": True}},
        targetMatchConstraints={"resourceRules": [rule]},
        mutations=[
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": "Object{}"},
            }
        ],
    )


def generating(value: str, *, synchronize: bool = False) -> Json:
    return in_cel(
        "GeneratingPolicy",
        evaluation={"synchronize": {"enabled": synchronize}},
        generate=[{"template": {"value": value}}],
    )


def deleting(resource: str) -> Json:
    rule = {**MAPS["resourceRules"][0], "resources": [resource]}
    return in_cel(
        "DeletingPolicy",
        matchConstraints={"resourceRules": [rule]},
        schedule="0 * * * *",
        conditions=[{"name": "c", "expression": "true"}],
    )


def on(resource: str, *verbs: str, group: str = "") -> set[Grant]:
    return {(verb, group, resource) for verb in verbs}


def verifying(keys: Json, **fields: Json) -> Json:
    images = {
        "imageReferences": ["ghcr.io/*"],
        "mutateDigest": False,
        "attestors": [{"entries": [keys]}],
        **fields,
    }
    return legacy({"verifyImages": [images]})


def keys_in_cel(**key: str) -> Json:
    return in_cel(
        "ImageValidatingPolicy",
        attestors=[{"name": "a", "cosign": {"key": key}}],
        validations=[{"expression": "true"}],
    )


def context(**entry: Json) -> Json:
    deny = {"message": "m", "deny": {"conditions": {}}}
    return legacy({"context": [{"name": "read", **entry}], "validate": deny})


PEM = "-----BEGIN PUBLIC KEY-----\nAA==\n-----END PUBLIC KEY-----"
KEY = "k8s://team/key"
NESTED: Json = {"attestor": {"entries": [{"keys": {"kms": KEY}}]}}
CREDENTIALS: Json = {"imageRegistryCredentials": {"secrets": ["pull"]}}
OURS = on("secrets of this service", "get")
MADE = "apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: team}\n"
NEEDS: dict[str, tuple[Json, set[Grant]]] = {
    "target": (
        target("v1", "ResourceQuota", name="quota"),
        on("resourcequotas", "get", "update", "patch"),
    ),
    "any target": (
        target("v1", "ResourceQuota"),
        on("resourcequotas", "get", "list", "update", "patch"),
    ),
    "generate": (generate("Secret"), on("secrets", "get", "create")),
    "generate and synchronize": (
        generate("Secret", synchronize=True),
        on("secrets", "get", "create", "update", "delete"),
    ),
    "clone": (
        generate("Secret", clone={"namespace": "team", "name": "source"}),
        on("secrets", "get", "create"),
    ),
    "generate a role": (
        generate("Role", f"{RBAC}/v1"),
        on("roles", "get", "create", "escalate", group=RBAC),
    ),
    "generate a binding": (
        generate("RoleBinding", f"{RBAC}/v1"),
        on("rolebindings", "get", "create", group=RBAC)
        | on("roles", "bind", group=RBAC)
        | on("clusterroles", "bind", group=RBAC),
    ),
    "clean up": (cleanup("Secret"), on("secrets", "list", "delete")),
    "get by path": (
        call("/api/v1/namespaces/team/secrets/token"),
        on("secrets", "get"),
    ),
    "list by path": (
        call("/apis/apps/v1/namespaces/{{request.namespace}}/deployments?limit=1"),
        on("deployments", "list", group="apps"),
    ),
    "subresource by path": (
        call("/api/v1/namespaces/team/pods/{{ request.object.data.pod }}/log"),
        on("pods/log", "get"),
    ),
    "mutate in CEL": (
        mutating("resourcequotas"),
        on("resourcequotas", "get", "list", "update", "patch"),
    ),
    "template in CEL": (generating(MADE), on("secrets", "get", "create")),
    "synchronized template": (
        generating(MADE, synchronize=True),
        on("secrets", "get", "create", "update", "delete"),
    ),
    "delete in CEL": (deleting("secrets"), on("secrets", "list", "delete")),
    "get in CEL": (
        reading('resource.Get("v1", "secrets", "token")'),
        on("secrets", "get"),
    ),
    "list in CEL": (
        reading('resource.List("apps/v1", "deployments")'),
        on("deployments", "list", group="apps"),
    ),
    "config map": (
        context(configMap={"name": "m", "namespace": "team"}),
        on("configmaps", "get"),
    ),
    "cloned list": (
        generate_list("v1/Secret"),
        on("secrets", "get", "create", "list"),
    ),
    "key in a Secret": (
        verifying({"keys": {"publicKeys": KEY}}),
        on("secrets", "get"),
    ),
    "key in a named Secret": (
        verifying({"keys": {"secret": {"name": "key", "namespace": "team"}}}),
        on("secrets", "get"),
    ),
    "key by address": (verifying({"keys": {"kms": KEY}}), on("secrets", "get")),
    "nested key": (verifying(NESTED), on("secrets", "get")),
    "key of a manifest": (
        legacy(
            {
                "validate": {
                    "message": "m",
                    "manifests": {
                        "attestors": [{"entries": [{"keys": {"publicKeys": KEY}}]}]
                    },
                }
            }
        ),
        on("secrets", "get"),
    ),
    "known at run time: key": (
        verifying({"keys": {"publicKeys": "{{ request.object.data.key }}"}}),
        on("secrets", "get"),
    ),
    "key in CEL": (keys_in_cel(kms=KEY), on("secrets", "get")),
    "credentials of a verification": (
        verifying({"keys": {"publicKeys": PEM}}, **CREDENTIALS),
        OURS,
    ),
    "credentials of image data": (
        context(imageRegistry={"reference": "ghcr.io/a", **CREDENTIALS}),
        OURS,
    ),
    "credentials in CEL": (
        in_cel(
            "ImageValidatingPolicy",
            credentials={"secrets": ["pull"]},
            attestors=[{"name": "a", "cosign": {"key": {"data": PEM}}}],
            validations=[{"expression": "true"}],
        ),
        OURS,
    ),
    "credentials of signatures": (
        in_cel(
            "ImageValidatingPolicy",
            attestors=[
                {
                    "name": "a",
                    "cosign": {
                        "key": {"data": PEM},
                        "source": {"PullSecrets": [{"name": "pull"}]},
                    },
                }
            ],
            validations=[{"expression": "true"}],
        ),
        OURS,
    ),
    "known at run time: kind": (target("v1", "{{ request.object.data.k }}"), {ALL}),
    "known at run time: path": (
        call("/api/v1/namespaces/team/{{ request.object.data.a }}/b"),
        {ALL},
    ),
    "known at run time: dots": (
        call("/api/v1/namespaces/team/configmaps/../secrets/a"),
        {ALL},
    ),
    "known at run time: CEL": (
        reading('resource.Get("v1", object.data.kind, "token")'),
        {ALL},
    ),
    "known at run time: resources": (deleting("*"), {ALL}),
    "known at run time: generator": (
        in_cel(
            "GeneratingPolicy",
            generate=[{"expression": "generator.Apply('team', [object])"}],
        ),
        {ALL},
    ),
    "known at run time: unknown kind": (
        generate("Widget", "example.com/v1", synchronize=True),
        {ALL},
    ),
}


@pytest.mark.parametrize("way", NEEDS)
def test_author_needs_each_permission(way: str) -> None:
    raw, grants = NEEDS[way]
    assert review(raw, Cluster(grants)) == ""
    elsewhere = {one for one in grants if one in OURS}
    assert review(raw, Cluster({ALL} | elsewhere)) == ""
    for missing in grants:
        answer = review(raw, Cluster(grants - {missing}))
        assert "auth check fails" in answer, missing
        verb, _, resource = missing
        assert f"eve requires permissions {verb} for resource " in answer
        ours = resource.removesuffix(" of this service")
        where = "team" if ours == resource else "of this service"
        assert f"{ours} in namespace {where}" in answer


@pytest.mark.parametrize("way", NEEDS)
def test_unreachable_api_server_refuses(way: str) -> None:
    answer = review(NEEDS[way][0], Cluster({ALL}, is_up=False))
    assert answer == "the API server does not answer"


@pytest.mark.parametrize("way", NEEDS)
def test_only_changes_of_what_a_policy_does_are_checked(way: str) -> None:
    raw, _ = NEEDS[way]
    nobody = Cluster(())
    labelled = {**raw, "metadata": {**raw["metadata"], "labels": {"a": "b"}}}
    assert review(labelled, nobody, old=raw) == ""
    assert nobody.authors == []
    annotated = {**raw, "metadata": {**raw["metadata"], "annotations": {"a": "b"}}}
    assert "auth check fails" in review(annotated, nobody, old=raw)


def test_whole_user_is_sent() -> None:
    cluster = Cluster({ALL})
    assert review(NEEDS["generate"][0], cluster) == ""
    assert cluster.authors[0] == Author("eve", ("g",), {"scope": ["a"]})


def test_policies_without_such_effects_need_nothing() -> None:
    key = verifying({"keys": {"publicKeys": PEM}})
    plain = legacy({"validate": {"message": "m", "pattern": {"data": {"a": "?*"}}}})
    for raw in (
        plain,
        key,
        keys_in_cel(data=PEM),
        in_cel("ValidatingPolicy", validations=[{"expression": "true"}]),
    ):
        assert review(raw, Cluster(())) == ""


def test_cluster_policies_are_not_checked() -> None:
    raw = target("v1", "ResourceQuota", name="quota")
    raw = {**raw, "kind": "ClusterPolicy", "metadata": {"name": "p"}}
    assert review(raw, Cluster((), is_up=False)) == ""


@pytest.mark.parametrize(
    "value", ["", "..", ".", "a/log", "../secrets/x", "a?b", "/a", "a/../b"]
)
def test_variable_fills_only_its_segment(value: str) -> None:
    """Otherwise, it would read another resource than the one that was checked."""
    template = "/api/v1/namespaces/team/pods/{{ n }}/log"
    fixed = fixed_path(template)
    assert fixed is not None
    assert not fixed.has_shape(template.replace("{{ n }}", value))
    assert fixed.has_shape(template.replace("{{ n }}", "name"))


def test_policy_that_is_being_deleted() -> None:
    """It stays in force until its finalizers are gone, so new content is reviewed."""
    before = legacy({"validate": {"message": "m", "pattern": {"data": {"a": "?*"}}}})
    metadata = {**before["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    old = {**before, "metadata": {**metadata, "finalizers": ["a/b"]}}
    nobody = Cluster(())
    assert review({**before, "metadata": metadata}, nobody, old=old) == ""
    for raw, _ in NEEDS.values():
        if raw["kind"] == "Policy":
            answer = review({**raw, "metadata": metadata}, nobody, old=old)
            assert "auth check fails" in answer


def exception(group: str, namespace: str = "team", **annotations: str) -> Json:
    legacy = {
        "exceptions": [{"policyName": "p", "ruleNames": ["r"]}],
        "match": MATCH,
    }
    in_cel = {"policyRefs": [{"name": "p", "kind": "ValidatingPolicy"}]}
    is_legacy = group == "kyverno.io"
    return {
        "apiVersion": f"{group}/v2" if is_legacy else f"{group}/v1",
        "kind": "PolicyException",
        "metadata": {"name": "e", "namespace": namespace, "annotations": annotations},
        "spec": legacy if is_legacy else in_cel,
    }


def approve(group: str) -> Grant:
    return "approve", group, "policyexceptions"


GROUPS = pytest.mark.parametrize("group", ["kyverno.io", "policies.kyverno.io"])


@GROUPS
def test_an_exception_needs_the_verb_approve(group: str) -> None:
    """It is a right of its own: to create exceptions is not enough."""
    document = exception(group)
    other = "kyverno.io" if group.startswith("policies") else "policies.kyverno.io"
    grants = [
        [("create", group, "policyexceptions"), ("update", group, "policyexceptions")],
        [approve(other)],
        [("approve", group, "policies")],
    ]
    for lacking in grants:
        message = review(document, Cluster(lacking), needs_approval=True)
        assert f"approve on policyexceptions.{group} in the namespace team" in message
        assert "[exception.unapproved]" in message
        assert review(document, Cluster(lacking)) == ""
    cluster = Cluster([approve(group)])
    assert review(document, cluster, needs_approval=True) == ""
    (author,) = cluster.authors
    assert (author.name, author.groups) == ("eve", ("g",))


END = {"kyverno-mp.io/expires": "2099-01-01T00:00:00Z"}
CHANGED_SPECS: Json = {
    "kyverno.io": {"background": False},
    "policies.kyverno.io": {"matchConditions": [{"name": "a", "expression": "true"}]},
}


@GROUPS
@pytest.mark.parametrize(
    ("metadata", "spec", "lacking"),
    [
        ({"annotations": END, "labels": {"a": "b"}}, {}, ""),
        ({"annotations": {**END, "example.com/a": "b"}}, {}, ""),
        ({"annotations": {**END, "kyverno-mp.io/reason": "r"}}, {}, "approve"),
        ({"annotations": {}}, {}, "approve"),
        ({"annotations": END}, CHANGED_SPECS, "approve"),
    ],
    ids=["a label", "another's annotation", "the reason", "no end", "the spec"],
)
def test_a_change_of_what_is_exempt_is_approved(
    group: str, metadata: Json, spec: Json, lacking: str
) -> None:
    before, after = exception(group, **END), exception(group)
    after["metadata"] |= metadata
    after["spec"] |= spec.get(group, {})
    message = review(after, Cluster([]), before, needs_approval=True)
    assert lacking in message
    assert bool(message) is bool(lacking)
    assert review(after, Cluster([approve(group)]), before, needs_approval=True) == ""


@GROUPS
def test_what_cannot_be_checked_is_not_approved(group: str) -> None:
    document = exception(group)
    down = Cluster([approve(group)], is_up=False)
    assert "does not answer" in review(document, down, needs_approval=True)
    assert "cannot be checked" in review(document, None, needs_approval=True)
