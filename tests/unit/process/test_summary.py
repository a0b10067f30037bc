"""The summary line at startup: the active policies, and the omitted ones."""

from pathlib import Path

import pytest

from kyverno_mp.leader.status import PolicyStatus, RuleStatus, Status, write_status
from kyverno_mp.process.banner import Banner
from kyverno_mp.process.roles.health import Reporter
from kyverno_mp.process.roles.table import QUEUES
from kyverno_mp.process.startup.certificate import Files
from kyverno_mp.process.startup.summary import summary_of
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.control import ControlPage


def policy(
    name: str, *rules: str, ready: bool = True, mode: str = "enforce"
) -> PolicyStatus:
    return PolicyStatus(
        *("ClusterPolicy", "", name),
        ready=ready,
        message="",
        rule_count=len(rules),
        mode=mode,
        rules=tuple(RuleStatus(rule, "Validation") for rule in rules),
    )


def test_all_policies_active() -> None:
    status = Status(policies=(policy("a", "x", "y"), policy("b", "z", mode="audit")))
    assert summary_of(status).text() == (
        "2 policies in force with 3 rules (autogen included): 1 enforce, 1 audit;"
        " nothing omitted"
    )


@pytest.mark.parametrize("mode", ["enforce", "audit"])
def test_policies_that_only_change_objects_neither_enforce_nor_audit(mode: str) -> None:
    changing = PolicyStatus(
        *("MutatingPolicy", "", "b"),
        ready=True,
        message="",
        rule_count=1,
        mode=mode,
        rules=(RuleStatus("b", "mutate"), RuleStatus("c", "generate")),
    )
    status = Status(policies=(policy("a", "x"), changing))
    assert summary_of(status).text() == (
        "2 policies in force with 3 rules (autogen included): 1 enforce, 0 audit,"
        " 1 mutate or generate; nothing omitted"
    )


def test_omitted_policies_are_named() -> None:
    """A rejected policy, a partly active policy and a file."""
    refused = [policy(f"r{number}", ready=False) for number in range(5)]
    status = Status(
        policies=(policy("a", "x"), policy("b", "y", ready=False), *refused),
        problems=("a.yaml: not YAML",),
    )
    found = summary_of(status)
    assert found.text() == (
        "2 policies in force with 2 rules (autogen included): 2 enforce, 0 audit;"
        " omitted: 5 policies (r0, r1, r2 and 2 more), parts of 1 policy (b),"
        " 1 problem (reasons in /policies)"
    )
    assert found.fields()["rejected"] == ("r0", "r1", "r2", "r3", "r4")


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        (Settings(log_format="text", standalone=True), {"stdout"}),
        (Settings(log_format="text"), {"stdout"}),
        (Settings(log_format="json", standalone=True), {"stdout", "log"}),
        # In a cluster, stdout and stderr are one JSON stream.
        (Settings(log_format="json"), {"log"}),
    ],
)
def test_banner_format_follows_the_log_format(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    settings: Settings,
    places: set[str],
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "snapshot").mkdir(mode=0o700)
    ControlPage.create(tmp_path / "snapshot")
    write_status(tmp_path, Status(generation=1, policies=(policy("a", "x"),)))
    reporter = Reporter(settings, tmp_path, QUEUES)
    Banner(settings, Files(tmp_path, tmp_path), reporter).write()
    line = "1 policy in force with 1 rule (autogen included): 1 enforce, 0 audit"
    assert (line in capsys.readouterr().out) is ("stdout" in places)
    assert any(line in text for text in caplog.messages) is ("log" in places)


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("", "localhost"),
        ("0.0.0.0", "localhost"),
        ("::", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "[::1]"),
        ("fd00::7", "[fd00::7]"),
    ],
)
def test_banner_addresses_can_be_opened(tmp_path: Path, host: str, place: str) -> None:
    settings = Settings(
        standalone=True,
        webhook_host=host,
        health_host=host,
        dashboard=True,
        dashboard_host=host,
    )
    (tmp_path / "snapshot").mkdir(mode=0o700)
    ControlPage.create(tmp_path / "snapshot")
    write_status(tmp_path, Status(generation=1))
    reporter = Reporter(settings, tmp_path, QUEUES)
    text = Banner(settings, Files(tmp_path, tmp_path), reporter).text()
    for scheme, port in (
        ("https", settings.webhook_port),
        ("http", settings.health_port),
        ("http", settings.dashboard_port),
    ):
        assert f"{scheme}://{place}:{port}/" in text
