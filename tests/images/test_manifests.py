"""An object passes only if its content is what the named signer signed.

A failure means: an object that was changed after signing, or signed by another signer,
is admitted.
"""

import base64
import copy
import gzip
import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from kyverno_mp import limits
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.manifests.compare import differences, shown
from kyverno_mp.images.manifests.verifier import ManifestVerifier
from kyverno_mp.policy.fields.validation import ObjectFieldBinding, ObjectReference
from kyverno_mp.program.ports import ManifestQuery
from tests.image_rig import Signer
from tests.images import manifest_rig as rig

_ALL = "KYVERNO_MP_TEST_ALL_MUTATIONS"
_SAMPLE = 1500
_MESSAGE = f"{rig.DOMAIN}/message"
_SIGNATURE = f"{rig.DOMAIN}/signature"
MAP: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "settings", "namespace": "d"},
    "data": {"a": "1", "b": "2"},
}
POLICY: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny"},
    "spec": {
        "podSelector": {},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"a": "b"}}}]}],
    },
}
_PRIVILEGED = {"privileged": True}
WEB: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "a",
                        "image": "a",
                        "securityContext": {"privileged": True},
                    },
                    {"name": "b", "image": "b"},
                ]
            }
        }
    },
}


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer()


def verdict(
    document: dict[str, Any],
    signer: Signer,
    *ignored: ObjectFieldBinding,
    domain: str = rig.DOMAIN,
) -> str:
    """Return the reason why the object is not verified, "" if it is."""
    asked = ManifestQuery(document, domain, key=signer.pem, ignored=ignored)
    try:
        answer = ManifestVerifier().verify(asked, 0)
    except ExpressionFailed as error:
        return f"{error.code}: {error.message}"
    return "" if answer.is_verified else answer.diff or "not verified"


def changed(
    document: dict[str, Any], signer: Signer, change: Callable[[Any], object]
) -> str:
    """Return the verdict on an object that was signed and then changed."""
    made = copy.deepcopy(rig.signed(document, signer))
    change(made)
    return verdict(made, signer)


def test_signed_object(signer: Signer) -> None:
    assert not verdict(rig.signed(MAP, signer), signer)
    assert "invalid signature" in verdict(rig.signed(MAP, Signer()), signer)
    assert "manifest.absent" in verdict(MAP, signer)


def test_second_signature_may_be_the_valid_one(signer: Signer) -> None:
    message = rig.of_objects(MAP)
    both = [Signer().sign(message), signer.sign(message)]
    assert not verdict(rig.annotated(MAP, message, *both), signer)
    many = [both[0]] * limits.MANIFEST_SIGNATURES_MAX
    assert not verdict(rig.annotated(MAP, message, *many[1:], both[1]), signer)
    assert verdict(rig.annotated(MAP, message, *many, both[1]), signer)


def _set(*path: Any, to: Any) -> Callable[[Any], object]:
    def change(document: Any) -> None:
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = to

    return change


_CONTAINERS = ("spec", "template", "spec", "containers")


@pytest.mark.parametrize(
    ("document", "change", "key"),
    [
        (MAP, _set("data", "a", to="9"), "data.a"),
        (MAP, _set("data", "a", to=1), "data.a"),
        # SAFETY: the names of ignored fields are matched from the first character.
        (MAP, _set("data", "status", to="x"), "data.status"),
        (MAP, _set("data", "my-status", to="x"), "data.my-status"),
        (MAP, _set("data", "metadata.uid", to="x"), "data.metadata.uid"),
        # SAFETY: an empty map or list is a value; here it selects every pod.
        (
            POLICY,
            _set("spec", "ingress", 0, "from", 0, "namespaceSelector", to={}),
            "spec.ingress.0.from.0.namespaceSelector",
        ),
        (POLICY, _set("spec", "ingress", to=[{}]), "spec.ingress.0"),
        (POLICY, _set("spec", "egress", to=[]), "spec.egress"),
        # SAFETY: a path is a list; a dot in a key does not separate keys.
        (
            {**MAP, "data": {"a": {"b": "1"}}},
            _set("data", to={"a.b": "1"}),
            "data.a.b",
        ),
        (WEB, _set(*_CONTAINERS, 1, "image", to="c"), f"{'.'.join(_CONTAINERS)}.1"),
    ],
)
def test_message_shows_the_changed_fields(
    signer: Signer, document: dict[str, Any], change: Callable[[Any], object], key: str
) -> None:
    found = changed(document, signer, change)
    assert found.startswith("{"), found
    assert any(one["key"].startswith(key) for one in json.loads(found)["items"])


