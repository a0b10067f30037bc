"""Declare the report kinds: PolicyReport, Report, EphemeralReport.

Room: policy. Takes: nothing. Gives: their schemas. Next: policy/crd/report_kinds.py.
Source: docs/behaviour/controllers 1.6, 6.7.
"""

from typing import Final

from kyverno_mp.policy.crd.notation import (
    BOOLEAN,
    INT32,
    INT64,
    INTEGER,
    OBJECT_REFERENCE,
    SELECTOR,
    TEXT,
    TEXT_MAP,
    Fields,
    atomic,
    choice,
    items,
    record,
)

_SUMMARY: Final = record(
    dict.fromkeys(("pass", "fail", "warn", "error", "skip"), INTEGER)
)
_RESULTS: Final = items(
    record(
        {
            "source": TEXT,
            "policy*": TEXT,
            "rule": TEXT,
            "resources": items(OBJECT_REFERENCE),
            "resourceSelector": SELECTOR,
            "message": TEXT,
            "result": choice("pass", "fail", "warn", "error", "skip"),
            "scored": BOOLEAN,
            "properties": TEXT_MAP,
            "timestamp": record({"seconds*": INT64, "nanos*": INT32}),
            "category": TEXT,
            "severity": choice("critical", "high", "low", "medium", "info"),
        }
    )
)
_OWNER: Final = atomic(
    record(
        {
            "apiVersion*": TEXT,
            "kind*": TEXT,
            "name*": TEXT,
            "uid*": TEXT,
            "controller": BOOLEAN,
            "blockOwnerDeletion": BOOLEAN,
        }
    )
)

POLICY_REPORT: Final[Fields] = {
    "scope": OBJECT_REFERENCE,
    "scopeSelector": SELECTOR,
    "summary": _SUMMARY,
    "results": _RESULTS,
}
"""``wgpolicyk8s.io``: without a spec; the fields are at the top level."""

OPEN_REPORT: Final[Fields] = {
    "source": TEXT,
    "configuration": record(
        {"limits": record({"maxResults": INTEGER, "statusFilter": items(TEXT)})}
    ),
    **POLICY_REPORT,
}
"""``openreports.io``."""

EPHEMERAL_REPORT: Final[Fields] = {
    "spec*": record({"owner*": _OWNER, "summary": _SUMMARY, "results": _RESULTS})
}
"""``reports.kyverno.io``: the results of one admission review or one scan."""
