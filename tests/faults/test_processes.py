"""Kill processes, break policies, stop the service: nothing is lost or left running."""

import contextlib
import http.client
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.faults.service import Service, free_port, pod, require_label, write_whole
from tests.waiting import HANG_S

pytestmark = pytest.mark.slow
REFUSED = "kyverno_mp_webhook_connections_refused_total"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "policies").mkdir()
    write_whole(tmp_path / "policies" / "a.yaml", require_label("a", "app"))
    running = Service(tmp_path)
    yield running
    running.close()


def policies_of(service: Service) -> dict[str, dict[str, object]]:
    body = json.loads(service.get("/policies")[1])
    return {policy["name"]: policy for policy in body["policies"]}


def test_reviews_are_answered_over_tls(service: Service) -> None:
    assert service.review(pod(app="x"))["allowed"] is True
    answer = service.review(pod())
    assert answer["allowed"] is False
    assert "label app is required" in answer["status"]["message"]


@pytest.mark.parametrize("name", ["worker", "webhook", "leader", "health"])
def test_killed_process_restarts_and_reviews_continue(
    service: Service, name: str
) -> None:
    victim = service.pids(name)[0]
    os.kill(victim, signal.SIGKILL)
    restarted = False
    while not restarted:
        restarted = victim not in service.pids(name) and service.ready()
        # A connection to the killed worker breaks; the API server dials again.
        try:
            assert service.review(pod())["allowed"] is False
        except OSError:
            assert service.review(pod())["allowed"] is False
    service.wait(service.ready)
    service.wait(lambda: victim not in service.pids(name))


def test_killed_leader_publishes_after_its_restart(service: Service) -> None:
    os.kill(service.pids("leader")[0], signal.SIGKILL)
    write_whole(service.policies / "b.yaml", require_label("b", "team"))
    service.wait(lambda: "team" in str(service.review(pod(app="x"))))


@pytest.mark.parametrize("victims", ["helpers", "leader"])
def test_first_policies_are_compiled_by_whoever_lives(
    tmp_path: Path, victims: str
) -> None:
    """A helper that dies takes no policy with it, and none outlives its leader."""
    (tmp_path / "policies").mkdir()
    for number in range(300):
        text = require_label(f"p{number:03}", f"label-{number:03}")
        write_whole(tmp_path / "policies" / f"{number}.yaml", text)
    service = Service(tmp_path)
    with closing(service):
        first = psutil.Process(service.pids("leader")[0])
        helpers: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            helpers = first.children()
            for process in helpers if victims == "helpers" else [first]:
                process.kill()
        service.wait(service.ready)
        service.wait(lambda: len(policies_of(service)) == 300)
        missing = {f"label-{number:03}": "x" for number in range(300)}
        assert service.review(pod(**missing))["allowed"] is True
        del missing["label-299"]
        assert service.review(pod(**missing))["allowed"] is False
        # Those that ended before, or with their leader, are not listed.
        service.wait(lambda: not any(map(psutil.Process.is_running, helpers)))
        leader = psutil.Process(service.pids("leader")[0])
        service.wait(lambda: not leader.children())


def test_policy_takes_effect_in_every_worker(service: Service) -> None:
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(closing(service.connect())) for _ in range(8)]
        for link in links:
            assert service.review_on(link, pod(app="x"))["allowed"] is True
        write_whole(service.policies / "b.yaml", require_label("b", "team"))
        service.wait(
            lambda: (
                not any(
                    service.review_on(link, pod(app="x"))["allowed"] for link in links
                )
            )
        )
    assert json.loads(service.get("/policies")[1])["generation"] >= 1


def test_invalid_policy_affects_only_itself(service: Service) -> None:
    write_whole(service.policies / "b.yaml", require_label("b", "team"))
    service.wait(lambda: "b" in policies_of(service))
    bad = require_label("b", "team").replace("pattern:", "patern:")
    write_whole(service.policies / "b.yaml", bad)
    service.wait(lambda: policies_of(service)["b"]["ready"] is False)
    assert "stays in force" in str(policies_of(service)["b"]["message"])
    assert service.review(pod(app="x"))["allowed"] is False
    assert service.review(pod(app="x", team="y"))["allowed"] is True
    service.wait(service.ready)


@pytest.mark.parametrize("half", ["", "apiVersion: kyverno.io/v1\nkind: [Cluster"])
def test_half_written_file_changes_nothing(service: Service, half: str) -> None:
    (service.policies / "a.yaml").write_text(half)
    service.wait(lambda: bool(json.loads(service.get("/policies")[1])["problems"]))
    assert service.review(pod())["allowed"] is False
    assert policies_of(service)["a"]["ready"] is True


def test_deleted_policy_loses_effect(service: Service) -> None:
    (service.policies / "a.yaml").unlink()
    service.wait(lambda: service.review(pod())["allowed"] is True)
    assert policies_of(service) == {}


def test_sigterm_finishes_accepted_requests_and_leaves_no_process(
    service: Service,
) -> None:
    with closing(service.connect()) as link:
        assert service.review_on(link, pod(app="x"))["allowed"] is True
        family = psutil.Process(service.process.pid).children(recursive=True)
        assert service.stop() == 0
    assert not [child.pid for child in family if child.is_running()]
    assert free_port(service.port)
    assert not service.runtime_dir.exists()