def test_value_moved_within_a_list_is_a_change(signer: Signer) -> None:
    """SAFETY: upstream ignores pairs of an added and a removed list element."""

    def move(document: Any) -> None:
        first, second = document["spec"]["template"]["spec"]["containers"]
        second["securityContext"] = first.pop("securityContext")

    assert "privileged" in changed(WEB, signer, move)


@pytest.mark.parametrize(
    ("document", "change"),
    [
        (MAP, _set("status", to={"a": 1})),
        (MAP, _set("metadata", "uid", to="u")),
        (MAP, _set("metadata", "namespace", to="other")),
        (MAP, _set("metadata", "labels", to={})),
        (WEB, _set(*_CONTAINERS, 0, "imagePullPolicy", to="Always")),
        (WEB, _set(*_CONTAINERS, 1, "resources", to={})),
        (WEB, _set(*_CONTAINERS, 1, "image", to="b:latest")),
        (WEB, _set(*_CONTAINERS, 1, "image", to="docker.io/b")),
        (WEB, _set("spec", "strategy", to={"type": "Recreate"})),
    ],
)
def test_server_set_fields_are_no_change(
    signer: Signer, document: dict[str, Any], change: Callable[[Any], object]
) -> None:
    assert not changed(document, signer, change)


def test_fields_ignored_by_the_policy(signer: Signer) -> None:
    made = rig.signed(MAP, signer)
    made["data"]["a"] = "9"

    def ignoring(field: str, **of: str) -> str:
        objects = (ObjectReference(**of),) if of else ()
        return verdict(made, signer, ObjectFieldBinding((field,), objects))

    assert not ignoring("data.a")
    assert not ignoring("data.*", kind="ConfigMap", name="set*")
    assert ignoring("data.b")
    assert ignoring("data.a", kind="Secret")
    assert ignoring("data.a", kind="ConfigMap", namespace="other")
    assert ignoring("")


def test_object_cannot_choose_where_to_look(signer: Signer) -> None:
    """SAFETY: upstream reads the manifest from the image that the object names."""
    made = rig.signed(MAP, signer)
    place = f"{rig.DOMAIN}/resourceBundleRef"
    made["metadata"]["annotations"][place] = "evil.example/any:v1"
    assert not verdict(made, signer)
    del made["metadata"]["annotations"][_MESSAGE]
    assert "message not found" in verdict(made, signer)


def test_missing_key_matches_no_signer(signer: Signer) -> None:
    """SAFETY: an attestor without a key or identity must not match any signer."""
    asked = ManifestQuery(rig.signed(MAP, signer), rig.DOMAIN)
    with pytest.raises(ExpressionFailed, match="provide a key"):
        ManifestVerifier().verify(asked, 0)


def test_annotation_domain(signer: Signer) -> None:
    made = rig.signed(MAP, signer)
    assert "message not found" in verdict(made, signer, domain="other.example")


def test_one_of_several_manifests_of_the_same_kind(signer: Signer) -> None:
    others = [{**MAP, "metadata": {"name": f"m{number}"}} for number in range(5)]
    assert not verdict(rig.signed(MAP, signer, *others), signer)
    renamed = rig.signed(MAP, signer, *others)
    renamed["metadata"]["name"] = "nobody"
    assert "metadata.name" in verdict(renamed, signer)


def _message(data: bytes) -> dict[str, Any]:
    made = copy.deepcopy(MAP)
    made["metadata"]["annotations"] = {_MESSAGE: rig.encoded(data), _SIGNATURE: "AA=="}
    return made


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x1f\x8b",
        gzip.compress(b"x" * 512, mtime=0),
        gzip.compress(b"", mtime=0) + b"more",
        gzip.compress(b" " * (limits.MANIFEST_BYTES_MAX + 1), mtime=0),
        rig.archive([("a.yaml", b"---\n{}\n" * (limits.MANIFEST_DOCUMENTS_MAX + 1))]),
        rig.archive([("a.yaml", b"a: [")]),
        rig.archive([("a.txt", b"kind: ConfigMap")]),
        b"kind: [",
        b"&a [*a, *a]",
    ],
    # Archives contain the time, and processes must produce equal names.
    ids=[str(number) for number in range(10)],
)
def test_invalid_messages(signer: Signer, message: bytes) -> None:
    assert verdict(_message(message), signer).startswith(
        ("manifest.message: ", "manifest.absent: ")
    )


