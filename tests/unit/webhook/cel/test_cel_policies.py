"""Policies in CEL answer reviews: from documents through a snapshot to the verdict.

A failure means: a ValidatingPolicy that the command line applies denies nothing, or a
policy of one namespace applies to another.
"""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.errors import DeadlinePassed, ExpressionFailed
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.leader.documents import linked_memory
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_segments import names_of
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.limits import (
    MESSAGE_CHARACTERS_MAX,
    RECALL_MESSAGES_CHARACTERS_MAX,
    REVIEW_MESSAGES_CHARACTERS_MAX,
)
from kyverno_mp.program.cel_sources import cel_source
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.ports import CelPorts, ClusterData
from kyverno_mp.program.reporting import Reporting
from kyverno_mp.program.validating_policy import evaluate
from kyverno_mp.program.validating_policy.group import Group
from kyverno_mp.program.validating_policy.plan import CelPlanner
from kyverno_mp.queues.journal import Journal, JournalReader
from kyverno_mp.results.records import decode_results
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.snapshot.policies import PoliciesWriter
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import VALIDATING_POLICY
from kyverno_mp.webhook.http_errors import HttpError
from kyverno_mp.webhook.results.sink import ResultSink
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import route_of
from tests.unit.webhook.stub import StubEvaluate, StubRecords
from tests.waiting import still_ns

PODS = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE", "UPDATE"],
    "resources": ["pods"],
}
CLOCK = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
NO_TEAM = {"expression": "has(object.metadata.labels)", "message": "no team"}


def policy(
    name: str = "team",
    *validations: dict[str, Any],
    rules: Sequence[dict[str, Any]] = (PODS,),
    namespace: str = "",
    **spec: Any,
) -> dict[str, Any]:
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "NamespacedValidatingPolicy" if namespace else "ValidatingPolicy",
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "spec": {
            "matchConstraints": {"resourceRules": list(rules)},
            "validations": list(validations or (NO_TEAM,)),
            **spec,
        },
    }


def exception(
    policy_name: str,
    namespace: str = "kyverno",
    *,
    kind: str = "ValidatingPolicy",
    **spec: Any,
) -> dict[str, Any]:
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "PolicyException",
        "metadata": {"name": "x", "namespace": namespace},
        "spec": {"policyRefs": [{"name": policy_name, "kind": kind}], **spec},
    }


def compiled(
    *documents: dict[str, Any], allowed_in: str = "*", has_background: bool = False
) -> PolicySet:
    store = PolicyStore(
        lambda namespace: allowed_in in ("*", namespace), has_background=has_background
    )
    text = "\n---\n".join(map(json.dumps, documents)).encode()
    return store.update(Changes({"policies.yaml": text}, ()))


class Server:
    """A worker's service with the snapshot of some documents."""

    def __init__(
        self,
        found: PolicySet,
        folder: Path,
        ports: CelPorts | None = None,
        results: ResultSink | None = None,
    ) -> None:
        content = PoliciesWriter().encode(
            found.cel.get(VALIDATING_POLICY.segment, ()),
            generation=1,
            salt=os.urandom(16),
            names=names_of(found, VALIDATING_POLICY.segment),
            segment=VALIDATING_POLICY.segment,
        )
        path = folder / "celpolicies.segment"
        path.write_bytes(content)
        path.chmod(0o600)
        self.segment = CelSegment(
            Segment.attach(path, VALIDATING_POLICY.segment), ValidatingPolicyIR
        )
        engine = Engine(ClusterData(cel=ports or CelPorts()), CLOCK)
        planner = CelPlanner(
            engine,
            cel_source(
                evaluate.LinkedValidatingPolicy,
                engine,
                self.segment,
                self.segment.record,
            ),
            self.segment.knows,
        )
        self.records = StubRecords()
        self.service = Service(
            Dependencies(
                records=self.records,
                monotonic_ns=still_ns,
                results=results,
            ),
            handlers_of(StubEvaluate(None), cel={VALIDATING_POLICY: lambda: planner}),
        )

    def ask(self, path: str, **changes: Any) -> dict[str, Any]:
        return asked(self.service, path, **changes)


