"""Reviews of Kyverno's own kinds, sent as bytes to the app."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import pytest
from falcon import testing

from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.limits import (
    COMPILE_EXCEPTION_STEPS_MAX,
    POLICY_REVIEW_S_MAX,
    POLICY_REVIEW_THREADS,
    POLICY_REVIEWS_MAX,
    TTL_CHECKED_S,
)
from kyverno_mp.policy.ports import (
    Author,
    BuiltInKinds,
    ClusterView,
    FoundKind,
    KnownSchemas,
    PermissionTarget,
)
from kyverno_mp.values.kubernetes.built_in_kinds import ApiResource
from kyverno_mp.values.kubernetes.kinds import KindSelector
from kyverno_mp.values.kubernetes.openapi import GroupVersionKind, Schema
from kyverno_mp.webhook.http.asgi import call_app
from kyverno_mp.webhook.policy_review import KINDS_OF_PATH, PolicyReview, ReviewOptions
from kyverno_mp.webhook.rest import make_app
from kyverno_mp.webhook.review_threads import Reviewers
from kyverno_mp.webhook.ttl_review import TtlReview
from tests.waiting import HANG_S


def ask(path: str, raw: dict[str, Any], **options: Any) -> dict[str, Any]:
    group, _, version = raw["apiVersion"].rpartition("/")
    request = {
        "uid": "u",
        "operation": options.pop("operation", "CREATE"),
        "subResource": options.pop("subresource", ""),
        "kind": {"group": group, "version": version, "kind": raw["kind"]},
        "namespace": raw["metadata"].get("namespace", ""),
        "object": raw,
        "oldObject": options.pop("old", None),
    }
    app = make_app(lambda: True, ReviewOptions(**options))
    answer = testing.TestClient(app).simulate_post(path, json={"request": request})
    assert answer.status_code == 200
    response: dict[str, Any] = answer.json["response"]
    return response


def exception(policy_name: str = "p") -> dict[str, Any]:
    return {
        "apiVersion": "kyverno.io/v2",
        "kind": "PolicyException",
        "metadata": {"name": "e", "namespace": "ns"},
        "spec": {
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
            "exceptions": [{"policyName": policy_name, "ruleNames": ["r"]}],
        },
    }


@pytest.mark.parametrize(
    ("options", "warnings"),
    [
        ({}, None),
        ({"exception_namespace": "ns"}, None),
        ({"exception_namespace": ""}, ["The exceptionNamespace flag is not set"]),
        (
            {"exception_namespace": "other"},
            ["PolicyException resource namespace must match the defined namespace."],
        ),
        (
            {"exceptions_enabled": False},
            ["PolicyException resources would not be processed until it is enabled."],
        ),
    ],
)
def test_exception_outside_its_namespace_causes_a_warning(
    options: dict[str, Any], warnings: list[str] | None
) -> None:
    response = ask("/exceptionvalidate", exception(), **options)
    assert response["allowed"] is True
    assert response.get("warnings") == warnings


def annotated(raw: dict[str, Any], **annotations: str) -> dict[str, Any]:
    named = {f"kyverno-mp.io/{name}": value for name, value in annotations.items()}
    return {**raw, "metadata": {**raw["metadata"], "annotations": named}}


@pytest.mark.parametrize("in_which", ["kyverno.io", "policies.kyverno.io"])
def test_the_end_of_an_exception_is_reviewed(in_which: str) -> None:
    path, raw = "/exceptionvalidate", exception()
    if in_which == "policies.kyverno.io":
        spec = {"policyRefs": [{"name": "p", "kind": "ValidatingPolicy"}]}
        path, raw = "/celexception/validate", in_cel("PolicyException", spec)
    future = annotated(raw, expires="2999-01-01T00:00:00Z", reason="until it is mended")
    response = ask(path, future)
    assert (response["allowed"], response.get("warnings")) == (True, None)
    past = ask(path, annotated(raw, expires="2020-01-01T00:00:00Z"))
    assert past["warnings"] == ["The PolicyException has expired; it exempts nothing."]
    for invalid in ({"expires": "tomorrow"}, {"expire": "2999-01-01T00:00:00Z"}):
        refused = ask(path, annotated(raw, **invalid))
        assert refused["allowed"] is False
        (name,) = invalid
        message = refused["status"]["message"]
        assert f"metadata.annotations[kyverno-mp.io/{name}]: " in message
        assert "[policy.expiry]" in message
        # A stored one can still be changed; it exempts nothing.
        stored = annotated(raw, **invalid)
        again = ask(path, stored, old=stored, operation="UPDATE")
        assert again["allowed"] is True


def test_exception_is_rejected() -> None:
    response = ask("/exceptionvalidate", exception(""))
    assert response["status"]["message"] == (
        "spec.exceptions[0].policyName: Required value: An exception requires a policy "
        "name"
    )


def test_global_context_entry_has_one_source() -> None:
    raw = {
        "apiVersion": "kyverno.io/v2",
        "kind": "GlobalContextEntry",
        "metadata": {"name": "g"},
        "spec": {},
    }
    response = ask("/globalcontextvalidate", raw)
    assert response["status"]["message"] == (
        "spec.kubernetesResource: Forbidden: A global context entry should either have "
        "KubernetesResource or APICall"
    )


@pytest.mark.parametrize("path", KINDS_OF_PATH)
def test_other_kinds_are_no_policies(path: str) -> None:
    raw = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    response = ask(path, raw)
    text = "admission request does not contain a policy"
    assert response["status"]["message"] == text


@pytest.mark.parametrize("asked", [{"operation": "DELETE"}, {"subresource": "status"}])
def test_status_and_deletion_are_allowed_unread(asked: dict[str, str]) -> None:
    assert ask("/exceptionvalidate", exception(""), **asked)["allowed"] is True


def test_all_structural_problems_are_reported() -> None:
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"rules": [{"nam": "r", "match": {"any": 3}}]},
    }
    message = ask("/policyvalidate", raw)["status"]["message"]
    assert "spec.rules[0].nam" in message
    assert "spec.rules[0].match.any" in message


def test_unsatisfiable_match_causes_a_warning_with_its_path() -> None:
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    foreach = [{"list": "a[", "deny": {}}]
    rule = {"name": "r", "match": match, "validate": {"foreach": foreach}}
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"rules": [rule]},
    }
    answer = ask("/policyvalidate", raw)
    place = "spec.rules[0].validate.foreach[0].list (rule r), column 3: "
    assert answer["allowed"] is True
    assert any(place in text for text in answer["warnings"])


def test_match_conditions_must_compile() -> None:
    given = ["has(object.spec)", "nope == 1", "1 + 1"]
    conditions = [
        {"name": f"c{number}", "expression": text} for number, text in enumerate(given)
    ]
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    rule = {"name": "r", "match": match, "validate": {"deny": {}}}
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {
            "webhookConfiguration": {"matchConditions": conditions},
            "rules": [rule],
        },
    }
    assert ask("/policyvalidate", raw)["status"]["message"] == (
        "match conditions compilation errors: [compilation failed: ERROR: <input>:1:1:"
        " undeclared reference to 'nope' (in container '')\n | nope == 1\n | ^"
        " must evaluate to bool but got int]"
    )
    del conditions[1:]
    assert ask("/policyvalidate", raw)["allowed"] is True
    # The API server would reject all webhooks because of this one.
    conditions[0]["name"] = "not a name"
    refused = ask("/policyvalidate", raw)
    assert not refused["allowed"]
    assert "'not a name' is not a qualified name" in refused["status"]["message"]


def test_body_that_is_no_review() -> None:
    app = make_app(lambda: True)
    answer = testing.TestClient(app).simulate_post("/policyvalidate", body=b"{}")
    assert answer.status_code == 400


def test_expressions_that_do_not_compile_cause_a_warning() -> None:
    """Upstream accepts such a policy, and every request then fails."""
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    cel = {"expressions": [{"expression": "object.x +"}]}
    rule = {"name": "r", "match": match, "validate": {"cel": cel}}
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"rules": [rule]},
    }
    response = ask("/policyvalidate", raw)
    assert response["allowed"] is True
    (warning,) = response["warnings"]
    assert warning == (
        "spec.rules[0].validate.cel.expressions[0].expression (rule r), column 11:"
        " Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-',"
        " '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES,"
        " IDENTIFIER}"
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("1d", ""),
        ("2026-11-21", ""),
        (
            "soon",
            'parsing time "soon" as "2006-01-02": cannot parse "soon" as "2006"',
        ),
    ],
)
def test_invalid_ttl_labels_cause_a_warning(value: str, reason: str) -> None:
    metadata = {"name": "p", "labels": {"cleanup.kyverno.io/ttl": value}}
    response = ask("/verifyttl", {**_POD, "metadata": metadata})
    text = (
        "cleanup.kyverno.io/ttl label value cannot be parsed as any recognizable format"
        f" ({reason})"
    )
    assert response["allowed"] is True
    assert response.get("warnings") == ([text] if reason else None)


class _Granted:
    """Permissions of the clean-up account; a set of verbs."""

    def __init__(self, *verbs: str) -> None:
        self.verbs = {*verbs}
        self.asked: list[tuple[str, str, str]] = []

    def allows(self, account: str, verb: str, target: PermissionTarget) -> bool:
        assert account == "system:serviceaccount:kyverno:kyverno-cleanup-controller"
        self.asked.append((verb, target.resource.plural, target.namespace))
        if "away" in self.verbs:
            raise KubeUnavailable("kube.server", "away")
        return verb in self.verbs


def ttl_warnings(
    granted: _Granted, review: TtlReview | None = None
) -> list[str] | None:
    """Return the warnings for a Deployment with a TTL label."""
    metadata = {"name": "p", "labels": {"cleanup.kyverno.io/ttl": "1d"}}
    request = {
        "uid": "u",
        "operation": "CREATE",
        "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
        "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
        "namespace": "a",
        "object": {"apiVersion": "v1", "kind": "Deployment", "metadata": metadata},
    }
    body = json.dumps({"request": request}).encode()
    answer = json.loads(asyncio.run((review or ttl_review(granted)).answer(body)))
    assert answer["response"]["allowed"] is True
    warnings: list[str] | None = answer["response"].get("warnings")
    return warnings


def ttl_review(
    granted: _Granted, monotonic_s: Callable[[], float] = lambda: 0.0
) -> TtlReview:
    return TtlReview(ClusterView(BuiltInKinds(), permissions=granted), monotonic_s)


def test_ttl_label_that_nothing_honours_causes_a_warning() -> None:
    """The user would otherwise believe that the object is deleted."""
    warnings = ttl_warnings(_Granted("list", "watch"))
    assert warnings == [
        (
            "cleanup.kyverno.io/ttl has no effect: kyverno-cleanup-controller may not"
            " delete deployments.apps; these commands permit it:"
        ),
        (
            "kubectl create clusterrole kyverno:cleanup-deployments.apps"
            " --verb=list,watch,delete --resource=deployments.apps"
        ),
        (
            "kubectl label clusterrole kyverno:cleanup-deployments.apps"
            " rbac.kyverno.io/aggregate-to-cleanup-controller=true"
        ),
    ]
    assert all(len(warning) < 256 for warning in warnings)


def test_ttl_label_with_effect_causes_no_warning() -> None:
    granted = _Granted("list", "watch", "delete")
    assert ttl_warnings(granted) is None
    assert {row[1:] for row in granted.asked} == {("deployments", "a")}


def test_permissions_for_ttl_labels_are_not_asked_for_each_object() -> None:
    """A grant counts within seconds nevertheless."""
    granted, now_s = _Granted(), [0.0]
    review = ttl_review(granted, lambda: now_s[0])
    for _ in range(20):
        assert ttl_warnings(granted, review)
    assert len(granted.asked) == 1
    granted.verbs = {"list", "watch", "delete"}
    now_s[0] = TTL_CHECKED_S
    assert ttl_warnings(granted, review) is None


def test_unreachable_api_server_blocks_no_labelled_object() -> None:
    assert ttl_warnings(_Granted("away")) is None


class _Writers:
    """Whether users may delete; notes the questions."""

    def __init__(self, *, may: bool = True, is_up: bool = True) -> None:
        self._may, self._is_up = may, is_up
        self.asked: list[tuple[str, dict[str, str]]] = []

    def author_may(
        self, author: Author, attributes: Mapping[str, str], deadline_ns: int
    ) -> bool:
        assert deadline_ns
        if not self._is_up:
            raise KubeUnavailable("kube.server", "away")
        self.asked.append((author.name, dict(attributes)))
        return self._may


def ttl_answer(
    writers: _Writers, *, needs_delete: bool = False, old_ttl: str = ""
) -> dict[str, Any]:
    """Return the answer for a Secret that eve labels with a TTL of a day."""

    def labelled(value: str) -> dict[str, Any]:
        labels = {"cleanup.kyverno.io/ttl": value} if value else {}
        return {**_POD, "metadata": {"name": "s", "labels": labels}}

    request = {
        "uid": "u",
        "operation": "UPDATE",
        "kind": {"group": "", "version": "v1", "kind": "Secret"},
        "resource": {"group": "", "version": "v1", "resource": "secrets"},
        "namespace": "a",
        "name": "s",
        "userInfo": {"username": "eve", "groups": []},
        "object": labelled("1d"),
        "oldObject": labelled(old_ttl),
    }
    view = ClusterView(BuiltInKinds(), authors=writers)
    review = TtlReview(view, lambda: 0.0, needs_delete=needs_delete)
    answer = asyncio.run(review.answer(json.dumps({"request": request}).encode()))
    response: dict[str, Any] = json.loads(answer)["response"]
    return response


_MAY_NOT = (
    "cleanup.kyverno.io/ttl: eve may not delete secrets, but the label deletes it"
)


def test_writer_of_a_ttl_label_may_not_delete_the_object() -> None:
    """The clean-up account would delete it for the user: a warning, or a denial."""
    writers = _Writers(may=False)
    response = ttl_answer(writers)
    assert (response["allowed"], response["warnings"]) == (True, [_MAY_NOT])
    deleted = {"verb": "delete", "version": "v1", "resource": "secrets"}
    assert writers.asked == [("eve", {**deleted, "namespace": "a", "name": "s"})]
    denied = ttl_answer(writers, needs_delete=True)
    assert not denied["allowed"]
    assert denied["status"]["message"] == _MAY_NOT
    changed = ttl_answer(writers, needs_delete=True, old_ttl="9d")
    assert not changed["allowed"]


@pytest.mark.parametrize("needs_delete", [False, True])
def test_ttl_label_of_a_writer_who_may_delete(
    needs_delete: bool,  # noqa: FBT001
) -> None:
    response = ttl_answer(_Writers(), needs_delete=needs_delete)
    assert response["allowed"]
    assert "warnings" not in response


def test_old_ttl_label_is_not_judged_again() -> None:
    """Otherwise, nobody but its writer could change the object."""
    writers = _Writers(may=False)
    assert ttl_answer(writers, needs_delete=True, old_ttl="1d")["allowed"]
    assert writers.asked == []


def test_unchecked_writer_is_denied_only_by_the_setting() -> None:
    away = _Writers(is_up=False)
    response = ttl_answer(away)
    assert response["allowed"]
    assert "warnings" not in response
    denied = ttl_answer(away, needs_delete=True)
    assert not denied["allowed"]
    assert "could not be checked" in denied["status"]["message"]


_POD = {"apiVersion": "v1", "kind": "Pod"}


def in_cel(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "policies.kyverno.io/v1beta1",
        "kind": kind,
        "metadata": {"name": "e", "namespace": "ns"},
        "spec": spec,
    }


_MATCHED = {
    "resourceRules": [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
        }
    ]
}
_NOT_COMPILED = (
    "<nil>: Internal error: validating policy compiler 1.0 error: failed to compile"
    " policy"
)


_UNMATCHED = (
    "spec.matchConstraints: Required value: a matchConstraints with at least one"
    " resource rule is required"
)
_DYNAMIC = (
    'spec.validations[0].expression: Invalid value: "object.x": output is expected to'
    " be of type bool"
)


def test_cel_exceptions_are_accepted() -> None:
    spec = {"policyRefs": [{"name": "p", "kind": "ValidatingPolicy"}]}
    response = ask("/celexception/validate", in_cel("PolicyException", spec))
    assert response["allowed"] is True
    assert "warnings" not in response


def test_unevaluated_kinds_cause_a_warning() -> None:
    """For example, a kind that a later Kyverno adds."""
    response = ask("/policyvalidate", in_cel("SchedulingPolicy", {}))
    assert response["allowed"] is True
    assert "not evaluated by this version" in response["warnings"][0]


@pytest.mark.parametrize("kind", ["ValidatingPolicy", "NamespacedValidatingPolicy"])
@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ({"matchConstraints": _MATCHED, "validations": [{"expression": "true"}]}, ""),
        (
            {"validations": [{"expression": "true"}]},
            _UNMATCHED,
        ),
        (
            {
                "matchConstraints": _MATCHED,
                "validations": [{"expression": "object.x"}, {"expression": "1"}],
            },
            f"[{_NOT_COMPILED}, {_DYNAMIC}]",
        ),
    ],
)
def test_cel_policies_are_reviewed(
    kind: str, spec: dict[str, Any], refusal: str
) -> None:
    response = ask("/policyvalidate", in_cel(kind, spec))
    assert response["allowed"] is not bool(refusal)
    if refusal:
        assert response["status"]["message"] == refusal
        assert response["warnings"][-1] in refusal


def _mutation(expression: str) -> dict[str, Any]:
    given = {"expression": expression}
    return {"patchType": "ApplyConfiguration", "applyConfiguration": given}


_NO_OBJECT = (
    'spec.mutations[0].applyConfiguration.expression: Invalid value: "object.x": output'
    " is expected to be of type Object"
)


@pytest.mark.parametrize("kind", ["MutatingPolicy", "NamespacedMutatingPolicy"])
@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ({"matchConstraints": _MATCHED, "mutations": [_mutation("Object{}")]}, ""),
        ({"mutations": [_mutation("Object{}")]}, _UNMATCHED),
        (
            # The real program stops at the first expression that does not compile.
            {
                "matchConstraints": _MATCHED,
                "mutations": [_mutation("object.x"), _mutation("1")],
            },
            _NO_OBJECT,
        ),
        (
            {
                "matchConstraints": _MATCHED,
                "mutations": [_mutation("object.x")],
                "targetMatchConditions": [{"name": "t", "expression": "1"}],
            },
            (
                'spec.targetMatchConditions[0].expression: Invalid value: "1": output'
                " is expected to be of type bool"
            ),
        ),
        (
            {
                "matchConstraints": _MATCHED,
                "mutations": [_mutation("Object{}")],
                "evaluation": {"mode": "JSON"},
            },
            (
                'spec.evaluation.mode: Invalid value: "JSON": a MutatingPolicy is'
                " evaluated in mode Kubernetes only"
            ),
        ),
    ],
)
def test_mutating_cel_policies_are_reviewed(
    kind: str, spec: dict[str, Any], refusal: str
) -> None:
    response = ask("/policyvalidate", in_cel(kind, spec))
    assert response["allowed"] is not bool(refusal)
    if refusal:
        assert response["status"]["message"] == refusal
        assert response["warnings"] == [refusal]


def test_controllers_without_effect_cause_warnings() -> None:
    """A misspelt controller is not checked, although its author believes it is."""
    controllers = ["deployments", "Job", "trains.v2.jobs.example.com"]
    spec = {
        "autogen": {"podControllers": {"controllers": controllers}},
        "matchConstraints": _MATCHED,
    }
    checked = {**spec, "validations": [{"expression": "object.spec.n == 1"}]}
    response = ask("/policyvalidate", in_cel("ValidatingPolicy", checked))
    assert response["allowed"]
    (warning,) = response["warnings"]
    assert warning.startswith('spec.autogen.podControllers.controllers[1]: "Job" is')
    changed = {**spec, "mutations": [_mutation("Object{}")]}
    response = ask("/policyvalidate", in_cel("MutatingPolicy", changed))
    assert [text.split(":")[0][-3:] for text in response["warnings"]] == ["[1]", "[2]"]


def test_namespaced_cel_policy_must_not_call_services() -> None:
    spec = {
        "matchConstraints": _MATCHED,
        "validations": [{"expression": "http.get('https://x').statusCode == 200"}],
    }
    response = ask("/policyvalidate", in_cel("NamespacedValidatingPolicy", spec))
    assert "http.* is not allowed" in response["status"]["message"]


@pytest.mark.parametrize(
    "field",
    [
        {"targetMatchConditions": [{"name": "t", "expression": "CALLS"}]},
        {"auditAnnotations": [{"key": "k", "valueExpression": "CALLS ? 'a' : 'b'"}]},
    ],
)
def test_mutating_policy_cannot_call_services_in_any_field(
    field: dict[str, Any],
) -> None:
    """Otherwise a tenant could reach addresses that the operator blocked."""
    calls = "http.get('https://x').statusCode == 200"
    given = json.loads(json.dumps(field).replace("CALLS", calls))
    spec = {"matchConstraints": _MATCHED, "mutations": [_mutation("Object{}")], **given}
    response = ask("/policyvalidate", in_cel("NamespacedMutatingPolicy", spec))
    assert "http.* is not allowed" in response["status"]["message"]


class Silent:
    """An API server that does not answer access reviews."""

    def allows(self, account: str, verb: str, target: PermissionTarget) -> bool:
        text = f"may {account} {verb} {target.resource.plural}?"
        raise KubeUnavailable("kube.connection", text)


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ({"validate": {"message": "m", "pattern": {"metadata": {"name": "x"}}}}, True),
        (
            {
                "mutate": {
                    "targets": [{"apiVersion": "v1", "kind": "Secret", "name": "s"}],
                    "patchStrategicMerge": {"metadata": {"labels": {"a": "b"}}},
                }
            },
            False,
        ),
    ],
)
def test_uncheckable_policy_is_denied(
    rule: dict[str, Any],
    allowed: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """A denial requires a completed check; a warning does not."""
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"rules": [{"name": "r", "match": match, **rule}]},
    }
    view = ClusterView(kinds=BuiltInKinds(), permissions=Silent())
    response = ask("/policyvalidate", raw, view=view)
    assert response["allowed"] is allowed
    told = [*response.get("warnings", ()), response.get("status", {}).get("message")]
    accounts = "reports" if allowed else "background"
    assert any(f"kyverno-{accounts}-controller get" in str(text) for text in told)


def test_policy_being_deleted_is_allowed() -> None:
    """Otherwise finalizers could not be removed from a policy that is invalid today."""
    raw: dict[str, Any] = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"rules": []},
    }
    old = {**raw, "metadata": {**raw["metadata"], "finalizers": ["a/b"]}}
    assert ask("/policyvalidate", raw, operation="UPDATE", old=old)["allowed"]
    changed = {**raw, "spec": {**raw["spec"], "background": False}}
    assert not ask("/policyvalidate", changed, operation="UPDATE", old=old)["allowed"]
    del raw["metadata"]["deletionTimestamp"]
    assert not ask("/policyvalidate", raw, operation="UPDATE")["allowed"]


POLICY: dict[str, Any] = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "p"},
    "spec": {
        "rules": [
            {
                "name": "r",
                "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                "validate": {"deny": {}},
            }
        ]
    },
}


class HeldKinds(BuiltInKinds):
    """A port that blocks until it is released, like a hanging API server."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def find(self, selector: KindSelector) -> list[FoundKind]:
        assert self.let_go.wait(HANG_S)
        return super().find(selector)