def test_message_that_is_not_base64(signer: Signer) -> None:
    made = rig.signed(MAP, signer)
    made["metadata"]["annotations"][_MESSAGE] = "?"
    assert "failed to decode base64 message in the annotation" in verdict(made, signer)


def test_field_count_is_bounded(signer: Signer) -> None:
    made = rig.signed(MAP, signer)
    made["data"] = {str(one): "x" for one in range(limits.MANIFEST_FIELDS_MAX + 1)}
    assert f"more than {limits.MANIFEST_FIELDS_MAX} fields" in verdict(made, signer)


def test_bound_of_names(signer: Signer) -> None:
    """A deep object with many values needs a long path for each of them."""
    made = rig.signed(MAP, signer)
    deep: Any = dict.fromkeys(map(str, range(2100)), "x")
    for _ in range(500):
        deep = {"a": deep}
    made["data"] = deep
    found = verdict(made, signer)
    assert f"more than {limits.MANIFEST_NAMES_MAX} names in the paths" in found


def test_bound_of_comparisons(signer: Signer) -> None:
    """Many manifests are compared with a large object only if one has its name."""
    others = [{**MAP, "metadata": {"name": f"m{number}"}} for number in range(99)]
    made = rig.signed(others[0], signer, *others[1:])
    values = limits.MANIFEST_COMPARED_MAX // len(others) + 1
    made["data"] = {str(one): "x" for one in range(values)}
    assert "data.0" in verdict(made, signer)
    made["metadata"]["name"] = "renamed"
    text = f"more than {limits.MANIFEST_COMPARED_MAX} fields in 99 manifests"
    assert text in verdict(made, signer)


def test_many_differences() -> None:
    """They are in order, and a message lists the first ones."""
    before: dict[str, Any] = {"a": {f"{one:05}": {} for one in range(12_000)}}
    after = {"a": {f"{one + 6000:05}": "x" for one in range(12_000)}}
    keys = [f"a.{one:05}" for one in range(18_000)]
    found = differences(before, after, (), most=18_000)
    assert [one.key for one in found] == keys
    ignored = ("a.00*", "a.0100*")
    first = differences(before, after, ignored)
    most = limits.MANIFEST_DIFFERENCES_MAX
    assert [one.key for one in first] == keys[1010 : 1010 + most]


def test_an_empty_map_is_filled_by_a_value_only() -> None:
    """A map with only empty values counts as empty, but not as absent."""
    assert not differences({"a": {}}, {"a": {"b": {"c": "x"}}}, ("a.b",))
    assert not differences({"a": {"b": []}}, {"a": {"b": [1]}}, ("a.b.0",))
    assert differences({"a": {"b": {}}}, {"a": {"b": [1]}}, ("a.b.0",))
    assert not differences({"a": {}}, {"a": {"b": ""}}, ())
    (found,) = differences({}, {"a": {"b": ""}}, ())
    assert (found.key, found.before, found.after) == ("a", None, {})


_SPEC = {"containers": [{"name": "a", "args": ["x"]}], "nodeSelector": {"r/w": ""}}
POD: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "spec": _SPEC}
_MATCH = {"podSelector": {"matchLabels": {"app": ""}}}
NETWORK: dict[str, Any] = {**POLICY, "spec": _MATCH}
ROLE: dict[str, Any] = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "rules": [{"apiGroups": ["apps"]}],
}
CLAIM: dict[str, Any] = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
OWN: dict[str, Any] = {
    "apiVersion": "example.org/v1",
    "kind": "Own",
    "metadata": {"name": "a"},
    "spec": {"pods": {"quarantine": ""}},
}
_ROLE_GROUPS = ("rules", 0, "apiGroups")


