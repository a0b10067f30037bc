"""MutatingPolicies answer reviews: from documents through a snapshot to the patch.

A failure means: a MutatingPolicy that the command line applies has no effect or another
effect in the cluster, or its failure is treated as success.
"""

import base64
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.errors import DeadlinePassed
from kyverno_mp.ir.cel_policies import MutatingPolicyIR
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.limits import PATCH_ANSWER_BYTES_MAX, REVIEW_MESSAGES_CHARACTERS_MAX
from kyverno_mp.program.cel_policies import mutate
from kyverno_mp.program.cel_policies.plan import MutatingPlanner
from kyverno_mp.program.cel_sources import cel_source
from kyverno_mp.program.changes import Change
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.generate.triggers import Triggered
from kyverno_mp.program.ports import CelPorts, ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.program.validating_policy.review_run import ReviewRun
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.snapshot.policies import PoliciesWriter
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.kubernetes.policy_kinds import MUTATING_POLICY
from kyverno_mp.values.patches.json_patch import apply_patch
from kyverno_mp.webhook.http_errors import HttpError
from kyverno_mp.webhook.results.sink import ResultSink
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.service import Service
from tests.unit.webhook.cel.test_cel_policies import (
    PODS,
    asked,
    compiled,
    exception,
    message,
    review,
)
from tests.unit.webhook.stub import StubEvaluate, StubRecords
from tests.waiting import still_ns

POOL = "system:serviceaccount:kyverno:kyverno-background-controller"


def configuration(expression: str) -> dict[str, Any]:
    return {
        "patchType": "ApplyConfiguration",
        "applyConfiguration": {"expression": expression},
    }


def json_patch(expression: str) -> dict[str, Any]:
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}


def label(key: str, value: str) -> dict[str, Any]:
    labels = f"Object.metadata.labels{{{key}: {value}}}"
    return configuration(f"Object{{metadata: Object.metadata{{labels: {labels}}}}}")


TEAM = label("team", '"x"')
BROKEN = json_patch('[JSONPatch{op: "remove", path: "/spec/nothing"}]')


def policy(
    name: str = "team",
    *mutations: dict[str, Any],
    rules: Sequence[dict[str, Any]] = (PODS,),
    namespace: str = "",
    **spec: Any,
) -> dict[str, Any]:
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "NamespacedMutatingPolicy" if namespace else "MutatingPolicy",
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "spec": {
            "matchConstraints": {"resourceRules": list(rules)},
            "mutations": list(mutations or (TEAM,)),
            **spec,
        },
    }


class Recorded:
    """A recorder of the triggers of reviews."""

    def __init__(self) -> None:
        self.found: list[Triggered] = []

    def triggered(self, _request: Request, found: Sequence[Triggered]) -> None:
        self.found += found

    def changed(self, _request: Request, _change: Change) -> None:
        raise AssertionError("not of a mutation")


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
            found.cel.get(MUTATING_POLICY.segment, ()),
            generation=1,
            salt=os.urandom(16),
            names=[
                f"{one.namespace}/{one.name}" if one.namespace else one.name
                for one in found.policies
            ],
            segment=MUTATING_POLICY.segment,
        )
        path = folder / "mutatingpolicies.segment"
        path.write_bytes(content)
        path.chmod(0o600)
        segment = CelSegment(
            Segment.attach(path, MUTATING_POLICY.segment), MutatingPolicyIR
        )
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
        engine = Engine(ClusterData(cel=ports or CelPorts()), clock)
        source = cel_source(
            mutate.LinkedMutatingPolicy, engine, segment, segment.record
        )
        planner = MutatingPlanner(engine, source, segment.knows, POOL)
        self.records, self.triggers = StubRecords(), Recorded()
        self.service = Service(
            Dependencies(
                records=self.records,
                monotonic_ns=still_ns,
                results=results,
                triggers=self.triggers,
            ),
            handlers_of(StubEvaluate(None), cel={MUTATING_POLICY: lambda: planner}),
        )

    def ask(self, path: str, **changes: Any) -> dict[str, Any]:
        return asked(self.service, path, **changes)

    def changed(self, path: str, **changes: Any) -> Any:
        """Return the object after the answer's patch."""
        response = self.ask(path, **changes)
        assert response["allowed"] is True, response
        before = json.loads(review(**changes))["request"]["object"]
        return patched(before, response)


def patched(before: Any, response: dict[str, Any]) -> Any:
    if "patch" not in response:
        return before
    assert response["patchType"] == "JSONPatch"
    return apply_patch(before, json.loads(base64.b64decode(response["patch"])))


