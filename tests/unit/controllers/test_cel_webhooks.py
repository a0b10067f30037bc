"""The webhooks of policies in CEL.

A failure means: the API server does not call us, or one policy makes it reject the
webhooks of all policies.
"""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.controllers.cel_status import cel_status_of
from kyverno_mp.controllers.webhook_config.cel import (
    cel_mutating_webhooks,
    cel_webhooks,
)
from kyverno_mp.controllers.webhook_config.cel_documents import DecodedCelPolicies
from kyverno_mp.controllers.webhook_config.options import WebhookOptions
from kyverno_mp.limits import (
    HEAD_BYTES_MAX,
    INDEX_KEYS_PER_FILTER_MAX,
    WEBHOOK_PATH_CHARACTERS_MAX,
)
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy
from tests.unit.controllers.match_conditions import NEWER, OLD

PODS = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
}
SERVICES = PODS | {"resources": ["services"]}


def documents(*raws: dict[str, Any]) -> tuple[AnyServedPolicy, ...]:
    return DecodedCelPolicies().decode(json.dumps(raw).encode() for raw in raws)


def policy(
    name: str = "p",
    namespace: str = "",
    rules: tuple[dict[str, Any], ...] = (SERVICES,),
    constraints: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    return {
        "apiVersion": "policies.kyverno.io/v1beta1",
        "kind": "NamespacedValidatingPolicy" if namespace else "ValidatingPolicy",
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "spec": {
            "matchConstraints": {"resourceRules": list(rules), **(constraints or {})},
            "validations": [{"expression": "true"}],
            **spec,
        },
    }


def webhooks(*raws: dict[str, Any], **options: Any) -> dict[str, Any]:
    given = WebhookOptions(ca_bundle=b"ca", **options)
    found = cel_webhooks(documents(*raws), given)
    return {one["name"]: one for one in found}


def path_of(webhook: dict[str, Any]) -> str:
    return str(webhook["clientConfig"]["service"]["path"])


def test_policies_share_a_webhook_for_each_failure_policy() -> None:
    found = webhooks(
        policy("b"), policy("a"), policy("c", failurePolicy="Ignore", rules=(PODS,))
    )
    assert {name: path_of(one) for name, one in found.items()} == {
        "vpol.validate.kyverno.svc-fail": "/vpol/a/b",
        "vpol.validate.kyverno.svc-ignore": "/vpol/c",
    }
    fail = found["vpol.validate.kyverno.svc-fail"]
    assert fail["failurePolicy"] == "Fail"
    assert fail["sideEffects"] == "NoneOnDryRun"
    assert fail["rules"] == [SERVICES | {"scope": "*"}]
    covered = {
        name
        for rule in found["vpol.validate.kyverno.svc-ignore"]["rules"]
        for name in rule["resources"]
    }
    assert covered == {
        *("pods", "daemonsets", "deployments", "replicasets", "statefulsets"),
        *("jobs", "cronjobs"),
    }


def test_force_ignore_and_admission_off() -> None:
    off = policy("off", evaluation={"admission": {"enabled": False}})
    json_mode = policy("json", evaluation={"mode": "JSON"})
    (found,) = webhooks(policy(), off, json_mode, force_ignore=True).values()
    assert (found["failurePolicy"], path_of(found)) == ("Ignore", "/vpol/p")


@pytest.mark.parametrize(
    "spec",
    [
        {"matchConditions": [{"name": "c", "expression": "request.name != 'x'"}]},
        {"constraints": {"matchPolicy": "Exact"}},
        {"webhookConfiguration": {"timeoutSeconds": 3}},
    ],
)
def test_some_policies_have_a_separate_webhook(spec: dict[str, Any]) -> None:
    found = webhooks(policy("own", **spec), policy("shared"))
    own = found["vpol.validate.kyverno.svc-fail-finegrained-own"]
    assert path_of(own) == "/vpol/own"
    assert path_of(found["vpol.validate.kyverno.svc-fail"]) == "/vpol/shared"
    conditions = spec.get("matchConditions")
    assert own.get("matchConditions") == conditions
    assert own["timeoutSeconds"] == (3 if "webhookConfiguration" in spec else 10)
    assert own["matchPolicy"] == ("Exact" if "constraints" in spec else "Equivalent")


def test_conditions_of_a_policy_with_autogen_name_their_kinds() -> None:
    condition = {"name": "c", "expression": "object.metadata.name != 'x'"}
    found = webhooks(policy(rules=(PODS,), matchConditions=[condition]))
    (own,) = found.values()
    names = [one["name"] for one in own["matchConditions"]]
    assert names == ["autogen-c", "autogen-cronjobs-c", "autogen-defaults-c"]
    first, second, _ = (one["expression"] for one in own["matchConditions"])
    assert first == (
        "!((object.apiVersion == 'v1' && object.kind =='Pod'))"
        " || (object.metadata.name != 'x')"
    )
    assert second == (
        "!((object.apiVersion == 'batch/v1' && object.kind =='CronJob'))"
        " || (object.spec.jobTemplate.spec.template.metadata.name != 'x')"
    )


@pytest.mark.parametrize("expression", OLD)
def test_condition_that_every_api_server_accepts_is_registered(
    expression: str,
) -> None:
    condition = {"name": "c", "expression": expression}
    (found,) = webhooks(policy(matchConditions=[condition])).values()
    assert condition in found["matchConditions"]


@pytest.mark.parametrize(
    "condition",
    [
        {"name": "c", "expression": "namespaceObject.metadata.name == 'x'"},
        {"name": "c", "expression": "image('x').tag() == 'y'"},
        {"name": "not a name", "expression": "true"},
        *({"name": "c", "expression": text} for text in NEWER),
    ],
)
def test_condition_that_the_api_server_rejects_is_evaluated_here(
    condition: dict[str, str],
) -> None:
    (found,) = webhooks(policy(matchConditions=[condition])).values()
    assert found["name"] == "vpol.validate.kyverno.svc-fail"
    assert "matchConditions" not in found


def test_rules_that_the_api_server_rejects_are_omitted() -> None:
    odd = (
        SERVICES | {"resources": ["*", "services", "", "services/"]},
        SERVICES | {"operations": ["CREATE", "EAT"]},
        SERVICES | {"apiVersions": []},
    )
    (found,) = webhooks(policy(rules=odd), policy("b", rules=(PODS,))).values()
    for rule in found["rules"]:
        assert all(rule[name] for name in ("apiGroups", "apiVersions", "resources"))
        assert set(rule["operations"]) <= {"CREATE", "UPDATE", "DELETE", "CONNECT"}
        assert rule["resources"] == ["*"] or "*" not in rule["resources"]


def test_webhook_for_everything_exempts_required_kinds() -> None:
    everything = PODS | {"resources": ["*"], "apiGroups": ["*"], "operations": ["*"]}
    (found,) = webhooks(policy(rules=(everything,))).values()
    assert "leases" in found["matchConditions"][0]["expression"]


def test_namespaced_policy_gets_only_objects_of_its_namespace() -> None:
    found = webhooks(policy("p", "a"), policy("p", "b"), policy("q", "c"))
    (one,) = found.values()
    assert one["name"] == "nvpol.validate.kyverno.svc-fail"
    assert path_of(one) == "/nvpol-keys/a/p/b/p/c/q"
    terms = one["namespaceSelector"]["matchExpressions"]
    assert terms[-1]["values"] == ["a", "b", "c"]
    assert terms[-1]["operator"] == "In"


SCALERS = PODS | {
    "apiGroups": ["autoscaling"],
    "apiVersions": ["v2"],
    "resources": ["horizontalpodautoscalers"],
}
ANY = SCALERS | {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        (SCALERS, SCALERS, True),
        (SCALERS, SERVICES, True),
        (SCALERS, SCALERS | {"apiVersions": ["v1"]}, False),
        (SCALERS, SCALERS | {"apiVersions": ["v1", "v2"]}, False),
        (SCALERS, SCALERS | {"apiVersions": ["*"]}, False),
        # Ingress existed in two groups.
        (SCALERS, SCALERS | {"apiGroups": ["extensions"]}, False),
        (SCALERS, ANY, False),
        (ANY, SCALERS, False),
        (ANY, ANY, True),
        (ANY, ANY | {"operations": ["*"]}, True),
        (SCALERS, SCALERS | {"apiVersions": ["v1"], "operations": ["DELETE"]}, True),
        (SCALERS, SCALERS | {"operations": ["*"]}, True),
        (SERVICES | {"resources": ["services/*"]}, SERVICES, True),
        (
            SERVICES | {"resources": ["services/*"]},
            SERVICES | {"apiVersions": ["v2"]},
            False,
        ),
        (
            SERVICES | {"apiVersions": ["v2"]},
            SERVICES | {"resources": ["services/*"]},
            False,
        ),
        (SERVICES, SERVICES | {"scope": "Cluster"}, False),
    ],
)
@pytest.mark.parametrize("namespaces", [("", ""), ("a", "b")])
def test_policies_for_different_versions_share_no_webhook(
    first: dict[str, Any],
    second: dict[str, Any],
    namespaces: tuple[str, str],
    *,
    share: bool,
) -> None:
    """K8S: an object matched by one rule is not converted to another rule's version."""
    one, other = namespaces
    found = webhooks(
        policy("p", one, rules=(first,)), policy("q", other, rules=(second,))
    )
    assert len(found) == (1 if share else 2)


