"""GET /metrics as OpenMetrics, read back by a second implementation."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser
from prometheus_client.parser import text_string_to_metric_families as read_text

from kyverno_mp.policy.metrics_configuration import MetricsConfiguration
from kyverno_mp.telemetry.collect import merge, views
from kyverno_mp.telemetry.expose import OpenMetrics, PlainText, format_for, render
from kyverno_mp.telemetry.families import (
    CPU,
    GAUGED,
    GENERATION,
    RECORDED,
    RULE_INFO,
    Family,
)
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder


def read_openmetrics(text: str) -> list[Metric]:
    """Read the text; the parser raises ValueError if it is not OpenMetrics."""
    return list(parser.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


def text_of(folder: Path, form: type[PlainText] | type[OpenMetrics]) -> str:
    recorder = Recorder(Page.claim(folder, "webhook"), 100)
    recorder.http.observe(("POST", '/validate"\\\n'), 0.3)
    recorder.admission.observe(("Pod", "a", "create", "true", "V"), 1.5)
    rule = ("-", *"bcdefgh")
    gauges: dict[Family, dict[tuple[str, ...], float]] = {
        GENERATION: {(): 7.0},
        CPU: {("leader",): 1.25},
        RULE_INFO: {rule: 1.0},
    }
    return render(merge(views(folder)), gauges, MetricsConfiguration(), form)


def samples(
    families: Iterable[Metric],
) -> dict[tuple[str, tuple[tuple[str, object], ...]], float]:
    return {
        (
            sample.name,
            tuple(
                sorted(
                    (name, float(value) if name == "le" else value)
                    for name, value in sample.labels.items()
                )
            ),
        ): sample.value
        for family in families
        for sample in family.samples
    }


def test_both_formats_have_the_same_content(tmp_path: Path) -> None:
    text, other = tmp_path / "text", tmp_path / "openmetrics"
    text.mkdir()
    other.mkdir()
    plain = samples(read_text(text_of(text, PlainText)))
    assert plain
    assert samples(read_openmetrics(text_of(other, OpenMetrics))) == plain


def test_openmetrics_has_units_and_an_end_marker(tmp_path: Path) -> None:
    """The parser rejects counters without a suffix, wrong units and a missing end."""
    text = text_of(tmp_path, OpenMetrics)
    families = {family.name: family for family in read_openmetrics(text)}
    assert families["kyverno_mp_process_cpu_seconds"].type == "counter"
    assert families["kyverno_mp_process_cpu_seconds"].unit == "seconds"
    assert families["kyverno_http_requests"].type == "counter"
    assert families["kyverno_http_requests_duration_seconds"].unit == "seconds"
    assert text.endswith("\n# EOF\n")
    with pytest.raises(ValueError, match="EOF"):
        read_openmetrics(text.removesuffix("# EOF\n"))


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", PlainText),
        ("*/*", PlainText),
        ("text/plain", PlainText),
        ("text/html,*/*", PlainText),
        ("application/openmetrics-text", OpenMetrics),
        # Prometheus 2 and 3 prefer OpenMetrics.
        (
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,"
                "application/openmetrics-text;version=0.0.1;q=0.4,"
                "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
            ),
            OpenMetrics,
        ),
        ("text/plain;q=0.9, application/openmetrics-text;q=0.1", PlainText),
        ("application/openmetrics-text;q=0", PlainText),
        ("application/openmetrics-text;q=x", PlainText),
    ],
)
def test_the_client_chooses_the_format(accept: str, form: type) -> None:
    assert format_for(accept) is form


def test_help_is_a_sentence_and_names_carry_units() -> None:
    """These are Prometheus' conventions; upstream's names stay unchanged."""
    for family in (*RECORDED, *GAUGED):
        assert family.text[0].isupper() or family.text[0] == "1"
        assert family.text.endswith(".")
        assert not set(family.text) & set('"\\\n')
        if not family.name.startswith("kyverno_mp_"):
            continue
        assert family.name.endswith("_total") == (family.kind == "counter")
        stem = family.name.removesuffix("_total")
        if stem.endswith("_seconds"):
            assert "in seconds" in family.text or "Unix time" in family.text
        assert stem.endswith("_bytes") == ("in bytes" in family.text)
