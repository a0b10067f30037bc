"""References are parsed as in registry clients; some hosts mean this machine."""

import pytest

from kyverno_mp.errors import RequestInvalid
from kyverno_mp.registry.reference import parse_reference
from kyverno_mp.registry.session import is_loopback

_DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nginx", "index.docker.io/library/nginx:latest"),
        ("team/app:v1", "index.docker.io/team/app:v1"),
        ("docker.io/nginx", "index.docker.io/library/nginx:latest"),
        ("ghcr.io/app", "ghcr.io/app:latest"),
        ("localhost:5000/a/b:v1", "localhost:5000/a/b:v1"),
        (f"ghcr.io/app:v1@{_DIGEST}", f"ghcr.io/app@{_DIGEST}"),
    ],
)
def test_name(text: str, name: str) -> None:
    assert parse_reference(text).name == name


@pytest.mark.parametrize("text", ["", "A B", "ghcr.io/App", "x:tag:tag", "x@sha256:1"])
def test_invalid_reference(text: str) -> None:
    with pytest.raises(RequestInvalid, match="could not parse reference"):
        parse_reference(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.0.0.1:5000", True),
        ("127.9.9.9", True),
        ("[::1]:5000", True),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
        ("10.0.0.1:5000", False),
        ("ghcr.io", False),
    ],
)
def test_loopback_host(host: str, expected: bool) -> None:  # noqa: FBT001 - a column of the table
    assert is_loopback(host) is expected
