"""The service verifies images over TLS; its crashes and bad registries do no harm."""

import base64
import contextlib
import http.client
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.service import Service, pod, review_of
from tests.image_rig import Contents, Repository, Signer, serving
from tests.unit.webhook.images.test_image_lanes import hanging
from tests.unit.webhook.images.test_images import ANNOTATION, block, policy, signed

_ALLOWS = {"KYVERNO_MP_REGISTRY_ALLOWLIST": "*,127.0.0.0/8"}


@pytest.fixture
def contents() -> Contents:
    return Contents()


@pytest.fixture
def host(contents: Contents) -> Iterator[str]:
    with serving(contents, is_canned=False) as found:
        yield found


@contextlib.contextmanager
def running(tmp_path: Path, policies: str, *flags: str) -> Iterator[Service]:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "p.yaml").write_text(policies)
    service = Service(tmp_path, *flags, variables=_ALLOWS)
    try:
        service.wait(service.ready)
        yield service
    finally:
        service.close()


def mutate(service: Service, image: str, query: str = "") -> dict[str, Any]:
    given = pod()
    given["spec"]["containers"][0]["image"] = image
    with contextlib.closing(service.connect()) as link:
        return ask(link, f"/mutate/fail{query}", given)


def ask(
    link: http.client.HTTPSConnection, path: str, given: dict[str, Any]
) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    link.request("POST", path, json.dumps(review_of(given)), headers)
    answer = link.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    response: dict[str, Any] = json.loads(body)["response"]
    return response


def counted(service: Service, event: str) -> int:
    _, page = service.get("/metrics")
    found = re.search(
        rf'kyverno_mp_image_verify_cache_total\{{event="{event}"\}} (\d+)', page
    )
    return int(found[1]) if found else 0


def test_killed_worker_loses_no_result(
    tmp_path: Path, contents: Contents, host: str
) -> None:
    signer = Signer()
    digest = signed(contents, signer)
    with running(tmp_path, policy("p", block(host, signer))) as service:
        first = mutate(service, f"{host}/app:v1")
        assert first["allowed"]
        patch = {
            one["path"]: one["value"]
            for one in json.loads(base64.b64decode(first["patch"]))
        }
        assert patch["/spec/containers/0/image"] == f"{host}/app:v1@{digest}"
        assert any(ANNOTATION in str(value) for value in patch.items()) or any(
            path.endswith("verify-images") for path in patch
        )
        before = service.pids("worker")
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        service.wait(lambda: not set(before) & set(service.pids("worker")))
        service.wait(service.ready)
        assert mutate(service, f"{host}/app:v1")["allowed"]
        service.wait(lambda: counted(service, "hit") == 1)


def test_signature_by_another_signer_is_denied(
    tmp_path: Path, contents: Contents, host: str
) -> None:
    signed(contents, Signer())
    with running(tmp_path, policy("p", block(host, Signer()))) as service:
        denied = mutate(service, f"{host}/app:v1")
        assert not denied["allowed"]
        assert "failed to verify image" in denied["status"]["message"]


def test_hanging_registry_delays_no_other_review(
    tmp_path: Path, contents: Contents, host: str
) -> None:
    """One connection waits for the dead registry; another is served meanwhile."""
    signer = Signer()
    signed(contents, signer)
    with hanging() as (dead, release):
        policies = policy("p", block(host, signer), block(dead, signer))
        with running(tmp_path, policies, "--workers", "1") as service:
            given = pod()
            given["spec"]["containers"][0]["image"] = f"{dead}/app:v1"
            with contextlib.closing(service.connect()) as link:
                body = json.dumps(review_of(given))
                headers = {"Content-Type": "application/json"}
                link.timeout = 60
                link.request("POST", "/mutate/fail?timeout=30s", body, headers)
                assert mutate(service, f"{host}/app:v1")["allowed"]
                release()
                late = json.loads(link.getresponse().read())["response"]
                assert not late["allowed"]


def test_oversized_answer_is_rejected(
    tmp_path: Path, contents: Contents, host: str
) -> None:
    repository = Repository("app")
    repository.image()
    repository.load(contents)
    contents.answers["GET", "/v2/app/manifests/v1"] = (200, {}, b" " * (5 << 20))
    with running(tmp_path, policy("p", block(host, Signer()))) as service:
        denied = mutate(service, f"{host}/app:v1")
        assert not denied["allowed"]
        assert "is larger than" in denied["status"]["message"]