def asked(service: Service, path: str, **changes: Any) -> dict[str, Any]:
    route = route_of(path.encode())
    assert route is not None
    answer = service.answer(route, b"", review(**changes))
    assert isinstance(answer, bytes)
    response: dict[str, Any] = json.loads(answer)["response"]
    return response


def review(**changes: Any) -> bytes:
    request: dict[str, Any] = {
        "uid": "u",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "a",
        "name": "p",
        "userInfo": {"username": "kim", "groups": ["devs"]},
        "object": {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "a"},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        },
        **changes,
    }
    return json.dumps({"kind": "AdmissionReview", "request": request}).encode()


def message(response: dict[str, Any]) -> str:
    assert response["allowed"] is False
    return str(response["status"]["message"])


def test_a_failure_denies_with_upstreams_text(tmp_path: Path) -> None:
    server = Server(compiled(policy()), tmp_path)
    assert message(server.ask("/vpol/team")) == "Policy team failed: no team"


def test_several_denials_are_joined(tmp_path: Path) -> None:
    bad = {"expression": "object.spec.nothing == 1"}
    server = Server(compiled(policy("a"), policy("b", bad), policy("c")), tmp_path)
    assert message(server.ask("/vpol/a/b")) == (
        "Policy a failed: no team; Policy b error: failed to load context: "
        "no such key: nothing"
    )
    assert message(server.ask("/vpol/b/c")).endswith("Policy c failed: no team")
    assert message(server.ask("/vpol")).count("; ") == 2


def test_warning_is_returned_and_denies_nothing(tmp_path: Path) -> None:
    server = Server(compiled(policy(validationActions=["Warn", "Audit"])), tmp_path)
    response = server.ask("/vpol/team")
    assert response["allowed"] is True
    assert response["warnings"] == ["Policy team failed: no team"]


LONG = "x" * 3 * MESSAGE_CHARACTERS_MAX


@pytest.mark.parametrize(
    "validation",
    [
        {"expression": "false", "message": LONG},
        {"expression": "false", "messageExpression": "string(object.metadata.name)"},
        {"expression": "{'a': 1}[object.metadata.name] == 1"},
    ],
)
def test_long_message_is_truncated(validation: dict[str, Any], tmp_path: Path) -> None:
    """MESSAGE_CHARACTERS_MAX."""
    server = Server(compiled(policy("team", validation)), tmp_path)
    response = server.ask("/vpol/team", object={"metadata": {"name": LONG}})
    assert len(message(response)) < MESSAGE_CHARACTERS_MAX + 100


def test_the_messages_of_a_review_are_bounded(tmp_path: Path) -> None:
    """REVIEW_MESSAGES_CHARACTERS_MAX: messages beyond the limit are shortened."""
    names = [f"p{number}" for number in range(150)]
    bad = {"expression": "false", "messageExpression": "string(object.metadata.name)"}
    both = ["Deny", "Warn"]
    server = Server(
        compiled(*(policy(name, bad, validationActions=both) for name in names)),
        tmp_path,
    )
    response = server.ask("/vpol", object={"metadata": {"name": LONG}})
    for texts in (message(response), "".join(response["warnings"])):
        assert texts.count(" failed: ") == 150
        assert "(shortened)" in texts
        assert REVIEW_MESSAGES_CHARACTERS_MAX < len(texts) < 1.2e6


def test_audit_returns_no_warning(tmp_path: Path) -> None:
    server = Server(compiled(policy(validationActions=["Audit"])), tmp_path)
    assert server.ask("/vpol/team") == {"uid": "u", "allowed": True}


def test_denial_includes_its_warnings(tmp_path: Path) -> None:
    server = Server(compiled(policy(validationActions=["Deny", "Warn"])), tmp_path)
    response = server.ask("/vpol/team")
    assert message(response) == response["warnings"][0]


