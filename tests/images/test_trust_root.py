"""A TUF repository's keys are trusted only if its root vouches for them."""

import datetime as dt
import json
import subprocess
import sys
import threading

import pytest

from kyverno_mp import limits
from kyverno_mp.errors import DeadlinePassed, ExpressionFailed, RegistryUnavailable
from kyverno_mp.images.sigstore.trust_root import TufTrustRoot, public_root
from tests.images.rig import Sigstore, pem, pem_key
from tests.images.tuf_rig import TufRepository
from tests.waiting import HANG_S, far_ns, soon_ns

RIG = Sigstore()
_FILES = {
    "a.pem": pem(RIG.root.certificate),
    "b.pem": pem(RIG.middle.certificate),
    "c.pub": pem_key(RIG.rekor),
    "d.pub": pem_key(RIG.ctlog),
    "trusted_root.json": "{}",
    "other": "x",
}
_USAGES = {"a.pem": "Fulcio", "b.pem": "Fulcio", "c.pub": "Rekor", "d.pub": "CTFE"}
_MIRROR = "http://mirror/tuf/"


def repository(**given: object) -> TufRepository:
    files = {name: text.encode() for name, text in _FILES.items()}
    return TufRepository(**{"files": files, "usages": _USAGES, **given})  # type: ignore[arg-type]


def trust(found: TufRepository, root: bytes | None = None) -> TufTrustRoot:
    return TufTrustRoot(_MIRROR, root or found.root, found.fetch)


def reason(root: TufTrustRoot) -> str:
    with pytest.raises(ExpressionFailed) as caught:
        root.rekor_keys(0)
    return caught.value.message


def test_files_selected_by_usage() -> None:
    found = repository()
    root = trust(found)
    assert root.fulcio_roots(0) == [RIG.root.certificate]
    assert root.rekor_keys(0) == RIG.rekor_keys
    assert root.ctlog_keys(0) == RIG.ctlog_keys
    assert json.loads(root.target("trusted_root.json", 0)) == {}
    with pytest.raises(ExpressionFailed, match="has no file other"):
        root.target("other", 0)
    assert len(found.asked) == len(set(found.asked)), "it is read once"


def test_files_selected_by_name() -> None:
    files = {"rekor.pub": pem_key(RIG.rekor).encode()}
    root = trust(repository(files=files, usages={}))
    assert root.rekor_keys(0) == RIG.rekor_keys
    with pytest.raises(ExpressionFailed, match=r"fallbacks not found: ctfe\.pub"):
        root.ctlog_keys(0)


def test_root_is_followed_to_its_successor() -> None:
    found = repository()
    found.rotate()
    assert trust(found).rekor_keys(0) == RIG.rekor_keys


def test_files_not_signed_by_the_root_are_rejected() -> None:
    """A failure means: a mirror can replace the keys that verification depends on."""
    stranger, other = repository(), repository()
    assert "mirror: tuf: " in reason(trust(stranger, other.root))
    for path in list(stranger.served):
        found = repository()
        if path in ("1.root.json", *(p for p in found.served if p.endswith("other"))):
            # The caller has the first root; a file without a usage is not read.
            continue
        place = next(
            p for p in found.served if p.partition(".")[2] == path.partition(".")[2]
        )
        found.served[place] = found.served[place].replace(b"e", b"f", 1) + b" "
        assert "mirror: tuf: " in reason(trust(found)), path
    old = repository(end=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    assert "expired" in reason(trust(old))


def test_unavailable_mirror_is_retried_after_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, now = [], [0.0]
    monkeypatch.setattr(
        "kyverno_mp.images.sigstore.trust_root.time.monotonic", lambda: now[0]
    )
    now[0] = 1.0
    found = repository()

    def fetch(url: str, deadline_ns: int) -> tuple[int, bytes]:
        calls.append(url)
        if len(calls) == 1:
            raise RegistryUnavailable("registry.network", "mirror: connection refused")
        return found.fetch(url, deadline_ns)

    root = TufTrustRoot(_MIRROR, found.root, fetch)
    assert "connection refused" in reason(root)
    assert reason(root)
    assert len(calls) == 1
    now[0] += limits.IMAGE_TRUST_RETRY_S
    assert root.rekor_keys(0)
    seen = len(calls)
    now[0] += limits.IMAGE_TRUST_S - 1
    assert root.rekor_keys(0)
    assert len(calls) == seen
    now[0] += 1
    assert root.rekor_keys(0)
    assert len(calls) > seen


def test_deadline_is_no_verdict() -> None:
    def fetch(_url: str, _deadline_ns: int) -> tuple[int, bytes]:
        raise DeadlinePassed("registry.deadline", "too late")

    found = repository()
    root = TufTrustRoot(_MIRROR, found.root, fetch)
    for _ in range(2):
        with pytest.raises(DeadlinePassed):
            root.rekor_keys(0)


def test_waiting_for_another_read_ends_at_the_own_deadline() -> None:
    found, begun, gate = repository(), threading.Event(), threading.Event()

    def fetch(url: str, deadline_ns: int) -> tuple[int, bytes]:
        begun.set()
        gate.wait(HANG_S)
        return found.fetch(url, deadline_ns)

    root = TufTrustRoot(_MIRROR, found.root, fetch)
    reader = threading.Thread(target=root.rekor_keys, args=(0,))
    reader.start()
    assert begun.wait(HANG_S)
    with pytest.raises(DeadlinePassed):
        root.rekor_keys(soon_ns(0))
    gate.set()
    reader.join(HANG_S)
    assert root.rekor_keys(far_ns())


def test_slow_mirror_delays_one_review_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, now = [], [1.0]
    monkeypatch.setattr(
        "kyverno_mp.images.sigstore.trust_root.time.monotonic", lambda: now[0]
    )

    def fetch(url: str, _deadline_ns: int) -> tuple[int, bytes]:
        calls.append(url)
        now[0] += 60
        raise DeadlinePassed("registry.deadline", "too late")

    root = TufTrustRoot(_MIRROR, repository().root, fetch)
    for number, later_s in enumerate((0, limits.IMAGE_TRUST_PAUSE_S, 1), start=1):
        now[0] += later_s
        seen = len(calls)
        for _ in range(3):
            with pytest.raises(DeadlinePassed):
                root.rekor_keys(0)
        assert len(calls) - seen == (0 if number == 3 else 1)


@pytest.mark.parametrize("name", ["IMAGE_TRUST_FILES_MAX", "IMAGE_TRUST_BYTES_MAX"])
def test_repository_size_is_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"IMAGE_TRUST_FILES_MAX": 4, "IMAGE_TRUST_BYTES_MAX": 500}[name]
    monkeypatch.setattr(f"kyverno_mp.images.sigstore.trust_root.{name}", few)
    text = reason(trust(repository()))
    assert "more than 4 files" in text or "length" in text.lower()


def test_public_root_is_sigstores() -> None:
    """The default contains Sigstore's keys; without the network no key is trusted."""

    def fetch(url: str, _deadline_ns: int) -> tuple[int, bytes]:
        assert url == "https://mirror/13.root.json"
        raise RegistryUnavailable("registry.network", "mirror: no such host")

    root = TufTrustRoot("https://mirror", public_root(), fetch)
    assert reason(root).endswith("no such host")


def test_libraries_are_imported_lazily() -> None:
    """A policy with its own keys needs neither TUF nor timestamps."""
    code = (
        "import sys, kyverno_mp.images.verifier, kyverno_mp.images.sigstore.trust_root;"
        "print(*{m.partition('.')[0] for m in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"tuf", "rfc3161_client", "urllib3"} & set(done.stdout.split())
