"""Recorded AdmissionReviews, posted as bytes over TLS, get the real webhook's answers.

A failure means: an API server gets another ``allowed``, text or warning than before.
One server runs for all cases; each case's policies replace the previous case's in its
folder.
"""

import base64
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.values.patches.json_patch import apply_patch
from tests.conformance.cases import Case, runnable
from tests.conformance.ledger import differs
from tests.conformance.place import ABSENT, PRESENT, without_variable
from tests.ports import free_ports
from tests.waiting import HANG_S

pytestmark = [
    pytest.mark.skipif(not PRESENT, reason=ABSENT),
    pytest.mark.timeout(1200),
]


_DEFAULT_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


def _namespace(name: str) -> dict[str, Any]:
    labels = {"kubernetes.io/metadata.name": name}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    }


def _answer(path: str) -> dict[str, Any]:
    """Answer like an API server without such objects: an empty list, or not found."""
    parts = [part for part in path.partition("?")[0].split("/") if part]
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    spec: dict[str, Any] = {"method": "GET", "urlPath": path}
    if len(rest) == 1:
        spec["response"] = {"kind": "List", "apiVersion": "v1", "items": []}
    elif rest[0] == "namespaces" and rest[1] in _DEFAULT_NAMESPACES:
        spec["response"] = _namespace(rest[1])
    else:
        spec["error"] = "the server could not find the requested resource"
    return {
        "apiVersion": "kyverno-mp.io/v1alpha1",
        "kind": "ApiCallAnswer",
        "metadata": {"name": "recorded"},
        "spec": spec,
    }


def _paths(recorded: dict[str, Any]) -> set[str]:
    """Return the API paths that the policies request, with the request's namespace."""
    texts = re.findall(r'"urlPath": "([^"]*)"', json.dumps(recorded["policies"]))
    spaces = {review["request"]["namespace"] for review in recorded["reviews"]}
    paths = set()
    for text in texts:
        for space in spaces:
            path = re.sub(r"{{ *request\.namespace *}}", space, text)
            if "{{" not in path and path.startswith("/api"):
                paths.add(path)
    # Paths that depend on the object are listed in the recorded texts.
    answers = " ".join(json.dumps(recorded["reviews"]).replace("\\n", " ").split())
    paths.update(re.findall(r"raw url: (/api[^ :]*):", answers))
    return paths


class _Server:
    """A standalone kyverno-mp whose policy folder the tests fill."""

    def __init__(self, folder: Path) -> None:
        self.policies = folder / "policies"
        self.policies.mkdir()
        self.resources = folder / "resources"
        self.resources.mkdir()
        (self.resources / "namespaces.yaml").write_text(
            yaml.safe_dump_all(_namespace(name) for name in _DEFAULT_NAMESPACES)
        )
        self.port, self.health = free_ports(2)
        self.log = folder / "log"
        self._log = self.log.open("wb")
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "kyverno_mp",
                "serve",
                "--standalone",
                "--allow-empty",
                "--policies",
                str(self.policies),
                "--resources",
                str(self.resources),
                "--host",
                "127.0.0.1",
                "--port",
                str(self.port),
                "--health-port",
                str(self.health),
                "--workers",
                "1",
            ],
            stdout=self._log,
            stderr=self._log,
            env={
                **without_variable(os.environ),
                "KYVERNO_MP_DASHBOARD": "false",
                "KYVERNO_MP_POLICIES_POLL_MS": "50",
                "KYVERNO_MP_RUNTIME_DIR": str(folder / "run"),
            },
        )
        self._installed: list[Any] = []
        tls = ssl.create_default_context()
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
        self._reviews = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=HANG_S, context=tls
        )
        """Kept open, as the API server keeps its own: a handshake costs more."""

    def install(self, documents: list[Any]) -> None:
        """Replace the policies and wait until every worker serves them."""
        if documents == self._installed:
            return
        self._installed = documents
        before = self._status().get("generation", 0)
        temporary = self.policies / ".new"
        temporary.write_text(yaml.safe_dump_all(documents))
        temporary.rename(self.policies / "policies.yaml")
        names = sorted(
            d["metadata"]["name"] for d in documents if d["kind"] != "PolicyException"
        )
        end = time.monotonic() + HANG_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                pytest.fail(f"the server ended: {self.log.read_text()[-2000:]}")
            status = self._status()
            found = sorted(p["name"] for p in status.get("policies", []))
            if found == names and status["generation"] > before:
                return
            time.sleep(0.02)
        pytest.fail(f"policies not in force: {status}")

    def give(self, paths: set[str]) -> None:
        """Let the fake API server answer GET requests for these paths."""
        text = yaml.safe_dump_all(_answer(path) for path in sorted(paths))
        file = self.resources / "answers.yaml"
        if not file.exists() or file.read_text() != text:
            temporary = self.resources / ".new"
            temporary.write_text(text)
            temporary.rename(file)
            time.sleep(1.0)

    def _status(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.health}/policies"
        try:
            with urllib.request.urlopen(url, timeout=HANG_S) as answer:
                data: dict[str, Any] = json.load(answer)
                return data
        except OSError:
            return {}

    def post(self, path: str, review: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Post a review; return the HTTP code and the decoded answer."""
        body, headers = json.dumps(review), {"Content-Type": "application/json"}
        self._reviews.request("POST", f"{path}?timeout=10s", body, headers)
        answer = self._reviews.getresponse()
        return answer.status, json.load(answer)

    def stop(self) -> None:
        """End the server and wait."""
        self._reviews.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Server]:
    folder = tmp_path_factory.mktemp("server")
    running = _Server(folder)
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


def _cases() -> Iterator[Any]:
    for case in runnable():
        recorded = case.data("webhook.json")
        if recorded and recorded["reviews"] and not recorded["refused"]:
            yield pytest.param(case, recorded, id=case.id)


def _needs_network(answer: dict[str, Any]) -> bool:
    text = (answer["response"].get("status") or {}).get("message", "")
    return "dial tcp" in " ".join(text.split())


def _patched(review: dict[str, Any], response: dict[str, Any]) -> Any:
    """Return the object after the answer's patch; the patches themselves may differ."""
    patch = response.get("patch")
    if patch is None:
        return None
    if isinstance(patch, str):
        assert response["patchType"] == "JSONPatch"
        patch = json.loads(base64.b64decode(patch))
    return apply_patch(review["object"], patch)


def _comparable(review: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    return {
        "patched": _patched(review, response),
        "allowed": response.get("allowed"),
        "message": (response.get("status") or {}).get("message"),
        "warnings": sorted(response.get("warnings") or []),
    }


@pytest.mark.parametrize(("case", "recorded"), list(_cases()))
def test_answers(server: _Server, case: Case, recorded: dict[str, Any]) -> None:
    server.give(_paths(recorded))
    server.install(recorded["policies"] + recorded["exceptions"])
    expected: list[Any] = []
    actual: list[Any] = []
    for index, review in enumerate(recorded["reviews"]):
        for path, answer in review["answers"].items():
            if review.get("unstable") or answer.get("unstable"):
                continue
            if _needs_network(answer):
                continue
            body = {
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "request": review["request"],
            }
            code, got = server.post(path, body)
            expected.append(
                (
                    index,
                    path,
                    answer["code"],
                    _comparable(review["request"], answer["response"]),
                )
            )
            actual.append(
                (index, path, code, _comparable(review["request"], got["response"]))
            )
    with differs(case.id, "webhook", same=expected == actual):
        assert expected == actual
