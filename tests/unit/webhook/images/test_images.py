"""verifyImages rules at admission: both webhooks, with a registry behind HTTP."""

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.errors import DependencyError, ExpressionFailed
from kyverno_mp.images.cache import HIT, STORED
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.mutation_plan import MutationPlanner, link_mutation
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_patch import apply_patch
from kyverno_mp.webhook.images import served_images
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.lanes import Lane
from kyverno_mp.webhook.review.plans import SnapshotEvaluate, SnapshotMutate
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED, route_of
from tests.fuzz.bench import segment_of
from tests.image_rig import Contents, Repository, Signer, serving
from tests.unit.webhook.stub import StubRecords, review
from tests.waiting import HANG_NS, real_ns

ANNOTATION = "kyverno.io/verify-images"
SCOPED = "kyverno.io/verify-images-scoped"
LOOPBACK = "*,127.0.0.0/8"
Event = tuple[str, ...]


@pytest.fixture
def contents() -> Contents:
    return Contents()


@pytest.fixture
def host(contents: Contents) -> Iterator[str]:
    with serving(contents, is_canned=False) as found:
        yield found


def entry(signer: Signer) -> dict[str, Json]:
    keys = {"publicKeys": signer.pem, "rekor": {"ignoreTlog": True}}
    return {"entries": [{"keys": keys}]}


def policy(name: str, *blocks: Mapping[str, Json], **spec: Json) -> str:
    rule = {
        "name": "verify",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "verifyImages": list(blocks),
    }
    whole = {"validationFailureAction": "Enforce", "rules": [rule], **spec}
    return "---\n" + yaml.safe_dump(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": name},
            "spec": whole,
        }
    )


def block(host: str, *signers: Signer, **fields: Json) -> dict[str, Json]:
    return {
        "imageReferences": [f"{host}/*"],
        "attestors": [entry(signer) for signer in signers],
        **fields,
    }


def pod(*images: str, **annotations: str) -> dict[str, Json]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default", "annotations": annotations},
        "spec": {
            "containers": [
                {"name": f"c{number}", "image": image}
                for number, image in enumerate(images)
            ]
        },
    }


def scoped(
    reference: str, status: Json = "pass", policy: str = "/p", rule: str = "verify"
) -> dict[str, str]:
    """Return the annotation with one outcome, as Kyverno 1.19 writes it."""
    outcomes = {policy: {rule: {reference: status}}}
    return {SCOPED: json.dumps({"version": 1, "policies": outcomes})}


@dataclass
class Answered:
    allowed: bool
    message: str
    warnings: list[str]
    object: dict[str, Json]
    """The object after the patch."""

    @property
    def outcomes(self) -> Any:
        return json.loads(self.object["metadata"]["annotations"][ANNOTATION])

    @property
    def images(self) -> list[str]:
        return [one["image"] for one in self.object["spec"]["containers"]]


@dataclass
class Webhooks:
    """Both webhooks of one worker with the given policies."""

    policies: str
    folder: Path
    allowlist: str = LOOPBACK
    slow_lane: Lane | None = None
    image_lane: Lane | None = None
    dry_run_lane: Lane | None = None
    long_lane: Lane | None = None
    registries: Callable[[Iterable[str]], tuple[str, ...]] = tuple
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    cached: list[Event] = field(default_factory=list)
    calls: list[Event] = field(default_factory=list)
    records: StubRecords = field(default_factory=StubRecords)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        settings = Settings(
            standalone=True,
            registry_allowlist=self.allowlist,
            registry_first_byte_s=60.0,
        )
        served = served_images(
            settings, self.folder, None, self.cached.append, self.calls.append
        )
        ports = ClusterData(images=served.data, reviewed_images=served.begin)
        clock = Clock(now=self.now, monotonic_ns=real_ns)
        engine = Engine(ports, clock, threading.Lock())
        segment = segment_of(self.policies)
        validation = ValidationPlanner(engine, SegmentSource(segment, link_rule))
        mutation = MutationPlanner(engine, SegmentSource(segment, link_mutation))
        self.service = Service(
            Dependencies(
                records=self.records,
                monotonic_ns=real_ns,
                timeout_ns=HANG_NS,
                slow_lane=self.slow_lane,
                image_lane=self.image_lane,
                dry_run_lane=self.dry_run_lane,
                long_lane=self.long_lane,
                registries=self.registries,
            ),
            handlers_of(
                SnapshotEvaluate(lambda: validation), SnapshotMutate(lambda: mutation)
            ),
        )

    def ask(self, path: bytes, given: dict[str, Json], **changes: Json) -> Answered:
        answer = self.service.answer(SHARED[path], b"", review(object=given, **changes))
        assert isinstance(answer, bytes)
        return answered(answer, given)

    def ask_route(self, path: str, given: dict[str, Json]) -> Answered:
        route = route_of(path.encode())
        assert route is not None
        answer = self.service.answer(route, b"", review(object=given))
        assert isinstance(answer, bytes)
        return answered(answer, given)

    def mutate(self, given: dict[str, Json], **changes: Json) -> Answered:
        return self.ask(b"/mutate/fail", given, **changes)

    def validate(self, given: dict[str, Json], **changes: Json) -> Answered:
        return self.ask(b"/validate/fail", given, **changes)


