"""Registries that do not answer are known, so that others wait for none of them."""

import pytest

from kyverno_mp.egress.answering import UNANSWERED, AnsweringHosts


class Rig:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.hosts = AnsweringHosts(lambda: self.now_s)

    def answers(self, *hosts: str) -> bool:
        shares = self.hosts.shares_of(hosts)
        assert shares[: len(hosts)] == hosts
        return UNANSWERED not in shares


@pytest.mark.parametrize("outcome", ["200", "401", "404", "307"])
def test_host_with_a_response_answers(outcome: str) -> None:
    rig = Rig()
    assert not rig.answers("a.example")
    rig.hosts.note("a.example", outcome)
    assert rig.answers("a.example")
    assert not rig.answers("a.example", "b.example")


@pytest.mark.parametrize("outcome", ["slow", "deadline", "network", "503", "refused"])
def test_host_that_fails_does_not_answer(outcome: str) -> None:
    rig = Rig()
    rig.hosts.note("a.example", "200")
    rig.hosts.note("a.example", outcome)
    assert not rig.answers("a.example")


def test_answer_is_forgotten() -> None:
    rig = Rig()
    rig.hosts.note("a.example", "200")
    rig.now_s = 3601
    assert not rig.answers("a.example")


@pytest.mark.parametrize(
    ("called", "named"),
    [
        ("a.example", "A.example:5000"),
        ("registry-1.docker.io", "docker.io"),
        ("index.docker.io", "index.docker.io"),
        ("::1", "[::1]:5000"),
        ("a.example.", "a.example"),
    ],
)
def test_names_of_one_registry(called: str, named: str) -> None:
    rig = Rig()
    rig.hosts.note(called, "200")
    assert rig.answers(named)
    assert not rig.answers("docker.io.evil.example")


def test_number_of_hosts_is_bounded() -> None:
    rig = Rig()
    rig.hosts.note("first.example", "200")
    for number in range(1024):
        rig.hosts.note(f"h{number}.example", "200")
    assert not rig.answers("first.example")
    assert rig.answers("h0.example", "h1023.example")
    assert rig.answers()
