"""In a cluster, a pod is ready only with a valid certificate and current policies."""

from pathlib import Path

import pytest

from kyverno_mp.controllers.global_context_status import State
from kyverno_mp.leader.control.health import (
    FailingResource,
    LeaderHealth,
    confirmed_at,
    context_problems,
    read_leader_health,
    reasons_against,
    stale_resources,
    write_leader_health,
)
from kyverno_mp.limits import ENTRIES_SHOWN_MAX

S = 1_000_000_000


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (LeaderHealth(trusted=True, confirmed_ns=500 * S), ""),
        (
            LeaderHealth(trusted=True, confirmed_ns=399 * S),
            "the watches of policies have been silent for 601 s",
        ),
        (
            LeaderHealth(trusted=False, confirmed_ns=990 * S),
            "the certificate of the cluster is not served or not valid",
        ),
        (None, "the leader has not reported on the cluster yet"),
    ],
)
def test_reasons_for_unreadiness(health: LeaderHealth | None, words: str) -> None:
    found = reasons_against(health, now_ns=1000 * S, age_s_max=600)
    assert " / ".join(found) == words


def test_any_age_is_accepted_if_configured() -> None:
    old = LeaderHealth(trusted=True, confirmed_ns=0)
    assert reasons_against(old, now_ns=10**6 * S, age_s_max=0) == ()


def test_health_file_round_trip(tmp_path: Path) -> None:
    assert read_leader_health(tmp_path) is None
    failing = FailingResource("policies", 5, "refused")
    written = LeaderHealth(trusted=True, confirmed_ns=7, failing=(failing,))
    write_leader_health(tmp_path, written)
    assert read_leader_health(tmp_path) == written
    (tmp_path / "leader_health.json").write_bytes(b"{")
    assert read_leader_health(tmp_path) is None


def test_leader_without_a_publication_has_no_health() -> None:
    """A leader may receive policies while another required list is always rejected."""
    words = (900 * S, 950 * S)
    assert confirmed_at(words, publishes=True, before_ns=5 * S) == 900 * S
    assert confirmed_at(words, publishes=False, before_ns=5 * S) == 5 * S
    # Nothing has been listed yet, which is normal just after the start.
    assert confirmed_at((0, 0), publishes=False, before_ns=990 * S) == 990 * S


@pytest.mark.parametrize(
    ("failing", "words"),
    [
        (FailingResource("roles", 999 * S, ""), ""),
        (FailingResource("policies", 940 * S, "refused"), ""),
        (
            FailingResource("policies", 939 * S, "refused"),
            "policies could not be read for 61 s (refused): policies may be old",
        ),
        (
            FailingResource("namespaces", 0, "y"),
            "(y): their data for policies may be old",
        ),
        (
            FailingResource("configmaps/kyverno", 0, "x"),
            "(x): the configuration may be old",
        ),
    ],
)
def test_long_read_failures_are_reported(failing: FailingResource, words: str) -> None:
    health = LeaderHealth(trusted=True, confirmed_ns=999 * S, failing=(failing,))
    found = " / ".join(stale_resources(health, now_ns=1000 * S))
    assert found.endswith(words)
    assert bool(found) is bool(words)
    assert reasons_against(health, now_ns=1000 * S, age_s_max=600) == ()


def test_nothing_is_stale_before_the_first_report() -> None:
    assert stale_resources(None, now_ns=1) == ()


def test_unreadable_context_entries_degrade_and_never_unready() -> None:
    """Rules that read them fail; a restart or fewer pods would not help."""
    states: dict[str, State] = {
        "good": (True, "", None),
        "bad": (False, "GET /x: HTTP 503", None),
    }
    problems = context_problems(states)
    assert problems == ("GlobalContextEntry bad cannot be read: GET /x: HTTP 503",)
    health = LeaderHealth(trusted=True, confirmed_ns=1000 * S, problems=problems)
    assert stale_resources(health, now_ns=1000 * S) == problems
    assert reasons_against(health, now_ns=1000 * S, age_s_max=300) == ()


def test_many_unreadable_context_entries_are_counted() -> None:
    states: dict[str, State] = {f"e{n}": (False, "away", None) for n in range(30)}
    problems = context_problems(states)
    assert len(problems) == ENTRIES_SHOWN_MAX + 1
    assert problems[-1] == "20 more GlobalContextEntries cannot be read"
