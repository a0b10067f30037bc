"""``apply`` and ``test`` verify images, and no policy or image can bypass this."""

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp import limits
from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.images.verifier import ImageReview
from kyverno_mp.ir.rules import ImageBlockIR, PolicyIR, VerifyImagesIR
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.images.outcomes import ImageCheckBody
from kyverno_mp.program.ports import OFFLINE, SignatureQuery
from kyverno_mp.program.request import Request
from tests.image_rig import (
    Contents,
    Repository,
    Signer,
    digest_of,
    payload_for,
    serving,
)
from tests.unit.cli.conftest import Command

ANNOTATION = "kyverno.io/verify-images"
SCOPED = "kyverno.io/verify-images-scoped"


class Rig:
    """A registry in this process, with a signer and a policy for it."""

    def __init__(self, host: str, contents: Contents, folder: Path) -> None:
        self.host = host
        self.contents = contents
        self.signer = Signer()
        self.folder = folder

    def keys(self, signer: Signer | None = None, **given: Any) -> dict[str, Any]:
        pem = (signer or self.signer).pem
        keys = {"publicKeys": pem, "rekor": {"ignoreTlog": True}, **given}
        return {"entries": [{"keys": keys}]}

    def signed(self, name: str, signer: Signer | None = None) -> str:
        repository = Repository(name)
        digest = repository.image()
        repository.sign(digest, signer or self.signer)
        repository.load(self.contents)
        return digest

    def policy(self, **block: Any) -> Path:
        given = {
            "imageReferences": [f"{self.host}/*"],
            "attestors": [self.keys()],
            **block,
        }
        rule = {
            "name": "verify",
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
            "verifyImages": [given],
        }
        file = self.folder / "policy.yaml"
        text = {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "signed"},
            "spec": {"validationFailureAction": "Enforce", "rules": [rule]},
        }
        file.write_text(yaml.safe_dump(text))
        return file

    def pod(self, *images: str, **annotations: str) -> Path:
        file = self.folder / "pod.yaml"
        containers = [{"name": f"c{i}", "image": one} for i, one in enumerate(images)]
        metadata = {"name": "web", "namespace": "d", "annotations": annotations}
        file.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": metadata,
                    "spec": {"containers": containers},
                }
            )
        )
        return file


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    contents = Contents()
    with serving(contents, is_canned=False) as host:
        yield Rig(host, contents, tmp_path)


def rows(
    command: Command, policy: Path, pod: Path, *options: str
) -> list[tuple[str, str]]:
    done = command("apply", policy, "-r", pod, "-p", *options)
    report = yaml.safe_load(done.out[done.out.find("apiVersion:") :])
    results = (report or {}).get("results") or []
    found = [(row["result"], row.get("message", "")) for row in results]
    assert done.code == int(any(status in ("fail", "error") for status, _ in found))
    return sorted(found)


def test_signed_image_passes_twice(command: Command, rig: Rig) -> None:
    rig.signed("app")
    found = rows(command, rig.policy(), rig.pod(f"{rig.host}/app:v1"))
    assert found == [
        ("pass", "image verified"),
        ("pass", f"verified image signatures for {rig.host}/app:v1"),
    ]


def test_later_policies_see_the_annotation_of_1_18_only(
    command: Command, rig: Rig
) -> None:
    """Test files compare objects with it; a record from the file is removed."""
    digest = rig.signed("app")
    file = rig.policy()
    probe = yaml.safe_load(file.read_text())
    probe["metadata"]["name"] = "probe"
    probe["spec"]["rules"] = [
        {
            "name": "show",
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
            "validate": {
                "message": "{{ to_string(request.object.metadata.annotations) }}",
                "deny": {},
            },
        }
    ]
    file.write_text(yaml.safe_dump_all([yaml.safe_load(file.read_text()), probe]))
    pod = rig.pod(f"{rig.host}/app:v1", **{SCOPED: "{}"})
    found = rows(command, file, pod)
    (seen,) = (message for status, message in found if status == "fail")
    reference = f"{rig.host}/app@{digest}"
    assert json.loads(seen) == {
        ANNOTATION: json.dumps({reference: "pass"}).replace(" ", "")
    }
    assert ("pass", "image verified") in found


