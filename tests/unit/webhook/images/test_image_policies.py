"""ImageValidatingPolicies answer reviews: from documents through a snapshot.

A failure means: an image that the command line rejects is admitted to the cluster, or
the author of a namespaced policy reads images with the operator's credentials.
"""

import base64
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.errors import DeadlinePassed, RegistryUnavailable
from kyverno_mp.images.at_once import Helpers
from kyverno_mp.images.cache import CacheOptions, ImageCache
from kyverno_mp.images.policies.cached import CachedPolicyReview
from kyverno_mp.images.policies.review import PolicyReader
from kyverno_mp.images.policies.review import PolicyReview as ImagesOfReview
from kyverno_mp.images.policies.trust import PolicyTrust
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.limits import IMAGE_REASON_CHARACTERS_MAX, IMAGE_REASONS_MAX
from kyverno_mp.program.cel_sources import cel_source
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.image_policies.evaluate import LinkedImagePolicy
from kyverno_mp.program.image_policies.plan import ImagePlanner
from kyverno_mp.program.image_policies.ports import ImageQuery, PolicyImages
from kyverno_mp.program.image_policies.scope import Begin
from kyverno_mp.program.ports import CelPorts, ClusterData
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import Credentials
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.snapshot.policies import PoliciesWriter
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.kubernetes.policy_kinds import IMAGE_VALIDATING_POLICY
from kyverno_mp.webhook.http_errors import HttpError
from kyverno_mp.webhook.images import served_images
from kyverno_mp.webhook.policy_review import PolicyReview, ReviewOptions
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.service import Service
from tests.image_rig import Contents, Repository, Signer, payload_for, serving
from tests.images import rig
from tests.images.test_image_policies import Trust
from tests.unit.webhook.cel.test_cel_policies import (
    PODS,
    asked,
    compiled,
    exception,
    message,
)
from tests.unit.webhook.stub import StubEvaluate, StubRecords
from tests.waiting import HANG_NS, HANG_S, far_ns, real_ns

SIGNED = "images.containers.all(i, verifyImageSignatures(i, [attestors.us]) > 0)"
IS_SIGNED = {"expression": SIGNED, "message": "not signed"}
USER = {
    "expression": (
        "images.containers.all(i, getImageData(i).ConfigData.Config.User == '1000')"
    ),
    "message": "no user",
}
LATER_NS = 2**62
NO_LOG = {
    "url": "http://log.example",
    "insecureIgnoreTlog": True,
    "insecureIgnoreSCT": True,
}


def policy(
    name: str = "p",
    *validations: dict[str, Any],
    signer: Signer | None = None,
    namespace: str = "",
    **spec: Any,
) -> dict[str, Any]:
    key = "junk" if signer is None else signer.pem
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": f"{'Namespaced' if namespace else ''}ImageValidatingPolicy",
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "spec": {
            "matchConstraints": {"resourceRules": [PODS]},
            "attestors": [
                {"name": "us", "cosign": {"key": {"data": key}, "ctlog": NO_LOG}}
            ],
            "validations": list(validations or (IS_SIGNED,)),
            **spec,
        },
    }


def pod(*images: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "a", **metadata},
        "spec": {"containers": [{"name": "c", "image": one} for one in images]},
    }


def _nothing(*_: Any) -> tuple[int, bytes]:
    raise AssertionError("nothing may be asked")


class Lane:
    """A lane that runs tasks immediately and counts them."""

    def __init__(self) -> None:
        self.ran = 0

    def run(self, evaluate: Callable[[Any], bytes], *_: Any) -> bytes:
        self.ran += 1
        return evaluate(None)


