"""The webhooks match exactly the requests that policies have to evaluate."""

from dataclasses import replace
from typing import Any

import pytest

from kyverno_mp.controllers.webhook_config.options import WebhookOptions
from kyverno_mp.controllers.webhook_config.reconcile import reconcile, remove_all
from kyverno_mp.controllers.webhook_config.resources import (
    Desired,
    desired,
    without_bootstrap,
)
from kyverno_mp.controllers.webhook_config.rules import Entry, rules_of
from kyverno_mp.controllers.webhook_config.static import (
    admission_configurations,
    cleanup_configurations,
)
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.resource import Resource
from kyverno_mp.policy.check import read
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy, Policy
from tests.unit.controllers.match_conditions import NEWER, OLD
from tests.unit.kube.fake_api import FakeApi, running

OPTIONS = WebhookOptions(ca_bundle=b"PEM")


def resource(
    group: str, plural: str, kind: str, *, namespaced: bool = True
) -> Resource:
    plural, _, part = plural.partition("/")
    return Resource(
        group=group,
        version="v1",
        plural=plural,
        kind=kind,
        namespaced=namespaced,
        subresource=part,
    )


DIRECTORY = Directory(
    [
        resource("", "pods", "Pod"),
        resource("", "pods/exec", "PodExecOptions"),
        resource("", "configmaps", "ConfigMap"),
        resource("", "secrets", "Secret"),
        resource("", "namespaces", "Namespace", namespaced=False),
        resource("apps", "deployments", "Deployment"),
        resource("apps", "deployments/scale", "Scale"),
        resource("networking.k8s.io", "networkpolicies", "NetworkPolicy"),
        resource("coordination.k8s.io", "leases", "Lease"),
    ]
)
PATTERN = {"message": "m", "pattern": {"metadata": {"name": "?*"}}}
PATCH = {"patchStrategicMerge": {"metadata": {"labels": {"a": "b"}}}}


def rule(*kinds: str, **fields: Any) -> dict[str, Any]:
    match = {"any": [{"resources": {"kinds": list(kinds)}}]}
    return {"name": "r", "match": match, **(fields or {"validate": PATTERN})}


def policy(
    *rules: dict[str, Any], name: str = "p", namespace: str = "", **spec: Any
) -> ClusterPolicy | Policy:
    numbered = [{**one, "name": f"r{i}"} for i, one in enumerate(rules)]
    raw: dict[str, Any] = {
        "apiVersion": "kyverno.io/v1",
        "kind": "Policy" if namespace else "ClusterPolicy",
        "metadata": {
            "name": name,
            "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
        },
        "spec": {"rules": numbered, "background": False, **spec},
    }
    if namespace:
        raw["metadata"]["namespace"] = namespace
    document, _ = read(raw, file="test")
    assert isinstance(document, ClusterPolicy | Policy)
    return document


def computed(*policies: ClusterPolicy | Policy, **options: Any) -> Desired:
    chosen = WebhookOptions(ca_bundle=b"PEM", **options)
    return desired(policies, DIRECTORY, chosen)


def shown(rules: list[Any]) -> list[str]:
    """Return each rule on one line: group/version resources operations scope."""
    return [
        f"{one['apiGroups'][0]}/{one['apiVersions'][0]}"
        f" {','.join(one['resources'])} {','.join(one['operations'])} {one['scope']}"
        for one in rules
    ]


def validating(*policies: ClusterPolicy | Policy) -> list[str]:
    (webhook,) = computed(*policies).validating["webhooks"]
    return shown(webhook["rules"])


ALL = "CONNECT,CREATE,DELETE,UPDATE"


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["ConfigMap"], [f"/v1 configmaps {ALL} Namespaced"]),
        (["Namespace"], [f"/v1 namespaces {ALL} *"]),
        (["Pod"], [f"/v1 pods,pods/ephemeralcontainers {ALL} Namespaced"]),
        (["Pod/exec"], [f"/v1 pods/exec {ALL} Namespaced"]),
        (["apps/v1/Deployment.scale"], [f"apps/v1 deployments/scale {ALL} Namespaced"]),
        (["*"], [f"*/* *,pods/ephemeralcontainers {ALL} *"]),
        (["*/*"], [f"*/* */* {ALL} *"]),
        (["*/scale"], [f"*/* */scale {ALL} *"]),
        # The API server rejects a resource beside a wildcard that covers it.
        (["*", "*/ephemeralcontainers"], [f"*/* *,*/ephemeralcontainers {ALL} *"]),
        (["*", "ConfigMap"], [f"*/* *,pods/ephemeralcontainers {ALL} *"]),
        (
            ["ConfigMap", "Deployment", "Secret"],
            [
                f"/v1 configmaps,secrets {ALL} Namespaced",
                f"apps/v1 deployments {ALL} Namespaced",
            ],
        ),
        (["ConfigMap", "Unknown"], [f"/v1 configmaps {ALL} Namespaced"]),
    ],
)
def test_kinds_become_rules(kinds: list[str], expected: list[str]) -> None:
    assert validating(policy(*(rule(kind) for kind in kinds))) == expected