def test_answer_contains_the_patch_of_a_policy(tmp_path: Path) -> None:
    server = Server(compiled(policy()), tmp_path)
    assert server.changed("/mpol/team")["metadata"]["labels"] == {"team": "x"}
    # The path contains another name, so nothing is evaluated.
    with pytest.raises(HttpError):
        server.ask("/mpol/other")


def test_policy_sees_earlier_changes(tmp_path: Path) -> None:
    """There is one patch for all of them, and request.object stays as it was sent."""
    count = json_patch(
        '[JSONPatch{op: "add", path: "/metadata/labels/seen", value:'
        " string(size(object.metadata.labels)) + '/' +"
        " string(has(request.object.metadata.labels))}]"
    )
    server = Server(compiled(policy("a"), policy("b", count)), tmp_path)
    for path in ("/mpol/a/b", "/mpol/b/a", "/mpol"):
        labels = server.changed(path)["metadata"]["labels"]
        assert labels == {"team": "x", "seen": "1/false"}


def test_mutations_of_a_policy_run_in_order(tmp_path: Path) -> None:
    more = json_patch(
        '[JSONPatch{op: "add", path: "/metadata/labels/more",'
        " value: object.metadata.labels.team + 'y'}]"
    )
    server = Server(compiled(policy("team", TEAM, more)), tmp_path)
    labels = server.changed("/mpol/team")["metadata"]["labels"]
    assert labels == {"team": "x", "more": "xy"}


@pytest.mark.parametrize("failure_policy", ["Fail", "Ignore"])
def test_failure_follows_the_failure_policy(
    failure_policy: str, tmp_path: Path
) -> None:
    documents = [policy("a"), policy("b", BROKEN, failurePolicy=failure_policy)]
    server = Server(compiled(*documents, policy("c", label("c", '"y"'))), tmp_path)
    response = server.ask("/mpol/a/b/c")
    text = "Policy b: failed to evaluate policy: JSON Patch: "
    if failure_policy == "Fail":
        assert message(response).startswith(
            f"Resource: a/p, Kind: Pod, Errors: [{text}"
        )
        assert "patch" not in response
    else:
        # The other policies change the object, and the caller gets a warning.
        assert response["warnings"][0].startswith(text)
        found = patched(json.loads(review())["request"]["object"], response)
        assert found["metadata"]["labels"] == {"team": "x", "c": "y"}


def test_several_failures_are_one_denial(tmp_path: Path) -> None:
    server = Server(compiled(policy("a", BROKEN), policy("b", BROKEN)), tmp_path)
    text = message(server.ask("/mpol"))
    assert text.index("[Policy a: ") < text.index(" Policy b: ")
    assert text.endswith("]")


def test_conditions_can_use_variables(tmp_path: Path) -> None:
    spec: dict[str, Any] = {
        "variables": [{"name": "v", "expression": "object.metadata.name"}],
        "matchConditions": [{"name": "c", "expression": "variables.v == 'p'"}],
    }
    server = Server(
        compiled(policy("team", label("v", "variables.v"), **spec)), tmp_path
    )
    assert server.changed("/mpol/team")["metadata"]["labels"] == {"v": "p"}
    other = {"metadata": {"name": "q", "namespace": "a"}}
    assert "patch" not in server.ask("/mpol/team", object=other)


def test_autogen_mutates_controllers(tmp_path: Path) -> None:
    host = configuration("Object{spec: Object.spec{hostNetwork: true}}")
    server = Server(compiled(policy("host", host)), tmp_path)
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    found = server.changed(
        "/mpol/host",
        kind={"group": "apps", "version": "v1", "kind": "Deployment"},
        resource={"group": "apps", "version": "v1", "resource": "deployments"},
        object={
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "p", "namespace": "a"},
            "spec": {"template": template},
        },
    )
    assert found["spec"]["template"]["spec"]["hostNetwork"] is True


def test_a_namespaced_policy_stays_in_its_namespace(tmp_path: Path) -> None:
    server = Server(compiled(policy(namespace="a")), tmp_path)
    assert "patch" in server.ask("/nmpol/team")
    assert "patch" in server.ask("/nmpol-keys/a/team")
    assert "patch" not in server.ask("/nmpol/team", namespace="b")
    assert "patch" not in server.ask("/nmpol-keys/a/team", namespace="b")
    assert "patch" not in server.ask("/mpol")
    # The Namespace itself is not an object in the namespace.
    space = {"group": "", "version": "v1", "kind": "Namespace"}
    resource = {"group": "", "version": "v1", "resource": "namespaces"}
    assert "patch" not in server.ask("/nmpol/team", kind=space, resource=resource)