def test_children_exit_with_a_killed_supervisor(service: Service) -> None:
    family = psutil.Process(service.process.pid).children(recursive=True)
    assert len(family) == 5
    os.kill(service.process.pid, signal.SIGKILL)
    service.process.wait(HANG_S)
    gone, left = psutil.wait_procs(family, timeout=HANG_S)
    assert (len(gone), left) == (5, [])


def test_crash_loop_is_reported_and_reviews_continue(service: Service) -> None:
    for _ in range(5):
        service.wait(lambda: service.pids("leader")[0] != 0)
        os.kill(service.pids("leader")[0], signal.SIGKILL)
        time.sleep(0.4)
    service.wait(lambda: "crash loop" in service.get("/healthz")[1])
    assert service.get("/healthz")[0] == 503
    assert service.get("/health/liveness")[0] == 200
    assert service.ready()
    assert service.review(pod())["allowed"] is False


@pytest.mark.parametrize("breaks", ["arbiter", "certificate"])
def test_a_webhook_in_a_crash_loop_refuses_connections(
    tmp_path: Path, breaks: str
) -> None:
    """The API server's failurePolicy decides at once, not after its timeout.

    Without a valid certificate, every worker ends before it serves.
    """
    service = Service(
        tmp_path,
        variables={
            "KYVERNO_MP_CRASH_LOOP_DEATHS": "2",
            "KYVERNO_MP_RESTART_DELAY_S_MIN": "5",
            "KYVERNO_MP_RESTART_DELAY_S_MAX": "10",
        },
    )

    def is_refused() -> bool:
        if breaks == "arbiter" and (arbiter := service.pid_now("webhook")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(arbiter, signal.SIGKILL)
            return False
        try:
            service.review(pod())
        except TimeoutError:
            return False
        except (OSError, http.client.HTTPException):
            counted = re.search(rf"{REFUSED} (\d+)", service.get("/metrics")[1])
            return counted is not None and int(counted[1]) > 0
        return False

    with contextlib.closing(service):
        certificate = service.runtime_dir / "tls" / "tls.crt"
        good = certificate.read_bytes()
        if breaks == "certificate":
            certificate.write_bytes(b"")
            for worker in service.pids("worker"):
                os.kill(worker, signal.SIGKILL)
        service.wait(is_refused)
        assert service.get("/health/liveness")[0] == 503
        certificate.write_bytes(good)
        service.wait(service.ready)
        assert service.review(pod())["allowed"] is True


def test_metrics_count_reviews(service: Service) -> None:
    for _ in range(3):
        service.review(pod())
    text = service.get("/metrics")[1]
    line = next(
        line
        for line in text.splitlines()
        if line.startswith("kyverno_admission_requests_total")
    )
    assert line.endswith(" 3")
    assert 'request_allowed="false"' in line
    assert 'resource_kind="Pod"' in line
    result = next(
        line
        for line in text.splitlines()
        if line.startswith("kyverno_policy_results_total")
    )
    assert result.endswith(" 3")
    assert 'policy_name="a"' in result
    assert 'rule_name="has-label",rule_result="fail"' in result


def test_sighup_reloads_everything(service: Service) -> None:
    path = service.policies / "a.yaml"
    facts = path.stat()
    path.write_text(path.read_text().replace("app", "api"))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    service.process.send_signal(signal.SIGHUP)
    service.wait(lambda: service.review(pod(api="x"))["allowed"] is True)
    assert service.process.poll() is None


def test_every_log_line_is_json(service: Service) -> None:
    service.review(pod())
    service.stop()
    lines = service.errors().splitlines()
    assert lines
    for line in lines:
        assert json.loads(line)["message"]


def test_costly_policies_delay_no_other_policy(
    service: Service,
) -> None:
    """The leader survives and logs the reason; its successor pays the cost once."""
    text = " || ".join(["object.metadata.name == 'a'"] * 2000)
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "validate": {"cel": {"expressions": [{"expression": text}] * 12}},
    }
    leader = service.pids("leader")
    for number in range(14):
        document = {
            "apiVersion": "kyverno.io/v1",
            "kind": "Policy",
            "metadata": {"name": f"costly-{number}", "namespace": "tenant"},
            "spec": {"rules": [rule]},
        }
        path = service.policies / f"a-costly-{number}.yaml"
        write_whole(path, json.dumps(document))
    write_whole(service.policies / "b.yaml", require_label("b", "team"))
    service.wait(lambda: "team" in str(service.review(pod(app="x"))))
    told = policies_of(service)
    assert "costly-13" not in told, "the others came first"
    for number in range(14):  # each one has its own limit
        name = f"costly-{number}"
        service.wait(lambda: name in policies_of(service))  # noqa: B023 - called here
    told = policies_of(service)
    assert {told[f"costly-{n}"]["code"] for n in range(14)} == {"policy.too_costly"}
    assert service.pids("leader") == leader
    os.kill(leader[0], signal.SIGKILL)
    write_whole(service.policies / "c.yaml", require_label("c", "owner"))
    # A policy that was rejected for its cost is not compiled again.
    service.wait(lambda: "owner" in str(service.review(pod(app="x", team="x"))))
