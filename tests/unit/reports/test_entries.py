"""The rows of reports: upstream's mapping (docs/behaviour/controllers 6.5, 6.6)."""

from typing import Any

import msgspec
import pytest

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.result import RuleResult
from kyverno_mp.reports.fingerprints import fingerprints_of
from kyverno_mp.results.entries import (
    Row,
    Subject,
    Timestamp,
    row_of,
    sorted_rows,
    summary_of,
)

Json = Any
NOW_S = 1_700_000_000


def policy(**fields: Any) -> PolicyIR:
    return PolicyIR(**{"kind": "ClusterPolicy", "name": "p", **fields})


def rule(**fields: Any) -> RuleResult:
    given = {"rule": "r", "rule_type": "Validation", "status": "pass", "message": "m"}
    return RuleResult(**{**given, **fields})


def written(one: Row) -> Json:
    return msgspec.json.decode(msgspec.json.encode(one))


def test_row_has_upstreams_fields() -> None:
    """The fields of 6.5; empty fields are omitted, timestamps have both fields."""
    one = row_of(
        policy(kind="Policy", namespace="ns", category="C", severity="high"),
        rule(status="fail", properties={"a": "b"}),
        NOW_S,
    )
    assert written(one) == {
        "source": "kyverno",
        "policy": "ns/p",
        "rule": "r",
        "timestamp": {"seconds": NOW_S, "nanos": 0},
        "result": "fail",
        "properties": {"a": "b", "process": "background scan"},
        "message": "m",
        "scored": True,
        "category": "C",
        "severity": "high",
    }


@pytest.mark.parametrize(
    ("given", "of_rule", "expected"),
    [
        ({"scored": False}, {"status": "fail"}, {"result": "warn"}),
        ({"scored": False}, {"status": "error"}, {"result": "error"}),
        ({}, {"status": "warning"}, {"result": "warn"}),
        ({}, {"properties": {"passMessage": "x"}}, {"message": "x"}),
        ({}, {"properties": {"failMessage": "x"}}, {"message": "m"}),
        ({}, {"properties": {"message": "y", "passMessage": "x"}}, {"message": "y"}),
        # The text is chosen before a failure becomes a warning.
        (
            {"scored": False},
            {"status": "fail", "properties": {"failMessage": "f", "warnMessage": "w"}},
            {"message": "f"},
        ),
        (
            {},
            {"status": "skip", "exceptions": ("a/x", "b/y")},
            {"properties": {"process": "background scan", "exceptions": "x,y"}},
        ),
        ({"background": False}, {}, {"properties": {"process": "admission review"}}),
        (
            {"background": False, "admission": False},
            {},
            {"properties": {"process": ""}},
        ),
        (
            {"kind": "ValidatingAdmissionPolicy"},
            {},
            {"source": "ValidatingAdmissionPolicy"},
        ),
    ],
)
def test_the_mapping_of_results(
    given: dict[str, Any], of_rule: dict[str, Any], expected: dict[str, Json]
) -> None:
    """One case for each row of table 6.5."""
    found = written(row_of(policy(**given), rule(**of_rule), NOW_S))
    assert {key: found[key] for key in expected} == expected


def test_a_report_of_several_objects_names_them() -> None:
    """EphemeralReports and the CLI name the subject in the row."""
    subject = Subject(api_version="v1", kind="Pod", name="n", namespace="ns", uid="u")
    assert written(row_of(policy(), rule(), NOW_S, subject=subject))["resources"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "n", "namespace": "ns", "uid": "u"}
    ]


def rows(*names: str, seconds: int = 1) -> list[Row]:
    time = Timestamp(seconds)
    return [
        Row(policy=p, rule=r, result=w, timestamp=time)
        for p, r, w in (name.split("/") for name in names)
    ]


def test_order_and_summary() -> None:
    """Rows are sorted by policy, then rule; every result is counted."""
    found = sorted_rows(rows("b/x/fail", "a/y/pass", "a/x/pass", "a/z/warn"))
    assert [(row.policy, row.rule) for row in found] == [
        ("a", "x"),
        ("a", "y"),
        ("a", "z"),
        ("b", "x"),
    ]
    assert summary_of(found) == {"pass": 2, "fail": 1, "warn": 1, "error": 0, "skip": 0}


def test_fingerprints_ignore_times_and_order_only() -> None:
    """The API server's answer has the fingerprints of the written report."""
    first = fingerprints_of(rows("a/x/pass", "b/y/fail"))
    assert fingerprints_of(rows("b/y/fail", "a/x/pass", seconds=2)) == first
    again = msgspec.json.decode(
        msgspec.json.encode(rows("a/x/pass", "b/y/fail")), type=list[Row]
    )
    assert fingerprints_of(again) == first
    assert fingerprints_of(rows("a/x/pass", "b/y/pass")) != first
    assert fingerprints_of([]) != first


def test_fingerprints_do_not_depend_on_the_order_of_properties() -> None:
    """K8S: the API server sorts the keys of a map."""
    one, other = (
        Row(policy="p", properties=dict(pairs))
        for pairs in ([("a", "1"), ("b", "2")], [("b", "2"), ("a", "1")])
    )
    assert fingerprints_of([one]) == fingerprints_of([other])


@pytest.mark.parametrize(
    ("source", "is_same"), [("kyverno", False), ("ValidatingAdmissionPolicy", True)]
)
def test_what_merges(source: str, *, is_same: bool) -> None:
    """Rows of other sources merge without their rule (6.6)."""
    one, other = (Row(source=source, policy="p", rule=name) for name in ("r", "s"))
    assert (one.merge_key == other.merge_key) is is_same
