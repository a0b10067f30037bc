"""Checks reject the same policies as Kyverno's policy webhook, with its messages."""

# ruff: noqa: E501, ISC004 - upstream's texts are kept as they are printed

from typing import Any

import pytest

from kyverno_mp.policy.check import check, first_error_like_upstream, read
from kyverno_mp.policy.checks.cleanup import is_schedule
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.policy.reading.decode import decode

PODS = {"any": [{"resources": {"kinds": ["Pod"]}}]}
PATTERN = {"pattern": {"spec": {"x": "?*"}}}


def policy(spec: dict[str, Any] | None = None, **rule: Any) -> dict[str, Any]:
    made = {"name": "r", "match": PODS, "validate": PATTERN, **rule}
    rules = [{key: value for key, value in made.items() if value is not None}]
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"rules": rules, **(spec or {})},
    }


def kinds(*names: str, **more: Any) -> dict[str, Any]:
    return {"any": [{"resources": {"kinds": list(names)}, **more}]}


def deny(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"deny": {"conditions": {"all": list(conditions)}}}


USER = [{"kind": "User", "name": "u"}]
BACKGROUND = (
    "only select variables are allowed in background mode. Set spec.background=false to "
    "disable background mode for this policy rule: "
)
VARIABLE = "policy contains invalid variables: variable substitution failed for rule r: variable "
REGEX = r"request\.|element|elementIndex|@|images|images\.|image\.|([a-z_0-9]+\()[^{}]"
EQUALS = {"key": "{{ request.object.a }}", "operator": "Equals", "value": 1}

REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        policy(match=kinds("Pod", subjects=USER)),
        f"{BACKGROUND}invalid variable used at path: "
        "spec/rules[0]/match/any[0]/subjects ",
    ),
    (
        policy(validate={**PATTERN, "message": "{{ request.userInfo.username }}"}),
        f"{BACKGROUND}variable {{{{ request.userInfo.username }}}} is not allowed ",
    ),
    (
        policy(validate={"pattern": {"a": "$(/b)", "b": "x"}}),
        VARIABLE.removesuffix("variable ")
        + "got nil resolved variable $(/b) at path /validate/pattern/a: <nil>",
    ),
    (
        policy(validate={**PATTERN, "message": "{{ foo.bar }}"}),
        f'{VARIABLE}foo.bar must match regex "{REGEX}" or patterns []',
    ),
    (
        policy(match=kinds("{{ request.object.kind }}")),
        'policy contains invalid variables: rule "r" should not have variables in match '
        "section",
    ),
    (
        policy(validate=None),
        'spec.rules[0]: Invalid value: {"name":"r","match":{"any":[{"resources":'
        '{"kinds":["Pod"]}}]}}: No operation defined in the rule \'r\'.(supported '
        "operations: mutate,validate,generate,verifyImages)",
    ),
    (
        policy(match={"any": PODS["any"], "all": PODS["any"]}),
        'spec.rules[0].match: Invalid value: {"any":[{"resources":{"kinds":["Pod"]}}],'
        '"all":[{"resources":{"kinds":["Pod"]}}]}: Can\'t specify any and all together',
    ),
    (
        policy({"webhookTimeoutSeconds": 31}),
        "spec.webhookTimeoutSeconds: Invalid value: 31: the timeout value must be between "
        "1 and 30 seconds",
    ),
    (
        policy({"admission": False, "background": False}),
        "disabling both admission and background processing is not allowed",
    ),
    (
        policy(match=kinds("*")),
        "path: spec.rules[0].match.any[0].kinds: wildcard policy not allowed in "
        "background mode. Set spec.background=false to disable background mode for this "
        "policy rule ",
    ),
    (
        policy({"background": False}, match=kinds("*")),
        "path: spec.rules[0].match.any[0].kinds: policy can only deal with the metadata "
        "field of the resource if the rule does not match any kind",
    ),
    (
        policy(match={"any": PODS["any"], "resources": {"kinds": ["Pod"]}}),
        "path: spec.rules[0].match.: can't specify any/all together with match resources",
    ),
    (
        policy(match={"any": [{"resources": {}}]}),
        "path: spec.rules[0].match.resources.: match resources not specified",
    ),
    (
        policy(preconditions={"all": [{"key": "a", "operator": "Equals"}]}),
        "path: spec.rules[0].validate.preconditions.all[0].: entered value of `key`, "
        "`value` or `operator` is missing or misspelled",
    ),
    (
        policy(
            validate=deny(
                {**EQUALS, "key": "{{request.operation}}", "value": ["CREATE", "X"]}
            )
        ),
        "path: spec.rules[0].validate.deny.conditions.all[0].value[1]: unknown value 'X' "
        "found under the 'value' field. Only the following values are allowed: [CREATE, "
        "UPDATE, DELETE, CONNECT]",
    ),
    (
        policy(validate={**PATTERN, "message": "{{ element.name }}"}),
        "variable 'element.name' present outside of foreach at path /validate/message",
    ),
    (
        policy(context=[{"name": "element", "variable": {"value": 1}}]),
        "path: spec.rules[0]: entry name element is invalid as it conflicts with a "
        "pre-defined variable element",
    ),
    (
        policy(context=[{"name": "a"}]),
        "path: spec.rules[0]: exactly one of configMap or apiCall or imageRegistry or "
        "variable is required for context entries",
    ),
    (
        policy(match={"any": [{"resources": {"namespaces": ["a"]}}]}),
        "policy can only deal with the metadata field of the resource if the rule does "
        "not match any kind",
    ),
    (
        policy(validate={**PATTERN, **deny(EQUALS)}),
        "path: spec.rules[0].validate..: only one of pattern, anyPattern, deny, foreach, "
        "cel can be specified",
    ),
    (
        policy(validate={"foreach": [{"list": "", "pattern": {}}]}),
        "path: spec.rules[0].validate..: foreach.list is required",
    ),
    (
        policy(validate={"pattern": {"spec": {"^(a)": {}}}}),
        "path: spec.rules[0].validate.pattern.//spec/^(a).: existence anchor should have "
        "value of type list",
    ),
    (
        policy(validate={"pattern": {"metadata": {"labels": {"a": 1}}}}),
        'labels and annotations supports only string values, "use double quotes around '
        'the non string values"',
    ),
    (
        policy(
            validate=None,
            mutate={"patchesJson6902": "- {op: add, path: a/b, value: 1}"},
        ),
        "path must begin with a forward slash: spec.rules[0]: a/b",
    ),
    (
        policy(validate=None, mutate={"patchesJson6902": "- {op: move, path: /a}"}),
        "path must begin with a forward slash: spec.rules[0]: failed to decode 'from': "
        "operation, missing from field: missing value",
    ),
    (
        policy(
            {
                "validationFailureActionOverrides": [
                    {"action": "Enforce", "namespaces": ["a", "b"]},
                    {"action": "Audit", "namespaces": ["b"]},
                ]
            }
        ),
        "conflicting namespaces found in path: "
        "spec.validationFailureActionOverrides[1].namespaces: b",
    ),
]