def test_policy_reviews_are_bounded_and_delay_no_lease() -> None:
    """Otherwise bodies accumulate, or slow reviews make us look unreachable."""
    kinds = HeldKinds()
    app = make_app(lambda: True, ReviewOptions(view=ClusterView(kinds=kinds)))
    lease = {"kind": "Lease", "metadata": {"annotations": {"a": "b"}}}

    def post(path: str, kind: str, raw: Any) -> Awaitable[tuple[int, Any, bytes]]:
        request = {
            "uid": "u",
            "operation": "CREATE",
            "kind": {"group": "kyverno.io", "version": "v1", "kind": kind},
            "object": raw,
        }
        body = json.dumps({"request": request}).encode()
        return call_app(*(app, b"POST", path.encode(), b"", [], body), is_proved=True)

    async def story() -> None:
        held = [
            asyncio.ensure_future(post("/policyvalidate", "ClusterPolicy", POLICY))
            for _ in range(POLICY_REVIEWS_MAX)
        ]
        await asyncio.sleep(0)
        status, _, body = await post("/policyvalidate", "ClusterPolicy", POLICY)
        told = json.loads(body)
        assert (status, told["code"]) == (503, "webhook.policy_reviews_full")
        status, _, body = await post("/verifymutate", "Lease", lease)
        assert status == 200
        assert json.loads(body)["response"]["patch"]
        assert not any(one.done() for one in held)
        kinds.let_go.set()
        assert {status for status, _, _ in await asyncio.gather(*held)} == {200}
        status, _, _ = await post("/policyvalidate", "ClusterPolicy", POLICY)
        assert status == 200

    asyncio.run(story())


