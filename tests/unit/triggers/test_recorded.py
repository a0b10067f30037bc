"""Triggers of a review as the service records them: the table of controllers 5.2.

A failure means: an object is not generated, deleted or mutated although upstream does
so, or the reverse.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kyverno_mp.program.changes import DOWNSTREAM, SOURCE, Change
from kyverno_mp.program.generate.labels import Origin, TriggerIdentity
from kyverno_mp.program.generate.triggers import Triggered
from kyverno_mp.program.request import Request
from kyverno_mp.queues.journal import LOST, TRIGGERS, Journal, JournalReader
from kyverno_mp.queues.triggers import TriggerRecord, decode_trigger
from kyverno_mp.webhook.triggers.lost import LostPolicies
from kyverno_mp.webhook.triggers.sink import JOURNAL_FULL, TriggerSink
from tests.fuzz.bench import Bench

POOL = "system:serviceaccount:kyverno:kyverno-background-controller"
HEAD = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
spec:
"""
GENERATE = (
    HEAD
    + """
  rules:
  - name: r
    match:
      any:
      - resources: {kinds: [ConfigMap], selector: {matchLabels: {a: b}}OPS}
    preconditions:
      all:
      - key: "{{ request.object.data.on || 'yes' }}"
        operator: Equals
        value: "yes"
    MORE
    generate:
      apiVersion: v1
      kind: Secret
      name: made
      namespace: default
      synchronize: SYNC
      data: {stringData: {a: b}}
"""
)
MUTATE = (
    HEAD
    + """
  rules:
  - name: m
    match: {any: [{resources: {kinds: [ConfigMap]OPS}}]}
    preconditions:
      all:
      - {key: "{{ request.operation }}", operator: NotEquals, value: CONNECT}
    MORE
    mutate:
      targets: [{apiVersion: v1, kind: Secret, name: s, namespace: default}]
      patchStrategicMerge: {metadata: {labels: {x: "y"}}}
"""
)
DENY = """
---
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: deny}
spec:
  validationFailureAction: Enforce
  background: false
  rules:
  - name: r
    match: {any: [{resources: {kinds: [ConfigMap]}}]}
    validate: {message: "no", deny: {}}
"""


def generate(*, sync: bool = False, operations: str = "", more: str = "") -> str:
    ops = f", operations: [{operations}]" if operations else ""
    text = GENERATE.replace("SYNC", str(sync).lower()).replace("OPS", ops)
    return text.replace("MORE", more)


def mutate(operations: str = "", more: str = "") -> str:
    ops = f", operations: [{operations}]" if operations else ""
    return MUTATE.replace("OPS", ops).replace("MORE", more)


def config_map(version: str = "7", **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "x",
            "namespace": "default",
            "uid": "u1",
            "resourceVersion": version,
            "labels": {"a": "b"},
        },
        "data": data,
    }


def unlabelled() -> dict[str, Any]:
    found = config_map()
    del found["metadata"]["labels"]
    return found


@dataclass
class Kept:
    """A fake journal."""

    found: list[tuple[str, str, tuple[str, ...], bool]] = field(default_factory=list)

    def triggered(self, request: Request, found: Sequence[Triggered]) -> None:
        assert request.uid
        self.found += [(o.type, o.policy, o.rules, o.deletes) for o in found]

    changes: list[Change] = field(default_factory=list)

    def changed(self, request: Request, change: Change) -> None:
        assert request.uid
        self.changes.append(change)


