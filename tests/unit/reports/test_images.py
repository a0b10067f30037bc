"""Scans verify images: rows of verifyImages rules and of ImageValidatingPolicies.

A failure means: reports say that images are verified although they are not, or a
registry that is down delays other rules or changes their results.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.errors import RegistryUnavailable
from kyverno_mp.images.policies.review import PolicyReader
from kyverno_mp.images.policies.trust import PolicyTrust
from kyverno_mp.limits import REPORTS_EVENTS_OBJECTS_MAX
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import Credentials
from kyverno_mp.reports.scan import events as scan_events
from kyverno_mp.settings.settings import Settings
from kyverno_mp.webhook.images import ServedImages, served_images
from tests.image_rig import Contents, Repository, Signer, serving
from tests.images import rig
from tests.images.test_image_policies import Trust
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.world import (
    PODS,
    Term,
    World,
    labelled,
    new_cluster,
    policy,
    report_of,
    results,
    term,
)
from tests.unit.webhook.images import test_image_policies as reviews

Json = Any
RECORD = "kyverno.io/verify-images"


class Flaky:
    """A port to images whose reads fail while the registry is down."""

    def __init__(self, port: Any, registry: "Registry") -> None:
        self._port = port
        self._registry = registry

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if name == "at_once":
            return found

        def read(*given: Any) -> Any:
            self._registry.reads += 1
            if self._registry.is_down:
                raise RegistryUnavailable("registry.network", "registry is down")
            return found(*given)

        return read


@dataclass
class Registry:
    """One registry with a signed and an unsigned image."""

    contents: Contents
    host: str
    folder: Path
    is_down: bool = False
    reads: int = 0

    def __post_init__(self) -> None:
        self.signer = Signer()
        for name in ("signed", "bare"):
            repository = Repository(name)
            digest = repository.image(salt=name)
            if name == "signed":
                repository.sign(digest, self.signer)
            repository.load(self.contents)
        self.signed, self.bare = f"{self.host}/signed:v1", f"{self.host}/bare:v1"

    def served(self) -> ServedImages:
        """Return the ports; the Cosign attestors trust a test Sigstore."""
        settings = Settings(
            standalone=True,
            registry_allowlist="*,127.0.0.0/8",
            registry_first_byte_s=60.0,
        )
        served = served_images(settings, self.folder, None)
        client = Client(lambda _registry: Credentials(), user_agent="test")
        trusting = PolicyReader(
            client=lambda _access: client,
            now=lambda: datetime.now(UTC),
            until=lambda given: given,
            trust=PolicyTrust(Trust(rig.Sigstore()), lambda *_: (404, b"")),
        )
        return replace(
            served,
            begin=lambda: Flaky(served.begin(), self),
            policies=lambda: Flaky(trusting.begin(), self),
        )


@pytest.fixture(name="world")
def fixture_world(api: FakeApi) -> World:
    return new_cluster(api)


@pytest.fixture(name="registry")
def fixture_registry(tmp_path: Path) -> Iterator[Registry]:
    contents = Contents()
    with serving(contents, is_canned=False) as host:
        yield Registry(contents, host, tmp_path)


def verifying(registry: Registry, name: str = "p", **more: Json) -> Json:
    """Return a policy that requires the test signature."""
    keys = {"publicKeys": registry.signer.pem, "rekor": {"ignoreTlog": True}}
    block = {
        "imageReferences": [f"{registry.host}/*"],
        "mutateDigest": False,
        "attestors": [{"entries": [{"keys": keys}]}],
    }
    rule = {
        "name": "verify",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "verifyImages": [block],
    }
    return policy(name, rule, **more)


def pod(api: FakeApi, name: str, *images: str, **annotations: str) -> Json:
    """Store a Pod with images."""
    return api.put(
        f"{PODS.format('a')}/{name}",
        metadata={"annotations": annotations},
        spec={
            "containers": [
                {"name": f"c{at}", "image": one} for at, one in enumerate(images)
            ]
        },
    )


def test_images_of_existing_objects_are_verified(
    api: FakeApi, world: World, registry: Registry
) -> None:
    world.serve(verifying(registry))
    signed = pod(api, "signed", registry.signed)
    bare = pod(api, "bare", registry.bare)
    other = pod(api, "other", "elsewhere.example/app:v1")
    with term(api, world, images=registry.served()) as one:
        one.settle()
        assert results(report_of(api, signed)) == [("p", "verify", "pass")]
        assert results(report_of(api, bare)) == [("p", "verify", "fail")]
        assert report_of(api, other) is None
        report = report_of(api, bare)
        assert report is not None
        (row,) = report["results"]
        assert row["message"] == (
            f"failed to verify image {registry.bare}: .attestors[0].entries[0].keys:"
            " no signatures found"
        )
        assert row["properties"] == {"process": "background scan"}
        # The policy is deleted, and so are its rows.
        world.serve(policy("q", labelled()))
        one.settle()
        assert results(report_of(api, bare)) == [("q", "r", "fail")]


def test_image_record_of_a_review_is_ignored(
    api: FakeApi, world: World, registry: Registry
) -> None:
    world.serve(verifying(registry))
    forged = pod(api, "x", registry.bare, **{RECORD: f'{{"{registry.bare}":"pass"}}'})
    with term(api, world, images=registry.served()) as one:
        one.settle()
        assert results(report_of(api, forged)) == [("p", "verify", "fail")]


@pytest.mark.parametrize("is_first", [True, False])
def test_failed_image_is_not_hidden_by_another(
    api: FakeApi, world: World, registry: Registry, *, is_first: bool
) -> None:
    images = [registry.bare, registry.signed]
    world.serve(verifying(registry))
    raw = pod(api, "x", *(images if is_first else images[::-1]))
    with term(api, world, images=registry.served()) as one:
        one.settle()
        assert results(report_of(api, raw)) == [("p", "verify", "fail")]


def test_other_rules_are_not_delayed_or_changed(
    api: FakeApi, world: World, registry: Registry
) -> None:
    """A registry that is down causes errors, which are retried."""
    registry.is_down = True
    world.serve(verifying(registry), policy("q", labelled()))
    raw = pod(api, "x", registry.signed)
    with term(api, world, images=registry.served()) as one:
        one.settle()
        assert results(report_of(api, raw)) == [
            ("p", "verify", "error"),
            ("q", "r", "fail"),
        ]
        report = report_of(api, raw)
        assert report is not None
        assert "registry is down" in report["results"][0]["message"]
        main = one.evaluators.objects
        registry.is_down = False
        one.pass_s(2)
        assert results(report_of(api, raw)) == [
            ("p", "verify", "pass"),
            ("q", "r", "fail"),
        ]
        # Rules that read no registry were not evaluated again.
        assert one.evaluators.objects == main
        reads = registry.reads
        one.pass_s(400)
        assert registry.reads == reads


def test_policies_excluded_from_scans(
    api: FakeApi, world: World, registry: Registry
) -> None:
    """Policies without background, objects that do not match, other types of rules."""
    raw = pod(api, "x", registry.bare)
    world.serve(verifying(registry, background=False))
    with term(api, world, images=registry.served()) as one:
        one.settle()
        assert report_of(api, raw) is None
    world.serve(verifying(registry))
    with term(
        api, world, images=registry.served(), reports_of="validate,mutate"
    ) as one:
        one.settle()
        assert report_of(api, raw) is None
    assert registry.reads == 0


def test_exception_is_a_skip(api: FakeApi, world: World, registry: Registry) -> None:
    exception = {
        "apiVersion": "kyverno.io/v2",
        "kind": "PolicyException",
        "metadata": {"name": "e", "namespace": "kyverno"},
        "spec": {
            "exceptions": [{"policyName": "p", "ruleNames": ["verify"]}],
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        },
    }
    world.serve(verifying(registry), exceptions=(exception,))
    raw = pod(api, "x", registry.bare)
    with term(api, world, images=registry.served()) as one:
        one.settle()
        assert results(report_of(api, raw)) == [("p", "verify", "skip")]
    assert registry.reads == 0


@pytest.mark.parametrize("namespace", ["", "a"])
def test_image_validating_policies_are_scanned(
    api: FakeApi, world: World, registry: Registry, namespace: str
) -> None:
    """KYVERNO: upstream leaves out namespaced ones (docs/differences.md)."""
    world.serve(reviews.policy(signer=registry.signer, namespace=namespace))
    key = f"{namespace}/p".strip("/")
    signed = pod(api, "signed", registry.signed)
    bare = pod(api, "bare", registry.bare)
    with term(api, world, images=registry.served()) as one:
        one.settle()
        assert results(report_of(api, signed)) == [(key, "p", "pass")]
        report = report_of(api, bare)
        assert results(report) == [(key, "p", "fail")]
        assert report is not None
        (row,) = report["results"]
        assert row["source"] == "KyvernoImageValidatingPolicy"
        assert row["message"] == "not signed"


def test_unavailable_attestor_is_no_failure(
    api: FakeApi, world: World, registry: Registry
) -> None:
    """The expression counts it as absent; a report must not claim a failure."""
    world.serve(reviews.policy(signer=registry.signer))
    raw = pod(api, "x", registry.signed)
    served = registry.served()

    class DataOnly(Flaky):
        """A registry that goes down after the image was read."""

        def __getattr__(self, name: str) -> Any:
            registry.is_down = name == "verify" and not registry.reads > 3
            return super().__getattr__(name)

    plain = served.policies

    def begin() -> Any:
        return DataOnly(object.__getattribute__(plain(), "_port"), registry)

    with term(api, world, images=replace(served, policies=begin)) as one:
        one.settle()
        report = report_of(api, raw)
        assert results(report) == [("p", "p", "error")]
        assert report is not None
        assert "registry is down" in report["results"][0]["message"]
        one.pass_s(3)
        one.pass_s(10)
        assert results(report_of(api, raw)) == [("p", "p", "pass")]


def test_rows_of_both_lanes_are_separate(
    api: FakeApi, world: World, registry: Registry
) -> None:
    world.serve(verifying(registry), policy("q", labelled()))
    raw = pod(api, "x", registry.bare)
    with term(api, world, images=registry.served()) as one:
        one.settle()
        both = [("p", "verify", "fail"), ("q", "r", "fail")]
        assert results(report_of(api, raw)) == both
        # Only the rules of one lane change.
        world.serve(verifying(registry), policy("q", labelled("other")))
        one.settle()
        changed = [("p", "verify", "fail"), ("q", "other", "fail")]
        assert results(report_of(api, raw)) == changed
        world.serve(policy("q", labelled("other")))
        one.settle()
        assert results(report_of(api, raw)) == changed[1:]


def test_scan_reads_an_image_once_for_many_pods(
    api: FakeApi, world: World, registry: Registry
) -> None:
    """IMAGE_DIGESTS_KEPT_S, and the cache of verified images."""
    calls: list[tuple[str, ...]] = []
    settings = Settings(
        standalone=True,
        registry_allowlist="*,127.0.0.0/8",
        registry_first_byte_s=60.0,
    )
    served = served_images(
        settings, registry.folder, None, on_call=calls.append, is_scan=True
    )
    world.serve(verifying(registry))
    with term(api, world, images=served) as one:
        pod(api, "first", registry.signed)
        one.settle()
        before = len(calls)
        assert before
        more = [pod(api, f"p{at}", registry.signed) for at in range(20)]
        one.settle()
        assert len(calls) == before
        for raw in more:
            assert results(report_of(api, raw)) == [("p", "verify", "pass")]


class Described:
    """A port of ``image.getMetadata`` with a separate digest."""

    def __init__(self, digest: str) -> None:
        self._digest = digest

    def metadata(self, image: str, _deadline_ns: int) -> Json:
        return {"image": image, "digest": self._digest}


@pytest.mark.parametrize("namespace", ["", "a"])
def test_image_data_of_a_namespaced_policy_uses_tenant_access(
    api: FakeApi, world: World, namespace: str
) -> None:
    """A policy's author must not read private images as the operator."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    read = "image.getMetadata(object.spec.containers[0].image).digest"
    world.serve(
        {
            "apiVersion": "policies.kyverno.io/v1",
            "kind": f"{'Namespaced' if namespace else ''}ValidatingPolicy",
            "metadata": {"name": "p"} | ({"namespace": namespace} if namespace else {}),
            "spec": {
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [
                    {"expression": "false", "messageExpression": f"'read ' + {read}"}
                ],
            },
        }
    )
    raw = pod(api, "x", "app:v1")
    ports = CelPorts(images=Described("ours"), own_images=Described("theirs"))
    with term(api, world, cel=ports) as one:
        one.settle()
        report = report_of(api, raw)
        assert report is not None
        (row,) = report["results"]
        assert row["message"] == f"read {'theirs' if namespace else 'ours'}"


