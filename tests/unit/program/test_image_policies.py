"""ImageValidatingPolicies, from documents to verdicts.

Expected: docs/behaviour/cel 10.4, docs/behaviour/images 8. A failure means: an image
passes that no attestor of the policy has signed.
"""

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.compiler.cel_kinds.image_validating_policy import compile_image_policy
from kyverno_mp.errors import DeadlinePassed, ExpressionFailed, RegistryUnavailable
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.policy.cel_kinds.image_validating_policy import decode_image_policy
from kyverno_mp.policy.cel_kinds.validating_policy import decode_validating_policy
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.image_policies.evaluate import LinkedImagePolicy
from kyverno_mp.program.image_policies.ports import (
    AttestorQuery,
    CosignQuery,
    ImageQuery,
    NotaryQuery,
)
from kyverno_mp.program.image_policies.scope import Images
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.program.request import Request
from kyverno_mp.program.validating_policy.scope import Facts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLURALS = {
    "Pod": ("v1", "pods"),
    "CronJob": ("batch/v1", "cronjobs"),
    "Deployment": ("apps/v1", "deployments"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "Task": ("e.com/v1", "tasks"),
}
KEY = {"name": "key", "cosign": {"key": {"data": "good"}}}
BAD = {"name": "bad", "cosign": {"key": {"data": "bad"}}}
AWAY = {"name": "away", "cosign": {"key": {"data": "away"}}}
NOTARY = {"name": "notary", "notary": {"certs": {"value": "good"}}}
SBOM = {"name": "sbom", "referrer": {"type": "sbom/example"}}
REVIEW = {"name": "review", "intoto": {"type": "https://example.com/review"}}
ATTESTED = "verifyAttestationSignatures('a', attestations.review, [attestors.key]) > 0"
ARTEFACT = "verifyAttestationSignatures('a', attestations.sbom, [attestors.notary]) > 0"
SIGNED = "images.containers.all(i, verifyImageSignatures(i, [attestors.key]) > 0)"


def workflow(trusted_root: Any = None, **identity: str) -> dict[str, Any]:
    """Return an attestor by the identity of a workflow, or of a person."""
    keyless = {
        "identities": [
            {"issuer": "https://ci.example", **identity},
            {"subject": "ci@example.com"},
        ],
        "additionalExtensions": {"githubWorkflowName": "x"},
    }
    cosign: dict[str, Any] = {"keyless": keyless}
    if trusted_root is not None:
        cosign["trustedRoot"] = trusted_root
    return {"name": "key", "cosign": cosign}


class Registry:
    """Signatures by the key ``good`` on all images.

    ``read`` lists the reads from a registry. A review reads an image once, even if
    several policies use it.
    """

    def __init__(self) -> None:
        self.read: list[ImageQuery] = []

    def data(self, asked: ImageQuery, _deadline_ns: int) -> Mapping[str, Any]:
        if asked not in self.read:
            self.read.append(asked)
        if "gone" in asked.image:
            raise ExpressionFailed("image.not_found", "GET x: MANIFEST_UNKNOWN")
        names = ("resolvedImage", "registry", "repository", "tag", "digest")
        return {
            **dict.fromkeys((*names, "identifier"), "x"),
            "image": asked.image,
            "imageIndex": None,
            "manifest": {"schemaVersion": 2, "layers": [{"size": 3}]},
            "config": {"os": "linux", "config": {"User": "1000"}},
        }

    def at_once(self, parts: Sequence[Callable[[], None]], _deadline_ns: int) -> None:
        for part in parts:
            part()

    def verify(
        self, _asked: ImageQuery, attestor: AttestorQuery, _deadline_ns: int
    ) -> None:
        given = attestor.key if isinstance(attestor, CosignQuery) else "good"
        if given == "away":
            raise RegistryUnavailable("registry.away", "no answer")
        if given == "late":
            raise DeadlinePassed("images.deadline", "late")
        if given != "good":
            raise ExpressionFailed("image.signature", "no matching signatures")

    def statements(
        self, asked: ImageQuery, attestor: CosignQuery, kind: str, deadline_ns: int
    ) -> Sequence[tuple[str, Any]]:
        self.verify(asked, attestor, deadline_ns)
        return [(kind, {"predicate": {"n": 1}}), (kind, {"predicate": {"n": 2}})]

    def referrer(
        self, _asked: ImageQuery, _attestor: NotaryQuery, _kind: str, _deadline_ns: int
    ) -> str:
        return "sha256:1"

    def document(self, _asked: ImageQuery, digest: str, _deadline_ns: int) -> Any:
        return {"digest": digest}


def document(*validations: str, namespace: str = "", **spec: Any) -> Any:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    given = {
        "matchConstraints": {"resourceRules": [rule]},
        "attestors": [KEY, BAD, AWAY, NOTARY],
        "attestations": [SBOM, REVIEW],
        "validations": [{"expression": one} for one in validations],
        **spec,
    }
    kind = f"{'Namespaced' if namespace else ''}ImageValidatingPolicy"
    metadata = {"name": "p", **({"namespace": namespace} if namespace else {})}
    raw = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": kind,
        "metadata": metadata,
        "spec": given,
    }
    return decode_image_policy(raw)


