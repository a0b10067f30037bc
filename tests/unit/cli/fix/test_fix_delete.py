"""A DeletingPolicy that ``fix`` prints deletes what the clean-up policy deletes.

The documents that are expected are what Kyverno's own examples of DeletingPolicies look
like (docs/behaviour/cel 10.3, 12), not what the command printed.
"""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.cli.fix.rewrite.delete import deletion_of
from kyverno_mp.cli.fix.rewrite.deletion_proof import compare
from kyverno_mp.cli.fix.to_cel import rewrite
from kyverno_mp.limits import REWRITE_INPUTS_MAX, REWRITE_INPUTS_MIN
from kyverno_mp.policy.documents.cleanup_policy import (
    CleanupPolicy,
    ClusterCleanupPolicy,
)
from kyverno_mp.policy.reading.decode import decode
from tests.examples import scaled
from tests.unit.cli.conftest import Command

Json = Any
COUNTED = "kyverno_mp.cli.fix.rewrite.stored_objects.REWRITE_INPUTS_MIN"
INPUTS = min(scaled(REWRITE_INPUTS_MIN) // 4, REWRITE_INPUTS_MAX)


@pytest.fixture(autouse=True)
def _budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare on the objects of this run's budget, as in other property tests."""
    monkeypatch.setattr(COUNTED, INPUTS)


PODS_V1 = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
BARE = {
    "key": "{{ target.metadata.ownerReferences[] || `[]` }}",
    "operator": "Equals",
    "value": [],
}
AGE = "{{ time_since('', '{{ target.metadata.creationTimestamp }}', '') }}"
OLD = {"key": AGE, "operator": "GreaterThan", "value": "72h"}
IS_BARE = "size(object.metadata.?ownerReferences.orValue([])) == 0"
IS_OLD = "time.now() - timestamp(object.metadata.creationTimestamp) > duration('72h')"


def cleanup(resources: Json, *, namespace: str = "", **spec: Json) -> Json:
    return {
        "apiVersion": "kyverno.io/v2",
        "kind": "CleanupPolicy" if namespace else "ClusterCleanupPolicy",
        "metadata": {"name": "p", **({"namespace": namespace} if namespace else {})},
        "spec": {
            "match": {"any": [{"resources": resources}]},
            "schedule": "*/5 * * * *",
            **spec,
        },
    }


def pods(**spec: Json) -> Json:
    return cleanup({"kinds": ["Pod"]}, **spec)


def excluding(**resources: Json) -> Json:
    return {"any": [{"resources": resources}]}


def constraints(*rules: Json, **selectors: Json) -> Json:
    return {"resourceRules": list(rules), **selectors}


MOVED: dict[str, tuple[Json, Json, list[str]]] = {
    "an empty list": (
        pods(conditions={"all": [BARE]}),
        constraints(PODS_V1),
        [IS_BARE],
    ),
    "an age": (
        pods(conditions={"all": [BARE, OLD]}),
        constraints(PODS_V1),
        [IS_BARE, IS_OLD],
    ),
    "any": (
        pods(conditions={"any": [BARE, OLD]}),
        constraints(PODS_V1),
        [f"({IS_BARE}) || ({IS_OLD})"],
    ),
    "no conditions": (
        cleanup({"kinds": ["batch/v1/Job", "CronJob"]}),
        constraints(
            {
                "apiGroups": ["batch"],
                "apiVersions": ["v1"],
                "resources": ["jobs", "cronjobs"],
            }
        ),
        [],
    ),
    "names": (
        cleanup({"kinds": ["Secret"], "names": ["a", "b"]}),
        constraints(
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "resources": ["secrets"],
                "resourceNames": ["a", "b"],
            }
        ),
        [],
    ),
    "wildcards": (
        cleanup({"kinds": ["Pod"], "names": ["a-*"], "namespaces": ["n"]}),
        constraints(PODS_V1),
        [
            (
                "(object.metadata.name.startsWith('a-'))"
                " && (object.metadata.namespace == 'n')"
            )
        ],
    ),
    "labels": (
        cleanup({"kinds": ["Pod"], "selector": {"matchLabels": {"a/b": "c"}}}),
        constraints(PODS_V1, objectSelector={"matchLabels": {"a/b": "c"}}),
        [],
    ),
    "terms of labels": (
        cleanup(
            {
                "kinds": ["Pod"],
                "selector": {
                    "matchExpressions": [
                        {"key": "a", "operator": "NotIn", "values": ["b", "c"]}
                    ]
                },
            }
        ),
        constraints(
            PODS_V1,
            objectSelector={
                "matchExpressions": [
                    {"key": "a", "operator": "NotIn", "values": ["b", "c"]}
                ]
            },
        ),
        [],
    ),
    "labels of namespaces": (
        cleanup(
            {
                "kinds": ["Pod"],
                "namespaceSelector": {
                    "matchExpressions": [{"key": "keep", "operator": "DoesNotExist"}]
                },
            }
        ),
        constraints(
            PODS_V1,
            namespaceSelector={
                "matchExpressions": [{"key": "keep", "operator": "DoesNotExist"}]
            },
        ),
        [],
    ),
    "one namespace": (
        pods(
            namespace="n",
            conditions={"all": [{**BARE, "key": "{{ target.metadata.name }}"}]}
            | {
                "all": [
                    {
                        "key": "{{ target.metadata.name }}",
                        "operator": "Equals",
                        "value": "x",
                    }
                ]
            },
        ),
        constraints(PODS_V1),
        ["object.metadata.name == 'x'"],
    ),
    "an exclusion": (
        pods(exclude=excluding(namespaces=["kube-*"])),
        constraints(PODS_V1),
        ["!(object.metadata.namespace.startsWith('kube-'))"],
    ),
}