@pytest.mark.parametrize("kind", ["Policy", "ClusterPolicy"])
def test_namespaced_policy_over_its_memory_budget_is_rejected(kind: str) -> None:
    """It would be an error for each object that it matches."""
    leaves = {f"k{number}": f">{number}" for number in range(4000)}
    rule = {**POLICY["spec"]["rules"][0], "validate": {"pattern": {"data": leaves}}}
    raw = {
        **POLICY,
        "kind": kind,
        "metadata": {"name": "p", **({"namespace": "a"} if kind == "Policy" else {})},
        "spec": {"background": False, "rules": [rule]},
    }
    raw["spec"]["rules"][0].pop("context", None)
    request = {
        "uid": "u",
        "operation": "CREATE",
        "namespace": "a" if kind == "Policy" else "",
        "kind": {"group": "kyverno.io", "version": "v1", "kind": kind},
        "object": raw,
    }
    body = json.dumps({"request": request}).encode()
    answer = PolicyReview(ReviewOptions(), lambda: 0.0).answer("/policyvalidate", body)
    told = json.loads(answer)["response"]
    assert told["allowed"] is (kind == "ClusterPolicy"), told
    if kind == "Policy":
        assert (
            "more than the 32 MiB of a namespaced policy" in told["status"]["message"]
        )