def pod(*images: Any, kind: str = "Pod") -> dict[str, Any]:
    spec: Any = {"containers": [{"name": "c", "image": one} for one in images]}
    if kind != "Pod":
        spec = {"template": {"spec": spec}}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    metadata = {"name": "web", "namespace": "shop"}
    api_version = PLURALS[kind][0]
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
    }


def facts(resource: dict[str, Any]) -> Facts:
    group, _, version = str(resource["apiVersion"]).rpartition("/")
    kind = resource["kind"]
    asked = {"group": group, "version": version, "resource": PLURALS[kind][1]}
    request = Request(
        group=group,
        version=version,
        kind=kind,
        operation="CREATE",
        namespace="shop",
        object=resource,
        review_request={"resource": asked},
    )
    runtime = Runtime(now=lambda: NOW, monotonic_ns=lambda: 0)
    return Facts(request, runtime, CelPorts())


def verdict(
    policy: Any,
    resource: dict[str, Any],
    *exceptions: Any,
    registry: Registry | None = None,
    of_files: bool = False,
) -> tuple[str, str, str] | None:
    linked = LinkedImagePolicy(compile_image_policy(policy, exceptions))
    given, found = facts(resource), registry or Registry()
    answers = linked.evaluate(
        given, Shared(given.request), Images(lambda: found), of_files=of_files
    )
    results = [one.result for one in answers if one.result is not None]
    if not results:
        return None
    (only,) = results
    return only.rule, only.status, only.message


PASS = ("p", "pass", "success")
FAIL = ("p", "fail", "CEL expression validation failed at index 0")


def failed(text: str) -> tuple[str, str, str]:
    return ("evaluation", "error", f"failed to evaluate policy: {text}")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (SIGNED, PASS),
        ("verifyImageSignatures('a', [attestors.key, attestors.notary]) == 2", PASS),
        ("verifyImageSignatures('a', [attestors.key, attestors.bad]) == 1", PASS),
        ("verifyImageSignatures('a', [attestors.bad]) > 0", FAIL),
        ("verifyImageSignatures('a', [attestors.away]) > 0", FAIL),
        ("verifyImageSignatures('a', []) > 0", FAIL),
        (
            "verifyImageSignatures('a', ['key']) > 0",
            failed("element 0 of the list is not an attestor"),
        ),
        (
            "verifyImageSignatures('gone', [attestors.key]) > 0",
            failed("failed to get imagedata: GET x: MANIFEST_UNKNOWN"),
        ),
        (
            "verifyAttestationSignatures('a', 'other', [attestors.key]) > 0",
            failed("attestation not found in policy: other"),
        ),
        (
            ATTESTED.replace("attestors.key", "attestors.notary"),
            failed("notary verifier only supports oci 1.1 referrers as attestations"),
        ),
        (
            "verifyAttestationSignatures('a', attestations.sbom, [attestors.key]) > 0",
            FAIL,
        ),
        (
            f"{ATTESTED} && extractPayload('a', attestations.review).predicate.n == 2",
            PASS,
        ),
        (
            f"{ATTESTED} && extractPayload('b', attestations.review).predicate.n == 2",
            failed(
                "failed to get payload: intoto attestation payload cannot be fetch"
                " before verifying intoto attestation"
            ),
        ),
        (
            f"{ARTEFACT} && extractPayload('a', attestations.sbom).digest != ''",
            PASS,
        ),
        (
            # Upstream returns unverified payloads.
            "extractPayload('a', attestations.sbom).digest == 'sha256:1'",
            failed(
                "failed to get payload: referrer attestation payload cannot be fetch"
                " before verifying referrer attestation"
            ),
        ),
        ("getImageData('a').Manifest.SchemaVersion == 2", PASS),
        ("getImageData('a').ConfigData.Config.User == '1000'", PASS),
        ("getImageData('a').Manifest.Layers[0].Size == 3", PASS),
        ("getImageData('a').user == ''", failed("no such field: user")),
        ("attestors.other == null", failed("no such key: other")),
    ],
)
def test_functions(expression: str, expected: tuple[str, str, str]) -> None:
    assert verdict(document(expression), pod("a")) == expected