def test_wildcards_of_a_namespaced_policy_are_namespaced() -> None:
    document = policy(rule("*"), namespace="a")
    assert validating(document) == [f"*/* *,pods/ephemeralcontainers {ALL} Namespaced"]


def test_operations_of_the_block_replace_the_default() -> None:
    match = {"resources": {"kinds": ["ConfigMap"], "operations": ["CREATE"]}}
    document = policy(
        {"match": {"any": [match]}, "validate": PATTERN},
        rule("Secret"),
    )
    assert validating(document) == [
        "/v1 configmaps CREATE Namespaced",
        f"/v1 secrets {ALL} Namespaced",
    ]


@pytest.mark.parametrize("nothing", [{}, {"resources": {}}])
def test_empty_exclusion_excludes_nothing(nothing: dict[str, Any]) -> None:
    """Upstream registers no webhook for such a rule and would allow all requests."""
    document = policy(rule("Secret", validate=PATTERN, exclude={"any": [nothing]}))
    assert validating(document) == [f"/v1 secrets {ALL} Namespaced"]


def test_only_plain_exclusions_are_subtracted() -> None:
    plain = {"resources": {"kinds": ["ConfigMap"], "operations": ["DELETE", "CONNECT"]}}
    named = {"resources": {"kinds": ["Secret"], "names": ["x"]}}
    document = policy(
        rule("ConfigMap", "Secret", validate=PATTERN, exclude={"any": [plain, named]})
    )
    assert validating(document) == [
        "/v1 configmaps CREATE,UPDATE Namespaced",
        f"/v1 secrets {ALL} Namespaced",
    ]


def test_autogen_rules_are_included() -> None:
    document = policy(rule("Pod"))
    assert isinstance(document, ClusterPolicy)
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"rules": [{**rule("Pod"), "name": "r"}]},
    }
    raw["spec"]["rules"][0]["validate"] = {  # type: ignore[index]
        "message": "m",
        "pattern": {"spec": {"containers": [{"image": "*"}]}},
    }
    expanded, _ = read(raw, file="test")
    assert isinstance(expanded, ClusterPolicy)
    assert f"apps/v1 deployments {ALL} Namespaced" in validating(expanded)


def test_mutate_rules_use_the_mutating_configuration() -> None:
    found = computed(policy(rule("ConfigMap", mutate=PATCH)))
    assert found.validating["webhooks"] == []
    (webhook,) = found.mutating["webhooks"]
    assert webhook["name"] == "mutate.kyverno.svc-fail"
    assert webhook["clientConfig"]["service"]["path"] == "/mutate/fail"
    assert webhook["reinvocationPolicy"] == "IfNeeded"
    assert shown(webhook["rules"]) == ["/v1 configmaps CREATE,UPDATE Namespaced"]


def test_generate_rules_select_triggers_and_targets() -> None:
    generate = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "name": "n",
        "namespace": "{{request.object.metadata.name}}",
        "data": {"spec": {}},
    }
    found = computed(policy(rule("Namespace", generate=generate)))
    assert found.mutating["webhooks"] == []
    assert shown(found.validating["webhooks"][0]["rules"]) == [
        f"/v1 namespaces {ALL} *",
        "networking.k8s.io/v1 networkpolicies CREATE,DELETE,UPDATE Namespaced",
    ]


def test_failure_policies_are_split_and_the_longest_timeout_applies() -> None:
    found = computed(
        policy(rule("Secret"), name="a", failurePolicy="Ignore"),
        policy(rule("ConfigMap"), name="b", webhookTimeoutSeconds=25),
        policy(rule("Pod"), name="c", webhookConfiguration={"timeoutSeconds": 3}),
    )
    fail, ignore = found.validating["webhooks"]
    assert (fail["name"], fail["timeoutSeconds"]) == ("validate.kyverno.svc-fail", 25)
    assert (ignore["name"], ignore["timeoutSeconds"]) == (
        "validate.kyverno.svc-ignore",
        10,
    )
    assert ignore["failurePolicy"] == "Ignore"
    assert ignore["clientConfig"]["service"]["path"] == "/validate/ignore"


