"""Real proxies ask a running authorizer, while policies change and workers die.

A failure means: nginx or Envoy lets a request through that a policy denies.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.authorizer import (
    Authorizer,
    envoy,
    get,
    nginx,
    upstream,
    write_policy,
)
from tests.unit.webhook.authz.authorizers import wire
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
HTTP_DENY = 'http.Denied("no entry").Response()'
ENVOY_PATH = "object.attributes.request.http.path"


def on(path: str, answer: str = HTTP_DENY) -> str:
    return f"object.attributes.path == '{path}' ? {answer} : null"


@contextlib.contextmanager
def running(
    folder: Path, mode: str, *flags: str, workers: int = 2
) -> Iterator[Authorizer]:
    service = Authorizer(folder, mode, *flags, workers=workers)
    try:
        yield service
    finally:
        service.close()


def judge(service: Authorizer, path: str) -> int:
    return get(service.port, "/", method="POST", body=wire(path))[0]


def test_policies_of_folders_are_watched(tmp_path: Path) -> None:
    policies = tmp_path / "policies"
    write_policy(policies / "team" / "a", "deep", "HTTP", on("/deep"))
    write_policy(policies, "broken", "HTTP", "object.gone")
    write_policy(policies, "top", "HTTP", on("/top"))
    # One worker: the answer of one says nothing of what another has loaded.
    with running(tmp_path, "http", "--nested-request", workers=1) as service:
        # It never compiled, so nobody knows what its author denies.
        assert judge(service, "/") == 500
        assert '"broken"' in service.health("/policies")[1]
        (policies / "broken.yaml").unlink()
        wait_for(lambda: judge(service, "/") == 200)
        assert [judge(service, path) for path in ("/deep", "/top")] == [403, 403]
        assert service.health("/readyz")[0] == 200
        write_policy(policies, "new", "HTTP", on("/"))
        wait_for(lambda: judge(service, "/") == 403)
        # A version that does not compile leaves the last one in force.
        write_policy(policies, "top", "HTTP", "object.gone")
        wait_for(lambda: '"policy.expression"' in service.health("/policies")[1])
        assert judge(service, "/top") == 403
        (policies / "new.yaml").unlink()
        wait_for(lambda: judge(service, "/") == 200)
        assert judge(service, "/top") == 403
        assert (
            'authz_decisions_total{mode="http",decision="deny"'
            in (service.health("/metrics")[1])
        )
        assert service.stop() == 0


def test_a_killed_worker_is_replaced_and_allows_nothing(tmp_path: Path) -> None:
    write_policy(tmp_path / "policies", "all", "HTTP", HTTP_DENY)
    with running(tmp_path, "http", "--nested-request") as service:
        before = set(service.workers())
        for pid in before:
            os.kill(pid, signal.SIGKILL)

        def answered() -> bool:
            with contextlib.suppress(OSError):
                assert judge(service, "/") == 403
            return not before & set(service.workers()) and len(service.workers()) == 2

        wait_for(answered)


def test_nginx_asks_before_it_forwards(tmp_path: Path) -> None:
    write_policy(
        tmp_path / "policies",
        "p",
        "HTTP",
        on("/x"),
        f"object.attributes.method == 'DELETE' ? {HTTP_DENY} : null",
    )
    given = (
        "http.CheckRequest{attributes: http.CheckRequestAttributes{"
        "method: object.attributes.Header('x-original-method')[0],"
        "path: url(object.attributes.Header('x-original-url')[0]).getEscapedPath()}}"
    )
    with (
        running(tmp_path, "http", "--input-expression", given) as service,
        upstream() as behind,
        nginx(tmp_path, service.port, behind) as port,
    ):
        assert get(port, "/y?a=b") == (200, "passed to /y?a=b as None")
        assert get(port, "/x")[0] == 403
        assert get(port, "/x?y")[0] == 403
        assert get(port, "/y", method="DELETE")[0] == 403
        assert get(port, "/y", method="POST", body=b"data")[0] == 200
        assert get(port, "/y", method="OPTIONS")[0] != 403
        service.process.kill()
        wait_for(lambda: get(port, "/y")[0] == 500)


def test_envoy_asks_before_it_forwards(tmp_path: Path) -> None:
    write_policy(
        tmp_path / "policies",
        "p",
        "Envoy",
        f"{ENVOY_PATH} == '/x' ? envoy.Denied(401).WithBody('who').Response() : null",
        "object.attributes.request.http.body == 'bad'"
        " ? envoy.Denied(422).Response() : null",
        f"{ENVOY_PATH} == '/e'"
        " && object.attributes.request.http.headers['gone'] == ''"
        " ? envoy.Allowed().Response() : null",
        f"{ENVOY_PATH} == '/u'"
        " ? envoy.Allowed().WithHeader('x-user', 'ann').Response() : null",
    )
    with (
        running(tmp_path, "envoy") as service,
        upstream() as behind,
        envoy(tmp_path, service.port, behind) as port,
    ):
        assert get(port, "/x") == (401, "who")
        assert get(port, "/u") == (200, "passed to /u as ann")
        # Envoy's own answer to an error.
        assert get(port, "/e")[0] == 403
        assert get(port, "/y", method="POST", body=b"bad")[0] == 422
        assert get(port, "/y", method="POST", body=b"good")[0] == 200
        write_policy(
            tmp_path / "policies", "a", "Envoy", "envoy.Denied(451).Response()"
        )
        wait_for(lambda: get(port, "/y")[0] == 451)
        assert service.stop() == 0
        # Without the authorizer, nothing passes.
        assert get(port, "/u")[0] == 403


def test_a_killed_worker_leaves_no_report_without_policies(tmp_path: Path) -> None:
    policies = tmp_path / "policies"
    write_policy(policies, "denies", "HTTP", HTTP_DENY)
    write_policy(policies, "small", "JSON", "object.size < 10")
    fails = '"summary":{"pass":0,"fail":1,"warn":0,"error":0,"skip":0}'

    def judged(service: Authorizer) -> bool:
        """Return whether there is an answer, which must have the failure."""
        with contextlib.suppress(OSError):
            body = b'{"size": 10}'
            status, answer = get(service.port, "/json", method="POST", body=body)
            assert status == 200
            assert fails in answer
            return True
        return False

    with running(tmp_path, "http", "--json-payloads", workers=1) as service:
        assert judged(service)
        write_policy(policies, "small", "JSON", "object.(")
        wait_for(lambda: '"policy.expression"' in service.health("/policies")[1])
        for _ in range(3):
            before = set(service.workers())
            for pid in before:
                os.kill(pid, signal.SIGKILL)

            def replaced(gone: set[int] = before) -> bool:
                return judged(service) and not gone & set(service.workers())

            wait_for(replaced)
        assert judge(service, "/") == 403
