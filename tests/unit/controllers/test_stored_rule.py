"""Autogen rules in the status have the form that the real program writes.

A failure means: clients that compare ``status.autogen`` of both programs find a
difference, or the status is written again and again. Expected values:
docs/behaviour/controllers 3.8.
"""

from typing import Any

import pytest

from kyverno_mp.compiler.autogen.rules import expand
from kyverno_mp.controllers.stored_rule import as_stored
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode

_TEMPLATED = [
    "apps/v1/DaemonSet",
    "apps/v1/Deployment",
    "batch/v1/Job",
    "v1/ReplicationController",
    "apps/v1/ReplicaSet",
    "apps/v1/StatefulSet",
]
_PODS = {"any": [{"resources": {"kinds": ["Pod"]}}]}


def stored(**rule: Any) -> dict[str, Any]:
    """Return the rule that autogen creates for controllers, in its stored form."""
    policy = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "p"},
            "spec": {"rules": [{"name": "r", "match": _PODS, **rule}]},
        }
    )
    assert isinstance(policy, ClusterPolicy)
    made = as_stored(expand(policy)[1])
    assert made.pop("name") == "autogen-r"
    return made


def kinds_sorted(block: dict[str, Any]) -> dict[str, Any]:
    """Return a filter or block with its kinds sorted."""
    resources = block["resources"]
    return {
        **block,
        "resources": {**resources, "kinds": sorted(resources["kinds"])},
    }


def test_rule_with_any_filter() -> None:
    made = stored(validate={"message": "m", "pattern": {"a": "?*"}})
    (only,) = made.pop("match")["any"]
    assert kinds_sorted(only) == {"resources": {"kinds": sorted(_TEMPLATED)}}
    assert made == {
        "skipBackgroundRequests": True,
        "validate": {
            "message": "m",
            "allowExistingViolations": True,
            "pattern": {"spec": {"template": {"a": "?*"}}},
        },
    }


def test_resources_are_stored_by_value_everywhere() -> None:
    users = [{"kind": "User", "name": "u"}]
    made = stored(
        match={"all": [{"resources": {"kinds": ["Pod"]}}, {"subjects": users}]},
        exclude={"any": [{"clusterRoles": ["admin"]}]},
        validate={"deny": {}},
    )
    match = made["match"]
    assert match["resources"] == {}
    assert match["all"][1] == {"resources": {}, "subjects": users}
    assert made["exclude"] == {
        "resources": {},
        "any": [{"resources": {}, "clusterRoles": ["admin"]}],
    }
    inline = stored(match={"resources": {"kinds": ["Pod"]}}, validate={"deny": {}})
    assert set(inline["match"]) == {"resources"}


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        ({"exclude": {}, "validate": {"deny": {}}}, "exclude"),
        ({"celPreconditions": [], "validate": {"deny": {}}}, "celPreconditions"),
        ({"context": [], "validate": {"deny": {}}}, "context"),
    ],
)
def test_go_omits_empty_fields(rule: dict[str, Any], gone: str) -> None:
    assert gone not in stored(**rule)


def test_calls_get_additional_fields() -> None:
    entries = [
        {"name": "a", "apiCall": {"urlPath": "/api/v1/namespaces"}},
        {"name": "b", "apiCall": {"method": "POST", "service": {"url": "https://x"}}},
        {"name": "c", "configMap": {"name": "m", "namespace": "n"}},
    ]
    wanted = [
        {"name": "a", "apiCall": {"urlPath": "/api/v1/namespaces", "method": "GET"}},
        {
            "name": "b",
            "apiCall": {
                "urlPath": "",
                "method": "POST",
                "service": {"url": "https://x", "caBundle": ""},
            },
        },
        entries[2],
    ]
    loop = {"list": "x", "context": entries, "deny": {}}
    made = stored(context=entries, validate={"foreach": [loop]})
    assert made["context"] == wanted
    assert made["validate"]["foreach"] == [{**loop, "context": wanted}]


def test_nested_foreach_is_free_form_json() -> None:
    """The API server adds no defaults to free JSON; Go's empty strings are written."""
    call = {"name": "a", "apiCall": {"service": {"url": "https://x"}}}
    inner = {"list": "y", "context": [call], "deny": {}}
    made = stored(validate={"foreach": [{"list": "x", "foreach": [inner]}]})
    (outer,) = made["validate"]["foreach"]
    assert outer["foreach"][0]["context"] == [
        {
            "name": "a",
            "apiCall": {
                "urlPath": "",
                "service": {"url": "https://x", "caBundle": ""},
            },
        }
    ]


def test_crd_defaults() -> None:
    cel = {"expressions": [{"expression": "true"}]}
    made = stored(skipBackgroundRequests=False, validate={"cel": cel})
    assert made["skipBackgroundRequests"] is False
    assert made["validate"] == {
        "allowExistingViolations": True,
        "cel": {"generate": False, **cel},
    }
    own = stored(validate={"allowExistingViolations": False, "deny": {}})
    assert own["validate"] == {"allowExistingViolations": False, "deny": {}}


def test_merge_patch_gets_no_additional_fields() -> None:
    merged = stored(mutate={"patchStrategicMerge": {"a": {}}})
    assert merged["mutate"] == {
        "patchStrategicMerge": {"spec": {"template": {"a": {}}}}
    }
    loop = {"list": "x", "order": "Ascending", "patchStrategicMerge": {"a": 1}}
    looped = stored(mutate={"foreach": [loop]})
    assert looped["mutate"] == {
        "foreach": [
            {"list": "x", "patchStrategicMerge": {"spec": {"template": {"a": 1}}}}
        ]
    }


def test_image_rules_get_the_most_additional_fields() -> None:
    keyless = {"issuer": "i", "rekor": {"pubkey": "p"}}
    entry = {
        "imageReferences": ["*"],
        "attestors": [{"entries": [{"keys": {"publicKeys": "k"}}]}],
        "attestations": [{"attestors": [{"entries": [{"keyless": keyless}]}]}],
        "mutateDigest": False,
    }
    made = stored(verifyImages=[entry])
    signed = {"signatureAlgorithm": "sha256"}
    assert made["verifyImages"] == [
        {
            "imageReferences": ["*"],
            "mutateDigest": False,
            "verifyDigest": True,
            "required": True,
            "useCache": True,
            "validate": {},
            "attestors": [
                {"entries": [{**signed, "keys": {**signed, "publicKeys": "k"}}]}
            ],
            "attestations": [
                {
                    "predicateType": "",
                    "type": "",
                    "attestors": [
                        {
                            "entries": [
                                {
                                    **signed,
                                    "keyless": {
                                        "issuer": "i",
                                        "rekor": {"url": "", "pubkey": "p"},
                                    },
                                }
                            ]
                        }
                    ],
                }
            ],
        }
    ]