def answered(answer: bytes, given: dict[str, Json]) -> Answered:
    response = json.loads(answer)["response"]
    patch = json.loads(base64.b64decode(response.get("patch", "W10=")))
    return Answered(
        response["allowed"],
        response.get("status", {}).get("message", ""),
        response.get("warnings") or [],
        apply_patch(given, patch) if patch else given,
    )


def signed(contents: Contents, signer: Signer, name: str = "app") -> str:
    """Push a signed image to the registry; return its digest."""
    repository = Repository(name)
    digest = repository.image()
    repository.sign(digest, signer)
    repository.load(contents)
    return digest


def test_signed_image_passes_both_webhooks(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    signer = Signer()
    digest = signed(contents, signer)
    webhooks = Webhooks(policy("p", block(host, signer)), tmp_path / "c")
    done = webhooks.mutate(pod(f"{host}/app:v1"))
    assert done.allowed
    assert done.images == [f"{host}/app:v1@{digest}"]
    assert done.outcomes == {f"{host}/app@{digest}": "pass"}
    assert webhooks.validate(done.object).allowed
    assert webhooks.records.errors == []


def test_foreign_signature_is_denied_with_upstreams_text(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    signed(contents, Signer())
    webhooks = Webhooks(policy("p", block(host, Signer())), tmp_path / "c")
    given = pod(f"{host}/app:v1")
    done = webhooks.mutate(given)
    assert not done.allowed
    assert done.object == given
    head = "resource Pod/default/web was blocked due to the following policies"
    assert done.message.startswith(f"\n\n{head} \n\np:\n  verify: ")
    assert f"failed to verify image {host}/app:v1: .attestors[0]" in done.message


def test_audited_failure_is_admitted_and_recorded(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    digest = signed(contents, Signer())
    audited = block(host, Signer(), failureAction="Audit", mutateDigest=False)
    webhooks = Webhooks(policy("p", audited), tmp_path / "c")
    done = webhooks.mutate(pod(f"{host}/app@{digest}"))
    assert done.allowed
    assert done.outcomes == {f"{host}/app@{digest}": "fail"}
    # The audit of the record delays nothing.
    assert webhooks.validate(done.object).allowed


def test_record_in_the_object_proves_nothing(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    digest = signed(contents, Signer())
    reference = f"{host}/app@{digest}"
    forged = {ANNOTATION: json.dumps({reference: "pass"})}
    audited = block(host, Signer(), failureAction="Audit", mutateDigest=False)
    webhooks = Webhooks(policy("p", audited), tmp_path / "c")
    assert webhooks.mutate(pod(reference, **forged)).outcomes == {reference: "fail"}


def test_unverified_image_is_denied_by_the_validating_webhook(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    digest = signed(contents, Signer())
    webhooks = Webhooks(policy("p", block(host, Signer())), tmp_path / "c")
    bare = webhooks.validate(pod(f"{host}/app@{digest}"))
    assert f"unverified image {host}/app@{digest}" in bare.message
    tagged = webhooks.validate(pod(f"{host}/app:v1"))
    assert f"missing digest for {host}/app:v1" in tagged.message
    assert webhooks.calls == []


def test_unchanged_image_is_not_read_again(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    digest = signed(contents, Signer())
    webhooks = Webhooks(policy("p", block(host, Signer())), tmp_path / "c")
    reference = f"{host}/app@{digest}"
    given = pod(reference, note="new")
    old = pod(reference, **scoped(reference))
    done = webhooks.mutate(given, operation="UPDATE", oldObject=old)
    assert done.allowed
    assert done.outcomes == {reference: "pass"}
    record = done.object["metadata"]["annotations"][SCOPED]
    assert json.loads(record) == json.loads(scoped(reference)[SCOPED])
    assert webhooks.calls == []
    assert webhooks.validate(done.object).allowed
    moved = webhooks.mutate(
        pod("docker.io/other:v1", reference), operation="UPDATE", oldObject=old
    )
    assert not moved.allowed


def test_record_of_an_admission_spares_the_update(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    """One rule writes the digest, the other's outcome was for the tag."""
    signer = Signer()
    signed(contents, signer)
    policies = policy("p", block(host, signer)) + policy(
        "q", block(host, signer, mutateDigest=False)
    )
    webhooks = Webhooks(policies, tmp_path / "c")
    old = webhooks.mutate(pod(f"{host}/app:v1")).object
    assert webhooks.validate(old).allowed
    webhooks.calls.clear()
    contents.answers.clear()
    done = webhooks.mutate(old, operation="UPDATE", oldObject=old)
    assert (done.allowed, done.object, webhooks.calls) == (True, old, [])


def test_unchanged_image_is_verified_by_each_rule_that_has_not(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    """Only the rule's own pass counts: of this policy, namespace, rule and image."""
    reference = f"{host}/app@{signed(contents, Signer())}"
    webhooks = Webhooks(policy("p", block(host, Signer())), tmp_path / "c")
    for record in (
        {},
        {ANNOTATION: json.dumps({reference: "pass"})},
        scoped(reference, policy="/q"),
        scoped(reference, policy="default/p"),
        scoped(reference, rule="other"),
        scoped(f"{host}/app:v1"),
        scoped(reference, "fail"),
        scoped(reference, ["pass"]),
        {SCOPED: json.dumps({"version": 2, "policies": {"/p": {"verify": 1}}})},
        {SCOPED: "{"},
    ):
        old = pod(reference, **record)
        done = webhooks.mutate(old, operation="UPDATE", oldObject=old)
        assert not done.allowed, record
        assert "failed to verify image" in done.message


def test_images_of_the_mutated_object_are_verified(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    """Mutation comes first: the rule verifies images that mutate rules have set."""
    signer = Signer()
    digest = signed(contents, signer)
    patch = (
        "---\napiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: z}\n"
        "spec:\n  rules:\n  - name: m\n"
        "    match: {any: [{resources: {kinds: [Pod]}}]}\n"
        "    mutate: {patchStrategicMerge: {spec: {containers: [{name: c0,"
        f' image: "{host}/app:v1"}}]}}}}}}\n'
    )
    webhooks = Webhooks(policy("p", block(host, signer)) + patch, tmp_path / "c")
    done = webhooks.mutate(pod("docker.io/library/nginx:1"))
    assert done.images == [f"{host}/app:v1@{digest}"]


def test_results_are_shared_until_the_tag_moves(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    signer = Signer()
    signed(contents, signer)
    policies = policy("p", block(host, signer))
    first = Webhooks(policies, tmp_path / "c")
    second = Webhooks(policies, tmp_path / "c")
    assert first.mutate(pod(f"{host}/app:v1")).allowed
    assert (STORED,) in first.cached
    signatures = len(first.calls)
    assert second.mutate(pod(f"{host}/app:v1")).allowed
    assert second.cached == [(HIT,)]
    # Requests for the scheme and the tag, but not for a signature.
    assert len(second.calls) == signatures - 2
    moved = Repository("app")
    moved.image(salt="moved")
    moved.load(contents)
    denied = second.mutate(pod(f"{host}/app:v1"))
    assert "no signatures found" in denied.message


@pytest.mark.parametrize("what", ["key", "annotations", "repository", "cache"])
def test_result_is_bound_to_the_whole_attestor(
    contents: Contents, host: str, tmp_path: Path, what: str
) -> None:
    signer = Signer()
    signed(contents, signer)
    Webhooks(policy("p", block(host, signer)), tmp_path / "c").mutate(
        pod(f"{host}/app:v1")
    )
    changed = {
        "key": block(host, Signer()),
        "annotations": block(host, signer, annotations={"a": "b"}),
        "repository": block(host, signer, repository=f"{host}/other"),
        "cache": block(host, signer, useCache=False),
    }[what]
    other = Webhooks(policy("p", changed), tmp_path / "c")
    assert other.mutate(pod(f"{host}/app:v1")).allowed is (what == "cache")
    assert (HIT,) not in other.cached


def test_conditions_are_evaluated_on_cached_statements(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    signer, repository = Signer(), Repository("app")
    repository.attest(repository.image(), signer, "t", {"level": 3})
    repository.load(contents)

    def wanting(level: int) -> str:
        condition = {
            "key": "{{ level }}",
            "operator": "GreaterThanOrEquals",
            "value": level,
        }
        attestation = {
            "type": "t",
            "attestors": [entry(signer)],
            "conditions": [{"all": [condition]}],
        }
        given = {"imageReferences": [f"{host}/*"], "attestations": [attestation]}
        return policy("p", given)

    assert Webhooks(wanting(3), tmp_path / "c").mutate(pod(f"{host}/app:v1")).allowed
    strict = Webhooks(wanting(4), tmp_path / "c")
    done = strict.mutate(pod(f"{host}/app:v1"))
    assert strict.cached == [(HIT,)]
    assert "attestation checks failed" in done.message


def test_loopback_is_closed_unless_named(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    signer = Signer()
    signed(contents, signer)
    policies = policy("p", block(host, signer))
    webhooks = Webhooks(policies, tmp_path / "c", allowlist="*")
    done = webhooks.mutate(pod(f"{host}/app:v1"))
    assert not done.allowed
    assert "calls to 127.0.0.1 are not allowed" in done.message


@pytest.mark.parametrize("fails", [True, False])
def test_unavailable_registry_is_an_error(
    tmp_path: Path,
    fails: bool,  # noqa: FBT001 - a parameter
) -> None:
    policies = policy(
        "p",
        block("127.0.0.1:1", Signer()),
        failurePolicy="Fail" if fails else "Ignore",
    )
    webhooks = Webhooks(policies, tmp_path / "c")
    path = b"/mutate/fail" if fails else b"/mutate/ignore"
    done = webhooks.ask(path, pod("127.0.0.1:1/app@sha256:" + "0" * 64))
    assert done.allowed is not fails
    if not fails:
        assert list(done.outcomes.values()) == ["fail"]


def test_skipped_images_cause_a_warning(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    signed(contents, Signer())
    skips = block(host, Signer(), skipImageReferences=[f"{host}/app*"])
    webhooks = Webhooks(policy("p", skips), tmp_path / "c")
    done = webhooks.mutate(pod(f"{host}/app:v1"))
    (warning,) = done.warnings
    image = f"image {host}/app:v1"
    assert warning == (
        f"policy p.verify: skipping image reference {image}, policy p ruleName verify"
    )


def test_one_verification_for_many_pods(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    signer = Signer()
    digest = signed(contents, signer)
    webhooks = Webhooks(policy("p", block(host, signer)), tmp_path / "c")
    given = pod(f"{host}/app@{digest}")

    async def ask_all() -> list[bool]:
        loop = asyncio.get_running_loop()
        lane = Lane(loop, 8, 64, real_ns)
        many = Webhooks(
            policy("p", block(host, signer)),
            tmp_path / "c",
            slow_lane=lane,
            image_lane=lane,
            cached=webhooks.cached,
        )
        futures = [
            many.service.answer(SHARED[b"/mutate/fail"], b"", review(object=given))
            for _ in range(40)
        ]
        answers = [await one for one in futures if not isinstance(one, bytes)]
        lane.stop()
        return [answered(one, given).allowed for one in answers]

    assert asyncio.run(ask_all()) == [True] * 40
    assert webhooks.cached.count((STORED,)) == 1


@pytest.mark.parametrize("is_tenants", [False, True])
def test_registry_allowlist_opens_no_transparency_log(
    contents: Contents,
    host: str,
    tmp_path: Path,
    is_tenants: bool,  # noqa: FBT001 - a parameter
) -> None:
    """The policy's author names the log, which receives a POST."""
    signer = Signer()
    signed(contents, signer)
    rekor = {"url": f"http://{host}", "pubkey": signer.pem}
    keys = {"publicKeys": signer.pem, "rekor": rekor, "ctlog": {"ignoreSCT": True}}
    asked = block(host, attestors=[{"entries": [{"keys": keys}]}])
    document = yaml.safe_load(policy("p", asked).removeprefix("---\n"))
    if is_tenants:
        document["kind"] = "Policy"
        document["metadata"]["namespace"] = "default"
    webhooks = Webhooks("---\n" + yaml.safe_dump(document), tmp_path / "c")
    done = webhooks.mutate(pod(f"{host}/app:v1"))
    assert not done.allowed
    assert "calls to 127.0.0.1 are not allowed without TLS" in done.message
    path = f"http://{host}/api"
    rekor["url"] = path
    document["spec"]["rules"][0]["verifyImages"][0] = asked
    webhooks = Webhooks("---\n" + yaml.safe_dump(document), tmp_path / "d")
    done = webhooks.mutate(pod(f"{host}/app:v1"))
    assert ("has no path" in done.message) is is_tenants


def test_redirect_cannot_read_another_servers_page(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    """The author of a Pod may run the registry, and can read the denial."""
    other = Contents()
    other.answers["GET", "/debug"] = (403, {}, b"root:hunter2")
    with serving(other, is_canned=False) as internal:
        moved = {"Location": f"http://{internal}/debug"}
        contents.answers["GET", "/v2/app/manifests/v1"] = (302, moved, b"")
        webhooks = Webhooks(policy("p", block(host, Signer())), tmp_path / "c")
        done = webhooks.mutate(pod(f"{host}/app:v1"))
    assert "unexpected status code 403 Forbidden" in done.message
    assert "hunter2" not in done.message
    # The registry's own message is shown.
    contents.answers["GET", "/v2/app/manifests/v1"] = (403, {}, b"ask the owner")
    own = webhooks.mutate(pod(f"{host}/app:v1"))
    assert "ask the owner" in own.message


@pytest.mark.parametrize("status", [403, 404])
def test_failed_tag_is_read_once(
    contents: Contents, host: str, tmp_path: Path, status: int
) -> None:
    contents.answers["GET", "/v2/app/manifests/v1"] = (status, {}, b"")
    blocks = [block(host, Signer()), block(host, Signer())]
    webhooks = Webhooks(policy("p", *blocks), tmp_path / "c")
    for number in (1, 2):
        assert not webhooks.mutate(pod(f"{host}/app:v1")).allowed
        # Another review reads the registry again.
        assert webhooks.calls.count(("other", str(status))) == number


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "other"),
        ({"registry_allowlist": f"{LOOPBACK},localhost"}, "localhost"),
        ({"http_allowlist": "localhost"}, "localhost"),
        ({"http_allowlist": "*,local*"}, "other"),
        ({"enable_tuf": True, "tuf_mirror": "http://localhost/tuf"}, "localhost"),
        ({"tuf_mirror": "http://localhost/tuf"}, "other"),
        ({"enable_tuf": True, "tuf_root": "http://localhost/root.json"}, "localhost"),
        ({"enable_tuf": True, "tuf_root": "/etc/root.json"}, "other"),
        ({"enable_tuf": True, "tuf_root": "http://[localhost"}, "other"),
    ],
)
def test_metrics_name_hosts_from_the_settings(
    host: str, tmp_path: Path, changes: dict[str, Any], label: str
) -> None:
    """Even without a successful response, so that the alert sees their outages."""
    given: dict[str, Any] = {"registry_allowlist": LOOPBACK, **changes}
    settings = Settings(standalone=True, **given)
    calls: list[Event] = []
    served = served_images(settings, tmp_path, None, on_call=calls.append)
    image = f"localhost:{host.rpartition(':')[2]}/missing:v1"
    with pytest.raises((ExpressionFailed, DependencyError)):
        served.data.image_data(image, 0)
    assert {called for called, _ in calls} == {label}