@pytest.mark.parametrize(("raw", "text"), REFUSED)
def test_first_error_is_upstreams(raw: dict[str, Any], text: str) -> None:
    document = decode(raw)
    assert first_error_like_upstream(document) == text
    assert text in {one.upstream for one in check(document).problems}


def test_valid_policy_has_no_findings() -> None:
    findings = check(decode(policy()))
    assert (findings.problems, findings.warnings) == ((), ())


INNER = {"name": "svc", "variable": {"jmesPath": "element.x", "default": "a"}}
LOOP = {"list": "element.y", "context": [INNER], **deny({**EQUALS, "key": "{{ svc }}"})}


@pytest.mark.parametrize(
    "raw",
    [
        # The context of an inner foreach, at any level.
        policy(validate={"foreach": [{"list": "request.object.x", "foreach": [LOOP]}]}),
        policy(
            validate={
                "foreach": [
                    {
                        "list": "request.object.x",
                        "foreach": [{"list": "element.y", "foreach": [LOOP]}],
                    }
                ]
            }
        ),
        policy(
            validate=None,
            mutate={
                "foreach": [
                    {
                        "list": "request.object.x",
                        "foreach": [
                            {
                                "list": "element.y",
                                "context": [INNER],
                                "patchStrategicMerge": {"spec": {"a": "{{ svc }}"}},
                            }
                        ],
                    }
                ]
            },
        ),
        # Match and exclude that leave something to match.
        policy(
            match={"resources": {"kinds": ["Pod", "Service"]}},
            exclude={"any": [{"resources": {"kinds": ["Service"]}}]},
        ),
        policy(
            match=kinds("Pod"), exclude={"resources": {"kinds": ["Pod"], "name": "a"}}
        ),
        policy(
            match={
                "any": [
                    {"resources": {"kinds": ["Pod"]}},
                    {"resources": {"kinds": ["Service"]}},
                ]
            },
            exclude=kinds("Service"),
        ),
        policy(
            match={"resources": {"kinds": ["Pod"], "names": ["a", "b"]}},
            exclude={"resources": {"kinds": ["Pod"], "names": ["a"]}},
        ),
        policy(
            match={"resources": {"kinds": ["Pod"], "names": ["a"]}},
            exclude={"resources": {"kinds": ["Service"], "names": ["a"]}},
        ),
        # A patch deletes a label with null.
        policy(
            validate=None,
            mutate={"patchStrategicMerge": {"metadata": {"labels": {"old": None}}}},
        ),
        policy(
            validate=None,
            mutate={
                "patchStrategicMerge": {"metadata": {"annotations": {"a/b": None}}}
            },
        ),
        policy(
            match={"resources": {"kinds": ["Pod"], "name": "a*"}},
            exclude={"resources": {"kinds": ["Pod"], "name": "a?"}},
        ),
    ],
)
def test_valid_policies_that_upstream_refuses(raw: dict[str, Any]) -> None:
    assert check(decode(raw)).problems == ()