@pytest.mark.parametrize(
    ("rule", "asked", "denied"),
    [
        ({"resources": ["pods"]}, {}, True),
        ({"resources": ["pods"]}, {"subResource": "status"}, False),
        ({"resources": ["pods/status"]}, {"subResource": "status"}, True),
        ({"resources": ["pods/*"]}, {"subResource": "status"}, True),
        ({"resources": ["pods/*"]}, {}, True),
        ({"resources": ["*"]}, {}, True),
        ({"resources": ["*"]}, {"subResource": "status"}, False),
        ({"resources": ["*/*"]}, {"subResource": "status"}, True),
        ({"resources": ["*/status"]}, {"subResource": "status"}, True),
        ({"resources": ["services"]}, {}, False),
        ({"apiGroups": ["*"]}, {}, True),
        ({"apiGroups": ["apps"]}, {}, False),
        ({"apiVersions": ["v2"]}, {}, False),
        ({"operations": ["*"]}, {}, True),
        ({"operations": ["DELETE"]}, {}, False),
        ({"scope": "Cluster"}, {}, False),
        ({"scope": "Namespaced"}, {}, True),
        ({"resourceNames": ["q"]}, {}, False),
        ({"resourceNames": ["p"]}, {}, True),
    ],
)
def test_index_uses_the_constraints(
    rule: dict[str, Any], asked: dict[str, Any], *, denied: bool, tmp_path: Path
) -> None:
    server = Server(compiled(policy(rules=[PODS | rule])), tmp_path)
    assert server.ask("/vpol/team", **asked)["allowed"] is not denied


def test_many_keys_become_one_coarse_key(tmp_path: Path) -> None:
    """K8S: nothing limits the lists of a rule."""
    many = [f"r{number}" for number in range(3000)]
    rules = [PODS | {"resources": [*many, "pods"], "apiGroups": ["", *many]}]
    server = Server(compiled(policy(rules=rules)), tmp_path)
    assert server.ask("/vpol/team")["allowed"] is False


@pytest.mark.parametrize("kind", ["object", "oldObject"])
def test_absent_objects_are_null(tmp_path: Path, kind: str) -> None:
    """As in the API server, for the API server's own guard against absence."""
    guard = (
        f"{kind} == null && !has({kind}.spec)"
        f" && {kind}.?metadata.?name.orValue('none') == 'none'"
        f" && request.{kind} == null"
    )
    rules = [PODS | {"operations": ["CREATE", "DELETE"]}]
    server = Server(compiled(policy("n", {"expression": guard}, rules=rules)), tmp_path)
    old = json.loads(review())["request"]["object"]
    changes = {"operation": "DELETE", "object": None, "oldObject": old}
    assert server.ask("/vpol/n")["allowed"] is (kind == "oldObject")
    assert server.ask("/vpol/n", **changes)["allowed"] is (kind == "object")


def test_deletion_has_the_old_object(tmp_path: Path) -> None:
    kept = {"expression": "object != null || oldObject.metadata.name != 'p'"}
    server = Server(
        compiled(policy("keep", kept, rules=[PODS | {"operations": ["DELETE"]}])),
        tmp_path,
    )
    old = json.loads(review())["request"]["object"]
    response = server.ask("/vpol/keep", operation="DELETE", object=None, oldObject=old)
    assert message(response).startswith("Policy keep failed")


def test_connect_has_an_object_of_its_own_kind(tmp_path: Path) -> None:
    shell = {
        "expression": "object.kind != 'PodExecOptions' || object.command[0] != 'sh'",
        "messageExpression": "request.userInfo.username + ' in ' + request.name"
        " + ' of ' + object.metadata.namespace",
    }
    rules = [PODS | {"operations": ["CONNECT"], "resources": ["pods/exec"]}]
    server = Server(compiled(policy("shell", shell, rules=rules)), tmp_path)
    response = server.ask(
        "/vpol/shell",
        operation="CONNECT",
        subResource="exec",
        kind={"group": "", "version": "v1", "kind": "PodExecOptions"},
        object={"kind": "PodExecOptions", "apiVersion": "v1", "command": ["sh"]},
    )
    assert message(response) == "Policy shell failed: kim in p of a"