def test_rule_with_many_resources_keeps_its_versions() -> None:
    many = [f"r{number}" for number in range(INDEX_KEYS_PER_FILTER_MAX + 1)]
    (found,) = webhooks(policy(rules=(SCALERS | {"resources": many},))).values()
    (rule,) = found["rules"]
    assert (rule["apiVersions"], rule["resources"]) == (["v2"], ["*/*"])


def test_each_version_has_one_webhook_for_all_its_policies() -> None:
    names = {"v1": "ace", "v2": "bdf"}
    found = webhooks(
        *(
            policy(name, rules=(SCALERS | {"apiVersions": [version]},))
            for version, given in names.items()
            for name in given
        )
    )
    paths = sorted(path_of(one) for one in found.values())
    assert paths == ["/vpol/a/c/e", "/vpol/b/d/f"]


def test_names_of_namespaced_policies_do_not_collide() -> None:
    condition = {"name": "c", "expression": "request.name != 'x'"}
    spec: dict[str, Any] = {"matchConditions": [condition]}
    found = webhooks(policy("b-c", "a", **spec), policy("c", "a-b", **spec))
    assert len(found) == 2


def test_selectors_are_registered_unless_the_api_server_rejects_them() -> None:
    timed: dict[str, Any] = {"webhookConfiguration": {"timeoutSeconds": 3}}
    good = {"objectSelector": {"matchLabels": {"a": "b"}}}
    (one,) = webhooks(policy(constraints=good, **timed)).values()
    assert one["objectSelector"] == {"matchLabels": {"a": "b"}}
    term = {"key": "a", "operator": "Near", "values": ["b"]}
    bad = {"objectSelector": {"matchExpressions": [term]}}
    (one,) = webhooks(policy(constraints=bad, **timed)).values()
    assert one["objectSelector"] == {}


