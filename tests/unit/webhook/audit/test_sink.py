"""From responses to records: which reviews are recorded, and with which message.

A failure means: an event is missing, differs from Kyverno's, or quotes a Secret.
Expected messages: docs/behaviour/controllers 9.1 and Kyverno's pkg/event.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.controllers.admission_events import event_infos_of
from kyverno_mp.ir.rules import ActionIR, PolicyIR
from kyverno_mp.kube.events import EventInfo
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse, RuleResult
from kyverno_mp.queues.journal import Journal, JournalReader
from kyverno_mp.queues.records import decode_record
from kyverno_mp.webhook.audit.sink import EventOptions, JournalSink
from tests.unit.webhook.stub import StubRecords

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "uid": "7"},
}
AT_NS = 1_767_225_600_000_000_000


def policy(name: str = "p", namespace: str = "", rule_type: str = "validate") -> Any:
    return PolicyIR(
        kind="Policy" if namespace else "ClusterPolicy",
        name=name,
        namespace=namespace,
        uid="9",
        rule_actions=(("r", rule_type, ActionIR()),),
    )


def rule(status: str, name: str = "r", message: str = "m", **more: Any) -> RuleResult:
    return RuleResult(name, "Validation", status, message, **more)


def request(**changes: Any) -> Request:
    fields: dict[str, Any] = {"uid": "u-1", "kind": "Pod", "object": POD, **changes}
    return Request(**fields)


class Bench:
    """A sink with a journal, and the events that the leader creates from it."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal.claim(folder, 1000)
        self.reader = JournalReader(folder)
        self.passes = False
        self.loop = asyncio.new_event_loop()
        self.records = StubRecords()
        self.sink = JournalSink(
            self.journal,
            self.records,
            self.loop,
            EventOptions(records_successes=lambda: self.passes, now_ns=lambda: AT_NS),
        )

    def events(self) -> list[EventInfo]:
        found = []
        for record in self.reader.records():
            told = decode_record(record.content)
            found += list(event_infos_of(told, lambda key: f"uid of {key}"))
            record.done()
        return found

    def close(self) -> None:
        self.reader.close()
        self.journal.close()
        self.loop.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path)
    yield one
    one.close()


def told(infos: Sequence[EventInfo]) -> list[tuple[str, str, str, str]]:
    return [(n.regarding.kind, n.reason, n.action, n.note) for n in infos]


def as_it_is(response: PolicyResponse) -> PolicyResponse:
    return response


def test_denial_creates_an_event_on_the_policy_only(bench: Bench) -> None:
    responses = (
        PolicyResponse(policy(), [rule("fail"), rule("pass", "q")], "Enforce"),
        PolicyResponse(policy("other"), passed=("r",)),
    )
    for _ in range(2):  # the second time from the cache of shared responses
        bench.sink.answered(request(), responses, blocked=True)
        (event,) = bench.events()
        note = "Pod shop/web: [r] fail (blocked); m"
        violation = ("ClusterPolicy", "PolicyViolation", "Resource Blocked", note)
        assert told([event]) == [violation]
        assert event.regarding.as_json() == {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "name": "p",
            "uid": "9",
        }
        assert event.related is not None
        assert event.related.as_json() == {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "web",
            "namespace": "shop",
            "uid": "7",
        }
        assert (event.controller, event.topic) == ("kyverno-admission", "r")
        assert (event.at_ns, event.seed) == (AT_NS, "u-1")


def test_audited_failure_creates_events_on_policy_and_object(
    bench: Bench,
) -> None:
    """KYVERNO: the object's Events name every rule of the policy, even passed ones."""

    def with_messages(response: PolicyResponse) -> PolicyResponse:
        results = [*response.results, rule("pass", "q", "it passed")]
        return PolicyResponse(response.policy, results, response.action)

    audited = [PolicyResponse(policy("p", "shop"), [rule("fail")], passed=("q",))]
    bench.sink.deliver(request(), (), audited, with_messages)
    found = bench.events()
    assert told(found) == [
        (
            "Policy",
            "PolicyViolation",
            "Resource Passed",
            "Pod shop/web: [r] fail; m",
        ),
        ("Pod", "PolicyViolation", "Resource Passed", "policy p/r fail: m"),
        ("Pod", "PolicyViolation", "Resource Passed", "policy p/q pass: it passed"),
    ]
    assert found[0].regarding.namespace == "shop"
    assert found[1].related is None