def test_autogen_covers_controllers(tmp_path: Path) -> None:
    found = {"expression": "object.spec.containers.all(c, c.image != 'i')"}
    server = Server(compiled(policy("image", found)), tmp_path)
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    response = server.ask(
        "/vpol/image",
        kind={"group": "apps", "version": "v1", "kind": "Deployment"},
        resource={"group": "apps", "version": "v1", "resource": "deployments"},
        object={
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "p"},
            "spec": {"template": template},
        },
    )
    assert message(response).startswith("Policy image failed")


def test_failing_condition_follows_the_failure_policy(tmp_path: Path) -> None:
    condition = [{"name": "c", "expression": "object.spec.nothing == 1"}]
    server = Server(
        compiled(
            policy("fail", matchConditions=condition),
            policy("ignore", matchConditions=condition, failurePolicy="Ignore"),
        ),
        tmp_path,
    )
    assert server.ask("/vpol/fail")["allowed"] is False
    assert server.ask("/vpol/ignore")["allowed"] is True


def test_policies_beyond_the_memory_of_stubs_fail_reviews(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linked_memory, "LINKED_NAMESPACE_BYTES_MAX", 0)
    monkeypatch.setattr(linked_memory, "UNLINKED_NAMESPACE_BYTES_MAX", -1)
    found = compiled(*(policy(f"own{n}", namespace="a") for n in range(3)))
    assert not found.cel
    server = Server(found, tmp_path)
    for path in ("/nvpol-keys/a/own0", "/nvpol-keys/a/own0/a/own2/b/other"):
        with pytest.raises(HttpError) as caught:
            server.ask(path)
        assert caught.value.code == "webhook.policy_unknown"
    assert server.ask("/nvpol-keys/a/own0", namespace="b")["allowed"] is True


def test_exception_exempts(tmp_path: Path) -> None:
    met = [{"name": "kim", "expression": "request.userInfo.username == 'kim'"}]
    server = Server(
        compiled(policy(), exception("team", matchConditions=met)), tmp_path
    )
    assert server.ask("/vpol/team")["allowed"] is True
    other = {"username": "lee"}
    assert server.ask("/vpol/team", userInfo=other)["allowed"] is False


@pytest.mark.parametrize(
    ("until", "allowed"),
    [("2020-01-01T00:00:00Z", False), ("2999-01-01T00:00:00Z", True)],
)
def test_exception_expires(until: str, *, allowed: bool, tmp_path: Path) -> None:
    server = Server(compiled(policy(), exception("team", expiresAt=until)), tmp_path)
    assert server.ask("/vpol/team")["allowed"] is allowed


def test_exception_with_an_unreadable_end_changes_nothing(tmp_path: Path) -> None:
    """Otherwise it would last for ever, or its author could block the policy."""
    found = compiled(policy(), exception("team", expiresAt="soon"))
    (status,) = found.policies
    assert status.ready
    assert "PolicyException kyverno/x is ignored: spec.expiresAt" in status.message
    assert Server(found, tmp_path).ask("/vpol/team")["allowed"] is False


def test_invalid_exception_changes_nothing(tmp_path: Path) -> None:
    bad = [{"name": "c", "expression": "nothing.at.all"}]
    found = compiled(policy(), exception("team", matchConditions=bad))
    (status,) = found.policies
    assert status.ready
    assert "PolicyException kyverno/x is ignored" in status.message
    assert Server(found, tmp_path).ask("/vpol/team")["allowed"] is False


