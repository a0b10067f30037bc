"""The policy webhook's verdict: checks that need a cluster or the old object."""

from typing import Any

import pytest

from kyverno_mp.compiler.autogen.rules import expand
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy, Policy
from kyverno_mp.policy.ports import BuiltInKinds, ClusterView, PermissionTarget
from kyverno_mp.policy.reading.decode import Document, decode
from kyverno_mp.policy.review import ReviewVerdict, review

CLUSTER = ClusterView(kinds=BuiltInKinds(is_complete=True))
STANDALONE = ClusterView(kinds=BuiltInKinds())


def policy(rule: dict[str, Any], **spec: Any) -> dict[str, Any]:
    match = {"any": [{"resources": {"kinds": ["ConfigMap"]}}]}
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"rules": [{"name": "r", "match": match, **rule}], **spec},
    }


def generate(**body: Any) -> dict[str, Any]:
    target = {"apiVersion": "v1", "kind": "Secret", "name": "s", "namespace": "ns"}
    return {"generate": {**target, **body}}


def evaluate(
    raw: dict[str, Any],
    *,
    old: dict[str, Any] | None = None,
    view: ClusterView | None = CLUSTER,
) -> ReviewVerdict:
    document: Document = decode(raw)
    rules = expand(document) if isinstance(document, ClusterPolicy | Policy) else ()
    before = decode(old) if old is not None else None
    return review(document, rules=rules, old=before, view=view)


DATA = generate(data={"stringData": {"a": "b"}})
PATTERN = {"validate": {"message": "m", "pattern": {"data": {"a": "?*"}}}}


def test_valid_policy_has_no_error_and_no_warning() -> None:
    assert evaluate(policy(DATA)) == ReviewVerdict()


@pytest.mark.parametrize("body", [DATA, PATTERN, {"mutate": {"patchesJson6902": "[]"}}])
@pytest.mark.parametrize("view", [CLUSTER, STANDALONE])
def test_cel_preconditions_need_validate_cel(
    body: dict[str, Any], view: ClusterView
) -> None:
    """Otherwise nothing evaluates them, and the rule applies to more than it says."""
    given = [{"name": "c", "expression": "false"}]
    (name,) = body
    for conditions in ([], given):
        raw = policy({**body, "celPreconditions": conditions})
        assert evaluate(raw, view=view).error == (
            f"path: spec.rules[0].{name}..: "
            "celPrecondition can only be used with validate.cel"
        )
    cel = {"validate": {"cel": {"expressions": [{"expression": "true"}]}}}
    raw = policy({**cel, "celPreconditions": given})
    assert evaluate(raw, view=view).error == ""


def test_unknown_kind_ends_with_a_warning() -> None:
    raw = policy({**PATTERN, "match": {"any": [{"resources": {"kinds": ["Foo"]}}]}})
    text = (
        "the kind defined in the all match resource is invalid: unable to convert GVK "
        "to GVR for kinds Foo, err: resource not found"
    )
    assert evaluate(raw) == ReviewVerdict(warnings=[text])
    assert evaluate(raw, view=STANDALONE) == ReviewVerdict()


@pytest.mark.parametrize("kind", ["Pod/exec", "Pod/scale"])
def test_background_scan_rejects_subresources(kind: str) -> None:
    match = {"any": [{"resources": {"kinds": [kind]}}]}
    raw = policy({**PATTERN, "match": match})
    assert evaluate(raw).error == (
        "path: spec.rules[0].match.any[0].kinds: background scan enabled with "
        f"subresource {kind}"
    )
    raw["spec"]["background"] = False
    assert evaluate(raw).error == ""


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            {"kind": "Namespace"},
            (
                "spec.rules[0].namespace: Forbidden: target namespace must not be set "
                "for a cluster-wide resource"
            ),
        ),
        (
            {"namespace": ""},
            (
                "spec.rules[0].namespace: Forbidden: target namespace must be set for a"
                " namespaced resource"
            ),
        ),
        (
            {"kind": "Foo", "apiVersion": "example.com/v1"},
            (
                "path: spec.rules[0].generate..: failed to get GVR for kind"
                " example.com/v1/Foo"
            ),
        ),
        (
            {"data": {"metadata": {"(labels)": {"a": "b"}}}},
            (
                "path: spec.rules[0].generate.data.//metadata/(labels).: anchors not"
                " supported on generate resources: unsupported anchor (labels)"
            ),
        ),
    ],
)
def test_generate_is_rejected(body: dict[str, Any], text: str) -> None:
    assert evaluate(policy(generate(**{"data": {"a": "b"}, **body}))).error == text