def test_rules_of_one_policy_are_one_response_with_any_action(
    bench: Bench,
) -> None:
    """One rule passed in the review and one failed in the audit: the policy failed."""
    bench.passes = True
    same = policy()
    enforced = (PolicyResponse(same, passed=("a",)), PolicyResponse(policy("z", "ns")))
    audited = [PolicyResponse(same, [rule("fail", "b")])]
    bench.sink.deliver(request(), enforced, audited, as_it_is)
    assert told(bench.events()) == [
        (
            "ClusterPolicy",
            "PolicyViolation",
            "Resource Passed",
            "Pod shop/web: [b] fail; m",
        ),
        ("Pod", "PolicyViolation", "Resource Passed", "policy p/b fail: m"),
        ("Pod", "PolicyViolation", "Resource Passed", "policy p/a pass"),
    ]


def test_policy_of_the_same_name_in_a_namespace_is_another(bench: Bench) -> None:
    """Fixed here: Kyverno merges both into one (docs/behaviour/controllers 14.10)."""
    enforced = (PolicyResponse(policy("p", "shop"), [rule("error")]),)
    audited = [PolicyResponse(policy("p"), [rule("fail")])]
    bench.sink.deliver(request(), enforced, audited, as_it_is)
    kinds = [event.regarding.kind for event in bench.events()]
    assert kinds == ["ClusterPolicy", "Pod", "Policy", "Pod"]


def test_cluster_scoped_object_has_no_namespace(bench: Bench) -> None:
    thing = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}
    asked = request(kind="Namespace", namespace="n", object=thing)
    responses = (PolicyResponse(policy(), [rule("fail")]),)
    bench.sink.answered(asked, responses, blocked=True)
    (event,) = bench.events()
    assert event.note == "Namespace n: [r] fail (blocked); m"


def test_exceptions_create_events_on_themselves_and_the_policy(bench: Bench) -> None:
    skipped = rule("skip", exceptions=("x/one", "y/two"))
    for namespace, path in (("", "p/r"), ("shop", "shop/p/r")):
        response = PolicyResponse(policy("p", namespace), [skipped])
        bench.sink.deliver(request(), (response,), (), as_it_is)
        found = bench.events()
        note = f"resource Pod/shop/web was skipped from policy rule {path}"
        kind = "Policy" if namespace else "ClusterPolicy"
        on_policy = (
            "resource Pod/shop/web was skipped from rule r due to policy"
            " exceptions x/one, y/two"
        )
        assert told(found) == [
            ("PolicyException", "PolicySkipped", "Resource Passed", note),
            ("PolicyException", "PolicySkipped", "Resource Passed", note),
            (kind, "PolicySkipped", "Resource Passed", on_policy),
        ]
        assert found[0].regarding.as_json() == {
            "apiVersion": "kyverno.io/v2",
            "kind": "PolicyException",
            "name": "one",
            "namespace": "x",
            "uid": "uid of x/one",
        }


@pytest.mark.parametrize(
    ("rule_type", "note", "action"),
    [
        ("validate", "Pod shop/web: pass", "Resource Passed"),
        ("verifyImages", "Pod shop/web: pass", "Resource Passed"),
        ("mutate", "Pod shop/web is successfully mutated", "Resource Mutated"),
    ],
)
def test_successes_create_events_if_enabled(
    bench: Bench, rule_type: str, note: str, action: str
) -> None:
    responses = (PolicyResponse(policy(rule_type=rule_type), passed=("r",)),)
    bench.sink.answered(request(), responses, blocked=False)
    assert bench.events() == []
    bench.passes = True
    bench.sink.answered(request(), responses, blocked=False)
    found = bench.events()
    assert told(found) == [("ClusterPolicy", "PolicyApplied", action, note)]


@pytest.mark.parametrize(
    "response",
    [
        PolicyResponse(policy()),
        PolicyResponse(policy(), passed=("r",), skipped=("q",)),
        PolicyResponse(policy(), [rule("skip")], passed=("q",)),
        PolicyResponse(policy(), [rule("skip", exceptions=("x/e",))], passed=("q",)),
    ],
    ids=["nothing", "a skip", "a told skip", "an exception"],
)
def test_partly_skipped_policy_was_not_applied(
    bench: Bench, response: PolicyResponse
) -> None:
    bench.passes = True
    bench.sink.deliver(request(), [response], [], as_it_is)
    assert "PolicyApplied" not in [event.reason for event in bench.events()]