@pytest.mark.parametrize(
    "fails",
    [
        "object.spec.nothing == 1",
        # Exceeds the cost limit of an expression.
        "[1, 2, 3, 4, 5, 6, 7, 8, 9].all(a, " * 8 + "request.name != ''" + ")" * 8,
    ],
)
def test_failing_exception_exempts_nothing(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its author could deny everything that the policy matches."""
    monkeypatch.setattr(evaluate, "COST_MAX", 10_000)
    condition = [{"name": "c", "expression": fails}]
    holds = policy("holds", {"expression": "true"})
    server = Server(
        compiled(
            policy(),
            holds,
            exception("holds", "a", matchConditions=condition),
            exception("holds", "b", matchConditions=condition),
        ),
        tmp_path,
    )
    assert server.ask("/vpol/holds")["allowed"] is True
    assert message(server.ask("/vpol/team/holds")) == "Policy team failed: no team"
    # Logged once per policy and review, although two exceptions fail.
    assert server.records.errors == ["cel.exception"] * 2


@pytest.mark.parametrize(
    "calls",
    [
        "resource.get('v1', 'secrets', 'a', 's').kind == 'x'",
        "resource.Post('v1', 'configmaps', 'a', {}).kind == 'x'",
        "http.get('https://a.example') != null",
        "http.Post('https://a.example', object) != null",
        "globalContext.get('g', '') != null",
        "image.getMetadata('i') != null",
        "[resource][0].get('v1', 'secrets', 'a', 's').kind == 'x'",
        # The policy's data is not visible to the exception's author.
        "dyn(variables).secret == 'x'",
    ],
)
@pytest.mark.parametrize("namespace", ["", "a"])
def test_exception_makes_no_calls(calls: str, namespace: str, tmp_path: Path) -> None:
    """Otherwise its author would act with the permissions of the policy."""
    found = compiled(
        policy(namespace=namespace),
        exception(
            "team",
            "a",
            kind="NamespacedValidatingPolicy" if namespace else "ValidatingPolicy",
            matchConditions=[{"name": "c", "expression": f"{calls} || true"}],
        ),
    )
    (status,) = found.policies
    assert status.ready
    assert "PolicyException a/x is ignored: spec.matchConditions[0]" in status.message
    path = "/nvpol/team" if namespace else "/vpol/team"
    assert Server(found, tmp_path).ask(path)["allowed"] is False


def test_invalid_policy_affects_only_itself(tmp_path: Path) -> None:
    bad = policy("bad", {"expression": "nothing"})
    found = compiled(policy(), bad)
    ready = {one.name: one.ready for one in found.policies}
    assert ready == {"team": True, "bad": False}
    server = Server(found, tmp_path)
    # The policy exists, so a path can name it; it denies nothing.
    assert server.ask("/vpol/bad")["allowed"] is True
    assert server.ask("/vpol/bad/team")["allowed"] is False


def test_unknown_policy_is_left_to_the_api_server(
    tmp_path: Path,
) -> None:
    server = Server(compiled(policy()), tmp_path)
    with pytest.raises(HttpError) as caught:
        server.ask("/vpol/team/later")
    assert caught.value.status == 503
    assert caught.value.code == "webhook.policy_unknown"


def test_policy_that_arrives_meanwhile_is_evaluated(tmp_path: Path) -> None:
    """The leader publishes between two reads by the worker."""
    segments = [compiled(policy("other")), compiled(policy("other"), policy())]
    old, new = (Server(found, tmp_path).segment for found in segments)
    engine = Engine(ClusterData(), CLOCK)

    def current() -> CelPlanner:
        """Return the planner of the old snapshot once."""
        old = served[0]
        source = cel_source(evaluate.LinkedValidatingPolicy, engine, old, old.record)
        found = CelPlanner(engine, source, new.knows)
        served[0] = new
        return found

    served = [old]
    service = Service(
        Dependencies(records=StubRecords(), monotonic_ns=still_ns),
        handlers_of(StubEvaluate(None), cel={VALIDATING_POLICY: current}),
    )
    assert message(asked(service, "/vpol/team")) == "Policy team failed: no team"


class TestNamespaced:
    def test_tenant_policy_sees_only_its_namespace(self, tmp_path: Path) -> None:
        server = Server(compiled(policy("own", namespace="a")), tmp_path)
        assert message(server.ask("/nvpol/own")) == "Policy own failed: no team"
        elsewhere = {"metadata": {"name": "p", "namespace": "b"}}
        response = server.ask("/nvpol/own", namespace="b", object=elsewhere)
        assert response["allowed"] is True
        # Its path differs from the path of cluster policies.
        assert server.ask("/vpol")["allowed"] is True

    def test_unknown_tenant_policy_is_left_to_the_api_server(
        self, tmp_path: Path
    ) -> None:
        """A path with namespaces names the policies that the worker has to have."""
        server = Server(compiled(policy("own", namespace="a")), tmp_path)
        known = "/nvpol-keys/a/own/b/other"
        assert message(server.ask(known)) == "Policy own failed: no team"
        for path in ("/nvpol-keys/a/later", "/nvpol-keys/a/own/a/later"):
            with pytest.raises(HttpError) as caught:
                server.ask(path)
            assert caught.value.status == 503
            assert caught.value.code == "webhook.policy_unknown"
        # Neither a policy of another namespace nor a Namespace waits for it.
        assert server.ask("/nvpol-keys/c/later")["allowed"] is True
        kind = {"group": "", "version": "v1", "kind": "Namespace"}
        resource = {"group": "", "version": "v1", "resource": "namespaces"}
        response = server.ask("/nvpol-keys/a/later", kind=kind, resource=resource)
        assert response["allowed"] is True
        # Upstream's path contains no namespaces.
        assert message(server.ask("/nvpol/own/later")) == "Policy own failed: no team"

    def test_tenant_policy_does_not_see_its_namespace_object(
        self, tmp_path: Path
    ) -> None:
        rules = [PODS | {"resources": ["*"], "operations": ["*"]}]
        server = Server(compiled(policy("own", namespace="a", rules=rules)), tmp_path)
        response = server.ask(
            "/nvpol/own",
            kind={"group": "", "version": "v1", "kind": "Namespace"},
            resource={"group": "", "version": "v1", "resource": "namespaces"},
            name="a",
            object={"metadata": {"name": "a"}},
        )
        assert response["allowed"] is True

    def test_namespace_kind_of_another_group_is_an_object(self, tmp_path: Path) -> None:
        rules = [PODS | {"apiGroups": ["x.io"], "resources": ["namespaces"]}]
        placed = {"expression": "object.metadata.namespace == 'b'", "message": "it is"}
        own = policy("own", placed, namespace="a", rules=rules)
        server = Server(compiled(own), tmp_path)
        for path in ("/nvpol/own", "/nvpol-keys/a/own"):
            response = server.ask(
                path,
                kind={"group": "x.io", "version": "v1", "kind": "Namespace"},
                resource={"group": "x.io", "version": "v1", "resource": "namespaces"},
                object={"metadata": {"name": "n"}},
            )
            assert message(response) == "Policy own failed: it is"

    def test_cluster_functions_do_not_compile(self) -> None:
        reach = {"expression": "resource.get('v1', 'secrets', 'b', 's') == null"}
        (status,) = compiled(policy("own", reach, namespace="a")).policies
        assert not status.ready
        assert "no matching overload" in status.message

    def test_other_tenants_cannot_exempt_it(self, tmp_path: Path) -> None:
        kind = "NamespacedValidatingPolicy"
        own = policy("own", namespace="a")
        foreign = compiled(own, exception("own", "b", kind=kind))
        assert Server(foreign, tmp_path).ask("/nvpol/own")["allowed"] is False
        ours = compiled(own, exception("own", "a", kind=kind))
        assert Server(ours, tmp_path).ask("/nvpol/own")["allowed"] is True
        central = compiled(own, exception("own", "b", kind=kind), allowed_in="b")
        assert Server(central, tmp_path).ask("/nvpol/own")["allowed"] is True


class Resources:
    """A cluster in which a call fails or uses up all the time."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def get(self, *_asked: object) -> Json | None:
        if self.error is not None:
            raise self.error
        return {"data": {"k": "v"}}

    def list(self, *_asked: object) -> Json:
        return {"items": []}

    def post(self, *_asked: object) -> Json:
        return {}

    def plural(self, *_asked: object) -> str:
        return "pods"


CALLS = {"expression": "resource.get('v1', 'configmaps', 'a', 'c').data.k == 'w'"}


def test_policy_reads_the_cluster(tmp_path: Path) -> None:
    server = Server(
        compiled(policy("calls", CALLS)), tmp_path, CelPorts(resources=Resources())
    )
    assert message(server.ask("/vpol/calls")).startswith("Policy calls failed")


def test_failed_call_is_an_error_of_its_policy(tmp_path: Path) -> None:
    ports = CelPorts(resources=Resources(ExpressionFailed("kube.down", "it is down")))
    server = Server(compiled(policy("calls", CALLS)), tmp_path, ports)
    assert message(server.ask("/vpol/calls")) == (
        "Policy calls error: failed to load context: failed to get resource: it is down"
    )


def test_late_call_does_not_affect_other_verdicts(tmp_path: Path) -> None:
    """The slow policy's name sorts first, and its failure policy is Ignore."""
    ports = CelPorts(resources=Resources(DeadlinePassed("kube.deadline", "late")))
    slow = policy("a", CALLS, failurePolicy="Ignore")
    server = Server(compiled(slow, policy("b")), tmp_path, ports)
    assert message(server.ask("/vpol/a/b")) == "Policy b failed: no team"
    assert server.ask("/vpol/a")["allowed"] is True


def test_late_call_denies_with_failure_policy_fail(tmp_path: Path) -> None:
    ports = CelPorts(resources=Resources(DeadlinePassed("kube.deadline", "late")))
    server = Server(compiled(policy("a", CALLS)), tmp_path, ports)
    assert "late" in message(server.ask("/vpol/a"))


def test_only_linked_policies_use_memory(tmp_path: Path) -> None:
    services = [PODS | {"resources": ["services"]}]
    others = [policy(f"s{number}", rules=services) for number in range(20)]
    server = Server(compiled(policy(), *others), tmp_path)
    server.ask("/vpol")
    assert server.segment.decoded_count == 1


STORED = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "a", "uid": "u1"},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}
NO_SCAN: dict[str, Any] = {"evaluation": {"background": {"enabled": False}}}
AUDIT: dict[str, Any] = {"validationActions": ["Audit"]}
USER = {"expression": "request.userInfo.username == 'kim'", "message": "not kim"}


