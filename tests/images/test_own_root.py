"""A service reads the keys of logs from the operator's own TUF repository."""

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.sigstore.own_root import trust_root
from kyverno_mp.images.sigstore.trust_root import PUBLIC_MIRROR, Fetch, TufTrustRoot
from kyverno_mp.settings.settings import Settings
from kyverno_mp.settings.texts import CHECKS
from tests.images.rig import Sigstore, pem_key
from tests.images.tuf_rig import TufRepository

RIG = Sigstore()
_MIRROR = "http://mirror/tuf/"


def _repository() -> TufRepository:
    return TufRepository(files={"rekor.pub": pem_key(RIG.rekor).encode()}, usages={})


def _trust(found: TufRepository, asked: list[str], **given: str | bool) -> TufTrustRoot:
    """Return the trust root; ``asked`` receives the hosts and URLs that are read."""

    def own(host: str) -> Fetch:
        def fetch(url: str, deadline_ns: int) -> tuple[int, bytes]:
            asked.append(f"{host} {url}")
            if url.endswith("/first.json"):
                return 200, found.root
            if url.endswith("/gone.json"):
                return 404, b""
            return found.fetch(url, deadline_ns)

        return fetch

    def public(url: str, _deadline_ns: int) -> tuple[int, bytes]:
        asked.append(url)
        return 404, b""

    settings = Settings(standalone=True, **given)  # type: ignore[arg-type]  # of a test
    return trust_root(settings, public, own)


@pytest.mark.parametrize("how", ["raw", "file", "url"])
def test_first_root_comes_from_the_setting(tmp_path: Path, how: str) -> None:
    found = _repository()
    file = tmp_path / "root.json"
    file.write_bytes(found.root)
    given = {
        "raw": {"tuf_root_raw": base64.b64encode(found.root).decode()},
        "file": {"tuf_root": str(file), "tuf_root_raw": "AAAA"},
        "url": {"tuf_root": "https://other/first.json"},
    }[how]
    asked: list[str] = []
    root = _trust(found, asked, enable_tuf=True, tuf_mirror=_MIRROR, **given)
    assert root.rekor_keys(0) == RIG.rekor_keys
    first = ["other https://other/first.json"] if how == "url" else []
    assert asked[: len(first)] == first
    rest = asked[len(first) :]
    assert rest
    assert all(one.startswith(f"mirror {_MIRROR}") for one in rest)


def _reason(root: TufTrustRoot) -> str:
    with pytest.raises(ExpressionFailed) as caught:
        root.rekor_keys(0)
    return caught.value.message


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"tuf_root": "/none/root.json"}, "No such file"),
        ({"tuf_root": "https://other/gone.json"}, "HTTP status 404"),
        # Sigstore's root does not vouch for another repository.
        ({}, "error updating to TUF remote mirror"),
        ({"tuf_root_raw": "AAAA"}, "error updating to TUF remote mirror"),
    ],
)
def test_no_identity_is_trusted_without_the_configured_root(
    given: dict[str, str], reason: str
) -> None:
    root = _trust(_repository(), [], enable_tuf=True, tuf_mirror=_MIRROR, **given)
    assert reason in _reason(root)


@pytest.mark.parametrize("is_on", [True, False])
def test_public_mirror_is_the_default(
    is_on: bool,  # noqa: FBT001 - a parameter
) -> None:
    asked: list[str] = []
    mirror = "" if is_on else _MIRROR
    root = _trust(_repository(), asked, enable_tuf=is_on, tuf_mirror=mirror)
    _reason(root)
    assert asked
    assert all(PUBLIC_MIRROR in one for one in asked)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("tuf_mirror", "http://tuf.tuf-system:8080/", "tuf.tuf-system"),
        ("tuf_root", "/etc/tuf/root.json", "env://ROOT"),
        ("tuf_root_raw", "e30=", "{}"),
    ],
)
def test_configuration_errors_are_reported_at_startup(
    name: str, good: str, bad: str
) -> None:
    check: Callable[[str], str] = CHECKS[name]
    assert check(good) == check("") == ""
    assert check(bad).startswith("expected")
