"""The one list of settings: every name, default, unit, range and meaning.

Room: settings. Takes: values read by settings/read.py. Gives: Settings, a frozen record
that each role gets whole. Next: process, leader, webhook, cli.
May touch: nothing. Source: docs/architecture.md 2;
docs/behaviour/controllers 2.1, 10.1-10.3.

Over 400 lines: one table, from which the documents' table is generated.
"""

from dataclasses import dataclass
from typing import Final

from kyverno_mp.limits import (
    BODY_BYTES_MAX,
    EVENTS_QUEUED_MAX,
    SERVICE_ANSWER_BYTES_MAX,
)
from kyverno_mp.settings.fields import Facts, setting

ONE_PER_CORE: Final = -1
"""``webhook_workers`` before settings/read.py counts the cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one pod; each field's description is in its Facts."""

    # Who runs
    webhook_workers: int = setting(
        ONE_PER_CORE,
        Facts(
            "Webhook processes that answer reviews; 0 = no webhook in this pod.",
            unit="processes",
            low=0,
            high=512,
            auto="`auto`: one per core that this process may use",
            word="auto",
        ),
    )
    cleanup_workers: int = setting(
        0,
        Facts(
            "1 = this pod deletes what CleanupPolicies and TTL labels select, while it"
            " holds the lease kyverno-cleanup-controller; 0 = it does not.",
            unit="processes",
            low=0,
            high=1,
        ),
    )
    background_workers: int = setting(
        0,
        Facts(
            "Threads that execute generate and mutate-existing rules (genWorkers)"
            " while this pod holds the lease kyverno-background-controller; 0 = it does"
            " not.",
            unit="threads",
            low=0,
            high=512,
        ),
    )
    background_elsewhere: bool = setting(
        False,
        Facts(
            "Another Deployment runs the background pool: this pod records what its"
            " reviews trigger, though KYVERNO_MP_BACKGROUND_WORKERS is 0."
        ),
    )
    background_scan_interval_s: int = setting(
        3600,
        Facts(
            "How often the background pool syncs each policy with generate or"
            " mutate-existing rules (BACKGROUND_SCAN_INTERVAL).",
            unit="s",
            low=1,
            high=31 * 86_400,
        ),
    )
    reports_workers: int = setting(
        0,
        Facts(
            "Processes that evaluate existing objects for policy reports while this pod"
            " holds the lease kyverno-reports-controller (backgroundScanWorkers); 0 ="
            " it writes no reports.",
            unit="processes",
            low=0,
            high=512,
        ),
    )
    reports_elsewhere: bool = setting(
        False,
        Facts(
            "Another Deployment runs the reports pool: this pod passes on the results"
            " of its reviews and of its background pool, though"
            " KYVERNO_MP_REPORTS_WORKERS is 0."
        ),
    )
    reports_scan: bool = setting(
        True,
        Facts(
            "Evaluate policies with background: true on existing objects"
            " (backgroundScan)."
        ),
    )
    reports_scan_interval_s: int = setting(
        3600,
        Facts(
            "All objects are evaluated again this often, even if nothing changed"
            " (backgroundScanInterval).",
            unit="s",
            low=1,
            high=31 * 86_400,
        ),
    )
    reports_scan_ignores_filters: bool = setting(
        True,
        Facts(
            "Scans also evaluate what resourceFilters exempt from admission"
            " (skipResourceFilters)."
        ),
    )
    reports_admission: bool = setting(
        True,
        Facts(
            "Results of reviews that a scan cannot find again become part of reports"
            " (admissionReports)."
        ),
    )
    reports_of: str = setting(
        "validate,mutate,mutateExisting,generate,imageVerify",
        Facts("Types of rules that are reported, comma list (enableReporting)."),
    )
    reports_results: str = setting(
        "pass,fail,error,warn,skip",
        Facts("Results that are reported, comma list (allowedResults)."),
    )
    reports_aggregate: bool = setting(
        True,
        Facts(
            "Write reports; false leaves EphemeralReports for another program"
            " (aggregateReports)."
        ),
    )
    reports_store: bool = setting(
        True,
        Facts(
            "Store the results of scans; false leaves only their Events"
            " (policyReports)."
        ),
    )
    reports_validating_admission_policies: bool = setting(
        True,
        Facts(
            "Report ValidatingAdmissionPolicies with the label"
            ' reports.kyverno.io/enabled: "true" (validatingAdmissionPolicyReports).'
        ),
    )
    reports_mutating_admission_policies: bool = setting(
        False,
        Facts(
            "Report MutatingAdmissionPolicies with the same label"
            " (mutatingAdmissionPolicyReports)."
        ),
    )
    reports_open: bool = setting(
        False,
        Facts(
            "Write Reports of openreports.io instead of PolicyReports"
            " (openreportsEnabled)."
        ),
    )
    webhook_host: str = setting(
        "",
        Facts("Address the webhook listens on.", auto="all addresses, IPv6 and IPv4"),
    )
    webhook_port: int = setting(
        9443, Facts("TLS port of the webhook.", unit="port", low=0, high=65535)
    )
    webhook_backlog: int = setting(
        2048,
        Facts(
            "Connections that may wait to be accepted.",
            unit="connections",
            low=1,
            high=65535,
        ),
    )
    webhook_keepalive_s: int = setting(
        300, Facts("Time that an idle connection is kept.", unit="s", low=1, high=3600)
    )
    webhook_timeout_s: float = setting(
        10.0,
        Facts(
            "Deadline of one review when the caller sets none.",
            unit="s",
            low=1,
            high=30,
        ),
    )
    worker_silence_s_max: int = setting(
        30,
        Facts(
            "A webhook worker that does not report for this long is replaced.",
            unit="s",
            low=5,
            high=600,
        ),
    )
    leader_silence_s_max: int = setting(
        120,
        Facts(
            "A leader that does not report for this long is replaced; it also reports"
            " while it compiles.",
            unit="s",
            low=10,
            high=3600,
        ),
    )
    health_host: str = setting(
        "",
        Facts(
            "Address the health and metrics server listens on.",
            auto="all addresses, IPv6 and IPv4",
        ),
    )
    health_port: int = setting(
        9080,
        Facts(
            "Plain HTTP port of health, metrics and /policies.",
            unit="port",
            low=0,
            high=65535,
        ),
    )
    dashboard: bool = setting(
        False,
        Facts("Serve the dashboard, read-only pages on a port of their own."),
    )
    dashboard_host: str = setting(
        "127.0.0.1",
        Facts(
            "Address the dashboard listens on. With the default, only kubectl"
            " port-forward reaches it; 0.0.0.0 = all addresses.",
        ),
    )
    dashboard_port: int = setting(
        9081,
        Facts("Plain HTTP port of the dashboard.", unit="port", low=0, high=65535),
    )
    dashboard_token_file: str = setting(
        "",
        Facts(
            "File with the token that the dashboard requires, as the password of a"
            " browser's prompt or as a bearer token; at least 16 characters.",
            auto="no token is required",
        ),
    )
    # Paths
    policies_dir: str = setting(
        "",
        Facts("Folder with policies and PolicyExceptions as YAML, read by the leader."),
    )
    resources_dir: str = setting(
        "",
        Facts(
            "Folder with cluster data that policies may read: Namespaces, ConfigMaps,"
            " RBAC, GlobalContextEntries, recorded API responses."
        ),
    )
    runtime_dir: str = setting(
        "",
        Facts(
            "Private folder (0700) for snapshots, metric pages and own certificates.",
            auto="kyverno-mp-<uid>-<port> below XDG_RUNTIME_DIR or /dev/shm",
        ),
    )
    tls_cert_file: str = setting(
        "", Facts("PEM file with the certificate chain of the webhook.")
    )
    tls_key_file: str = setting(
        "", Facts("PEM file with the private key of the webhook.")
    )
    standalone: bool = setting(
        False,
        Facts("Run without a cluster: policies from a folder, own certificate."),
    )
    allow_empty: bool = setting(
        False,
        Facts(
            "Standalone: start even if the folder of policies contains none, or cannot"
            " be read yet."
        ),
    )
    # Intervals and delays
    policies_poll_ms: int = setting(
        250,
        Facts(
            "The leader checks the folders this often.",
            unit="ms",
            low=20,
            high=60_000,
        ),
    )
    snapshot_poll_ms: int = setting(
        200,
        Facts(
            "An idle webhook worker checks for a new snapshot this often; a busy one"
            " checks at each request.",
            unit="ms",
            low=20,
            high=60_000,
        ),
    )
    drain_timeout_s: float = setting(
        25.0,
        Facts(
            "On SIGTERM, accepted reviews may take this long to finish.",
            unit="s",
            low=0,
            high=3600,
        ),
    )
    drain_delay_s: float = setting(
        0.0,
        Facts(
            "On SIGTERM, keep accepting this long while already not ready, so that"
            " callers can notice.",
            unit="s",
            low=0,
            high=300,
        ),
    )
    restart_delay_s_min: float = setting(
        0.2,
        Facts("Pause before a dead process is restarted.", unit="s", low=0, high=60),
    )
    restart_delay_s_max: float = setting(
        30.0,
        Facts(
            "The pause doubles with each death up to this.",
            unit="s",
            low=0.1,
            high=3600,
        ),
    )
    crash_loop_deaths: int = setting(
        5,
        Facts(
            "This many deaths within the window are a crash loop.",
            unit="deaths",
            low=2,
            high=1000,
        ),
    )
    crash_loop_window_s: float = setting(
        60.0,
        Facts("The window in which deaths are counted.", unit="s", low=1, high=86_400),
    )
    # Limits of a review
    body_bytes_max: int = setting(
        BODY_BYTES_MAX,
        Facts(
            "A larger review is refused.",
            unit="bytes",
            low=1024,
            high=256 * 1024 * 1024,
        ),
    )
    io_threads: int = setting(
        8,
        Facts(
            "Threads per worker for reviews that may wait for an external call.",
            unit="threads",
            low=1,
            high=256,
        ),
    )
    image_threads: int = setting(
        8,
        Facts(
            "Threads per worker for reviews that may read an image registry.",
            unit="threads",
            low=1,
            high=256,
        ),
    )
    audit_queue_max: int = setting(
        1000,
        Facts(
            "Audit evaluations that may wait in one worker (Kyverno's"
            " maxAuditCapacity); more are dropped and counted.",
            unit="reviews",
            low=0,
            high=1_000_000,
        ),
    )
    resource_filters: str = setting(
        "",
        Facts(
            "Requests that are always allowed, as [Kind,namespace,name][...] (Kyverno's"
            " resourceFilters)."
        ),
    )
    exclude_groups: str = setting(
        "system:nodes",
        Facts("Groups that are exempt, comma list; '!' includes (excludeGroups)."),
    )
    exclude_usernames: str = setting(
        "", Facts("Users that are exempt, comma list (excludeUsernames).")
    )
    exclude_roles: str = setting(
        "", Facts("Roles that are exempt, comma list (excludeRoles).")
    )
    exclude_cluster_roles: str = setting(
        "",
        Facts("ClusterRoles that are exempt, comma list (excludeClusterRoles)."),
    )
    policy_exceptions: bool = setting(
        True,
        Facts("Honour PolicyExceptions (enablePolicyException)."),
    )
    exception_namespace: str = setting(
        "",
        Facts(
            "Only PolicyExceptions in this namespace count; * = in every namespace"
            " (exceptionNamespace).",
            auto="in a cluster none, without a cluster those in every namespace",
        ),
    )
    generate_validating_admission_policies: bool = setting(
        True,
        Facts(
            "Generate ValidatingAdmissionPolicies from the policies that ask for it and"
            " qualify (generateValidatingAdmissionPolicy)."
        ),
    )
    generate_mutating_admission_policies: bool = setting(
        False,
        Facts(
            "Statuses of MutatingPolicies tell why no MutatingAdmissionPolicy was"
            " generated; those that ask for one get it in any case"
            " (generateMutatingAdmissionPolicy)."
        ),
    )
    protect_managed_resources: bool = setting(
        False,
        Facts(
            "Only kyverno's ServiceAccounts may change objects labelled"
            " app.kubernetes.io/managed-by=kyverno (protectManagedResources)."
        ),
    )
    api_call_timeout_s: float = setting(
        30.0,
        Facts(
            "Deadline of one call that a policy makes to a service (apiCallTimeout).",
            unit="s",
            low=0.1,
            high=300,
        ),
    )
    api_call_answer_bytes_max: int = setting(
        SERVICE_ANSWER_BYTES_MAX,
        Facts(
            "A larger response of a service is refused (maxAPICallResponseLength).",
            unit="bytes",
            low=1024,
            high=256 * 1024 * 1024,
        ),
    )
    # Logs, metrics, Events
    log_level: str = setting(
        "info",
        Facts(
            "Minimum level of log lines.", choices=("debug", "info", "warning", "error")
        ),
    )
    log_format: str = setting(
        "",
        Facts(
            "Format of log lines (loggingFormat).",
            choices=("text", "json"),
            auto="text on a terminal, otherwise json",
        ),
    )
    log_decisions: str = setting(
        "off",
        Facts(
            "Log a line for each answered review: none, denied ones, or all. The line"
            " names user, object and policies, and never quotes the object.",
            choices=("off", "denied", "all"),
        ),
    )
    record_dir: str = setting(
        "",
        Facts(
            "Folder in which answered reviews are recorded for kyverno-mp replay,"
            " without the values of Secrets.",
            auto="nothing is recorded",
        ),
    )
    record_one_of: int = setting(
        1,
        Facts(
            "One of so many reviews is recorded.", unit="reviews", low=1, high=1_000_000
        ),
    )
    record_bytes_max: int = setting(
        64 * 1024 * 1024,
        Facts(
            "Size of the whole recording, compressed; the oldest reviews are deleted.",
            unit="bytes",
            low=1024 * 1024,
            high=64 * 1024**3,
        ),
    )
    record_redact: str = setting(
        "",
        Facts(
            "Further fields whose values are not recorded, comma list of Kind:path,"
            " such as ConfigMap:data or Pod:spec.containers[].env[].value."
        ),
    )
    metrics_series_max: int = setting(
        2000,
        Facts(
            "Series per metric family and worker; further label values are counted"
            " under the label value _overflow.",
            unit="series",
            low=10,
            high=100_000,
        ),
    )
    events_queued_max: int = setting(
        EVENTS_QUEUED_MAX,
        Facts(
            "Queue size for Events to write (maxQueuedEvents); more are dropped"
            " and counted.",
            unit="events",
            low=0,
            high=1_000_000,
        ),
    )
    omit_events: str = setting(
        "",
        Facts(
            "Reasons of Events that are not written, comma list of PolicyApplied,"
            " PolicySkipped, PolicyViolation, PolicyError (omitEvents)."
        ),
    )
    namespace: str = setting(
        "kyverno",
        Facts("Namespace that kyverno-mp itself runs in (KYVERNO_NAMESPACE)."),
    )
    # In a cluster
    kubeconfig: str = setting(
        "",
        Facts(
            "kubeconfig file of the cluster to serve (kubeconfig).",
            auto="the ServiceAccount of the pod",
        ),
    )
    config_map_name: str = setting(
        "kyverno",
        Facts(
            "ConfigMap in our namespace whose keys override these settings"
            " (INIT_CONFIG)."
        ),
    )
    metrics_config_map_name: str = setting(
        "kyverno-metrics",
        Facts("ConfigMap in our namespace that configures metrics (METRICS_CONFIG)."),
    )
    pod_name: str = setting(
        "",
        Facts(
            "Name of this replica, in Leases and for the other replicas.",
            auto="the host's name",
        ),
    )
    service_account_name: str = setting(
        "kyverno-admission-controller",
        Facts(
            "ServiceAccount of this pod. A pool whose account has another name obtains"
            " a token for it by TokenRequest (KYVERNO_SERVICEACCOUNT_NAME)."
        ),
    )
    deployment_name: str = setting(
        "",
        Facts(
            "Our Deployment: when it is deleted or scaled to 0, an orderly shutdown"
            " deletes the webhook configurations (KYVERNO_DEPLOYMENT).",
            auto="they are never deleted at shutdown",
        ),
    )
    policies_age_s_max: float = setting(
        600.0,
        Facts(
            "Not ready when the watches of policies have been silent for this long; 0 ="
            " never.",
            unit="s",
            low=0,
            high=86_400,
        ),
    )
    service_name: str = setting(
        "kyverno-svc", Facts("Service that the API server calls (KYVERNO_SVC).")
    )
    service_port: int = setting(
        443,
        Facts("Port of that Service (servicePort).", unit="port", low=1, high=65535),
    )
    server_ip: str = setting(
        "",
        Facts("host:port that the API server calls instead of the Service (serverIP)."),
    )
    ca_secret_name: str = setting(
        "",
        Facts(
            "Secret with the certificate authority (caSecretName).",
            auto="<service>.<namespace>.svc.kyverno-tls-ca",
        ),
    )
    tls_secret_name: str = setting(
        "",
        Facts(
            "Secret with the webhook's certificate (tlsSecretName).",
            auto="<service>.<namespace>.svc.kyverno-tls-pair",
        ),
    )
    tls_key_algorithm: str = setting(
        "RSA",
        Facts(
            # An API server keeps 25 idle connections and opens one for each review
            # above that; RSA signs a handshake in 0.23 ms, ECDSA in 0.02.
            "Kind of new keys (tlsKeyAlgorithm). ECDSA needs a sixth less CPU with"
            " hundreds of concurrent requests.",
            choices=("RSA", "ECDSA", "Ed25519"),
        ),
    )
    certificate_renew_before_h: int = setting(
        360,
        Facts(
            "Certificates are renewed this long before they expire (renewBefore).",
            unit="h",
            low=1,
            high=3000,
        ),
    )
    lease_retry_s: float = setting(
        2.0,
        Facts(
            "Retry period to take or renew a lease; the lease lasts six times as long"
            " (leaderElectionRetryPeriod).",
            unit="s",
            low=0.5,
            high=60,
        ),
    )
    auto_update_webhooks: bool = setting(
        True,
        Facts("Register only resources that policies match (autoUpdateWebhooks)."),
    )
    force_failure_policy_ignore: bool = setting(
        False,
        Facts("No failure of a policy blocks a request (forceFailurePolicyIgnore)."),
    )
    config_map_caching: bool = setting(
        True,
        Facts(
            "ConfigMaps labelled cache.kyverno.io/enabled are read from memory;"
            " otherwise each use calls the API server (enableConfigMapCaching)."
        ),
    )
    http_allowlist: str = setting(
        "",
        Facts(
            "Hosts (wildcards) and ranges in the cluster that policies may call,"
            " comma list (httpAllowlist)."
        ),
    )
    http_blocklist: str = setting(
        "",
        Facts(
            "Hosts and ranges that policies may not call, besides loopback, link-local"
            " and private ones, comma list (httpBlocklist)."
        ),
    )
    registry_allowlist: str = setting(
        "*",
        Facts(
            "Image registries that may be in private networks: hosts (wildcards) and"
            " ranges, comma list. Public ones are allowed, unless httpBlocklist names"
            " them; loopback and link-local ones only by a range."
        ),
    )
    allow_insecure_registry: bool = setting(
        False,
        Facts(
            "Read registries also by plain HTTP, or with any certificate"
            " (allowInsecureRegistry); policies can allow it for their own images."
        ),
    )
    image_pull_secrets: str = setting(
        "",
        Facts(
            "Secrets in our namespace with credentials of registries, comma list"
            " (imagePullSecrets)."
        ),
    )
    registry_credential_helpers: str = setting(
        "",
        Facts(
            "Sources of credentials after these Secrets, comma list of default (the"
            " config.json of docker), google, amazon, azure, github"
            " (registryCredentialHelpers). Only default has an effect."
        ),
    )
    enable_tuf: bool = setting(
        False,
        Facts(
            "Keys of logs and roots of certificates come from a TUF repository of your"
            " own: TUF_MIRROR (enableTuf)."
        ),
    )
    tuf_mirror: str = setting(
        "https://tuf-repo-cdn.sigstore.dev",
        Facts(
            "URL of the TUF repository if ENABLE_TUF is on (tufMirror). It is read"
            " also by plain HTTP and in a private network."
        ),
    )
    tuf_root: str = setting(
        "",
        Facts(
            "File or URL of the first root.json of that repository (tufRoot).",
            auto="TUF_ROOT_RAW, else Sigstore's public root",
        ),
    )
    tuf_root_raw: str = setting(
        "",
        Facts("The first root.json itself, in base64 (tufRootRaw)."),
    )
    image_verify_cache: bool = setting(
        True,
        Facts("Keep the results of image verification (imageVerifyCacheEnabled)."),
    )
    image_verify_cache_entries_max: int = setting(
        1000,
        Facts(
            "Results that the workers of a pod keep together"
            " (imageVerifyCacheMaxSize).",
            unit="results",
            low=1,
            high=100_000,
        ),
    )
    image_verify_cache_ttl_s: int = setting(
        3600,
        Facts(
            "How long a result is kept (imageVerifyCacheTTLDuration).",
            unit="s",
            low=1,
            high=7 * 86_400,
        ),
    )
    http_in_namespaced_policies: bool = setting(
        False,
        Facts("Namespaced policies may call services (allowHTTPInNamespacedPolicies)."),
    )
    api_call_token_file: str = setting(
        "",
        Facts(
            "File with a token for services that policies call; it is sent over"
            " TLS only (KYVERNO_SCOPED_TOKEN_PATH).",
            auto="no token is sent",
        ),
    )
    background_service_account: str = setting(
        "",
        Facts(
            "User name of the account that generates and mutates; policies that need"
            " permissions it lacks are refused (backgroundServiceAccountName).",
            auto="its permissions are not checked",
        ),
    )
    reports_service_account: str = setting(
        "",
        Facts(
            "User name of the account that scans; a policy that needs permissions"
            " it lacks causes a warning (reportsServiceAccountName).",
            auto="its permissions are not checked",
        ),
    )

    cleanup_service_account: str = setting(
        "",
        Facts(
            "User name of the account that cleans up; clean-up policies that need"
            " permissions it lacks are refused.",
            auto="its permissions are not checked",
        ),
    )

    cleanup_discovery_s: int = setting(
        60,
        Facts(
            "New kinds are discovered, and permissions to delete checked, this often"
            " (ttlReconciliationInterval).",
            unit="s",
            low=5,
            high=3600,
        ),
    )
    cleanup_dry_run: bool = setting(
        False,
        Facts(
            "Clean-up deletes nothing and reports what it would delete, for all"
            " policies and TTL labels."
        ),
    )
    cleanup_deletion_budget: str = setting(
        "",
        Facts(
            "A run of a clean-up policy that would delete more is halted: a number of"
            " objects, or a percentage of the matched ones, such as 20%.",
            auto="no budget",
        ),
    )

    @property
    def runs_webhook(self) -> bool:
        """Whether this pod answers reviews."""
        return self.webhook_workers != 0

    @property
    def needs_policies(self) -> bool:
        """Whether a role of this pod evaluates policies."""
        return self.runs_webhook or self.reports_workers > 0

    @property
    def has_background_pool(self) -> bool:
        """Whether a pod of this installation executes what reviews trigger."""
        return self.background_workers > 0 or self.background_elsewhere

    @property
    def has_reports_pool(self) -> bool:
        """Whether a pod of this installation writes reports."""
        return self.reports_workers > 0 or self.reports_elsewhere

    @property
    def exceptions_in(self) -> str:
        """The namespace whose PolicyExceptions count, "*" = all, "" = none.

        In a cluster, users could grant themselves exceptions, unless the operator names
        a namespace where such objects are under control (CVE-2024-48921).
        """
        if not self.policy_exceptions:
            return ""
        return self.exception_namespace or ("*" if self.standalone else "")
