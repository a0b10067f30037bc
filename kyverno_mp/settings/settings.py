"""The one list of settings: every name, default, unit, range and meaning.

Room: settings. Takes: values read by settings/read.py. Gives: Settings, a frozen record
that each role gets whole. Next: process, leader, webhook, cli.
May touch: nothing. Source: design.md 2; spec/controllers.md 2.1, 10.1-10.3.
"""

from dataclasses import dataclass

from kyverno_mp.limits import (
    BODY_BYTES_MAX,
    EVENTS_QUEUED_MAX,
    SERVICE_ANSWER_BYTES_MAX,
)
from kyverno_mp.settings.fields import Facts, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one pod; each field's words stand in its Facts."""

    # Who runs
    webhook_workers: int = setting(
        0,
        Facts(
            "Webhook processes that answer reviews.",
            unit="processes",
            low=0,
            high=512,
            auto="one per core that this process may use",
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
        300, Facts("An idle connection is kept this long.", unit="s", low=1, high=3600)
    )
    webhook_timeout_s: float = setting(
        10.0,
        Facts(
            "Deadline of one review when the caller names none.",
            unit="s",
            low=1,
            high=30,
        ),
    )
    worker_silence_s_max: int = setting(
        30,
        Facts(
            "A webhook worker that does not report for so long is replaced.",
            unit="s",
            low=5,
            high=600,
        ),
    )
    leader_silence_s_max: int = setting(
        120,
        Facts(
            "A leader that does not report for so long is replaced; it reports while it"
            " compiles, too.",
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
    # Where things are
    policies_dir: str = setting(
        "",
        Facts("Folder with policies and PolicyExceptions as YAML, read by the leader."),
    )
    resources_dir: str = setting(
        "",
        Facts(
            "Folder with the world that policies may read: Namespaces, ConfigMaps,"
            " RBAC, GlobalContextEntries, canned API answers."
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
    # How fast things move
    policies_poll_ms: int = setting(
        250,
        Facts(
            "The leader looks at the folders this often.",
            unit="ms",
            low=20,
            high=60_000,
        ),
    )
    snapshot_poll_ms: int = setting(
        200,
        Facts(
            "An idle webhook worker looks for a new snapshot this often; a busy one"
            " looks at each request.",
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
            "On SIGTERM, go on accepting this long while already not ready, so that"
            " callers can learn of it.",
            unit="s",
            low=0,
            high=300,
        ),
    )
    restart_delay_s_min: float = setting(
        0.2,
        Facts(
            "Pause before a dead process is started again.", unit="s", low=0, high=60
        ),
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
            "So many deaths within the window are a crash loop.",
            unit="deaths",
            low=2,
            high=1000,
        ),
    )
    crash_loop_window_s: float = setting(
        60.0,
        Facts("The window in which deaths are counted.", unit="s", low=1, high=86_400),
    )
    # What a review may do
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
            "Threads per worker for reviews that may wait for something outside.",
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
            "Groups that are never judged, comma list; '!' includes (excludeGroups)."
        ),
    )
    exclude_usernames: str = setting(
        "", Facts("Users that are never judged, comma list (excludeUsernames).")
    )
    exclude_roles: str = setting(
        "", Facts("Roles that are never judged, comma list (excludeRoles).")
    )
    exclude_cluster_roles: str = setting(
        "",
        Facts("ClusterRoles that are never judged, comma list (excludeClusterRoles)."),
    )
    policy_exceptions: bool = setting(
        True,
        Facts("Honour PolicyExceptions (enablePolicyException)."),
    )
    exception_namespace: str = setting(
        "",
        Facts(
            "Only PolicyExceptions of this namespace count; * = of every namespace"
            " (exceptionNamespace).",
            auto="in a cluster none count, without one those of every namespace",
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
            "Deadline of one call of a service by a policy (apiCallTimeout).",
            unit="s",
            low=0.1,
            high=300,
        ),
    )
    api_call_answer_bytes_max: int = setting(
        SERVICE_ANSWER_BYTES_MAX,
        Facts(
            "A larger answer of a service is refused (maxAPICallResponseLength).",
            unit="bytes",
            low=1024,
            high=256 * 1024 * 1024,
        ),
    )
    # What is told
    log_level: str = setting(
        "info",
        Facts("Least severe log line.", choices=("debug", "info", "warning", "error")),
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
            "Events that may wait to be written (maxQueuedEvents); more are dropped"
            " and counted.",
            unit="events",
            low=0,
            high=1_000_000,
        ),
    )
    omit_events: str = setting(
        "",
        Facts(
            "Reasons of events that are not written, comma list of PolicyApplied,"
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
            "ConfigMap in our namespace whose keys win over these settings"
            " (INIT_CONFIG)."
        ),
    )
    metrics_config_map_name: str = setting(
        "kyverno-metrics",
        Facts("ConfigMap in our namespace that shapes metrics (METRICS_CONFIG)."),
    )
    pod_name: str = setting(
        "",
        Facts(
            "Name of this replica, in leases and to the other replicas.",
            auto="the host's name",
        ),
    )
    deployment_name: str = setting(
        "",
        Facts(
            "Deployment that runs us: when it is gone or scaled to 0, a planned end"
            " takes the webhook configurations along (KYVERNO_DEPLOYMENT).",
            auto="they stay at every end",
        ),
    )
    policies_age_s_max: float = setting(
        600.0,
        Facts(
            "Not ready when the API server said nothing of policies for so long; 0 ="
            " whatever their age.",
            unit="s",
            low=0,
            high=86_400,
        ),
    )
    service_name: str = setting(
        "kyverno-svc", Facts("Service by which the API server calls (KYVERNO_SVC).")
    )
    service_port: int = setting(
        443,
        Facts("Port of that Service (servicePort).", unit="port", low=1, high=65535),
    )
    server_ip: str = setting(
        "",
        Facts(
            "host:port by which the API server calls instead of by the Service"
            " (serverIP)."
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
    tls_key_algorithm: str = setting(
        "RSA",
        Facts(
            # An API server keeps 25 idle connections and opens one for each review
            # above that; RSA signs a handshake in 0.23 ms, ECDSA in 0.02.
            "Kind of new keys (tlsKeyAlgorithm). ECDSA costs a sixth less CPU where"
            " hundreds of requests wait at once.",
            choices=("RSA", "ECDSA", "Ed25519"),
        ),
    )
    certificate_renew_before_h: int = setting(
        360,
        Facts(
            "Certificates are renewed so long before they expire (renewBefore).",
            unit="h",
            low=1,
            high=3000,
        ),
    )
    lease_retry_s: float = setting(
        2.0,
        Facts(
            "A lease is renewed or tried for this often; it lasts six times as long"
            " (leaderElectionRetryPeriod).",
            unit="s",
            low=0.5,
            high=60,
        ),
    )
    auto_update_webhooks: bool = setting(
        True,
        Facts("Register what policies match, not all resources (autoUpdateWebhooks)."),
    )
    force_failure_policy_ignore: bool = setting(
        False,
        Facts("No policy's failure may block (forceFailurePolicyIgnore)."),
    )
    config_map_caching: bool = setting(
        True,
        Facts(
            "ConfigMaps labelled cache.kyverno.io/enabled are read from memory; else"
            " each use of one asks the API server (enableConfigMapCaching)."
        ),
    )
    http_allowlist: str = setting(
        "",
        Facts(
            "Hosts (wildcards) and ranges inside that policies may call, comma list"
            " (httpAllowlist)."
        ),
    )
    http_blocklist: str = setting(
        "",
        Facts(
            "Hosts and ranges that policies may not call, besides loopback, link-local"
            " and private ones, comma list (httpBlocklist)."
        ),
    )
    http_in_namespaced_policies: bool = setting(
        False,
        Facts("Namespaced policies may call services (allowHTTPInNamespacedPolicies)."),
    )
    api_call_token_file: str = setting(
        "",
        Facts(
            "File with a token made for services that policies call; it goes out over"
            " TLS only (KYVERNO_SCOPED_TOKEN_PATH).",
            auto="no token is sent",
        ),
    )
    background_service_account: str = setting(
        "",
        Facts(
            "User name of the account that generates and mutates; policies are refused"
            " that ask more of it than it may (backgroundServiceAccountName).",
            auto="its permissions are not checked",
        ),
    )
    reports_service_account: str = setting(
        "",
        Facts(
            "User name of the account that scans; policies that it cannot scan for are"
            " warned of (reportsServiceAccountName).",
            auto="its permissions are not checked",
        ),
    )

    cleanup_service_account: str = setting(
        "",
        Facts(
            "User name of the account that cleans up; clean-up policies are refused"
            " that ask more of it than it may.",
            auto="its permissions are not checked",
        ),
    )

    @property
    def exceptions_in(self) -> str:
        """Namespace whose PolicyExceptions count, "*" = all, "" = none.

        In a cluster an exception is a right that somebody gives himself, unless the
        operator says where such objects are under control (CVE-2024-48921).
        """
        if not self.policy_exceptions:
            return ""
        return self.exception_namespace or ("*" if self.standalone else "")
