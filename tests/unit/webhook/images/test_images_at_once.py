"""The images of one Pod are verified in parallel, with the same results."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.values.jsonvalue import Json
from tests.image_rig import Contents, Repository, Signer, serving
from tests.unit.webhook.images.test_images import (
    Webhooks,
    block,
    contents,
    host,
    pod,
    policy,
)
from tests.waiting import HANG_S

__all__ = ["contents", "host"]
_NAMES = ("one", "two", "three")
_CALLS_OF_ONE = 4
"""Requests for scheme, tag, signature manifest and payload."""


class _Waiting(dict[tuple[str, str], Any]):
    """A registry that answers some paths only after several requests have arrived."""

    def __init__(self, suffix: str, count: int) -> None:
        super().__init__()
        self._suffix = suffix
        self._barrier = threading.Barrier(count)

    def get(self, key: tuple[str, str], default: Any = None) -> Any:
        if key[1].endswith(self._suffix):
            self._barrier.wait(HANG_S)
        return super().get(key, default)


@pytest.fixture
def waiting() -> Iterator[tuple[Contents, str]]:
    found = Contents(answers=_Waiting("/manifests/v1", len(_NAMES)))
    with serving(found, is_canned=False) as where:
        yield found, where


def _load(contents: Contents, signer: Signer, names: tuple[str, ...] = _NAMES) -> None:
    for name in names:
        repository = Repository(name)
        repository.sign(repository.image(), signer)
        repository.load(contents)


def _pod(host: str, *names: str) -> dict[str, Json]:
    return pod(*(f"{host}/{name}:v1" for name in names))


def test_images_are_read_concurrently(
    waiting: tuple[Contents, str], tmp_path: Path
) -> None:
    contents, host = waiting
    signer = Signer()
    _load(contents, signer)
    webhooks = Webhooks(policy("p", block(host, signer)), tmp_path / "c")
    done = webhooks.mutate(_pod(host, *_NAMES))
    assert done.allowed, done.message
    assert set(done.outcomes.values()) == {"pass"}
    assert len(done.outcomes) == len(_NAMES)


def test_no_call_is_repeated(contents: Contents, host: str, tmp_path: Path) -> None:
    signer = Signer()
    _load(contents, signer)
    webhooks = Webhooks(policy("p", block(host, signer)), tmp_path / "c")
    # An image used by two containers is one image.
    assert webhooks.mutate(_pod(host, *_NAMES, "one")).allowed
    assert len(webhooks.calls) == _CALLS_OF_ONE * len(_NAMES)


@pytest.mark.parametrize("missing", _NAMES)
def test_failed_image_affects_only_itself(
    contents: Contents, host: str, tmp_path: Path, missing: str
) -> None:
    signer = Signer()
    _load(contents, signer, tuple(name for name in _NAMES if name != missing))
    unsigned = Repository(missing)
    unsigned.image()
    unsigned.load(contents)
    audited = block(host, signer, failureAction="Audit", mutateDigest=False)
    webhooks = Webhooks(policy("p", audited), tmp_path / "c")
    done = webhooks.mutate(_pod(host, *_NAMES))
    assert done.outcomes == {
        f"{host}/{name}:v1": "fail" if name == missing else "pass" for name in _NAMES
    }


def test_attestations_are_read_concurrently(
    waiting: tuple[Contents, str], tmp_path: Path
) -> None:
    contents, host = waiting
    signer, kind = Signer(), "https://example.com/t"
    for name in _NAMES:
        repository = Repository(name)
        repository.attest(repository.image(), signer, kind, {"name": name})
        repository.load(contents)
    keys = {"publicKeys": signer.pem, "rekor": {"ignoreTlog": True}}
    condition = {"key": "{{ name }}", "operator": "Equals", "value": "{{ image.name }}"}
    attestation = {
        "type": kind,
        "attestors": [{"entries": [{"keys": keys}]}],
        "conditions": [{"all": [condition]}],
    }
    given = {"imageReferences": [f"{host}/*"], "attestations": [attestation]}
    webhooks = Webhooks(policy("p", given), tmp_path / "c")
    done = webhooks.mutate(_pod(host, *_NAMES))
    # Each predicate belongs to its own image.
    assert done.allowed, done.message
    assert list(done.outcomes.values()) == ["pass"] * len(_NAMES)