class Server:
    """A worker's service with the snapshot of some documents."""

    def __init__(
        self,
        found: PolicySet,
        folder: Path,
        begin: Begin | None,
        data: ClusterData | None = None,
    ) -> None:
        content = PoliciesWriter().encode(
            found.cel.get(IMAGE_VALIDATING_POLICY.segment, ()),
            generation=1,
            salt=os.urandom(16),
            names=[
                f"{one.namespace}/{one.name}" if one.namespace else one.name
                for one in found.policies
            ],
            segment=IMAGE_VALIDATING_POLICY.segment,
        )
        path = folder / "images.segment"
        path.write_bytes(content)
        path.chmod(0o600)
        segment = CelSegment(
            Segment.attach(path, IMAGE_VALIDATING_POLICY.segment),
            ImageValidatingPolicyIR,
        )
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=real_ns)
        engine = Engine(data or ClusterData(), clock, threading.Lock())
        source = cel_source(LinkedImagePolicy, engine, segment, segment.record)
        planner = ImagePlanner(engine, source, segment.knows, begin)
        self.records, self.slow, self.images = StubRecords(), Lane(), Lane()
        self.service = Service(
            Dependencies(
                records=self.records,
                monotonic_ns=real_ns,
                timeout_ns=HANG_NS,
                slow_lane=self.slow,  # type: ignore[arg-type] # what is used of it
                image_lane=self.images,  # type: ignore[arg-type] # likewise
            ),
            handlers_of(
                StubEvaluate(None), cel={IMAGE_VALIDATING_POLICY: lambda: planner}
            ),
        )

    def ask(self, path: str, given: dict[str, Any], **changes: Any) -> dict[str, Any]:
        return asked(self.service, path, object=given, **changes)


class Registry:
    """A registry with one image signed by one signer."""

    def __init__(self, contents: Contents, host: str) -> None:
        self.signer = Signer()
        self.contents = contents
        self.image = f"{host}/app:v1"
        self.repository = Repository("app")
        self.digest = self.repository.image()
        self.repository.sign(self.digest, self.signer)
        self.repository.load(contents)
        self.trust = Trust(rig.Sigstore())

    def begin(self) -> PolicyImages:
        client = Client(lambda _registry: Credentials(), user_agent="test")
        return PolicyReader(
            client=lambda _access: client,
            now=lambda: rig.NOW,
            until=lambda _given: LATER_NS,
            trust=PolicyTrust(self.trust, _nothing),
        ).begin()


class Stub:
    """A port whose images are only read, not verified."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.read: list[ImageQuery] = []

    def begin(self) -> PolicyImages:
        return self  # type: ignore[return-value] # what these policies call of it

    def at_once(self, parts: Sequence[Any], _deadline_ns: int) -> None:
        """Read the images one after the other."""

    def data(self, query: ImageQuery, _deadline_ns: int) -> Mapping[str, Any]:
        self.read.append(query)
        if self.error is not None:
            raise self.error
        names = ("resolvedImage", "registry", "repository", "tag", "digest")
        return {
            **dict.fromkeys((*names, "identifier"), "x"),
            "image": query.image,
            "imageIndex": None,
            "manifest": {"schemaVersion": 2},
            "config": {"config": {"User": "1000"}},
        }


@pytest.fixture
def registry() -> Iterator[Registry]:
    contents = Contents()
    with serving(contents, is_canned=False) as host:
        yield Registry(contents, host)


def test_signed_image_passes(registry: Registry, tmp_path: Path) -> None:
    found = compiled(policy(signer=registry.signer))
    server = Server(found, tmp_path, registry.begin)
    response = server.ask("/ivpol/validate/p", pod(registry.image))
    assert response["allowed"] is True
    assert "patch" not in response
    # A hanging registry blocks only the threads for images.
    assert (server.images.ran, server.slow.ran) == (1, 0)


def test_other_signature_denies_with_a_reason(
    registry: Registry, tmp_path: Path
) -> None:
    """The message has upstream's text, and then the reason why the attestor failed."""
    server = Server(compiled(policy(signer=Signer())), tmp_path, registry.begin)
    text = message(server.ask("/ivpol/validate/p", pod(registry.image)))
    upstreams, _, why = text.partition(" (")
    assert upstreams == "Policy p failed: not signed"
    assert why.startswith(f"attestor us: {registry.image}: no matching signatures: ")


