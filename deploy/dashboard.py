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
_UID: Final = "kyverno-mp"
_WIDTH: Final = 24
_HEIGHT: Final = 7
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_SELECTORS: Final = {
    "in": 'instance=~"$instance"',
    "here": 'instance=~"$instance",resource_namespace=~"$namespace"',
    "of": (
        'instance=~"$instance",policy_name=~"$policy",resource_namespace=~"$namespace"'
    ),
}
_SELECTED: Final = re.compile(r"\$(in|here|of)\b")


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. ``queries``: legend and PromQL.

    ``$in`` selects the instances, ``$here`` also the namespaces, ``$of`` also the
    policies. ``link``: the variable that a click on a series sets, and its label.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    link: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels below a title."""

    title: str
    panels: tuple[Panel, ...]


_DURATION: Final = "kyverno_admission_review_duration_seconds"


def _rate(metric: str, by: str = "") -> str:
    """Return the rate of a counter, summed by a label."""
    total = f"sum by ({by})" if by else "sum"
    return f"{total} (rate({metric}$in[$__rate_interval]))"


def _quantile(share: float, metric: str = _DURATION, selector: str = "$in") -> str:
    rate = f"sum by (le) (rate({metric}_bucket{selector}[$__rate_interval]))"
    return f"histogram_quantile({share}, {rate})"


_RESULTS: Final = "kyverno_policy_results_total"
_EXECUTION: Final = "kyverno_policy_execution_duration_seconds"


def _top(metric: str, by: str, selector: str = "$of") -> str:
    rate = f"rate({metric}{selector}[$__rate_interval])"
    return f"topk(10, sum by ({by}) ({rate}))"


def _failed(by: str) -> str:
    return _top(_RESULTS, by, f'{{{_SELECTORS["of"]},rule_result="fail"}}')


_TO_POLICY: Final = ("policy", "policy_name")
_TO_NAMESPACE: Final = ("namespace", "resource_namespace")
_OVERVIEW: Final = (
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
    Panel(
        "Denied, by policy",
        "ops",
        (("{{policy_name}}", _failed("policy_name")),),
        link=_TO_POLICY,
    ),
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

_DRILL_DOWN: Final = (
    Panel(
        "Results",
        "ops",
        (
            (
                "{{rule_result}}",
                f"sum by (rule_result) (rate({_RESULTS}$of[$__rate_interval]))",
            ),
        ),
    ),
    Panel(
        "Failures, by namespace",
        "ops",
        (("{{resource_namespace}}", _failed("resource_namespace")),),
        link=_TO_NAMESPACE,
    ),
    Panel(
        "Failures, by rule",
        "ops",
        (("{{policy_name}}: {{rule_name}}", _failed("policy_name, rule_name")),),
        link=_TO_POLICY,
    ),
    Panel(
        "Time spent, by policy",
        "percentunit",
        (("{{policy_name}}", _top(f"{_EXECUTION}_sum", "policy_name")),),
        link=_TO_POLICY,
    ),
    Panel(
        "Duration of rules",
        "s",
        (
            ("median", _quantile(0.5, _EXECUTION, "$of")),
            ("99 %", _quantile(0.99, _EXECUTION, "$of")),
        ),
    ),
    Panel(
        "Reviews, by namespace",
        "reqps",
        (
            (
                "{{resource_namespace}}",
                _top("kyverno_admission_requests_total", "resource_namespace", "$here"),
            ),
        ),
        link=_TO_NAMESPACE,
    ),
)
_POOLS: Final = (
    Panel(
        "Leases held",
        "none",
        (("{{lease}}", "sum by (lease) (kyverno_mp_lease_held$in)"),),
        "stat",
    ),
    Panel(
        "Missing permissions",
        "none",
        (
            (
                "{{account}}: {{verb}} {{resource}}",
                "max by (account, verb, resource) (kyverno_mp_missing_permissions$in)",
            ),
        ),
    ),
    Panel(
        "Notifications",
        "ops",
        (("{{outcome}}", _rate("kyverno_mp_notifications_total", "outcome")),),
    ),
    Panel(
        "UpdateRequests",
        "ops",
        (
            (
                "{{request_type}}: {{outcome}}",
                _rate("kyverno_mp_background_requests_total", "request_type, outcome"),
            ),
        ),
    ),
    Panel(
        "Waiting",
        "none",
        (
            ("UpdateRequests", "max(kyverno_mp_background_waiting$in)"),
            ("triggers", "sum(kyverno_mp_triggers_waiting$in)"),
            ("results of reviews", "max(kyverno_mp_review_results_unmerged$in)"),
        ),
    ),
    Panel(
        "Generated and mutated objects",
        "ops",
        (("{{action}}", _rate("kyverno_mp_background_writes_total", "action")),),
    ),
    Panel(
        "Evaluated for reports",
        "ops",
        (("{{outcome}}", _rate("kyverno_mp_reports_evaluated_total", "outcome")),),
    ),
    Panel(
        "From a change to its report",
        "s",
        (
            ("median", _quantile(0.5, "kyverno_mp_reports_staleness_seconds")),
            ("99 %", _quantile(0.99, "kyverno_mp_reports_staleness_seconds")),
        ),
    ),
    Panel(
        "Deleted by clean-up",
        "ops",
        (
            ("policies", _rate("kyverno_cleanup_controller_deletedobjects_total")),
            ("TTL labels", _rate("kyverno_ttl_controller_deletedobjects_total")),
            (
                "DeletingPolicies",
                _rate("kyverno_deleting_controller_deletedobjects_total"),
            ),
        ),
    ),
)
ROWS: Final = (
    Row("Overview", _OVERVIEW),
    Row("By policy and namespace", _DRILL_DOWN),
    Row("Pools", _POOLS),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's import format."""
    return {
        "uid": _UID,
        "title": "kyverno-mp",
        "description": "Admission reviews, policies and processes of kyverno-mp.",
        "tags": ["kyverno", "kyverno-mp"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                _source(),
                _variable("instance", "Instance", "kyverno_info, instance"),
                _variable("policy", "Policy", f"{_RESULTS}, policy_name"),
                _variable(
                    "namespace",
                    "Namespace",
                    "kyverno_admission_requests_total, resource_namespace",
                ),
            ]
        },
        "panels": _panels(),
    }


