"""Upstream's flags and variables: each is known and has a correct description."""

import dataclasses

import pytest

from kyverno_mp.cli.main import run
from kyverno_mp.errors import SettingInvalid
from kyverno_mp.settings.read import read
from kyverno_mp.settings.settings import Settings
from kyverno_mp.settings.upstream import (
    FLAG_OF,
    FLAGS,
    VARIABLES,
    table,
    translate,
)

SETTINGS = {field.name for field in dataclasses.fields(Settings)}


def test_every_flag_has_one_meaning_and_one_row() -> None:
    rows = table()
    assert len(FLAG_OF) == len(FLAGS)
    for flag in FLAGS:
        assert bool(flag.setting) != bool(flag.unneeded), flag.name
        assert not flag.setting or flag.setting in SETTINGS
        assert rows.count(f"| `--{flag.name}` |") == 1
    assert set(VARIABLES.values()) <= SETTINGS


def test_upstreams_defaults_cause_no_warning() -> None:
    found = translate((flag.name, flag.default) for flag in FLAGS)
    assert (found.problems, found.warnings) == ((), ())
    settings = read({}, found.overrides, found.sources)
    assert settings.policy_exceptions is False
    assert settings.health_port == 8000


@pytest.mark.parametrize(
    ("flag", "value", "setting", "expected"),
    [
        ("webhookTimeout", "15", "webhook_timeout_s", 15.0),
        ("autoUpdateWebhooks", "false", "auto_update_webhooks", False),
        ("loggingFormat", "text", "log_format", "text"),
        ("loggingFormat", "json", "log_format", "json"),
        ("v", "4", "log_level", "debug"),
        ("v", "3", "log_level", "info"),
        ("renewBefore", "90m", "certificate_renew_before_h", 2),
        ("leaderElectionRetryPeriod", "1500ms", "lease_retry_s", 1.5),
        ("apiCallTimeout", "1m", "api_call_timeout_s", 60.0),
        ("apiCallTimeout", "0", "api_call_timeout_s", 300.0),
        ("maxAPICallResponseLength", "2000000", "api_call_answer_bytes_max", 2_000_000),
        ("maxAPICallResponseLength", "0", "api_call_answer_bytes_max", 1 << 28),
        ("exceptionNamespace", "ex", "exception_namespace", "ex"),
        ("exceptionNamespace", "", "exceptions_in", ""),
        ("omitEvents", "PolicyApplied", "omit_events", "PolicyApplied"),
        ("excludeBootstrapResources", "true", "exclude_bootstrap_resources", True),
        ("disableCertManagerController", "true", "certificates_of_others", True),
        ("maxGlobalContextEntries", "300", "global_context_entries_max", 300),
        ("maxGlobalContextEntries", "0", "global_context_entries_max", 4096),
        ("maxQueuedEvents", "5", "events_queued_max", 5),
        ("protectManagedResources", "true", "protect_managed_resources", True),
        ("genWorkers", "20", "background_workers", 20),
        ("enableConfigMapCaching", "false", "config_map_caching", False),
    ],
)
def test_flag_sets_its_setting(
    flag: str, value: str, setting: str, expected: object
) -> None:
    found = translate([(flag, value)])
    assert found.problems == found.warnings == ()
    settings = read({}, found.overrides, found.sources)
    assert getattr(settings, setting) == expected


def test_flag_without_effect_causes_a_warning_unless_default() -> None:
    found = translate([("crdWatcher", "true"), ("disableLogColor", "false")])
    assert found.overrides == {}
    reason = "not needed: CRDs are always watched"
    assert found.warnings == (f"--crdWatcher=true has no effect: {reason}",)