class Namespaces:
    """Namespaces with a label that names the allowed signer."""

    def __init__(self, signer: str) -> None:
        self._signer = signer

    def namespace(self, name: str, _deadline_ns: int) -> dict[str, Any]:
        metadata = {"name": name, "labels": {"signer": self._signer}}
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


@pytest.mark.parametrize(
    ("signer", "allowed"), [(rig.SUBJECT, True), ("release@example.com", False)]
)
def test_namespace_label_selects_the_accepted_signers(
    registry: Registry, tmp_path: Path, signer: str, *, allowed: bool
) -> None:
    """Without the Namespace, the default value would admit any signer."""
    own = rig.Sigstore()
    registry.trust = Trust(own)
    layer = own.layer(own.leaf(), payload_for(registry.digest))
    registry.repository.attach_layers(registry.digest, "sig", [layer])
    registry.repository.load(registry.contents)
    text = "namespaceObject.?metadata.?labels[?'signer'].orValue('.')"
    identity = {"issuer": rig.ISSUER, "subjectExpression": text}
    cosign = {"keyless": {"identities": [identity]}}
    found = compiled(policy(attestors=[{"name": "us", "cosign": cosign}]))
    data = ClusterData(cel=CelPorts(namespaces=Namespaces(signer)))
    server = Server(found, tmp_path, registry.begin, data)
    answer = server.ask("/ivpol/validate/p", pod(registry.image))
    assert answer["allowed"] is allowed


def test_reasons_are_bounded(registry: Registry, tmp_path: Path) -> None:
    """IMAGE_REASONS_MAX, IMAGE_REASON_CHARACTERS_MAX."""
    images = [f"{registry.image.rpartition(':')[0]}:v{at}" for at in range(2, 12)]
    for at in range(2, 12):
        registry.repository.image(tag=f"v{at}", salt=str(at))
    registry.repository.load(registry.contents)
    counts = "images.containers.map(i, verifyImageSignatures(i, [attestors.us]))"
    all_of = f"{counts}.all(n, n > 0)"
    failing = {"expression": all_of, "message": "not signed"}
    server = Server(
        compiled(policy("p", failing, signer=Signer())), tmp_path, registry.begin
    )
    text = message(server.ask("/ivpol/validate/p", pod(*images)))
    assert text.count("attestor us: ") == IMAGE_REASONS_MAX
    most = IMAGE_REASONS_MAX * (IMAGE_REASON_CHARACTERS_MAX + 2)
    assert len(text) < len("Policy p failed: not signed ()") + most


@pytest.mark.parametrize("is_same", [True, False])
def test_verified_attestor_is_cached(
    registry: Registry,
    tmp_path: Path,
    is_same: bool,  # noqa: FBT001 - a column
) -> None:
    """Results are bound to the digest and the whole attestor; failures are not kept."""
    events: list[str] = []
    cache = ImageCache(CacheOptions(tmp_path, 100, 60), events.append)
    ends: list[str] = []

    def begin() -> PolicyImages:
        review = registry.begin()
        assert isinstance(review, ImagesOfReview)
        return CachedPolicyReview(
            review, cache, lambda labels, _seconds: ends.append(labels[0])
        )

    one = Server(compiled(policy(signer=registry.signer)), tmp_path, begin)
    path = "/ivpol/validate/p"
    for _ in range(3):
        assert one.ask(path, pod(registry.image))["allowed"] is True
    assert ends == ["verified"]
    signer = registry.signer if is_same else Signer()
    other = Server(compiled(policy(signer=signer)), tmp_path, begin)
    for _ in range(2):
        assert other.ask(path, pod(registry.image))["allowed"] is is_same
    assert ends == ["verified"] + ([] if is_same else ["failed", "failed"])