def rewritten(raw: Json) -> Json:
    outcome = rewrite(raw)
    assert not outcome.reason
    assert not outcome.differences
    assert outcome.requests
    return outcome.document


@pytest.mark.parametrize(("raw", "matched", "expressions"), MOVED.values(), ids=MOVED)
def test_a_cleanup_policy_becomes_what_a_person_would_write(
    raw: Json, matched: Json, expressions: list[str]
) -> None:
    document = rewritten(raw)
    is_namespaced = raw["kind"] == "CleanupPolicy"
    assert document["apiVersion"] == "policies.kyverno.io/v1"
    kind = "NamespacedDeletingPolicy" if is_namespaced else "DeletingPolicy"
    assert document["kind"] == kind
    assert document["metadata"] == raw["metadata"]
    spec = document["spec"]
    assert spec["matchConstraints"] == matched
    conditions = spec.get("conditions", [])
    assert [one["expression"] for one in conditions] == expressions
    assert spec["schedule"] == "*/5 * * * *"


def test_runs_keep_their_options() -> None:
    """A dry run must not become a run, nor lose its budget or its propagation."""
    raw = pods(deletionPropagationPolicy="Orphan")
    options = {
        "kyverno-mp.io/dry-run": "true",
        "kyverno-mp.io/deletion-budget": "20%",
    }
    raw["metadata"].update(annotations=options, labels={"a": "b"})
    document = rewritten(raw)
    assert document["metadata"] == raw["metadata"]
    assert document["spec"]["deletionPropagationPolicy"] == "Orphan"


CONTEXT = {"name": "c", "configMap": {"name": "m", "namespace": "n"}}
ON_LABEL = {"key": "{{ target.metadata.labels.a }}", "operator": "Equals", "value": "b"}
TIME_OF_LABEL = "{{ time_since('', target.metadata.labels.a, '') }}"
STAYS: dict[str, tuple[Json, str]] = {
    "a wildcard": (cleanup({"kinds": ["*"]}), "kind *"),
    "an unknown kind": (
        cleanup({"kinds": ["Widget"]}),
        "kind Widget, whose resource is not known",
    ),
    "a custom kind without a version": (
        cleanup({"kinds": ["VirtualService"]}),
        "kind VirtualService without its version",
    ),
    "a ConfigMap": (pods(context=[CONTEXT]), "context entry c, which is no variable"),
    "operations": (
        cleanup({"kinds": ["Pod"], "operations": ["CREATE"]}),
        "operations in match",
    ),
    "users": (
        pods(exclude={"any": [{"clusterRoles": ["admin"]}]}),
        "roles or subjects in exclude",
    ),
    "Namespaces by their labels": (
        cleanup(
            {"kinds": ["Namespace"], "namespaceSelector": {"matchLabels": {"a": "b"}}}
        ),
        "namespaceSelector for kinds without a namespace",
    ),
    "labels of namespaces in exclude": (
        pods(exclude=excluding(namespaceSelector={"matchLabels": {"a": "b"}})),
        "namespaceSelector in exclude",
    ),
    "wildcards in labels": (
        cleanup({"kinds": ["Pod"], "selector": {"matchLabels": {"a": "b*"}}}),
        "wildcards in objectSelector",
    ),
    "two groups": (
        cleanup({"kinds": ["v1/Event", "events.k8s.io/v1/Event"], "names": ["a-*"]}),
        "kinds of one name in several groups or versions",
    ),
    "the age of a label": (
        pods(
            conditions={
                "all": [
                    {"key": TIME_OF_LABEL, "operator": "GreaterThan", "value": "1h"}
                ]
            }
        ),
        "JMESPath time_since()",
    ),
    "a schedule": (
        pods(schedule="never"),
        "it is not valid: expected exactly 5 fields, found 1",
    ),
}


