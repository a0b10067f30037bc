"""Prometheus' own programs read alerts and dashboard, against a running server."""

import contextlib
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import dashboard
from kyverno_mp.telemetry.families import GAUGED, RECORDED
from tests.faults.service import Service, pod, require_label, write_whole
from tests.packages.rendered import DEPLOY, ROOT
from tests.ports import free_port
from tests.waiting import HANG_S

pytestmark = pytest.mark.slow
ALERTS = DEPLOY / "monitoring" / "alerts.yaml"
CASES = Path(__file__).parent / "alerts_test.yaml"
_METRIC = re.compile(r"\bkyverno_[a-z_]+")


def _metrics_of(row: dashboard.Row) -> set[str]:
    """Return the metrics of a row's panels."""
    shown = [query for panel in row.panels for _, query in panel.queries]
    return {metric for query in shown for metric in _METRIC.findall(query)}


IN_A_CLUSTER_ONLY = {
    *("kyverno_mp_policies_age_seconds", "kyverno_client_queries_total"),
    *(metric for row in dashboard.ROWS[-1:] for metric in _metrics_of(row)),
}
QUIET = {
    "kyverno_mp_errors_total",
    "kyverno_mp_process_restarts_total",
    "kyverno_mp_registry_calls_total",
}
"""Counters without a series or a rate as long as nothing happens."""


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def queries() -> list[str]:
    panels = dashboard.dashboard()["panels"]
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    return [*shown, *(rule["expr"] for rule in alerts())]


def metrics_of(query: str) -> set[str]:
    return set(_METRIC.findall(query))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    (folder / "policies").mkdir()
    write_whole(folder / "policies" / "a.yaml", require_label("a", "app"))
    running = Service(folder)
    running.review(pod())
    running.review(pod(app="x"))
    yield running
    running.close()


def test_promtool_accepts_the_alerts(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", str(ALERTS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_when_it_should(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "test", "rules", CASES.name],
        cwd=CASES.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_cases_and_a_runbook() -> None:
    """One case in which it fires, one in which it does not, and a section of advice."""
    cases = [
        case
        for test in yaml.safe_load(CASES.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    names = {rule["alert"] for rule in alerts()}
    assert {case["alertname"] for case in cases if "exp_alerts" in case} == names
    assert {case["alertname"] for case in cases if "exp_alerts" not in case} == names
    page = (ROOT / "docs" / "alerts.md").read_text()
    assert set(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == names
    for rule in alerts():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert {"summary", "description"} == set(rule["annotations"])


def test_every_queried_metric_is_exposed(service: Service) -> None:
    text = service.get("/metrics")[1]
    exposed = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    histograms = re.findall(r"^# TYPE (\S+) histogram", text, re.MULTILINE)
    parts = ("bucket", "count", "sum")
    exposed |= {f"{name}_{part}" for name in histograms for part in parts}
    asked = set().union(*map(metrics_of, queries()))
    assert len(asked) > 20
    assert asked <= exposed
    assert {family.name for family in (*RECORDED, *GAUGED)} <= exposed


def test_promtool_finds_no_naming_problems(promtool: str, service: Service) -> None:
    """All names are conventional except upstream's."""
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=service.get("/metrics")[1],
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if line.strip()]
    assert [line for line in said if not line.startswith("kyverno_policy_")] == []
    assert {line.split()[0] for line in said} <= {"kyverno_policy_rule_info_total"}


@pytest.fixture(scope="module")
def asked(
    prometheus: str, service: Service, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Return the URL of a Prometheus that has scraped the service for a while."""
    folder = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    config = {
        "global": {
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "evaluation_interval": "2s",
        },
        "rule_files": [str(ALERTS)],
        "scrape_configs": [
            {
                "job_name": "kyverno-mp",
                "static_configs": [{"targets": [f"localhost:{service.health_port}"]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                prometheus,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        service.wait(lambda: _scrapes(url) >= 5)
        yield url
    finally:
        process.terminate()
        process.wait(HANG_S)


def _scrapes(url: str) -> float:
    result = _ask(url, "sum(count_over_time(up[1m]) * up)")["result"]
    return float(result[0]["value"][1]) if result else 0.0


def _ask(url: str, query: str) -> dict[str, Any]:
    text = re.sub(r"\$(instance|policy|namespace)", ".*", query)
    text = text.replace("$__rate_interval", "1m")
    words = urllib.parse.urlencode({"query": text})
    with urllib.request.urlopen(
        f"{url}/api/v1/query?{words}", timeout=HANG_S
    ) as answer:
        body = json.loads(answer.read())
    assert body["status"] == "success", query
    found: dict[str, Any] = body["data"]
    return found


def test_prometheus_scrapes_openmetrics_and_answers_every_query(
    asked: str, service: Service
) -> None:
    """Each panel has data, except for what only a cluster or a fault causes.

    Pools run only in a cluster.
    """
    service.review(pod())
    time.sleep(2)
    panels = dashboard.dashboard()["panels"]
    for panel in panels:
        for target in panel["targets"]:
            found = _ask(asked, target["expr"])["result"]
            if not metrics_of(target["expr"]) & (IN_A_CLUSTER_ONLY | QUIET):
                assert found, target["expr"]
    for rule in alerts():
        _ask(asked, rule["expr"])


def test_links_of_the_dashboard_select_what_a_series_shows() -> None:
    """The label is one of the series', the variable one of the dashboard's."""
    found = dashboard.dashboard()
    variables = {variable["name"] for variable in found["templating"]["list"]}
    linked = [panel for row in dashboard.ROWS for panel in row.panels if panel.link]
    assert {panel.link[0] for panel in linked if panel.link} == {"policy", "namespace"}
    for panel in linked:
        assert panel.link is not None
        variable, label = panel.link
        assert variable in variables
        for legend, query in panel.queries:
            assert f"{{{{{label}}}}}" in legend
            assert re.search(rf"by \([^)]*\b{label}\b", query)
            assert "$in" not in query.replace("$instance", "")


def test_healthy_server_raises_no_alert(asked: str, service: Service) -> None:
    """Delays of a busy machine end soon; a wrong alert stays pending."""
    service.wait(lambda: {one["health"] for one in _rules(asked)} == {"ok"})
    assert len(_rules(asked)) == len(alerts())
    with contextlib.suppress(AssertionError):
        service.wait(lambda: not _raised(asked))
    assert _raised(asked) == []


def _raised(url: str) -> list[str]:
    """Return the alerts that are pending or firing."""
    return [one["name"] for one in _rules(url) if one["state"] != "inactive"]


def _rules(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/api/v1/rules", timeout=HANG_S) as answer:
        groups = json.loads(answer.read())["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]
