"""List every flag and variable of upstream's containers, and its meaning here.

Room: settings. Takes: nothing. Gives: FLAGS, VARIABLES; translate() to settings; the
tables in docs/settings.md. Next: settings/read.py, cli/serve.py.
Source: docs/behaviour/controllers 10.1, 10.2; Kyverno cmd/internal/flag.go,
cmd/*/main.go.

A flag maps to a setting or is not needed. A flag without effect is accepted, so that
our container starts with upstream's arguments. It causes a warning if its value is not
upstream's default.

Over 400 lines: one table, from which a part of docs/settings.md is generated.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kyverno_mp.limits import GLOBAL_CONTEXT_ENTRIES_HIGHEST
from kyverno_mp.settings.fields import variable
from kyverno_mp.values.go.duration import duration_error, parse_duration

_ANSWER_BYTES_HIGHEST: Final = 256 * 1024 * 1024
_CALL_TIMEOUT_S_HIGHEST: Final = 300
_CACHED_IMAGES: Final = 1000
_HOUR_NS: Final = 3_600_000_000_000
_DEBUG_LEVEL: Final = 4
"""klog's verbosity at which upstream logs individual requests."""
Overrides = dict[str, str]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. ``containers``: Admission, Background, Reports, Cleanup, Init.

    Either ``setting`` or ``unneeded`` (a reason) is given. ``convert`` returns the
    settings for a value.
    """

    name: str
    default: str
    containers: str
    setting: str = ""
    unneeded: str = ""
    convert: Callable[[str], Overrides] | None = None

    @property
    def is_bool(self) -> bool:
        """Whether the flag without a value means true."""
        return self.default in ("true", "false")

    @property
    def meaning(self) -> str:
        """The meaning of the flag, for docs/settings.md."""
        if self.setting:
            return f"`{variable(self.setting)}`"
        return f"not needed: {self.unneeded}"


def _duration(setting: str) -> Callable[[str], Overrides]:
    return lambda value: {setting: f"{_nanoseconds(value) / 1e9:.9g}"}


def _hours(setting: str) -> Callable[[str], Overrides]:
    return lambda value: {setting: str(-(-_nanoseconds(value) // _HOUR_NS))}


def _whole_seconds(setting: str) -> Callable[[str], Overrides]:
    return lambda value: {setting: str(-(-_nanoseconds(value) // 10**9))}


def _nanoseconds(value: str) -> int:
    nanoseconds = parse_duration(value)
    if nanoseconds is None:
        raise ValueError(duration_error(value))
    return nanoseconds


def _whole(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError("expected a whole number") from None


def _level(value: str) -> Overrides:
    return {"log_level": "debug" if _whole(value) >= _DEBUG_LEVEL else "info"}


def _call_timeout(value: str) -> Overrides:
    # KYVERNO: zero means no timeout; here it is the maximum of the setting.
    seconds = _nanoseconds(value) / 1e9 or _CALL_TIMEOUT_S_HIGHEST
    return {"api_call_timeout_s": f"{seconds:.9g}"}


def _answer_bytes(value: str) -> Overrides:
    # KYVERNO: zero means no limit; here it is the maximum of the setting.
    size = _whole(value) or _ANSWER_BYTES_HIGHEST
    return {"api_call_answer_bytes_max": str(size)}


def _cache_entries(value: str) -> Overrides:
    # KYVERNO: zero means the default.
    return {"image_verify_cache_entries_max": str(_whole(value) or _CACHED_IMAGES)}


def _cache_ttl(value: str) -> Overrides:
    # KYVERNO: zero means the default.
    seconds = -(-_nanoseconds(value) // 10**9) or _HOUR_NS // 10**9
    return {"image_verify_cache_ttl_s": str(seconds)}


def _authority(value: str) -> Overrides:
    if value:
        raise ValueError(
            "mount the Secret, and name its file in KYVERNO_MP_OTLP_CA_FILE with"
            " KYVERNO_MP_OTLP_TLS=true"
        )
    return {}


def _pushes(value: str) -> Overrides:
    if value not in ("grpc", "prometheus"):
        raise ValueError("expected grpc or prometheus")
    return {"metrics_push": "true" if value == "grpc" else "false"}


def _measures(value: str) -> Overrides:
    if value not in ("true", "false"):
        raise ValueError("expected true or false")
    return {"metrics": "false" if value == "true" else "true"}


def _serves_tls(value: str) -> Overrides:
    return {"metrics_tls": "true"} if value else {}


def _context_entries(value: str) -> Overrides:
    # KYVERNO: zero means no limit; here it is the maximum of the setting.
    count = _whole(value) or GLOBAL_CONTEXT_ENTRIES_HIGHEST
    return {"global_context_entries_max": str(count)}


_TIMES: Final = "log lines have RFC 3339 times"
_COSIGN: Final = "results and denials name the reasons why signatures did not count"
_COLOR: Final = "log lines have no colors"
_PROFILE: Final = "there is no Go profiler; py-spy can attach instead"
_EXEMPLARS: Final = "metrics have no exemplars"
_METRICS_TLS: Final = (
    "the certificate is the webhook's, or that of `KYVERNO_MP_METRICS_CERT_FILE`"
)
_CLIENT: Final = "the API server limits the rate: after 429 we wait and retry"
_LOADING: Final = "context entries are always loaded on first use"
_FEW_REPORTS: Final = "each replica has at most two EphemeralReports"
_MEMORY: Final = "there is no Go runtime with a memory limit"
_RUNTIME: Final = "there is no controller-runtime; its metrics are in /metrics"
_ONE_SERVER: Final = "one server handles all requests"

FLAGS: Final[tuple[Flag, ...]] = (
    # 10.1, shared
    Flag("loggingFormat", "text", "ABRCI", setting="log_format"),
    Flag("loggingtsFormat", "default", "ABRCI", unneeded=_TIMES),
    Flag("disableLogColor", "false", "ABRCI", unneeded=_COLOR),
    Flag("v", "2", "ABRCI", setting="log_level", convert=_level),
    Flag("autoMemLimitEnabled", "true", "ABRCI", unneeded=_MEMORY),
    Flag("autoMemLimitRatio", "0.9", "ABRCI", unneeded=_MEMORY),
    Flag("profile", "false", "ABRC", unneeded=_PROFILE),
    Flag("profilePort", "6060", "ABRC", unneeded=_PROFILE),
    Flag("profileAddress", "", "ABRC", unneeded=_PROFILE),
    Flag("enableTracing", "false", "ABRC", setting="traces"),
    Flag("tracingAddress", "", "ABRC", setting="traces_host"),
    Flag("tracingPort", "4317", "ABRC", setting="traces_port"),
    Flag("tracingCreds", "", "ABRC", setting="otlp_ca_file", convert=_authority),
    Flag("otelConfig", "prometheus", "ABRC", setting="metrics_push", convert=_pushes),
    Flag(
        "otelCollector",
        "opentelemetrycollector.kyverno.svc.cluster.local",
        "ABRC",
        setting="metrics_push_host",
    ),
    Flag("transportCreds", "", "ABRC", setting="otlp_ca_file", convert=_authority),
    Flag("metricsHost", "", "ABRC", setting="health_host"),
    Flag("metricsPort", "8000", "ABRC", setting="health_port"),
    Flag("disableMetrics", "false", "ABRC", setting="metrics", convert=_measures),
    Flag("exemplarFilter", "trace-based", "ABRC", unneeded=_EXEMPLARS),
    Flag("metricsCASecretName", "", "ABRC", unneeded=_METRICS_TLS),
    Flag(
        "metricsTLSSecretName",
        "",
        "ABRC",
        setting="metrics_tls",
        convert=_serves_tls,
    ),
    Flag("metricsKeyAlgorithm", "RSA", "ABRC", unneeded=_METRICS_TLS),
    Flag("metricsRenewBefore", "360h", "ABRC", unneeded=_METRICS_TLS),
    Flag("metricsServerIP", "", "ABRC", unneeded=_METRICS_TLS),
    Flag("kubeconfig", "", "ABRCI", setting="kubeconfig"),
    Flag("clientRateLimitQPS", "100", "ABRCI", unneeded=_CLIENT),
    Flag("clientRateLimitBurst", "200", "ABRCI", unneeded=_CLIENT),
    Flag(
        "eventsRateLimitQPS",
        "1000",
        "ABRC",
        unneeded="Events are written individually, repeated ones as a count",
    ),
    Flag(
        "eventsRateLimitBurst",
        "2000",
        "ABRC",
        unneeded="Events are written individually, repeated ones as a count",
    ),
    Flag(
        "resyncPeriod",
        "15m",
        "ABRCI",
        unneeded="controllers compare objects with the API server every ten seconds",
    ),
    Flag("crdWatcher", "false", "ABRC", unneeded="CRDs are always watched"),
    Flag("enablePolicyException", "false", "ABR", setting="policy_exceptions"),
    Flag("exceptionNamespace", "", "ABR", setting="exception_namespace"),
    Flag("enableConfigMapCaching", "true", "ABRC", setting="config_map_caching"),
    Flag("enableDeferredLoading", "true", "ABRC", unneeded=_LOADING),
    Flag("enableTuf", "false", "AR", setting="enable_tuf"),
    Flag("tufMirror", "https://tuf-repo-cdn.sigstore.dev", "AR", setting="tuf_mirror"),
    Flag("tufRoot", "", "AR", setting="tuf_root"),
    Flag("tufRootRaw", "", "AR", setting="tuf_root_raw"),
    Flag("allowInsecureRegistry", "false", "ABR", setting="allow_insecure_registry"),
    Flag("imagePullSecrets", "", "ABR", setting="image_pull_secrets"),
    Flag("registryCredentialHelpers", "", "ABR", setting="registry_credential_helpers"),
    Flag("imageVerifyCacheEnabled", "true", "AR", setting="image_verify_cache"),
    Flag(
        "imageVerifyCacheMaxSize",
        "1000",
        "AR",
        setting="image_verify_cache_entries_max",
        convert=_cache_entries,
    ),
    Flag(
        "imageVerifyCacheTTLDuration",
        "60m",
        "AR",
        setting="image_verify_cache_ttl_s",
        convert=_cache_ttl,
    ),
    Flag(
        "leaderElectionRetryPeriod",
        "2s",
        "ABRC",
        setting="lease_retry_s",
        convert=_duration("lease_retry_s"),
    ),
    Flag(
        "enableReporting",
        "validate,mutate,mutateExisting,generate,imageVerify",
        "ABR",
        setting="reports_of",
    ),
    Flag(
        "allowedResults", "pass,fail,error,warn,skip", "ABR", setting="reports_results"
    ),
    Flag("openreportsEnabled", "false", "RI", setting="reports_open"),
    Flag("cleanupServerHost", "", "ABRC", unneeded=_ONE_SERVER),
    Flag("cleanupServerPort", "9443", "ABRC", unneeded=_ONE_SERVER),
    Flag("maxQueuedEvents", "1000", "ABRC", setting="events_queued_max"),
    Flag("omitEvents", "", "ABR", setting="omit_events"),
    Flag(
        "maxAPICallResponseLength",
        "10000000",
        "ABRC",
        setting="api_call_answer_bytes_max",
        convert=_answer_bytes,
    ),
    Flag(
        "apiCallTimeout",
        "30s",
        "ABRC",
        setting="api_call_timeout_s",
        convert=_call_timeout,
    ),
    Flag(
        "allowHTTPInNamespacedPolicies",
        "false",
        "ABRC",
        setting="http_in_namespaced_policies",
    ),
    Flag("httpBlocklist", "", "ABRC", setting="http_blocklist"),
    Flag("httpAllowlist", "", "ABRC", setting="http_allowlist"),
    # 10.2, admission controller
    Flag(
        "dumpPayload",
        "false",
        "AC",
        unneeded="reviews are never logged, because they may contain secrets",
    ),
    Flag(
        "dumpPatches",
        "false",
        "A",
        unneeded="patches are never logged, because they may contain secrets",
    ),
    Flag("webhookTimeout", "10", "A", setting="webhook_timeout_s"),
    Flag("serverIP", "", "AC", setting="server_ip"),
    Flag("autoUpdateWebhooks", "true", "A", setting="auto_update_webhooks"),
    Flag(
        "webhookRegistrationTimeout",
        "120s",
        "A",
        unneeded="upstream reads the flag but does not use it",
    ),
    Flag("protectManagedResources", "false", "AC", setting="protect_managed_resources"),
    Flag(
        "forceFailurePolicyIgnore",
        "false",
        "A",
        setting="force_failure_policy_ignore",
    ),
    Flag(
        "generateValidatingAdmissionPolicy",
        "true",
        "A",
        setting="generate_validating_admission_policies",
    ),
    Flag(
        "generateMutatingAdmissionPolicy",
        "false",
        "A",
        setting="generate_mutating_admission_policies",
    ),
    Flag("admissionReports", "true", "AR", setting="reports_admission"),
    Flag("servicePort", "443", "AC", setting="service_port"),
    Flag("webhookServerHost", "", "A", setting="webhook_host"),
    Flag("webhookServerPort", "9443", "AC", setting="webhook_port"),
    Flag("backgroundServiceAccountName", "", "A", setting="background_service_account"),
    Flag("reportsServiceAccountName", "", "A", setting="reports_service_account"),
    Flag("caSecretName", "", "AC", setting="ca_secret_name"),
    Flag("tlsSecretName", "", "AC", setting="tls_secret_name"),
    Flag(
        "renewBefore",
        "360h",
        "AC",
        setting="certificate_renew_before_h",
        convert=_hours("certificate_renew_before_h"),
    ),
    Flag(
        "maxAuditWorkers",
        "8",
        "A",
        unneeded="each webhook process runs audits in one separate thread",
    ),
    Flag("maxAuditCapacity", "1000", "A", setting="audit_queue_max"),
    Flag("maxAdmissionReports", "10000", "A", unneeded=_FEW_REPORTS),
    Flag("controllerRuntimeMetricsAddress", "", "AB", unneeded=_RUNTIME),
    Flag("tlsKeyAlgorithm", "RSA", "AC", setting="tls_key_algorithm"),
    # 10.2, new in 1.19
    Flag(
        "excludeBootstrapResources",
        "false",
        "A",
        setting="exclude_bootstrap_resources",
    ),
    Flag(
        "disableCertManagerController",
        "false",
        "AC",
        setting="certificates_of_others",
    ),
    Flag(
        "maxGlobalContextEntries",
        "0",
        "ABRC",
        setting="global_context_entries_max",
        convert=_context_entries,
    ),
    Flag("enableCosignLogging", "false", "ABRC", unneeded=_COSIGN),
    # 10.2, the other controllers
    Flag("genWorkers", "10", "B", setting="background_workers"),
    Flag("maxBackgroundReports", "10000", "BR", unneeded=_FEW_REPORTS),
    Flag("backgroundScan", "true", "R", setting="reports_scan"),
    Flag("aggregateReports", "true", "R", setting="reports_aggregate"),
    Flag("policyReports", "true", "R", setting="reports_store"),
    Flag(
        "validatingAdmissionPolicyReports",
        "true",
        "R",
        setting="reports_validating_admission_policies",
    ),
    Flag(
        "mutatingAdmissionPolicyReports",
        "false",
        "R",
        setting="reports_mutating_admission_policies",
    ),
    Flag(
        "aggregationWorkers",
        "10",
        "R",
        unneeded="reports are written at once, not assembled from other reports",
    ),
    Flag("backgroundScanWorkers", "2", "R", setting="reports_workers"),
    Flag(
        "backgroundScanInterval",
        "1h",
        "R",
        setting="reports_scan_interval_s",
        convert=_whole_seconds("reports_scan_interval_s"),
    ),
    Flag("skipResourceFilters", "true", "R", setting="reports_scan_ignores_filters"),
    Flag(
        "reportsCRDsSanityChecks",
        "true",
        "R",
        unneeded="a missing report kind is shown in the pool's health",
    ),
    Flag(
        "ttlReconciliationInterval",
        "1m",
        "C",
        setting="cleanup_discovery_s",
        convert=_whole_seconds("cleanup_discovery_s"),
    ),
    Flag(
        "autoDeleteWebhooks",
        "false",
        "C",
        unneeded="upstream reads the flag but does not use it",
    ),
)
FLAG_OF: Final[Mapping[str, Flag]] = {flag.name: flag for flag in FLAGS}

VARIABLES: Final[Mapping[str, str]] = {
    "KYVERNO_NAMESPACE": "namespace",
    "KYVERNO_SVC": "service_name",
    "KYVERNO_POD_NAME": "pod_name",
    "KYVERNO_DEPLOYMENT": "deployment_name",
    "KYVERNO_SERVICEACCOUNT_NAME": "service_account_name",
    "KYVERNO_SCOPED_TOKEN_PATH": "api_call_token_file",
    "INIT_CONFIG": "config_map_name",
    "METRICS_CONFIG": "metrics_config_map_name",
    "FLAG_PROTECT_MANAGED_RESOURCES": "protect_managed_resources",
    "FLAG_FORCE_FAILURE_POLICY_IGNORE": "force_failure_policy_ignore",
    "FLAG_ENABLE_HTTP_IN_NAMESPACED_POLICIES": "http_in_namespaced_policies",
    "FLAG_HTTP_BLOCKLIST": "http_blocklist",
    "FLAG_HTTP_ALLOWLIST": "http_allowlist",
    "BACKGROUND_SCAN_INTERVAL": "background_scan_interval_s",
}
"""Upstream's environment variables that map to our settings; our variables take
precedence."""
CONVERTERS: Final[Mapping[str, Callable[[str], Overrides]]] = {
    "BACKGROUND_SCAN_INTERVAL": _whole_seconds("background_scan_interval_s"),
}
"""Variables whose values have another format, e.g. Go's durations."""


