"""A policy that is put into force gradually denies its share, and audits the rest.

A failure means: two replicas answer differently for one object, a policy that is not
enforced yet stops a deployment, or one that is fully enforced lets something pass.
"""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program import gradual as shares
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.gradual import Standing
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.mutation_plan import MutationPlanner, link_mutation
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.audit.queue import AuditQueue
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.gradual import Gradual
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.plans import SnapshotEvaluate, SnapshotMutate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import route_of
from tests.fuzz.bench import segment_of
from tests.unit.webhook.cel import test_cel_policies as cel
from tests.unit.webhook.images import test_image_policies as images
from tests.unit.webhook.stub import StubRecords, review
from tests.waiting import still_ns

_DENY = (
    "{failureAction: Enforce, allowExistingViolations: false, message: 'no', deny: {}}"
)
KINDS = "[Pod, Deployment, ReplicaSet, Namespace, Node]"
SPACES = [f"team-{number}" for number in range(300)]


def policy(
    name: str = "gradual",
    *,
    body: str = _DENY,
    spec: str = "",
    **annotations: str,
) -> str:
    named = {f"kyverno-mp.io/enforce-{key}": text for key, text in annotations.items()}
    return f"""\
---
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {{name: {name}, annotations: {json.dumps(named)}}}
spec: {{{spec}rules: [{{name: never,
  match: {{any: [{{resources: {{kinds: {KINDS}}}}}]}},
  validate: {body}}}]}}
"""


class Sink:
    """Records which policies were reported, and how."""

    records_successes = False

    def __init__(self) -> None:
        self.blocked: list[str] = []
        self.let_pass: list[str] = []

    def answered(
        self, request: Request, responses: Sequence[PolicyResponse], *, blocked: bool
    ) -> None:
        assert request.uid
        told = self.blocked if blocked else self.let_pass
        told += [response.policy.name for response in responses]

    def deliver(
        self,
        request: Request,
        enforced: Sequence[PolicyResponse],
        audited: Sequence[PolicyResponse],
        with_messages: object,
        *,
        seconds: float = 0.0,
    ) -> None:
        assert request.uid
        assert with_messages
        assert seconds >= 0
        for response in (*enforced, *audited):
            assert response.action == "Audit"
            self.let_pass += [response.policy.name for _ in response.results]


class Counted:
    """Records which policies denied a request, for each denial that is counted."""

    def __init__(self) -> None:
        self.denials: list[list[str]] = []

    def denied(self, policies: Sequence[PolicyIR], request: Request) -> None:
        assert request.uid
        self.denials.append([policy.name for policy in policies])


class Server:
    def __init__(self, policies: str, standing: Standing | None = None) -> None:
        self.counted = Counted()
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
        engine = Engine(ClusterData(), clock)
        segment = segment_of(policies)
        planner = ValidationPlanner(engine, SegmentSource(segment, link_rule))
        mutations = MutationPlanner(engine, SegmentSource(segment, link_mutation))
        self.sink, self.records = Sink(), StubRecords()
        self.audit_queue = AuditQueue(
            10_000, on_drop=lambda: None, on_error=lambda error: pytest.fail(str(error))
        )
        gradual = Gradual()
        if standing is not None:
            gradual = Gradual(lambda _policy: standing)
        self.service = Service(
            Dependencies(
                records=self.records,
                monotonic_ns=still_ns,
                sink=self.sink,
                audit_queue=self.audit_queue,
                gradual=gradual,
                denials=self.counted,
            ),
            handlers_of(
                SnapshotEvaluate(lambda: planner, segment.knows),
                SnapshotMutate(lambda: mutations, segment.knows),
            ),
        )

    def ask(self, path: str = "/validate/fail", **changes: Any) -> Any:
        route = route_of(path.encode())
        assert route is not None
        answer = self.service.answer(route, b"", review(**changes))
        assert isinstance(answer, bytes)
        return json.loads(answer)["response"]

    def denied(self, **changes: Any) -> set[str]:
        return {
            space
            for space in SPACES
            if not self.ask(namespace=space, **changes)["allowed"]
        }


def test_share_grows_and_is_the_same_everywhere() -> None:
    shares = [
        Server(policy(percent="10"), Standing(percent)).denied()
        for percent in (0, 10, 50, 100)
    ]
    assert shares[0] == set()
    assert shares[1] < shares[2] < shares[3] == set(SPACES)
    # 300 namespaces; five standard deviations of a fair hash are 26 and 43.
    assert 4 <= len(shares[1]) <= 56
    assert 107 <= len(shares[2]) <= 193
    assert Server(policy(percent="10")).denied() == shares[1], "another replica"
    other = Server(policy("other", percent="50")).denied()
    assert other not in (shares[2], set()), "each policy has its own first namespaces"