@pytest.mark.parametrize(
    ("document", "change", "key"),
    [
        # The core group, with all Secrets.
        (ROLE, _set(*_ROLE_GROUPS, to=["apps", ""]), "rules.0.apiGroups.1"),
        (ROLE, _set(*_ROLE_GROUPS, to=["apps", None]), "rules.0.apiGroups.1"),
        (POD, _set("spec", "nodeSelector", to={"r/c": ""}), "spec.nodeSelector.r/c"),
        (POD, _set("spec", "nodeSelector", to={}), "spec.nodeSelector.r/w"),
        (POD, _set("metadata", to={"labels": {"app": ""}}), "metadata.labels.app"),
        (
            NETWORK,
            _set("spec", "podSelector", "matchLabels", to={"none": ""}),
            "spec.podSelector.matchLabels.app",
        ),
        (NETWORK, _set("spec", "podSelector", to={}), "spec.podSelector.matchLabels"),
        (MAP, _set("data", "c", to=""), "data.c"),
        (MAP, _set("data", "c", to=None), "data.c"),
        # The names of a custom resource's maps are unknown.
        (OWN, _set("spec", "pods", to={"any": ""}), "spec.pods.any"),
        (OWN, _set("metadata", "annotations", to={"app": ""}), "metadata.annotations"),
        # "" is a claim without a class, absence the default class.
        (CLAIM, _set("spec", to={"storageClassName": ""}), "spec.storageClassName"),
        (
            POD,
            _set("spec", "containers", 0, "args", to={"0": "x"}),
            "spec.containers.0",
        ),
        ({**OWN, "spec": {"n": 2**53}}, _set("spec", "n", to=2**53 + 1), "spec.n"),
        ({**OWN, "spec": {"n": 1}}, _set("spec", "n", to=16**9999), "spec.n"),
        ({**OWN, "spec": {"n": 1}}, _set("spec", "n", to=True), "spec.n"),
    ],
)
def test_empty_strings_containers_and_numbers_are_values(
    document: dict[str, Any], change: Callable[[Any], object], key: str
) -> None:
    """SAFETY: upstream overlooks empty strings."""
    made = copy.deepcopy(document)
    change(made)
    for found in (differences(document, made, ()), differences(made, document, ())):
        assert any(one.key.startswith(key) for one in found)
        assert shown(found)


@pytest.mark.parametrize(
    ("document", "change"),
    [
        (POD, _set("spec", "containers", 0, "env", to="")),
        (POD, _set("spec", "hostname", to="")),
        (POD, _set("spec", "nodeSelector", to={"r/w": None})),
        (POD, _set("metadata", to={"creationTimestamp": None, "labels": None})),
        (OWN, _set("metadata", "generateName", to="")),
        (OWN, _set("spec", "added", to=None)),
        (
            {**CLAIM, "kind": "PersistentVolume", "spec": {}},
            _set("spec", "storageClassName", to=""),
        ),
        ({**OWN, "spec": {"n": 5}}, _set("spec", "n", to=5.0)),
    ],
)
def test_an_empty_string_in_a_named_field_equals_an_absent_one(
    document: dict[str, Any], change: Callable[[Any], object]
) -> None:
    """The API server drops and adds such strings and nulls."""
    made = copy.deepcopy(document)
    change(made)
    assert not differences(document, made, ())
    assert not differences(made, document, ())


def test_renamed_object_is_compared_with_few(signer: Signer) -> None:
    """The matching object is the fourth of four that are equally similar."""
    others = [{**MAP, "metadata": {"name": f"m{number}"}} for number in range(4)]
    message = rig.of_objects(*others)
    made = rig.annotated(MAP, message, signer.sign(message))
    ignored = ObjectFieldBinding(("metadata.name",))
    assert not verdict(made, signer, ignored)
    assert len(others) > limits.MANIFEST_CANDIDATES_MAX


def test_no_mutation_verifies(signer: Signer) -> None:
    """Each byte of the message and of the signature counts."""
    message = rig.of_objects(MAP)
    made = rig.annotated(MAP, message, signer.sign(message))
    assert not verdict(made, signer)
    annotations = made["metadata"]["annotations"]
    inner = {_MESSAGE: message, _SIGNATURE: signer.sign(message)}
    places = [
        (name, at, to)
        for name, data in inner.items()
        for at in range(len(data))
        for to in range(256)
        if to != data[at]
    ]
    if not os.environ.get(_ALL):
        places = random.Random(7).sample(places, _SAMPLE)
    for name, at, to in places:
        data = bytearray(inner[name])
        data[at] = to
        text = rig.encoded(bytes(data)) if name == _MESSAGE else _plain(data)
        annotations[name] = text
        assert verdict(made, signer), (name, at, to)
        annotations[name] = _plain(inner[name])
        if name == _MESSAGE:
            annotations[name] = rig.encoded(message)


def _plain(data: bytes | bytearray) -> str:
    return base64.b64encode(bytes(data)).decode()
