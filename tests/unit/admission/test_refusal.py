"""A review that cannot be evaluated is denied with its uid, even if it is malformed."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.admission.decode import decode
from kyverno_mp.admission.encode import patched
from kyverno_mp.admission.refusal import refusal, uid_of
from kyverno_mp.errors import RequestInvalid
from tests.yardstick import cpu_s

DEEP = '{"a":' * 9_000 + "1" + "}" * 9_000


@pytest.mark.parametrize(
    "text",
    [
        '{"kind":"AdmissionReview","request":{"uid":"abc","object":' + DEEP + "}}",
        '{"request":{"object":' + DEEP + ',"uid":"abc"}}',
        '{"request":{"object":' + "[" * 9_000 + "]" * 9_000 + ',"uid":"abc"}}',
        '{"request":{"uid":"abc"',
        '{"request" : {\n"uid" :\t"abc", "object": {"x": 1e999}}}',
        '{"request":{"object":{"uid":"no"},"userInfo":{"uid":"no"},"uid":"abc"}}',
        '{"request":{"name":"uid","a":["uid",{"uid":"no"}],"uid":"abc"}}',
        '{"x":{"uid":"no"},"request":{"uid":"abc"}}',
        '{"x":"request","y":{"uid":"no"},"request":{"uid":"abc"}}',
        '{"request":{"n":"\\"uid\\":\\"no\\"","uid":"abc"}}',
        '{"request":{"uid":"\\u0061bc"}}',
    ],
)
def test_uid_is_found(text: str) -> None:
    assert uid_of(text.encode()) == "abc"
    assert uid_of(bytearray(text.encode())) == "abc"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        b"\x00\xff",
        b'"uid"',
        b'{"uid":"u"}',
        b'{"request":null}',
        b'{"request":["uid","u"]}',
        b'[{"request":{"uid":"u"}}]',
        b'{"a":{"request":{"uid":"u"}}}',
        b'{"request":{"uid":7,"name":"u"}}',
        b'{"request":{"uid":{"uid":"u"}}}',
        b'{"request":{"uid":["u"]}}',
        b'{"request":{"uid":""}}',
        b'{"request":{"uid":"u',
        b'{"request":{"uid":"\xff"}}',
        b'{"request":{}},{"request":{"uid":"u"}}',
    ],
)
def test_body_that_is_no_review_has_no_uid(body: bytes) -> None:
    assert uid_of(body) is None
    assert refusal(body, "a.b", "c") is None


@given(st.binary(max_size=60))
def test_any_bytes_are_scanned(body: bytes) -> None:
    uid_of(b'{"request":{"' + body)


@given(st.text(min_size=1), st.dictionaries(st.text(), st.text()))
def test_scanned_uid_equals_the_decoded_one(uid: str, before: dict[str, str]) -> None:
    try:
        body = orjson.dumps({"request": {**before, "uid": uid}})
    except orjson.JSONEncodeError:
        return
    found = orjson.loads(body)["request"]["uid"]
    assert uid_of(body) == found


@pytest.mark.parametrize("piece", [b'\\"', b'a\\"', b'"",', b'{"a":', b"[{},"])
def test_scan_is_bounded(piece: bytes) -> None:
    """Otherwise, ten mebibytes of quotes would block a worker for seconds."""
    body = b'{"request":{"a":"' + piece * (5 << 20)
    assert cpu_s(lambda: uid_of(body)) < 1.0


def test_denial_states_the_reason() -> None:
    body = b'{"request":{"uid":"abc","object":' + DEEP.encode() + b"}}"
    with pytest.raises(RequestInvalid) as caught:
        decode(body)
    answer = refusal(body, caught.value.code, caught.value.message)
    assert answer is not None
    found = json.loads(answer)["response"]
    assert (found["uid"], found["allowed"]) == ("abc", False)
    assert found["status"]["message"] == (
        "kyverno could not evaluate this request (admission.too_deep):"
        " it is nested deeper than 512 levels"
    )


def test_deep_patch_is_encoded() -> None:
    """The fast encoder supports 254 levels, but reviews may be deeper."""
    value = json.loads('{"a":' * 400 + "1" + "}" * 400)
    answer = patched("u", [{"op": "add", "path": "/a", "value": value}])
    assert b'"patchType":"JSONPatch"' in answer