def test_deadline_is_no_verdict() -> None:
    late = {"name": "late", "cosign": {"key": {"data": "late"}}}
    policy = document("verifyImageSignatures('a', [attestors.late]) > 0")
    given = document(
        *(one.expression for one in policy.spec.validations), attestors=[late]
    )
    with pytest.raises(DeadlinePassed):
        verdict(given, pod("a"))


def test_verification_by_one_policy_does_not_count_for_another() -> None:
    """Upstream's policies share verified images within a request."""
    registry = Registry()
    images = Images(lambda: registry)
    first = LinkedImagePolicy(compile_image_policy(document(ATTESTED)))
    reads = "extractPayload('a', attestations.review).predicate.n == 2"
    second = LinkedImagePolicy(compile_image_policy(document(reads)))
    given = facts(pod("a"))
    shared = Shared(given.request)
    (one, *_) = first.evaluate(given, shared, images)
    (two, *_) = second.evaluate(given, shared, images)
    assert one.result is not None
    assert one.result.status == "pass"
    assert two.result is not None
    assert "before verifying" in two.result.message


@pytest.mark.parametrize(
    ("references", "images", "read"),
    [
        ([], ["a", "b", "a"], ["a", "b"]),
        ([{"glob": "a*"}], ["a", "b"], ["a"]),
        ([{"glob": "x"}, {"expression": "ref == 'b'"}], ["a", "b"], ["b"]),
        ([{"expression": "image(ref).tag() == 'v1'"}], ["q/a:v1", "q/b"], ["q/a:v1"]),
    ],
)
def test_images_selected_by_a_policy(
    references: list[dict[str, str]], images: list[str], read: list[str]
) -> None:
    registry = Registry()
    policy = document("true", matchImageReferences=references)
    assert verdict(policy, pod(*images), registry=registry) == PASS
    assert [one.image for one in registry.read] == read


def test_unselected_image_is_ignored() -> None:
    expression = "verifyImageSignatures('b', [attestors.key]) == 0"
    policy = document(expression, matchImageReferences=[{"glob": "a"}])
    assert verdict(policy, pod("a")) == PASS


@pytest.mark.parametrize(
    ("resource", "text"),
    [
        (pod("gone"), "GET x: MANIFEST_UNKNOWN"),
        (pod(3), "type conversion error"),
        ({**pod(), "spec": {"containers": [{"name": "c"}]}}, "no such key: image"),
        ({**pod(), "spec": {"containers": {"c": 1}}}, "no such key: image"),
    ],
)
def test_unreadable_image_is_an_error(resource: dict[str, Any], text: str) -> None:
    found = verdict(document("true"), resource)
    assert found is not None
    assert found[:2] == ("evaluation", "error")
    assert text in found[2]


def test_custom_extractors_replace_the_built_in_ones() -> None:
    registry = Registry()
    own = [{"name": "containers", "expression": "['mine']"}]
    policy = document("images.containers == ['mine']", images=own)
    assert verdict(policy, pod("a"), registry=registry) == PASS
    assert [one.image for one in registry.read] == ["mine"]


def test_autogen_for_controllers() -> None:
    registry = Registry()
    found = verdict(document(SIGNED), pod("a", kind="CronJob"), registry=registry)
    assert found == PASS
    assert {one.image for one in registry.read} == {"a"}


_STEPS = "object.spec.steps.map(e, e.image)"
_FIRST = "object.spec.steps.filter(e, e.name == 'x').map(e, e.image)"
_NONE = "object.spec.?none.orValue([]).map(e, e.image)"


