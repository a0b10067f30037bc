"""Write the Grafana dashboard.

Takes: the table of panels below. Gives: deploy/monitoring/dashboard.json. Run as
``python -m deploy.dashboard`` after a change. One test checks that the file is up to
date, and another runs every query against a Prometheus that scrapes a running server.
May touch: that file.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).resolve().parent / "monitoring" / "dashboard.json"
_WIDTH: Final = 24
_HEIGHT: Final = 7
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_IN: Final = '{instance=~"$instance"}'
_SELECTED: Final = re.compile(r"\$in\b")


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. ``queries``: legend and PromQL; ``$in`` selects the instances."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8


_DURATION: Final = "kyverno_admission_review_duration_seconds"


def _rate(metric: str, by: str = "") -> str:
    """Return the rate of a counter, summed by a label."""
    total = f"sum by ({by})" if by else "sum"
    return f"{total} (rate({metric}$in[$__rate_interval]))"


def _quantile(share: float) -> str:
    rate = f"sum by (le) (rate({_DURATION}_bucket$in[$__rate_interval]))"
    return f"histogram_quantile({share}, {rate})"


_FAILED: Final = (
    "topk(10, sum by (policy_name) (rate(kyverno_policy_results_total"
    '{instance=~"$instance",rule_result="fail"}[$__rate_interval])))'
)
PANELS: Final = (
    Panel("Pods ready", "none", (("", "sum(kyverno_mp_ready$in)"),), "stat", 4),
    Panel(
        "Policies",
        "none",
        (("in force: {{ready}}", "max by (ready) (kyverno_mp_policies$in)"),),
        "stat",
        4,
    ),
    Panel("Problems", "none", (("", "max(kyverno_mp_problems$in)"),), "stat", 4),
    Panel(
        "Crash loops",
        "none",
        (("", "sum(kyverno_mp_process_crash_loop$in)"),),
        "stat",
        4,
    ),
    Panel(
        "Certificate expires in",
        "s",
        (("", "min(kyverno_mp_certificate_expiry_timestamp_seconds$in) - time()"),),
        "stat",
        4,
    ),
    Panel(
        "Versions",
        "none",
        (("{{version}}", "count by (version) (kyverno_info$in)"),),
        "stat",
        4,
    ),
    Panel(
        "Reviews",
        "reqps",
        (
            (
                "allowed: {{request_allowed}}",
                _rate("kyverno_admission_requests_total", "request_allowed"),
            ),
        ),
    ),
    Panel(
        "Duration of reviews",
        "s",
        (
            ("median", _quantile(0.5)),
            ("95 %", _quantile(0.95)),
            ("99 %", _quantile(0.99)),
        ),
    ),
    Panel(
        "Results of rules",
        "ops",
        (("{{rule_result}}", _rate("kyverno_policy_results_total", "rule_result")),),
    ),
    Panel("Denied, by policy", "ops", (("{{policy_name}}", _FAILED),)),
    Panel(
        "Errors, by code",
        "ops",
        (("{{code}}", _rate("kyverno_mp_errors_total", "code")),),
    ),
    Panel(
        "Requests to the API server",
        "reqps",
        (("{{operation}}", _rate("kyverno_client_queries_total", "operation")),),
    ),
    Panel(
        "Queues",
        "none",
        (("{{queue}}", "sum by (queue) (kyverno_mp_queue_depth$in)"),),
    ),
    Panel(
        "Dropped",
        "ops",
        (
            ("{{queue}}", _rate("kyverno_mp_queue_dropped_total", "queue")),
            ("Events", _rate("kyverno_events_dropped_total")),
        ),
    ),
    Panel(
        "Age of the policies",
        "s",
        (
            ("confirmed {{instance}}", "kyverno_mp_policies_age_seconds$in"),
            ("changed {{instance}}", "kyverno_mp_snapshot_age_seconds$in"),
        ),
    ),
    Panel(
        "Memory",
        "bytes",
        (("{{process}}", "sum by (process) (kyverno_mp_process_pss_bytes$in)"),),
    ),
    Panel(
        "CPU",
        "none",
        (("{{process}}", _rate("kyverno_mp_process_cpu_seconds_total", "process")),),
    ),
    Panel(
        "Calls to registries",
        "reqps",
        (
            (
                "{{registry}}: {{outcome}}",
                _rate("kyverno_mp_registry_calls_total", "registry, outcome"),
            ),
        ),
    ),
    Panel(
        "Restarts",
        "none",
        (
            (
                "{{process}}",
                "sum by (process) (increase(kyverno_mp_process_restarts_total$in[1h]))",
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's import format."""
    return {
        "uid": "kyverno-mp",
        "title": "kyverno-mp",
        "description": "Admission reviews, policies and processes of kyverno-mp.",
        "tags": ["kyverno", "kyverno-mp"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source(), _instances()]},
        "panels": [
            _panel(number, panel, *place)
            for number, (panel, place) in enumerate(
                zip(PANELS, _places(), strict=True), start=1
            )
        ],
    }


def _source() -> dict[str, Any]:
    return {
        "name": "source",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }


def _instances() -> dict[str, Any]:
    return {
        "name": "instance",
        "label": "Instance",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(kyverno_info, instance)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
    }


def _places() -> list[tuple[int, int]]:
    """Return the column and row of each panel, from left to right."""
    found, x, y = [], 0, 0
    for panel in PANELS:
        if x + panel.width > _WIDTH:
            x, y = 0, y + _HEIGHT
        found.append((x, y))
        x += panel.width
    return found


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "title": panel.title,
        "type": panel.kind,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {
                "refId": "ABCDEFGH"[at],
                "datasource": _SOURCE,
                "expr": _SELECTED.sub(_IN, query),
                "legendFormat": legend or "__auto",
            }
            for at, (legend, query) in enumerate(panel.queries)
        ],
    }


def text() -> str:
    """Return the text of dashboard.json."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
