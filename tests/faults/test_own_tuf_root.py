"""A running service trusts the keyless signatures of the operator's own Sigstore.

A failure means: with ``KYVERNO_MP_ENABLE_TUF`` images of the own Sigstore are denied,
or without its root they are accepted.
"""

import base64
import contextlib
import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.service import Service, review_of
from tests.image_rig import Contents, Repository, Signer, payload_for, serving
from tests.image_rig import signed_policy as keyed_policy
from tests.images.rig import ISSUER, SUBJECT, Sigstore, pem, pem_key
from tests.images.tuf_rig import TufRepository

pytestmark = pytest.mark.slow


class Place:
    """A registry with a keyless signature, and a mirror with its roots."""

    def __init__(self, host: str, contents: Contents) -> None:
        self.host = host
        own, now = Sigstore(), dt.datetime.now(dt.UTC)
        # Valid for hours, so that a slow machine changes nothing.
        hours = dt.timedelta(hours=5)
        signer = own.leaf(begin=now - hours, end=now + hours)
        repository = Repository("app")
        digest = repository.image()
        layer = own.layer(signer, payload_for(digest), at=now)
        repository.attach_layers(digest, "sig", [layer])
        repository.load(contents)
        files = {
            "rekor.pub": pem_key(own.rekor).encode(),
            "ctfe.pub": pem_key(own.ctlog).encode(),
            "fulcio.crt.pem": pem(own.root.certificate).encode(),
        }
        usages = {"rekor.pub": "Rekor", "ctfe.pub": "CTFE", "fulcio.crt.pem": "Fulcio"}
        tuf = TufRepository(files, usages)
        self.root = tuf.root
        for name, body in tuf.served.items():
            contents.answers["GET", f"/tuf/{name}"] = (200, {}, body)

    def policy(self) -> str:
        made = yaml.safe_load(keyed_policy(self.host, Signer()))
        (block,) = made["spec"]["rules"][0]["verifyImages"]
        log = {"url": "https://rekor.example"}
        keyless = {"subject": SUBJECT, "issuer": ISSUER, "rekor": log}
        block["attestors"] = [{"entries": [{"keyless": keyless}]}]
        return yaml.safe_dump(made)

    def ask(self, service: Service) -> dict[str, Any]:
        spec = {"containers": [{"name": "c", "image": f"{self.host}/app:v1"}]}
        raw = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default"},
            "spec": spec,
        }
        with contextlib.closing(service.connect()) as link:
            headers = {"Content-Type": "application/json"}
            body = json.dumps(review_of(raw))
            link.request("POST", "/mutate/fail?timeout=30s", body, headers)
            answer = link.getresponse()
            found = json.loads(answer.read())
        assert answer.status == 200, found
        response: dict[str, Any] = found["response"]
        return response


@pytest.fixture
def place() -> Iterator[Place]:
    contents = Contents()
    with serving(contents, is_canned=False) as host:
        yield Place(host, contents)


@pytest.mark.parametrize("how", ["file", "url", "raw", "none"])
def test_private_sigstore_roots_are_trusted(
    place: Place, tmp_path: Path, how: str
) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "p.yaml").write_text(place.policy())
    file = tmp_path / "root.json"
    file.write_bytes(place.root)
    given = {
        "file": {"KYVERNO_MP_TUF_ROOT": str(file)},
        "url": {"KYVERNO_MP_TUF_ROOT": f"http://{place.host}/tuf/1.root.json"},
        "raw": {"KYVERNO_MP_TUF_ROOT_RAW": base64.b64encode(place.root).decode()},
        # Sigstore's public root, which has not signed this repository.
        "none": {},
    }[how]
    variables = {
        "KYVERNO_MP_ENABLE_TUF": "true",
        "KYVERNO_MP_TUF_MIRROR": f"http://{place.host}/tuf",
        # Loopback addresses need a range, also that of a mirror.
        "KYVERNO_MP_HTTP_ALLOWLIST": "127.0.0.0/8",
        "KYVERNO_MP_REGISTRY_ALLOWLIST": "*,127.0.0.0/8",
        **given,
    }
    with contextlib.closing(
        Service(tmp_path, workers=1, variables=variables)
    ) as service:
        response = place.ask(service)
    assert response["allowed"] is (how != "none"), response
    if how == "none":
        assert "failed to get roots from fulcio" in response["status"]["message"]
    else:
        assert response["patch"]