def test_separate_webhook_has_the_rules_of_each_autogen_variant() -> None:
    timed: dict[str, Any] = {"webhookConfiguration": {"timeoutSeconds": 3}}
    (one,) = webhooks(policy(rules=(PODS,), **timed)).values()
    assert [(rule["apiGroups"], rule["resources"]) for rule in one["rules"]] == [
        ([""], ["pods"]),
        (["apps"], ["daemonsets", "deployments", "replicasets", "statefulsets"]),
        (["batch"], ["cronjobs"]),
        (["batch"], ["jobs"]),
    ]


def test_long_path_is_split() -> None:
    names = [f"{'n' * 200}-{number:03}" for number in range(200)]
    found = webhooks(*(policy(name) for name in names))
    paths = [path_of(one) for one in found.values()]
    assert len(paths) == 2
    assert all(len(path) < WEBHOOK_PATH_CHARACTERS_MAX + 10 for path in paths)
    served = [name for path in paths for name in path.split("/")[2:]]
    assert sorted(served) == names


def test_a_thousand_policies_are_one_call() -> None:
    """Each webhook costs the API server a call for each request."""
    found = webhooks(*(policy(f"require-a-label-{n:04}") for n in range(1000)))
    (one,) = found.values()
    assert len(path_of(one)) < HEAD_BYTES_MAX - WEBHOOK_PATH_CHARACTERS_MAX // 2


