"""Requests in wire form are read as Go's net/http reads them, or rejected.

A failure means: a policy judges another request than the proxy forwards. Expected:
docs/behaviour/cel 15.2; Go's documentation of http.Request and url.ParseQuery.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.errors import RequestInvalid
from kyverno_mp.expr.cel.authz.message_json import message_data
from kyverno_mp.webhook.authz.requests import nested_request, parsed_query


def read(data: bytes) -> dict[str, Any]:
    found: Any = message_data(nested_request(data))["attributes"]
    return dict(found)


def test_a_request_is_read_in_full() -> None:
    assert read(
        b"POST /a%20b?x=1&y=a+b&x=%32 HTTP/1.1\r\nHost: h:1\r\nx-id: 1\r\nX-ID: 2\r\n"
        b"Content-Length: 3\r\n\r\nabc"
    ) == {
        "method": "POST",
        "header": {"X-Id": ["1", "2"], "Content-Length": ["3"]},
        "host": "h:1",
        "protocol": "HTTP/1.1",
        "path": "/a b",
        "query": {"x": ["1", "2"], "y": ["a b"]},
        "contentLength": 3,
        "body": "YWJj",
    }


def test_an_absolute_target_has_scheme_and_host() -> None:
    found = read(b"GET HTTP://a.example/p?q HTTP/1.0\r\nHost: other\r\n\r\n")
    assert (found["scheme"], found["host"], found["path"], found["query"]) == (
        "http",
        "a.example",
        "/p",
        {"q": [""]},
    )
    assert found["protocol"] == "HTTP/1.0"


def test_chunks_are_the_body_and_trailers_no_headers() -> None:
    found = read(
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nab\r\n1\r\nc\r\n0\r\nX-Role: admin\r\n\r\n"
    )
    assert (found["body"], found["contentLength"]) == ("YWJj", 3)
    assert "header" not in found


@pytest.mark.parametrize(
    "rest",
    [
        b"POST /2 HTTP/1.0\r\nHost: evil\r\nX-Role: admin\r\n\r\n",
        b"garbage",
        b"POST /2 HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc",
    ],
)
def test_only_the_first_request_counts(rest: bytes) -> None:
    """Neither method nor anything else of what follows it may be judged."""
    alone = b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\n"
    assert read(alone + rest) == read(alone)


def test_a_change_of_the_protocol_is_a_request() -> None:
    found = read(
        b"GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\n\r\n"
    )
    assert (found["method"], found["path"]) == ("GET", "/ws")
    found = read(b"CONNECT a:1 HTTP/1.1\r\n\r\n")
    assert (found["method"], found["host"]) == ("CONNECT", "a:1")


def test_pairs_that_are_not_valid_are_left_out() -> None:
    """GO: url.Query drops a pair with a semicolon or a wrong escape."""
    assert parsed_query(b"a=1;b=2&c=%zz&d&&e=%41=f") == {"d": [""], "e": ["A=f"]}


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_rejected(data: bytes) -> None:
    head = b"POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"
    for bytes_in in (data, head + data, head[: len(data)] + data, data + head):
        try:
            found = read(bytes_in)
        except RequestInvalid:
            continue
        assert found["method"]


@given(
    st.text("abc/%-_.~", max_size=20),
    st.lists(st.tuples(st.text("xyz", min_size=1), st.text("1 +&;=")), max_size=4),
)
def test_the_query_of_a_browser_is_read_back(
    path: str, pairs: list[tuple[str, str]]
) -> None:
    from urllib.parse import quote, urlencode

    target = f"/{quote(path)}?{urlencode(pairs)}"
    found = read(f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    expected: dict[str, list[str]] = {}
    for name, value in pairs:
        expected.setdefault(name, []).append(value)
    assert found["path"] == f"/{path}"
    assert found.get("query", {}) == expected
