"""Pages: numbers survive their owner, and another process reads them whole."""

import os
from pathlib import Path

from kyverno_mp.telemetry.collect import merge, views
from kyverno_mp.telemetry.families import ADMISSION, ERRORS, OVERFLOW, RESULTS
from kyverno_mp.telemetry.page import Page, View
from kyverno_mp.telemetry.record import Recorder

LABELS = ("Pod", "default", "create", "true", "ValidatingWebhookConfiguration")


def result(rule: str, status: str = "pass") -> tuple[str, ...]:
    return (
        *("enforce", "cluster", "true", "-", "p", "Pod", "default", "create", rule),
        *(status, "validate", "admission_request", "false"),
    )


def test_the_next_owner_goes_on_counting(tmp_path: Path) -> None:
    for _ in range(2):
        page = Page.claim(tmp_path, "webhook")
        Recorder(page, 100).admission.observe(LABELS, 0.02)
        page.close()
    cells = merge(views(tmp_path))[ADMISSION][LABELS]
    assert cells[2] == 2.0
    assert abs(cells[-1] - 0.04) < 1e-9


def test_two_living_owners_have_two_pages(tmp_path: Path) -> None:
    first, second = Page.claim(tmp_path, "webhook"), Page.claim(tmp_path, "webhook")
    Recorder(first, 100).errors.count(("a.b",))
    Recorder(second, 100).errors.count(("a.b",), 2.0)
    assert merge(views(tmp_path))[ERRORS] == {("a.b",): [3.0]}
    assert [view.name for view in views(tmp_path)] == ["webhook-0", "webhook-1"]


def test_a_full_family_counts_under_overflow(tmp_path: Path) -> None:
    recorder = Recorder(Page.claim(tmp_path, "webhook"), 10)
    for number in range(50):
        labels = ("Pod", f"ns-{number}", *LABELS[2:])
        recorder.admission.observe(labels, 0.001)
    series = merge(views(tmp_path))[ADMISSION]
    overflow = (OVERFLOW, OVERFLOW, *LABELS[2:])
    assert len(series) == 11
    assert series[overflow][0] == 40.0


def test_a_bundle_is_spread_over_its_rules(tmp_path: Path) -> None:
    recorder = Recorder(Page.claim(tmp_path, "webhook"), 100)
    rules = [result("a"), result("b", "fail")]
    for _ in range(3):
        recorder.bundle("key", lambda: rules, 0.004)
    series = merge(views(tmp_path))[RESULTS]
    assert set(series) == set(rules)
    assert series[rules[0]][0] == 3.0
    assert abs(series[rules[1]][-1] - 0.006) < 1e-9


def test_facts_and_life_are_seen_from_outside(tmp_path: Path) -> None:
    page = Page.claim(tmp_path, "webhook")
    page.set_fact("generation", 7)
    view = View(page.path)
    assert (view.role, view.pid, view.fact("generation")) == ("webhook", os.getpid(), 7)
    assert view.alive()


def test_the_page_of_a_dead_owner_is_not_alive(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        Page.claim(tmp_path, "webhook").set_fact("generation", 3)
        os._exit(0)
    os.waitpid(child, 0)
    view = views(tmp_path)[0]
    assert not view.alive()
    assert view.fact("generation") == 3


def test_a_foreign_file_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "webhook-0.page").write_bytes(b"\x00" * 4000)
    (tmp_path / "webhook-1.page").write_bytes(b"short")
    assert views(tmp_path) == []