def _mixed(registry: Registry) -> Json:
    """Return a policy with a rule for labels and a rule for images."""
    found = verifying(registry)
    found["spec"]["rules"].insert(0, labelled("labelled"))
    return found


def _labelled(api: FakeApi, name: str, image: str) -> Json:
    raw = pod(api, name, image)
    return api.put(
        f"{PODS.format('a')}/{name}",
        metadata={"uid": raw["metadata"]["uid"], "labels": {"team": "t"}},
        spec=raw["spec"],
    )


def _applied(one: Term) -> list[str]:
    found = [info for info in one.recorded.events if info.reason == "PolicyApplied"]
    one.recorded.events.clear()
    return sorted(info.note for info in found)


def test_policy_passes_if_the_rules_of_both_lanes_do(
    api: FakeApi, world: World, registry: Registry
) -> None:
    """Upstream's scan has one response for all rules of a policy (scanner.go)."""
    world.serve(_mixed(registry))
    _labelled(api, "bare", registry.bare)
    _labelled(api, "signed", registry.signed)
    with term(api, world, images=registry.served()) as one:
        one.successes = frozenset()
        one.settle()
        assert _applied(one) == ["Pod a/signed: pass"]
        one.pass_s(3601)
        assert _applied(one) == []
        # The other lane has evaluated the same object before.
        _labelled(api, "bare", registry.signed)
        one.settle()
        assert _applied(one) == ["Pod a/bare: pass"]


def test_policy_does_not_pass_while_a_registry_is_unavailable(
    api: FakeApi, world: World, registry: Registry
) -> None:
    registry.is_down = True
    world.serve(_mixed(registry))
    _labelled(api, "x", registry.signed)
    with term(api, world, images=registry.served()) as one:
        one.successes = frozenset()
        one.settle()
        assert _applied(one) == []
        registry.is_down = False
        one.pass_s(2)
        assert _applied(one) == ["Pod a/x: pass"]


def test_verdicts_waiting_for_the_other_lane_are_bounded(
    api: FakeApi, world: World, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REPORTS_EVENTS_OBJECTS_MAX."""
    assert REPORTS_EVENTS_OBJECTS_MAX > 1
    monkeypatch.setattr(scan_events, "REPORTS_EVENTS_OBJECTS_MAX", 1)
    world.serve(_mixed(registry))
    for name in ("x", "y"):
        _labelled(api, name, registry.signed)
    with term(api, world, images=registry.served()) as one:
        one.successes = frozenset()
        one.settle()
        assert _applied(one) == []
        assert one.recorded.total("kyverno_mp_reports_events_dropped_total")
        assert len(one.reports.events._joint._known) == 1