@pytest.mark.parametrize(
    "changes",
    [
        {"object": {"apiVersion": "v1", "kind": "Pod", "metadata": {}}},
        {"object": {}},
        {"object": {"metadata": None}},
        {"kind": "Event"},
        {"kind": "Event", "group": "events.k8s.io"},
    ],
)
def test_unnamed_objects_and_events_create_no_events(
    bench: Bench, changes: dict[str, Any]
) -> None:
    """An event about an Event would cause the next event."""
    responses = (PolicyResponse(policy(), [rule("fail")]),)
    bench.sink.answered(request(**changes), responses, blocked=True)
    assert bench.events() == []


def test_deletion_event_is_on_the_old_object(bench: Bench) -> None:
    asked = request(operation="DELETE", object={}, old_object=POD)
    bench.sink.answered(
        asked, (PolicyResponse(policy(), [rule("fail")]),), blocked=True
    )
    (event,) = bench.events()
    assert event.related is not None
    assert event.related.name == "web"


@pytest.mark.parametrize("blocked", [True, False])
def test_values_of_secrets_are_redacted(
    bench: Bench,
    blocked: bool,  # noqa: FBT001 - a table
) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    responses = (PolicyResponse(policy(), [rule("fail", message="geheim")]),)
    # The same responses, shared with a review of another object.
    bench.sink.answered(request(), responses, blocked=blocked)
    assert "m" not in [event.note for event in bench.events()]
    asked = request(kind="Secret", object=secret)
    bench.sink.answered(asked, responses, blocked=blocked)
    notes = [event.note for event in bench.events()]
    assert notes == (
        ["Secret s: [r] fail (blocked)"]
        if blocked
        else ["Secret s: [r] fail", "policy p/r fail"]
    )


def test_total_message_size_is_bounded(bench: Bench) -> None:
    """With a thousand rules with long messages, only the rules are listed."""
    rules = [rule("fail", f"r{n}", "w" * 5000) for n in range(1000)]
    bench.sink.answered(request(), [PolicyResponse(policy(), rules)], blocked=True)
    found = bench.events()
    assert len(found) == 1000
    assert {event.note for event in found} == {
        f"Pod shop/web: [r{n}] fail (blocked)" for n in range(1000)
    }
    many = [
        PolicyResponse(policy(f"p{n}"), [rule("fail", message="w" * 5000)])
        for n in range(100)
    ]
    bench.sink.answered(request(), many, blocked=True)
    assert len(bench.events()) == 100
    assert bench.journal.dropped == 0


def test_full_journal_only_increases_the_drop_count(bench: Bench) -> None:
    responses = (PolicyResponse(policy(), [rule("fail")]),)
    for _ in range(1500):
        bench.sink.answered(request(), responses, blocked=True)
    assert bench.journal.dropped == 625, "an eighth is for other namespaces"
    assert len(bench.events()) == 875


def test_no_namespace_displaces_the_events_of_another(bench: Bench) -> None:
    """Namespaces that do not exist count as one, however many are invented."""
    responses = (PolicyResponse(policy(), [rule("fail")]),)
    for number in range(1500):
        flood = request(namespace=f"invented-{number}", namespace_known=False)
        bench.sink.answered(flood, responses, blocked=True)
    for number in range(100):
        named = {"metadata": {"name": f"n{number}", "namespace": "team"}}
        about = request(namespace="team", object={**POD, **named})
        bench.sink.answered(about, responses, blocked=True)
    known = sum(event.note.startswith("Pod team/") for event in bench.events())
    # A third of what the flood leaves: the rest stays for the namespaces that follow.
    assert known == 42


def test_audited_policies_are_counted(bench: Bench) -> None:
    audited = [PolicyResponse(policy(), [rule("fail")])]
    bench.sink.deliver(request(), (), audited, as_it_is)
    bench.loop.run_until_complete(asyncio.sleep(0))
    assert bench.records.reviews == [("validate", "CREATE", True)]