@pytest.mark.parametrize("status", [500, 503])
def test_partial_verification_is_not_cached(
    registry: Registry, tmp_path: Path, status: int
) -> None:
    """A registry that fails once may hide a bundle that counts on its own."""
    cache = ImageCache(CacheOptions(tmp_path, 100, 60))
    ends: list[str] = []

    def begin() -> PolicyImages:
        review = registry.begin()
        assert isinstance(review, ImagesOfReview)
        return CachedPolicyReview(
            review, cache, lambda labels, _seconds: ends.append(labels[0])
        )

    server = Server(compiled(policy(signer=registry.signer)), tmp_path, begin)
    path = f"/v2/app/referrers/{registry.digest}"
    registry.contents.once["GET", path] = (status, {}, b"")
    for _ in range(4):
        assert server.ask("/ivpol/validate/p", pod(registry.image))["allowed"] is True
    assert ends == ["verified", "verified"]
    assert not registry.contents.once


def test_moved_tag_is_verified_again(registry: Registry, tmp_path: Path) -> None:
    cache = ImageCache(CacheOptions(tmp_path, 100, 60))

    def begin() -> PolicyImages:
        review = registry.begin()
        assert isinstance(review, ImagesOfReview)
        return CachedPolicyReview(review, cache, lambda _labels, _seconds: None)

    server = Server(compiled(policy(signer=registry.signer)), tmp_path, begin)
    path = "/ivpol/validate/p"
    assert server.ask(path, pod(registry.image))["allowed"] is True
    registry.repository.image(salt="another")
    registry.repository.load(registry.contents)
    assert server.ask(path, pod(registry.image))["allowed"] is False


def test_images_are_read_concurrently(tmp_path: Path) -> None:
    """Each read waits for another read, so sequential reads would fail."""
    barrier = threading.Barrier(2)

    class Meeting(Stub):
        def data(self, query: ImageQuery, deadline_ns: int) -> Mapping[str, Any]:
            if query not in self.read:
                barrier.wait(HANG_S)
            return super().data(query, deadline_ns)

        def at_once(self, parts: Sequence[Any], _deadline_ns: int) -> None:
            Helpers(1).run(parts, far_ns())

    images = Meeting()
    server = Server(compiled(policy("p", USER)), tmp_path, images.begin)
    server.ask("/ivpol/validate/p", pod("a.example/a:v1", "b.example/b:v1"))
    assert len(set(images.read)) == 2


def test_outcome_in_the_object_proves_nothing(
    registry: Registry, tmp_path: Path
) -> None:
    """Upstream's validating webhook trusts this annotation."""
    server = Server(compiled(policy(signer=Signer())), tmp_path, registry.begin)
    outcome = {"p": {"name": "p", "status": "pass", "message": "success"}}
    forged = {"kyverno.io/image-verification-outcomes": json.dumps(outcome)}
    given = pod(registry.image, annotations=forged)
    assert message(server.ask("/ivpol/validate/p", given))


def test_warnings_and_audits_deny_nothing(tmp_path: Path) -> None:
    never = {"expression": "false", "message": "never"}
    found = compiled(
        policy("a", never, validationActions=["Warn"]),
        policy("b", never, validationActions=["Audit"]),
    )
    response = Server(found, tmp_path, Stub().begin).ask("/ivpol/validate", pod("i"))
    assert response["allowed"] is True
    assert response["warnings"] == ["Policy a failed: never"]


@pytest.mark.parametrize("failure_policy", ["Fail", "Ignore"])
def test_registry_without_an_answer_denies(tmp_path: Path, failure_policy: str) -> None:
    """Otherwise the owner of a registry could admit images by not answering."""
    stub = Stub(RegistryUnavailable("registry.away", "no answer"))
    found = compiled(policy("p", USER, failurePolicy=failure_policy))
    text = message(Server(found, tmp_path, stub.begin).ask("/ivpol/validate", pod("i")))
    assert text == "Policy p error: failed to evaluate policy: no answer"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DeadlinePassed("images.deadline", "late"), "late (images.deadline)"),
        (ValueError("defect"), "internal error, see the log"),
    ],
)
def test_failure_policy_applies_to_unevaluated_images(
    tmp_path: Path, error: Exception, reason: str
) -> None:
    stub = Stub(error)
    found = compiled(
        policy("a", USER, failurePolicy="Ignore"),
        policy("b", USER, failurePolicy="Fail"),
    )
    server = Server(found, tmp_path, stub.begin)
    assert server.ask("/ivpol/validate/a", pod("i"))["allowed"] is True
    text = message(server.ask("/ivpol/validate/b", pod("i")))
    assert text == f"Policy b error: failed to evaluate policy: {reason}"
    assert server.records.errors