@pytest.mark.parametrize(
    ("document", "scans", "changes", "expected"),
    [
        (policy(**AUDIT), True, {}, []),
        (policy(**AUDIT), False, {}, [("team", "fail", "no team")]),
        (policy(**AUDIT, **NO_SCAN), True, {}, [("team", "fail", "no team")]),
        (policy("user", USER), True, {}, [("user", "pass", "success")]),
        (policy(**NO_SCAN), True, {}, []),
        (policy(**AUDIT, **NO_SCAN), True, {"dryRun": True}, []),
        (
            policy(**AUDIT, rules=[{**PODS, "operations": ["UPDATE"]}]),
            True,
            {"operation": "UPDATE"},
            [("team", "fail", "no team")],
        ),
    ],
    ids=["derived", "no scans", "no background", "user", "denied", "dry run", "update"],
)
def test_results_sent_to_reports(
    tmp_path: Path,
    document: dict[str, Any],
    scans: bool,  # noqa: FBT001 - a parameter
    changes: dict[str, Any],
    expected: list[tuple[str, str, str]],
) -> None:
    """Results of an allowed review that no scan can find."""
    journal = Journal.claim(tmp_path, 1000, 1 << 20)
    words = frozenset({"pass", "fail", "warn", "error", "skip"})
    reporting = Reporting(frozenset({"validate"}), words, scans=scans)
    sink = ResultSink(journal, StubRecords(), reporting, lambda: 1)
    server = Server(compiled(document), tmp_path, results=sink)
    server.ask("/vpol", object=STORED, **changes)
    found = [
        (row.policy, row.result, row.message)
        for record in JournalReader(tmp_path).records()
        for row in decode_results(record.content)[2]
    ]
    assert found == expected