@pytest.mark.parametrize(
    "raw",
    [
        policy(match=kinds("Pod"), exclude=kinds("Pod")),
        policy(
            match={"resources": {"kinds": ["Pod"], "names": ["ab", "ac"]}},
            exclude={"resources": {"names": ["a*"]}},
        ),
        policy(
            match={"resources": {"kinds": ["Pod"], "namespaces": ["a"]}},
            exclude={"resources": {"kinds": ["Pod", "Service"]}},
        ),
        policy(
            match={
                "any": [
                    {"resources": {"kinds": ["Pod"]}},
                    {"resources": {"kinds": ["Pod"], "namespaces": ["a"]}},
                ]
            },
            exclude={"any": [{"resources": {"kinds": ["Pod"]}}]},
        ),
    ],
)
def test_rules_that_match_nothing_are_refused(raw: dict[str, Any]) -> None:
    problems = check(decode(raw)).problems
    assert "Rule is matching an empty set" in [problem.reason for problem in problems]


def test_structural_and_other_problems_are_reported_together() -> None:
    raw = policy(contxt=[], validate={"deny": {}, "message": "{{ a( }}"})
    raw["spec"]["rules"] += [{**raw["spec"]["rules"][0], "match": kinds("a/b/c/d/e")}]
    raw["spec"]["rules"] += [
        {
            "name": "s",
            "match": {
                "any": [{"resources": {"selector": {"matchLabels": {"-": "a"}}}}]
            },
            "validate": {"foreach": [{"list": "a[", "deny": {}}]},
        }
    ]
    with pytest.raises(DocumentInvalid) as caught:
        read(raw)
    places = {(one.code, one.path) for one in caught.value.problems}
    assert {
        ("policy.unknown_field", "spec.rules[0].contxt"),
        ("policy.variable", "spec.rules[0].validate.message"),
        ("policy.invalid", "spec.rules[1].name"),
        ("policy.invalid", "spec.rules[2].match.any[0].selector"),
    } <= places
    assert {one.rule for one in caught.value.problems} >= {"r", "s"}


def test_a_bad_query_is_reported_with_its_column() -> None:
    with pytest.raises(DocumentInvalid) as caught:
        read(policy(validate={"message": "no {{ a( }}", "pattern": {}}))
    place = "spec.rules[0].validate.message (rule r), column 9: "
    assert place in str(caught.value)


def test_policy_without_rules_is_rejected() -> None:
    with pytest.raises(DocumentInvalid) as caught:
        read(policy({"rules": []}))
    assert [one.code for one in caught.value.problems] == ["policy.no_rules"]


def test_warnings() -> None:
    raw = policy(
        {"validationFailureAction": "enforce"},
        validate=deny({**EQUALS, "operator": "In", "value": ["replicas"]}),
    )
    assert check(decode(raw)).warnings == (
        "Validation failure actions enforce/audit are deprecated, use Enforce/Audit "
        "instead.",
        "Operator In has been deprecated and will be removed soon. Use these instead: "
        '["AllIn" "AnyIn"]',
    )


def test_namespaced_policy() -> None:
    raw = policy(match=kinds("Namespace"))
    raw["kind"], raw["metadata"]["namespace"] = "Policy", "n"
    raw["spec"]["rules"][0]["match"]["any"][0]["resources"]["namespaces"] = ["x"]
    text = first_error_like_upstream(
        decode(raw), cluster_kinds=frozenset({"Namespace", "v1/Namespace"})
    )
    assert text == (
        "[spec.rules[0].match.any[0].namespaces: Forbidden: Filtering namespaces not "
        "allowed in namespaced policies, spec.rules[0].match.any[0].kinds[0]: Forbidden: "
        "Cluster wide resource 'Namespace' not allowed in namespaced policy]"
    )