@dataclass(frozen=True, slots=True)
class Translated:
    """Settings from upstream's flags, the source of each, and flags without effect."""

    overrides: Overrides
    sources: Mapping[str, str]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def translate(flags: Iterable[tuple[str, str]]) -> Translated:
    """Translate ``(flag, value)`` pairs; a repeated flag overrides the earlier one."""
    overrides: Overrides = {}
    sources: dict[str, str] = {}
    problems: list[str] = []
    warnings: list[str] = []
    for name, value in flags:
        flag = FLAG_OF[name]
        argument = f"--{name}={value}"
        if not flag.setting:
            if value != flag.default:
                warnings.append(f"{argument} has no effect: {flag.meaning}")
            continue
        try:
            settings = flag.convert(value) if flag.convert else {flag.setting: value}
        except ValueError as error:
            problems.append(f"{argument}: {error}")
            continue
        overrides.update(settings)
        sources.update(dict.fromkeys(settings, argument))
    if overrides.get("metrics_push") == "true":
        # KYVERNO: this port of the collector; nothing listens on it then. Here, the
        # health server does.
        port = overrides.get("health_port", FLAG_OF["metricsPort"].default)
        overrides["metrics_push_port"] = port
        sources["metrics_push_port"] = f"--metricsPort={port}"
    return Translated(overrides, sources, tuple(problems), tuple(warnings))


def table() -> str:
    """Return the Markdown table of flags, one row per flag."""
    rows = ["| flag | default upstream | in | here |", "|---|---|---|---|"]
    for flag in FLAGS:
        default = f"`{flag.default}`" if flag.default else "none"
        rows.append(
            f"| `--{flag.name}` | {default} | {flag.containers} | {flag.meaning} |"
        )
    return "\n".join(rows) + "\n"


def variable_table() -> str:
    """Return the Markdown table of upstream's variables."""
    rows = ["| variable upstream | here |", "|---|---|"]
    rows += [f"| `{name}` | `{variable(to)}` |" for name, to in VARIABLES.items()]
    return "\n".join(rows) + "\n"