def test_status_equals_upstreams() -> None:
    (one,) = documents(policy(rules=(PODS,)))
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    status = cel_status_of(one, {}, now, ready=True, message="Ready")
    assert status["conditionStatus"] == {
        "ready": True,
        "conditions": [
            {
                "type": "WebhookConfigured",
                "status": "True",
                "reason": "Succeeded",
                "message": "Webhook configured.",
                "lastTransitionTime": "2026-01-02T03:04:05Z",
            },
            {
                "type": "RBACPermissionsGranted",
                "status": "True",
                "reason": "Succeeded",
                "message": "Policy is ready for reporting.",
                "lastTransitionTime": "2026-01-02T03:04:05Z",
            },
        ],
    }
    assert sorted(status["autogen"]["configs"]) == ["cronjobs", "defaults"]
    targets = status["autogen"]["configs"]["defaults"]["targets"]
    assert [(one["group"], one["resource"]) for one in targets] == [
        ("apps", "daemonsets"),
        ("apps", "deployments"),
        ("apps", "replicasets"),
        ("apps", "statefulsets"),
        ("batch", "jobs"),
    ]
    assert status["generated"] is False
    later = now.replace(year=2027)
    assert cel_status_of(one, status, later, ready=True, message="Ready") == status
    failed = cel_status_of(one, status, later, ready=False, message="why")
    condition = failed["conditionStatus"]["conditions"][0]
    assert (condition["status"], condition["message"]) == ("False", "why")


def test_pods_of_kyverno_get_the_paths_that_they_serve() -> None:
    """They answer others with 404, so requests in the policies' namespaces would fail.

    Source: Kyverno 1.18.2 pkg/webhooks/server.go.
    """
    conditions = [{"name": "c", "expression": "true"}]
    given = (
        *(policy("v"), policy("p", "a"), policy("p", "b"), policy("q", "c")),
        policy("own", "d", matchConditions=conditions),
    )
    found = webhooks(*given, upstream_paths=True)
    assert {name: path_of(one) for name, one in found.items()} == {
        "vpol.validate.kyverno.svc-fail": "/vpol/v",
        "nvpol.validate.kyverno.svc-fail": "/nvpol/p/q",
        "nvpol.validate.kyverno.svc-fail-finegrained-d-own": "/nvpol/own",
    }
    options = WebhookOptions(ca_bundle=b"ca", upstream_paths=True)
    (found_mutating,) = cel_mutating_webhooks(
        documents(mutating("n", "space")), options
    )
    assert path_of(found_mutating) == "/nmpol/n"


def mutating(name: str = "m", namespace: str = "", **spec: Any) -> dict[str, Any]:
    given = policy(name, namespace, **spec)
    expression = "Object{metadata: Object.metadata{name: 'x'}}"
    given["kind"] = "NamespacedMutatingPolicy" if namespace else "MutatingPolicy"
    del given["spec"]["validations"]
    given["spec"]["mutations"] = [
        {
            "patchType": "ApplyConfiguration",
            "applyConfiguration": {"expression": expression},
        }
    ]
    return given


def mutating_webhooks(*raws: dict[str, Any]) -> dict[str, Any]:
    options = WebhookOptions(ca_bundle=b"ca")
    found = cel_mutating_webhooks(documents(*raws), options)
    return {one["name"]: one for one in found}