@pytest.mark.parametrize(("raw", "reason"), STAYS.values(), ids=STAYS)
def test_what_is_not_proved_stays(raw: Json, reason: str) -> None:
    outcome = rewrite(raw)
    assert not outcome.documents
    assert outcome.reason == reason


def test_a_budget_in_per_cent_counts_what_match_selects() -> None:
    """Conditions would let the budget count objects that ``match`` does not select."""
    raw = cleanup({"kinds": ["Pod"], "names": ["a-*"]})
    raw["metadata"]["annotations"] = {"kyverno-mp.io/deletion-budget": "20%"}
    assert "budget" in rewrite(raw).reason
    raw["metadata"]["annotations"] = {"kyverno-mp.io/deletion-budget": "20"}
    assert not rewrite(raw).reason


def test_an_error_that_only_one_side_keeps_is_shown() -> None:
    """A missing label is an error upstream, beside a true condition, too."""
    named = {"key": "{{ target.metadata.name }}", "operator": "Equals", "value": "x"}
    outcome = rewrite(pods(conditions={"any": [ON_LABEL, named]}))
    assert not outcome.documents
    assert {(one.before, one.after) for one in outcome.differences} == {
        ("undecided", "deleted")
    }


def changed(document: Json, old: str, new: str) -> Json:
    text = json.dumps(document)
    assert old in text
    return json.loads(text.replace(old, new))


FULL = cleanup(
    {
        "kinds": ["Pod"],
        "selector": {"matchLabels": {"a": "b"}},
        "namespaceSelector": {"matchLabels": {"c": "d"}},
        "names": ["e-*"],
    },
    exclude=excluding(namespaces=["f"]),
    conditions={"all": [BARE, OLD]},
    deletionPropagationPolicy="Orphan",
)
WRONG = {
    "the kind": ("pods", "secrets"),
    "the label": ('"a": "b"', '"a": "c"'),
    "the label of the namespace": ('"c": "d"', '"c": "e"'),
    "the name": ("'e-'", "'e'"),
    "the excluded namespace": ("'f'", "'g'"),
    "the list": (IS_BARE, IS_BARE.replace("== 0", "== 1")),
    "the duration": ("72h", "73h"),
    "the boundary": ("> duration", ">= duration"),
    "the schedule": ("*/5", "*/6"),
    "the propagation": ("Orphan", "Foreground"),
}


@pytest.mark.parametrize(("old", "new"), WRONG.values(), ids=WRONG)
def test_the_proof_notices_a_wrong_policy(old: str, new: str) -> None:
    policy = decode(FULL)
    assert isinstance(policy, CleanupPolicy | ClusterCleanupPolicy)
    deletion = deletion_of(policy)
    assert not compare(policy, FULL, deletion).differences
    document = changed(deletion.document, old, new)
    assert compare(policy, FULL, deletion._replace(document=document)).differences


def test_files_with_cleanup_policies(tmp_path: Path, command: Command) -> None:
    """``--to CEL`` moves them; ``--to ValidatingPolicy`` leaves them alone."""
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump(pods()))
    others = command("fix", "policy", str(file), "--to", "ValidatingPolicy")
    assert (others.code, others.out) == (0, "")
    run = command("fix", "policy", str(file), "--to", "CEL")
    assert run.code == 0
    assert yaml.safe_load(run.out) == rewritten(deepcopy(pods()))
    assert "ClusterCleanupPolicy p: rewritten as DeletingPolicy" in run.err