def test_an_object_has_one_answer_for_life() -> None:
    server = Server(policy(percent="50"))
    created = server.denied()
    stored = {"kind": "Pod", "metadata": {"name": "web"}}
    assert server.denied(operation="UPDATE", oldObject=stored) == created
    assert server.denied(operation="DELETE", object=None, oldObject=stored) == created
    assert server.denied(userInfo={"username": "other"}) == created


def test_owner_decides_for_all_its_objects() -> None:
    server = Server(policy(percent="50", by="owner"))

    def is_denied(kind: str, name: str, **metadata: object) -> bool:
        answer = server.ask(
            kind={"group": "", "version": "v1", "kind": kind},
            object={"kind": kind, "metadata": {"name": name, **metadata}},
        )
        return not answer["allowed"]

    verdicts = set()
    for number in range(40):
        name, revision = f"web-{number}", f"{number}abc"
        verdict = is_denied("Deployment", name)
        set_owner: Json = {"controller": True, "kind": "Deployment", "name": name}
        set_name = f"{name}-{revision}"
        pod_owner: Json = {"controller": True, "kind": "ReplicaSet", "name": set_name}
        labels = {"pod-template-hash": revision}
        replica_set = is_denied(
            "ReplicaSet", set_name, ownerReferences=[set_owner], labels=labels
        )
        pods = {
            is_denied(
                "Pod", f"{name}-{pod}", ownerReferences=[pod_owner], labels=labels
            )
            for pod in "xyz"
        }
        assert {replica_set} == pods == {verdict}
        verdicts.add(verdict)
    assert verdicts == {True, False}


def test_an_update_cannot_choose_another_owner() -> None:
    server = Server(policy(percent="50", by="owner"))
    stored = {"kind": "Pod", "metadata": {"name": "web"}}
    for number in range(20):
        owner = {"controller": True, "kind": "Job", "name": f"job-{number}"}
        changed = {
            "kind": "Pod",
            "metadata": {"name": "web", "ownerReferences": [owner]},
        }
        answer = server.ask(operation="UPDATE", oldObject=stored, object=changed)
        assert answer["allowed"] == server.ask()["allowed"]


def test_cluster_wide_objects_have_positions_by_name() -> None:
    server = Server(policy(percent="50"))

    def answer(name: str, **metadata: str) -> bool:
        node = {"kind": "Node", "metadata": {"name": name, **metadata}}
        kind = {"group": "", "version": "v1", "kind": "Node"}
        allowed = server.ask(kind=kind, namespace="", name=name, object=node)["allowed"]
        return bool(allowed)

    assert {answer(f"node-{number}") for number in range(40)} == {True, False}
    generated = {answer(f"node-{number}", generateName="node-") for number in range(9)}
    assert len(generated) == 1, "before the creation there is no other name"


@pytest.mark.parametrize(
    ("percent", "denied"),
    [
        ("0", set()),
        ("1", {"dev-a", "dev-b"}),
        ("50", {"dev-a", "dev-b"}),
        ("51", {"dev-a", "dev-b", "stage-a"}),
        ("99", {"dev-a", "dev-b", "stage-a"}),
        ("100", {"dev-a", "dev-b", "stage-a", "prod", ""}),
    ],
)
def test_rings_come_one_after_another(percent: str, denied: set[str]) -> None:
    server = Server(policy(percent=percent, rings="dev-*; stage-*, staging"))
    spaces = ("dev-a", "dev-b", "stage-a", "prod", "")
    answers = {space: server.ask(namespace=space)["allowed"] for space in spaces}
    assert {space for space, allowed in answers.items() if not allowed} == denied


def test_a_namespace_belongs_to_itself() -> None:
    server = Server(policy(percent="50", rings="dev; prod"))
    kind = {"group": "", "version": "v1", "kind": "Namespace"}
    for name, allowed in (("dev", False), ("prod", True)):
        answer = server.ask(
            kind=kind,
            name=name,
            namespace=name,
            object={"kind": "Namespace", "metadata": {"name": name}},
        )
        assert answer["allowed"] is allowed


