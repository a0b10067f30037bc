"""Define the rows of reports: one result of one rule for one subject.

Room: results. Takes: PolicyIR and RuleResult, or the JSON of a report. Gives: Row,
Subject, row_of, public_row_of, merged_report. Next: cli/apply/report.py prints these
rows, webhook/payloads.py sends them; the reports of the cluster contain them.
Source: docs/behaviour/controllers 1.6, 6.5, 6.6; docs/behaviour/engine 8.6.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import msgspec

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.secrecy import hides_values
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import CEL_POLICY_KINDS, WITH_RULES

KYVERNO: Final = WITH_RULES.source
"""Source of the rows of ClusterPolicy and Policy."""
WORDS: Final = ("pass", "fail", "warn", "error", "skip")
"""The values of ``result`` in a row, in the order of a summary."""
_WORD: Final = {
    result.PASS: "pass",
    result.FAIL: "fail",
    result.WARNING: "warn",
    result.ERROR: "error",
    result.SKIP: "skip",
    "": "",
}
_SOURCES: Final = {
    **{name: row.source for row in CEL_POLICY_KINDS for name in row.names},
    "MutatingAdmissionPolicy": "MutatingAdmissionPolicy",
    "ValidatingAdmissionPolicy": "ValidatingAdmissionPolicy",
}
"""The source of a policy's rows, by the policy's kind."""
_VALIDATION_INDEX: Final = "cel.validationIndex"
_BOUND: Final = frozenset({"MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"})
"""Sources of rows whose properties only name bindings."""


class Subject(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """The object of a result, an ObjectReference."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Timestamp(msgspec.Struct, frozen=True):
    """Unix time; both fields are written even if they are zero."""

    seconds: int = 0
    nanos: int = 0


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of ``results``; the names and the order of the fields are upstream's.

    ``policy``: the key, ``name`` or ``namespace/name``. ``resources``: empty in the
    report of one object, whose ``scope`` names it.
    """

    source: str = ""
    policy: str
    rule: str = ""
    timestamp: Timestamp | None = None
    result: str = ""
    resources: tuple[Subject, ...] = ()
    properties: dict[str, str] = {}
    message: str = ""
    scored: bool = False
    category: str = ""
    severity: str = ""

    @property
    def merge_key(self) -> tuple[str, ...]:
        """The identity of a result; rows with equal keys report it at other times."""
        return _merge_key(self.source, self.policy, self.rule)


ROW: Final = msgspec.json.Decoder(Row)


def _merge_key(source: str, policy: str, rule: str) -> tuple[str, ...]:
    # KYVERNO: results of other sources merge without the rule (controllers 6.6).
    return (source, policy, rule) if source == KYVERNO else (source, policy)


def merge_key_of(policy: PolicyIR, rule: str) -> tuple[str, ...]:
    """Return the merge key of a rule's rows."""
    return _merge_key(_SOURCES.get(policy.kind, KYVERNO), policy.key, rule)


def row_of(
    policy: PolicyIR,
    rule: RuleResult,
    now_s: int | None = None,
    *,
    policy_key: str = "",
    as_warning: bool = False,
    subject: Subject | None = None,
) -> Row:
    """Return the row of a result.

    ``policy_key``: the caller's name of the policy, "" = its key. ``as_warning``:
    report a failure as a warning even if the policy is scored. ``subject``: for reports
    of several objects. ``now_s``: Unix time, None = without a time.
    """
    word = word_of(policy, rule, as_warning=as_warning)
    # KYVERNO: the text follows the original status, even if a failure becomes a
    # warning.
    named = rule.properties.get(f"{_WORD[rule.status]}Message")
    return Row(
        source=_SOURCES.get(policy.kind, KYVERNO),
        policy=policy_key or policy.key,
        rule=rule.rule,
        timestamp=None if now_s is None else Timestamp(now_s),
        result=word,
        resources=() if subject is None else (subject,),
        properties=_properties(policy, rule),
        message=rule.properties.get("message") or named or rule.message,
        scored=policy.scored,
        category=policy.category,
        severity=policy.severity,
    )


def subject_of(resource: dict[str, Json]) -> Subject:
    """Return what identifies an object, which need not be one of a cluster."""
    return Subject(
        api_version=_text(resource.get("apiVersion")),
        kind=_text(resource.get("kind")),
        name=metadata_text(resource, "name"),
        namespace=metadata_text(resource, "namespace"),
        uid=metadata_text(resource, "uid"),
        resource_version=metadata_text(resource, "resourceVersion"),
    )


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def row_facts(policy: PolicyIR) -> tuple[str | bool, ...]:
    """Return everything that ``row_of`` reads of a policy, as part of a cache key.

    A key with the policy itself would keep the policies of replaced snapshots.
    """
    return (
        policy.kind,
        policy.namespace,
        policy.name,
        policy.background,
        policy.admission,
        policy.scored,
        policy.category,
        policy.severity,
    )


def public_row_of(policy: PolicyIR, rule: RuleResult, kind: str) -> Row:
    """Return the row for a report in the cluster, without a time.

    For a Secret, the row omits the message and the rule's reportProperties, because
    they may contain values.
    """
    if not hides_values(kind):
        return row_of(policy, rule)
    properties = rule.properties if policy.kind in _BOUND else {}
    row = row_of(policy, replace(rule, properties=properties))
    return msgspec.structs.replace(row, message="")


def word_of(policy: PolicyIR, rule: RuleResult, *, as_warning: bool = False) -> str:
    """Return the status as a word: pass, fail, warn, error or skip."""
    if rule.status == result.FAIL and (as_warning or not policy.scored):
        return "warn"
    return _WORD[rule.status]


def _properties(policy: PolicyIR, rule: RuleResult) -> dict[str, str]:
    properties = dict(rule.properties)
    process = "background scan" if policy.background else "admission review"
    properties["process"] = process if policy.background or policy.admission else ""
    if rule.validation >= 0:
        # As in 1.19; an audit annotation of this name wins.
        properties.setdefault(_VALIDATION_INDEX, str(rule.validation))
    if rule.exceptions:
        properties["exceptions"] = ",".join(
            key.rpartition("/")[2] for key in rule.exceptions
        )
    return properties


def seconds_of(row: Row) -> int:
    """Return the time of a row as Unix time, 0 if it has none."""
    return row.timestamp.seconds if row.timestamp else 0


Place = tuple[str, str, str]
"""The sort key of a row in a report: policy, rule and source."""


def place_of(row: Row) -> Place:
    """Return the sort key of a row."""
    return row.policy, row.rule, row.source


def merged_report(
    rows: Sequence[Row],
    kind: str = "ClusterReport",
    metadata: Mapping[str, Json] = MappingProxyType({"name": "merged"}),
) -> dict[str, Json]:
    """Return a report on several objects, as upstream's CLI prints it."""
    return {
        "apiVersion": "openreports.io/v1alpha1",
        "kind": kind,
        "metadata": dict(metadata),
        "results": msgspec.to_builtins(rows),
        "source": "",
        "summary": summary_of(rows),
    }


def sorted_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the rows in the order of a report: by policy, rule and source."""
    return sorted(rows, key=place_of)


def summary_of(rows: Iterable[Row]) -> dict[str, int]:
    """Return the number of rows of each result; other words are not counted."""
    summary = dict.fromkeys(WORDS, 0)
    for row in rows:
        if row.result in summary:
            summary[row.result] += 1
    return summary