def test_admission_off(tmp_path: Path) -> None:
    off = {"admission": {"enabled": False}}
    server = Server(compiled(policy(evaluation=off)), tmp_path)
    assert "patch" not in server.ask("/mpol/team")


def test_deletion_changes_nothing(tmp_path: Path) -> None:
    """K8S: a deleted object cannot be changed."""
    server = Server(
        compiled(policy(rules=[PODS | {"operations": ["DELETE"]}])), tmp_path
    )
    old = json.loads(review())["request"]["object"]
    response = server.ask("/mpol/team", operation="DELETE", object=None, oldObject=old)
    assert response == {"uid": "u", "allowed": True}


@pytest.mark.parametrize("skips", [True, False])
def test_requests_of_the_background_pool(tmp_path: Path, *, skips: bool) -> None:
    evaluation = {} if skips else {"skipBackgroundRequests": False}
    server = Server(compiled(policy(evaluation=evaluation)), tmp_path)
    response = server.ask("/mpol/team", userInfo={"username": POOL})
    assert ("patch" in response) is not skips


class TestExceptions:
    def test_exception_exempts_an_object(self, tmp_path: Path) -> None:
        condition = [{"name": "c", "expression": "object.metadata.name == 'p'"}]
        given = exception("team", kind="MutatingPolicy", matchConditions=condition)
        server = Server(compiled(policy(), given), tmp_path)
        assert "patch" not in server.ask("/mpol/team")
        other = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "q"}}
        assert "patch" in server.ask("/mpol/team", object=other)

    def test_exception_can_allow_only_images(self, tmp_path: Path) -> None:
        pull = configuration(
            "object.spec.containers.all(c, c.image in exceptions.allowedImages) ?"
            " Object{} : Object{metadata: Object.metadata{labels:"
            ' Object.metadata.labels{pull: "yes"}}}'
        )
        given = exception("team", kind="MutatingPolicy", images=["i"])
        server = Server(compiled(policy("team", pull), given), tmp_path)
        assert "patch" not in server.ask("/mpol/team")
        assert "patch" in Server(compiled(policy("team", pull)), tmp_path).ask("/mpol")

    @pytest.mark.parametrize(
        "expression", ["object.spec.nothing == 1", "resource.get('v1', 'x', 'y', 'z')"]
    )
    def test_failing_exception_exempts_nothing(
        self, expression: str, tmp_path: Path
    ) -> None:
        """Its author must neither disable a policy nor deny the objects it matches."""
        condition = [{"name": "c", "expression": expression}]
        given = exception("team", kind="MutatingPolicy", matchConditions=condition)
        server = Server(compiled(policy(), given), tmp_path)
        assert "patch" in server.ask("/mpol/team")

    def test_other_namespace_cannot_exempt_from_a_tenants_policy(
        self, tmp_path: Path
    ) -> None:
        kind = "NamespacedMutatingPolicy"
        own = exception("team", "a", kind=kind)
        other = exception("team", "b", kind=kind)
        document = policy(namespace="a")
        server = Server(compiled(document, other), tmp_path)
        assert "patch" in server.ask("/nmpol/team")
        server = Server(compiled(document, own), tmp_path)
        assert "patch" not in server.ask("/nmpol/team")


EXISTING = {"mutateExisting": {"enabled": True}}
TARGETS = {
    "resourceRules": [PODS | {"resources": ["configmaps"]}],
}


class TestTriggers:
    def asked(self, folder: Path, document: Any, **changes: Any) -> list[str]:
        server = Server(compiled(document, has_background=True), folder)
        assert server.ask("/mpol/team", **changes)["allowed"] is True
        return [f"{one.type} {one.policy}" for one in server.triggers.found]

    def test_match_is_recorded(self, tmp_path: Path) -> None:
        document = policy(evaluation=EXISTING, targetMatchConstraints=TARGETS)
        server = Server(compiled(document, has_background=True), tmp_path)
        # Its targets are different objects.
        assert "patch" not in server.ask("/mpol/team")
        assert [one.policy for one in server.triggers.found] == ["team"]

    def test_object_is_mutated_too_without_targets(self, tmp_path: Path) -> None:
        document = policy(evaluation=EXISTING)
        server = Server(compiled(document, has_background=True), tmp_path)
        assert "patch" in server.ask("/mpol/team")
        assert [one.policy for one in server.triggers.found] == ["team"]

    @pytest.mark.parametrize(
        "changes",
        [
            {"dryRun": True},
            {"userInfo": {"username": POOL}},
            {"operation": "DELETE", "object": None},
            {"name": "q", "object": {"metadata": {"name": "q"}}},
        ],
    )
    def test_nothing_is_recorded_without_a_match(
        self, changes: Any, tmp_path: Path
    ) -> None:
        condition = [{"name": "c", "expression": "object.metadata.name == 'p'"}]
        document = policy(evaluation=EXISTING, matchConditions=condition)
        assert self.asked(tmp_path, document) == ["cel-mutate team"]
        assert self.asked(tmp_path, document, **changes) == []

    def test_failing_condition_is_not_met(self, tmp_path: Path) -> None:
        condition = [{"name": "c", "expression": "object.spec.nothing == 1"}]
        document = policy(
            evaluation=EXISTING,
            matchConditions=condition,
            targetMatchConstraints=TARGETS,
        )
        assert self.asked(tmp_path, document) == []

    def test_denied_request_triggers_nothing(self, tmp_path: Path) -> None:
        document = policy("team", BROKEN, evaluation=EXISTING)
        server = Server(compiled(document, has_background=True), tmp_path)
        assert server.ask("/mpol/team")["allowed"] is False
        assert server.triggers.found == []