@pytest.mark.parametrize(
    ("expressions", "references", "read"),
    [
        ({"steps": _STEPS}, [], ["a", "b:v1"]),
        ({"steps": _STEPS}, [{"glob": "b*"}], ["b:v1"]),
        ({"steps": _FIRST}, [], ["a"]),
        ({"steps": _STEPS, "side": "[object.spec.?side.orValue('c')]"}, [], "abc"),
        ({"steps": _NONE}, [], []),
    ],
)
def test_images_of_a_custom_kind_are_extracted(
    expressions: dict[str, str], references: list[Any], read: Any
) -> None:
    """Such a kind has no built-in extractors, so only ``images`` finds its images."""
    registry = Registry()
    images = [{"name": k, "expression": one} for k, one in expressions.items()]
    rule = {
        "apiGroups": ["e.com"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["tasks"],
    }
    policy = document(
        "images.steps.all(image, verifyImageSignatures(image, [attestors.key]) > 0)",
        matchConstraints={"resourceRules": [rule]},
        matchImageReferences=references,
        images=images,
    )
    steps = [{"name": "x", "image": "a"}, {"name": "y", "image": "b:v1"}]
    task = {"apiVersion": "e.com/v1", "kind": "Task", "metadata": {"name": "t"}}
    found = verdict(policy, {**task, "spec": {"steps": steps}}, registry=registry)
    expected = ["a", "b:v1", "c"] if read == "abc" else read
    assert sorted({one.image for one in registry.read}) == expected
    assert found == PASS


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "CronJob"])
def test_own_extractors_of_controllers_read_the_pod_template(kind: str) -> None:
    """Autogen moves ``object.spec`` in the ``images`` expressions, too."""
    registry = Registry()
    own = [{"name": "mine", "expression": "object.spec.containers.map(e, e.image)"}]
    policy = document(
        "images.mine.all(image, verifyImageSignatures(image, [attestors.key]) > 0)",
        images=own,
    )
    resource = pod("a", "b", kind=kind)
    assert verdict(policy, resource, registry=registry) == PASS
    assert {one.image for one in registry.read} == {"a", "b"}


def _exception(**spec: Any) -> Any:
    raw = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "PolicyException",
        "metadata": {"name": "e", "namespace": "team"},
        "spec": {
            "policyRefs": [{"name": "p", "kind": "ImageValidatingPolicy"}],
            **spec,
        },
    }
    return decode_validating_policy(raw)


def test_exceptions() -> None:
    bad = document("verifyImageSignatures('a', [attestors.bad]) > 0")
    # KYVERNO: the name is missing, and reportResult is ignored.
    text = "rule is skipped due to policy exception: "
    skipped = ("exception", "skip", text)
    assert verdict(bad, pod("a"), _exception(reportResult="pass")) == skipped
    other = {"matchConditions": [{"name": "c", "expression": "false"}]}
    assert verdict(bad, pod("a"), _exception(**other)) == FAIL
    cron = pod("a", kind="CronJob")
    assert verdict(bad, cron, _exception()) == skipped
    # KYVERNO: on the command line, autogen copies have no exceptions.
    assert verdict(bad, cron, _exception(), of_files=True) == FAIL


def test_false_condition_gives_no_result() -> None:
    never = [{"name": "c", "expression": "false"}]
    assert verdict(document("false", matchConditions=never), pod("a")) is None


def test_attestor_expressions_are_evaluated_for_each_object() -> None:
    key = {"expression": "object.metadata.name == 'web' ? 'good' : 'bad'"}
    attestors = [{"name": "key", "cosign": {"key": key}}]
    assert verdict(document(SIGNED, attestors=attestors), pod("a")) == PASS
    other = {**pod("a"), "metadata": {"name": "other", "namespace": "shop"}}
    assert verdict(document(SIGNED, attestors=attestors), other) == FAIL
    wrong = [{"name": "key", "cosign": {"key": {"expression": "object.spec"}}}]
    found = verdict(document(SIGNED, attestors=wrong), pod("a"))
    assert found is not None
    assert "failed to convert expression in compiled attestor: key" in found[2]


def test_namespaced_policy_is_a_tenants() -> None:
    registry = Registry()
    verdict(document("true", namespace="shop"), pod("a"), registry=registry)
    assert [one.access.is_tenants for one in registry.read] == [True]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"matchImageReferences": [{"glob": "[a"}]}, "matchImageReferences[0].glob"),
        (
            {"matchImageReferences": [{"expression": "1"}]},
            "matchImageReferences[0].expression",
        ),
        ({"images": [{"name": "x", "expression": "1"}]}, "images[0].expression"),
        (
            {"attestors": [{"name": "a", "notary": {"certs": {"expression": "x"}}}]},
            "attestors[0]",
        ),
        (
            {
                "attestors": [
                    {"name": "a", "cosign": {"trustedRoot": {"expression": "x"}}}
                ]
            },
            "attestors[0]",
        ),
        (
            {"attestors": [workflow(subjectExpression="x")]},
            "attestors[0].cosign.keyless.identities[0].subjectExpression",
        ),
        (
            {"attestors": [workflow(subjectExpression="'x'", subjectRegExp="x")]},
            "attestors[0].cosign.keyless.identities[0].subjectExpression",
        ),
        (
            {"attestors": [workflow(subjectExpression="'x'", subject="x")]},
            "attestors[0].cosign.keyless.identities[0].subjectExpression",
        ),
        (
            {"matchConditions": [{"name": "c", "expression": "variables.v"}]},
            "matchConditions[0].expression",
        ),
    ],
)
def test_invalid_policies(spec: dict[str, Any], path: str) -> None:
    with pytest.raises(DocumentInvalid) as refused:
        compile_image_policy(document("true", **spec))
    assert [one.path for one in refused.value.problems] == [f"spec.{path}"]


