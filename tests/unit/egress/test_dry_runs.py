"""Dry runs of signed manifests: permission, namespace, errors, bounds."""

import json
import threading
from typing import Any, cast

import pytest

from kyverno_mp.egress.dry_runs import LiveDryRuns
from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.errors import (
    DeadlinePassed,
    DependencyError,
    ExpressionFailed,
    KubeRefused,
    KubeUnavailable,
)
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.limits import MANIFEST_DRY_RUNS_MAX
from kyverno_mp.values.kubernetes.kinds import KindSelector
from tests.waiting import soon_ns, wait_for

_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a-dry-run"}}
_ROLE = {"apiVersion": "rbac.example/v1", "kind": "Role", "metadata": {"name": "r"}}
_RESOURCES = (
    Resource(group="", version="v1", plural="configmaps", kind="ConfigMap"),
    Resource(
        group="rbac.example",
        version="v1",
        plural="roles",
        kind="Role",
        namespaced=False,
    ),
)


class Kinds:
    """Knows two kinds; a selector with a wildcard matches both."""

    def resources(self, selector: KindSelector) -> tuple[Resource, ...]:
        return tuple(one for one in _RESOURCES if selector.kind in ("*", one.kind))


class Server:
    """Answers reviews of permissions, and echoes created objects."""

    def __init__(self, *, allowed: bool = True, asks: bool = False) -> None:
        """``asks``: whether an authorizer lists no rules."""
        self.allowed = allowed
        self.asks = asks
        self.calls: list[Call] = []
        self.failures: dict[str, DependencyError] = {}
        self.answer: Any = None
        self.hold = threading.Event()
        self.hold.set()

    def send(self, call: Call, deadline_ns: int) -> Any:
        self.calls.append(call)
        self.hold.wait()
        assert deadline_ns
        part = call.path.rpartition("/")[2]
        if part in self.failures:
            raise self.failures[part]
        assert call.body is not None
        if part == "selfsubjectrulesreviews":
            everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            rules = [everything] if self.allowed else []
            return {"status": {"resourceRules": rules, "incomplete": self.asks}}
        if part == "selfsubjectaccessreviews":
            return {"status": {"allowed": self.allowed}}
        return json.loads(call.body) if self.answer is None else self.answer


def dry_runs(server: Server, threads: int = 8) -> LiveDryRuns:
    client, kinds = cast("Client", server), cast("LiveKinds", Kinds())
    return LiveDryRuns(client, kinds, "kyverno", threads)


def test_an_object_is_created_in_a_dry_run() -> None:
    server = Server(asks=True)
    assert dry_runs(server)(_MAP, "tests", 0) == _MAP
    _, review, create = server.calls
    assert review.body is not None
    assert json.loads(review.body)["spec"]["resourceAttributes"] == {
        "verb": "create",
        "version": "v1",
        "resource": "configmaps",
        "namespace": "tests",
    }
    assert create.method == "POST"
    assert create.path == "/api/v1/namespaces/tests/configmaps"
    assert list(create.query) == [("dryRun", "All")]


def test_a_cluster_scoped_object_has_no_namespace() -> None:
    server = Server(asks=True)
    assert dry_runs(server)(_ROLE, "tests", 0) == _ROLE
    _, review, create = server.calls
    assert b"tests" not in (review.body or b"")
    assert create.path == "/apis/rbac.example/v1/roles"


def test_many_dry_runs_ask_once_for_their_permission() -> None:
    """Otherwise, a scan would ask again for each object with a signed manifest."""
    server = Server()
    dry_run = dry_runs(server)
    for _ in range(5):
        assert dry_run(_MAP, "tests", 0) == _MAP
    assert len([call for call in server.calls if "review" in call.path]) == 1


@pytest.mark.parametrize(
    ("document", "namespace", "allowed"),
    [
        (_MAP, "tests", False),
        (_MAP, "kyverno", True),
        ({**_MAP, "kind": "Unserved"}, "tests", True),
        ({**_MAP, "kind": "*"}, "tests", True),
        ({"metadata": {}}, "tests", True),
    ],
)
def test_nothing_is_created(
    document: dict[str, Any], namespace: str, *, allowed: bool
) -> None:
    server = Server(allowed=allowed)
    assert dry_runs(server)(document, namespace, 0) is None
    assert not [call for call in server.calls if call.query]


def test_a_failed_review_of_the_permission_is_a_denial() -> None:
    server = Server(asks=True)
    name = "selfsubjectaccessreviews"
    server.failures[name] = KubeRefused("kube.forbidden", "no")
    assert dry_runs(server)(_MAP, "tests", 0) is None
    server.failures[name] = DeadlinePassed("kube.deadline", "late")
    with pytest.raises(DeadlinePassed):
        dry_runs(server)(_MAP, "tests", 0)


def test_a_rejection_is_about_the_object_and_an_outage_is_not() -> None:
    server = Server()
    server.failures["configmaps"] = KubeRefused("kube.refused", "denied by a webhook")
    with pytest.raises(ExpressionFailed, match="denied by a webhook"):
        dry_runs(server)(_MAP, "tests", 0)
    server.failures["configmaps"] = KubeUnavailable("kube.server", "down")
    with pytest.raises(KubeUnavailable, match="down"):
        dry_runs(server)(_MAP, "tests", 0)
    server.failures.clear()
    server.answer = []
    with pytest.raises(KubeUnavailable, match="not an object"):
        dry_runs(server)(_MAP, "tests", 0)


@pytest.mark.parametrize(
    ("threads", "expected"), [(1, 1), (2, 1), (1000, MANIFEST_DRY_RUNS_MAX)]
)
def test_threads_stay_free_for_reviews_of_the_objects(
    threads: int, expected: int
) -> None:
    """Each dry run waits for the review that the API server sends us of its object."""
    server = Server()
    server.hold.clear()
    create = dry_runs(server, threads)
    running = [
        threading.Thread(target=create, args=(_MAP, "tests", 0))
        for _ in range(expected)
    ]
    for one in running:
        one.start()
    try:
        wait_for(lambda: len(server.calls) >= expected)
        with pytest.raises(DeadlinePassed, match="too many dry runs"):
            create(_MAP, "tests", soon_ns())
    finally:
        server.hold.set()
        for one in running:
            one.join()
    assert create(_MAP, "tests", 0) == _MAP


def test_namespaced_policies_get_half_of_the_dry_runs() -> None:
    server = Server()
    server.hold.clear()
    create = dry_runs(server)
    half = MANIFEST_DRY_RUNS_MAX // 2
    args = (_MAP, "team", 0, True)
    running = [threading.Thread(target=create, args=args) for _ in range(half)]
    for one in running:
        one.start()
    try:
        wait_for(lambda: len(server.calls) >= half)
        with pytest.raises(DeadlinePassed, match="too many dry runs"):
            create(_MAP, "team", soon_ns(), True)
        other = threading.Thread(target=create, args=(_MAP, "tests", 0))
        other.start()
        running.append(other)
        wait_for(lambda: len(server.calls) >= half + 1)
    finally:
        server.hold.set()
        for one in running:
            one.join()
    assert create(_MAP, "team", 0, True) == _MAP
