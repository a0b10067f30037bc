"""Outcomes of generate and mutate-existing rules become rows of reports.

Expected values: Kyverno pkg/background/{generate,mutate}, pkg/utils/report/results.go.
A failure means: a user of upstream misses a row, or a row has other content.
"""

from typing import Any

import pytest

from kyverno_mp.background import results as module
from kyverno_mp.background.results import RuleResults
from kyverno_mp.program.reporting import Reporting
from kyverno_mp.results.entries import Row, Subject
from kyverno_mp.results.records import decode_results
from tests.unit.background import generating_world
from tests.unit.background.world import (
    CONFIG_MAPS,
    POLICIES,
    SECRETS,
    Term,
    new_cluster,
    policy,
    request,
    requests_left,
    rule,
    term,
    trigger,
)
from tests.unit.kube.fake_api import FakeApi

Json = Any
_ALL = frozenset({"generate", "mutateExisting"})
_WORDS = frozenset({"pass", "fail", "warn", "error", "skip"})
_NOW_NS = 1_767_225_600 * 10**9


class Recorder:
    """A journal with room for ``room`` records."""

    def __init__(
        self,
        types: frozenset[str] = _ALL,
        words: frozenset[str] = _WORDS,
        room: int = 100,
    ) -> None:
        self.records: list[bytes] = []
        self.room = room
        self.reporting = Reporting(types=types, words=words)

    def append(self, record: bytes) -> bool:
        if len(self.records) >= self.room:
            return False
        self.records.append(record)
        return True

    def rows(self) -> list[tuple[Subject, Row]]:
        found = [decode_results(one) for one in self.records]
        assert all(at_ns == _NOW_NS for at_ns, _, _ in found)
        return [(subject, row) for _, subject, rows in found for row in rows]


def _follow(one: Term, recorder: Recorder) -> None:
    found = RuleResults(
        recorder.append, recorder.reporting, one.recorded, lambda: _NOW_NS
    )
    # The term began without the journal; all its parts share the dependencies.
    object.__setattr__(one.dependencies, "results", found)


@pytest.fixture(autouse=True)
def cluster(api: FakeApi) -> None:
    new_cluster(api)


def _open(api: FakeApi, name: str = "t") -> Json:
    return api.put(
        f"{CONFIG_MAPS.format('a')}/{name}",
        apiVersion="v1",
        kind="ConfigMap",
        metadata={"labels": {"team": "blue"}},
        data={},
    )


def _generates(kind: str = "ConfigMap", **spec: Json) -> Json:
    match = {"any": [{"resources": {"kinds": [kind], "names": ["t"]}}]}
    return {**rule(data={"data": {"a": "1"}}), "match": match, **spec}


def _mutates(kind: str = "ConfigMap", target: str = "ConfigMap") -> Json:
    selected = {"apiVersion": "v1", "kind": target, "namespace": "b", "name": "target"}
    return {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": [kind], "names": ["t"]}}]},
        "mutate": {
            "targets": [selected],
            "patchStrategicMerge": {"data": {"from": "{{request.object.kind}}"}},
        },
    }


def test_generated_objects_are_named(api: FakeApi) -> None:
    """The trigger's row names new objects, but no objects that already existed."""
    policy(api, _generates())
    recorder = Recorder()
    raw = _open(api)
    with term(api) as one:
        _follow(one, recorder)
        request(api, raw)
        one.settle()
        request(api, raw)
        one.settle()
    assert requests_left(api) == []
    (subject, first), (_, second) = recorder.rows()
    uid = raw["metadata"]["uid"]
    assert subject == Subject(
        api_version="v1", kind="ConfigMap", name="t", namespace="a", uid=uid
    )
    assert (first.source, first.policy, first.rule) == ("kyverno", "p", "r")
    assert first.result == second.result == "pass"
    named = "/v1, Kind=ConfigMap Name=out-t Namespace=a"
    process = {"process": "background scan"}
    assert first.properties == {**process, "generated-resources": named}
    assert second.properties == process


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({}, {}),
        ({"sync": False}, {}),
        ({"data": {"data": {"a": "1"}}}, {"useServerSideApply": True}),
        ({"clone": {"namespace": "a", "name": "source"}}, {}),
        ({"sync": False, "clone": {"namespace": "a", "name": "source"}}, {}),
    ],
)
def test_a_new_holder_names_the_objects_of_the_last(
    api: FakeApi, body: Json, options: Json
) -> None:
    """Its row replaces that of the last holder, which would lose the names."""
    path = f"{CONFIG_MAPS.format('a')}/source"
    api.put(path, apiVersion="v1", kind="ConfigMap", data={"a": "1"})
    content = {} if body.get("clone") else {"data": {"data": {"a": "1"}}}
    generates = rule(**{**content, **body}, generateExisting=True)
    matched = {"any": [{"resources": {"kinds": ["ConfigMap"], "names": ["t"]}}]}
    policy(api, {**generates, "match": matched}, **options)
    _open(api)
    first, second = Recorder(), Recorder()
    for recorder in (first, second):
        with term(api) as one:
            _follow(one, recorder)
            one.settle()
    assert first.rows() == second.rows()
    [(_, row)] = second.rows()
    named = "/v1, Kind=ConfigMap Name=out-t Namespace=a"
    assert row.properties["generated-resources"] == named


