"""The one list of settings: every name, default, unit, range and meaning.

Room: settings. Takes: values read by settings/read.py. Gives: Settings, a frozen record
that is passed to each role. Next: process, leader, webhook, cli.
Source: docs/architecture.md 2; docs/behaviour/controllers 2.1, 10.1-10.3.

Over 400 lines: one table, from which the documents' table is generated.
"""

from dataclasses import dataclass
from typing import Final

from kyverno_mp.limits import (
    BODY_BYTES_MAX,
    EVENTS_QUEUED_MAX,
    GLOBAL_CONTEXT_ENTRIES_HIGHEST,
    METRICS_LINES_MAX,
    REGISTRY_BYTES_PER_S_MIN,
    REGISTRY_FIRST_BYTE_S,
    SERVICE_ANSWER_BYTES_MAX,
)
from kyverno_mp.settings.fields import Facts, setting

ONE_PER_CORE: Final = -1
"""``webhook_workers`` before settings/read.py counts the cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one pod; each field's description is in its Facts."""

    # Processes
    webhook_workers: int = setting(
        ONE_PER_CORE,
        Facts(
            "Webhook processes that answer reviews; 0 = no webhook in this pod.",
            unit="processes",
            low=0,
            high=512,
            auto="`auto`: one per core, at most the CPU limit, rounded up",
            word="auto",
        ),
    )
    cleanup_workers: int = setting(
        0,
        Facts(
            "1 = this pod deletes the objects selected by CleanupPolicies and TTL"
            " labels while it holds the lease kyverno-cleanup-controller; 0 = it does"
            " not.",
            unit="processes",
            low=0,
            high=1,
        ),
    )
    background_workers: int = setting(
        0,
        Facts(
            "Threads that execute generate and mutate-existing rules (genWorkers)"
            " while this pod holds the lease kyverno-background-controller; 0 = no"
            " background pool in this pod.",
            unit="threads",
            low=0,
            high=512,
        ),
    )
    background_elsewhere: bool = setting(
        False,
        Facts(
            "Another Deployment runs the background pool: this pod records the triggers"
            " from its reviews even if KYVERNO_MP_BACKGROUND_WORKERS is 0."
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
            " of its reviews and of its background pool even if"
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
            "Interval at which all objects are evaluated again, even if nothing"
            " changed (backgroundScanInterval).",
            unit="s",
            low=1,
            high=31 * 86_400,
        ),
    )
    reports_scan_ignores_filters: bool = setting(
        True,
        Facts(
            "Scans also evaluate objects that resourceFilters exempt from admission"
            " (skipResourceFilters)."
        ),
    )
    reports_admission: bool = setting(
        True,
        Facts(
            "Results of reviews that a scan cannot reproduce are added to reports"
            " (admissionReports)."
        ),
    )
    reports_of: str = setting(
        "validate,mutate,mutateExisting,generate,imageVerify",
        Facts("Types of rules that are reported, comma-separated (enableReporting)."),
    )
    reports_results: str = setting(
        "pass,fail,error,warn,skip",
        Facts("Results that are reported, comma-separated (allowedResults)."),
    )
    reports_aggregate: bool = setting(
        True,
        Facts(
            "Write reports; false leaves EphemeralReports with the results of reviews"
            " for another program (aggregateReports)."
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
            "Report MutatingAdmissionPolicies with the label"
            ' reports.kyverno.io/enabled: "true" (mutatingAdmissionPolicyReports).'
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
        Facts(
            "Address that the webhook listens on.", auto="all addresses, IPv6 and IPv4"
        ),
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
        300,
        Facts(
            "Time after which an idle connection is closed.", unit="s", low=1, high=3600
        ),
    )
    webhook_timeout_s: float = setting(
        10.0,
        Facts(
            "Deadline of a review if the caller sets none.",
            unit="s",
            low=1,
            high=30,
        ),
    )
    worker_silence_s_max: int = setting(
        30,
        Facts(
            "A webhook worker that is silent for this long is replaced.",
            unit="s",
            low=5,
            high=600,
        ),
    )
    leader_silence_s_max: int = setting(
        120,
        Facts(
            "A leader that is silent for this long is replaced; it also reports during"
            " compilation.",
            unit="s",
            low=10,
            high=3600,
        ),
    )
    health_host: str = setting(
        "",
        Facts(
            "Address that the health and metrics server listens on.",
            auto="all addresses, IPv6 and IPv4",
        ),
    )
    health_port: int = setting(
        9080,
        Facts(
            "Port of health, metrics and /policies, plain HTTP unless"
            " KYVERNO_MP_METRICS_TLS.",
            unit="port",
            low=0,
            high=65535,
        ),
    )
    dashboard: bool = setting(
        False,
        Facts(
            "Serve the dashboard, read-only pages on a separate port.",
            auto="`true` with --standalone, otherwise `false`",
        ),
    )
    dashboard_host: str = setting(
        "127.0.0.1",
        Facts(
            "Address that the dashboard listens on. The default can only be reached by"
            " kubectl port-forward; 0.0.0.0 = all addresses.",
        ),
    )
    dashboard_port: int = setting(
        9081,
        Facts(
            "Plain HTTP port of the dashboard. With --standalone, another port is used"
            " if the default is taken.",
            unit="port",
            low=0,
            high=65535,
        ),
    )
    dashboard_token_file: str = setting(
        "",
        Facts(
            "File with the token that the dashboard requires, either as the password"
            " of the browser's prompt or as a bearer token; at least 16 characters.",
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
            "Private folder (0700) for snapshots, metric pages and generated"
            " certificates.",
            auto="kyverno-mp-<uid>-<port> below XDG_RUNTIME_DIR or /dev/shm",
        ),
    )
    tls_cert_file: str = setting(
        "", Facts("PEM file with the certificate chain of the webhook.")
    )
    tls_key_file: str = setting(
        "", Facts("PEM file with the private key of the webhook.")
    )
    client_ca_file: str = setting(
        "",
        Facts(
            "PEM file with the authorities of client certificates. A certificate with"
            " one of KYVERNO_MP_CLIENT_NAMES proves the API server; other names are"
            " rejected.",
            auto="no client certificates are requested",
        ),
    )
    client_names: str = setting(
        "kube-apiserver",
        Facts("Common names of trusted client certificates, comma-separated."),
    )
    standalone: bool = setting(
        False,
        Facts("Run without a cluster: policies in a folder, generated certificate."),
    )
    allow_empty: bool = setting(
        False,
        Facts(
            "Standalone: start even if the folder contains no policies or cannot be"
            " read yet."
        ),
    )
    json_payloads: bool = setting(
        False,
        Facts(
            "Answer `POST /json`, without a cluster or in an authorizer of mode http:"
            " the body, any JSON object, is judged by the policies in evaluation mode"
            " JSON, and the answer is a report."
        ),
    )
    # The authorizer: `serve authz`
    authz_mode: str = setting(
        "",
        Facts(
            "This pod answers a proxy's requests for authorization by the policies of"
            " this evaluation mode, instead of admission reviews: http over HTTP, envoy"
            " over gRPC (ext_authz v3).",
            choices=("http", "envoy"),
            auto="no authorizer",
        ),
    )
    authz_sources: str = setting(
        "",
        Facts(
            "Folders, files and images (oci://registry/repository:tag) with the"
            " authorizer's policies, comma-separated, in addition to the cluster's."
        ),
    )
    authz_oci_interval_s: int = setting(
        60,
        Facts(
            "How often tags of images with policies are read again; an image that a"
            " digest names is read once.",
            unit="s",
            low=1,
            high=86400,
        ),
    )
    authz_default_decision: str = setting(
        "allow",
        Facts(
            "The authorizer's decision if no policy answers.",
            choices=("allow", "deny"),
        ),
    )
    authz_nested_request: bool = setting(
        False,
        Facts(
            "HTTP: the body of a request is the HTTP/1.1 request to judge; otherwise"
            " the request itself is judged."
        ),
    )
    authz_input_expression: str = setting(
        "",
        Facts(
            "HTTP: a CEL expression over `object`, an http.CheckRequest, which gives"
            " the http.CheckRequest to judge; null leaves it."
        ),
    )
    authz_output_expression: str = setting(
        "",
        Facts(
            "HTTP: a CEL expression over `object`, an http.CheckResponse, which gives"
            " the httpserver.HttpResponse to send.",
            auto="200, or 403 with the reason as body",
        ),
    )
    # Intervals and delays
    policies_poll_ms: int = setting(
        250,
        Facts(
            "Interval at which the leader checks the folders.",
            unit="ms",
            low=20,
            high=60_000,
        ),
    )
    snapshot_poll_ms: int = setting(
        1000,
        Facts(
            "Interval at which an idle webhook worker checks for a new snapshot that"
            " nobody announced to it; a busy worker checks at each request.",
            unit="ms",
            low=20,
            high=60_000,
        ),
    )
    drain_timeout_s: float = setting(
        25.0,
        Facts(
            "On SIGTERM: time for accepted reviews to finish.",
            unit="s",
            low=0,
            high=3600,
        ),
    )
    drain_delay_s: float = setting(
        0.0,
        Facts(
            "On SIGTERM: time to keep accepting connections while not ready, so that"
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
            "Maximum pause; the pause doubles with each death.",
            unit="s",
            low=0.1,
            high=3600,
        ),
    )
    crash_loop_deaths: int = setting(
        5,
        Facts(
            "Number of deaths within the window that count as a crash loop.",
            unit="deaths",
            low=2,
            high=1000,
        ),
    )
    crash_loop_window_s: float = setting(
        60.0,
        Facts(
            "Length of the window in which deaths are counted.",
            unit="s",
            low=1,
            high=86_400,
        ),
    )
    # Limits of a review
    body_bytes_max: int = setting(
        BODY_BYTES_MAX,
        Facts(
            "Maximum size of a review; larger ones are rejected.",
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
        Facts(
            "Groups that are exempt, comma-separated; a group with '!' is not exempt"
            " (excludeGroups)."
        ),
    )
    exclude_usernames: str = setting(
        "", Facts("Users that are exempt, comma-separated (excludeUsernames).")
    )
    exclude_roles: str = setting(
        "", Facts("Roles that are exempt, comma-separated (excludeRoles).")
    )
    exclude_cluster_roles: str = setting(
        "",
        Facts("ClusterRoles that are exempt, comma-separated (excludeClusterRoles)."),
    )
    policy_exceptions: bool = setting(
        True,
        Facts("Honour PolicyExceptions (enablePolicyException)."),
    )
    exception_namespace: str = setting(
        "",
        Facts(
            "Namespace whose PolicyExceptions apply; * = every namespace"
            " (exceptionNamespace).",
            auto="in a cluster none, without a cluster every namespace",
        ),
    )
    exceptions_need_approval: bool = setting(
        False,
        Facts(
            "Who creates a PolicyException, or changes what it exempts or for how"
            " long, needs the verb approve on policyexceptions in its namespace."
            " Needs CHECK_POLICY_AUTHORS."
        ),
    )
    generate_validating_admission_policies: bool = setting(
        True,
        Facts(
            "Generate ValidatingAdmissionPolicies from the policies that request and"
            " support it (generateValidatingAdmissionPolicy)."
        ),
    )
    generate_mutating_admission_policies: bool = setting(
        False,
        Facts(
            "The status of a MutatingPolicy shows why no MutatingAdmissionPolicy was"
            " generated; a policy that requests one gets it in any case"
            " (generateMutatingAdmissionPolicy)."
        ),
    )
    protect_managed_resources: bool = setting(
        False,
        Facts(
            "Only Kyverno's ServiceAccounts may change objects with the label"
            " app.kubernetes.io/managed-by=kyverno (protectManagedResources)."
        ),
    )
    api_call_timeout_s: float = setting(
        30.0,
        Facts(
            "Deadline of a policy's call to a service (apiCallTimeout).",
            unit="s",
            low=0.1,
            high=300,
        ),
    )
    api_call_answer_bytes_max: int = setting(
        SERVICE_ANSWER_BYTES_MAX,
        Facts(
            "Maximum size of a service's response; larger ones are rejected"
            " (maxAPICallResponseLength).",
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
            "Log a line for each answered review: none, denied ones, or all. Lines"
            " name the user, object and policies, but never quote the object.",
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
        Facts("Record one of every N reviews.", unit="reviews", low=1, high=1_000_000),
    )
    record_bytes_max: int = setting(
        64 * 1024 * 1024,
        Facts(
            "Maximum compressed size of the recording; the oldest reviews are deleted.",
            unit="bytes",
            low=1024 * 1024,
            high=64 * 1024**3,
        ),
    )
    record_redact: str = setting(
        "",
        Facts(
            "Additional fields whose values are not recorded, comma-separated as"
            " Kind:path, such as ConfigMap:data or Pod:spec.containers[].env[].value."
        ),
    )
    record_plain: str = setting(
        "",
        Facts(
            "Values that are recorded although they are redacted by default, a"
            " comma-separated list of env (environment variables), args (commands and"
            " their arguments), annotations (of unknown domains)."
        ),
    )
    metrics_series_max: int = setting(
        2000,
        Facts(
            "Maximum number of series per metric family and worker; other label values"
            " are counted under _overflow.",
            unit="series",
            low=10,
            high=100_000,
        ),
    )
    metrics_lines_max: int = setting(
        METRICS_LINES_MAX,
        Facts(
            "Maximum number of lines of all recorded metric families together; further"
            " series are counted under _overflow. The default suffices for 500"
            " namespaces with 50 policies.",
            unit="lines",
            low=1000,
            high=100_000_000,
        ),
    )
    traces: bool = setting(
        False,
        Facts(
            "Send traces of reviews, reconciles and commands to an OpenTelemetry"
            " collector (enableTracing)."
        ),
    )
    traces_host: str = setting(
        "", Facts("Host of the collector of traces (tracingAddress).")
    )
    traces_port: int = setting(
        4317,
        Facts(
            "Port of the collector of traces (tracingPort).",
            unit="port",
            low=1,
            high=65535,
        ),
    )
    traces_sampled: float = setting(
        0.01,
        Facts(
            "Part of the reviews and reconciles that are traced. A review with a"
            " traceparent header is traced if its sender traces the request.",
            low=0,
            high=1,
        ),
    )
    traces_slow_policy_ms: float = setting(
        1.0,
        Facts(
            "A traced review has a span for each policy that takes as long.",
            unit="ms",
            low=0,
            high=60_000,
        ),
    )
    metrics: bool = setting(
        True, Facts("Serve and push metrics (disableMetrics=true: neither).")
    )
    metrics_tls: bool = setting(
        False,
        Facts(
            "Serve metrics, /healthz and /policies by TLS only, with the webhook's"
            " certificate or KYVERNO_MP_METRICS_CERT_FILE (metricsTLSSecretName). By"
            " plain HTTP, the same port then answers only probes."
        ),
    )
    metrics_cert_file: str = setting(
        "",
        Facts(
            "PEM file with the certificate chain of the metrics, read again when it"
            " changes.",
            auto="that of the webhook",
        ),
    )
    metrics_key_file: str = setting(
        "", Facts("PEM file with the private key of the metrics.")
    )
    metrics_push: bool = setting(
        False,
        Facts("Also push metrics to an OpenTelemetry collector (otelConfig=grpc)."),
    )
    metrics_push_host: str = setting(
        "opentelemetrycollector.kyverno.svc.cluster.local",
        Facts("Host of the collector of metrics (otelCollector)."),
    )
    metrics_push_port: int = setting(
        4317,
        Facts("Port of the collector of metrics.", unit="port", low=1, high=65535),
    )
    metrics_push_interval_s: int = setting(
        10,
        Facts("How often metrics are pushed.", unit="s", low=1, high=3600),
    )
    otlp_protocol: str = setting(
        "grpc",
        Facts(
            "How collectors are called; the usual port is 4317 for grpc, 4318 for"
            " http.",
            choices=("grpc", "http"),
        ),
    )
    otlp_tls: bool = setting(False, Facts("Call collectors by TLS."))
    otlp_ca_file: str = setting(
        "",
        Facts(
            "File with the certificates (PEM) of the collectors' authorities.",
            auto="those of the system",
        ),
    )
    events_queued_max: int = setting(
        EVENTS_QUEUED_MAX,
        Facts(
            "Maximum number of Events in the queue (maxQueuedEvents); more are dropped"
            " and counted.",
            unit="events",
            low=0,
            high=1_000_000,
        ),
    )
    omit_events: str = setting(
        "",
        Facts(
            "Reasons of Events that are not written, a comma-separated list of"
            " PolicyApplied, PolicySkipped, PolicyViolation, PolicyError (omitEvents)."
        ),
    )
    notify_url_file: str = setting(
        "",
        Facts(
            "File with the URL to which new failures in reports are sent.",
            auto="nothing is sent",
        ),
    )
    notify_format: str = setting(
        "webhook",
        Facts(
            "What is sent there: one JSON object, or alerts for the URL"
            " .../api/v2/alerts of an Alertmanager.",
            choices=("webhook", "alertmanager"),
        ),
    )
    notify_interval_s: int = setting(
        30,
        Facts("New failures are sent this often.", unit="s", low=1, high=3600),
    )
    namespace: str = setting(
        "kyverno",
        Facts("Namespace in which kyverno-mp runs (KYVERNO_NAMESPACE)."),
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
            "Name of this replica in Leases and for other replicas.",
            auto="the host's name",
        ),
    )
    service_account_name: str = setting(
        "kyverno-admission-controller",
        Facts(
            "ServiceAccount of this pod. A pool with another account requests its token"
            " by TokenRequest (KYVERNO_SERVICEACCOUNT_NAME)."
        ),
    )
    deployment_name: str = setting(
        "",
        Facts(
            "Our Deployment: if it is deleted or scaled to 0, an orderly shutdown"
            " deletes the webhook configurations (KYVERNO_DEPLOYMENT).",
            auto="the configurations are never deleted at shutdown",
        ),
    )
    policies_age_s_max: float = setting(
        600.0,
        Facts(
            "The pod is not ready if the watches of policies have been silent for this"
            " long; 0 = never.",
            unit="s",
            low=0,
            high=86_400,
        ),
    )
    service_name: str = setting(
        "kyverno-svc", Facts("Service for calls by the API server (KYVERNO_SVC).")
    )
    service_port: int = setting(
        443,
        Facts("Port of that Service (servicePort).", unit="port", low=1, high=65535),
    )
    server_ip: str = setting(
        "",
        Facts(
            "host:port for calls by the API server, instead of the Service (serverIP)."
        ),
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
    caller_path: bool = setting(
        True,
        Facts(
            "The paths in the webhook configurations contain a secret segment, by which"
            " the API server's calls are recognized. False and no"
            " KYVERNO_MP_CLIENT_CA_FILE = everyone who reaches the port is believed."
        ),
    )
    caller_path_rotate_h: int = setting(
        168,
        Facts(
            "Age at which the secret segment is replaced. After failed calls it is"
            " replaced sooner.",
            unit="h",
            low=1,
            high=8760,
        ),
    )
    caller_path_overlap_s: int = setting(
        60,
        Facts(
            "How long API servers may use an earlier webhook configuration: the old"
            " segment stays valid for this time, and calls without one are not rejected"
            " earlier.",
            unit="s",
            low=1,
            high=3600,
        ),
    )
    tls_key_algorithm: str = setting(
        "RSA",
        Facts(
            # An API server keeps 25 idle connections and opens one for each review
            # above that; RSA signs a handshake in 0.23 ms, ECDSA in 0.02.
            "Kind of new keys (tlsKeyAlgorithm). With hundreds of concurrent requests,"
            " ECDSA needs a sixth less CPU.",
            choices=("RSA", "ECDSA", "Ed25519"),
        ),
    )
    certificate_renew_before_h: int = setting(
        360,
        Facts(
            "Time before expiry at which certificates are renewed (renewBefore).",
            unit="h",
            low=1,
            high=3000,
        ),
    )
    certificates_of_others: bool = setting(
        False,
        Facts(
            "The Secrets with the certificates are written by another program, e.g."
            " cert-manager: wait for them, and never write them"
            " (disableCertManagerController)."
        ),
    )
    lease_retry_s: float = setting(
        2.0,
        Facts(
            "Retry period to take a lease; the lease lasts six times as long, and its"
            " holder renews it after three (leaderElectionRetryPeriod).",
            unit="s",
            low=0.5,
            high=60,
        ),
    )
    auto_update_webhooks: bool = setting(
        True,
        Facts(
            "Register the webhooks only for resources that policies match"
            " (autoUpdateWebhooks)."
        ),
    )
    force_failure_policy_ignore: bool = setting(
        False,
        Facts("Errors in policies never block a request (forceFailurePolicyIgnore)."),
    )
    exclude_bootstrap_resources: bool = setting(
        False,
        Facts(
            "Webhooks with failurePolicy Fail never get Nodes and"
            " CertificateSigningRequests, so that a cluster that was stopped completely"
            " can start again (excludeBootstrapResources)."
        ),
    )
    global_context_entries_max: int = setting(
        256,
        Facts(
            "Maximum number of GlobalContextEntries; further ones are not read"
            " (maxGlobalContextEntries). Each has one or two threads in the leader.",
            low=1,
            high=GLOBAL_CONTEXT_ENTRIES_HIGHEST,
        ),
    )
    config_map_caching: bool = setting(
        True,
        Facts(
            "Read ConfigMaps with the label cache.kyverno.io/enabled from memory;"
            " otherwise each use calls the API server (enableConfigMapCaching)."
        ),
    )
    http_allowlist: str = setting(
        "",
        Facts(
            "Hosts (wildcards) and ranges in the cluster that policies may call,"
            " comma-separated (httpAllowlist)."
        ),
    )
    http_blocklist: str = setting(
        "",
        Facts(
            "Hosts and ranges that policies may not call, in addition to loopback,"
            " link-local and private ones, comma-separated (httpBlocklist)."
        ),
    )
    registry_allowlist: str = setting(
        "*",
        Facts(
            "Image registries in private networks that may be read: hosts (wildcards)"
            " and ranges, comma-separated. Public registries are allowed unless"
            " httpBlocklist names them; loopback and link-local ones are allowed only"
            " by a range."
        ),
    )
    registry_first_byte_s: float = setting(
        REGISTRY_FIRST_BYTE_S,
        Facts(
            "A registry, a token service or a log that has sent no byte of its response"
            " this long after the start of a call is given up.",
            unit="s",
            low=0.1,
            high=60,
        ),
    )
    registry_bytes_per_s_min: int = setting(
        REGISTRY_BYTES_PER_S_MIN,
        Facts(
            "A response of such a server that is slower than this, after as long again,"
            " is given up; 0 = any pace.",
            unit="bytes/s",
            low=0,
            high=1 << 30,
        ),
    )
    allow_insecure_registry: bool = setting(
        False,
        Facts(
            "Read registries also over plain HTTP or with any certificate"
            " (allowInsecureRegistry); policies can allow it for their own images."
        ),
    )
    registry_certificates: str = setting(
        "",
        Facts(
            "Folder with files for TLS with registries, as docker's certs.d:"
            " HOST[:PORT]/ca.crt, an additional authority, and client.cert with"
            " client.key, which prove this pod to the registry, but not for image"
            " policies of a namespace. Commands read it, too."
        ),
    )
    image_pull_secrets: str = setting(
        "",
        Facts(
            "Secrets in our namespace with registry credentials, comma-separated"
            " (imagePullSecrets)."
        ),
    )
    aws_kms: bool = setting(
        False,
        Facts(
            "Read the public keys that cluster-wide policies name as `awskms://` from"
            " AWS KMS, with this pod's identity in AWS (AWS_REGION, AWS_ROLE_ARN,"
            " AWS_WEB_IDENTITY_TOKEN_FILE, or AWS_ACCESS_KEY_ID,"
            " AWS_SECRET_ACCESS_KEY)."
        ),
    )
    registry_credential_helpers: str = setting(
        "",
        Facts(
            "Sources of credentials after these Secrets, a comma-separated list of"
            " default (the config.json of docker), google, amazon, azure, github"
            " (registryCredentialHelpers). default and amazon have an effect: amazon"
            " with this pod's identity in AWS, as for AWS_KMS, and not for namespaced"
            " policies."
        ),
    )
    enable_tuf: bool = setting(
        False,
        Facts(
            "Take the keys of logs and the roots of certificates from your own TUF"
            " repository: TUF_MIRROR (enableTuf)."
        ),
    )
    tuf_mirror: str = setting(
        "https://tuf-repo-cdn.sigstore.dev",
        Facts(
            "URL of the TUF repository if ENABLE_TUF is on (tufMirror). It may use"
            " plain HTTP and be in a private network."
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
        Facts("The content of the first root.json, in base64 (tufRootRaw)."),
    )
    image_verify_cache: bool = setting(
        True,
        Facts("Cache the results of image verification (imageVerifyCacheEnabled)."),
    )
    image_verify_cache_entries_max: int = setting(
        1000,
        Facts(
            "Maximum number of cached results, shared by the workers of a pod"
            " (imageVerifyCacheMaxSize).",
            unit="results",
            low=1,
            high=100_000,
        ),
    )
    image_verify_cache_ttl_s: int = setting(
        3600,
        Facts(
            "Time that a result is cached (imageVerifyCacheTTLDuration).",
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
            "File with a token for services that policies call; it is only sent over"
            " TLS (KYVERNO_SCOPED_TOKEN_PATH).",
            auto="no token is sent",
        ),
    )
    check_policy_authors: bool = setting(
        True,
        Facts(
            "A namespaced policy is rejected unless its author may do everything in the"
            " namespace that the policy lets the service do there: generate, change or"
            " delete objects, read them by API calls."
        ),
    )
    ttl_label_needs_delete: bool = setting(
        False,
        Facts(
            "An object with a new label cleanup.kyverno.io/ttl is rejected if its"
            " writer may not delete it; otherwise the writer gets a warning."
        ),
    )
    audit_annotations: str = setting(
        "decisions",
        Facts(
            "What answers tell the API server's audit log: rules that failed, used"
            " exceptions and errors; all: also rules that passed.",
            choices=("off", "decisions", "all"),
        ),
    )
    background_service_account: str = setting(
        "",
        Facts(
            "User name of the account that generates and mutates; policies are rejected"
            " if they need permissions that it lacks (backgroundServiceAccountName).",
            auto="permissions are not checked",
        ),
    )
    reports_service_account: str = setting(
        "",
        Facts(
            "User name of the account that scans; policies cause a warning if they"
            " need permissions that it lacks (reportsServiceAccountName).",
            auto="permissions are not checked",
        ),
    )

    cleanup_service_account: str = setting(
        "",
        Facts(
            "User name of the account that cleans up; clean-up policies are rejected if"
            " they need permissions that it lacks.",
            auto="permissions are not checked",
        ),
    )

    cleanup_discovery_s: int = setting(
        60,
        Facts(
            "Interval at which new kinds are discovered and permissions to delete are"
            " checked (ttlReconciliationInterval).",
            unit="s",
            low=5,
            high=3600,
        ),
    )
    cleanup_dry_run: bool = setting(
        False,
        Facts(
            "Clean-up deletes nothing and only reports the objects that it would"
            " delete, for all policies and TTL labels."
        ),
    )
    cleanup_deletion_budget: str = setting(
        "",
        Facts(
            "Maximum number of objects, or percentage of the matched ones, that a run"
            " of a clean-up policy may delete, such as 20%; a larger run is halted.",
            auto="no budget",
        ),
    )

    @property
    def runs_webhook(self) -> bool:
        """Whether this pod answers reviews."""
        return self.webhook_workers != 0 and not self.authz_mode

    @property
    def serves(self) -> str:
        """What the workers of this pod are."""
        return "authorizer" if self.authz_mode else "webhook"

    @property
    def registers(self) -> bool:
        """Whether this pod may have registered webhooks in a cluster."""
        return not (self.standalone or self.authz_mode)

    @property
    def evaluation_mode(self) -> str:
        """The evaluation mode of this authorizer's policies; "" = no authorizer."""
        return {"": "", "http": "HTTP", "envoy": "Envoy"}[self.authz_mode]

    @property
    def needs_policies(self) -> bool:
        """Whether a role of this pod evaluates policies."""
        return self.runs_webhook or self.reports_workers > 0

    @property
    def has_background_pool(self) -> bool:
        """Whether a pod of this installation runs the background rules of reviews."""
        return self.background_workers > 0 or self.background_elsewhere

    @property
    def has_reports_pool(self) -> bool:
        """Whether a pod of this installation writes reports."""
        return self.reports_workers > 0 or self.reports_elsewhere

    @property
    def exceptions_in(self) -> str:
        """The namespace whose PolicyExceptions apply, "*" = all, "" = none.

        In a cluster, users could grant themselves exceptions, unless the operator
        chooses a namespace to which access is restricted (CVE-2024-48921).
        """
        if not self.policy_exceptions:
            return ""
        return self.exception_namespace or ("*" if self.standalone else "")