MADE = ("generate", "p", ("r",), False)
GONE = ("generate", "p", ("r",), True)
MUTATED = ("mutate", "p", ("m",), False)
NEW, OLD = config_map("8"), config_map("7")
OFF = config_map("8", on="no")
ROWS: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "create": (generate(), {"object": NEW}, [MADE]),
    "create with a failed precondition": (generate(), {"object": OFF}, []),
    "create that does not match": (generate(), {"object": unlabelled()}, []),
    "update": (
        generate(),
        {"operation": "UPDATE", "object": NEW, "oldObject": OLD},
        [MADE],
    ),
    "match ends": (
        generate(sync=True),
        {"operation": "UPDATE", "object": unlabelled(), "oldObject": OLD},
        [GONE],
    ),
    "match ends, not synchronised": (
        generate(),
        {"operation": "UPDATE", "object": unlabelled(), "oldObject": OLD},
        [],
    ),
    "precondition ends": (
        generate(sync=True),
        {"operation": "UPDATE", "object": OFF, "oldObject": OLD},
        [GONE],
    ),
    "delete, synchronised": (
        generate(sync=True),
        {"operation": "DELETE", "object": None, "oldObject": OLD},
        [GONE],
    ),
    "delete, not synchronised": (
        generate(),
        {"operation": "DELETE", "object": None, "oldObject": OLD},
        [],
    ),
    "delete that is listed": (
        generate(sync=True, operations="DELETE"),
        {"operation": "DELETE", "object": None, "oldObject": OLD},
        [MADE],
    ),
    "dry run": (generate(), {"object": NEW, "dryRun": True}, []),
    "denied": (generate() + DENY, {"object": NEW}, []),
    "by the pool": (
        generate(),
        {"object": NEW, "userInfo": {"username": POOL, "groups": []}},
        [],
    ),
    "by the pool, wanted": (
        generate(more="skipBackgroundRequests: false"),
        {"object": NEW, "userInfo": {"username": POOL, "groups": []}},
        [MADE],
    ),
    "context that calls the cluster is not judged": (
        generate(more="context: [{name: c, apiCall: {urlPath: /api/v1/nodes}}]"),
        {"object": OFF},
        [MADE],
    ),
    "update not judged, synchronised: also what may be stale": (
        generate(
            sync=True, more="context: [{name: c, apiCall: {urlPath: /api/v1/nodes}}]"
        ),
        {"operation": "UPDATE", "object": NEW, "oldObject": OLD},
        [MADE, GONE],
    ),
    "mutate": (mutate(), {"object": NEW}, [MUTATED]),
    "mutate, delete": (
        mutate(),
        {"operation": "DELETE", "object": None, "oldObject": OLD},
        [],
    ),
    "mutate, delete that is listed": (
        mutate(operations="DELETE"),
        {"operation": "DELETE", "object": None, "oldObject": OLD},
        [MUTATED],
    ),
    "mutate, by the pool": (
        mutate(),
        {"object": NEW, "userInfo": {"username": POOL, "groups": []}},
        [],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_review_records_its_triggers(name: str) -> None:
    policies, asked, expected = ROWS[name]
    kept = Kept()
    bench = Bench(policies, triggers=kept, background_user=POOL)
    answer = bench.ask(NEW, **asked)
    assert answer["allowed"] is (name != "denied")
    assert kept.found == expected
    assert bench.records.errors == []


def test_no_trigger_without_a_pool() -> None:
    kept = Kept()
    assert Bench(generate(), triggers=kept).ask(NEW)["allowed"]
    assert kept.found == []


def test_failing_journal_changes_no_answer() -> None:
    class Broken:
        def triggered(self, request: Request, found: Sequence[Triggered]) -> None:
            raise OSError(f"{request.uid} {len(found)}")

        def changed(self, request: Request, change: Change) -> None:
            raise OSError(f"{request.uid} {change}")

    bench = Bench(generate(), triggers=Broken(), background_user=POOL)
    assert bench.ask(NEW)["allowed"]
    assert bench.records.errors == ["webhook.defect"]


GENERATED = {
    "app.kubernetes.io/managed-by": "kyverno",
    "generate.kyverno.io/policy-name": "q",
    "generate.kyverno.io/policy-namespace": "ns",
    "generate.kyverno.io/rule-name": "made",
    "generate.kyverno.io/trigger-group": "apps",
    "generate.kyverno.io/trigger-version": "v1",
    "generate.kyverno.io/trigger-kind": "Deployment",
    "generate.kyverno.io/trigger-namespace": "a",
    "generate.kyverno.io/trigger-uid": "u9",
}
SOURCE_LABEL = {"generate.kyverno.io/clone-source": ""}
DOWNSTREAM_CHANGE = Change(
    DOWNSTREAM,
    Origin("ns/q", "made"),
    TriggerIdentity("apps/v1", "Deployment", "a", "", "u9"),
)


def labelled(labels: dict[str, str], **data: str) -> dict[str, Any]:
    found = config_map(**data)
    found["metadata"]["labels"] = labels
    return found


def _update(labels: dict[str, str], **more: Any) -> dict[str, Any]:
    return {
        "operation": "UPDATE",
        "object": labelled({}, by="hand"),
        "oldObject": labelled(labels),
        **more,
    }


def _delete(labels: dict[str, str]) -> dict[str, Any]:
    return {"operation": "DELETE", "object": None, "oldObject": labelled(labels)}


CHANGES: dict[str, tuple[dict[str, Any], list[Change]]] = {
    "generated, updated": (_update(GENERATED), [DOWNSTREAM_CHANGE]),
    "generated, deleted": (_delete(GENERATED), [DOWNSTREAM_CHANGE]),
    "generated, created": ({"object": labelled(GENERATED)}, []),
    "generated by a clone": (_update(GENERATED | SOURCE_LABEL), [DOWNSTREAM_CHANGE]),
    "source, updated": (_update(SOURCE_LABEL), [Change(SOURCE)]),
    "source, deleted": (_delete(SOURCE_LABEL), [Change(SOURCE)]),
    "source of other management": (
        _update({**SOURCE_LABEL, "app.kubernetes.io/managed-by": "Helm"}),
        [Change(SOURCE)],
    ),
    "neither": (_update({"a": "c"}), []),
    "label without a policy": (
        _update({"app.kubernetes.io/managed-by": "kyverno"}),
        [],
    ),
    "label only added now": (
        {
            "operation": "UPDATE",
            "object": labelled(SOURCE_LABEL),
            "oldObject": labelled({}),
        },
        [],
    ),
    "no change": (
        _update(GENERATED, object=labelled(GENERATED) | {"data": {}}),
        [],
    ),
    "by the pool": (
        _update(GENERATED, userInfo={"username": POOL, "groups": []}),
        [],
    ),
    "dry run": (_update(GENERATED, dryRun=True), []),
    "status": (_update(GENERATED, subResource="status"), []),
}


@pytest.mark.parametrize("name", CHANGES)
def test_review_records_the_changed_object(name: str) -> None:
    """This also holds if no rule matches the kind of a source or generated object."""
    asked, expected = CHANGES[name]
    kept = Kept()
    policies = generate().replace("[ConfigMap]", "[Pod]")
    bench = Bench(policies, triggers=kept, background_user=POOL)
    assert bench.ask(NEW, **asked)["allowed"]
    assert kept.changes == expected
    assert bench.records.errors == []


def test_denied_change_records_nothing() -> None:
    kept = Kept()
    bench = Bench(generate() + DENY, triggers=kept, background_user=POOL)
    assert not bench.ask(NEW, **_delete(GENERATED))["allowed"]
    assert kept.changes == []


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[JournalReader]:
    one = JournalReader(tmp_path)
    yield one
    one.close()


def sink_of(tmp_path: Path, bench: "list[Bench]", most: int = 100) -> TriggerSink:
    journal = Journal.claim(tmp_path, most, TRIGGERS.ring_bytes)

    class Errors:
        def __getattr__(self, name: str) -> Any:
            return getattr(bench[0].records, name)

    folder = tmp_path / "lost"
    folder.mkdir(exist_ok=True)
    lost = Journal.claim(folder, 100, LOST.ring_bytes)
    policies = LostPolicies(lost, Errors(), lambda: 5)
    return TriggerSink(journal, Errors(), lambda: 5, policies)


def recorded(
    policies: str, tmp_path: Path, reader: JournalReader, **asked: Any
) -> TriggerRecord:
    benches: list[Bench] = []
    sink = sink_of(tmp_path, benches)
    benches.append(Bench(policies, triggers=sink, background_user=POOL))
    assert benches[0].ask(NEW, **asked)["allowed"]
    (records,) = reader.ahead(10)
    (record,) = records
    return decode_trigger(record.content)


def test_update_is_recorded_without_objects(
    tmp_path: Path, reader: JournalReader
) -> None:
    found = recorded(
        generate(), tmp_path, reader, operation="UPDATE", object=NEW, oldObject=OLD
    )
    assert found.objects == b""
    trigger = found.trigger
    assert (trigger.api_version, trigger.kind) == ("v1", "ConfigMap")
    assert (trigger.namespace, trigger.name) == ("default", "x")
    assert (trigger.uid, trigger.version) == ("u1", "7")
    review = msgspec.json.decode(found.review)
    assert review["userInfo"]["username"] == "alice"
    assert not {"object", "oldObject"} & review.keys()


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        ({}, ""),
        ({"managedFields": [{"time": "later"}]}, ""),
        ({"labels": {"a": "b", "c": "d"}}, "7"),
        ({"generation": 2}, "7"),
    ],
)
def test_unchanged_update_has_no_later_version(
    tmp_path: Path, reader: JournalReader, changes: dict[str, Any], version: str
) -> None:
    """A wait for that version would never end."""
    old, new = config_map(), config_map()
    old["metadata"]["managedFields"] = [{"time": "earlier"}]
    new["metadata"] |= changes
    asked = {"operation": "UPDATE", "object": new, "oldObject": old}
    found = recorded(generate(), tmp_path, reader, **asked)
    assert found.trigger.version == version


