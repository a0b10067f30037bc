"""GeneratingPolicies in a worker: from documents through a snapshot to the record.

A failure means: triggers of a request are lost, or the pool gets needless work.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.ir.cel_policies import GeneratingPolicyIR
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.program.cel_policies.generating_plan import (
    GeneratingPlanner,
    LinkedGeneratingTrigger,
)
from kyverno_mp.program.cel_sources import cel_source
from kyverno_mp.program.changes import Change
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.generate.triggers import Triggered
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.snapshot.policies import PoliciesWriter
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.kubernetes.policy_kinds import GENERATING_POLICY
from kyverno_mp.webhook.http_errors import HttpError
from kyverno_mp.webhook.ports import Triggers
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.service import Service
from tests.unit.webhook.cel.test_cel_policies import PODS, asked, compiled
from tests.unit.webhook.stub import StubEvaluate, StubRecords
from tests.waiting import still_ns

BACKGROUND = "system:serviceaccount:k:background"
APPLY = 'generator.apply("a", [{"apiVersion": "v1", "kind": "ConfigMap"}])'


def policy(
    name: str = "gen",
    *,
    namespace: str = "",
    operations: Sequence[str] = ("CREATE", "UPDATE"),
    sync: bool = False,
    constraints: Any = None,
    **spec: Any,
) -> dict[str, Any]:
    rules = [PODS | {"operations": list(operations)}]
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "NamespacedGeneratingPolicy" if namespace else "GeneratingPolicy",
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "spec": {
            "matchConstraints": {"resourceRules": rules, **(constraints or {})},
            "evaluation": {"synchronize": {"enabled": sync}},
            "generate": [{"expression": APPLY}],
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
        raise AssertionError("another webhook's")


class Server:
    """A worker's service with the snapshot of some documents."""

    def __init__(
        self, found: PolicySet, folder: Path, triggers: Triggers | None = None
    ) -> None:
        content = PoliciesWriter().encode(
            found.cel.get(GENERATING_POLICY.segment, ()),
            generation=1,
            salt=os.urandom(16),
            names=[
                f"{one.namespace}/{one.name}" if one.namespace else one.name
                for one in found.policies
            ],
            segment=GENERATING_POLICY.segment,
        )
        path = folder / "generating.segment"
        path.write_bytes(content)
        path.chmod(0o600)
        segment = CelSegment(
            Segment.attach(path, GENERATING_POLICY.segment), GeneratingPolicyIR
        )
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
        source = cel_source(
            LinkedGeneratingTrigger,
            Engine(ClusterData(), clock),
            segment,
            segment.record,
        )
        planner = GeneratingPlanner(source, segment.knows, BACKGROUND)
        self.triggers = Recorded()
        self.service = Service(
            Dependencies(
                records=StubRecords(),
                monotonic_ns=still_ns,
                triggers=triggers or self.triggers,
                background_user=BACKGROUND,
            ),
            handlers_of(StubEvaluate(None), cel={GENERATING_POLICY: lambda: planner}),
        )

    def ask(self, path: str, **changes: Any) -> list[Triggered]:
        """Return the triggers of an allowed request."""
        response = asked(self.service, path, **changes)
        assert response["allowed"] is True
        found, self.triggers.found = self.triggers.found, []
        return found


def served(*raws: dict[str, Any], folder: Path) -> Server:
    return Server(compiled(*raws, has_background=True), folder)


OPERATIONS: list[tuple[str, tuple[str, ...], bool, str, bool | None]] = [
    # The listed operations, whether it synchronises, the request -> deletes or nothing.
    ("a creation", ("CREATE",), False, "CREATE", False),
    ("an update", ("UPDATE",), False, "UPDATE", False),
    ("an update that is not listed", ("CREATE",), False, "UPDATE", None),
    ("such an update, synchronised", ("CREATE",), True, "UPDATE", False),
    ("a deletion that is not listed", ("CREATE",), False, "DELETE", None),
    ("such a deletion, synchronised", ("CREATE",), True, "DELETE", True),
    ("a deletion that is listed", ("DELETE",), True, "DELETE", False),
    ("a creation that is not listed", ("UPDATE",), True, "CREATE", None),
    ("anything", ("*",), False, "CREATE", False),
]


@pytest.mark.parametrize(
    ("_name", "listed", "sync", "operation", "deletes"),
    OPERATIONS,
    ids=[one[0] for one in OPERATIONS],
)
def test_operations(
    tmp_path: Path,
    *,
    _name: str,
    listed: tuple[str, ...],
    sync: bool,
    operation: str,
    deletes: bool | None,
) -> None:
    server = served(policy(operations=listed, sync=sync), folder=tmp_path)
    objects: dict[str, Any] = {}
    if operation == "DELETE":
        objects = {"object": None, "oldObject": {"metadata": {"name": "p"}}}
    found = server.ask("/gpol/gen", operation=operation, **objects)
    if deletes is None:
        assert found == []
        return
    (one,) = found
    assert (one.type, one.policy, one.rules) == ("cel-generate", "gen", ("gen",))
    assert (one.deletes, one.synchronize) == (deletes, sync)


