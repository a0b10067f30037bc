"""The leader's writer creates UpdateRequests from records, and loses none.

A failure means: a rule that an answered request triggered never runs, or UpdateRequests
are created repeatedly for the same work.
"""

import os
import signal
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from kyverno_mp.background.update_request import read_request
from kyverno_mp.leader.triggers import writer as written
from kyverno_mp.leader.triggers.writer import (
    COALESCED,
    GIVEN_UP,
    WRITTEN,
    TriggerWriter,
)
from kyverno_mp.queues.journal import TRIGGERS, Journal, JournalReader
from kyverno_mp.queues.triggers import (
    TriggerObject,
    TriggerRecord,
    Wanted,
    encode_trigger,
)
from kyverno_mp.queues.update_requests import LOST_SINCE, SEEN_VERSION
from kyverno_mp.values.kubernetes.selector import is_label_value
from tests.schemas import validate
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import HANG_S

REQUESTS = "/apis/kyverno.io/v2/namespaces/kyverno/updaterequests"
GENERATE = Wanted("generate", "p", ("r", "s"), synchronize=True)
MUTATE = Wanted("mutate", "ns/p", ("m",))
ROOT = Path(__file__).parents[3]
REVIEW = {
    "uid": "a",
    "operation": "CREATE",
    "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
    "resource": {"group": "", "version": "v1", "resource": "configmaps"},
    "userInfo": {"username": "alice"},
}


def record(name: str = "x", at: int = 1, version: str = "", *wanted: Wanted) -> bytes:
    trigger = TriggerObject("v1", "ConfigMap", "default", name, f"uid-{name}", version)
    told = TriggerRecord(
        *(at, wanted or (GENERATE,), trigger, "UPDATE", ("ns:role",), ("admin",)),
        msgspec.json.encode(REVIEW),
        b'{"oldObject":{"kind":"ConfigMap"}}',
    )
    return encode_trigger(told)


class Setup:
    def __init__(self, api: FakeApi, folder: Path) -> None:
        self.api = api
        self.now_s = 0.0
        self.threshold = 1000
        self.journal = Journal.claim(folder, 1000, TRIGGERS.ring_bytes)
        self.reader = JournalReader(folder)
        self.writer = TriggerWriter(
            [self.reader],
            api.client().within(HANG_S),
            "kyverno",
            lambda: self.threshold,
            lambda: self.now_s,
        )

    def stored(self) -> list[Any]:
        found = self.api.objects.items()
        return [raw for key, raw in found if key[2] == "updaterequests"]


@pytest.fixture
def setup(api: FakeApi, tmp_path: Path) -> Iterator[Setup]:
    one = Setup(api, tmp_path)
    yield one
    one.reader.close()


def test_generate_request_has_upstreams_fields(setup: Setup) -> None:
    setup.journal.append(record(version="7"))
    assert setup.writer.step()
    (found,) = setup.stored()
    metadata, spec = found["metadata"], found["spec"]
    assert metadata["namespace"] == "kyverno"
    assert metadata["name"].startswith("ur-")
    assert metadata["labels"] == {"generate.kyverno.io/policy-name": "p"}
    assert metadata["annotations"][SEEN_VERSION] == "7"
    assert (spec["requestType"], spec["policy"]) == ("generate", "p")
    trigger = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "namespace": "default",
        "name": "x",
        "uid": "uid-x",
    }
    assert [one["rule"] for one in spec["ruleContext"]] == ["r", "s"]
    for one in spec["ruleContext"]:
        assert one["trigger"] == trigger
        assert one["deleteDownstream"] is False
        assert one["synchronize"] is True
    context = spec["context"]
    assert context["userInfo"] == {
        "roles": ["ns:role"],
        "clusterRoles": ["admin"],
        "userInfo": {"username": "alice"},
    }
    assert context["admissionRequestInfo"] == {
        "admissionRequest": REVIEW,
        "operation": "UPDATE",
    }
    # One call to create the request, and one to count the requests.
    assert len(setup.api.requests) == 2


