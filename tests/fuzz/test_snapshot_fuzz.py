"""For any change of a segment's bytes: SnapshotUnusable or the right answer."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.snapshot.encode import encode_segment
from kyverno_mp.snapshot.layout import (
    HEADER_BYTES,
    checksum_of,
    pack_header,
    unpack_header,
)
from kyverno_mp.snapshot.read import Segment

RECORDS = st.dictionaries(st.binary(max_size=12), st.binary(max_size=40), max_size=20)
DAMAGE = st.one_of(
    st.tuples(st.just("cut"), st.integers(0, 5000), st.just(b"")),
    st.tuples(st.just("extend"), st.just(0), st.binary(min_size=1, max_size=40)),
    st.tuples(
        st.just("write"), st.integers(0, 5000), st.binary(min_size=1, max_size=9)
    ),
)


def damage(content: bytes, what: tuple[str, int, bytes]) -> bytes:
    kind, at, data = what
    at %= len(content)
    if kind == "cut":
        return content[:at]
    if kind == "extend":
        return content + data
    return content[:at] + data + content[at + len(data) :]


@settings(max_examples=300)
@given(records=RECORDS, salt=st.binary(min_size=16, max_size=16))
def test_records_survive_a_round_trip(records: dict[bytes, bytes], salt: bytes) -> None:
    """Decoding an encoded record returns the record."""
    content = encode_segment("x", records, generation=1, salt=salt)
    segment = Segment.from_bytes(content, "x")
    assert {key: bytes(segment.get(key) or b"") for key in records} == records


@settings(max_examples=500)
@given(records=RECORDS, what=DAMAGE)
def test_damage_is_rejected(
    records: dict[bytes, bytes], what: tuple[str, int, bytes]
) -> None:
    """A damaged file is never attached."""
    content = bytes(encode_segment("x", records, generation=1, salt=bytes(16)))
    damaged = damage(content, what)
    try:
        Segment.from_bytes(damaged, "x")
    except SnapshotUnusable:
        return
    assert damaged == content


@settings(max_examples=500)
@given(records=RECORDS, what=DAMAGE, asked=st.binary(max_size=12))
def test_damage_with_a_valid_checksum_never_crashes(
    records: dict[bytes, bytes], what: tuple[str, int, bytes], asked: bytes
) -> None:
    """A defective writer can corrupt records, but cannot crash a worker."""
    content = bytearray(encode_segment("x", records, generation=1, salt=bytes(16)))
    damaged = bytearray(damage(bytes(content), what))
    if len(damaged) < HEADER_BYTES:
        return
    header = unpack_header(memoryview(damaged))._replace(file_bytes=len(damaged))
    damaged[:HEADER_BYTES] = pack_header(header)
    header = header._replace(checksum=checksum_of(memoryview(damaged)))
    damaged[:HEADER_BYTES] = pack_header(header)
    try:
        segment = Segment.from_bytes(damaged, "x")
        for key in (*records, asked):
            segment.get(key)
        segment.list_keys()
    except SnapshotUnusable:
        return


@settings(max_examples=300)
@given(content=st.binary(max_size=300))
def test_any_bytes_are_rejected(content: bytes) -> None:
    """Foreign files are not segments."""
    try:
        Segment.from_bytes(content, "x")
    except SnapshotUnusable:
        return
    raise AssertionError