class Asked(Registry):
    """Keeps the attestors."""

    def __init__(self) -> None:
        super().__init__()
        self.attestors: list[Any] = []

    def verify(
        self, _asked: ImageQuery, attestor: AttestorQuery, _deadline_ns: int
    ) -> None:
        self.attestors.append(attestor)


def asked_of(attestor: Any) -> tuple[Any, Any]:
    """Return the verdict, and what the attestor has to be."""
    registry = Asked()
    policy = document(
        "verifyImageSignatures('a', [attestors.key]) > 0",
        attestors=[attestor],
        variables=[{"name": "team", "expression": "object.metadata.namespace"}],
    )
    found = verdict(policy, pod("a"), registry=registry)
    return found, registry.attestors[0] if registry.attestors else None


def test_computed_subject_is_a_pattern() -> None:
    """Otherwise it would be ignored, and any signer would be accepted."""
    text = "'^https://ci.example/' + variables.team + '/'"
    found, asked = asked_of(workflow(subjectExpression=text))
    assert found == PASS
    first, second = asked.identities
    assert first.subject_reg_exp == "^https://ci.example/shop/"
    assert (second.subject, second.subject_reg_exp) == ("ci@example.com", "")
    assert first.extensions == second.extensions == (("githubWorkflowName", "x"),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("''", "the subject of the attestor key is empty"),
        ("'^https://ci.example/' + '|' + '$'", "its pattern matches the empty text"),
        ("'(ci)?'", "its pattern matches the empty text"),
        ("'.*'", "its pattern matches the empty text"),
        ("1", "type conversion error from 'int' to 'string'"),
        ("object.x", "no such key: x"),
    ],
)
def test_invalid_subject(text: str, reason: str) -> None:
    """An empty pattern matches everybody."""
    found, asked = asked_of(workflow(subjectExpression=text))
    assert (found[1], asked) == ("error", None)
    assert reason in found[2]


_GIVEN: list[tuple[str, Callable[[str], Any]]] = [
    ("subject", lambda text: workflow(subjectExpression=text)),
    ("root", lambda text: workflow(trusted_root={"expression": text})),
    ("key", lambda text: {"name": "key", "cosign": {"key": {"expression": text}}}),
]


@pytest.mark.parametrize(("what", "attestor"), _GIVEN, ids=[name for name, _ in _GIVEN])
def test_attestor_reads_the_namespace(
    what: str, attestor: Callable[[str], Any]
) -> None:
    """Otherwise the default value of an optional label would decide who may sign."""
    text = "namespaceObject.?metadata.?labels[?'signer'].orValue('x')"
    for given, expected in ((text, True), (f"'{what}'", False)):
        policy = document(SIGNED, attestors=[attestor(given)])
        linked = LinkedImagePolicy(compile_image_policy(policy))
        assert linked.reads_namespace is expected


def test_computed_trusted_root() -> None:
    given = {"expression": "'{\"of\": \"' + variables.team + '\"}'"}
    found, asked = asked_of(workflow(trusted_root=given))
    assert (found, asked.trusted_root) == (PASS, '{"of": "shop"}')
    _, asked = asked_of(workflow(trusted_root={"value": "{}"}))
    assert asked.trusted_root == "{}"
    _, asked = asked_of(workflow())
    assert asked.trusted_root is None


def test_verdict_creates_no_garbage() -> None:
    registry = Registry()
    gone = weakref.ref(registry)
    linked = LinkedImagePolicy(compile_image_policy(document(SIGNED)))
    gc.disable()
    try:
        given = facts(pod("a"))
        images = Images(lambda found=registry: found)  # type: ignore[misc]  # a default
        list(linked.evaluate(given, Shared(given.request), images))
        del images, registry
        assert gone() is None
    finally:
        gc.enable()
