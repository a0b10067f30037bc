"""Reviews are decoded completely; any other input is an InputError, never a crash."""

import contextlib
import gc
import json
import time
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.admission.decode import decode
from kyverno_mp.errors import RequestInvalid
from kyverno_mp.limits import DECODED_KEYS_MAX, DEEP_CONTAINERS_MAX, JSON_DEPTH_MAX

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}


def review(**changes: object) -> bytes:
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "web",
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": "alice", "groups": ["dev", "system:authenticated"]},
        "object": POD,
        "oldObject": None,
        "dryRun": False,
        **changes,
    }
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "request": request}
    ).encode()


def test_all_fields_are_read() -> None:
    request = decode(review(dryRun=True))
    assert request.operation == "CREATE"
    assert (request.group, request.version, request.kind) == ("", "v1", "Pod")
    assert (request.name, request.namespace, request.uid) == ("web", "default", "u-1")
    assert (request.object, request.old_object) == (POD, {})
    assert request.username == "alice"
    assert request.groups == ("dev", "system:authenticated")
    assert request.dry_run
    assert request.has_user_info
    assert request.ints_are_numbers
    assert request.review_request is not None
    assert request.review_request["uid"] == "u-1"


def test_delete_has_only_an_old_object() -> None:
    """KYVERNO: DELETE is evaluated on the old object (docs/behaviour/engine 1.7)."""
    request = decode(review(operation="DELETE", object=None, oldObject=POD))
    assert (request.object, request.old_object) == ({}, POD)


@pytest.mark.parametrize(
    ("kind", "resource", "subresource", "expected"),
    [
        (("", "v1", "PodExecOptions"), ("", "v1", "pods"), "exec", "Pod"),
        (("policy", "v1", "Eviction"), ("", "v1", "pods"), "eviction", "Pod"),
        (("", "v1", "Pod"), ("", "v1", "pods"), "ephemeralcontainers", "Pod"),
        (
            ("autoscaling", "v1", "Scale"),
            ("apps", "v1", "deployments"),
            "scale",
            "Deployment",
        ),
        (("x.io", "v1", "Widget"), ("x.io", "v1", "widgets"), "status", "Widget"),
        (
            ("kyverno.io", "v1", "ClusterPolicy"),
            ("kyverno.io", "v1", "clusterpolicies"),
            "status",
            "ClusterPolicy",
        ),
    ],
)
def test_subresource_is_matched_by_its_parent(
    kind: tuple[str, str, str],
    resource: tuple[str, str, str],
    subresource: str,
    expected: str,
) -> None:
    """Policies name Pod/exec (controllers 2.3); the review names PodExecOptions."""
    request = decode(
        review(
            kind=dict(zip(("group", "version", "kind"), kind, strict=True)),
            resource=dict(zip(("group", "version", "resource"), resource, strict=True)),
            subResource=subresource,
            operation="CONNECT" if subresource == "exec" else "UPDATE",
        )
    )
    assert (request.group, request.version, request.kind) == (*resource[:2], expected)
    assert request.subresource == subresource


