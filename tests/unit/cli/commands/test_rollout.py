"""``rollout`` shows the gradual enforcement of policies, and changes it.

A failure means: a person who wants to stop a policy cannot, or sees a share that is not
in force.
"""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec

from kyverno_mp.compiler.described import build_rollout
from kyverno_mp.snapshot.rollouts import RolloutState
from tests.unit.cli.conftest import Command
from tests.unit.kube.fake_api import FakeApi

STATES = "/api/v1/namespaces/kyverno/configmaps/kyverno-mp-rollouts"


def store(api: FakeApi) -> None:
    schedule = {"kyverno-mp.io/enforce-schedule": "10 -> 100 every 24h"}
    percent = {"kyverno-mp.io/enforce-percent": "30"}
    api.put("/apis/kyverno.io/v1/clusterpolicies/p", metadata={"annotations": schedule})
    api.put(
        "/apis/policies.kyverno.io/v1beta1/namespaces/t/namespacedvalidatingpolicies/q",
        metadata={"annotations": percent},
    )
    api.put("/apis/kyverno.io/v1/clusterpolicies/full")


def rows(command: Command) -> dict[str, Any]:
    listed = json.loads(command("rollout", "status", "-o", "json").out)
    return {row["policy"]: (row["phase"], row["percent"]) for row in listed}


def test_person_pauses_aborts_and_resumes(api: FakeApi, command: Command) -> None:
    store(api)
    p, q = "ClusterPolicy/p", "NamespacedValidatingPolicy/t/q"
    assert rows(command) == {p: ("Progressing", 10), q: ("Completed", 30)}
    done = command("rollout", "pause", p)
    assert (done.code, done.out) == (0, f"{p}: Paused, enforced for 10 %\n")
    assert command("rollout", "abort", q).out == f"{q}: Aborted, enforced for 0 %\n"
    assert rows(command) == {p: ("Paused", 10), q: ("Aborted", 0)}
    assert command("rollout", "pause", p).code == 1, "it is paused already"
    assert command("rollout", "resume", p).code == 0
    assert command("rollout", "resume", q).code == 0
    assert rows(command) == {p: ("Progressing", 10), q: ("Completed", 30)}
    lines = command("rollout", "status").out.splitlines()
    assert lines[1].split()[:4] == [p, "Progressing", "10", "%"]


def test_only_policies_with_a_share_have_a_rollout(
    api: FakeApi, command: Command
) -> None:
    assert command("rollout", "status").out == "no policy is enforced gradually\n"
    store(api)
    for name in ("ClusterPolicy/full", "ClusterPolicy/gone"):
        done = command("rollout", "abort", name)
        assert done.code == 1
        assert "not enforced gradually" in done.err
    assert not api.count("(PUT|POST|PATCH) ")


def test_budget_and_fall_back_are_shown(api: FakeApi, command: Command) -> None:
    annotations = {
        "kyverno-mp.io/enforce-schedule": "10 -> 50 -> 100 every 24h",
        "kyverno-mp.io/enforce-denials": "4 per 168h",
    }
    name = "ClusterPolicy/p"
    api.put(
        "/apis/kyverno.io/v1/clusterpolicies/p", metadata={"annotations": annotations}
    )
    rollout = build_rollout(annotations)
    assert rollout is not None
    now_s = int(datetime.now(UTC).timestamp())
    state = RolloutState(rollout.plan, "Progressing", 1, now_s)
    denials = [(f"owner-{number}", f"space-{number}", "", now_s) for number in range(3)]
    counted = {"run": state.run, "budget": rollout.budget, "denials": denials}

    def put(state: RolloutState) -> None:
        texts = {
            "ClusterPolicy_p": state,
            "denials.pod-0": {"ClusterPolicy_p": counted},
            "denials.pod-1": {"ClusterPolicy_p": counted},
        }
        encoded = {
            key: msgspec.json.encode(each).decode() for key, each in texts.items()
        }
        api.put(STATES, data={**encoded, "denials.pod-2": "{"})

    put(state)
    (row,) = json.loads(command("rollout", "status", "-o", "json").out)
    assert (row["denials"], row["budget"], row["reason"]) == (3, 4, "")
    assert "3 of 4" in command("rollout", "status").out
    reason = "more than 4 owners"
    put(RolloutState(rollout.plan, "FellBack", 1, now_s, reason))
    assert command("rollout", "status").out.endswith(f"{name}: {reason}\n")
    assert rows(command) == {name: ("FellBack", 10)}
    assert command("rollout", "pause", name).code == 1
    assert command("rollout", "resume", name).code == 0
    assert rows(command) == {name: ("Progressing", 50)}
    api.put(STATES, data={"ClusterPolicy_p": "{"})
    listed = command("rollout", "status").out
    assert listed.endswith(f"{name}: its stored state is invalid\n")
