"""What a worker may not read for policies is known to the pod's health.

A failure means: a context entry fails for ever with 403, and neither /healthz nor an
alert names the permission.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from kyverno_mp.errors import DependencyError, ExpressionFailed
from kyverno_mp.kube.rights import ADMISSION_ACCOUNT, MissingRights, Right
from kyverno_mp.kube.shared_rights import SharedRights, read_rights
from kyverno_mp.limits import RIGHTS_REFUSED_S
from kyverno_mp.program.ports import AccessQuery, ApiRequest
from kyverno_mp.settings.settings import Settings
from kyverno_mp.webhook import live as live_of_worker
from kyverno_mp.webhook.live import Live, live_ports
from kyverno_mp.webhook.shared import SharedClusterData
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import far_ns

REVIEWS = "subjectaccessreviews.authorization.k8s.io"
SEGMENTS = ("namespaces", "configmaps", "roles", "globalcontext", "apicalls")


def ports(api: FakeApi, rights: MissingRights) -> Live:
    """Return the ports of a worker."""
    with patch.object(live_of_worker, "open_client", lambda _settings: api.client()):
        live = live_ports(
            Settings(),
            SharedClusterData(dict.fromkeys(SEGMENTS, lambda: None)),
            lambda: None,
            lambda _labels: None,
            rights=rights,
        )
    assert live is not None
    return live


def deny(api: FakeApi, verb: str) -> None:
    message = f'x "y" is forbidden: User "u" cannot {verb} resource "x" in API group ""'
    fault = {"code": 403, "reason": "Forbidden", "message": message}
    api.fault("", fault)


def _call(live: Live) -> object:
    request = ApiRequest("GET", "/api/v1/namespaces/a/pods")
    return live.api_calls.call(request, far_ns())


def _resource(live: Live) -> object:
    assert live.cel.resources is not None
    return live.cel.resources.get("v1", "pods", ("a", "x"), far_ns())


CALLS: dict[str, tuple[Callable[[Live], object], str, str, str]] = {
    "apiCall": (_call, "list", "pods", "a"),
    "resource.Get": (_resource, "get", "pods", "a"),
    "configMap": (
        lambda live: live.config_maps.config_map("a", "x", far_ns()),
        *("get", "configmaps", "a"),
    ),
    "namespaceObject": (
        lambda live: live.namespaces.namespace("a", far_ns()),
        *("get", "namespaces", ""),
    ),
    "authorizer": (
        lambda live: live.authority.may(AccessQuery("u"), far_ns()),
        *("create", REVIEWS, ""),
    ),
    "imagePullSecrets": (
        lambda live: live.read_secret("x"),
        *("get", "secrets", "kyverno"),
    ),
    "key": (
        lambda live: live.read_key_secret("a", "x", far_ns()),
        *("get", "secrets", "a"),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_rejected_call_of_a_worker_is_known(
    name: str, api: FakeApi, tmp_path: Path
) -> None:
    call, verb, resource, namespace = CALLS[name]
    shared = SharedRights(tmp_path, ADMISSION_ACCOUNT)
    live = ports(api, shared.rights)
    deny(api, verb)
    with pytest.raises((DependencyError, ExpressionFailed)):
        call(live)
    shared.write()
    (account,) = read_rights(tmp_path)
    assert account.missing() == {Right(verb, resource, namespace): ""}
    (problem,) = account.problems()
    assert problem.startswith(f"{ADMISSION_ACCOUNT} may not {verb} {resource}")
    assert f"--verb={verb}" in problem


def test_cause_is_logged_once_and_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 0.0
    shared = SharedRights(tmp_path, ADMISSION_ACCOUNT, lambda: now_s)
    caplog.set_level(logging.WARNING)

    def refuse(namespace: str) -> None:
        message = 'x is forbidden: User "u" cannot get resource "pods" in API group ""'
        path = f"/api/v1/namespaces/{namespace}/pods/x"
        shared.rights.heard("GET", path, (), 403, message)
        shared.write()

    for namespace in ("a", "b", "a"):
        refuse(namespace)
    assert [record.getMessage()[:61] for record in caplog.records] == [
        "kyverno-admission-controller may not get pods in a; to grant "
    ]
    (account,) = read_rights(tmp_path)
    assert " in a, b; to grant it: " in account.problems()[0]
    now_s = RIGHTS_REFUSED_S + 1
    shared.write()
    (account,) = read_rights(tmp_path)
    assert account.problems() == []
    refuse("a")
    assert len(caplog.records) == 2


def test_rights_of_several_workers_are_one_problem(tmp_path: Path) -> None:
    SharedRights(tmp_path, "a").rights.hold("x", {})
    for namespace in ("x", "y"):
        program = (
            "import sys; from pathlib import Path;"
            "from kyverno_mp.kube.rights import Right;"
            "from kyverno_mp.kube.shared_rights import SharedRights;"
            f"s = SharedRights(Path({str(tmp_path)!r}), 'kyverno-reports-controller');"
            f"s.rights.hold('c', {{Right('get', 'pods', {namespace!r}): ''}});"
            "s.write();"
            "print(flush=True); sys.stdin.read()"
        )
        _started(program)
    (account,) = read_rights(tmp_path)
    (problem,) = account.problems()
    assert problem.startswith("kyverno-reports-controller may not get pods in x, y;")
    _end_all()
    assert read_rights(tmp_path) == []
    assert not list(tmp_path.iterdir())


_PROGRAMS: list[subprocess.Popen[bytes]] = []


def _started(program: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    _PROGRAMS.append(child)
    assert child.stdout is not None
    assert child.stdout.readline()


def _end_all() -> None:
    while _PROGRAMS:
        _PROGRAMS.pop().communicate()


def test_damaged_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / f"{os.getpid()}.rights").write_bytes(b"{")
    (tmp_path / "x.rights").write_bytes(
        msgspec.json.encode({"account": "a", "ticks": 1, "rights": []})
    )
    assert read_rights(tmp_path) == []
