"""The text of GET /metrics, read back by a second implementation."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kyverno_mp.policy.metrics_configuration import (
    Exposure,
    MetricsConfiguration,
)
from kyverno_mp.telemetry.collect import merge, views
from kyverno_mp.telemetry.expose import render
from kyverno_mp.telemetry.families import GAUGED, GENERATION, RECORDED, RULE_INFO, table
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder


def test_prometheus_parses_the_output(tmp_path: Path) -> None:
    recorder = Recorder(Page.claim(tmp_path, "webhook"), 100)
    recorder.http.observe(("POST", '/validate"\n'), 0.3)
    text = render(merge(views(tmp_path)), {GENERATION: {(): 7.0}})
    samples = {
        (sample.name, sample.labels.get("le", "")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    name = "kyverno_http_requests_duration_seconds"
    assert samples[name + "_bucket", "0.25"].value == 0
    assert samples[name + "_bucket", "0.5"].value == 1
    assert samples[name + "_count", ""].value == 1
    assert samples[name + "_sum", ""].value == 0.3
    total = samples["kyverno_http_requests_total", ""]
    assert total.value == 1
    assert total.labels == {"http_method": "POST", "http_url": '/validate"\n'}
    assert samples["kyverno_mp_snapshot_generation", ""].value == 7


def samples_of(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_exposed_metrics_are_configurable(tmp_path: Path) -> None:
    """Series without their label are summed; histograms are configured separately."""
    recorder = Recorder(Page.claim(tmp_path, "webhook"), 100)
    for namespace in ("a", "b", "hidden"):
        review = ("Pod", namespace, "create", "true", "Validating")
        recorder.admission.observe(review, 0.3)
    recorder.http.observe(("POST", "/validate"), 0.3)
    shown = MetricsConfiguration(
        exclude_namespaces=("hidden",),
        exposure={
            "kyverno_admission_review_duration_seconds": Exposure(
                disabled_labels=("resource_namespace", "nobody"),
                bucket_boundaries=(0.1, 1.0),
            ),
            "kyverno_http_requests": Exposure(enabled=False),
            "kyverno_policy_rule_info": Exposure(disabled_labels=("rule_name",)),
        },
    )
    rules = [("hidden", *"bcdefgh"), ("-", *"bcdefgh"), ("-", *"bcdefih")]
    gauges = {RULE_INFO: dict.fromkeys(rules, 1.0)}
    text = render(merge(views(tmp_path), shown), gauges, shown)
    found = samples_of(text)
    duration = "kyverno_admission_review_duration_seconds"
    buckets = found[duration + "_bucket"]
    assert [(labels["le"], count) for labels, count in buckets] == [
        ("0.1", 0),
        ("1", 2),
        ("+Inf", 2),
    ]
    assert all("resource_namespace" not in labels for labels, _ in buckets)
    assert found[duration + "_count"][0][1] == 2
    counted = found["kyverno_admission_requests_total"]
    assert [labels["resource_namespace"] for labels, _ in counted] == ["a", "b"]
    assert "kyverno_http_requests_total" not in found
    assert found["kyverno_http_requests_duration_seconds_count"][0][1] == 1
    ((info, value),) = found[RULE_INFO.name]
    assert value == 1.0
    assert "rule_name" not in info


def test_names_have_kyvernos_prefix_and_are_unique() -> None:
    names = [f.name for f in (*RECORDED, *GAUGED)]
    names += [f.counted_as for f in RECORDED if f.counted_as]
    assert len(names) == len(set(names))
    assert {
        "kyverno_admission_requests_total",
        "kyverno_admission_review_duration_seconds",
        "kyverno_policy_results_total",
        "kyverno_policy_execution_duration_seconds",
        "kyverno_policy_rule_info_total",
        "kyverno_http_requests_total",
        "kyverno_http_requests_duration_seconds",
        "kyverno_policy_changes_total",
        "kyverno_info",
    } <= set(names)
    assert RULE_INFO.name in table()


def test_every_family_is_in_a_page(tmp_path: Path) -> None:
    """A process that counts a family for the first time must not crash."""
    recorder = Recorder(Page.claim(tmp_path, "leader"), 100)
    for family in RECORDED:
        recorder.series(family)