def test_deletion_is_recorded_with_the_object(
    tmp_path: Path, reader: JournalReader
) -> None:
    """Rules that generate on DELETE read the object, which is no longer stored."""
    policies = generate(operations="DELETE")
    asked = {"operation": "DELETE", "object": None, "oldObject": OLD}
    found = recorded(policies, tmp_path, reader, **asked)
    assert msgspec.json.decode(found.objects) == {"oldObject": OLD}


def test_rule_that_reads_the_old_object_gets_it(
    tmp_path: Path, reader: JournalReader
) -> None:
    policies = generate().replace(
        "stringData: {a: b}", "stringData: {a: '{{ request.oldObject.data.z }}'}"
    )
    asked = {"operation": "UPDATE", "object": NEW, "oldObject": OLD}
    found = recorded(policies, tmp_path, reader, **asked)
    assert msgspec.json.decode(found.objects) == {"oldObject": OLD}


def test_full_journal_is_counted_and_denies_nothing(
    tmp_path: Path, reader: JournalReader
) -> None:
    benches: list[Bench] = []
    sink = sink_of(tmp_path, benches, most=1)
    benches.append(Bench(generate(), triggers=sink, background_user=POOL))
    assert benches[0].ask(NEW)["allowed"]
    assert benches[0].ask(NEW)["allowed"]
    assert benches[0].records.errors == [JOURNAL_FULL]
    assert len(next(reader.ahead(10))) == 1
