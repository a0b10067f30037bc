"""A command is a trace, if the variables of the pipeline ask for that."""

from pathlib import Path

import pytest

from kyverno_mp.cli.main import run
from kyverno_mp.telemetry import traces
from tests.collector import attributes_of, collecting

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_command_is_a_span_of_the_pipelines_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting("http") as collector:
        for name, value in {
            "KYVERNO_MP_TRACES": "true",
            "KYVERNO_MP_TRACES_HOST": "127.0.0.1",
            "KYVERNO_MP_TRACES_PORT": str(collector.port),
            "KYVERNO_MP_OTLP_PROTOCOL": "http",
            "TRACEPARENT": f"00-{TRACE}-00f067aa0ba902b7-01",
        }.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "a.json").write_text('{"a": "geheim"}')
        assert run(["jp", "query", "-i", str(tmp_path / "a.json"), "a"]) == 0
        assert run(["jp", "query", "-i", str(tmp_path / "none.json"), "a"]) != 0
        monkeypatch.delenv("TRACEPARENT")
        assert run(["version"]) == 0
        first, failed, other = collector.wait_for("jp", count=2) + collector.wait_for(
            "version"
        )
        traces.install(None)
    assert first.trace_id.hex() == failed.trace_id.hex() == TRACE
    assert attributes_of(first) == {"kyverno.command": "jp", "process.exit.code": 0}
    assert first.status.code == 0
    assert failed.status.code == 2
    assert other.trace_id.hex() != TRACE
    assert not other.parent_span_id
    assert "geheim" not in str(collector.spans)
    assert collector.resources[0]["service.name"] == "kyverno-mp"


def test_setting_without_a_collector_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KYVERNO_MP_TRACES", "true")
    assert run(["version"]) != 0
    assert "KYVERNO_MP_TRACES_HOST" in capsys.readouterr().err


def test_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KYVERNO_MP_TRACES", "true")
    monkeypatch.setenv("KYVERNO_MP_TRACES_HOST", "c")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert run(["version"]) != 0
    assert "the packages of the extra otel" in capsys.readouterr().err


def test_nothing_of_the_sdk_is_imported_without_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KYVERNO_MP_TRACES", "")
    monkeypatch.setattr(
        "kyverno_mp.telemetry.tracing.start_tracing", lambda *_: pytest.fail("traced")
    )
    assert run(["version"]) == 0