def test_invalid_policy_affects_no_other(registry: Registry, tmp_path: Path) -> None:
    bad = {"expression": "object.spec.nothing == 1"}
    found = compiled(
        policy("a", bad, validationActions=["Audit"]),
        policy("b", signer=registry.signer),
        policy("c", signer=Signer()),
    )
    server = Server(found, tmp_path, registry.begin)
    assert server.ask("/ivpol/validate/a/b", pod(registry.image))["allowed"] is True
    text = message(server.ask("/ivpol/validate/a/b/c", pod(registry.image)))
    assert text.startswith("Policy c failed: not signed (attestor us: ")


def test_images_excluded_by_conditions_are_not_read(tmp_path: Path) -> None:
    stub = Stub()
    condition = {"name": "c", "expression": "object.metadata.name == 'q'"}
    other = {"resourceRules": [{**PODS, "resources": ["secrets"]}]}
    found = compiled(
        policy("a", USER, matchConditions=[condition]),
        policy("b", USER, matchConstraints=other),
        policy("c", USER, matchImageReferences=[{"glob": "ghcr.io/*"}]),
    )
    server = Server(found, tmp_path, stub.begin)
    assert server.ask("/ivpol/validate", pod("i"))["allowed"] is True
    assert stub.read == []


@pytest.mark.parametrize("is_own", [False, True])
def test_deletion_reads_the_images_of_the_old_object(
    tmp_path: Path,
    is_own: bool,  # noqa: FBT001 - a column
) -> None:
    stub = Stub()
    rules = {"resourceRules": [{**PODS, "operations": ["DELETE"]}]}
    names = ("containers", "initContainers", "ephemeralContainers")
    old = "oldObject.spec.?{}.orValue([]).map(e, e.image)"
    own = [{"name": name, "expression": old.format(name)} for name in names]
    found = compiled(
        policy("p", USER, matchConstraints=rules, images=own if is_own else [])
    )
    server = Server(found, tmp_path, stub.begin)
    response = asked(
        server.service,
        "/ivpol/validate/p",
        operation="DELETE",
        object=None,
        oldObject=pod("old"),
    )
    assert response["allowed"] is True
    assert {one.image for one in stub.read} == {"old"}


def test_autogen_for_controllers(registry: Registry, tmp_path: Path) -> None:
    server = Server(compiled(policy(signer=Signer())), tmp_path, registry.begin)
    given = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "a"},
        "spec": {"template": {"spec": pod(registry.image)["spec"]}},
    }
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    resource = {"group": "apps", "version": "v1", "resource": "deployments"}
    answer = server.ask("/ivpol/validate/p", given, kind=kind, resource=resource)
    assert message(answer).startswith("Policy p failed: not signed (attestor us: ")


def test_exceptions(tmp_path: Path) -> None:
    never = {"expression": "false", "message": "never"}
    condition = {"name": "c", "expression": "object.metadata.name == 'p'"}
    found = compiled(
        policy("p", never),
        exception("p", kind="ImageValidatingPolicy", matchConditions=[condition]),
    )
    server = Server(found, tmp_path, Stub().begin)
    assert server.ask("/ivpol/validate/p", pod("i"))["allowed"] is True
    assert message(server.ask("/ivpol/validate/p", pod("i", name="q")))


