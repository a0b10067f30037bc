"""Envoy's messages are read and written as Google's protobuf library does.

A failure means: a policy judges something else than Envoy sent, or Envoy reads another
answer than the policy gave.
"""

from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.expr.cel.authz import envoy
from kyverno_mp.expr.cel.authz.message_json import (
    MessageInvalid,
    from_proto,
    message_data,
)
from kyverno_mp.expr.cel.authz.message_wire import (
    WireInvalid,
    request_from_wire,
    response_to_wire,
)
from tests.unit.expr_cel.envoy_protobuf import message
from tests.unit.program.authorizing import answered

REQUEST, RESPONSE = message("CheckRequest"), message("CheckResponse")


def ours(data: bytes) -> Any:
    return message_data(request_from_wire(data))


def theirs(request: Any) -> Any:
    """Return a request of the library as our reader of its JSON form has it."""
    data = json_format.MessageToDict(request, preserving_proto_field_name=True)
    return message_data(from_proto(envoy.SCHEMA[envoy.REQUEST], data))


CHANGES = (
    "envoy.Allowed().WithHeader(envoy.Header('a', '').KeepEmptyValue())"
    ".WithoutHeader('b').WithResponseHeader('c', 'd').WithQueryParam('e', 'f')"
    ".WithoutQueryParam('g').Response()"
)
METADATA = (
    "envoy.Allowed().Response().WithMetadata({'a': dyn(1), 'b': dyn([dyn('x'),"
    " dyn(2.5)]), 'c': dyn({'d': dyn(true), 'e': dyn(null)}), 'f': dyn(-7)})"
)
TEXT = st.text(max_size=12)
TEXTS = st.dictionaries(TEXT, TEXT, max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | TEXT | st.floats(-1e9, 1e9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
    ),
    max_leaves=6,
)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


PEERS = some(
    address=some(pipe=some(path=TEXT, mode=st.integers(0, 2**32 - 1)))
    | some(
        socket_address=some(
            protocol=st.integers(0, 1),
            address=TEXT,
            port_value=st.integers(1, 65535),
            ipv4_compat=st.booleans(),
        )
    ),
    service=TEXT,
    labels=TEXTS,
    principal=TEXT,
)
REQUESTS = some(
    source=PEERS,
    destination=PEERS,
    request=some(
        time=st.datetimes().map(lambda when: f"{when.isoformat()}Z"),
        http=some(
            id=TEXT,
            method=TEXT,
            headers=TEXTS,
            path=TEXT,
            host=TEXT,
            size=st.integers(-(2**63), 2**63 - 1),
            body=TEXT,
            raw_body=st.just("AAH/"),
            header_map=some(headers=st.lists(some(key=TEXT, value=TEXT), max_size=3)),
        ),
    ),
    context_extensions=TEXTS,
    metadata_context=some(
        filter_metadata=st.dictionaries(
            TEXT, st.dictionaries(TEXT, JSON, max_size=3), max_size=2
        )
    ),
    tls_session=some(sni=TEXT),
)


@given(REQUESTS)
def test_requests_are_read_as_the_library_reads_them(attributes: Any) -> None:
    request = json_format.ParseDict({"attributes": attributes}, REQUEST())
    assert ours(request.SerializeToString()) == theirs(request)


@given(REQUESTS, REQUESTS)
def test_repeated_parts_are_merged(first: Any, second: Any) -> None:
    """proto3: two encodings, one after the other, are the merged message."""
    data = b"".join(
        json_format.ParseDict({"attributes": one}, REQUEST()).SerializeToString()
        for one in (first, second)
    )
    assert ours(data) == theirs(REQUEST.FromString(data))


@given(st.binary(max_size=60), REQUESTS, st.integers(0, 400))
def test_any_bytes_are_read_alike_or_rejected(
    noise: bytes, attributes: Any, at: int
) -> None:
    """What the library rejects is rejected; other bytes never raise another error."""
    whole = json_format.ParseDict({"attributes": attributes}, REQUEST())
    data = whole.SerializeToString()
    for sent in (noise, data[:at] + noise + data[at:], data[:at], data + noise):
        try:
            expected = theirs(REQUEST.FromString(sent))
        except (DecodeError, json_format.Error, MessageInvalid, UnicodeDecodeError):
            expected = None
        try:
            found = ours(sent)
        except WireInvalid:
            continue
        if expected is not None:
            assert found == expected


@pytest.mark.parametrize(
    "expression",
    [
        "envoy.Allowed().Response()",
        "envoy.Denied(401).WithBody('no').WithHeader('a', 'b').Response()",
        "envoy.Denied(-1).Response().WithMessage('m\\u00e9')",
        CHANGES,
        METADATA,
    ],
)
def test_answers_are_written_as_the_library_reads_them(expression: str) -> None:
    expected = answered("Envoy", expression)
    answer = from_proto(envoy.SCHEMA[envoy.RESPONSE], expected)
    written = RESPONSE.FromString(response_to_wire(answer))
    data = json_format.MessageToDict(written, preserving_proto_field_name=True)
    assert message_data(from_proto(envoy.SCHEMA[envoy.RESPONSE], data)) == expected


def test_fields_of_later_versions_are_skipped() -> None:
    request = REQUEST()
    request.attributes.request.http.path = "/x"
    later = b"\xfa\x01\x03abc\x80\x02\x05\x8d\x02abcd"
    assert ours(request.SerializeToString() + later) == ours(
        request.SerializeToString()
    )


def test_metadata_of_unknown_types_has_its_type() -> None:
    request = REQUEST()
    request.attributes.metadata_context.typed_filter_metadata["f"].type_url = "t/u"
    found = ours(request.SerializeToString())
    metadata = found["attributes"]["metadata_context"]
    assert metadata == {"typed_filter_metadata": {"f": {"@type": "t/u"}}}


def test_deep_metadata_is_rejected() -> None:
    def part(number: int, content: bytes) -> bytes:
        size = len(content)
        return bytes((number << 3 | 2, size & 127 | 128, size >> 7 & 127 | 128,
                      size >> 14)) + content  # fmt: skip

    value = b""
    for _ in range(150):
        value = part(5, part(1, part(2, value)))
    metadata = part(1, part(2, part(1, part(2, value))))
    with pytest.raises(WireInvalid, match="deeply"):
        ours(part(1, part(11, metadata)))