@pytest.mark.parametrize("sync", [True, False])
def test_a_new_holder_names_the_objects_of_a_generating_policy(
    api: FakeApi, *, sync: bool
) -> None:
    generating_world.trigger(api)
    existing = {"generateExisting": {"enabled": True}}
    generating_world.policy(api, sync=sync, evaluation=existing)
    first, second = Recorder(), Recorder()
    for recorder in (first, second):
        with generating_world.held(api) as one:
            _follow(one, recorder)
            one.settle()
    assert first.rows() == second.rows()
    [(_, row)] = second.rows()
    name = generating_world.OUT.rpartition("/")[2]
    named = f"/v1, Kind=ConfigMap Name={name} Namespace=a"
    assert row.properties["generated-resources"] == named


@pytest.mark.parametrize("trigger_uid", ["", "another"])
def test_a_new_holder_names_no_object_of_others(api: FakeApi, trigger_uid: str) -> None:
    """An object without the labels, or of another trigger, is not generated."""
    generates = rule(sync=False, data={"data": {"a": "1"}}, generateExisting=True)
    matched = {"any": [{"resources": {"kinds": ["ConfigMap"], "names": ["t"]}}]}
    policy(api, {**generates, "match": matched})
    _open(api)
    labels = {
        "app.kubernetes.io/managed-by": "kyverno",
        "generate.kyverno.io/policy-name": "p",
        "generate.kyverno.io/policy-namespace": "",
        "generate.kyverno.io/rule-name": "r",
        "generate.kyverno.io/trigger-uid": trigger_uid,
    }
    path = f"{CONFIG_MAPS.format('a')}/out-t"
    metadata = {"labels": labels if trigger_uid else {}}
    api.put(path, apiVersion="v1", kind="ConfigMap", metadata=metadata)
    recorder = Recorder()
    with term(api) as one:
        _follow(one, recorder)
        one.settle()
    [(_, row)] = recorder.rows()
    assert row.properties == {"process": "background scan"}


def test_a_patched_target_is_named(api: FakeApi) -> None:
    """The target is named even if it was already in the desired state."""
    api.put(
        f"{CONFIG_MAPS.format('b')}/target", apiVersion="v1", kind="ConfigMap", data={}
    )
    policy(api, _mutates())
    recorder = Recorder()
    with term(api) as one:
        _follow(one, recorder)
        request(api, _open(api), kind="mutate")
        one.settle()
    [(_, row)] = recorder.rows()
    assert row.result == "pass"
    named = "/v1, Kind=ConfigMap Name=target Namespace=b"
    assert row.properties["patched-target"] == named


@pytest.mark.parametrize(
    ("types", "words", "kind", "expected"),
    [
        ({"mutateExisting"}, _WORDS, "generate", 0),
        ({"generate"}, _WORDS, "mutate", 0),
        (_ALL, {"fail"}, "generate", 0),
        (_ALL, {"fail"}, "mutate", 0),
        (_ALL, {"pass"}, "generate", 1),
        (_ALL, {"pass"}, "mutate", 1),
    ],
)
def test_reporting_is_configurable(
    api: FakeApi, types: Any, words: Any, kind: str, expected: int
) -> None:
    """The settings enableReporting and allowedResults select the rows."""
    api.put(
        f"{CONFIG_MAPS.format('b')}/target", apiVersion="v1", kind="ConfigMap", data={}
    )
    policy(api, _generates() if kind == "generate" else _mutates())
    recorder = Recorder(frozenset(types), frozenset(words))
    with term(api) as one:
        _follow(one, recorder)
        request(api, _open(api), kind=kind)
        one.settle()
    assert len(recorder.rows()) == expected


