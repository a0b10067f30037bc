"""ValidatingPolicies, from documents to verdicts. Expected: docs/behaviour/cel 6, 7."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kyverno_mp.compiler.admission_policy import compile_admission_policy
from kyverno_mp.compiler.cel_kinds.validating_policy import compile_validating_policy
from kyverno_mp.errors import DeadlinePassed
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.policy.cel_kinds.admission_policy import decode_admission_policy
from kyverno_mp.policy.cel_kinds.validating_policy import decode_validating_policy
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.program.admission_policy.validate import LinkedValidation
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.program.request import Request
from kyverno_mp.program.validating_policy.evaluate import (
    Answer,
    LinkedValidatingPolicy,
)
from kyverno_mp.program.validating_policy.scope import Facts

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
    "spec": {"containers": [{"name": "c", "image": "nginx"}], "n": 3.0},
}
RULE = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
}
MATCH = {"resourceRules": [RULE]}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLURALS = {
    "Pod": "pods",
    "Deployment": "deployments",
    "CronJob": "cronjobs",
    "Job": "jobs",
}


def document(spec: Any, *, namespace: str = "", match: Any = MATCH) -> Any:
    metadata = {"name": "p", **({"namespace": namespace} if namespace else {})}
    constraints = {"matchConstraints": match} if match is not None else {}
    raw = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": f"{'Namespaced' if namespace else ''}ValidatingPolicy",
        "metadata": metadata,
        "spec": {**constraints, **spec},
    }
    return decode_validating_policy(raw)


def exception(
    name: str = "e", priority: str = "", *, expires: str = "", **spec: Any
) -> Any:
    labels = {"polex.kyverno.io/priority": priority} if priority else {}
    annotations = {"kyverno-mp.io/expires": expires} if expires else {}
    raw = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "PolicyException",
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {"policyRefs": [{"name": "p", "kind": "ValidatingPolicy"}], **spec},
    }
    return decode_validating_policy(raw)


def request(resource: dict[str, Any], **fields: Any) -> Request:
    group, _, version = resource["apiVersion"].rpartition("/")
    plural = PLURALS[resource["kind"]]
    asked = {"group": group, "version": version, "resource": plural}
    given: dict[str, Any] = {
        "group": group,
        "version": version,
        "kind": resource["kind"],
        "name": resource["metadata"]["name"],
        "namespace": "shop",
        "object": resource,
        "namespace_labels": {"team": "blue"},
        "username": "alice",
        "review_request": {"resource": asked},
    }
    return Request(**{**given, **fields})


def runtime() -> Runtime:
    return Runtime(now=lambda: NOW, monotonic_ns=lambda: 0)


def answers(
    policy: Any,
    resource: dict[str, Any] = POD,
    exceptions: Sequence[Any] = (),
    **facts: Any,
) -> list[Answer]:
    compiled = compile_validating_policy(policy, exceptions)
    packed = msgspec.msgpack.encode(compiled)
    linked = LinkedValidatingPolicy(
        msgspec.msgpack.decode(packed, type=ValidatingPolicyIR)
    )
    asked = facts.pop("request", None) or request(resource)
    given = Facts(asked, runtime(), CelPorts(), **facts)
    shared = Shared(asked)
    return list(linked.evaluate(given, shared))


def verdict(spec: Any, *exceptions: Any, **options: Any) -> tuple[str, str, str] | None:
    """Return rule, status and message of the policy as written."""
    match = options.pop("match", MATCH)
    namespace = options.pop("namespace", "")
    policy = document(spec, match=match, namespace=namespace)
    found = answers(policy, exceptions=exceptions, **options)[0].result
    return None if found is None else (found.rule, found.status, found.message)


def condition(text: str, name: str = "c") -> dict[str, str]:
    return {"name": name, "expression": text}


def validations(*texts: str, **fields: str) -> dict[str, Any]:
    return {"validations": [{"expression": text, **fields} for text in texts]}


BROKEN = "object.none == 1"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "exceptions.allowedImages == []",
            "failed to load context: no such attribute(s): exceptions",
        ),
        (
            "exceptions != null",
            "failed to load context: no such attribute(s): exceptions",
        ),
        (
            "[exceptions].size() == 1",
            "failed to load context: no such attribute(s): exceptions",
        ),
        (
            "object.kind == 'Pod' || exceptions.allowedImages == []",
            "rule is skipped due to policy exception: team/e",
        ),
    ],
)
def test_exception_conditions_see_no_exceptions(text: str, wanted: str) -> None:
    """As in the real program: exceptions apply after all conditions are evaluated."""
    found = verdict(validations("true"), exception(matchConditions=[condition(text)]))
    assert found is not None
    assert found[2] == wanted


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (validations("true"), ("", "pass", "success")),
        ({}, ("", "pass", "success")),
        (
            validations("true", "false"),
            ("", "fail", "CEL expression validation failed at index 1"),
        ),
        (validations("false", message="no"), ("", "fail", "no")),
        (validations("false", messageExpression="'n' + 'o'"), ("", "fail", "no")),
        (
            validations("false", messageExpression="''", message="m"),
            ("", "fail", "CEL expression validation failed at index 0"),
        ),
        (
            validations("false", messageExpression="string(object.none)", message="m"),
            ("", "fail", "failed to evaluate message expression: no such key: none"),
        ),
        (validations("false", messageExpression="' a\\n'"), ("", "fail", " a\n")),
        (
            validations(BROKEN),
            ("evaluation", "error", "failed to load context: no such key: none"),
        ),
        (
            {"failurePolicy": "Ignore", **validations(BROKEN)},
            ("evaluation", "error", "failed to load context: no such key: none"),
        ),
        (
            {"matchConditions": [condition("false")], **validations("false")},
            ("", "skip", "skip"),
        ),
        (
            {"matchConditions": [condition(BROKEN), condition("false")]},
            ("", "skip", "skip"),
        ),
        (
            {"matchConditions": [condition(BROKEN), condition("object.x == 1")]},
            (
                "evaluation",
                "error",
                "failed to load context: no such key: none; no such key: x",
            ),
        ),
        (
            {"failurePolicy": "Ignore", "matchConditions": [condition(BROKEN)]},
            ("", "skip", "skip"),
        ),
        (
            {
                "variables": [
                    condition("object.spec.n", "a"),
                    condition("variables.a * 2.0", "b"),
                ],
                **validations("variables.b == 6.0"),
            },
            ("", "pass", "success"),
        ),
        (
            {
                "variables": [condition("object.none", "a")],
                **validations("true || variables.a == 1"),
            },
            ("", "pass", "success"),
        ),
        (
            {
                "variables": [condition("object.none", "a")],
                **validations("variables.a == 1"),
            },
            ("evaluation", "error", "failed to load context: no such key: none"),
        ),
        (
            validations(
                "request.operation == 'CREATE' && request.userInfo.username == 'alice'"
            ),
            ("", "pass", "success"),
        ),
        (
            validations("request.object == object && request.oldObject == null"),
            ("", "pass", "success"),
        ),
        (
            validations("request.namespace == 'shop' && request.dryRun == false"),
            ("", "pass", "success"),
        ),
        # As in the API server, an absent oldObject is null.
        (
            validations(
                "oldObject == null && !has(oldObject.metadata)"
                " && oldObject.?metadata.name.orValue('none') == 'none'"
            ),
            ("", "pass", "success"),
        ),
        (
            validations("oldObject == null || oldObject.metadata.name == 'x'"),
            ("", "pass", "success"),
        ),
        (
            validations("oldObject.metadata.name == 'x'"),
            ("evaluation", "error", "failed to load context: no such key: metadata"),
        ),
        (validations("namespaceObject == null"), ("", "pass", "success")),
        (
            validations(
                "exceptions.allowedImages.size() + exceptions.allowedValues.size() == 0"
            ),
            ("", "pass", "success"),
        ),
        (
            validations("image(object.spec.containers[0].image).tag() == 'latest'"),
            ("", "pass", "success"),
        ),
        (
            validations("time.now() == timestamp('2026-01-01T00:00:00Z')"),
            ("", "pass", "success"),
        ),
    ],
)
def test_verdict(spec: Any, wanted: Any) -> None:
    assert verdict(spec) == wanted


def document_compiled(spec: Any, **options: Any) -> ValidatingPolicyIR:
    return compile_validating_policy(document(spec, **options))


def rule(**fields: Any) -> dict[str, Any]:
    return {"resourceRules": [{**RULE, **fields}]}


@pytest.mark.parametrize(
    ("match", "is_match"),
    [
        (MATCH, True),
        (None, False),
        ({}, True),
        (rule(operations=["UPDATE"]), False),
        (rule(operations=["*"]), True),
        (rule(resources=["*"]), True),
        (rule(resources=["pods/status"]), False),
        (rule(apiGroups=["apps"]), False),
        (rule(scope="Namespaced"), True),
        (rule(scope="Cluster"), False),
        (rule(resourceNames=["web"]), True),
        (rule(resourceNames=["we"]), False),
        ({**MATCH, "matchPolicy": "Exact"}, True),
        ({**MATCH, "excludeResourceRules": [RULE]}, False),
        ({**MATCH, "objectSelector": {"matchLabels": {"app": "web"}}}, True),
        ({**MATCH, "objectSelector": {"matchLabels": {"app": "db"}}}, False),
        ({**MATCH, "namespaceSelector": {"matchLabels": {"team": "blue"}}}, True),
        ({**MATCH, "namespaceSelector": {"matchLabels": {"team": "red"}}}, False),
    ],
)
def test_match_constraints(match: Any, is_match: Any) -> None:
    found = verdict(validations("true"), match=match)
    assert (found is not None) is is_match


def test_invalid_selector_is_an_error_if_all_else_matches() -> None:
    terms = [{"key": "a", "operator": "Near"}]
    match = {**MATCH, "objectSelector": {"matchExpressions": terms}}
    found = verdict(validations("true"), match=match)
    assert found is not None
    assert found[:2] == ("match", "error")
    text = '"Near" is not a valid label selector operator'
    assert found[2] == f"failed to execute matching: Internal error occurred: {text}"
    match["resourceRules"] = [{**RULE, "operations": ["DELETE"]}]
    assert verdict(validations("true"), match=match) is None


def test_invalid_namespace_selector_is_not_read_without_a_namespace() -> None:
    """As upstream, which matches such objects before it reads the selector."""
    terms = [{"key": "a", "operator": "In"}]
    match = {**MATCH, "namespaceSelector": {"matchExpressions": terms}}
    found = verdict(validations("true"), match=match)
    assert found is not None
    assert found[:2] == ("match", "error")
    assert found[2].endswith(
        "Internal error occurred: values: Invalid value: null: for 'in', 'notin'"
        " operators, values set can't be empty"
    )
    asked = request(POD, namespace="")
    found = verdict(validations("true"), match=match, request=asked)
    assert found == ("", "pass", "success")


@pytest.mark.parametrize(
    ("match", "is_dropped"),
    [
        (rule(apiGroups=["apps"]), True),
        (rule(apiGroups=["apps"], resourceNames=["a"]), False),
        ({"resourceRules": [rule(apiGroups=["x"])["resourceRules"][0]] * 2}, False),
        ({**rule(apiGroups=["apps"]), "objectSelector": {}}, True),
        (
            {**rule(apiGroups=["x"]), "objectSelector": {"matchLabels": {"a": "b"}}},
            False,
        ),
        (None, False),
    ],
)
def test_empty_results_dropped_by_the_command_line(match: Any, is_dropped: Any) -> None:
    """See docs/behaviour/cli 8."""
    found = answers(document(validations("true"), match=match))[0]
    assert (found.result, found.is_dropped) == (None, is_dropped)


SKIPPED = "rule is skipped due to policy exception: "


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([exception()], ("exception", "skip", f"{SKIPPED}team/e")),
        (
            [exception(), exception("f")],
            ("exception", "skip", f"{SKIPPED}team/e, team/f"),
        ),
        (
            [
                exception(),
                exception("f", "2", reportResult="pass"),
                exception("g", "1"),
            ],
            (
                "exception",
                "pass",
                "rule is passed due to policy exception: team/e, team/f, team/g",
            ),
        ),
        (
            [exception(matchConditions=[condition("object.spec.n == 3")])],
            ("exception", "skip", f"{SKIPPED}team/e"),
        ),
        ([exception(matchConditions=[condition("false")])], ("", "fail", "nginx,")),
        (
            [exception(matchConditions=[condition(BROKEN)])],
            ("evaluation", "error", "failed to load context: no such key: none"),
        ),
        ([exception(images=["nginx"])], ("", "pass", "success")),
        (
            [exception(images=["a"]), exception("f", allowedValues=["b"])],
            ("", "fail", "nginx,a"),
        ),
        (
            [exception(policyRefs=[{"name": "q", "kind": "ValidatingPolicy"}])],
            ("", "fail", "nginx,"),
        ),
        (
            [exception(policyRefs=[{"name": "p", "kind": "MutatingPolicy"}])],
            ("", "fail", "nginx,"),
        ),
        # docs/behaviour/v1.19 5: a full exception overrides others; expired ones are
        # ignored.
        (
            [exception(images=["a"]), exception("f")],
            ("exception", "skip", f"{SKIPPED}team/e, team/f"),
        ),
        ([exception(expiresAt="2025-12-31T23:59:59Z")], ("", "fail", "nginx,")),
        (
            [exception(expiresAt="2026-01-01T00:00:01Z")],
            ("exception", "skip", f"{SKIPPED}team/e"),
        ),
        # Times beyond 64 bits of nanoseconds must not prevent the policy's publication.
        (
            [exception(expiresAt="9999-12-31T23:59:59Z")],
            ("exception", "skip", f"{SKIPPED}team/e"),
        ),
        ([exception(expiresAt="0001-01-01T00:00:00Z")], ("", "fail", "nginx,")),
        # The annotation ends exceptions like the field; the earlier time counts.
        ([exception(expires="2025-12-31T23:59:59Z")], ("", "fail", "nginx,")),
        (
            [exception(expires="2026-01-01T00:00:01Z")],
            ("exception", "skip", f"{SKIPPED}team/e"),
        ),
        (
            [
                exception(
                    expires="2025-12-31T23:59:59Z", expiresAt="2026-01-01T00:00:01Z"
                )
            ],
            ("", "fail", "nginx,"),
        ),
        # As in the real program: a number beyond 64 bits is no priority.
        (
            [
                exception(priority="1"),
                exception("f", "9223372036854775808", reportResult="pass"),
            ],
            ("exception", "skip", f"{SKIPPED}team/e, team/f"),
        ),
        (
            [exception("f", "99999999999999999999", reportResult="pass")],
            ("exception", "pass", "rule is passed due to policy exception: team/f"),
        ),
        (
            [
                exception(priority="1"),
                exception("f", "9223372036854775807", reportResult="pass"),
            ],
            (
                "exception",
                "pass",
                "rule is passed due to policy exception: team/e, team/f",
            ),
        ),
    ],
)
def test_exceptions(given: list[Any], wanted: Any) -> None:
    text = "object.spec.containers.all(c, c.image in exceptions.allowedImages)"
    message = "'nginx,' + exceptions.allowedImages.join(',')"
    spec = validations(text, messageExpression=message)
    spec["matchConditions"] = [condition("true")]
    assert verdict(spec, *given) == wanted


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (("'1'", "'2'"), ("pass", {"k": "2"})),
        (("null", "'2'"), ("pass", {"k": "2"})),
        (("'1'", "''"), ("pass", {})),
        (("'1'", "null"), ("error", None)),
    ],
)
def test_the_last_of_equal_audit_annotations_applies(texts: Any, wanted: Any) -> None:
    """As in the real program, which does not evaluate the others."""
    annotations = [{"key": "k", "valueExpression": text} for text in texts]
    spec = {**validations("true"), "auditAnnotations": annotations}
    found = answers(document(spec))[0].result
    assert found is not None
    assert found.status == wanted[0]
    assert wanted[1] is None or found.properties == wanted[1]


def test_audit_annotations() -> None:
    def annotated(text: str, *, passes: bool) -> Any:
        annotations = [{"key": "k", "valueExpression": text}]
        spec = {**validations(str(passes).lower()), "auditAnnotations": annotations}
        found = answers(document(spec))[0].result
        assert found is not None
        return found.status, found.properties, found.message

    assert annotated("object.kind + '!'", passes=True) == (
        "pass",
        {"k": "Pod!"},
        "success",
    )
    assert annotated("'v'", passes=False)[:2] == ("fail", {"k": "v"})
    assert annotated("''", passes=True)[:2] == ("pass", {})
    failed = "failed to load context: failed to {} auditAnnotation 'k'"
    status, _, message = annotated("null", passes=True)
    assert (status, message.split(" expression")[0]) == (
        "error",
        failed.format("convert"),
    )
    status, _, message = annotated("string(object.none)", passes=True)
    assert (status, message) == (
        "error",
        failed.format("evaluate") + ": no such key: none",
    )


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (validations("object.spec.n"), "output is expected to be of type bool"),
        (validations("1"), "output is expected to be of type bool"),
        (
            validations("true", messageExpression="1"),
            "output is expected to be of type string",
        ),
        (
            {"matchConditions": [condition("object.a")]},
            "output is expected to be of type bool",
        ),
        (
            {
                "matchConditions": [condition("variables.a")],
                "variables": [condition("true", "a")],
            },
            "undefined field 'a'",
        ),
        (
            {"variables": [condition("variables.b", "a"), condition("1", "b")]},
            "undefined field 'b'",
        ),
        (
            {"auditAnnotations": [{"key": "k", "valueExpression": "1"}]},
            "output is expected to be either of type string or null_type",
        ),
        (validations("foo"), "undeclared reference to 'foo' (in container '')"),
        (validations("params.a == 1"), "undeclared reference to 'params'"),
        (
            validations("authorizer.path('/').check('get').allowed()"),
            "undeclared reference to 'authorizer'",
        ),
        (validations("request.uid == ''"), "undefined field 'uid'"),
        (
            validations("resource.list('v1', 'pods', '').items.exists(i, true)"),
            "expression of type 'any' cannot be range of a comprehension",
        ),
        (
            {
                "variables": [
                    {"name": "v", "expression": "resource.get('v1', 'pods', 'n', 'p')"}
                ],
                **validations("variables.v.spec.all(k, v, true)"),
            },
            "expression of type 'any' cannot be range of a comprehension",
        ),
    ],
)
def test_uncompilable_expression_rejects_the_policy(spec: Any, reason: str) -> None:
    with pytest.raises(DocumentInvalid) as refused:
        document_compiled(spec)
    assert any(reason in one.reason for one in refused.value.problems)
    for one in refused.value.problems:
        assert one.upstream.startswith(f"{one.path}: Invalid value: ")


def test_evaluation_mode_json_accepts_any_map() -> None:
    spec = {
        **validations("object.a == 1 && request == null && oldObject == null"),
        "evaluation": {"mode": "JSON"},
        "auditAnnotations": [{"key": "k", "valueExpression": "'v'"}],
    }
    payload = Request(object={"a": 1}, version="")
    policy = document(spec, match=None)
    (found,) = answers(policy, request=payload, is_payload=True)
    assert found.result is not None
    assert (found.result.status, found.result.properties) == ("pass", {})


def deployment(image: str = "nginx") -> dict[str, Any]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"image": image}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"template": template},
    }


def cron_job(image: str = "nginx") -> dict[str, Any]:
    job = {"spec": deployment(image)["spec"]}
    metadata = {"name": "web", "namespace": "shop"}
    head = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata}
    return {**head, "spec": {"jobTemplate": job}}


CHECKED = validations(
    "object.spec.image == 'nginx' && object.metadata.labels.a == 'b'",
    message="object.spec.image",
)


@pytest.mark.parametrize(
    ("resource", "copy", "message"),
    [
        (deployment("x"), "defaults", "object.spec.template.spec.image"),
        (cron_job("x"), "cronjobs", "object.spec.jobTemplate.spec.template.spec.image"),
        (deployment(), "defaults", "success"),
        (cron_job(), "cronjobs", "success"),
    ],
)
def test_autogen(resource: dict[str, Any], copy: str, message: str) -> None:
    found = {one.copy: one.result for one in answers(document(CHECKED), resource)}
    results = {name: one.message for name, one in found.items() if one is not None}
    assert results == {copy: message}


@pytest.mark.parametrize(
    ("spec", "match", "copies"),
    [
        ({}, MATCH, ["cronjobs", "defaults"]),
        ({}, {**MATCH, "objectSelector": {}}, ["cronjobs", "defaults"]),
        ({}, {**MATCH, "objectSelector": {"matchLabels": {"a": "b"}}}, []),
        ({}, {**MATCH, "namespaceSelector": {"matchLabels": {"a": "b"}}}, []),
        ({}, {**MATCH, "excludeResourceRules": [RULE]}, []),
        ({}, {"resourceRules": [RULE, RULE]}, []),
        ({}, rule(resources=["pods", "services"]), []),
        ({}, rule(resources=["*"]), []),
        ({}, rule(resourceNames=["a"]), []),
        ({}, rule(apiVersions=["*"]), []),
        (["deployments"], MATCH, ["defaults"]),
        (["cronjobs", "pods"], MATCH, ["cronjobs"]),
        (["none"], MATCH, []),
        ([], MATCH, []),
    ],
)
def test_autogen_variants(spec: Any, match: Any, copies: list[str]) -> None:
    given = {} if spec == {} else {"podControllers": {"controllers": spec}}
    compiled = document_compiled({**CHECKED, "autogen": given}, match=match)
    assert [body.copy for body in compiled.bodies] == ["", *copies]


def test_constraints_of_an_autogen_variant() -> None:
    first, second = document_compiled(CHECKED).bodies[1:]
    assert first.constraints is not None
    assert second.constraints is not None
    (rules,) = first.constraints.rules
    assert (rules.groups, rules.resources) == (("batch",), ("cronjobs",))
    apps, batch = second.constraints.rules
    wanted = ("daemonsets", "deployments", "replicasets", "statefulsets")
    assert (apps.groups, apps.resources) == (("apps",), wanted)
    assert (batch.resources, batch.operations) == (("jobs",), ("CREATE",))


@pytest.mark.parametrize(
    "text",
    [
        "dyn(resource.list('v1', 'pods', '').items).exists(i, true)",
        "resource.list('v1', 'pods', '').items.orValue([]).exists(i, true)",
        "resource.list('v1', 'pods', '').all(k, k != '')",
        "size(resource.list('v1', 'pods', '').items) > 0",
    ],
)
def test_ranges_over_objects_of_the_cluster(text: str) -> None:
    """As in the real program; ``.items`` itself is no range."""
    document_compiled(validations(text))


def test_namespaced_policy_has_namespaced_functions() -> None:
    document_compiled(
        validations("size(resource.get('v1', 'pods', 'p')) > 0"), namespace="shop"
    )
    with pytest.raises(DocumentInvalid):
        document_compiled(validations("size(resource.get('v1', 'pods', 'p')) > 0"))


def test_deadline_ends_the_review() -> None:
    compiled = document_compiled(validations("true"))
    late = Runtime(now=lambda: NOW, monotonic_ns=lambda: 100, deadline_ns=50)
    late.begin_policy("p", is_tenant=False)
    asked = request(POD)
    linked = LinkedValidatingPolicy(compiled)
    facts = Facts(asked, late, CelPorts())

    def often() -> None:
        for _ in range(10_000):
            list(linked.evaluate(facts, Shared(asked)))

    with pytest.raises(DeadlinePassed):
        often()


def test_costly_policy_is_an_error() -> None:
    many = list(range(1000))
    spec = validations(f"{many}.all(a, {many}.all(b, a + b >= 0))")
    found = verdict(spec)
    assert found is not None
    assert found[:2] == ("evaluation", "error")
    assert "actual cost limit exceeded" in found[2]


# Both generations use one engine: an expression of an API server policy has the same
# value in a ValidatingPolicy.

_TERMS = st.sampled_from(
    [
        "object.spec.n > 2",
        "object.spec.n == 3",
        "has(object.spec.x)",
        "object.none == 1",
        "object.metadata.labels.app == 'web'",
        "request.namespace == 'shop'",
        "object.spec.containers.all(c, c.image == 'nginx')",
        "object != null",
        "oldObject == null",
        "has(oldObject.metadata)",
        "oldObject.?metadata.name.orValue('') == ''",
        "object.spec.?x.orValue(1) == 1",
        "variables.v == 3.0",
        "variables.bad == 1",
        "'a' in ['a']",
        "1 / 0 == 1",
        "size(object.spec.containers) == 1",
    ]
)
_TEXTS = st.recursive(
    _TERMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        inner.map(lambda text: f"!({text})"),
        st.tuples(inner, inner, inner).map(lambda p: f"({p[0]} ? {p[1]} : {p[2]})"),
    ),
    max_leaves=6,
)


@settings(max_examples=400)
@given(st.lists(_TEXTS, min_size=1, max_size=3), st.lists(_TEXTS, max_size=2))
def test_verdicts_equal_the_api_servers(
    texts: list[str], conditions: list[str]
) -> None:
    declared = [condition("object.spec.n", "v"), condition("object.none", "bad")]
    plain = [text for text in conditions if "variables" not in text]
    spec = {
        **validations(*texts),
        "variables": declared,
        "matchConditions": [condition(text) for text in plain],
        "matchConstraints": MATCH,
    }
    own: Any = decode_admission_policy(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "p"},
            "spec": spec,
        }
    )
    linked = LinkedValidation(compile_admission_policy(own, ()))
    other = linked.evaluate(request(POD), runtime(), ())
    found = verdict(spec, match=None)
    assert other is not None
    assert found is not None
    assert found[1] == other.status