def test_digest_of_one_rule_hides_no_image_from_the_next(
    command: Command, rig: Rig
) -> None:
    """The second rule names a tag that the first rule replaces in the object."""
    rig.signed("app")
    file = rig.policy()
    policy = yaml.safe_load(file.read_text())
    second = json.loads(json.dumps(policy["spec"]["rules"][0]))
    second["name"] = "prod"
    block = second["verifyImages"][0]
    block["imageReferences"] = [f"{rig.host}/app:v*"]
    block["attestors"] = [rig.keys(Signer())]
    policy["spec"]["rules"].append(second)
    file.write_text(yaml.safe_dump(policy))
    found = rows(command, file, rig.pod(f"{rig.host}/app:v1"))
    failed = [text for status, text in found if status == "fail"]
    assert any(
        text.startswith(f"failed to verify image {rig.host}/app:v1: ")
        for text in failed
    ), found


def test_update_excuses_no_existing_violation(command: Command, rig: Rig) -> None:
    """``allowExistingViolations`` applies only to validate rules."""
    policy = rig.policy(attestors=[], mutateDigest=False, required=False)
    pod = rig.pod(f"{rig.host}/app:v1")
    found = rows(command, policy, pod, "--set", "request.operation=UPDATE")
    assert found == [("fail", f"missing digest for {rig.host}/app:v1")]


_HUGE = b" " * (limits.REGISTRY_MANIFEST_BYTES_MAX + 1)


@pytest.mark.parametrize(
    "answer",
    [
        (200, {}, _HUGE),
        (302, {"Location": "ftp://elsewhere/x"}, b""),
    ],
    ids=["size", "url"],
)
def test_one_registry_answer_hides_no_failure(
    command: Command, rig: Rig, answer: tuple[int, dict[str, str], bytes]
) -> None:
    rig.signed("app", Signer())
    rig.contents.answers["GET", "/v2/odd/manifests/v1"] = answer
    bad, odd = f"{rig.host}/app:v1", f"{rig.host}/odd:v1"
    found = rows(command, rig.policy(mutateDigest=False), rig.pod(bad, odd))
    texts = [text for status, text in found if status == "fail"]
    for image in (bad, odd):
        start = f"failed to verify image {image}: .attestors[0].entries[0].keys: "
        assert any(text.startswith(start) for text in texts), found


def test_exhausted_budget_hides_no_failure(
    command: Command, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.signed("app", Signer())
    rig.signed("late")
    read = ImageReview.verify

    def verify(self: ImageReview, asked: SignatureQuery, deadline_ns: int) -> str:
        if "late" in asked.image:
            raise BudgetExceeded("expr.budget", "no steps left")
        return read(self, asked, deadline_ns)

    monkeypatch.setattr(ImageReview, "verify", verify)
    images = [f"{rig.host}/{one}:v1" for one in ("app", "late")]
    found = rows(command, rig.policy(mutateDigest=False), rig.pod(*images))
    start = f"failed to verify image {images[0]}: "
    assert any(text.startswith(start) and one == "fail" for one, text in found)
    assert ("error", "no steps left") in found


def test_containers_with_the_same_name_are_all_verified(
    command: Command, rig: Rig
) -> None:
    rig.signed("app")
    rig.signed("bad", Signer())
    file = rig.pod(f"{rig.host}/bad:v1", f"{rig.host}/app:v1")
    file.write_text(file.read_text().replace("name: c1", "name: c0"))
    found = rows(command, rig.policy(), file)
    start = f"failed to verify image {rig.host}/bad:v1: "
    assert any(text.startswith(start) and one == "fail" for one, text in found)


@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
@pytest.mark.parametrize("key", ["a/b", "a~1b", "9" * 5000])
def test_image_under_any_key_gets_its_digest(
    command: Command,
    rig: Rig,
    key: str,
    operation: str,
    verified: bool,  # noqa: FBT001 - a parameter
) -> None:
    rig.signed("app")
    file = rig.policy()
    policy = yaml.safe_load(file.read_text())
    (rule,) = policy["spec"]["rules"]
    rule["match"] = {"any": [{"resources": {"kinds": ["Task"]}}]}
    rule["imageExtractors"] = {"Task": [{"path": "/spec/steps/*/image"}]}
    file.write_text(yaml.safe_dump(policy))
    task = rig.folder / "task.yaml"
    steps = {key: {"image": f"{rig.host}/app:v1"}}
    record = {
        "version": 1,
        "policies": {"/signed": {rule["name"]: {f"{rig.host}/app:v1": "pass"}}},
    }
    annotations = {SCOPED: json.dumps(record)} if verified else {}
    task.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "e.com/v1",
                "kind": "Task",
                "metadata": {"name": "t", "annotations": annotations},
                "spec": {"steps": steps},
            }
        )
    )
    found = rows(command, file, task, "--set", f"request.operation={operation}")
    if operation == "CREATE" or not verified:
        text = f"verified image signatures for {rig.host}/app:v1"
        assert found == [("pass", "image verified"), ("pass", text)]
    else:
        # The old object has the same image, verified by the rule: not again.
        assert found == [("fail", f"missing digest for {rig.host}/app:v1")]


