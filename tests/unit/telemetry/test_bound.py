"""The lines of /metrics are bounded in all, and no counter decreases.

A failure means: invented labels fill the monitoring system, or alerts see resets.
"""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.limits import METRICS_LINES_MAX
from kyverno_mp.policy.metrics_configuration import MetricsConfiguration
from kyverno_mp.telemetry.bound import ExposedSeries
from kyverno_mp.telemetry.collect import Merged, merge, views
from kyverno_mp.telemetry.expose import render
from kyverno_mp.telemetry.families import ADMISSION, ERRORS, OVERFLOW, RESULTS
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder

SHOWN = MetricsConfiguration()
WORKERS, POLICIES, KINDS, OPERATIONS = 2, 50, ("Pod", "Deployment"), ("create",)


def row(policy: str, *asked: str) -> tuple[str, ...]:
    """Return the labels of a rule's result."""
    rule = ("r", "pass", "validate", "admission_request", "false")
    return ("audit", "cluster", "true", "-", policy, *asked, *rule)


def lines_with(folder: Path, namespaces: int) -> int:
    """Return the lines exposed after each policy matched in each namespace."""
    folder.mkdir()
    for _ in range(WORKERS):
        recorder = Recorder(Page.claim(folder, "webhook"), 2000)
        for number in range(namespaces):
            for kind in KINDS:
                for operation in OPERATIONS:
                    asked = (kind, f"team-{number}", operation)
                    recorder.admission.observe((*asked, "true", "Validating"), 0.01)
                    rules = [row(f"p{policy}", *asked) for policy in range(POLICIES)]
                    recorder.rules.observe(asked, lambda rules=rules: rules, 0.01)  # type: ignore[misc]  # bound now
    recorded = ExposedSeries(10**9).bounded(merge(views(folder)), SHOWN)
    return render(recorded, {}).count("\n")


def test_large_installation_stays_below_the_default(tmp_path: Path) -> None:
    """500 namespaces, 50 policies; the lines grow linearly with the namespaces."""
    few, more = lines_with(tmp_path / "5", 5), lines_with(tmp_path / "10", 10)
    for_each = (more - few) / 5
    assert for_each > POLICIES * len(KINDS)
    assert few + 495 * for_each < METRICS_LINES_MAX


def results(namespaces: int, count: float) -> Merged:
    rows = {
        row("p", "Pod", f"n{number}", "create"): [count] * 17
        for number in range(namespaces)
    }
    return {RESULTS: rows, ERRORS: {("a",): [1.0]}}


def test_bound_holds_and_nothing_is_lost(tmp_path: Path) -> None:
    del tmp_path
    exposed = ExposedSeries(1000)
    for _ in range(2):
        found = exposed.bounded(results(2500, 1.0), SHOWN)
        lines = render(found, {}).splitlines()
        samples = [line for line in lines if not line.startswith("#")]
        assert len(samples) < 1000 + 20
        total = sum(sum(cells) for cells in found[RESULTS].values())
        assert total == 2500 * 17
        assert any(OVERFLOW in labels for labels in found[RESULTS])


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from([f"n{number}" for number in range(40)]), st.integers(1, 9)
        ),
        max_size=8,
    )
)
def test_no_counter_decreases(scrapes: list[dict[str, int]]) -> None:
    exposed = ExposedSeries(200)
    counts: dict[tuple[str, ...], float] = {}
    before: dict[tuple[str, ...], float] = {}
    for added in scrapes:
        for namespace, number in added.items():
            labels = ("Pod", namespace, "create", "true", "v")
            counts[labels] = counts.get(labels, 0.0) + number
        merged: Merged = {ADMISSION: {one: [count] for one, count in counts.items()}}
        found = exposed.bounded(merged, SHOWN)[ADMISSION]
        after = {labels: cells[0] for labels, cells in found.items()}
        assert all(after[labels] >= count for labels, count in before.items())
        assert sum(after.values()) == sum(counts.values())
        before = after