def test_all_records_are_written_at_the_end(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the triggers of a busy pod would be lost when it is deleted."""
    monkeypatch.setattr(written, "_STOP_S", 60.0)
    monkeypatch.setattr(written, "TRIGGERS_AT_ONCE_MAX", 4)
    for number in range(18):
        setup.journal.append(record(f"x{number}", number + 1))
    setup.writer.start()
    setup.writer.stop()
    assert len(setup.stored()) == 18


def test_what_cannot_be_written_at_the_end_stays_in_the_journal(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader must end although the API server is away."""
    monkeypatch.setattr(written, "_STOP_S", 60.0)
    setup.api.fault("POST .*updaterequests", *[503] * 1000)
    setup.journal.append(record())
    setup.writer.start()
    setup.writer.stop()
    assert setup.stored() == []
    assert setup.reader.waiting == 1


def test_mutate_request_has_upstreams_labels(setup: Setup) -> None:
    setup.journal.append(record("x", 1, "", MUTATE))
    assert setup.writer.step()
    (found,) = setup.stored()
    own = "mutate.updaterequest.kyverno.io/"
    assert found["metadata"]["labels"] == {
        f"{own}policy-name": "p",
        f"{own}trigger-name": "x",
        f"{own}trigger-namespace": "default",
        f"{own}trigger-kind": "ConfigMap",
        f"{own}trigger-apiversion": "v1",
    }
    spec = found["spec"]
    assert (spec["requestType"], spec["policy"]) == ("mutate", "ns/p")
    assert (spec["rule"], spec["resource"]["uid"]) == ("m", "uid-x")


@pytest.mark.parametrize(
    ("name", "label"),
    [("system:node:a", "system-node-a"), (":a:", "a"), (f"{'a' * 62}:b", "a" * 62)],
)
def test_names_that_are_no_label_values(setup: Setup, name: str, label: str) -> None:
    """The API server rejects objects with such labels; names of roles have colons."""
    setup.journal.append(record(name, 1, "", MUTATE))
    assert setup.writer.step()
    (found,) = setup.stored()
    labels = found["metadata"]["labels"]
    assert labels["mutate.updaterequest.kyverno.io/trigger-name"] == label
    assert all(is_label_value(value) for value in labels.values())
    assert found["spec"]["resource"]["name"] == name


def test_objects_are_stored_only_if_required(setup: Setup) -> None:
    carries = Wanted("generate", "q", ("r",), with_objects=True)
    setup.journal.append(record("x", 1, "", GENERATE, carries))
    assert setup.writer.step()
    found = {one["spec"]["policy"]: one["spec"]["context"] for one in setup.stored()}
    asked = {p: c["admissionRequestInfo"]["admissionRequest"] for p, c in found.items()}
    assert "oldObject" not in asked["p"]
    assert asked["q"]["oldObject"] == {"kind": "ConfigMap"}


def changed(name: str, operation: str = "DELETE") -> bytes:
    trigger = TriggerObject("v1", "Secret", "a", "", "uid-t")
    one = TriggerObject("v1", "ConfigMap", "default", name, f"uid-{name}", "7")
    told = TriggerRecord(
        *(1, (Wanted("generate", "ns/p", ("r",)),), trigger, operation),
        role="downstream",
        changed=one,
    )
    return encode_trigger(told)


def test_change_of_a_generated_object(setup: Setup) -> None:
    """Its request is for the trigger and names the object; objects are separate."""
    setup.journal.append(changed("x"))
    setup.journal.append(changed("x"))
    setup.journal.append(changed("y"))
    assert setup.writer.step()
    first, _ = sorted(setup.stored(), key=lambda one: one["metadata"]["uid"])
    spec = first["spec"]
    assert spec["context"] == {}
    (rule,) = spec["ruleContext"]
    assert (spec["policy"], rule["rule"], rule["deleteDownstream"]) == (
        *("ns/p", "r"),
        False,
    )
    assert rule["trigger"]["uid"] == "uid-t"
    read = read_request(msgspec.json.encode(first)).changed
    assert read is not None
    assert (read.role, read.operation, read.version) == ("downstream", "DELETE", "7")
    assert read.identity.uid == "uid-x"


def test_repeated_trigger_updates_the_existing_request(setup: Setup) -> None:
    setup.journal.append(record(at=1, version="7"))
    assert setup.writer.step()
    (first,) = setup.stored()
    setup.journal.append(record(at=2, version="8"))
    assert setup.writer.step()
    (second,) = setup.stored()
    before, after = first["metadata"], second["metadata"]
    assert before["name"] == after["name"]
    # A deletion of the version in progress now fails.
    assert before["resourceVersion"] != after["resourceVersion"]
    assert after["annotations"][SEEN_VERSION] == "8"
    assert setup.writer.outcomes.drain() == {(WRITTEN,): 1, (COALESCED,): 1}


def test_repeated_trigger_recreates_a_completed_request(setup: Setup) -> None:
    """It disappears between the conflict and the mark."""
    setup.journal.append(record(at=1))
    assert setup.writer.step()
    (first,) = setup.stored()
    path = f"{REQUESTS}/{first['metadata']['name']}"

    def gone(method: str, target: str) -> None:
        if method == "GET" and target == path and setup.stored():
            setup.api.remove(path)

    setup.api.on_request = gone
    setup.journal.append(record(at=2))
    assert setup.writer.step()
    (second,) = setup.stored()
    assert second["metadata"]["uid"] != first["metadata"]["uid"]


@pytest.mark.parametrize("fault", [500, 403, "cut", ("retry", 429, 5)])
def test_error_keeps_the_record(setup: Setup, fault: Any) -> None:
    setup.api.fault("^POST", *[fault] * 10)
    setup.journal.append(record())
    assert not setup.writer.step()
    assert (setup.journal.waiting, setup.stored()) == (1, [])
    assert setup.writer.oldest_ns == 1
    setup.api.faults.clear()
    setup.now_s += 1.0
    assert setup.writer.step()
    assert (setup.journal.waiting, len(setup.stored())) == (0, 1)
    assert setup.writer.oldest_ns == 0


def test_rejected_request_is_counted_and_blocks_nothing(setup: Setup) -> None:
    setup.api.fault("^POST", 422)
    setup.journal.append(record("x"))
    setup.journal.append(record("x", 2, "", MUTATE))
    assert setup.writer.step()
    # The policy of the denied request is synced again.
    assert setup.writer.outcomes.drain() == {(GIVEN_UP,): 1, (WRITTEN,): 2}
    since = {
        one["spec"]["policy"]: one["metadata"]["annotations"].get(LOST_SINCE)
        for one in setup.stored()
    }
    assert since == {"p": "1", "ns/p": None}


def test_oversized_objects_block_nothing(setup: Setup) -> None:
    """A rejection by etcd looks like an outage, so etcd is not called."""
    carries = Wanted("generate", "q", ("r",), with_objects=True)
    large = msgspec.json.encode({"oldObject": {"data": "x" * 1_500_000}})
    trigger = TriggerObject("v1", "ConfigMap", "default", "x", "u")
    told = TriggerRecord(1, (carries,), trigger, "DELETE", objects=large)
    setup.journal.append(encode_trigger(told))
    assert setup.writer.step()
    (found,) = setup.stored()
    assert found["metadata"]["annotations"][LOST_SINCE] == "1"
    assert setup.writer.outcomes.drain() == {(GIVEN_UP,): 1, (WRITTEN,): 1}


def test_corrupt_record_is_counted_and_blocks_nothing(setup: Setup) -> None:
    setup.journal.append(b"no record")
    setup.journal.append(record())
    assert setup.writer.step()
    assert setup.writer.outcomes.drain() == {(GIVEN_UP,): 1, (WRITTEN,): 1}


def test_records_wait_at_the_threshold(setup: Setup) -> None:
    setup.threshold = 1
    setup.api.put(f"{REQUESTS}/other")
    setup.journal.append(record())
    assert not setup.writer.step()
    assert (setup.journal.waiting, len(setup.stored())) == (1, 1)
    setup.api.remove(f"{REQUESTS}/other")
    setup.now_s += 2.0
    assert setup.writer.step()
    assert (setup.journal.waiting, len(setup.stored())) == (0, 1)


def test_many_records_become_one_request_each(setup: Setup) -> None:
    for number in range(300):
        assert setup.journal.append(record(f"x{number}"))
    while setup.journal.waiting:
        assert setup.writer.step()
    assert len(setup.stored()) == 300
    assert setup.writer.outcomes.drain() == {(WRITTEN,): 300}


def test_next_leader_continues_and_stores_nothing_twice(
    setup: Setup, tmp_path: Path
) -> None:
    """The first leader ended after the creation, before it took the record."""
    setup.journal.append(record())
    setup.writer.step()
    setup.journal.append(record())
    again = JournalReader(tmp_path)
    after = TriggerWriter([again], setup.api.client(), "kyverno", lambda: 1000)
    assert after.step()
    assert len(setup.stored()) == 1
    again.close()


def _append_and_die(folder: Path) -> None:
    journal = Journal.claim(folder, 1000, TRIGGERS.ring_bytes)
    for number in range(50):
        journal.append(record(f"x{number}"))
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_worker_loses_no_record(api: FakeApi, tmp_path: Path) -> None:
    worker = get_context("spawn").Process(target=_append_and_die, args=(tmp_path,))
    worker.start()
    worker.join(HANG_S)
    assert worker.exitcode == -signal.SIGKILL
    # The next worker takes over the journal.
    setup = Setup(api, tmp_path)
    setup.journal.append(record("x50"))
    assert setup.writer.step()
    assert len(setup.stored()) == 51
    setup.reader.close()


def test_request_is_valid_against_the_schema(setup: Setup) -> None:
    setup.journal.append(record("x", 1, "", GENERATE, MUTATE))
    assert setup.writer.step()
    text = (ROOT / "config/crds/kyverno.io_updaterequests.yaml").read_text()
    versions = yaml.safe_load(text)["spec"]["versions"]
    (schema,) = [one["schema"] for one in versions if one["name"] == "v2"]
    assert len(setup.stored()) == 2
    for found in setup.stored():
        validate(found, schema["openAPIV3Schema"])
