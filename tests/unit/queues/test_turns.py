"""Tenants and servers share threads: limits of each share, turns of tenants."""

from kyverno_mp.queues.turns import Shares, Turns


def started(turns: Turns, waiting: list[Shares]) -> list[Shares]:
    """Start works until none may start; return them in order."""
    found = []
    while (shares := turns.choose(waiting)) is not None:
        waiting.remove(shares)
        turns.begin(shares)
        found.append(shares)
    return found


def test_one_share_gets_a_part_of_the_threads() -> None:
    turns = Turns(2)
    dead: Shares = ("a", "dead.example")
    good: Shares = ("b", "good.example")
    waiting = [dead] * 4 + [good]
    assert started(turns, waiting) == [dead, good, dead]
    assert waiting == [dead, dead]
    turns.end(good, 1)
    assert turns.choose(waiting) is None
    turns.end(dead, 1)
    assert started(turns, waiting) == [dead]


def test_a_share_of_several_tenants_is_one_share() -> None:
    turns = Turns(2)
    waiting: list[Shares] = [(name, "dead.example") for name in "abcd"]
    assert len(started(turns, waiting)) == 2
    assert started(turns, [*waiting, ("e", "good.example")]) == [("e", "good.example")]


def test_work_waits_for_all_its_shares() -> None:
    turns = Turns(1)
    turns.begin(("a", "one.example"))
    both: Shares = ("b", "one.example", "two.example")
    assert turns.choose([both]) is None
    turns.begin(("c", "two.example"))
    turns.end(("a", "one.example"), 1)
    assert turns.choose([both]) is None
    turns.end(("c", "two.example"), 1)
    assert turns.choose([both]) == both


def test_tenants_take_turns() -> None:
    turns = Turns(100)
    waiting: list[Shares] = [(name,) for name in "aaabbc"]
    assert [one for (one,) in started(turns, waiting)] == ["a", "b", "c", "a", "b", "a"]


def test_work_without_shares_is_not_limited() -> None:
    turns = Turns(1)
    assert started(turns, [()] * 5) == [()] * 5
    for _ in range(5):
        turns.end((), 0)


def test_tenants_are_forgotten() -> None:
    """Namespaces come and go; only those that run or wait are kept."""
    turns = Turns(1)
    for number in range(100):
        shares = (f"n{number}", f"r{number}.example")
        turns.begin(shares)
        turns.end(shares, 3)
    assert len(turns._last) == 3
    assert not turns._running


def test_a_tenant_cannot_take_the_whole_part_of_a_server() -> None:
    turns = Turns(4, tenant_max=2)
    evil: Shares = ("evil", "popular.example", "dead.example")
    good: Shares = ("good", "popular.example")
    assert started(turns, [evil] * 4 + [good]) == [evil, good, evil]


def test_a_server_exceeds_its_fair_part_only_if_no_other_work_can_start() -> None:
    turns = Turns(3, fair_max=1)
    dead: list[Shares] = [(name, "dead.example") for name in "abcd"]
    other: Shares = ("a", "good.example")
    assert started(turns, [*dead, other]) == [dead[0], other, dead[1], dead[2]]
