"""Pages: numbers survive their process, and other processes read consistent values."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kyverno_mp.errors import StateError
from kyverno_mp.policy.metrics_configuration import MetricsConfiguration
from kyverno_mp.telemetry.collect import merge, refit, views
from kyverno_mp.telemetry.families import (
    ADMISSION,
    ERRORS,
    OVERFLOW,
    RESULTS,
    RIGHTS_MISSING,
)
from kyverno_mp.telemetry.page import Page, View
from kyverno_mp.telemetry.record import BUNDLE_FAMILIES, Recorder

LABELS = ("Pod", "default", "create", "true", "ValidatingWebhookConfiguration")


def result(rule: str, status: str = "pass") -> tuple[str, ...]:
    return (
        *("enforce", "cluster", "true", "-", "p", "Pod", "default", "create", rule),
        *(status, "validate", "admission_request", "false"),
    )


def test_the_next_owner_continues_counting(tmp_path: Path) -> None:
    for _ in range(2):
        page = Page.claim(tmp_path, "webhook")
        Recorder(page, 100).admission.observe(LABELS, 0.02)
        page.close()
    cells = merge(views(tmp_path))[ADMISSION][LABELS]
    assert cells[2] == 2.0
    assert abs(cells[-1] - 0.04) < 1e-9


def test_the_next_owner_keeps_no_gauge(tmp_path: Path) -> None:
    """Otherwise an alert of a process that was restarted never ends."""
    labels = ("kyverno-admission-controller", "list", "pods")
    page = Page.claim(tmp_path, "leader")
    Recorder(page, 100).series(RIGHTS_MISSING).hold(labels, 1.0)
    page.close()
    recorder = Recorder(Page.claim(tmp_path, "leader"), 100)
    assert merge(views(tmp_path))[RIGHTS_MISSING][labels] == [0.0]
    recorder.series(RIGHTS_MISSING).hold(labels, 1.0)
    assert merge(views(tmp_path))[RIGHTS_MISSING][labels] == [1.0]


def test_two_live_owners_have_two_pages(tmp_path: Path) -> None:
    first, second = Page.claim(tmp_path, "webhook"), Page.claim(tmp_path, "webhook")
    Recorder(first, 100).errors.count(("a.b",))
    Recorder(second, 100).errors.count(("a.b",), 2.0)
    assert merge(views(tmp_path))[ERRORS] == {("a.b",): [3.0]}
    assert [view.name for view in views(tmp_path)] == ["webhook-0", "webhook-1"]


def test_full_family_counts_in_the_overflow_series(tmp_path: Path) -> None:
    recorder = Recorder(Page.claim(tmp_path, "webhook"), 10)
    for number in range(50):
        labels = ("Pod", f"ns-{number}", *LABELS[2:])
        recorder.admission.observe(labels, 0.001)
    series = merge(views(tmp_path))[ADMISSION]
    overflow = (OVERFLOW, OVERFLOW, *LABELS[2:])
    assert len(series) == 11
    assert series[overflow][0] == 40.0


@pytest.mark.parametrize("number", BUNDLE_FAMILIES)
def test_bundled_counts_are_spread_over_rules(tmp_path: Path, number: int) -> None:
    """And the next owner of the page continues to count."""
    family = BUNDLE_FAMILIES[number]
    rules = [tuple(f"{name}-{at}" for at in family.labels) for name in "ab"]
    for _ in range(3):
        page = Page.claim(tmp_path, "webhook")
        recorder = Recorder(page, 100)
        bundles = {RESULTS: recorder.rules}.get(family, recorder.policies)
        bundles.observe("key", lambda: rules, 0.004)
        page.close()
    merged = merge(views(tmp_path))
    assert {one: set(series) for one, series in merged.items() if series} == {
        family: set(rules)
    }
    series = merged[family]
    assert series[rules[0]][0] == 3.0
    assert abs(series[rules[1]][-1] - 0.006) < 1e-9


def test_facts_and_liveness_are_visible_to_other_processes(tmp_path: Path) -> None:
    page = Page.claim(tmp_path, "webhook")
    page.set_gauge("generation", 7)
    view = View(page.path)
    assert (view.role, view.pid, view.gauge("generation")) == (
        "webhook",
        os.getpid(),
        7,
    )
    assert view.alive()


def test_page_of_a_dead_owner_is_not_live(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        Page.claim(tmp_path, "webhook").set_gauge("generation", 3)
        os._exit(0)
    os.waitpid(child, 0)
    view = views(tmp_path)[0]
    assert not view.alive()
    assert view.gauge("generation") == 3


def test_foreign_file_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "webhook-0.page").write_bytes(b"\x00" * 4000)
    (tmp_path / "webhook-1.page").write_bytes(b"short")
    assert views(tmp_path) == []


FEW = MetricsConfiguration(bucket_boundaries=(0.015, 1.0))


def test_new_bucket_bounds_apply_immediately_and_lose_nothing(tmp_path: Path) -> None:
    """Earlier counts move to the bucket of their old upper boundary."""
    recorder = Recorder(Page.claim(tmp_path, "webhook"), 100)
    recorder.admission.observe(LABELS, 0.02)  # between 0.01 and 0.025
    recorder.rules.observe("key", lambda: [result("a")], 0.02)
    recorder.configure(FEW)
    recorder.admission.observe(LABELS, 0.012)
    recorder.rules.observe("key", lambda: [result("a")], 0.012)
    cells = merge(views(tmp_path), FEW)[ADMISSION][LABELS]
    assert cells == [1.0, 1.0, 0.0, pytest.approx(0.032)]
    assert merge(views(tmp_path), FEW)[RESULTS][result("a")] == cells
    recorder.configure(MetricsConfiguration())
    recorder.admission.observe(LABELS, 0.02)
    cells = merge(views(tmp_path))[ADMISSION][LABELS]
    assert (cells[2], sum(cells[:-1])) == (3.0, 3.0)


def test_next_owner_keeps_the_bucket_bounds(tmp_path: Path) -> None:
    for _ in range(2):
        page = Page.claim(tmp_path, "webhook")
        recorder = Recorder(page, 100)
        recorder.configure(FEW)
        recorder.admission.observe(LABELS, 0.012)
        page.close()
    view = views(tmp_path)[0]
    assert merge([view], FEW)[ADMISSION][LABELS][0] == 2.0
    assert len([1 for number, *_ in view.series() if number == 0]) == 1


def test_repeated_bound_changes_keep_the_last_that_fits(tmp_path: Path) -> None:
    recorder = Recorder(Page.claim(tmp_path, "webhook"), 100)
    for number in range(100):
        changed = MetricsConfiguration(bucket_boundaries=(1.0 + number,))
        recorder.configure(changed)
        recorder.admission.observe(LABELS, 0.5)
    cells = merge(views(tmp_path))[ADMISSION][LABELS]
    assert sum(cells[:-1]) == 100.0


@pytest.mark.parametrize(
    ("cells", "bounds", "wanted", "sharers", "expected"),
    [
        ([1, 2, 3, 9.0], (1.0, 2.0), (1.0, 2.0), 1, [1, 2, 3, 9.0]),
        ([1, 2, 3, 9.0], (1.0, 2.0), (2.0,), 1, [3, 3, 9.0]),
        ([1, 2, 3, 9.0], (1.0, 2.0), (), 1, [6, 9.0]),
        ([1, 2, 3, 9.0], (1.0, 2.0), (0.5, 1.5), 1, [0, 1, 5, 9.0]),
        ([1, 2, 3, 9.0], (1.0, 2.0), (1.0, 2.0), 2, [3, 0, 3, 4.5]),
        ([6, 9.0], (), (1.0,), 1, [0, 6, 9.0]),
    ],
)
def test_histogram_with_other_bounds(
    cells: list[float],
    bounds: tuple[float, ...],
    wanted: tuple[float, ...],
    sharers: int,
    expected: list[float],
) -> None:
    assert refit(cells, bounds, wanted, sharers) == expected


def test_excluded_namespaces_take_no_space_and_can_return(tmp_path: Path) -> None:
    page = Page.claim(tmp_path, "webhook")
    recorder = Recorder(page, 100)
    quiet = MetricsConfiguration(exclude_namespaces=("default", "policies"))
    of_policy = ("enforce", "namespaced", "true", "policies", *result("a")[4:])
    recorder.admission.observe(LABELS, 0.02)
    recorder.configure(quiet)
    for _ in range(3):
        recorder.admission.observe(LABELS, 0.02)
        recorder.rules.observe("key", lambda: [of_policy], 0.02)
        recorder.rules.observe("other", lambda: [of_policy, result("b")], 0.02)
    merged = merge(views(tmp_path))
    assert sum(merged[ADMISSION][LABELS][:-1]) == 1.0
    assert set(merged[RESULTS]) == {result("b")}
    recorder.configure(MetricsConfiguration())
    recorder.admission.observe(LABELS, 0.02)
    recorder.rules.observe("key", lambda: [of_policy], 0.02)
    merged = merge(views(tmp_path))
    assert sum(merged[ADMISSION][LABELS][:-1]) == 2.0
    assert set(merged[RESULTS]) == {result("b"), of_policy}


def test_page_is_reset_while_another_process_reads(tmp_path: Path) -> None:
    page = Page.claim(tmp_path, "webhook")
    recorder = Recorder(page, 100)
    recorder.admission.observe(LABELS, 0.02)
    recorder.rules.observe("key", lambda: [result("a")], 0.02)
    view = views(tmp_path)[0]
    recorder.reset()
    recorder.errors.count(("a.b",))
    assert merge([view])[ADMISSION] == {}
    assert merge([view])[ERRORS] == {("a.b",): [1.0]}
    recorder.admission.observe(LABELS, 0.02)
    recorder.rules.observe("key", lambda: [result("a")], 0.02)
    merged = merge(views(tmp_path))
    assert sum(merged[ADMISSION][LABELS][:-1]) == 1.0
    assert sum(merged[RESULTS][result("a")][:-1]) == 1.0


def test_page_of_another_layout_is_cleared(tmp_path: Path) -> None:
    path = tmp_path / "webhook-0.page"
    path.write_bytes(b"\x01" * 100_000)
    recorder = Recorder(Page.claim(tmp_path, "webhook"), 100)
    recorder.errors.count(("a.b",))
    assert merge(views(tmp_path))[ERRORS] == {("a.b",): [1.0]}


def test_no_page_and_no_new_series_without_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing to a file without free memory would kill the process."""

    def full(_descriptor: int, _at: int, _length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    recorder = Recorder(Page.claim(tmp_path, "webhook"), 100)
    recorder.errors.count(("a.b",))
    monkeypatch.setattr(os, "posix_fallocate", full)
    for code in ("a.b", "c.d"):
        recorder.errors.count((code,))
    assert merge(views(tmp_path))[ERRORS] == {("a.b",): [2.0]}
    with pytest.raises(StateError) as raised:
        Page.claim(tmp_path, "leader")
    assert raised.value.code == "telemetry.no_room"


def test_a_full_folder_keeps_no_process_from_counting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody reads its counts; the next process has a page in the folder again."""
    monkeypatch.setattr(os, "posix_fallocate", full_in(tmp_path))
    recorder = Recorder(Page.claim(tmp_path, "webhook"), 100)
    recorder.errors.count(("a.b",))
    assert merge(views(tmp_path))[ERRORS] == {}
    assert "no room for a metric page" in caplog.text
    monkeypatch.undo()
    recorder = Recorder(Page.claim(tmp_path, "webhook"), 100)
    recorder.errors.count(("c.d",))
    assert merge(views(tmp_path))[ERRORS] == {("c.d",): [1.0]}


@pytest.mark.parametrize("has_former_owner", [False, True])
def test_process_of_a_full_folder_gets_a_page_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_former_owner: bool
) -> None:
    """Its heartbeat and counts are read from then on, also those from before.

    Otherwise an alert says until its restart that the worker hangs.
    """
    gauge = ("kyverno-admission-controller", "list", "pods")
    old_gauge = ("kyverno-admission-controller", "list", "secrets")
    rules = [result("a"), result("b")]
    if has_former_owner:
        page = Page.claim(tmp_path, "webhook")
        former = Recorder(page, 100)
        former.configure(MetricsConfiguration(bucket_boundaries=(0.5,)))
        former.errors.count(("a.b",), 4.0)
        former.admission.observe(LABELS, 0.02)
        former.series(RIGHTS_MISSING).hold(old_gauge, 1.0)
        page.close()
    monkeypatch.setattr(os, "posix_fallocate", full_in(tmp_path))
    recorder = Recorder(Page.claim(tmp_path, "webhook"), 100)
    recorder.errors.count(("a.b",))
    recorder.admission.observe(LABELS, 0.02)
    recorder.rules.observe("key", lambda: rules, 0.02)
    recorder.series(RIGHTS_MISSING).hold(gauge, 1.0)
    recorder.settled().set_gauge("generation", 7)
    assert [view.pid for view in views(tmp_path) if view.alive()] == (
        [os.getpid()] if has_former_owner else []
    )
    monkeypatch.undo()
    recorder.settled().set_gauge("heartbeat_ns", 5)
    recorder.errors.count(("a.b",))
    recorder.errors.count(("c.d",))
    recorder.admission.observe(LABELS, 0.02)
    recorder.rules.observe("key", lambda: rules, 0.02)
    page = recorder.page
    assert recorder.settled() is page
    (view,) = views(tmp_path)
    assert (view.pid, view.gauge("heartbeat_ns")) == (os.getpid(), 5)
    assert view.gauge("generation") == 7
    found = merge(views(tmp_path))
    before = 1.0 if has_former_owner else 0.0
    assert found[ERRORS] == {("a.b",): [2.0 + 4.0 * before], ("c.d",): [1.0]}
    assert sum(found[ADMISSION][LABELS][:-1]) == 2.0 + before
    assert {rule: sum(cells[:-1]) for rule, cells in found[RESULTS].items()} == (
        dict.fromkeys(rules, 2.0)
    )
    assert found[RIGHTS_MISSING][gauge] == [1.0]
    if has_former_owner:
        assert found[RIGHTS_MISSING][old_gauge] == [0.0]


def full_in(folder: Path) -> Callable[[int, int, int], None]:
    """Return a stand-in for posix_fallocate with which the folder is full."""
    reserve = os.posix_fallocate

    def full(descriptor: int, at: int, length: int) -> None:
        file = Path(f"/proc/self/fd/{descriptor}").readlink()
        if file.is_relative_to(folder):
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(descriptor, at, length)

    return full


def test_memory_is_reserved_before_it_is_written(tmp_path: Path) -> None:
    """Only the blocks that are written are allocated in the file."""
    page = Page.claim(tmp_path, "webhook")
    before = page.path.stat().st_blocks * 512
    assert 128 * 1024 <= before < 1024 * 1024
    series = 0
    while page.add_series(0, 1024, [f"{series}"]) >= 0:
        series += 1
    assert page.path.stat().st_blocks * 512 >= series * 1024 * 8


def test_page_full_of_bounds_is_continued(tmp_path: Path) -> None:
    """The next owner uses boundaries that the page already has."""
    page = Page.claim(tmp_path, "webhook")
    number = 0
    while page.table_of([0.5 + number]) >= 0:
        number += 1
    recorder = Recorder(page, 100)
    recorder.admission.observe(LABELS, 0.02)
    recorder.admission.observe(("Secret", *LABELS[1:]), 0.03)
    cells = merge(views(tmp_path))[ADMISSION]
    for kind, seconds in (("Pod", 0.02), ("Secret", 0.03)):
        found = cells[(kind, *LABELS[1:])]
        assert sum(found[:-1]) == 1.0
        assert abs(found[-1] - seconds) < 1e-9