DENY = {
    "HTTP": 'http.Denied("no").Response()',
    "Envoy": "envoy.Denied(403).Response()",
}


@pytest.mark.parametrize("mode", ["HTTP", "Envoy"])
@pytest.mark.parametrize(
    ("spec", "denied"),
    [
        ({"validations": [{"expression": "DENY"}]}, ""),
        ({}, ""),
        ({"validations": 1}, "spec.validations"),
        (
            {"validations": [{"expression": "null"}, {"expression": "true"}]},
            "rule response output is expected to be of type",
        ),
        (
            {"matchConditions": [{"name": "c", "expression": "variables.a"}]},
            "spec.matchConditions[0].expression",
        ),
    ],
)
def test_policies_of_an_authorizer_are_checked(
    mode: str, spec: dict[str, Any], denied: str
) -> None:
    """Stored, one that does not compile would allow what it should deny."""
    text = json.dumps(spec).replace('"DENY"', json.dumps(DENY[mode]))
    raw = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "ValidatingPolicy",
        "metadata": {"name": "p"},
        "spec": {**json.loads(text), "evaluation": {"mode": mode}},
    }
    request = {
        "uid": "u",
        "operation": "CREATE",
        "kind": {
            "group": "policies.kyverno.io",
            "version": "v1",
            "kind": "ValidatingPolicy",
        },
        "object": raw,
    }
    body = json.dumps({"request": request}).encode()
    answer = PolicyReview(ReviewOptions(), lambda: 0.0).answer("/policyvalidate", body)
    told = json.loads(answer)["response"]
    assert told["allowed"] == (not denied)
    if denied:
        assert denied in told["status"]["message"]
    else:
        warning = f"ValidatingPolicy in evaluation mode {mode} is not evaluated by"
        assert told["warnings"] == [f"{warning} the webhook"]