def test_variables_in_a_clone_cause_a_warning() -> None:
    clone = {"name": "s", "namespace": "{{request.object.metadata.name}}"}
    verdict = evaluate(policy(generate(clone=clone)))
    assert verdict.error == ""
    assert verdict.warnings == [
        (
            "variables in spec.rules[0].clone/cloneList would lead to incorrect "
            "synchronization behavior"
        )
    ]


class _OnlyReads:
    def allows(self, account: str, verb: str, target: PermissionTarget) -> bool:
        del account, target
        return verb in ("get", "list", "watch")


def test_permissions_of_the_background_account() -> None:
    view = ClusterView(kinds=CLUSTER.kinds, permissions=_OnlyReads())
    account = "system:serviceaccount:kyverno:kyverno-background-controller"
    raw = policy(generate(data={"a": "b"}, synchronize=True))
    assert evaluate(raw, view=view).error == (
        f"path: spec.rules[0].generate..: {account} requires permissions "
        "create,update,delete for resource v1/Secret in namespace ns"
    )


class _NoReports:
    def allows(self, account: str, verb: str, target: PermissionTarget) -> bool:
        del verb, target
        return "reports" not in account


class _NoRights:
    def allows(self, account: str, verb: str, target: PermissionTarget) -> bool:
        raise AssertionError((account, verb, target))


class _WithScale(BuiltInKinds):
    def subresource_kinds(self) -> frozenset[str]:
        return frozenset({"Scale"})


def test_background_scan_rejects_kinds_of_subresources() -> None:
    view = ClusterView(kinds=_WithScale(is_complete=True))
    raw = policy({**PATTERN, "match": {"any": [{"resources": {"kinds": ["Scale"]}}]}})
    assert evaluate(raw, view=view).error == (
        "path: spec.rules[0].match.any[0].kinds: background scan enabled with "
        "subresource Scale"
    )
    raw["spec"]["background"] = False
    verdict = evaluate(raw, view=view)
    assert verdict.error == ""
    assert "for kinds Scale, err: resource not found" in verdict.warnings[0]


def test_unset_accounts_are_not_checked() -> None:
    view = ClusterView(
        kinds=CLUSTER.kinds,
        permissions=_NoRights(),
        admission="",
        background="",
        reports="",
        cleanup="",
    )
    assert evaluate(policy(PATTERN), view=view) == ReviewVerdict()
    assert evaluate(policy(generate(data={"a": "b"})), view=view) == ReviewVerdict()
    assert evaluate(cleanup("CleanupPolicy"), view=view) == ReviewVerdict()


def test_reports_account_causes_only_a_warning() -> None:
    view = ClusterView(kinds=CLUSTER.kinds, permissions=_NoReports())
    account = "system:serviceaccount:kyverno:kyverno-reports-controller"
    text = f"{account} requires permissions get,list,watch for resource ConfigMap"
    assert evaluate(policy(PATTERN), view=view) == ReviewVerdict(warnings=[text])


SYNC = "no synchronization will be performed to the old target resource upon policy "


@pytest.mark.parametrize(
    ("change", "error", "warning"),
    [
        (generate(data={"a": "c"}, synchronize=True), "", ""),
        (
            generate(data={"a": "b"}, name="other"),
            "",
            (
                f"{SYNC}updates: changes in the generate rule pattern could result in "
                "stale targets"
            ),
        ),
        (
            {**generate(data={"a": "b"}), "preconditions": {"any": []}},
            (
                "changes of immutable fields of a rule spec in a generate rule is"
                " disallowed"
            ),
            f"{SYNC}updates: ",
        ),
    ],
)
def test_update_of_a_generate_rule(
    change: dict[str, Any], error: str, warning: str
) -> None:
    verdict = evaluate(policy(change), old=policy(generate(data={"a": "b"})))
    assert verdict == ReviewVerdict(error, [warning] if warning else [])


def test_policies_with_mutate_existing_on_policy_update_read_no_request() -> None:
    target = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "namespace": "n"}
    mutate = {
        "targets": [target],
        "mutateExistingOnPolicyUpdate": True,
        "patchStrategicMerge": {
            "metadata": {"labels": {"u": "{{request.object.metadata.name}}"}}
        },
    }
    match = {
        "any": [
            {
                "resources": {"kinds": ["ConfigMap"]},
                "subjects": [{"kind": "User", "name": "alice"}],
            }
        ]
    }
    raw = policy({"mutate": mutate, "match": match}, background=False)
    assert evaluate(raw).error == (
        "only select variables are allowed in on policy update. Set "
        "spec.mutateExistingOnPolicyUpdate=false to disable update policy mode for "
        "this policy rule: invalid variable used at path: "
        "spec/rules[0]/match/any[0]/subjects "
    )


