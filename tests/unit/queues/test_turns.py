"""Tenants and servers share threads: limits of each share, turns of tenants."""

from collections import Counter
from collections.abc import Callable

import pytest

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


THREADS = 8
SECOND = 1_000_000_000


class Simulated:
    """Eight threads, closed loops of tenants, a clock that jumps to the next end."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.turns = Turns(
            THREADS - 1,
            (THREADS - 1) // 2,
            THREADS // 2,
            limits={"unanswered": THREADS // 2},
            long_max=THREADS - THREADS // 4,
            now_ns=lambda: self.now_ns,
        )
        self.waiting: list[tuple[Shares, int]] = []
        self.running: list[tuple[int, int, Shares, int]] = []
        """When it ends, a number, its shares, how long it takes."""
        self.began: dict[int, int] = {}
        self.done: Counter[str] = Counter()
        self._number = 0

    def add(self, shares: Shares, takes_ns: int, at_once: int) -> None:
        self.waiting += [(shares, takes_ns)] * at_once

    def run(self, until_ns: int) -> None:
        while True:
            self._start()
            ends_ns, number, shares, takes_ns = min(self.running)
            if ends_ns > until_ns:
                return
            self.running.remove((ends_ns, number, shares, takes_ns))
            self.now_ns = ends_ns
            self.turns.end(shares, len(self.waiting), self.began.pop(number))
            self.done[shares[0]] += 1
            # The tenant sends its next review.
            self.waiting.append((shares, takes_ns))

    def _start(self) -> None:
        while len(self.running) < THREADS:
            chosen = self.turns.choose([one for one, _ in self.waiting])
            if chosen is None:
                return
            found = next(one for one in self.waiting if one[0] == chosen)
            self.waiting.remove(found)
            self._number += 1
            self.began[self._number] = self.turns.begin(chosen)
            ends_ns = self.now_ns + found[1]
            self.running.append((ends_ns, self._number, *found))


def reviewed(attack: Callable[[Simulated, int], None], attackers: int) -> int:
    """Return how many reviews a victim gets in 15 s; two of them wait at a time."""
    bench = Simulated()
    for number in range(attackers):
        attack(bench, number)
    bench.add(("victim", "good.example"), SECOND // 20, 2)
    bench.run(15 * SECOND)
    return bench.done["victim"]


def never_answers(bench: Simulated, number: int) -> None:
    bench.add((f"t{number}", f"bad{number}.example", "unanswered"), 3 * SECOND, 50)


def answers_slowly(bench: Simulated, number: int) -> None:
    """Each answers its first calls, so nothing but its thread-time tells."""
    bench.add((f"t{number}", f"drip{number}.example"), 10 * SECOND, 50)


def one_server(bench: Simulated, number: int) -> None:
    bench.add((f"t{number}", "drip.example"), 10 * SECOND, 50)


def takes_turns(bench: Simulated, number: int) -> None:
    """Short works between long ones keep the number of starts high."""
    bench.add((f"t{number}", f"drip{number}.example"), 10 * SECOND, 25)
    bench.add((f"t{number}", f"drip{number}.example"), SECOND // 100, 25)


@pytest.mark.parametrize(
    "attack", [never_answers, answers_slowly, one_server, takes_turns]
)
def test_slow_servers_of_four_tenants_cost_others_little(
    attack: Callable[[Simulated, int], None],
) -> None:
    """Otherwise, their registries bring the image reviews of everybody to a halt."""
    quiet = reviewed(attack, 0)
    assert quiet == 600
    assert reviewed(attack, 4) >= 0.8 * quiet


def test_many_tenants_whose_servers_never_answer_have_one_half() -> None:
    bench = Simulated()
    for number in range(50):
        never_answers(bench, number)
    bench.run(SECOND)
    assert len(bench.running) == THREADS // 2


def test_equal_tenants_get_equal_thread_time() -> None:
    """Whatever the length of each review; the last threads are not left idle."""
    bench = Simulated()
    for number, takes in enumerate((1, 2, 5, 10)):
        bench.add((f"t{number}",), takes * SECOND // 10, 50)
    bench.run(60 * SECOND)
    time_s = {
        name: count * takes / 10
        for (name, count), takes in zip(
            sorted(bench.done.items()), (1, 2, 5, 10), strict=True
        )
    }
    assert min(time_s.values()) >= 0.8 * max(time_s.values())
    assert sum(time_s.values()) >= 0.75 * THREADS * 60


def test_tenants_with_long_works_leave_some_threads() -> None:
    """All of them together, also if each runs only one."""
    bench = Simulated()
    for number in range(10):
        answers_slowly(bench, number)
    bench.run(60 * SECOND)
    assert bench.turns.choose([("brief",)]) == ("brief",)
    assert len(bench.running) == THREADS - THREADS // 4


def test_old_thread_time_is_forgotten() -> None:
    bench = Simulated()
    for number in range(1000):
        began_ns = bench.turns.begin((f"t{number}",))
        bench.now_ns += SECOND
        bench.turns.end((f"t{number}",), 0, began_ns)
    assert bench.turns._time is not None
    assert len(bench.turns._time._used) < 150