READS_SPEC = {
    "expression": "object.spec.containers.all(c, c.image.startsWith('good/'))",
    "messageExpression": "'bad image ' + object.spec.containers[0].image",
}


def pod(image: str = "good/a", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "a", **metadata},
        "spec": {"containers": [{"name": "c", "image": image}]},
    }


def test_equal_parts_of_objects_are_evaluated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For Pods of one ReplicaSet, the verdict is cached, even if it is a failure."""
    server = Server(
        compiled(policy("a", READS_SPEC), policy("b", READS_SPEC)), tmp_path
    )
    evaluated: list[str] = []
    judge = evaluate.LinkedValidatingPolicy.results

    def counting(self: Any, *args: Any) -> Any:
        evaluated.append(self.ir.policy.name)
        return judge(self, *args)

    monkeypatch.setattr(evaluate.LinkedValidatingPolicy, "results", counting)
    path = "/vpol/a/b"
    for name in ("one", "two"):
        assert server.ask(path, object=pod(name=name))["allowed"]
        denied = server.ask(path, object=pod("bad/x", name=name))
        assert denied["status"]["message"] == (
            "Policy a failed: bad image bad/x; Policy b failed: bad image bad/x"
        )
    assert evaluated == ["a", "b", "a", "b"]
    # A change of a relevant part, an update or other policies need a new evaluation.
    other = server.ask(path, object=pod("bad/y"))
    assert "bad/y" in other["status"]["message"]
    assert server.ask(path, operation="UPDATE", object=pod(), oldObject=pod())[
        "allowed"
    ]
    assert not server.ask("/vpol/a", object=pod("bad/x"))["allowed"]
    assert evaluated[4:] == ["a", "b", "a", "b", "a"]


def test_a_cached_failure_names_its_validation(tmp_path: Path) -> None:
    """As in 1.19, reports name the index of the validation that failed."""
    passing = {"expression": "object.spec.containers.size() > 0"}
    documents = [
        policy(name, *before, READS_SPEC, **AUDIT, **NO_SCAN)
        for name, before in (("a", ()), ("b", (passing,)))
    ]
    journal = Journal.claim(tmp_path, 1000, 1 << 20)
    reporting = Reporting(frozenset({"validate"}), frozenset({"fail"}), scans=False)
    sink = ResultSink(journal, StubRecords(), reporting, lambda: 1)
    server = Server(compiled(*documents), tmp_path, results=sink)
    for uid in ("u1", "u2"):
        server.ask("/vpol/a/b", object=pod("bad/x", uid=uid))
    found: list[tuple[str, str]] = []
    for record in JournalReader(tmp_path).records():
        rows = decode_results(record.content)[2]
        found += [(row.policy, row.properties["cel.validationIndex"]) for row in rows]
        record.done()
    assert found == [("a", "0"), ("b", "1")] * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"auditAnnotations": [{"key": "k", "valueExpression": "'x'"}]},
        {"matchConditions": [{"name": "c", "expression": "request.name != 'x'"}]},
        {"variables": [{"name": "v", "expression": "object"}]},
    ],
)
def test_policies_with_other_inputs_are_evaluated_each_time(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = policy("odd", READS_SPEC, {"expression": "variables.v != 1"}, **changes)
    if "variables" not in changes:
        odd = policy("odd", READS_SPEC, **changes)
    server = Server(compiled(policy("a", READS_SPEC), odd), tmp_path)
    evaluated: list[str] = []
    judge = evaluate.LinkedValidatingPolicy.results

    def counting(self: Any, *args: Any) -> Any:
        evaluated.append(self.ir.policy.name)
        return judge(self, *args)

    monkeypatch.setattr(evaluate.LinkedValidatingPolicy, "results", counting)
    for name in ("one", "two"):
        assert server.ask("/vpol/a/odd", object=pod(name=name))["allowed"]
    assert evaluated.count("odd") == 2


def test_outcomes_with_long_messages_are_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their authors determine the length, and each object produces a new message."""
    quoting = {
        "expression": "object.kind == 'x'",
        "messageExpression": "'z' + object.metadata.annotations.a",
    }
    shared: list[int] = []
    verdicts = Group.verdicts

    def counting(self: Any, outcome: Any) -> Any:
        shared.append(sum(map(len, outcome.messages)))
        return verdicts(self, outcome)

    monkeypatch.setattr(Group, "verdicts", counting)
    found = compiled(policy("a", quoting), policy("b", quoting))
    server = Server(found, tmp_path)
    for length in (1, RECALL_MESSAGES_CHARACTERS_MAX):
        denied = server.ask("/vpol/a/b", object=pod(annotations={"a": "z" * length}))
        assert "z" in denied["status"]["message"]
    assert shared == [4]