def test_force_ignore_leaves_no_failing_webhook() -> None:
    found = computed(policy(rule("Secret")), force_ignore=True)
    assert [one["failurePolicy"] for one in found.validating["webhooks"]] == ["Ignore"]


def test_conditions_require_a_separate_webhook() -> None:
    condition = {"name": "c", "expression": "request.operation == 'CREATE'"}
    own = {"matchConditions": [condition]}
    general = {"name": "g", "expression": "true"}
    found = computed(
        policy(rule("Secret"), webhookConfiguration=own),
        policy(rule("Secret"), namespace="a", webhookConfiguration=own),
        policy(rule("Pod"), name="other"),
        match_conditions=(general,),
    )
    shared, cluster, namespaced = found.validating["webhooks"]
    assert shared["matchConditions"] == [general]
    assert [cluster["name"], namespaced["name"]] == [
        "validate.kyverno.svc-fail-finegrained-a-p",
        "validate.kyverno.svc-fail-finegrained-p",
    ]
    assert cluster["matchConditions"] == [condition]
    paths = [one["clientConfig"]["service"]["path"] for one in (cluster, namespaced)]
    assert paths == ["/validate/fail/finegrained/a/p", "/validate/fail/finegrained/p"]


def test_colliding_names_get_a_suffix() -> None:
    """A repeated name makes the API server reject the whole configuration."""
    own = {"matchConditions": [{"name": "c", "expression": "true"}]}
    found = computed(
        policy(rule("Secret"), name="a-b", webhookConfiguration=own),
        policy(rule("Secret"), name="b", namespace="a", webhookConfiguration=own),
    )
    names = [one["name"] for one in found.validating["webhooks"]]
    assert len(set(names)) == 2


def test_admission_false_has_no_rules_and_is_ready() -> None:
    found = computed(policy(rule("Secret"), admission=False, background=True))
    assert found.validating["webhooks"] == []
    assert found.ready == {"p"}


def test_rule_for_everything_exempts_kinds_required_at_startup() -> None:
    (webhook,) = computed(policy(rule("*"))).validating["webhooks"]
    assert "leases" in webhook["matchConditions"][0]["expression"]
    assert webhook["namespaceSelector"]["matchExpressions"] == [
        {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["kube-system", "kyverno"],
        }
    ]
    (webhook,) = computed(policy(rule("*"), rule("Lease"))).validating["webhooks"]
    assert "leases" not in webhook["matchConditions"][0]["expression"]
    own = {"matchLabels": {"x": "y"}}
    (webhook,) = computed(policy(rule("Secret")), namespace_selector=own).validating[
        "webhooks"
    ]
    assert webhook["namespaceSelector"] == own
    assert "matchConditions" not in webhook


def test_without_auto_update_everything_is_matched() -> None:
    found = computed(auto_update=False)
    assert [one["name"] for one in found.mutating["webhooks"]] == [
        "mutate.kyverno.svc-fail",
        "mutate.kyverno.svc-ignore",
    ]
    assert shown(found.mutating["webhooks"][0]["rules"]) == ["*/* */* CREATE,UPDATE *"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["pods", "pods/*"], ["pods", "pods/*"]),
        (["pods", "*"], ["*"]),
        (["pods", "*/*"], ["*/*"]),
        (["pods/scale", "pods/*"], ["pods/*"]),
        (["pods/scale", "*/scale"], ["*/scale"]),
        (["pods/scale", "*"], ["*", "pods/scale"]),
        (["pods/*", "*/*", "*/scale"], ["*/*"]),
    ],
)
def test_included_resources_are_omitted(names: list[str], expected: list[str]) -> None:
    entries = []
    for name in names:
        one, _, part = name.partition("/")
        entries.append(Entry("apps", "v1", one, part, "*", "CREATE"))
    (found,) = rules_of(entries)
    assert found["resources"] == expected


def test_wider_groups_versions_and_scopes_include_narrower_ones() -> None:
    narrow = Entry("apps", "v1", "deployments", "", "Namespaced", "CREATE")
    for wide in (
        narrow._replace(group="*"),
        narrow._replace(version="*"),
        narrow._replace(scope="*"),
    ):
        assert rules_of([narrow, wide]) == rules_of([wide])
    other = narrow._replace(group="*", operation="UPDATE")
    assert len(rules_of([narrow, other])) == 2


