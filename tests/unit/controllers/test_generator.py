"""The API server's generated policies match their source policies at all times."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from kyverno_mp.controllers.admission_policies.controller import (
    ALL,
    AdmissionPolicyController,
    Inputs,
)
from kyverno_mp.controllers.admission_policies.generated import Source
from kyverno_mp.controllers.admission_policies.objects import GeneratedObjects
from kyverno_mp.controllers.admission_policies.plans import Plans
from kyverno_mp.controllers.generated_status import GeneratedStatus
from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.resource import Resource
from kyverno_mp.limits import GENERATED_POLICY_FAILURES_MAX
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode
from tests.unit.kube.fake_api import FakeApi, running

Json = Any
GROUP = "admissionregistration.k8s.io"
POLICY = "validatingadmissionpolicies"
POLICIES = f"/apis/{GROUP}/v1/{POLICY}"


def served(group: str, plural: str, kind: str, *, namespaced: bool) -> Resource:
    return Resource(
        group=group, version="v1", plural=plural, kind=kind, namespaced=namespaced
    )


DIRECTORY = Directory(
    [
        served("apps", "deployments", "Deployment", namespaced=True),
        *(
            served(GROUP, kind.lower() + plural, kind, namespaced=False)
            for kind, plural in (
                ("ValidatingAdmissionPolic", "ies"),
                ("ValidatingAdmissionPolicyBinding", "s"),
            )
        ),
    ]
)


def policy(
    name: str, *, asks: bool = True, generated: bool = False, message: str = "m"
) -> ClusterPolicy:
    checks = [{"expression": "true", "message": message}]
    cel = {"generate": asks, "expressions": checks}
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Deployment"]}}]},
        "validate": {"cel": cel},
    }
    found = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": name, "uid": f"uid-{name}"},
            "spec": {"rules": [rule]},
            "status": {
                "validatingadmissionpolicy": {"generated": generated, "message": ""}
            },
        }
    )
    assert isinstance(found, ClusterPolicy)
    return found


class Held:
    """A lease that is never lost."""

    terms_held = 1

    def holds(self) -> bool:
        return True


class Hand:
    """A clock that a test sets."""

    now_s = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return self.now_s


class Rig:
    """A controller against an API server."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.policies: list[Source] = []
        self.announced = 0
        self.in_force = True
        self.clock = Hand()
        client = api.client()
        election: Any = Held()
        clock: Any = self.clock
        self.controller = AdmissionPolicyController(
            GeneratedObjects(client, Objects(client)),
            Plans(validating=True, mutating=True),
            Inputs(
                registered=lambda: (1, self.policies),
                exceptions=lambda: (),
                allows=lambda _: True,
                directory=lambda: DIRECTORY,
                in_force=lambda _: self.in_force,
                submit=lambda _: None,
                on_status_change=self._announce,
            ),
            election,
            clock,
        )

    def _announce(self) -> None:
        self.announced += 1

    def run(self, after_s: float = 0.0) -> None:
        self.clock.now_s += after_s
        self.controller.reconcile(ALL)

    def status_of(self, name: str) -> GeneratedStatus | None:
        found = [one for one in self.policies if one.metadata.name == name]
        return self.controller.status_of(found[0])

    def settle(self, *names: str) -> None:
        """Have the policies generated and their statuses updated."""
        self.policies = [policy(name) for name in names]
        self.run()
        self.run(after_s=3)
        assert all(
            self.status_of(name) == GeneratedStatus(generated=True) for name in names
        )
        self.policies = [policy(name, generated=True) for name in names]
        self.run()


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running() as api:
        yield Rig(api)


def names(api: FakeApi) -> set[str]:
    return {key[3] for key in api.objects if key[0].startswith(f"/apis/{GROUP}")}


def test_status_is_reported_once_api_servers_have_loaded_the_policy(rig: Rig) -> None:
    rig.policies = [policy("a")]
    rig.run()
    assert names(rig.api) == {"cpol-a", "cpol-a-binding"}
    assert rig.status_of("a") is None
    rig.run(after_s=2.9)
    assert (rig.status_of("a"), rig.announced) == (None, 0)
    rig.run(after_s=0.2)
    assert (rig.status_of("a"), rig.announced) == (GeneratedStatus(generated=True), 1)
    assert rig.controller.counts()["ValidatingAdmissionPolicy"] == 1


def test_gradual_policy_is_not_left_to_the_api_server(rig: Rig) -> None:
    """The API server would enforce it for all subjects."""
    rig.settle("a", "b")
    share = {"kyverno-mp.io/enforce-percent": "10"}
    for generated in (True, False):
        gradual = policy("a", generated=generated)
        metadata = msgspec.structs.replace(gradual.metadata, annotations=share)
        gradual = msgspec.structs.replace(gradual, metadata=metadata)
        rig.policies = [gradual, policy("b", generated=True)]
        rig.run(after_s=60)
        status = rig.status_of("a")
        assert status is not None
        assert not status.generated
        assert "gradually" in status.message
    rig.run(after_s=60)
    assert names(rig.api) == {"cpol-b", "cpol-b-binding"}