class TestLimits:
    def test_the_messages_of_a_review_are_bounded(self, tmp_path: Path) -> None:
        """REVIEW_MESSAGES_CHARACTERS_MAX: messages beyond the limit are shortened."""
        bad = configuration("{'a': Object{}}[object.metadata.name]")
        documents = [policy(f"p{number}", bad) for number in range(150)]
        server = Server(compiled(*documents), tmp_path)
        name = "x" * 60_000
        text = message(server.ask("/mpol", object={"metadata": {"name": name}}))
        assert text.count("Policy p") == 150
        assert "(shortened)" in text
        assert len(text) < 1.2 * REVIEW_MESSAGES_CHARACTERS_MAX + 150 * 1000

    def test_oversized_patch_denies(self, tmp_path: Path) -> None:
        """PATCH_ANSWER_BYTES_MAX."""
        doubled = label("team", "object.metadata.name + object.metadata.name")
        server = Server(compiled(policy("team", doubled)), tmp_path)
        name = "x" * (PATCH_ANSWER_BYTES_MAX // 2)
        text = message(server.ask("/mpol", object={"metadata": {"name": name}}))
        assert "mutation.answer" in text or "too large" in text

    def test_late_review_keeps_finished_patches(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A policy with failurePolicy Ignore reverts no changes by other policies."""
        real = mutate.LinkedMutatingPolicy.evaluate

        def late(self: Any, *args: Any) -> Any:
            if self.ir.policy.name == "b":
                raise DeadlinePassed("webhook.deadline", "too late")
            return real(self, *args)

        monkeypatch.setattr(mutate.LinkedMutatingPolicy, "evaluate", late)
        monkeypatch.setattr(ReviewRun, "_is_over", lambda *_: True)
        third = policy("c", label("c", '"y"'))
        ignored = policy("b", failurePolicy="Ignore")
        server = Server(compiled(policy("a"), ignored, third), tmp_path)
        response = server.ask("/mpol")
        assert response["allowed"] is True
        assert "webhook.deadline" in response["warnings"][0]
        found = patched(json.loads(review())["request"]["object"], response)
        assert found["metadata"]["labels"] == {"team": "x", "c": "y"}

    def test_late_failing_policy_denies(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def late(*_args: Any) -> Any:
            raise DeadlinePassed("webhook.deadline", "too late")

        monkeypatch.setattr(mutate.LinkedMutatingPolicy, "evaluate", late)
        monkeypatch.setattr(ReviewRun, "_is_over", lambda *_: True)
        server = Server(compiled(policy("a")), tmp_path)
        assert "webhook.deadline" in message(server.ask("/mpol"))

    def test_late_review_is_still_a_trigger(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The pool evaluates its conditions."""

        def late(*_args: Any) -> Any:
            raise DeadlinePassed("webhook.deadline", "too late")

        monkeypatch.setattr(mutate.LinkedMutatingPolicy, "evaluate", late)
        monkeypatch.setattr(ReviewRun, "_is_over", lambda *_: True)
        document = policy(evaluation=EXISTING, failurePolicy="Ignore")
        server = Server(compiled(document, has_background=True), tmp_path)
        assert server.ask("/mpol")["allowed"] is True
        assert [one.unchecked for one in server.triggers.found] == [True]

    def test_internal_error_denies_without_its_text(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_args: Any) -> Any:
            raise ValueError("a value of the object")

        monkeypatch.setattr(mutate.LinkedMutatingPolicy, "evaluate", broken)
        server = Server(compiled(policy("a")), tmp_path)
        text = message(server.ask("/mpol"))
        assert "internal error, see the log" in text
        assert "a value" not in text
        assert "webhook.defect" in server.records.errors