def test_static_configurations_have_upstreams_names_and_paths() -> None:
    found = {
        raw["metadata"]["name"]: [
            (one["name"], one["clientConfig"]["service"]["path"], one["failurePolicy"])
            for one in raw["webhooks"]
        ]
        for raw in (
            *admission_configurations(OPTIONS),
            *cleanup_configurations(OPTIONS),
        )
    }
    generic = "kyverno-svc.kyverno.svc"
    assert found == {
        "kyverno-policy-validating-webhook-cfg": [
            ("validate-policy.kyverno.svc", "/policyvalidate", "Fail")
        ],
        "kyverno-policy-mutating-webhook-cfg": [
            ("mutate-policy.kyverno.svc", "/policymutate", "Fail")
        ],
        "kyverno-verify-mutating-webhook-cfg": [
            ("monitor-webhooks.kyverno.svc", "/verifymutate", "Ignore")
        ],
        "kyverno-exception-validating-webhook-cfg": [
            (generic, "/exceptionvalidate", "Fail")
        ],
        "kyverno-cel-exception-validating-webhook-cfg": [
            (generic, "/celexception/validate", "Fail")
        ],
        "kyverno-global-context-validating-webhook-cfg": [
            (generic, "/globalcontextvalidate", "Fail")
        ],
        "kyverno-cleanup-validating-webhook-cfg": [
            (generic, "/cleanuppolicyvalidate", "Fail")
        ],
        "kyverno-ttl-validating-webhook-cfg": [(generic, "/verifyttl", "Ignore")],
    }


def all_of(found: Desired) -> list[Any]:
    return [found.validating, found.mutating, *admission_configurations(OPTIONS)]


def test_reconcile_writes_once_and_repairs_foreign_changes() -> None:
    with running() as api:
        objects = Objects(api.client())
        wanted = all_of(computed(policy(rule("Secret"), rule("Pod", mutate=PATCH))))
        assert reconcile(objects, wanted) == len(wanted)
        _fill_in_as_the_server_does(api)
        assert reconcile(objects, wanted) == 0
        (key, raw) = next(
            item for item in api.objects.items() if "resource-val" in item[0][3]
        )
        api.store(key, {**raw, "webhooks": []})
        assert reconcile(objects, wanted) == 1
        api.forget(key)
        assert reconcile(objects, wanted) == 1
        changed = all_of(computed(policy(rule("ConfigMap"))))
        assert reconcile(objects, changed) == 2
        kept = [raw["metadata"]["name"] for raw in changed]
        assert reconcile(objects, wanted, create_only=kept) == 0


def test_foreign_fields_are_kept_except_the_ca_bundle() -> None:
    """autoUpdateWebhooks=false: created once, edits are kept, the CA is renewed."""
    with running() as api:
        objects = Objects(api.client())
        fixed = replace(OPTIONS, auto_update=False)
        wanted = desired((), DIRECTORY, fixed)
        names = [
            one["metadata"]["name"] for one in (wanted.validating, wanted.mutating)
        ]
        assert reconcile(objects, [wanted.validating], create_only=names) == 1
        ((key, raw),) = api.objects.items()
        edited = {**raw["webhooks"][0], "timeoutSeconds": 3}
        bare = {"name": raw["metadata"]["name"]}
        api.store(key, {**raw, "metadata": bare, "webhooks": [edited]})
        assert reconcile(objects, [wanted.validating], create_only=names) == 0
        renewed = desired((), DIRECTORY, replace(fixed, ca_bundle=b"new"))
        assert reconcile(objects, [renewed.validating], create_only=names) == 1
        assert reconcile(objects, [renewed.validating], create_only=names) == 0
        found = api.objects[key]
        (webhook,) = found["webhooks"]
        bundle = renewed.validating["webhooks"][0]["clientConfig"]["caBundle"]
        assert webhook["clientConfig"]["caBundle"] == bundle
        assert webhook["timeoutSeconds"] == 3
        assert "labels" not in found["metadata"]


