"""Declare every metric family once: name, type, labels, help.

Room: telemetry. Takes: nothing. Gives: FAMILIES for record, collect and expose; table()
for the README. May touch: nothing.
Source: docs/behaviour/controllers 9.2 (Kyverno's names, labels and buckets).
"""

from dataclasses import dataclass
from typing import Final

OVERFLOW: Final = "_overflow"
"""Replaces the values of unbounded labels once a family has all its series."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family.

    ``kind`` is counter, histogram or gauge. ``unbounded``: labels whose values come
    from requests; they become ``_overflow`` when the family is full. ``counted_as``: a
    counter with the same labels that equals the histogram's count, so it costs nothing.
    ``by_namespace``: the label that the operator's list of namespaces applies to.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    unbounded: tuple[str, ...] = ()
    counted_as: str = ""
    counted_text: str = ""
    by_namespace: str = ""

    def overflow_of(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Return ``values`` with the unbounded ones replaced."""
        return tuple(
            OVERFLOW if label in self.unbounded else value
            for label, value in zip(self.labels, values, strict=True)
        )


ADMISSION: Final = Family(
    "kyverno_admission_review_duration_seconds",
    "histogram",
    (
        "resource_kind",
        "resource_namespace",
        "resource_request_operation",
        "request_allowed",
        "request_webhook",
    ),
    "Time from the first byte of a review to its answer.",
    unbounded=("resource_kind", "resource_namespace"),
    counted_as="kyverno_admission_requests_total",
    counted_text="Admission reviews answered.",
    by_namespace="resource_namespace",
)
HTTP: Final = Family(
    "kyverno_http_requests_duration_seconds",
    "histogram",
    ("http_method", "http_url"),
    "Time to answer an HTTP request of the webhook.",
    unbounded=("http_url",),
    counted_as="kyverno_http_requests_total",
    counted_text="HTTP requests to the webhook.",
)
RESULTS: Final = Family(
    "kyverno_policy_execution_duration_seconds",
    "histogram",
    (
        "policy_validation_mode",
        "policy_type",
        "policy_background_mode",
        "policy_namespace",
        "policy_name",
        "resource_kind",
        "resource_namespace",
        "resource_request_operation",
        "rule_name",
        "rule_result",
        "rule_type",
        "rule_execution_cause",
        "dry_run",
    ),
    "Time of one rule on one request; the rules of a review share its time evenly.",
    unbounded=(
        "policy_namespace",
        "policy_name",
        "rule_name",
        "resource_kind",
        "resource_namespace",
    ),
    counted_as="kyverno_policy_results_total",
    counted_text="Results of rules.",
    # KYVERNO: results are selected by the policy's namespace, not the resource's
    # (pkg/metrics/policy_engine.go).
    by_namespace="policy_namespace",
)
CHANGES: Final = Family(
    "kyverno_policy_changes_total",
    "counter",
    (
        "policy_validation_mode",
        "policy_type",
        "policy_background_mode",
        "policy_namespace",
        "policy_name",
        "policy_change_type",
    ),
    "Policies created, updated or deleted since the leader started.",
    unbounded=("policy_namespace", "policy_name"),
)
ERRORS: Final = Family(
    "kyverno_mp_errors_total",
    "counter",
    ("code",),
    "Errors by their stable code.",
    unbounded=("code",),
)
QUERIES: Final = Family(
    "kyverno_client_queries_total",
    "counter",
    ("operation", "client_type", "resource_kind", "resource_namespace"),
    "Requests to the API server.",
    unbounded=("resource_kind", "resource_namespace"),
)
RECONCILED: Final = Family(
    "kyverno_controller_reconcile_total",
    "counter",
    ("controller_name",),
    "Reconciles of a controller.",
)
REQUEUED: Final = Family(
    "kyverno_controller_requeue_total",
    "counter",
    ("controller_name", "num_requeues"),
    "Reconciles that are retried, by the number of failed ones in a row before.",
)
_RESOURCE = ("resource",)
WATCHED: Final = Family(
    "kyverno_mp_informer_objects",
    "gauge",
    _RESOURCE,
    "Objects of a watched resource in the leader's cache.",
)
WATCH_SILENCE: Final = Family(
    "kyverno_mp_informer_silence_seconds",
    "gauge",
    _RESOURCE,
    "Time since the last message of a resource's watch; one comes each minute.",
)
WATCH_FAILURES: Final = Family(
    "kyverno_mp_informer_failures",
    "gauge",
    _RESOURCE,
    "Failures in a row of the watch of a resource.",
)
RECORDED: Final = (
    *(ADMISSION, HTTP, RESULTS, CHANGES, ERRORS, QUERIES, RECONCILED, REQUEUED),
    *(WATCHED, WATCH_SILENCE, WATCH_FAILURES),
)
"""Families that processes write into their pages; the order is part of the layout."""