def test_outcomes_of_rules_are_separate(command: Command, rig: Rig) -> None:
    digest = rig.signed("app", Signer())
    file = rig.policy()
    policy = yaml.safe_load(file.read_text())
    (rule,) = policy["spec"]["rules"]
    skips = json.loads(json.dumps(rule))
    skips["name"] = "skips"
    skips["verifyImages"][0]["skipImageReferences"] = ["*"]
    policy["spec"]["rules"].append(skips)
    file.write_text(yaml.safe_dump(policy))
    found = rows(command, file, rig.pod(f"{rig.host}/app:v1"))
    failed = ("fail", f"unverified image {rig.host}/app@{digest}")
    skipped = f"image skipped, skipped images: {rig.host}/app@{digest}"
    assert found.count(failed) == 1
    assert ("skip", skipped) in found


def test_delete_has_no_response(command: Command, rig: Rig) -> None:
    rig.signed("app", Signer())
    pod = rig.pod(f"{rig.host}/app:v1")
    assert rows(command, rig.policy(), pod, "--set", "request.operation=DELETE") == []


@pytest.mark.parametrize("options", [(), ("-p",)], ids=["fast", "explained"])
def test_no_image_means_no_result_with_any_preconditions(
    command: Command, rig: Rig, options: tuple[str, ...]
) -> None:
    file = rig.policy()
    policy = yaml.safe_load(file.read_text())
    key = "{{request.operation}}"
    condition = {"key": key, "operator": "Equals", "value": "CONNECT"}
    policy["spec"]["rules"][0]["preconditions"] = {"all": [condition]}
    file.write_text(yaml.safe_dump(policy))
    done = command("apply", file, "-r", rig.pod("elsewhere.io/app:v1"), *options)
    assert done.code == 0
    # The output is the summary or the report.
    assert ("skip: 0" in done.out) or ("skip" not in done.out)


@pytest.mark.parametrize("status", [["pass"], {"pass": 1}, 1, None])
def test_record_of_any_type_proves_nothing(status: object) -> None:
    digest = digest_of(b"image")
    image = f"r.io/app@{digest}"
    record = {"version": 1, "policies": {"/p": {"r": {image: status}}}}
    metadata = {"annotations": {SCOPED: json.dumps(record)}}
    block = ImageBlockIR(parse_document({}), references=("*",))
    ir = VerifyImagesIR((block,))
    pod: dict[str, Any] = {"kind": "Pod", "metadata": metadata}
    pod["spec"] = {"containers": [{"name": "c", "image": image}]}
    runtime = Runtime(
        now=lambda: datetime(2026, 1, 2, tzinfo=UTC), monotonic_ns=lambda: 0
    )
    scope = RequestContext(Request(object=pod), OFFLINE, runtime).rule_scope("r")
    (found,) = ImageCheckBody(ir, PolicyIR("ClusterPolicy", "p"), "r").explain(
        scope, pod
    )
    assert (found.status, found.message) == ("fail", f"unverified image {image}")


def test_predicates_of_one_image_do_not_apply_to_the_next(
    command: Command, rig: Rig
) -> None:
    for name, predicate in (("one", {"author": "alice"}), ("two", {"other": "x"})):
        repository = Repository(name)
        kind = "https://e.com/review"
        repository.attest(repository.image(), rig.signer, kind, predicate)
        repository.load(rig.contents)
    condition = {"key": "{{ review.author }}", "operator": "Equals", "value": "alice"}
    attestation = {
        "type": "https://e.com/review",
        "attestors": [rig.keys()],
        "conditions": [{"all": [condition]}],
    }
    first = {**attestation, "name": "review"}
    given = {"attestors": [], "mutateDigest": False, "verifyDigest": False}
    file = rig.policy(**given, required=False, attestations=[first])
    policy = yaml.safe_load(file.read_text())
    blocks = policy["spec"]["rules"][0]["verifyImages"]
    # The second block has no name for the predicate, so no attestation is "review".
    blocks.append({**blocks[0], "attestations": [attestation]})
    file.write_text(yaml.safe_dump(policy))
    found = rows(command, file, rig.pod(f"{rig.host}/one:v1"))
    assert {status for status, _ in found} == {"pass", "fail"}