def cleanup(kind: str, **spec: Any) -> dict[str, Any]:
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    return {
        "apiVersion": "kyverno.io/v2",
        "kind": kind,
        "metadata": {"name": "c", "namespace": "ns"},
        "spec": {"schedule": "* * * * *", "match": match, **spec},
    }


def test_cleanup_policy_of_a_namespace_deletes_nothing_of_the_cluster() -> None:
    match = {"any": [{"resources": {"kinds": ["Namespace"]}}]}
    text = "Cluster wide resource 'Namespace' not allowed in namespaced policy"
    error = evaluate(cleanup("CleanupPolicy", match=match)).error
    assert error == f"spec.match.any[0].kinds[0]: Forbidden: {text}"
    assert evaluate(cleanup("ClusterCleanupPolicy", match=match)) == ReviewVerdict()


def test_cleanup_needs_the_permission_to_delete() -> None:
    view = ClusterView(kinds=CLUSTER.kinds, permissions=_OnlyReads())
    error = evaluate(cleanup("CleanupPolicy"), view=view).error
    assert error == "cleanup controller has no permission to delete kind Pod"


class _Granted:
    """What a Role grants in namespace ``granted``, and another for the name ``one``."""

    def allows(self, account: str, verb: str, target: PermissionTarget) -> bool:
        assert account == "system:serviceaccount:kyverno:kyverno-cleanup-controller"
        assert verb in ("delete", "list")
        return target.namespace == "granted" or target.name == "one"


@pytest.mark.parametrize(
    ("resources", "is_allowed"),
    [
        ({"kinds": ["Pod"], "namespaces": ["granted"]}, True),
        ({"kinds": ["Pod"], "namespaces": ["granted", "other"]}, False),
        ({"kinds": ["Pod"], "namespaces": ["grant*"]}, False),
        ({"kinds": ["Pod"]}, False),
        ({"kinds": ["Pod"], "names": ["one"]}, True),
        ({"kinds": ["Pod"], "names": ["one", "two"]}, False),
        ({"kinds": ["Namespace"], "namespaces": ["granted"]}, False),
    ],
)
def test_cleanup_needs_no_wider_permission(
    resources: dict[str, Any], *, is_allowed: bool
) -> None:
    """Otherwise a policy would be rejected even if Roles or resourceNames suffice."""
    view = ClusterView(kinds=CLUSTER.kinds, permissions=_Granted())
    raw = cleanup("ClusterCleanupPolicy", match={"any": [{"resources": resources}]})
    del raw["metadata"]["namespace"]
    kind = resources["kinds"][0]
    text = f"cleanup controller has no permission to delete kind {kind}"
    assert evaluate(raw, view=view).error == ("" if is_allowed else text)


@pytest.mark.parametrize(
    ("annotations", "schedule", "warning"),
    [
        ({}, "0 0 29 2 *", ""),
        ({"kyverno-mp.io/dry-run": "true"}, "* * * * *", ""),
        ({"kyverno-mp.io/deletion-budget": "20%"}, "@every 1h", ""),
        ({"kyverno-mp.io/dry-run": "yes"}, "* * * * *", "annotation kyverno-mp.io/dry"),
        (
            {"kyverno-mp.io/deletion-budget": "lots"},
            "* * * * *",
            "deletion-budget: exp",
        ),
        ({}, "0 0 30 2 *", "schedule '0 0 30 2 *' never occurs"),
    ],
)
def test_invalid_cleanup_policies(
    annotations: dict[str, str], schedule: str, warning: str
) -> None:
    """Otherwise its author would see the problem only in the status, if at all."""
    raw = cleanup("ClusterCleanupPolicy", schedule=schedule)
    raw["metadata"]["annotations"] = annotations
    found = evaluate(raw)
    assert not found.error
    assert bool(found.warnings) == bool(warning)
    assert all(warning in one for one in found.warnings)


def test_conditions_of_cleanup_policies_must_parse() -> None:
    conditions = {"any": [{"key": "{{ a[ }}", "operator": "Equals", "value": 1}]}
    error = evaluate(cleanup("CleanupPolicy", conditions=conditions)).error
    assert error.startswith("variable substitution failed for policy c: ")