def test_waiting_reviews_end_with_the_worker() -> None:
    """A failure means: reviews without a client delay the exit of a worker."""
    let_go, began = threading.Event(), threading.Semaphore(0)

    def answer(body: bytes) -> bytes:
        began.release()
        assert let_go.wait(HANG_S)
        return body

    async def story() -> list[Any]:
        reviewers = Reviewers()
        asked = [
            asyncio.ensure_future(reviewers.run(answer, b"x"))
            for _ in range(POLICY_REVIEW_THREADS + 3)
        ]
        await asyncio.sleep(0)
        for _ in range(POLICY_REVIEW_THREADS):
            assert began.acquire(timeout=HANG_S)
        reviewers.stop()
        let_go.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    ends = [type(one) for one in asyncio.run(story())]
    assert ends == [bytes] * POLICY_REVIEW_THREADS + [asyncio.CancelledError] * 3


class _Thing:
    """A cluster with one kind and its schema."""

    def schemas(self, group_versions: Iterable[tuple[str, str]]) -> KnownSchemas:
        assert list(group_versions) == [("things.test", "v1")]
        spec = Schema(type="object", properties={"text": Schema(type="string")})
        kinds = (GroupVersionKind("things.test", "v1", "Thing"),)
        root = Schema(type="object", kinds=kinds, properties={"spec": spec})
        return {("things.test", "v1"): {"test.Thing": root}}