def test_unknown_signer_fails(command: Command, rig: Rig) -> None:
    digest = rig.signed("app", Signer())
    found = rows(command, rig.policy(), rig.pod(f"{rig.host}/app:v1"))
    reason = (
        ".attestors[0].entries[0].keys: no matching signatures: invalid signature when"
        " validating ASN.1 encoded signature"
    )
    assert found == [
        ("fail", f"failed to verify image {rig.host}/app:v1: {reason}"),
        ("fail", f"unverified image {rig.host}/app@{digest}"),
    ]


def test_one_invalid_reference_does_not_disable_verification(
    command: Command, rig: Rig
) -> None:
    """With a bad reference, upstream finds no image in the object and has no result."""
    rig.signed("app")
    found = rows(command, rig.policy(), rig.pod(f"{rig.host}/app:v1", "Bad Image!!"))
    assert {status for status, _ in found} == {"error"}
    assert "failed to extract images: invalid image 'Bad Image!!'" in found[0][1]


def test_user_annotation_proves_nothing(command: Command, rig: Rig) -> None:
    digest = rig.signed("app", Signer())
    image = f"{rig.host}/app@{digest}"
    forged = {ANNOTATION: json.dumps({image: "pass"})}
    policy = rig.policy(attestors=[], mutateDigest=False)
    found = rows(command, policy, rig.pod(image, **forged))
    assert found == [("fail", f"unverified image {image}")]


def test_moving_tag_is_resolved_once(command: Command, rig: Rig) -> None:
    """The digest written into the object is the verified digest."""
    verified = rig.signed("app")
    other = Repository("app")
    moved = other.image(salt="other")
    answers = rig.contents.answers
    path = ("GET", "/v2/app/manifests/v1")
    first = answers[path]
    other.load(rig.contents)
    second = answers[path]
    assert digest_of(second[2]) == moved != verified
    rig.contents.once[path] = first
    probe = rig.folder / "probe.yaml"
    text = rig.policy().read_text()
    rule = {
        "name": "show",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "validate": {
            "message": "{{ request.object.spec.containers[0].image }}",
            "deny": {},
        },
    }
    shown = yaml.safe_load(text)
    shown["metadata"]["name"], shown["spec"]["rules"] = "probe", [rule]
    probe.write_text(f"{text}---\n{yaml.safe_dump(shown)}")
    found = rows(command, probe, rig.pod(f"{rig.host}/app:v1"))
    assert ("fail", f"{rig.host}/app:v1@{verified}") in found
    assert moved not in str(found)


def test_unverified_images_never_pass(command: Command, rig: Rig) -> None:
    rig.signed("app")
    policy = rig.policy(attestations=[{"type": "t"}], additionalExtensions={"a": "b"})
    found = rows(command, policy, rig.pod(f"{rig.host}/app:v1"))
    assert [status for status, _ in found] == ["error"]
    assert "is not evaluated by this version" in found[0][1]


def test_unavailable_registry_is_an_error(command: Command, rig: Rig) -> None:
    policy = rig.policy(imageReferences=["*"], mutateDigest=False, verifyDigest=False)
    found = rows(command, policy, rig.pod("127.0.0.1:1/app:v1"))
    assert found[0][0] == "error"
    assert found[0][1].startswith("failed to verify image 127.0.0.1:1/app:v1: ")


@pytest.mark.parametrize(("author", "status"), [("alice", "pass"), ("bob", "fail")])
def test_conditions_are_evaluated_on_attestations(
    command: Command, rig: Rig, author: str, status: str
) -> None:
    repository = Repository("app")
    digest = repository.image()
    repository.attest(digest, rig.signer, "https://e.com/review", {"author": author})
    repository.load(rig.contents)
    condition = {"key": "{{ author }}", "operator": "Equals", "value": "alice"}
    attestation = {
        "type": "https://e.com/review",
        "attestors": [rig.keys()],
        "conditions": [{"all": [condition]}],
    }
    policy = rig.policy(
        attestors=[],
        attestations=[attestation],
        mutateDigest=False,
        verifyDigest=False,
        required=False,
    )
    found = rows(command, policy, rig.pod(f"{rig.host}/app:v1"))
    assert [one for one, _ in found] == [status]


def _attested(
    command: Command,
    rig: Rig,
    signer: Signer,
    attestors: list[dict[str, Any]] | None,
    block: list[dict[str, Any]],
    others: tuple[Signer, ...] = (),
) -> list[tuple[str, str]]:
    """Return the rows for an image whose attestation ``signer`` has signed.

    ``others`` have signed the image, but not the attestation.
    """
    repository = Repository("app")
    digest = repository.image()
    payload = payload_for(digest)
    signatures = [base64.b64encode(s.sign(payload)) for s in (rig.signer, *others)]
    repository.attach(digest, "sig", [(payload, s.decode()) for s in signatures])
    repository.attest(digest, signer, "https://e.com/review", {"author": "alice"})
    repository.load(rig.contents)
    attestation: dict[str, Any] = {"type": "https://e.com/review"}
    if attestors is not None:
        attestation["attestors"] = attestors
    policy = rig.policy(
        attestors=block,
        attestations=[attestation],
        mutateDigest=False,
        verifyDigest=False,
        required=False,
    )
    return rows(command, policy, rig.pod(f"{rig.host}/app:v1"))


