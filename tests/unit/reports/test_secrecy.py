"""No value of a Secret is in a report, an Event, a log line or a status.

A failure means: a user who can read reports but no Secrets can read a Secret's value.
The policies cover every place where a rule can quote its object.
"""

import base64
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.secrecy import withheld
from kyverno_mp.results.entries import public_row_of
from tests.unit.background.world import (
    CONFIG_MAPS,
    SECRETS,
    identity,
    request,
    stored,
)
from tests.unit.background.world import new_cluster as background_cluster
from tests.unit.background.world import term as background_term
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.world import new_cluster, report_of, term

Json = Any
_PLAIN = "hunter2-is-the-password"
_VALUE = base64.b64encode(_PLAIN.encode()).decode()
_REPORTS = "/apis/wgpolicyk8s.io/v1alpha2/namespaces/{}/policyreports"
_QUOTES = (
    "{{ request.object.data.key }}",
    "{{ request.object.data.key | base64_decode(@) }}",
    "{{ request.object.data }}",
    "{{ element }}",
    "{{ found }}",
)
_FAULTS = (
    "{{ to_number(request.object.data.key) }}",
    "{{ parse_json(request.object.data.key) }}",
    "{{ request.object.data.key | semver_compare(@, '>1') }}",
    "{{ time_parse('2006', request.object.data.key) }}",
    "{{ random(request.object.data.key) }}",
)
"""The first one fails only as part of a message or condition."""
_CONTEXT = [
    {"name": "found", "variable": {"jmesPath": "request.object.data.key"}},
]


def _secret(api: FakeApi) -> Json:
    return api.put(
        f"{SECRETS.format('a')}/t",
        apiVersion="v1",
        kind="Secret",
        metadata={"labels": {"team": "blue"}},
        data={"key": _VALUE},
    )


def _bodies(quote: str) -> Iterator[Json]:
    """Yield rule bodies that fail and quote a value in their messages."""
    condition = {"key": quote, "operator": "Equals", "value": "other"}
    refuses = {"key": quote, "operator": "NotEquals", "value": "other"}
    each = {"list": "request.object.data.values(@)"}
    yield {"message": quote, "deny": {}}
    yield {"message": quote, "pattern": {"data": {"key": "other"}}}
    yield {"message": "m", "pattern": {"data": {"key": quote + "x"}}}
    yield {"message": quote, "anyPattern": [{"data": {"key": "a"}}, {"data": quote}]}
    yield {"message": quote, "deny": {"conditions": {"all": [refuses]}}}
    yield {"message": quote, "deny": {"conditions": {"any": [condition]}}}
    yield {"message": quote, "foreach": [{**each, "deny": {}}]}
    yield {"message": quote, "foreach": [{**each, "pattern": {"a": quote}}]}
    said = {"all": [{**refuses, "message": quote}]}
    yield {"message": quote, "deny": {"conditions": said}}
    yield {"cel": {"expressions": [{"expression": "false", "messageExpression": _CEL}]}}


_CEL = "string(object.data.key)"


def _policies() -> list[Json]:
    made = []
    quotes = _QUOTES + _FAULTS
    for number, (quote, with_properties) in enumerate(
        itertools.product(quotes, (False, True))
    ):
        rules = []
        for at, body in enumerate(_bodies(quote)):
            rule = {
                "name": f"r{at}",
                "match": {"any": [{"resources": {"kinds": ["Secret"]}}]},
                "validate": body,
            }
            if "cel" not in body:
                rule["context"] = _CONTEXT
            if with_properties:
                named = ("shown", "message", "failMessage", "binding", "process")
                rule["reportProperties"] = dict.fromkeys(named, quote)
            rules.append(rule)
        made.append(_policy(f"p{number}", rules, validationFailureAction="Audit"))
    return made


def _policy(name: str, rules: list[Json], **spec: Json) -> Json:
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": name, "generation": 1},
        "spec": {"background": True, "rules": rules, **spec},
    }


def _quotes(found: object) -> bool:
    text = str(found)
    return _VALUE in text or _PLAIN in text