def test_flags_of_traces_and_of_pushed_metrics() -> None:
    """Upstream's chart gives all of them; metricsPort is also the collector's."""
    found = translate(
        [
            *(
                ("enableTracing", "true"),
                ("tracingAddress", "c.ns"),
                ("tracingCreds", ""),
            ),
            *(
                ("otelConfig", "grpc"),
                ("otelCollector", "m.ns"),
                ("transportCreds", ""),
            ),
            ("metricsPort", "4000"),
        ]
    )
    assert found.problems == found.warnings == ()
    settings = read({}, found.overrides, found.sources)
    assert (settings.traces, settings.traces_host, settings.traces_port) == (
        *(True, "c.ns", 4317),
    )
    assert settings.metrics_push is True
    assert (settings.metrics_push_host, settings.metrics_push_port) == ("m.ns", 4000)
    assert settings.health_port == 4000
    assert settings.otlp_tls is False
    default = read({}, translate([("otelConfig", "grpc")]).overrides)
    assert default.metrics_push_port == 8000
    assert read({}, translate([("otelConfig", "prometheus")]).overrides) == read({})
    for flag in ("tracingCreds", "transportCreds"):
        (problem,) = translate([(flag, "secret")]).problems
        assert "KYVERNO_MP_OTLP_CA_FILE" in problem


@pytest.mark.parametrize(
    ("flags", "serves", "by_tls"),
    [
        ([("disableMetrics", "false"), ("metricsTLSSecretName", "")], True, False),
        ([("disableMetrics", "true")], False, False),
        (
            [("metricsCASecretName", "a-ca"), ("metricsTLSSecretName", "a-pair")],
            *(True, True),
        ),
    ],
)
def test_flags_of_metrics_are_obeyed(
    flags: list[tuple[str, str]], *, serves: bool, by_tls: bool
) -> None:
    """Metrics that were meant to be encrypted or off are not served as plain text."""
    settings = read({}, translate(flags).overrides)
    assert (settings.metrics, settings.metrics_tls) == (serves, by_tls)


def test_problem_names_the_flag_as_typed() -> None:
    found = translate([("webhookTimeout", "99"), ("renewBefore", "soon")])
    assert found.problems == ('--renewBefore=soon: time: invalid duration "soon"',)
    with pytest.raises(SettingInvalid, match="--webhookTimeout=99: expected 1 to 30 s"):
        read({}, found.overrides, found.sources)


def test_our_variable_has_precedence_over_upstreams() -> None:
    env = {"KYVERNO_NAMESPACE": "theirs", "INIT_CONFIG": "config"}
    assert read(env).namespace == "theirs"
    assert read(env).config_map_name == "config"
    assert read(env | {"KYVERNO_MP_NAMESPACE": "ours"}).namespace == "ours"
    assert read(env, {"namespace": "flag"}).namespace == "flag"
    with pytest.raises(SettingInvalid, match="FLAG_PROTECT_MANAGED_RESOURCES='maybe'"):
        read({"FLAG_PROTECT_MANAGED_RESOURCES": "maybe"})


@pytest.mark.parametrize(
    ("given", "seconds"), [("1h", 3600), ("90m", 5400), ("1500ms", 2), ("48h", 172_800)]
)
def test_variable_accepts_gos_format(given: str, seconds: int) -> None:
    settings = read({"BACKGROUND_SCAN_INTERVAL": given})
    assert settings.background_scan_interval_s == seconds
    ours = {"KYVERNO_MP_BACKGROUND_SCAN_INTERVAL_S": "7"}
    settings = read({"BACKGROUND_SCAN_INTERVAL": given, **ours})
    assert settings.background_scan_interval_s == 7


def test_invalid_duration_is_a_problem() -> None:
    with pytest.raises(SettingInvalid, match="BACKGROUND_SCAN_INTERVAL='hourly'"):
        read({"BACKGROUND_SCAN_INTERVAL": "hourly"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--webhookTimout=15"],
            "no such flag: --webhookTimout; the nearest is --webhookTimeout",
        ),
        (["--kubeconfig"], "flag needs an argument: --kubeconfig"),
        (["-webhookTimeout", "99"], "--webhookTimeout=99: expected 1 to 30 s"),
        (["--v=x"], "--v=x: expected a whole number"),
        (["--webhookTimeout=15", "--policies", "/no/where", "--standalone"], "/no/"),
        (
            ["--httpBlocklist=10.0.0.0/99", "--standalone", "--policies=/"],
            "KYVERNO_MP_HTTP_BLOCKLIST: '10.0.0.0/99'",
        ),
        (["--crdWatcher", "--v", "4", "--port=x"], "--port=x: "),
    ],
)
def test_command_accepts_or_rejects_the_flag(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *arguments]) in (1, 2)
    told = capsys.readouterr().err
    assert words in told
    assert ("Warning: --crdWatcher=true" in told) == ("--crdWatcher" in arguments)