def test_status_is_submitted_despite_a_later_failing_policy(rig: Rig) -> None:
    rig.settle("a", "b")
    before = rig.announced
    rig.policies = [policy("a", generated=True, asks=False), policy("b")]
    rig.api.remove(f"{POLICIES}/cpol-b")
    rig.api.fault(rf"POST {POLICIES}", 404)
    with pytest.raises(DependencyError):
        rig.run(after_s=10)
    found = rig.status_of("a")
    assert found is not None
    assert not found.generated
    assert rig.announced == before + 1
    assert rig.controller.status_version == rig.announced
    # A change is announced only once.
    rig.run()
    assert rig.status_of("a") == found


def test_failing_policies_do_not_starve_the_others(rig: Rig) -> None:
    """Failed policies are tried last in the next pass; each pass has few failures."""
    bad = [f"a{number}" for number in range(GENERATED_POLICY_FAILURES_MAX + 1)]
    rig.settle(*bad, "z")
    rig.policies = [policy(name, message="other") for name in (*bad, "z")]
    rig.api.fault("PUT .*/cpol-a", *[404] * 100)
    with pytest.raises(DependencyError):
        rig.run()
    assert rig.api.count("PUT .*/cpol-a") == GENERATED_POLICY_FAILURES_MAX
    assert rig.api.count("PUT .*/cpol-z") == 0
    with pytest.raises(DependencyError):
        rig.run()
    assert rig.api.count("PUT .*/cpol-a") == 2 * GENERATED_POLICY_FAILURES_MAX
    assert rig.api.count("PUT .*/cpol-z") == 1
    rig.api.faults.clear()
    rig.run()
    for name in (*bad, "z"):
        found = rig.api.objects[f"/apis/{GROUP}/v1", "", POLICY, f"cpol-{name}"]
        assert found["spec"]["validations"][0]["message"] == "other"


def test_objects_are_deleted_after_the_webhook_is_loaded(rig: Rig) -> None:
    rig.settle("a")
    rig.policies = [policy("a", asks=False)]
    rig.in_force = False
    rig.run(after_s=10)
    rig.in_force = True
    rig.run()
    rig.run(after_s=2.9)
    assert names(rig.api) == {"cpol-a", "cpol-a-binding"}
    # The replica lagged again, so the delay starts again.
    rig.in_force = False
    rig.run()
    rig.in_force = True
    rig.run(after_s=1)
    assert names(rig.api) == {"cpol-a", "cpol-a-binding"}
    rig.run(after_s=3)
    assert names(rig.api) == set()


OWNER = {"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicy", "uid": "u"}


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [{**OWNER, "name": "other"}],
        [{**OWNER, "kind": "ValidatingPolicy", "name": "a"}],
        [{**OWNER, "kind": "ConfigMap", "name": "a"}],
    ],
)
def test_foreign_objects_with_the_label_stay(rig: Rig, owners: Json) -> None:
    label = {"app.kubernetes.io/managed-by": "kyverno"}
    metadata = {"labels": label, "ownerReferences": owners}
    rig.api.put(f"{POLICIES}/cpol-a", metadata=metadata, spec={"x": 1})
    rig.policies = [policy("a", asks=False)]
    for _ in range(3):
        rig.run(after_s=10)
    assert names(rig.api) == {"cpol-a"}
    rig.policies = [policy("a")]
    rig.run(after_s=10)
    found = rig.status_of("a")
    assert found is not None
    assert "Kyverno did not generate it" in found.message
    assert rig.api.count("(PUT|DELETE) ") == 0


@pytest.mark.parametrize("gone", ["policies/cpol-a", "policybindings/cpol-a-binding"])
def test_webhook_enforces_a_policy_whose_objects_were_deleted(
    rig: Rig, gone: str
) -> None:
    rig.settle("a")
    rig.api.remove(f"/apis/{GROUP}/v1/validatingadmission{gone}")
    before = rig.announced
    rig.run(after_s=10)
    assert names(rig.api) == {"cpol-a", "cpol-a-binding"}
    found = rig.status_of("a")
    assert found is not None
    assert not found.generated
    assert "generated again" in found.message
    assert rig.announced == before + 1
    rig.policies = [policy("a")]
    rig.run()
    rig.run(after_s=2.9)
    assert rig.status_of("a") == found
    rig.run(after_s=0.2)
    assert rig.status_of("a") == GeneratedStatus(generated=True)
    assert rig.announced == before + 2
