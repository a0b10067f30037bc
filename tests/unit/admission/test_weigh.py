"""The memory of a decoded review is estimated in advance and never underestimated."""

import json
import tracemalloc

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kyverno_mp.admission.decode import TOO_LARGE, decode
from kyverno_mp.admission.weigh import about_decoded_bytes, decoded_bytes
from kyverno_mp.errors import RequestInvalid
from kyverno_mp.limits import DECODED_BYTES_MAX, DECODED_TIMES_MAX

STORED_BYTES_MAX = 3 << 19
"""Size of the largest object that etcd stores."""
DENSE = {
    "empty maps": "{},",
    "empty lists": "[],",
    "small maps": '{"a":1},',
    "maps with an empty key": '{"":1},',
    "numbers": "300,",
    "fractions": "1.5,",
    "large numbers": "12345678901,",
    "texts": '"ab",',
    "foreign texts": '"é¡",',
    "texts beyond U+FFFF": '"😀",',
    "lists of one": "[1],",
    "lists in lists": "[" * 200 + "]" * 200 + ",",
    "maps in maps": '{"":' * 200 + "1" + "}" * 200 + ",",
    "maps of five": '{"a":1,"b":1,"c":1,"d":1,"e":1},',
    "maps of eleven": "{" + ",".join(f'"k{n}":1' for n in range(11)) + "},",
}


def taken(body: bytes) -> int:
    """Return the memory that the decoded value takes."""
    tracemalloc.start()
    try:
        value = orjson.loads(body)
        size = tracemalloc.get_traced_memory()[0]
        assert value is not None
        return size
    finally:
        tracemalloc.stop()


def filled(piece: str, size: int) -> str:
    return "[" + piece * (size // len(piece.encode())) + "0]"


@pytest.mark.parametrize("name", DENSE)
def test_estimate_covers_any_single_value(name: str) -> None:
    body = filled(DENSE[name], 200_000).encode()
    assert taken(body) <= decoded_bytes(body)
    assert decoded_bytes(body) <= DECODED_TIMES_MAX * len(body)


def test_estimate_covers_a_map_of_many_keys() -> None:
    body = json.dumps({f"{n:x}": n for n in range(30_000)}).encode()
    assert taken(body) <= decoded_bytes(body)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=6)
    ),
    max_leaves=40,
)


@given(VALUES)
@settings(max_examples=150)
def test_estimate_covers_any_value(value: object) -> None:
    """A hundred copies make the fixed cost of decoding negligible."""
    body = json.dumps([value] * 100, separators=(",", ":")).encode()
    assert taken(body) <= decoded_bytes(body) + 4096


@pytest.mark.parametrize("name", DENSE)
def test_update_of_the_largest_etcd_object_is_accepted(name: str) -> None:
    """Otherwise, an object that is already in the cluster could not be changed."""
    stored = filled(DENSE[name], STORED_BYTES_MAX - 200)
    item = '{"metadata":{"name":"x"},"a":' + stored + "}"
    review = (
        '{"request":{"uid":"u","operation":"UPDATE","kind":{"kind":"X"},'
        f'"object":{item},"oldObject":{item}}}}}'
    )
    assert decode(review.encode()).uid == "u"


@pytest.mark.parametrize("name", ["empty maps", "empty lists", "small maps"])
def test_ten_mebibytes_of_empty_values_are_not_decoded(name: str) -> None:
    """Otherwise, 10 MiB of braces would take 256 MiB of memory."""
    body = filled(DENSE[name], 10 << 20).encode()
    assert decoded_bytes(body) > DECODED_BYTES_MAX
    tracemalloc.start()
    try:
        with pytest.raises(RequestInvalid) as caught:
            decode(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code == TOO_LARGE
    assert peak < 1 << 20


def test_small_body_is_estimated_by_its_length() -> None:
    assert about_decoded_bytes(b"x" * 100) == 1000
    large = b'{"a":"' + b"x" * 100_000 + b'"}'
    assert about_decoded_bytes(large) == decoded_bytes(large)