def test_policies_of_a_namespace(tmp_path: Path) -> None:
    never = {"expression": "false", "message": "never"}
    server = Server(compiled(policy("p", never, namespace="a")), tmp_path, Stub().begin)
    for path in ("/nivpol-keys/a/p", "/nivpol/validate/p"):
        assert message(server.ask(path, pod("i"))) == "Policy p failed: never"
        assert server.ask(path, pod("i"), namespace="b")["allowed"] is True
    assert server.ask("/ivpol/validate", pod("i"))["allowed"] is True
    with pytest.raises(HttpError) as unknown:
        server.ask("/nivpol-keys/a/q", pod("i"))
    assert unknown.value.status == 503


def test_rejected_policies_are_not_served() -> None:
    found = compiled(policy("p", {"expression": "1 + 1"}))
    (status,) = found.policies
    assert not status.ready
    assert not found.cel.get(IMAGE_VALIDATING_POLICY.segment)


class Secrets:
    """The operator's Secrets; records who requested which Secret."""

    def __init__(self, host: str) -> None:
        self.asked: list[str] = []
        auth = base64.b64encode(b"operator:secret").decode()
        config = json.dumps({"auths": {host: {"auth": auth}}}).encode()
        self._data = {".dockerconfigjson": base64.b64encode(config).decode()}

    def read(self, name: str) -> Any:
        self.asked.append(name)
        return {"data": self._data}


@pytest.mark.parametrize("namespace", ["", "a"])
@pytest.mark.parametrize("names_secret", [False, True])
def test_namespaced_policy_reads_without_the_operators_credentials(
    registry: Registry,
    tmp_path: Path,
    namespace: str,
    names_secret: bool,  # noqa: FBT001 - a column
) -> None:
    """Its expressions can read the configuration of images, even of private images."""
    secrets = Secrets(registry.image.partition("/")[0])
    settings = Settings(
        standalone=True,
        registry_allowlist="*,127.0.0.0/8",
        image_pull_secrets="pull",
    )
    served = served_images(
        settings, None, secrets.read, lambda _event: None, lambda _event: None
    )
    shows = {"expression": "getImageData(images.containers[0]).Digest != ''"}
    own: dict[str, Any] = {}
    if names_secret:
        own = {"credentials": {"secrets": ["pull"]}}
    found = compiled(policy("p", shows, namespace=namespace, **own))
    server = Server(found, tmp_path, served.policies)
    path = "/nivpol-keys/a/p" if namespace else "/ivpol/validate/p"
    response = server.ask(path, pod(registry.image))
    assert secrets.asked == ([] if namespace else ["pull"])
    if namespace and names_secret:
        assert "reads registries without credentials" in message(response)
    else:
        assert response["allowed"] is True


def created(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to the creation of the policy."""
    group, _, version = raw["apiVersion"].partition("/")
    request = {
        "uid": "u",
        "kind": {"group": group, "version": version, "kind": raw["kind"]},
        "resource": {"group": group, "version": version, "resource": ""},
        "operation": "CREATE",
        "name": raw["metadata"]["name"],
        "namespace": raw["metadata"].get("namespace", ""),
        "userInfo": {"username": "kim"},
        "object": raw,
    }
    body = json.dumps({"kind": "AdmissionReview", "request": request}).encode()
    answer = PolicyReview(ReviewOptions(), lambda: 0.0).answer("/policyvalidate", body)
    response: dict[str, Any] = json.loads(answer)["response"]
    return response


def test_policies_are_reviewed_with_upstreams_texts() -> None:
    assert created(policy())["allowed"] is True
    text = message(created(policy("p", {"expression": "1 + 1"})))
    assert text == (
        'spec.validations[0].expression: Invalid value: "1 + 1":'
        " output is expected to be of type bool"
    )
    calls = {"expression": 'http.Get("http://x") == "y"'}
    assert "allowHTTPInNamespacedPolicies" in message(
        created(policy("p", calls, namespace="a"))
    )
    assert created(policy("p", calls))["allowed"] is True
