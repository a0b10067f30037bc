"""Reading settings: defaults, overrides, and all problems reported at once."""

import dataclasses

import pytest

from kyverno_mp.errors import SettingInvalid
from kyverno_mp.settings.fields import facts_of, variable_of
from kyverno_mp.settings.machine import cores
from kyverno_mp.settings.read import read, resolve
from kyverno_mp.settings.settings import Settings
from kyverno_mp.settings.table import table
from kyverno_mp.settings.texts import CHECKS


def test_defaults_are_the_documented_ports() -> None:
    settings = read({})
    assert (settings.webhook_port, settings.health_port) == (9443, 9080)


def test_flag_has_precedence_over_the_environment() -> None:
    env = {"KYVERNO_MP_WEBHOOK_PORT": "1", "KYVERNO_MP_HEALTH_PORT": "2"}
    settings = read(env, {"webhook_port": 3, "health_port": None})
    assert (settings.webhook_port, settings.health_port) == (3, 2)


def test_empty_variable_means_the_default() -> None:
    assert read({"KYVERNO_MP_WEBHOOK_PORT": ""}).webhook_port == 9443


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("WEBHOOK_PORT", "abc", "expected a whole number, 0 to 65535"),
        ("WEBHOOK_PORT", "70000", "expected 0 to 65535"),
        ("RECORD_BYTES_MAX", "1", "expected 1048576 to 68719476736 bytes"),
        ("DRAIN_TIMEOUT_S", "nan", "expected 0 to 3600 s"),
        ("STANDALONE", "maybe", "expected true or false"),
        ("LOG_LEVEL", "loud", "expected one of debug, info, warning, error"),
        ("TLS_CERT_FILE", "x", "give both or neither"),
        # The value that os.environ returns for the byte FF.
        ("EXCLUDE_USERNAMES", "\udcff", "expected UTF-8"),
        ("HEALTH_PORT", "9443", "same as KYVERNO_MP_WEBHOOK_PORT"),
        ("IO_THREADS", "1_0", "expected a whole number"),
        ("IO_THREADS", "\u0661", "expected a whole number"),
        ("RESOURCE_FILTERS", "Pod,*,*", r"found 'Pod,\*,\*'"),
        ("RESOURCE_FILTERS", "[Pod,*,*] [Node,*", r"found '\[Node,\*'"),
        ("RESOURCE_FILTERS", "[Pod]", r"\[Pod\]: expected three parts"),
        ("RESOURCE_FILTERS", "[Pod,a,b,c]", "expected three parts"),
        ("RESOURCE_FILTERS", "[Pod, a,b]", "spaces count"),
        ("RESOURCE_FILTERS", "[,a,b]", "expected a kind"),
        ("EXCLUDE_GROUPS", "a, !", "expected a name after '!'"),
        ("EXCLUDE_USERNAMES", "!", "expected a name after '!'"),
        ("EXCLUDE_ROLES", "!", "expected a name after '!'"),
        ("EXCLUDE_CLUSTER_ROLES", "!", "expected a name after '!'"),
        ("EXCEPTION_NAMESPACE", "team-*", r"expected a namespace's name or \*"),
        ("OMIT_EVENTS", "PolicyApplied,policyerror", "'policyerror' is not one of"),
        ("NAMESPACE", "a.b", "expected lower-case letters"),
        ("SERVICE_NAME", "Kyverno", "expected lower-case letters"),
        ("CONFIG_MAP_NAME", "a/b", "expected lower-case letters"),
        ("METRICS_CONFIG_MAP_NAME", "a..b", "expected lower-case letters"),
        ("DEPLOYMENT_NAME", "-a", "expected lower-case letters"),
        ("CA_SECRET_NAME", "../a", "expected lower-case letters"),
        ("TLS_SECRET_NAME", "a b", "expected lower-case letters"),
        ("SERVER_IP", "https://10.0.0.1:9443", "without a scheme"),
        ("SERVER_IP", "::1", r"\[IPv6\]:port"),
        ("SERVER_IP", "10.0.0.1:70000", "expected host, host:port"),
        ("BACKGROUND_SERVICE_ACCOUNT", "kyverno", "expected system:serviceaccount:"),
        ("REPORTS_SERVICE_ACCOUNT", "a:b", "expected system:serviceaccount:"),
        (
            "CLEANUP_SERVICE_ACCOUNT",
            "system:serviceaccount:kyverno",
            "expected system:serviceaccount:",
        ),
    ],
)
def test_invalid_value_is_rejected(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingInvalid, match=words) as caught:
        read({f"KYVERNO_MP_{name}": value})
    assert caught.value.code == "settings.invalid"
    assert f"KYVERNO_MP_{name}" in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RESOURCE_FILTERS", "[Event,*,*][*/*,kube-system,*]"),
        ("RESOURCE_FILTERS", "\n[Event,*,*],\n  [Node/?*,,]\n"),
        ("EXCLUDE_GROUPS", "system:nodes, !system:masters,"),
        ("EXCEPTION_NAMESPACE", "*"),
        ("EXCEPTION_NAMESPACE", "team-a"),
        ("OMIT_EVENTS", "PolicyApplied, PolicySkipped"),
        ("RECORD_REDACT", "ConfigMap:data, *:spec.containers[].env[].value"),
        ("RECORD_REDACT", "Pod:metadata.annotations,"),
        ("SERVER_IP", "10.0.0.1"),
        ("SERVER_IP", "host.example.com:9443"),
        ("SERVER_IP", "[fd00::1]:9443"),
        ("TLS_SECRET_NAME", "kyverno-svc.kyverno.svc.kyverno-tls-pair"),
        ("BACKGROUND_SERVICE_ACCOUNT", "system:serviceaccount:kyverno:a.b"),
    ],
)
def test_valid_string_is_used_unchanged(name: str, value: str) -> None:
    assert getattr(read({f"KYVERNO_MP_{name}": value}), name.lower()) == value


def test_every_string_setting_is_checked_or_exempt() -> None:
    """List each new text setting here, with a check or the reason to have none."""
    free = {
        field.name
        for field in dataclasses.fields(Settings)
        if field.type is str and not facts_of(field).choices
    }
    sockets = {"webhook_host", "health_host", "dashboard_host"}
    paths = {"policies_dir", "resources_dir", "runtime_dir", "kubeconfig", "record_dir"}
    paths |= {"authz_sources", "registry_certificates"}
    files = {"tls_cert_file", "tls_key_file", "api_call_token_file"}
    files |= {"dashboard_token_file", "client_ca_file", "otlp_ca_file"}
    files |= {"notify_url_file", "metrics_cert_file", "metrics_key_file"}
    checked_by_reach = {"http_allowlist", "http_blocklist", "registry_allowlist"}
    compiled = {"authz_input_expression", "authz_output_expression"}
    told_at_start = sockets | paths | files | checked_by_reach | compiled
    assert free - CHECKS.keys() - told_at_start == {"pod_name"}
    assert CHECKS.keys() <= free


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PORT", "_PORT"),
        ("TIMEOUT", "_TIMEOUT_S"),
        ("WEBHOK_PORT", "WEBHOOK_PORT"),
        ("LOGLEVEL", "LOG_LEVEL"),
        ("DASHBORD", "DASHBOARD"),
    ],
)
def test_nearest_name_is_suggested(name: str, meant: str) -> None:
    """Counting equal letters suggested a setting of another room with a common word."""
    with pytest.raises(SettingInvalid) as caught:
        read({f"KYVERNO_MP_{name}": "1"})
    assert caught.value.message.endswith(meant)


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"TRACES": "true"}, "KYVERNO_MP_TRACES: needs KYVERNO_MP_TRACES_HOST"),
        ({"TRACES_HOST": "http://c:4317"}, "expected a host, without scheme"),
        ({"METRICS_PUSH_HOST": "c:4317"}, "expected a host, without scheme and port"),
        ({"OTLP_CA_FILE": "/ca.pem"}, "needs KYVERNO_MP_OTLP_TLS=true"),
        ({"OTLP_PROTOCOL": "json"}, "expected one of grpc, http"),
        ({"TRACES_SAMPLED": "2"}, "expected 0 to 1"),
    ],
)
def test_problem_with_a_collector_is_told_at_start(
    variables: dict[str, str], problem: str
) -> None:
    with pytest.raises(SettingInvalid) as caught:
        read({f"KYVERNO_MP_{name}": value for name, value in variables.items()})
    assert problem in caught.value.message


PAIR = {"METRICS_CERT_FILE": "/c.pem", "METRICS_KEY_FILE": "/k.pem"}
POOL = {"WEBHOOK_WORKERS": "0", "CLEANUP_WORKERS": "1"}


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"METRICS_TLS": "true"}, ""),
        ({"METRICS_TLS": "true", **PAIR}, ""),
        ({"METRICS_TLS": "true", **PAIR, **POOL}, ""),
        (PAIR, "need KYVERNO_MP_METRICS_TLS=true"),
        ({"METRICS_TLS": "true", "METRICS_KEY_FILE": "/k.pem"}, "both or neither"),
        ({"METRICS_TLS": "true", **POOL}, "KYVERNO_MP_METRICS_TLS: needs"),
    ],
)
def test_metrics_by_tls_need_a_certificate(
    variables: dict[str, str], problem: str
) -> None:
    """A pod without a webhook has none whose authority anybody could know."""
    env = {f"KYVERNO_MP_{name}": value for name, value in variables.items()}
    if not problem:
        assert read(env).metrics_tls is True
        return
    with pytest.raises(SettingInvalid) as caught:
        read(env)
    assert problem in caught.value.message


def test_all_problems_are_reported_at_once() -> None:
    env = {"KYVERNO_MP_WEBHOOK_PROT": "1", "KYVERNO_MP_HEALTH_PORT": "x", "HOME": "/"}
    with pytest.raises(SettingInvalid) as caught:
        read(env)
    assert "the nearest is KYVERNO_MP_WEBHOOK_PORT" in caught.value.message
    assert "KYVERNO_MP_HEALTH_PORT='x'" in caught.value.message


def test_resolve_computes_workers_and_folder() -> None:
    settings = resolve(read({}), {})
    assert settings.webhook_workers >= 1
    assert settings.runtime_dir.endswith("-9443")


def test_auto_means_one_worker_per_core() -> None:
    asked = resolve(read({"KYVERNO_MP_WEBHOOK_WORKERS": "auto"}), {})
    assert asked.webhook_workers == cores()


def test_zero_workers_run_no_webhook() -> None:
    env = {"KYVERNO_MP_WEBHOOK_WORKERS": "0", "KYVERNO_MP_CLEANUP_WORKERS": "1"}
    settings = resolve(read(env), {})
    assert settings.webhook_workers == 0
    assert not settings.runs_webhook


def test_background_pool_without_webhook_passes_results_on() -> None:
    env = {"REPORTS_ELSEWHERE": "true", "BACKGROUND_WORKERS": "1"}
    found = read(
        {f"KYVERNO_MP_{name}": one for name, one in env.items()}
        | {"KYVERNO_MP_WEBHOOK_WORKERS": "0"}
    )
    assert resolve(found, {}).has_reports_pool


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"BACKGROUND_WORKERS": "513"}, "expected 0 to 512 threads"),
        ({"BACKGROUND_WORKERS": "1", "STANDALONE": "true"}, "needs a cluster"),
        ({"BACKGROUND_ELSEWHERE": "1", "STANDALONE": "true"}, "needs a webhook"),
        (
            {
                "BACKGROUND_ELSEWHERE": "true",
                "CLEANUP_WORKERS": "1",
                "WEBHOOK_WORKERS": "0",
            },
            "needs a webhook",
        ),
        ({"REPORTS_WORKERS": "1", "STANDALONE": "true"}, "needs a cluster"),
        ({"REPORTS_RESULTS": "pass,maybe"}, "'maybe' is not one of"),
        ({"REPORTS_ELSEWHERE": "true", "STANDALONE": "true"}, "needs a webhook"),
        (
            {
                "REPORTS_ELSEWHERE": "true",
                "CLEANUP_WORKERS": "1",
                "WEBHOOK_WORKERS": "0",
            },
            "needs a webhook or the background pool",
        ),
        ({"CLEANUP_WORKERS": "2"}, "expected 0 to 1 processes"),
        ({"CLEANUP_WORKERS": "1", "STANDALONE": "true"}, "needs a cluster"),
        ({"WEBHOOK_WORKERS": "0"}, "0 leaves this pod without anything to run"),
        ({"WEBHOOK_WORKERS": "-1"}, "expected 0 to 512 processes, or auto"),
        ({"WEBHOOK_WORKERS": "many"}, "a whole number, 0 to 512 processes, or auto"),
    ],
)
def test_role_that_cannot_run_is_rejected(env: dict[str, str], problem: str) -> None:
    """A number of workers that would be read and then ignored is an error."""
    with pytest.raises(SettingInvalid) as caught:
        read({f"KYVERNO_MP_{name}": value for name, value in env.items()})
    assert problem in caught.value.message


@pytest.mark.parametrize(
    ("mode", "standalone", "is_possible"),
    [
        ("", "true", True),
        ("http", "true", True),
        ("http", "false", True),
        ("", "false", False),
        ("envoy", "true", False),
    ],
)
def test_only_a_server_of_payloads_accepts_their_setting(
    mode: str, standalone: str, *, is_possible: bool
) -> None:
    """Accepted elsewhere, it would have no effect."""
    env = {
        "KYVERNO_MP_JSON_PAYLOADS": "true",
        "KYVERNO_MP_AUTHZ_MODE": mode,
        "KYVERNO_MP_STANDALONE": standalone,
    }
    if is_possible:
        assert read(env).json_payloads
        return
    with pytest.raises(SettingInvalid, match="KYVERNO_MP_JSON_PAYLOADS: needs"):
        read(env)


def test_table_lists_every_setting_once() -> None:
    rows = table()
    for field in dataclasses.fields(Settings):
        assert rows.count(f"`{variable_of(field)}`") == 1
        assert facts_of(field).doc in rows