@pytest.mark.parametrize("attestors", [None, []])
def test_an_attestation_without_attestors_has_those_of_its_block(
    command: Command, rig: Rig, attestors: list[dict[str, Any]] | None
) -> None:
    found = _attested(command, rig, rig.signer, attestors, [rig.keys()])
    assert [status for status, _ in found] == ["pass"]
    found = _attested(command, rig, Signer(), attestors, [rig.keys()])
    assert [status for status, _ in found] == ["fail"]
    assert "image attestations verification failed, verifiedCount: 0" in found[0][1]
    # As for the image itself, all keys of a text without a count have to sign.
    other = Signer()
    both = rig.keys()
    both["entries"][0]["keys"]["publicKeys"] += other.pem
    one_of = {**both, "count": 1}
    found = _attested(command, rig, rig.signer, attestors, [one_of], (other,))
    assert [status for status, _ in found] == ["pass"]
    found = _attested(command, rig, rig.signer, attestors, [both], (other,))
    assert [status for status, _ in found] == ["fail"]
    assert "verifiedCount: 1, requiredCount: 2" in found[0][1]


def test_an_attestation_that_nobody_has_to_sign_fails(
    command: Command, rig: Rig
) -> None:
    """Upstream accepts any keyless signer."""
    found = _attested(command, rig, rig.signer, None, [])
    text = ".attestations[0]: neither the attestation nor its block has attestors"
    assert [status for status, _ in found] == ["fail"]
    assert found[0][1].endswith(text)


@pytest.mark.parametrize(
    ("count", "depth", "status"),
    [(1, 1, "pass"), (2, 1, "fail"), (None, 1, "fail"), (1, 3, "pass")],
)
def test_nested_sets_count_in_attestations(
    command: Command, rig: Rig, count: int | None, depth: int, status: str
) -> None:
    other = rig.keys(Signer())["entries"]
    nested: dict[str, Any] = {"entries": rig.keys()["entries"] + other}
    if count is not None:
        nested["count"] = count
    for _ in range(depth):
        nested = {"entries": [{"attestor": nested}]}
    found = _attested(command, rig, rig.signer, [nested], [])
    assert [one for one, _ in found] == [status]
    found = _attested(command, rig, Signer(), [nested], [])
    assert [one for one, _ in found] == ["fail"]


def test_too_many_signatures_are_not_read(command: Command, rig: Rig) -> None:
    repository = Repository("app")
    digest = repository.image()
    layers = [(b"{}", "")] * (limits.IMAGE_SIGNATURES_MAX + 1)
    repository.attach(digest, "sig", layers)
    repository.load(rig.contents)
    found = rows(command, rig.policy(), rig.pod(f"{rig.host}/app:v1"))
    assert f"more than {limits.IMAGE_SIGNATURES_MAX} signatures" in found[0][1]


def test_oversized_signatures_are_not_read(command: Command, rig: Rig) -> None:
    repository = Repository("app")
    digest = repository.image()
    count = limits.IMAGE_SIGNATURE_BYTES_MAX // limits.REGISTRY_BLOB_BYTES_MAX + 1
    data = b" " * limits.REGISTRY_BLOB_BYTES_MAX
    repository.attach(digest, "sig", [(data, "")] * count)
    repository.load(rig.contents)
    found = rows(command, rig.policy(), rig.pod(f"{rig.host}/app:v1"))
    text = f"payloads of more than {limits.IMAGE_SIGNATURE_BYTES_MAX} bytes"
    assert text in found[0][1]


def test_verify_images_test_files(command: Command, rig: Rig) -> None:
    rig.signed("app")
    rig.policy()
    rig.pod(f"{rig.host}/app:v1")
    (rig.folder / "kyverno-test.yaml").write_text(
        """
apiVersion: cli.kyverno.io/v1alpha1
kind: Test
metadata: {name: t}
policies: [policy.yaml]
resources: [pod.yaml]
results:
- {policy: signed, rule: verify, kind: Pod, resources: [web], result: pass}
"""
    )
    done = command("test", rig.folder)
    assert done.code == 0, done.out