@pytest.mark.parametrize(
    ("excluded", "followed"),
    [("UPDATE", ["DELETE"]), ("DELETE", ["UPDATE"]), ("*", [])],
)
def test_exclusions_are_matched_by_operation(
    tmp_path: Path, excluded: str, followed: list[str]
) -> None:
    """An object whose update is excluded was created, and its deletion is followed."""
    rule = PODS | {"operations": [excluded]}
    raw = policy(sync=True, constraints={"excludeResourceRules": [rule]})
    server = served(raw, folder=tmp_path)
    gone = {"object": None, "oldObject": {"metadata": {"name": "p"}}}
    found = [
        operation
        for operation, objects in (("UPDATE", {}), ("DELETE", gone))
        if server.ask("/gpol/gen", operation=operation, **objects)
    ]
    assert found == followed


def test_trigger_that_no_longer_matches(tmp_path: Path) -> None:
    """Otherwise its generated objects would remain."""
    labels = {"objectSelector": {"matchLabels": {"team": "x"}}}
    raw = policy(sync=True, constraints=labels)
    other = policy("other", operations=("CREATE",), constraints=labels)
    server = served(raw, other, folder=tmp_path)
    old = {"metadata": {"name": "p", "labels": {"team": "x"}}}
    found = server.ask("/gpol", operation="UPDATE", oldObject=old)
    assert [one.policy for one in found] == ["gen"]
    assert server.ask("/gpol", operation="CREATE") == []


def test_dry_run_triggers_nothing(tmp_path: Path) -> None:
    """The API server expects no side effects."""
    server = served(policy(), folder=tmp_path)
    assert server.ask("/gpol", dryRun=True) == []


def test_old_object_is_sent_if_it_is_read(tmp_path: Path) -> None:
    """It cannot be read later."""
    reads = policy(variables=[{"name": "n", "expression": "oldObject.metadata.name"}])
    server = served(reads, policy("plain"), folder=tmp_path)
    found = server.ask("/gpol", operation="UPDATE")
    assert {one.policy: one.reads_old for one in found} == {"gen": True, "plain": False}


def test_paths_name_policies(tmp_path: Path) -> None:
    """A path must not trigger policies of another path or namespace."""
    raws = (policy(), policy("b"), policy(namespace="ns"), policy(namespace="other"))
    server = served(*raws, folder=tmp_path)
    assert [one.policy for one in server.ask("/gpol/b")] == ["b"]
    assert [one.policy for one in server.ask("/gpol")] == ["b", "gen"]
    found = server.ask("/ngpol-keys/ns/gen", namespace="ns")
    assert [one.policy for one in found] == ["ns/gen"]
    assert server.ask("/ngpol-keys/ns/gen", namespace="other") == []
    assert [one.policy for one in server.ask("/ngpol/gen", namespace="ns")] == [
        "ns/gen"
    ]
    # This worker does not know it yet: the API server applies the failurePolicy.
    with pytest.raises(HttpError):
        server.ask("/gpol/unknown")


def test_policy_without_a_pool_is_not_ready() -> None:
    """Otherwise the policy is never carried out, and the user is not informed."""
    (status,) = compiled(policy()).policies
    assert not status.ready
    assert "no background pool" in status.message


@pytest.mark.parametrize("namespace", ["", "a"])
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
def test_own_writes_of_the_pool_trigger_nothing(
    tmp_path: Path, namespace: str, operation: str
) -> None:
    """A policy that matches the objects it generates would never end."""
    raw = policy(namespace=namespace, operations=["*"], sync=True)
    one = served(raw, folder=tmp_path)
    path = "/ngpol-keys/a/gen" if namespace else "/gpol/gen"
    changes: dict[str, Any] = {"operation": operation}
    if operation != "CREATE":
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
        changes["oldObject"] = pod
    user = {"username": BACKGROUND}
    assert one.ask(path, **changes)
    assert not one.ask(path, **changes, userInfo=user)


def test_policy_can_select_writes_of_the_pool(tmp_path: Path) -> None:
    """What one policy generates could not trigger another."""
    asks: dict[str, Any] = {"evaluation": {"skipBackgroundRequests": False}}
    server = served(policy("a"), policy("b", **asks), folder=tmp_path)
    found = server.ask("/gpol", userInfo={"username": BACKGROUND})
    assert [one.policy for one in found] == ["b"]
    found = server.ask("/gpol", userInfo={"username": "alice"})
    assert [one.policy for one in found] == ["a", "b"]


def test_old_object_is_sent_to_a_template(tmp_path: Path) -> None:
    """The placeholder would read nothing."""
    text = "kind: ConfigMap\nmetadata: (( oldObject.metadata ))"
    entry = {"template": {"value": text, "interpolate": "cel"}}
    server = served(policy(generate=[entry]), folder=tmp_path)
    (found,) = server.ask("/gpol", operation="UPDATE")
    assert found.reads_old