def test_excluded_policy_is_not_reported(api: FakeApi) -> None:
    """The label reports.kyverno.io/disabled prevents rows for the policy."""
    stored = policy(api, _generates())
    labels = {"reports.kyverno.io/disabled": "true"}
    metadata = {"generation": 1, "labels": labels}
    api.put(f"{POLICIES}/p", **{**stored, "metadata": metadata})
    recorder = Recorder()
    with term(api) as one:
        _follow(one, recorder)
        request(api, _open(api))
        one.settle()
    assert requests_left(api) == []
    assert not recorder.rows()


def test_rows_reveal_no_secret(api: FakeApi) -> None:
    """Rows quote no Secret that is a trigger or a target, and no name built from it."""
    secret = api.put(
        f"{SECRETS.format('a')}/t",
        apiVersion="v1",
        kind="Secret",
        data={"key": "aHVudGVyMg"},
    )
    body = _generates("Secret")
    body["generate"]["name"] = "out-{{ to_lower(request.object.data.key) }}"
    policy(api, body)
    recorder = Recorder()
    with term(api) as one:
        _follow(one, recorder)
        request(api, secret)
        one.settle()
    [(_, row)] = recorder.rows()
    assert row.result == "pass"
    assert "ahvu" not in str(row).lower()


def test_a_mutated_secret_is_named(api: FakeApi) -> None:
    """As in Kyverno; the message has no value of it."""
    api.put(
        f"{SECRETS.format('b')}/target",
        apiVersion="v1",
        kind="Secret",
        data={"key": "aHVudGVyMg"},
    )
    policy(api, _mutates(target="Secret"))
    recorder = Recorder()
    with term(api) as one:
        _follow(one, recorder)
        request(api, _open(api), kind="mutate")
        one.settle()
    [(_, row)] = recorder.rows()
    assert row.result == "pass"
    assert row.message == "mutated Secret/target in namespace b"
    assert "aHVu" not in str(row)


def test_failed_target_reveals_no_secret(api: FakeApi) -> None:
    """A rule's error may quote its target."""
    api.put(
        f"{SECRETS.format('b')}/target",
        apiVersion="v1",
        kind="Secret",
        data={"key": "aHVudGVyMg"},
    )
    body = _mutates(target="Secret")
    patch = {"data": {"x": "{{ parse_json(target.data.key) }}"}}
    body["mutate"]["patchStrategicMerge"] = patch
    policy(api, body)
    recorder = Recorder()
    with term(api) as one:
        _follow(one, recorder)
        request(api, _open(api), kind="mutate")
        one.settle()
    [(_, row)] = recorder.rows()
    assert row.result == "error"
    assert not row.message
    assert "aHVu" not in str(row)


@pytest.mark.parametrize(
    ("room", "limit", "code"),
    [
        (0, 10**6, "background.results_full"),
        (1, 10, "background.result_too_large"),
    ],
)
def test_dropped_results_are_counted(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, room: int, limit: int, code: str
) -> None:
    """The rule runs even if its row does not fit into the journal."""
    monkeypatch.setattr(module, "RESULT_RECORD_BYTES_MAX", limit)
    policy(api, _generates())
    recorder = Recorder(room=room)
    with term(api) as one:
        _follow(one, recorder)
        request(api, _open(api))
        one.settle()
        assert one.recorded.counts["kyverno_mp_errors_total", (code,)] == 1
    assert requests_left(api) == []
    assert not recorder.records


def test_a_deleted_trigger_has_no_report(api: FakeApi) -> None:
    """A deleted trigger, or a trigger that never had a uid, has no report."""
    body = _generates()
    body["match"]["any"][0]["resources"]["operations"] = ["DELETE"]
    policy(api, body)
    raw = trigger(api)
    recorder = Recorder()
    with term(api) as one:
        _follow(one, recorder)
        api.remove(f"{SECRETS.format('a')}/t")
        request(api, raw, operation="DELETE")
        one.settle()
    assert not recorder.rows()