def test_reports_contain_no_secret_values(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    """This includes any rule's message, properties and error."""
    caplog.set_level(logging.DEBUG)
    world = new_cluster(api)
    policies = _policies()
    world.serve(*policies)
    raw = _secret(api)
    with term(api, world) as one:
        one.settle()
        report = report_of(api, raw)
        assert report is not None
        results = {row["result"] for row in report["results"]}
        assert results >= {"fail", "error"}
        assert len({row["policy"] for row in report["results"]}) == len(policies)
        assert not _quotes(msgspec.json.encode(report).decode())
        assert not _quotes(caplog.text)
        assert len(one.recorded.events) > len(policies)
        assert not _quotes(one.recorded.events)
        assert not _quotes(one.reports.problems())


def test_same_rules_include_values_of_other_objects(api: FakeApi) -> None:
    """This proves that the test above can fail."""
    world = new_cluster(api)
    text = msgspec.json.encode(_policies()).decode()
    world.serve(*msgspec.json.decode(text.replace('"Secret"', '"ConfigMap"')))
    raw = api.put(
        f"{CONFIG_MAPS.format('a')}/t",
        apiVersion="v1",
        kind="ConfigMap",
        metadata={},
        data={"key": _VALUE},
    )
    with term(api, world) as one:
        one.settle()
        report = report_of(api, raw)
        assert _quotes(one.recorded.events)
    assert report is not None
    quoting = [row for row in report["results"] if _quotes(row)]
    assert len(quoting) > len(report["results"]) // 4


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ClusterPolicy", {"process": "background scan", "exceptions": "e"}),
        (
            "ValidatingAdmissionPolicy",
            {"binding": "b", "process": "background scan", "exceptions": "e"},
        ),
    ],
)
def test_row_of_a_secret(kind: str, expected: Json) -> None:
    """Only fields that cannot contain a value of the Secret."""
    found = RuleResult(
        "r", "Validation", "fail", "m", {"binding": "b"}, exceptions=("n/e",)
    )
    row = public_row_of(PolicyIR(kind=kind, name="p"), found, "Secret")
    assert (row.message, row.properties) == ("", expected)
    assert (row.policy, row.rule, row.result) == ("p", "r", "fail")


_TARGET = {"apiVersion": "v1", "kind": "Secret", "namespace": "a", "name": "t"}
_OPEN = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "a", "name": "o"}


def _mutates(kind: str, target: Json, quote: str) -> Json:
    return {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": [kind]}}]},
        "mutate": {
            "targets": [target],
            "patchStrategicMerge": {"data": {"copy": quote}},
        },
    }


def _generates(kind: str, quote: str) -> Json:
    return {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": [kind]}}]},
        "generate": {**_OPEN, "name": "out", "data": {"data": {"copy": quote}}},
    }


_FAILING = [
    *[("mutate", "Secret", _mutates("Secret", _OPEN, one)) for one in _FAULTS[1:]],
    *[
        (
            "mutate",
            "ConfigMap",
            _mutates("ConfigMap", _TARGET, one.replace("request.object", "target")),
        )
        for one in _FAULTS[1:]
    ],
    *[("generate", "Secret", _generates("Secret", one)) for one in _FAULTS[1:]],
]


@pytest.mark.parametrize(("kind", "of", "rule"), _FAILING)
def test_background_failures_contain_no_secret_values(
    api: FakeApi, kind: str, of: str, rule: Json, caplog: pytest.LogCaptureFixture
) -> None:
    """The status of the UpdateRequest, the Event and the log contain only the code."""
    caplog.set_level(logging.DEBUG)
    background_cluster(api)
    api.put("/apis/kyverno.io/v1/clusterpolicies/p", **_policy("p", [rule]))
    secret = _secret(api)
    plain = api.put(
        f"{CONFIG_MAPS.format('a')}/o", apiVersion="v1", kind="ConfigMap", data={}
    )
    raw = secret if of == "Secret" else plain
    assert identity(raw)["kind"] == of
    with background_term(api) as one:
        one.settle()
        request(api, raw, kind=kind)
        one.settle()
        found = stored(api, "/apis/kyverno.io/v2/namespaces/kyverno/updaterequests/ur")
        assert found is not None
        status = found["status"]
        assert status["state"] == "Failed"
        assert status["message"] == withheld(status["message"].partition(":")[0])
        assert any(info.reason == "PolicyError" for info in one.recorded.events)
        assert not _quotes(one.recorded.events)
        assert not _quotes(caplog.text)