RULE_INFO: Final = Family(
    "kyverno_policy_rule_info_total",
    "gauge",
    (
        "policy_namespace",
        "policy_name",
        "status_ready",
        "policy_validation_mode",
        "policy_type",
        "policy_background_mode",
        "rule_name",
        "rule_type",
    ),
    "1 for every rule in force.",
    by_namespace="policy_namespace",
)
INFO: Final = Family("kyverno_info", "gauge", ("version",), "Always 1, by version.")
_PROCESS = ("process",)
PSS: Final = Family(
    "kyverno_mp_process_pss_bytes",
    "gauge",
    _PROCESS,
    "Memory of a process, shared pages divided among the processes.",
)
USS: Final = Family(
    "kyverno_mp_process_uss_bytes", "gauge", _PROCESS, "Memory that is not shared."
)
CPU: Final = Family(
    "kyverno_mp_process_cpu_seconds_total", "counter", _PROCESS, "CPU time spent."
)
RESTARTS: Final = Family(
    "kyverno_mp_process_restarts_total",
    "counter",
    _PROCESS,
    "Times the supervisor restarted a process.",
)
CRASH_LOOP: Final = Family(
    "kyverno_mp_process_crash_loop", "gauge", _PROCESS, "1 during a crash loop."
)
GENERATION: Final = Family(
    "kyverno_mp_snapshot_generation", "gauge", (), "Generation the leader published."
)
SERVED: Final = Family(
    "kyverno_mp_worker_generation", "gauge", _PROCESS, "Generation a worker serves."
)
AGE: Final = Family(
    "kyverno_mp_snapshot_age_seconds", "gauge", (), "Time since the last publication."
)
SIZE: Final = Family(
    "kyverno_mp_snapshot_bytes", "gauge", (), "Size of the published snapshot files."
)
LINKED: Final = Family(
    "kyverno_mp_worker_linked_rules", "gauge", _PROCESS, "Rules linked in a worker."
)
HELD: Final = Family(
    "kyverno_mp_worker_held_bytes",
    "gauge",
    _PROCESS,
    "Bytes of unfinished, waiting and concurrently evaluated requests in a worker,"
    " and of answers that no client reads.",
)
QUEUE_DEPTH: Final = Family(
    "kyverno_mp_queue_depth", "gauge", ("process", "queue"), "Entries that wait."
)
QUEUE_DROPS: Final = Family(
    "kyverno_mp_queue_dropped_total",
    "counter",
    ("process", "queue"),
    "Entries refused because a queue was full.",
)
EVENTS_DROPPED: Final = Family(
    "kyverno_events_dropped_total",
    "counter",
    (),
    "Events dropped because a queue was full, or refused by the API server.",
)
POLICIES: Final = Family(
    "kyverno_mp_policies", "gauge", ("ready",), "Policies known to the leader."
)
GAUGED: Final = (
    *(RULE_INFO, INFO, GENERATION, SERVED, AGE, SIZE, POLICIES, LINKED, HELD),
    *(QUEUE_DEPTH, EVENTS_DROPPED, QUEUE_DROPS, PSS, USS, CPU, RESTARTS, CRASH_LOOP),
)
"""Families that the health process computes at each scrape."""


def table() -> str:
    """Return the README's Markdown table of metrics."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in (*RECORDED, *GAUGED):
        labels = ", ".join(family.labels) or "none"
        if family.counted_as:
            text = family.counted_text
            rows.append(f"| `{family.counted_as}` | counter | {labels} | {text} |")
        rows.append(f"| `{family.name}` | {family.kind} | {labels} | {family.text} |")
    return "\n".join(rows) + "\n"