def _fill_in_as_the_server_does(api: FakeApi) -> None:
    for key, raw in list(api.objects.items()):
        for webhook in raw["webhooks"]:
            webhook.setdefault("matchPolicy", "Equivalent")
            webhook.setdefault("namespaceSelector", {})
            webhook.setdefault("objectSelector", {})
            webhook.setdefault("timeoutSeconds", 10)
        api.store(key, {**raw, "metadata": {**raw["metadata"], "generation": 2}})


def test_remove_all_deletes_only_own_objects() -> None:
    with running() as api:
        client = api.client()
        objects = Objects(client)
        reconcile(objects, all_of(computed(policy(rule("Secret")))))
        path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        api.put(f"{path}/other", metadata={"labels": {}})
        assert remove_all(client, objects) == 8
        assert [key[3] for key in api.objects] == ["other"]


def conditional(*conditions: dict[str, str]) -> ClusterPolicy | Policy:
    hooks = {"matchConditions": list(conditions)}
    return policy(rule("Secret", validate=PATTERN), webhookConfiguration=hooks)


@pytest.mark.parametrize(
    "conditions",
    [
        [{"name": "no name", "expression": "true"}],
        [{"name": "", "expression": "true"}],
        [{"name": "a", "expression": "true"}] * 2,
        [{"name": f"n{number}", "expression": "true"} for number in range(64)],
        [{"name": "a", "expression": "nowhere"}],
        [{"name": "a", "expression": "namespaceObject.metadata.name == 'x'"}],
        *([{"name": "a", "expression": text}] for text in NEWER),
    ],
)
def test_rejected_conditions_do_not_block_registration(
    conditions: list[dict[str, str]],
) -> None:
    """The API server would reject all webhooks; workers still evaluate conditions."""
    (webhook,) = computed(conditional(*conditions)).validating["webhooks"]
    assert webhook["name"] == "validate.kyverno.svc-fail"
    assert "matchConditions" not in webhook


@pytest.mark.parametrize("expression", OLD)
def test_conditions_that_every_api_server_accepts_are_registered(
    expression: str,
) -> None:
    good = conditional({"name": "a.b/c", "expression": expression})
    (webhook,) = computed(good).validating["webhooks"]
    assert webhook["name"] == "validate.kyverno.svc-fail-finegrained-p"
    assert webhook["matchConditions"][0]["expression"] == expression
    (webhook,) = computed(good, fine_grained=False).validating["webhooks"]
    assert webhook["name"] == "validate.kyverno.svc-fail"


def test_name_of_the_exempting_condition_is_unique() -> None:
    """The API server rejects two conditions with one name."""
    own = {"matchConditions": [{"name": "kyverno-mp-spared", "expression": "true"}]}
    document = policy(rule("*", validate=PATTERN), webhookConfiguration=own)
    (webhook,) = computed(document).validating["webhooks"]
    names = [one["name"] for one in webhook["matchConditions"]]
    assert names == ["kyverno-mp-spared", "kyverno-mp-spared-too"]


NODES = (
    '!(request.resource.group == "" && request.resource.resource == "nodes") && '
    '!(request.resource.group == "certificates.k8s.io" && '
    'request.resource.resource == "certificatesigningrequests")'
)


def test_blocking_webhooks_exclude_what_a_starting_cluster_needs() -> None:
    """Upstream's condition; without it, a stopped cluster never gets its nodes."""
    condition = {"name": "kyverno-exclude-bootstrap-resources", "expression": NODES}
    found = computed(
        policy(rule("Secret", validate=PATTERN), name="n"),
        policy(rule("Secret", validate=PATTERN), name="i", failurePolicy="Ignore"),
        conditional({"name": "a", "expression": "true"}),
    ).validating["webhooks"]
    without_bootstrap(found)
    without_bootstrap(found)
    by_name = {one["name"]: one.get("matchConditions", []) for one in found}
    assert by_name["validate.kyverno.svc-fail"] == [condition]
    assert by_name["validate.kyverno.svc-ignore"] == []
    assert by_name["validate.kyverno.svc-fail-finegrained-p"][1:] == [condition]


def test_a_full_webhook_excludes_it_too() -> None:
    """K8S: with a 65th condition, no configuration would be accepted."""
    given = [{"name": f"n{number}", "expression": "true"} for number in range(64)]
    webhook = {"failurePolicy": "Fail", "matchConditions": given}
    without_bootstrap([webhook])
    assert len(webhook["matchConditions"]) == 64
    assert webhook["matchConditions"][-1] == {
        "name": "n63",
        "expression": f"(true) && {NODES}",
    }
    assert given[-1]["expression"] == "true", "lists of policies are not changed"