class TestMutatingPolicies:
    def test_each_kind_has_a_separate_configuration(self) -> None:
        given = (policy("v"), mutating("b"), mutating("a"), mutating("n", "space"))
        assert set(webhooks(*given)) == {"vpol.validate.kyverno.svc-fail"}
        found = mutating_webhooks(*given)
        assert {name: path_of(one) for name, one in found.items()} == {
            "mpol.validate.kyverno.svc-fail": "/mpol/a/b",
            "nmpol.validate.kyverno.svc-fail": "/nmpol-keys/space/n",
        }
        assert {one["reinvocationPolicy"] for one in found.values()} == {"Never"}
        assert {one["sideEffects"] for one in found.values()} == {"NoneOnDryRun"}
        selector = found["nmpol.validate.kyverno.svc-fail"]["namespaceSelector"]
        assert ["space"] in [one["values"] for one in selector["matchExpressions"]]

    def test_policy_with_conditions_has_a_separate_webhook(self) -> None:
        condition = {"name": "c", "expression": "request.name != 'x'"}
        (found,) = mutating_webhooks(mutating(matchConditions=[condition])).values()
        assert found["name"] == "mpol.validate.kyverno.svc-fail-finegrained-m"
        assert found["matchConditions"] == [condition]

    @pytest.mark.parametrize("name", ["variables.v == 'x'", "namespaceObject == null"])
    def test_conditions_unknown_to_the_api_server_are_evaluated_here(
        self, name: str
    ) -> None:
        condition = {"name": "c", "expression": name}
        variables = [{"name": "v", "expression": "'x'"}]
        given = mutating(matchConditions=[condition], variables=variables)
        (found,) = mutating_webhooks(given).values()
        assert found["name"] == "mpol.validate.kyverno.svc-fail"
        assert "matchConditions" not in found

    def test_autogen_variants_are_covered(self) -> None:
        (found,) = mutating_webhooks(mutating(rules=(PODS,))).values()
        covered = {name for rule in found["rules"] for name in rule["resources"]}
        assert {"pods", "deployments", "cronjobs"} <= covered

    def test_admission_off(self) -> None:
        off = {"admission": {"enabled": False}}
        assert mutating_webhooks(mutating(evaluation=off)) == {}

    def test_status_lists_the_autogen_variants(self) -> None:
        (given,) = documents(mutating(rules=(PODS,)))
        now = datetime(2026, 1, 1, tzinfo=UTC)
        found = cel_status_of(given, {}, now, ready=True, message="")
        assert found["conditionStatus"]["ready"] is True
        assert set(found["autogen"]["configs"]) == {"cronjobs", "defaults"}
        config = found["autogen"]["configs"]["cronjobs"]
        assert [one["kind"] for one in config["targets"]] == ["CronJob"]
        assert config["spec"]["mutations"][0]["patchType"] == "ApplyConfiguration"


_SELECTORS: list[dict[str, Any]] = [
    {},
    {"objectSelector": {"matchLabels": {"a": "b"}}},
    {"namespaceSelector": {"matchLabels": {"a": "b"}}},
    {
        "objectSelector": {"matchLabels": {"a": "b"}},
        "namespaceSelector": {"matchLabels": {"a": "b"}},
    },
]


def test_policies_share_a_webhook_only_with_equal_selectors() -> None:
    """Otherwise objects are sent in vain, or never reach a policy that matches them."""
    named = {
        f"{letter}{number}": selectors
        for letter in "ab"
        for number, selectors in enumerate(_SELECTORS)
    }
    found = webhooks(
        *(policy(name, constraints=given) for name, given in named.items())
    )
    assert len(found) == len(_SELECTORS)
    for webhook in found.values():
        served = path_of(webhook).split("/")[2:]
        assert len(served) == 2
        for name in served:
            given = named[name]
            assert webhook["objectSelector"] == given.get("objectSelector", {})
            labels = webhook["namespaceSelector"].get("matchLabels", {})
            assert labels == given.get("namespaceSelector", {}).get("matchLabels", {})
    # The webhook without selectors keeps its name when another policy gets one.
    (plain,) = webhooks(policy("a0"))
    assert path_of(found[plain]) == "/vpol/a0/b0"