def test_exception() -> None:
    raw = {
        "apiVersion": "kyverno.io/v2",
        "kind": "PolicyException",
        "metadata": {"name": "e"},
        "spec": {
            "match": kinds("Pod", subjects=USER),
            "exceptions": [{"policyName": "", "ruleNames": []}],
        },
    }
    assert first_error_like_upstream(decode(raw)) == (
        "[spec.match.any[0].subjects: Forbidden: Usage of user info is forbidden, "
        "spec.exceptions[0].policyName: Required value: An exception requires a policy "
        "name]"
    )


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("*/5 * * * *", True),
        ("0 0 1,15 jan-mar mon", True),
        ("@hourly", True),
        ("@every 5m", True),
        ("TZ=Europe/Berlin 0 9 * * mon-fri", True),
        ("CRON_TZ=Asia/Tokyo @daily", True),
        ("TZ=Nowhere/City 0 9 * * *", False),
        ("* * * *", False),
        ("60 * * * *", False),
        ("* * * * 7", False),
        ("*/0 * * * *", False),
        ("@never", False),
        ("", False),
    ],
)
def test_schedule(text: str, *, is_valid: bool) -> None:
    assert is_schedule(text) == is_valid


def test_cleanup_policy() -> None:
    raw = {
        "apiVersion": "kyverno.io/v2",
        "kind": "ClusterCleanupPolicy",
        "metadata": {"name": "c"},
        "spec": {
            "match": kinds("Pod", roles=["a:b"]),
            "schedule": "never",
            "context": [{"name": "a", "configMap": {"name": "b"}}],
        },
    }
    assert [one.reason for one in check(decode(raw)).problems] == [
        "ConfigMap is not allowed in CleanUp Policy",
        "schedule spec in the cleanupPolicy is not in proper cron format",
        "Usage of user info is forbidden",
    ]


def test_global_context_entry() -> None:
    raw = {
        "apiVersion": "kyverno.io/v2beta1",
        "kind": "GlobalContextEntry",
        "metadata": {"name": "g"},
        "spec": {
            "apiCall": {"data": [{"key": "a", "value": 1}], "refreshInterval": "0s"},
            "projections": [{"name": "g", "jmesPath": "a["}],
        },
    }
    assert [one.path for one in check(decode(raw)).problems] == [
        "spec.apiCall.refreshIntervalSeconds",
        "spec.apiCall.service",
        "spec.apiCall.method",
        "spec.projections[0].name",
        "spec.projections[0].jmesPath",
    ]


_PATCH = {"patchesJson6902": "- op: remove\n  path: /a"}
_NESTED = {"list": "a", "foreach": [{"list": "element.b", **_PATCH}]}
_LADEN = {**_NESTED, "preconditions": {"all": []}}


@pytest.mark.parametrize(
    ("entries", "is_refused"),
    [
        ([_NESTED], False),
        ([_LADEN], True),
        ([{"list": "a", **_PATCH}, _LADEN], True),
        ([_NESTED, _LADEN], False),
        ([_NESTED, {"list": "a"}], False),
        ([{"list": "a"}, _NESTED], True),
    ],
)
def test_entries_after_a_nested_foreach_are_not_checked(
    entries: list[dict[str, Any]], *, is_refused: bool
) -> None:
    """Otherwise a policy that Kyverno accepts is rejected, or the reverse."""
    raw = policy(validate=None, mutate={"foreach": entries})
    assert bool(check(decode(raw)).problems) is is_refused


def test_a_patch_in_yaml_counts_as_metadata_for_the_kind_star() -> None:
    """KYVERNO: only a patch in JSON is decoded for this check (engine 10.6)."""
    in_yaml = "- {op: add, path: /spec/x, value: 1}"
    in_json = '[{"op": "add", "path": "/spec/x", "value": 1}]'
    for text, accepted in ((in_yaml, True), (in_json, False)):
        raw = policy(
            {"background": False},
            match=kinds("*"),
            validate=None,
            mutate={"patchesJson6902": text},
        )
        assert (first_error_like_upstream(decode(raw)) == "") is accepted


@pytest.mark.parametrize(
    "query",
    [
        "to_string({a: {b: 'z'}})",
        "{a: {b: v.c}}.a.b",
        "{a: {b: 'c'}}.a.b",
        "merge({a: {b: `1`}}, v)",
    ],
)
def test_braces_in_braces_are_accepted(query: str) -> None:
    """Kyverno takes such a query for text, so it accepts every policy with one."""
    given = policy(validate={**PATTERN, "message": f"{{{{ {query} }}}}"})
    assert check(decode(given)).problems == ()