def ask_of_thing(*expressions: str, kind: str = "Thing") -> list[str]:
    match = {"any": [{"resources": {"kinds": [kind]}}]}
    cel = {"expressions": [{"expression": text} for text in expressions]}
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {
            "rules": [{"name": "r", "match": match, "validate": {"cel": cel}}],
        },
    }
    resource = ApiResource("things.test", "v1", "Thing", "things", True)
    kinds = BuiltInKinds([resource], is_complete=True)
    view = ClusterView(kinds=kinds, schemas=_Thing())
    response = ask("/policyvalidate", raw, view=view)
    assert response["allowed"] is True
    found: list[str] = response.get("warnings", [])
    return found


def test_misspelled_field_causes_a_warning_on_creation() -> None:
    """Otherwise the first request finds it and fails."""
    assert ask_of_thing("object.spec.text == 'a'") == []
    (found,) = ask_of_thing("object.spec.text == 'a'", "object.spec.txet == 'a'")
    assert found == (
        "spec.rules[0].validate.cel.expressions[1].expression:things.test/v1,"
        " Kind=Thing: ERROR: <input>:1:12: undefined field 'txet'; | object.spec.txet"
        " == 'a'; | ...........^;"
    )


def test_expression_causes_one_warning() -> None:
    (found,) = ask_of_thing("object.spec.text +")
    assert found.startswith("spec.rules[0].validate.cel.expressions[0].expression:th")


