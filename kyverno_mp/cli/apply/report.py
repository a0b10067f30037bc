"""Build the policy reports that ``apply --policy-report`` prints.

Room: cli. Takes: responses of evaluate. Gives: report objects as plain data.
May touch: the clock is passed in. Source: docs/behaviour/cli 10 (policy report);
docs/behaviour/engine 8.6.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from kyverno_mp.cli.apply.admission_policies import KINDS as ADMISSION_KINDS
from kyverno_mp.cli.apply.cel_policies import VALIDATING_POLICIES
from kyverno_mp.cli.apply.evaluate import Response
from kyverno_mp.cli.output.yaml_text import dump
from kyverno_mp.program import result
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.program.result import RuleResult
from kyverno_mp.values.jsonvalue import Json

_WORD = {
    result.PASS: "pass",
    result.FAIL: "fail",
    result.WARNING: "warn",
    result.ERROR: "error",
    result.SKIP: "skip",
}
_SUMMARY = ("pass", "fail", "warn", "error", "skip")


def report_word(response: Response, rule: RuleResult, *, audit_warn: bool) -> str:
    """Return pass, fail, warn, error or skip as reports write it."""
    if rule.status == result.FAIL and (
        not response.policy.scored or (audit_warn and response.action == "Audit")
    ):
        return "warn"
    return _WORD[rule.status]


def build_reports(
    responses: Sequence[Response], *, now: datetime, audit_warn: bool = False
) -> list[dict[str, Json]]:
    """Return one merged cluster report, then one report per namespaced response.

    KYVERNO: a response without results has no report, not even an empty one.
    """
    cluster: list[dict[str, Json]] = []
    reports: list[dict[str, Json]] = []
    for response in responses:
        rows = list(_results(response, now, audit_warn=audit_warn))
        if not response.policy.written_namespace:
            cluster.extend(rows)
        elif rows:
            reports.append(
                _report(
                    "PolicyReport",
                    {
                        "name": response.policy.name,
                        "namespace": response.policy.namespace,
                    },
                    rows,
                )
            )
    if cluster:
        reports.insert(0, _report("ClusterReport", {"name": "merged"}, cluster))
    return reports


def _report(
    kind: str, metadata: dict[str, Json], rows: list[dict[str, Json]]
) -> dict[str, Json]:
    summary = dict.fromkeys(_SUMMARY, 0)
    for row in rows:
        summary[row["result"]] += 1
    return {
        "apiVersion": "openreports.io/v1alpha1",
        "kind": kind,
        "metadata": metadata,
        "results": rows,
        "source": "",
        "summary": summary,
    }


def _results(
    response: Response, now: datetime, *, audit_warn: bool
) -> Iterable[dict[str, Json]]:
    policy = response.policy
    for rule in response.results:
        row: dict[str, Json] = {
            "source": _source(policy.kind),
            "policy": policy.written_key,
            "timestamp": {"seconds": int(now.timestamp()), "nanos": 0},
            "result": report_word(response, rule, audit_warn=audit_warn),
            "resources": [_reference(response.resource)],
            "properties": _properties(response, rule),
        }
        if rule.rule:
            row["rule"] = rule.rule
        message = _message(rule)
        if message:
            row["message"] = message
        if policy.scored:
            row["scored"] = True
        if policy.category:
            row["category"] = policy.category
        if policy.severity:
            row["severity"] = policy.severity
        yield row


def _source(kind: str) -> str:
    if kind in VALIDATING_POLICIES:
        return "KyvernoValidatingPolicy"
    return kind if kind in ADMISSION_KINDS else "kyverno"


def _reference(resource: dict[str, Json]) -> dict[str, Json]:
    reference: dict[str, Json] = {
        "apiVersion": resource.get("apiVersion"),
        "kind": resource.get("kind"),
    }
    for key in ("name", "namespace", "uid", "resourceVersion"):
        reference[key] = metadata_text(resource, key)
    return {key: value for key, value in reference.items() if value}


def _message(rule: RuleResult) -> str:
    named = rule.properties.get(f"{_WORD[rule.status]}Message")
    return rule.properties.get("message") or named or rule.message


def _properties(response: Response, rule: RuleResult) -> dict[str, str]:
    policy = response.policy
    properties = dict(rule.properties)
    process = "background scan" if policy.background else "admission review"
    properties["process"] = process if policy.background or policy.admission else ""
    if rule.exceptions:
        properties["exceptions"] = ",".join(
            key.rpartition("/")[2] for key in rule.exceptions
        )
    return properties


def render(reports: Sequence[dict[str, Json]], output_format: str) -> str:
    """Return the reports as YAML documents (the default) or JSON lines."""
    if output_format == "json":
        return "".join(
            json.dumps(report, separators=(",", ":"), ensure_ascii=False) + "\n"
            for report in reports
        )
    parts = []
    for report in reports:
        text = dump(report)
        head = "---\n" if report["kind"] == "PolicyReport" else ""
        parts.append(f"{head}{text}\n")
    return "".join(parts)