def _source() -> dict[str, Any]:
    return {
        "name": "source",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }


def _variable(name: str, label: str, values: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values({values})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
    }


def _panels() -> list[dict[str, Any]]:
    """Return rows and panels, from left to right and from top to bottom."""
    found: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
        found.append(_row(len(found) + 1, row, y))
        x, y = 0, y + 1
        for panel in row.panels:
            if x + panel.width > _WIDTH:
                x, y = 0, y + _HEIGHT
            found.append(_panel(len(found) + 1, panel, x, y))
            x += panel.width
        y += _HEIGHT
    return found


def _row(number: int, row: Row, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "title": row.title,
        "type": "row",
        "collapsed": False,
        "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
        "panels": [],
        "targets": [],
    }


def _links(panel: Panel) -> list[dict[str, Any]]:
    """Return the link of a series: the same dashboard, with one value selected."""
    if panel.link is None:
        return []
    variable, label = panel.link
    others = [name for name in ("instance", "policy", "namespace") if name != variable]
    kept = "&".join(f"${{{name}:queryparam}}" for name in ("source", *others))
    url = f"/d/{_UID}?var-{variable}=${{__field.labels.{label}}}&{kept}"
    title = f"Only this {variable}"
    return [{"title": title, "url": f"{url}&${{__url_time_range}}"}]


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "title": panel.title,
        "type": panel.kind,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": _HEIGHT},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "links": _links(panel)},
            "overrides": [],
        },
        "targets": [
            {
                "refId": "ABCDEFGH"[at],
                "datasource": _SOURCE,
                "expr": _SELECTED.sub(_selector, query),
                "legendFormat": legend or "__auto",
            }
            for at, (legend, query) in enumerate(panel.queries)
        ],
    }


def _selector(found: re.Match[str]) -> str:
    return f"{{{_SELECTORS[found[1]]}}}"


def text() -> str:
    """Return the text of dashboard.json."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