def test_policy_without_schema_check_still_causes_warnings() -> None:
    """An unknown kind ends upstream's review before its type check."""
    (unknown, found) = ask_of_thing("object.spec.text +", kind="Nothing")
    assert "unable to convert GVK to GVR" in unknown
    assert "(rule r), column 19: Syntax error" in found


def heavy(count: int) -> dict[str, Any]:
    """Return a policy with this many long expressions."""
    texts = [" || ".join([f"object.a{i}.b == 1"] * 3000) for i in range(count)]
    expressions = [{"expression": text} for text in texts]
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "validate": {"cel": {"expressions": expressions}},
    }
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "Policy",
        "metadata": {"name": "heavy", "namespace": "ns"},
        "spec": {"rules": [rule]},
    }


def review_by(tick_s: float, raw: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Review with a clock that advances on each read; return the elapsed time, too."""
    now_s = 0.0

    def monotonic_s() -> float:
        nonlocal now_s
        now_s += tick_s
        return now_s

    request = {
        "uid": "u",
        "operation": "CREATE",
        "kind": {"group": "kyverno.io", "version": "v1", "kind": raw["kind"]},
        "namespace": "ns",
        "object": raw,
    }
    body = json.dumps({"request": request}).encode()
    answer = PolicyReview(ReviewOptions(), monotonic_s).answer("/policyvalidate", body)
    response: dict[str, Any] = json.loads(answer)["response"]
    return response, now_s


def test_policy_over_its_budget_is_rejected_with_a_message() -> None:
    answer, _ = review_by(0.0, heavy(5))
    assert answer["allowed"] is False
    assert "steps to read and compile" in answer["status"]["message"]


def test_policy_review_ends_in_time() -> None:
    """The clock is checked within one policy, and a late review is denied."""
    answer, ended_s = review_by(1.0, heavy(3))
    assert answer["allowed"] is False
    assert "could not be checked in time" in answer["status"]["message"]
    assert ended_s < POLICY_REVIEW_S_MAX + 3


def test_exception_over_its_budget_is_rejected_with_a_message() -> None:
    """The leader would ignore it."""
    costly = exception()
    entry = {"key": "{{ request.name }}", "operator": "Equals", "value": "a"}
    costly["spec"]["conditions"] = {"any": [entry] * 10}
    assert ask("/exceptionvalidate", costly)["allowed"] is True
    costly["spec"]["conditions"] = {"any": [entry] * 5_000}
    answer = ask("/exceptionvalidate", costly)
    assert answer["allowed"] is False
    text = answer["status"]["message"]
    assert text.startswith(
        f"the exception takes more than {COMPILE_EXCEPTION_STEPS_MAX}"
    )
    assert text.endswith("[exception.too_costly]")


@pytest.mark.parametrize(
    "kind",
    [
        "ValidatingPolicy",
        "MutatingPolicy",
        "GeneratingPolicy",
        "DeletingPolicy",
        "ImageValidatingPolicy",
        "NamespacedValidatingPolicy",
    ],
)
def test_cel_exception_over_its_budget_is_rejected_with_a_message(kind: str) -> None:
    text = " || ".join(["object.a == 'b'"] * 1_000)
    for count, is_allowed in ((1, True), (10, False)):
        conditions = [{"name": f"c{at}", "expression": text} for at in range(count)]
        refs = [{"name": "p", "kind": kind}]
        spec = {"policyRefs": refs, "matchConditions": conditions}
        answer = ask("/celexception/validate", in_cel("PolicyException", spec))
        assert answer["allowed"] is is_allowed
    assert answer["status"]["message"].endswith("[exception.too_costly]")


def exception_with(group: str, query: str) -> tuple[str, dict[str, Any]]:
    """Return the path and an exception with one condition."""
    if group == "kyverno.io":
        raw = exception()
        condition = {"key": f"{{{{ {query} }}}}", "operator": "Equals", "value": "x"}
        raw["spec"]["conditions"] = {"any": [condition]}
        return "/exceptionvalidate", raw
    refs = [{"name": "p", "kind": "ValidatingPolicy"}]
    conditions = [{"name": "c", "expression": query}]
    spec = {"policyRefs": refs, "matchConditions": conditions}
    return "/celexception/validate", in_cel("PolicyException", spec)


@pytest.mark.parametrize(
    ("group", "good", "bad", "place"),
    [
        (
            "kyverno.io",
            "request.operation",
            "request.operation ||",
            "spec.conditions.any[0].key, column ",
        ),
        (
            "policies.kyverno.io",
            "object.metadata.name == 'a'",
            "object.metadata.name == 1 +",
            "spec.matchConditions[0].expression, column ",
        ),
        (
            "policies.kyverno.io",
            "object.kind == 'Pod'",
            "variables.x == 1",
            "spec.matchConditions[0].expression, column ",
        ),
    ],
)
def test_conditions_of_exceptions_are_compiled(
    group: str, good: str, bad: str, place: str
) -> None:
    """A stored exception with a bad condition can still be changed elsewhere."""
    path, raw = exception_with(group, good)
    assert ask(path, raw)["allowed"] is True
    _, broken = exception_with(group, bad)
    answer = ask(path, broken)
    assert answer["allowed"] is False
    assert answer["status"]["message"].startswith(place)
    assert answer["status"]["message"].endswith("[policy.expression]")
    labelled = {**broken, "metadata": {**broken["metadata"], "labels": {"a": "b"}}}
    answer = ask(path, labelled, operation="UPDATE", old=broken)
    assert answer["allowed"] is True
    answer = ask(path, broken, operation="UPDATE", old=raw)
    assert answer["allowed"] is False


@pytest.mark.parametrize(
    ("names", "place"),
    [
        (["a", "b", "a"], "spec.matchConditions[2].name"),
        (["a", ""], "spec.matchConditions[1].name"),
        ([f"c{number}" for number in range(65)], "spec.matchConditions"),
        ([f"c{number}" for number in range(64)], ""),
    ],
)
def test_names_and_number_of_conditions(names: list[str], place: str) -> None:
    """As in Kyverno 1.19.1: at most 64, with names that are there and unique."""
    path, raw = exception_with("policies.kyverno.io", "true")
    raw["spec"]["matchConditions"] = [
        {"name": name, "expression": "true"} for name in names
    ]
    answer = ask(path, raw)
    assert answer["allowed"] is (not place)
    assert answer.get("status", {}).get("message", "").startswith(place)


def test_a_name_that_nothing_reads_is_refused_in_new_policies_only() -> None:
    """A stored policy with such a name can still be changed elsewhere."""
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    key = "{{ request.operation }}"
    condition = {"Key": key, "operator": "Equals", "value": "CREATE"}
    deny = {"conditions": {"Any": [condition]}}
    rule = {"name": "r", "match": match, "validate": {"deny": deny}}
    raw: dict[str, Any] = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"background": False, "rules": [rule]},
    }
    assert ask("/policyvalidate", raw)["allowed"] is True
    deny["conditions"] = {"any": [condition], "Al": [condition]}
    answer = ask("/policyvalidate", raw)
    assert answer["allowed"] is False
    assert 'conditions.Al (rule r): unknown field "Al"' in answer["status"]["message"]
    updated = ask("/policyvalidate", raw, operation="UPDATE", old=raw)
    assert updated["allowed"] is True


@pytest.mark.parametrize(
    ("kind", "namespace", "allowed"),
    [
        ("rbac.authorization.k8s.io/v1/ClusterRole", "", True),
        ("v1/Secret", "", False),
        ("v1/Secret", "ns", True),
        ("rbac.authorization.k8s.io/v1/ClusterRole", "ns", False),
    ],
)
def test_clones_have_a_namespace_if_their_kind_has(
    kind: str,
    namespace: str,
    allowed: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """The cluster knows the scope; a second check without it must not deny."""
    sources = {"kinds": [kind], "selector": {"matchLabels": {"a": "b"}}}
    if namespace:
        sources["namespace"] = namespace
    generate = {
        "cloneList": sources,
        **({"namespace": "x"} if "Secret" in kind else {}),
    }
    match = {"any": [{"resources": {"kinds": ["Namespace"]}}]}
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"rules": [{"name": "r", "match": match, "generate": generate}]},
    }
    view = ClusterView(kinds=BuiltInKinds(is_complete=True))
    answer = ask("/policyvalidate", raw, view=view)
    assert answer["allowed"] is allowed
    if not allowed:
        assert "target resources" in answer["status"]["message"]


@pytest.mark.parametrize(
    "kind",
    [
        "CleanupPolicy",
        "ClusterCleanupPolicy",
        "DeletingPolicy",
        "NamespacedDeletingPolicy",
    ],
)
def test_long_schedule_is_refused_unread(kind: str) -> None:
    """The schedule is neither parsed nor repeated in the answer."""
    is_cel = "Deleting" in kind
    constraints: dict[str, Any] = {
        "resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
        ]
    }
    fields: dict[str, Any] = {"match": {"any": [{"resources": {"kinds": ["Pod"]}}]}}
    if is_cel:
        fields = {
            "matchConstraints": constraints,
            "conditions": [{"name": "c", "expression": "true"}],
        }
    namespace = "" if kind in ("ClusterCleanupPolicy", "DeletingPolicy") else "ns"
    raw = {
        "apiVersion": "policies.kyverno.io/v1" if is_cel else "kyverno.io/v2",
        "kind": kind,
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {**fields, "schedule": ",".join(["0"] * 1_000_000) + " * * * *"},
    }
    path = "/policyvalidate" if is_cel else "/cleanuppolicyvalidate"
    response = ask(path, raw)
    text = "spec.schedule: Too long: may not be more than 1000 characters"
    assert response["status"]["message"] == text
    assert ask(path, {**raw, "spec": {**fields, "schedule": "0 * * * *"}})["allowed"]