def test_unknown_parent_of_a_subresource_is_an_error() -> None:
    """A failure to find the kind must not be treated as "no policy matches"."""
    body = review(
        kind={"group": "autoscaling", "version": "v1", "kind": "Scale"},
        resource={"group": "x.io", "version": "v1", "resource": "widgets"},
        subResource="scale",
    )
    with pytest.raises(RequestInvalid) as caught:
        decode(body)
    assert caught.value.code == "admission.kind_unknown"
    known = decode(body, lambda _group, _version, _resource: "Widget")
    assert (known.group, known.kind) == ("x.io", "Widget")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "admission.empty"),
        (b"{}", "admission.no_request"),
        (b'{"request":null}', "admission.no_request"),
        (b"not json", "admission.not_json"),
        (b'{"request":', "admission.not_json"),
        (b'\xef\xbb\xbf{"request":{}}', "admission.not_json"),
        (b'{"request":"text"}', "admission.not_json"),
        (b"[]", "admission.not_json"),
        (b"1", "admission.not_json"),
        (b'{"request":{"uid":"\xff"}}', "admission.not_json"),
        (b'{"request":{"uid":"\\ud800"}}', "admission.not_json"),
        (b'{"request":{"uid":NaN}}', "admission.not_json"),
        (b'{"request":{"uid":1e999}}', "admission.not_json"),
        (b'{"request":{"uid":' + b"9" * 5000 + b"}}", "admission.not_json"),
        (b'{"a":' * 100_000, "admission.too_deep"),
        (b"[" * 5_000_000, "admission.too_large"),
        (review(operation="PATCH"), "admission.not_json"),
        (review(object="text"), "admission.not_json"),
        (review(object=[]), "admission.not_json"),
        (review(name=5), "admission.not_json"),
        (review(kind="Pod"), "admission.not_json"),
        (review(dryRun="yes"), "admission.not_json"),
        (review(userInfo={"groups": "dev"}), "admission.not_json"),
        (review(userInfo={"groups": ["dev", 1]}), "admission.not_json"),
        (review(userInfo=[]), "admission.not_json"),
    ],
)
def test_bad_input_has_a_code(body: bytes, code: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        decode(body)
    assert caught.value.code == code


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def test_nesting_is_bounded() -> None:
    """Deep nesting must not exhaust the stack of recursive functions."""
    # The review, the request and the object already are three levels.
    fits = nested(JSON_DEPTH_MAX - 3)
    assert decode(review(object={"a": fits})).object == {"a": fits}
    with pytest.raises(RequestInvalid):
        decode(review(object={"a": nested(JSON_DEPTH_MAX - 2)}))


def test_few_values_can_be_deeply_nested() -> None:
    """Otherwise, one megabyte would block a worker while its levels are counted."""
    depth = 300
    fit = DEEP_CONTAINERS_MAX // depth - 1
    deep = nested(depth)
    assert decode(review(object={"a": [deep] * fit})).object
    with pytest.raises(RequestInvalid) as caught:
        decode(review(object={"a": [deep] * (fit + 2)}))
    assert caught.value.code == "admission.too_deep"


@pytest.mark.parametrize("more", [0, 1000])
def test_key_count_of_a_large_review_is_bounded(more: int) -> None:
    keys = ",".join(f'"k{n}":1' for n in range(DECODED_KEYS_MAX - 500 + more))
    body = review(object={"a": "HERE"}).replace(b'"HERE"', b"{%s}" % keys.encode())
    if not more:
        assert decode(body).object
        return
    with pytest.raises(RequestInvalid) as caught:
        decode(body)
    assert caught.value.code == "admission.too_large"


@pytest.mark.parametrize(
    "text", ["aa:bb:cc:dd:ee:ff\n", '{"a":1,"b":2},\n', '\\\\":":\\"', "::\\"]
)
def test_colons_in_strings_are_not_counted_as_keys(text: str) -> None:
    """Otherwise, an object with a list of addresses could never be changed again."""
    texts = text * (DECODED_KEYS_MAX // text.count(":") + 1)
    texts += " " * (4 << 20)
    body = review(object={"data": texts})
    assert body.count(b":") > DECODED_KEYS_MAX
    assert decode(body).object == {"data": texts}


@pytest.mark.parametrize("more", [0, 1000])
def test_keys_beside_strings_are_counted(more: int) -> None:
    pair = '"\\\\":"\\":\\\\",'
    count = DECODED_KEYS_MAX - 500 + more
    pairs = "{" + pair + '"b" :1' + "}"
    body = review(object={"a": "HERE"})
    body = body.replace(
        b'"HERE"', ("[" + ",".join([pairs] * (count // 2)) + "]").encode()
    )
    if not more:
        assert decode(body).object
        return
    with pytest.raises(RequestInvalid) as caught:
        decode(body)
    assert caught.value.code == "admission.too_large"


def test_decoding_is_hardly_slower_than_parsing() -> None:
    """Decoding cannot be interrupted, and it delays all other answers."""
    lists = b"[" + b",".join([b"[[[]]]"] * 200_000) + b"]"
    body = review(object={"a": "HERE"}).replace(b'"HERE"', lists)
    gc.disable()
    try:
        parsing = min(_taken_ns(orjson.loads, body) for _ in range(5))
        decoding = min(_taken_ns(decode, body) for _ in range(5))
    finally:
        gc.enable()
    assert decoding < 2 * parsing


def _taken_ns(work: Callable[[bytes], object], body: bytes) -> int:
    start_ns = time.thread_time_ns()
    made = work(body)
    taken_ns = time.thread_time_ns() - start_ns
    del made
    return taken_ns


def test_wide_object_is_not_a_deep_one() -> None:
    wide: dict[str, object] = {"items": [{} for _ in range(5 * JSON_DEPTH_MAX)]}
    assert decode(review(object=wide)).object == wide


@given(st.binary(max_size=200))
def test_any_bytes_yield_an_answer(body: bytes) -> None:
    with contextlib.suppress(RequestInvalid):
        decode(body)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
FIELDS = [
    "uid",
    "kind",
    "resource",
    "name",
    "operation",
    "userInfo",
    "object",
    "dryRun",
]


@given(st.sampled_from(FIELDS), JSON_VALUES)
def test_any_value_in_any_field_yields_an_answer(field: str, value: object) -> None:
    with contextlib.suppress(RequestInvalid):
        decode(review(**{field: value}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"object": None}, "request.object: missing in a CREATE"),
        ({"object": None, "operation": "UPDATE"}, "request.object: missing in a UPD"),
        ({"kind": None}, "request.kind: names no kind"),
        ({"kind": {"version": "v1"}}, "request.kind: names no kind"),
    ],
)
def test_review_without_required_fields_is_rejected(
    changes: dict[str, object], reason: str
) -> None:
    """Otherwise, the review would be allowed because no policy matches it."""
    with pytest.raises(RequestInvalid, match=reason) as caught:
        decode(review(**changes))
    assert caught.value.code == "admission.incomplete"


def test_deletion_has_no_new_object() -> None:
    request = decode(review(object=None, oldObject=POD, operation="DELETE"))
    assert (request.object, request.old_object) == ({}, POD)