def test_rest_is_audited_without_a_warning() -> None:
    server = Server(policy(percent="0"))
    answer = server.ask()
    assert answer == {"uid": "u-1", "allowed": True}
    server.audit_queue.start()
    assert server.audit_queue.stop(5)
    assert server.sink.let_pass == ["gradual"], "its failure becomes an event"
    warns = Server(policy(percent="0", spec="emitWarning: true, "))
    assert warns.ask()["warnings"] == ["policy gradual.never: no"]


def test_errors_do_not_deny_outside_the_share() -> None:
    """A rule that audits does not deny by its errors either."""
    condition = "{key: '{{ request.object.nothing }}', operator: Equals, value: 1}"
    body = f"{{failureAction: Enforce, deny: {{conditions: {{all: [{condition}]}}}}}}"
    assert Server(policy(body=body, percent="0")).ask()["allowed"]
    assert not Server(policy(body=body, percent="100")).ask()["allowed"]


def test_other_policies_deny_as_before() -> None:
    server = Server(policy(percent="0") + policy("strict"))
    answer = server.ask()
    assert not answer["allowed"]
    assert "gradual" not in answer["status"]["message"]
    assert server.sink.blocked == ["strict"]


@pytest.mark.parametrize("percent", [0, 100])
def test_policies_in_cel_of_both_kinds(tmp_path: Path, percent: int) -> None:
    document = cel.policy()
    document["metadata"]["annotations"] = {
        "kyverno-mp.io/enforce-percent": str(percent)
    }
    other = cel.policy("other", validationActions=["Warn", "Audit"])
    server = cel.Server(cel.compiled(document, other), tmp_path)
    answer = server.ask("/vpol")
    assert answer["allowed"] is not bool(percent)
    assert answer["warnings"] == ["Policy other failed: no team"]
    image_policy = images.policy(validations=[{"expression": "false", "message": "no"}])
    image_policy["metadata"]["annotations"] = document["metadata"]["annotations"]
    verifier = images.Server(cel.compiled(image_policy), tmp_path, None)
    answer = verifier.ask("/ivpol/validate", images.pod("example.org/app:v1"))
    assert answer["allowed"] is not bool(percent)


def test_images_are_verified_gradually() -> None:
    """Without a registry each image is an error, which denies where it is enforced."""
    text = """\
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: signed, annotations: {kyverno-mp.io/enforce-percent: "%s"}}
spec:
  rules:
  - name: signed
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages:
    - imageReferences: ["*"]
      failureAction: Enforce
      attestors: [{entries: [{keys: {publicKeys: "k8s://a/b"}}]}]
"""
    spec = {"containers": [{"name": "c", "image": "example.org/app:v1"}]}
    pod = {"kind": "Pod", "metadata": {"name": "web"}, "spec": spec}
    for percent, allowed in (("0", True), ("100", False)):
        server = Server(text % percent)
        for path in ("/mutate/fail", "/validate/fail"):
            assert server.ask(path, object=pod)["allowed"] is allowed, path


def test_denials_by_a_policy_with_a_share_are_counted() -> None:
    """Not those of its audit, of dry runs, or of policies for everyone."""
    server = Server(policy(percent="50") + policy("strict", spec="background: false, "))
    both = {tuple(sorted(each)) for each in count(server, SPACES[:40])}
    assert both == {("gradual", "strict"), ("strict",)}
    alone = Server(policy(percent="50"))
    assert 0 < len(count(alone, SPACES[:40])) < 40
    assert count(alone, SPACES[:40], dryRun=True) == []
    assert count(Server(policy("strict")), SPACES[:4]) == []


def count(server: Server, spaces: Sequence[str], **changes: Any) -> list[list[str]]:
    server.counted.denials.clear()
    for space in spaces:
        server.ask(namespace=space, **changes)
    return server.counted.denials


def test_policies_without_annotations_cost_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither a pass nor a denial asks for a position."""
    calls: list[Callable[..., int]] = []
    monkeypatch.setattr(shares, "blake2b", lambda *_arguments, **_names: calls.append)
    server = Server(policy("strict"))
    assert not server.ask()["allowed"]
    passing = Server(policy(percent="10", body="{message: m, pattern: {kind: Pod}}"))
    assert passing.ask()["allowed"]
    assert calls == []


def test_first_step_is_in_force_before_the_state_is_known() -> None:
    segment = segment_of(policy(schedule="10 -> 100 every 1h"))
    head: PolicyIR = segment.policy(0)
    assert shares.first_step(head) == Standing(10)
