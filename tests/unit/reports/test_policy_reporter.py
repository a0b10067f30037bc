"""Reports as Policy Reporter reads them.

The types below are those of its Go client (pkg/crd/api/policyreport/v1alpha2 of
kyverno/policy-reporter, apis/openreports.io/v1alpha1 of openreports/reports-api) and of
Kubernetes' ObjectMeta: names, integer sizes, enumerations. Unknown fields are errors,
where Go ignores them. A failure means: Policy Reporter drops a report, shows a result
without its object, or counts something else than the results.
"""

from typing import Annotated, Any, Literal

import msgspec
import pytest

from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.test_merging import holding, merge, review, row
from tests.unit.reports.test_scan_events import EXCEPTION
from tests.unit.reports.world import (
    CLUSTER_REPORTS,
    NAMESPACES,
    OPEN_REPORTS,
    REPORTS,
    labelled,
    new_cluster,
    pod,
    policy,
    report_of,
    term,
)

Json = Any
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Some = Annotated[str, msgspec.Meta(min_length=1)]
_Result = Literal["pass", "fail", "warn", "error", "skip"]
_Severity = Literal["critical", "high", "low", "medium", "info"]


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Reference(_Strict, rename="camel"):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""
    field_path: str = ""


class _Timestamp(_Strict):
    # metav1.Timestamp demands both in its schema.
    seconds: _Int64
    nanos: _Int32


class _Requirement(_Strict):
    key: str
    operator: str
    values: list[str] = []


class _Selector(_Strict, rename="camel"):
    match_labels: dict[str, str] = {}
    match_expressions: list[_Requirement] = []


class _RowOf(_Strict, rename="camel"):
    policy: _Some
    result: _Result
    source: str = ""
    rule: str = ""
    resources: list[_Reference] = []
    resource_selector: _Selector | None = None
    message: str = ""
    scored: bool = False
    properties: dict[str, str] = {}
    timestamp: _Timestamp | None = None
    category: str = ""
    severity: _Severity | None = None


class _Summary(_Strict):
    passed: int = msgspec.field(name="pass")
    fail: int
    warn: int
    error: int
    skip: int


class _Owner(_Strict, rename="camel"):
    api_version: _Some
    kind: _Some
    name: _Some
    uid: _Some
    controller: bool = False
    block_owner_deletion: bool = False


class _Metadata(_Strict, rename="camel"):
    name: _Some
    uid: _Some
    resource_version: _Some
    namespace: str = ""
    generation: _Int64 = 0
    creation_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[_Owner] = []
    managed_fields: list[Any] = []


class _Report(_Strict, rename="camel"):
    api_version: _Some
    kind: _Some
    metadata: _Metadata
    scope: _Reference
    summary: _Summary
    results: list[_RowOf]
    scope_selector: _Selector | None = None


def _read(report: Json) -> _Report:
    """Read a report as the client does, and check the fields that the program uses."""
    assert report is not None
    read = msgspec.json.decode(msgspec.json.encode(report), type=_Report)
    words = [one.result for one in read.results]
    summary = msgspec.to_builtins(read.summary)
    assert summary == {word: words.count(word) for word in summary}
    # A result names its object, or else the scope of the report does.
    assert all(one.resources for one in read.results) or (
        read.scope.name and read.scope.kind
    )
    keys = [(one.source, one.policy, one.rule) for one in read.results]
    assert len(set(keys)) == len(keys), "their identifiers collide"
    [owner] = read.metadata.owner_references
    assert (owner.api_version, owner.kind, owner.name, owner.uid) == (
        *(read.scope.api_version, read.scope.kind, read.scope.name, read.scope.uid),
    )
    return read


def _annotated(name: str, **annotations: str) -> Json:
    prefix = "policies.kyverno.io/"
    given = {f"{prefix}{key}": value for key, value in annotations.items()}
    return policy(name, metadata={"annotations": given})


_MISSING = "{{ request.object.metadata.annotations.none }}"
_POLICIES = (
    policy("p"),
    policy("passes", labelled(label="app")),
    _annotated("severe", severity="critical", category="A"),
    _annotated("odd", severity="urgent"),
    _annotated("warns", scored="false"),
    policy(
        "errs",
        {
            **labelled(),
            "validate": {"message": _MISSING, "pattern": {"metadata": {"x": _MISSING}}},
        },
    ),
)


@pytest.mark.parametrize(
    ("settings", "base", "expected"),
    [
        ({}, REPORTS, ("wgpolicyk8s.io/v1alpha2", "PolicyReport")),
        (
            {"reports_open": True},
            OPEN_REPORTS,
            ("openreports.io/v1alpha1", "Report"),
        ),
    ],
)
def test_every_result_type_is_accepted(
    api: FakeApi, settings: Json, base: str, expected: tuple[str, str]
) -> None:
    """Scans: pass, fail, warn, error, skip; severities; both forms of reports."""
    world = new_cluster(api)
    world.serve(*_POLICIES, exceptions=(EXCEPTION,))
    raw = pod(api, app="a")
    with term(api, world, **settings) as one:
        one.settle()
        read = _read(report_of(api, raw, base))
    assert (read.api_version, read.kind) == expected
    found = {one.policy: one for one in read.results}
    words = {name: one.result for name, one in found.items()}
    assert words == {
        "p": "skip",
        "passes": "pass",
        "severe": "fail",
        "odd": "fail",
        "warns": "warn",
        "errs": "error",
    }
    assert (found["severe"].severity, found["severe"].category) == ("critical", "A")
    assert found["odd"].severity is None
    assert found["p"].properties["exceptions"] == "e"
    assert found["severe"].scored
    assert not found["warns"].scored
    assert all(one.timestamp and one.timestamp.seconds for one in read.results)
    assert (read.scope.kind, read.scope.name, read.scope.namespace) == ("Pod", "x", "a")


def test_object_without_a_namespace(api: FakeApi) -> None:
    """The report is a ClusterPolicyReport."""
    world = new_cluster(api)
    world.serve(policy("p", labelled(kinds=("Namespace",))))
    raw = api.put(f"{NAMESPACES}/a", metadata={"labels": {}})
    with term(api, world) as one:
        one.settle()
        read = _read(report_of(api, raw, CLUSTER_REPORTS))
    assert read.kind == "ClusterPolicyReport"
    assert (read.scope.kind, read.scope.namespace) == ("Namespace", "")
    assert not read.metadata.namespace


def test_results_of_reviews(api: FakeApi) -> None:
    """Their times have fractions of a second in transit."""
    world = new_cluster(api)
    world.serve(policy(), policy("once", background=False))
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, row("once"), at_s=0.3)
        assert merge(one)
        read = _read(report_of(api, raw))
    assert [one.policy for one in read.results] == ["once", "p"]


@pytest.mark.parametrize(
    "change",
    [
        {"summary": {"pass": "1", "fail": 0, "warn": 0, "error": 0, "skip": 0}},
        {"results": [{"policy": "p", "result": "failed"}]},
        {"results": [{"policy": "p", "result": "fail", "severity": ""}]},
        {"results": [{"policy": "p", "result": "fail", "timestamp": {"seconds": 1.5}}]},
        {"scope": {"kind": "Pod", "apiGroup": "v1"}},
    ],
)
def test_reader_detects_invalid_reports(api: FakeApi, change: Json) -> None:
    """Shows that the tests above can fail."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        report = report_of(api, raw)
    assert report is not None
    with pytest.raises((msgspec.ValidationError, AssertionError)):
        _read({**msgspec.to_builtins(report), **change})
