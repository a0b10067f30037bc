"""Build the policy reports that ``apply --policy-report`` prints.

Room: cli. Takes: responses of evaluate. Gives: report objects as plain data.
May touch: the clock is passed in. Source: docs/behaviour/cli 10 (policy report);
docs/behaviour/engine 8.6.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from kyverno_mp.cli.apply.evaluate import Response
from kyverno_mp.cli.output.yaml_text import dump
from kyverno_mp.program.result import IMAGE_VERIFY, RuleResult
from kyverno_mp.results.entries import Row, merged_report, row_of, subject_of, word_of
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import IMAGE_VALIDATING_POLICY


def report_word(response: Response, rule: RuleResult, *, audit_warn: bool) -> str:
    """Return pass, fail, warn, error or skip as reports write it."""
    as_warning = audit_warn and response.action == "Audit"
    return word_of(response.policy, rule, as_warning=as_warning)


def build_reports(
    responses: Sequence[Response], *, now: datetime, audit_warn: bool = False
) -> list[dict[str, Json]]:
    """Return one merged cluster report, then one report per namespaced response.

    KYVERNO: a response without results has no report, not even an empty one.
    """
    cluster: list[Row] = []
    reports: list[dict[str, Json]] = []
    for response in responses:
        rows = list(_results(response, now, audit_warn=audit_warn))
        if not response.policy.written_namespace:
            cluster.extend(rows)
        elif rows:
            reports.append(
                merged_report(
                    rows,
                    "PolicyReport",
                    {
                        "name": response.policy.name,
                        "namespace": response.policy.namespace,
                    },
                )
            )
    if cluster:
        reports.insert(0, merged_report(cluster))
    return reports


def _results(response: Response, now: datetime, *, audit_warn: bool) -> Iterable[Row]:
    subject = subject_of(response.resource)
    results = response.results
    if not results and response.policy.kind in IMAGE_VALIDATING_POLICY.names:
        # KYVERNO: an ImageValidatingPolicy has a row for unmatched objects, too.
        results = [RuleResult("", IMAGE_VERIFY, "", "")]
    for rule in results:
        yield row_of(
            response.policy,
            rule,
            int(now.timestamp()),
            policy_key=response.policy.written_key,
            as_warning=audit_warn and response.action == "Audit",
            subject=subject,
        )


def render(reports: Sequence[dict[str, Json]], output_format: str) -> str:
    """Return the reports as YAML documents (the default) or JSON lines."""
    if output_format == "json":
        return "".join(
            json.dumps(report, separators=(",", ":"), ensure_ascii=False) + "\n"
            for report in reports
        )
    parts: list[str] = []
    for report in reports:
        document = dump(report)
        head = "---\n" if parts or report["kind"] == "PolicyReport" else ""
        parts.append(f"{head}{document}\n")
    return "".join(parts)
