"""Declare every metric family once: name, type, labels, help.

Room: telemetry. Takes: nothing. Gives: FAMILIES for record, collect and expose; table()
for docs/metrics.md.
Source: docs/behaviour/controllers 9.2 (Kyverno's names, labels and buckets).

Over 400 lines: one table, from which the documents' table is generated.
"""

import re
from dataclasses import dataclass
from typing import Final

from kyverno_mp.values.kubernetes.policy_kinds import REVIEWED_CEL_KINDS, PolicyKind

OVERFLOW: Final = "_overflow"
"""Replaces the values of unbounded labels once a family has its maximum of series."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family.

    ``kind`` is counter, histogram or gauge. ``unbounded``: labels whose values come
    from requests; they become ``_overflow`` when the family is full. ``counted_as``: a
    counter with the same labels that equals the histogram's count, so it is free.
    ``by_namespace``: the label to which the operator's list of namespaces applies.
    ``buckets``: the histogram's own boundaries, if those of reviews are unsuitable.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    unbounded: tuple[str, ...] = ()
    counted_as: str = ""
    counted_text: str = ""
    by_namespace: str = ""
    buckets: tuple[float, ...] = ()

    def overflow_of(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Return ``values`` with the values of unbounded labels replaced."""
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
    "Time from the arrival of an admission review to its answer, in seconds.",
    unbounded=("resource_kind", "resource_namespace"),
    counted_as="kyverno_admission_requests_total",
    counted_text="Number of admission reviews answered.",
    by_namespace="resource_namespace",
)
HTTP: Final = Family(
    "kyverno_http_requests_duration_seconds",
    "histogram",
    ("http_method", "http_url"),
    "Time to answer an HTTP request to the webhook, in seconds.",
    unbounded=("http_url",),
    counted_as="kyverno_http_requests_total",
    counted_text="Number of HTTP requests to the webhook.",
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
    "Time to evaluate one rule for one request, in seconds; the rules of a review"
    " share its time evenly.",
    unbounded=(
        "policy_namespace",
        "policy_name",
        "rule_name",
        "resource_kind",
        "resource_namespace",
    ),
    counted_as="kyverno_policy_results_total",
    counted_text="Number of results of rules.",
    # KYVERNO: results are selected by the policy's namespace, not the resource's
    # (pkg/metrics/policy_engine.go).
    by_namespace="policy_namespace",
)


def _results_of(kind: PolicyKind) -> Family:
    """Return the family of the results of a kind in CEL.

    1.19 adds the counter, and the label policy_namespace.
    """
    is_triggered = kind.rule_type == "generate"
    can_deny = kind.rule_type in ("validate", "verifyImages")
    words = [word.lower() for word in re.findall("[A-Z][a-z]+", kind.name)]
    prefix = f"kyverno_{'_'.join(words)}"
    share = "; the policies of a review share its time evenly."
    return Family(
        f"{prefix}_execution_duration_seconds",
        "histogram",
        (
            *(("policy_validation_mode",) if can_deny else ()),
            *(() if is_triggered else ("policy_background_mode",)),
            "policy_namespace",
            "policy_name",
            "resource_kind",
            "resource_namespace",
            "resource_request_operation",
            "execution_cause",
            "result",
        ),
        f"Time to evaluate one {kind.name} for one"
        f" {'trigger' if is_triggered else 'request'}, in seconds"
        f"{', without the writes.' if is_triggered else share}",
        unbounded=(
            "policy_namespace",
            "policy_name",
            "resource_kind",
            "resource_namespace",
        ),
        counted_as=f"{prefix}_results_total",
        counted_text=f"Number of results of {kind.name.removesuffix('y')}ies.",
        by_namespace="resource_namespace",
    )


_RESULTS_OF: Final = {kind.rule_type: _results_of(kind) for kind in REVIEWED_CEL_KINDS}
VALIDATING_RESULTS: Final = _RESULTS_OF["validate"]
MUTATING_RESULTS: Final = _RESULTS_OF["mutate"]
GENERATING_RESULTS: Final = _RESULTS_OF["generate"]
IMAGE_POLICY_RESULTS: Final = _RESULTS_OF["verifyImages"]
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
    "Number of policies created, updated or deleted since the leader started.",
    unbounded=("policy_namespace", "policy_name"),
)
ERRORS: Final = Family(
    "kyverno_mp_errors_total",
    "counter",
    ("code",),
    "Number of errors, by their stable code.",
    unbounded=("code",),
)
QUERIES: Final = Family(
    "kyverno_client_queries_total",
    "counter",
    ("operation", "client_type", "resource_kind", "resource_namespace"),
    "Number of requests to the API server.",
    unbounded=("resource_kind", "resource_namespace"),
)
RECONCILED: Final = Family(
    "kyverno_controller_reconcile_total",
    "counter",
    ("controller_name",),
    "Number of times a controller reconciled an object.",
)
REQUEUED: Final = Family(
    "kyverno_controller_requeue_total",
    "counter",
    ("controller_name", "num_requeues"),
    "Number of retries after a failed reconcile, by the number of failures in a row.",
)
DEFECTS: Final = Family(
    "kyverno_mp_controller_defects_total",
    "counter",
    ("controller_name",),
    "Number of reconciles that ended with an unexpected error; see the log.",
)
TRIGGERS: Final = Family(
    "kyverno_mp_triggers_total",
    "counter",
    ("outcome",),
    "Number of triggers of background rules, by outcome: written (an UpdateRequest was"
    " created), coalesced (an existing one was renewed), given_up (the record was"
    " damaged, or the API server rejected its content).",
)
TRIGGERS_WAITING: Final = Family(
    "kyverno_mp_triggers_waiting",
    "gauge",
    (),
    "Number of reviews in the journals of triggers that wait to become UpdateRequests.",
)
TRIGGERS_AGE: Final = Family(
    "kyverno_mp_triggers_age_seconds",
    "gauge",
    (),
    "Age of the oldest review that waits in a journal of triggers, in seconds.",
)
REPORTED: Final = Family(
    "kyverno_mp_review_results_total",
    "counter",
    ("outcome",),
    "Number of results that reviews pass on to reports, by outcome: stored (in an"
    " EphemeralReport), overwritten (not merged yet, for lack of space), given_up (the"
    " record was damaged, or the API server rejected it).",
)
REPORTED_WAITING: Final = Family(
    "kyverno_mp_review_results_waiting",
    "gauge",
    (),
    "Number of reviews in the journals of results that wait to be stored.",
)
REPORTED_AGE: Final = Family(
    "kyverno_mp_review_results_age_seconds",
    "gauge",
    (),
    "Age of the oldest review that waits in a journal of results, in seconds.",
)
REPORTED_OBJECTS: Final = Family(
    "kyverno_mp_review_results_objects_total",
    "counter",
    ("outcome",),
    "Number of objects whose review results the reports pool processed, by outcome:"
    " merged (into their reports), unclaimed (the object was never stored), forbidden"
    " (the reports account may not read its kind).",
)
RIGHTS_MISSING: Final = Family(
    "kyverno_mp_missing_permissions",
    "gauge",
    ("account", "verb", "resource"),
    "1 while an account lacks a permission for what policies, labels or settings tell"
    " it to do; /healthz has the namespaces and the commands that grant it.",
    unbounded=("resource",),
)
REPORTED_REPORTS: Final = Family(
    "kyverno_mp_ephemeral_reports",
    "gauge",
    (),
    "Number of EphemeralReports with results that are not merged yet: at most two for"
    " each replica, and 64 with those of replicas that are gone.",
)
REPORTED_BACKLOG: Final = Family(
    "kyverno_mp_review_results_unmerged",
    "gauge",
    (),
    "Number of results in EphemeralReports that are not merged into reports yet.",
)
REPORTED_BACKLOG_AGE: Final = Family(
    "kyverno_mp_review_results_unmerged_age_seconds",
    "gauge",
    (),
    "Age of the oldest result in an EphemeralReport that is not merged yet, in seconds."
    " Results for an object that never appears wait for about a minute.",
)
LEASE_HELD: Final = Family(
    "kyverno_mp_lease_held", "gauge", ("lease",), "1 while this pod holds the lease."
)
GENERATED_POLICIES: Final = Family(
    "kyverno_mp_generated_admission_policies",
    "gauge",
    ("kind",),
    "Number of policies that the API server enforces in place of the webhook.",
)
ROLLOUTS: Final = Family(
    "kyverno_mp_rollouts",
    "gauge",
    ("phase",),
    "Number of gradually enforced policies by the phase of their rollout; 0 on"
    " replicas without the lease.",
)
EXCEPTIONS: Final = Family(
    "kyverno_mp_policy_exceptions",
    "gauge",
    ("state",),
    "Number of PolicyExceptions in enabled namespaces: lasting, expiring within a week,"
    " expired, or invalid (no effect); 0 on replicas without the lease.",
)
ROLLOUT_FALL_BACKS: Final = Family(
    "kyverno_mp_rollout_fallbacks_total",
    "counter",
    (),
    "Number of times that a policy fell back to its last completed step; counted by the"
    " lease holder.",
)
ROLLOUT_BUDGET_USED: Final = Family(
    "kyverno_mp_rollout_budget_used_ratio",
    "gauge",
    ("policy",),
    "Denials that a step of a policy added in all replicas, divided by its budget;"
    " above 1, the policy falls back.",
)
_RESOURCE = ("resource",)
WATCHED: Final = Family(
    "kyverno_mp_informer_objects",
    "gauge",
    _RESOURCE,
    "Number of objects of a watched resource in the leader's cache.",
)
WATCH_SILENCE: Final = Family(
    "kyverno_mp_informer_silence_seconds",
    "gauge",
    _RESOURCE,
    "Time since the last message of the watch of a resource, in seconds; the API server"
    " sends one each minute.",
)
WATCH_FAILURES: Final = Family(
    "kyverno_mp_informer_failures",
    "gauge",
    _RESOURCE,
    "Number of failures in a row of the watch of a resource.",
)
_CLEANED_BY = ("policy_type", "policy_namespace", "policy_name")
_CLEANED = ("resource_kind", "resource_namespace", "deletion_propagation")
CLEANED: Final = Family(
    "kyverno_cleanup_controller_deletedobjects_total",
    "counter",
    (*_CLEANED_BY, *_CLEANED),
    "Number of objects that clean-up policies deleted.",
    unbounded=("policy_namespace", "policy_name", *_CLEANED[:2]),
)
CLEANUP_ERRORS: Final = Family(
    "kyverno_cleanup_controller_errors_total",
    "counter",
    (*_CLEANED_BY, *_CLEANED),
    "Number of failed lists and deletions of clean-up policies.",
    unbounded=("policy_namespace", "policy_name", *_CLEANED[:2]),
)
_DELETED = ("resource", "resource_namespace", "deletion_propagation")
DELETED: Final = Family(
    "kyverno_deleting_controller_deletedobjects_total",
    "counter",
    (*_CLEANED_BY, *_DELETED),
    "Number of objects that DeletingPolicies deleted.",
    unbounded=("policy_namespace", "policy_name", *_DELETED[:2]),
)
DELETING_ERRORS: Final = Family(
    "kyverno_deleting_controller_errors_total",
    "counter",
    (*_CLEANED_BY, *_DELETED),
    "Number of failed lists and deletions of DeletingPolicies.",
    unbounded=("policy_namespace", "policy_name", *_DELETED[:2]),
)
CLEANUP_HALTED: Final = Family(
    "kyverno_mp_cleanup_halted",
    "gauge",
    _CLEANED_BY,
    "1 if the deletion budget halted the last run of a clean-up policy.",
    unbounded=("policy_namespace", "policy_name"),
)
_TTL = ("resource_group", "resource_version", "resource_resource")
TTL_INFO: Final = Family(
    "kyverno_ttl_controller_info",
    "gauge",
    _TTL,
    "1 for each resource that is watched for the TTL label.",
)
TTL_DELETED: Final = Family(
    "kyverno_ttl_controller_deletedobjects_total",
    "counter",
    ("resource_namespace", *_TTL),
    "Number of objects deleted because of their TTL label.",
    unbounded=("resource_namespace",),
)
TTL_ERRORS: Final = Family(
    "kyverno_ttl_controller_errors_total",
    "counter",
    ("resource_namespace", *_TTL),
    "Number of invalid TTL labels, each counted once, and of failed deletions.",
    unbounded=("resource_namespace",),
)
BACKGROUND_REQUESTS: Final = Family(
    "kyverno_mp_background_requests_total",
    "counter",
    ("request_type", "outcome"),
    "Number of UpdateRequests, and of permanently failed tasks of policies, by"
    " outcome: done, failed (it is retried), dropped_absent (the trigger was missing"
    " for 30 s), dropped_present (the object to delete still exists or is still"
    " wanted), dropped_contested (while many wait, others keep changing the object),"
    " dropped_failing (the last attempt failed), dropped_without_review (only the"
    " review would tell who wrote the trigger); handed_over: written for another"
    " program that holds the lease.",
)
BACKGROUND_WRITES: Final = Family(
    "kyverno_mp_background_writes_total",
    "counter",
    ("action",),
    "Number of objects that the background pool wrote: created, updated, deleted,"
    " mutated.",
)
BACKGROUND_LOOKS: Final = Family(
    "kyverno_mp_background_looks_total",
    "counter",
    ("when",),
    "Number of times that the background pool looked for the triggers of a policy of"
    " which it knows only that it was triggered: early (after two seconds), last (after"
    " 30 seconds), ending (the pool ends); left: the pool ended before it could look.",
)
BACKGROUND_WAITING: Final = Family(
    "kyverno_mp_background_waiting",
    "gauge",
    (),
    "Number of stored UpdateRequests that are not done yet.",
)
UPDATE_REQUESTS: Final = Family(
    "kyverno_updaterequest_total",
    "gauge",
    ("resource_namespace",),
    "Number of UpdateRequests in Kyverno's namespace that this pool processes or"
    " removes, as in Kyverno 1.19.",
)
REPORTS_EVALUATED: Final = Family(
    "kyverno_mp_reports_evaluated_total",
    "counter",
    ("outcome",),
    "Number of objects that the reports pool evaluated, by outcome: evaluated,"
    " outdated (the object has changed and is evaluated again), failed (it is"
    " retried).",
)
REPORTS_WRITES: Final = Family(
    "kyverno_mp_reports_writes_total",
    "counter",
    ("action",),
    "Number of reports that the reports pool wrote: created, updated, deleted, or"
    " foreign (another program's report with this name, which was not changed).",
)
REPORTS_STALENESS: Final = Family(
    "kyverno_mp_reports_staleness_seconds",
    "histogram",
    ("cause",),
    "Time from a change to the resulting write of a report, in seconds, by cause:"
    " object (the object changed), scan (policies, data or the period).",
    buckets=(0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
REPORTS_STAGES: Final = Family(
    "kyverno_mp_reports_stage_seconds",
    "histogram",
    ("cause", "stage"),
    "Duration of each stage between a change and the resulting write of a report, in"
    " seconds, by stage: waiting (for an evaluator), evaluating, turn (until the"
    " earlier reports of the batch are written), writing.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
REPORTS_LEFT_OUT: Final = Family(
    "kyverno_mp_reports_cut_total",
    "counter",
    (),
    "Number of reports written without all their results, because they would be too"
    " large.",
)
REPORTS_EVENTS_DROPPED: Final = Family(
    "kyverno_mp_reports_events_dropped_total",
    "counter",
    (),
    "Number of scan results without Events, because the budget of their rule was"
    " spent.",
)
NOTIFICATIONS: Final = Family(
    "kyverno_mp_notifications_total",
    "counter",
    ("outcome",),
    "Number of notifications about new failures, by outcome: sent, failed (tried"
    " again), rejected (not tried again), and of failures that were dropped because too"
    " many groups waited.",
)
COMPILE_HELPERS: Final = Family(
    "kyverno_mp_compile_helpers_policies_total",
    "counter",
    ("outcome",),
    "Number of policies that helper processes of a starting leader compiled, by"
    " outcome: compiled, rejected (the reason is in /policies).",
)
COMPILE_HELPERS_FAILED: Final = Family(
    "kyverno_mp_compile_helpers_failed_total",
    "counter",
    (),
    "Number of helper processes that ended with an error or did not answer in time; the"
    " leader compiled their policies itself.",
)
OBSERVATIONS_DROPPED: Final = Family(
    "kyverno_mp_observations_dropped_total",
    "counter",
    ("metric",),
    "Number of observations missing from a histogram of a pool, because there were too"
    " many at once.",
)
REPORTS_DROPPED: Final = Family(
    "kyverno_mp_reports_dropped_total",
    "counter",
    (),
    "Number of objects that were not retried after a failure, because too many wait;"
    " the next scan of their kind finds them.",
)
REPORTS_WAITING: Final = Family(
    "kyverno_mp_reports_waiting",
    "gauge",
    (),
    "Number of objects that wait for an evaluator or for their report.",
)
REPORTS_IMAGES_WAITING: Final = Family(
    "kyverno_mp_reports_images_waiting",
    "gauge",
    (),
    "Number of objects whose images wait to be verified by a scan, including retries"
    " after a registry could not be read.",
)
REPORTS_OBJECTS: Final = Family(
    "kyverno_mp_reports_objects",
    "gauge",
    ("resource",),
    "Number of objects that the reports pool watches.",
)
REPORTS_SCAN: Final = Family(
    "kyverno_mp_reports_scan_seconds",
    "gauge",
    ("resource",),
    "Duration of the last scan of all objects of a resource, in seconds.",
)
RECORDED_REVIEWS: Final = Family(
    "kyverno_mp_recorded_reviews_total",
    "counter",
    ("outcome",),
    "Number of reviews chosen for the recording, by outcome: written, dropped (too many"
    " waited, or too many of one namespace), too_large, failed (not written, see the"
    " log).",
)
RECORDING_FILES_DELETED: Final = Family(
    "kyverno_mp_recording_files_deleted_total",
    "counter",
    (),
    "Number of recording files deleted to make room for newer reviews.",
)
BACKGROUND_CONTESTED: Final = Family(
    "kyverno_mp_background_contested_total",
    "counter",
    (),
    "Number of times a generated object was not restored for a while, because other"
    " writers change it each time it is synchronised.",
)
BACKGROUND_UNWATCHED: Final = Family(
    "kyverno_mp_background_unwatched_kinds",
    "gauge",
    (),
    "Number of kinds that GeneratingPolicies generate and that are not watched,"
    " because there are too many or the API server rejects it; counted for each"
    " policy.",
)
DASHBOARD_REQUESTS: Final = Family(
    "kyverno_mp_dashboard_requests_total",
    "counter",
    ("outcome",),
    "Number of requests to the dashboard, by outcome: served, refused (no valid token,"
    " or requested by a host name), unknown (no such page, method or query), busy (too"
    " many at once), failed (see the log).",
)
DASHBOARD_LEFT_OUT: Final = Family(
    "kyverno_mp_dashboard_results_left_out",
    "gauge",
    (),
    "Number of results of stored reports that the dashboard does not list for lack of"
    " space.",
)
GC_PAUSES: Final = Family(
    "kyverno_mp_gc_pause_seconds",
    "histogram",
    ("generation",),
    "Time for which Python's garbage collector stopped a webhook worker, in seconds;"
    " 2: all objects except frozen ones.",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)
IMAGE_CACHE: Final = Family(
    "kyverno_mp_image_verify_cache_total",
    "counter",
    ("event",),
    "Number of uses of the pod's cache of verified images: hit, miss, stored, evicted,"
    " too_large (not stored), failed (a file could not be read or written).",
)
IMAGE_VERIFICATIONS: Final = Family(
    "kyverno_mp_image_verification_seconds",
    "histogram",
    ("result",),
    "Time to verify one attestor's statement about an image, in seconds, without cache"
    " hits, by result: verified, failed, unavailable (a registry or a log did not"
    " answer in time).",
    counted_as="kyverno_mp_image_verifications_total",
    counted_text="Number of verifications of images.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
REGISTRY_CALLS: Final = Family(
    "kyverno_mp_registry_calls_total",
    "counter",
    ("registry", "outcome"),
    "Number of calls to image registries, logs and TUF mirrors, by host (hosts that the"
    " settings name, and at most 20 others with a successful response, which lose their"
    " names to others after an hour without a call; all others are other) and by"
    " outcome: the HTTP status (5xx and the like for unusual ones), deadline, slow (too"
    " long without a byte, or too few bytes), network (no connection), refused (an"
    " address that is not allowed, or a response that is too large).",
    unbounded=("registry",),
)
AUTHZ_DECISIONS: Final = Family(
    "authz_decision_duration_seconds",
    "histogram",
    ("mode", "decision", "source"),
    "Time to decide a request for authorization, in seconds. decision: allow, deny or"
    " error; source: policy (one answered or failed), default (none answered), server"
    " (the request could not be judged).",
    counted_as="authz_decisions_total",
    counted_text="Number of requests for authorization that were decided.",
)
AUTHZ_POLICIES: Final = Family(
    "kyverno_mp_authz_policy_decisions_total",
    "counter",
    ("mode", "policy", "decision"),
    "Number of requests for authorization that a policy decided.",
    unbounded=("policy",),
)
JSON_PAYLOADS: Final = Family(
    "kyverno_mp_json_payload_duration_seconds",
    "histogram",
    ("outcome",),
    "Time to answer POST /json, in seconds. outcome: pass, fail (a policy fails), error"
    " (a policy could not be evaluated), refused (there is no report: the payload is"
    " invalid, the time was over, or too many payloads wait).",
    counted_as="kyverno_mp_json_payloads_total",
    counted_text="Number of payloads sent to POST /json.",
)
SPANS: Final = Family(
    "kyverno_mp_spans_total",
    "counter",
    ("outcome",),
    "Number of spans of traces, by outcome: exported, dropped (too many wait for the"
    " collector), failed (the collector did not take them in time).",
)
RECORDED: Final = (
    *(ADMISSION, HTTP, RESULTS, CHANGES, ERRORS, QUERIES, RECONCILED, REQUEUED),
    *(WATCHED, WATCH_SILENCE, WATCH_FAILURES, DEFECTS, LEASE_HELD),
    GENERATED_POLICIES,
    ROLLOUTS,
    EXCEPTIONS,
    ROLLOUT_FALL_BACKS,
    ROLLOUT_BUDGET_USED,
    *(TRIGGERS, TRIGGERS_WAITING, TRIGGERS_AGE),
    *(CLEANED, CLEANUP_ERRORS, CLEANUP_HALTED, TTL_INFO, TTL_DELETED, TTL_ERRORS),
    *(DELETED, DELETING_ERRORS),
    *(BACKGROUND_REQUESTS, BACKGROUND_WRITES, BACKGROUND_WAITING, UPDATE_REQUESTS),
    BACKGROUND_LOOKS,
    *(REPORTED, REPORTED_WAITING, REPORTED_AGE, REPORTED_OBJECTS),
    RIGHTS_MISSING,
    *(REPORTED_REPORTS, REPORTED_BACKLOG, REPORTED_BACKLOG_AGE),
    *(REPORTS_EVALUATED, REPORTS_WRITES, REPORTS_LEFT_OUT, REPORTS_DROPPED),
    *(REPORTS_WAITING, REPORTS_OBJECTS, REPORTS_SCAN),
    *(BACKGROUND_CONTESTED, BACKGROUND_UNWATCHED),
    *(RECORDED_REVIEWS, RECORDING_FILES_DELETED),
    *(DASHBOARD_REQUESTS, DASHBOARD_LEFT_OUT),
    *(REPORTS_STALENESS, REPORTS_STAGES),
    *(REPORTS_EVENTS_DROPPED, OBSERVATIONS_DROPPED),
    VALIDATING_RESULTS,
    MUTATING_RESULTS,
    GENERATING_RESULTS,
    IMAGE_POLICY_RESULTS,
    GC_PAUSES,
    *(IMAGE_CACHE, REGISTRY_CALLS),
    *(REPORTS_IMAGES_WAITING, IMAGE_VERIFICATIONS),
    *(AUTHZ_DECISIONS, AUTHZ_POLICIES),
    SPANS,
    JSON_PAYLOADS,
    NOTIFICATIONS,
    *(COMPILE_HELPERS, COMPILE_HELPERS_FAILED),
)
"""Families that processes write to their pages; their order is part of the layout."""

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
    "Always 1; one series for each rule in force.",
    by_namespace="policy_namespace",
)
INFO: Final = Family(
    "kyverno_info", "gauge", ("version",), "Always 1; the label names the version."
)
_PROCESS = ("process",)
PSS: Final = Family(
    "kyverno_mp_process_pss_bytes",
    "gauge",
    _PROCESS,
    "Memory of a process in bytes; a shared page is divided among its processes.",
)
USS: Final = Family(
    "kyverno_mp_process_uss_bytes",
    "gauge",
    _PROCESS,
    "Memory of a process in bytes that it does not share with other processes.",
)
CPU: Final = Family(
    "kyverno_mp_process_cpu_seconds_total",
    "counter",
    _PROCESS,
    "CPU time that a process has used, in seconds.",
)
RESTARTS: Final = Family(
    "kyverno_mp_process_restarts_total",
    "counter",
    _PROCESS,
    "Number of times the supervisor restarted a process.",
)
CRASH_LOOP: Final = Family(
    "kyverno_mp_process_crash_loop",
    "gauge",
    _PROCESS,
    "1 while a process is in a crash loop, otherwise 0.",
)
REFUSED: Final = Family(
    "kyverno_mp_webhook_connections_refused_total",
    "counter",
    (),
    "Number of connections that were refused because the webhook was in a crash loop.",
)
GENERATION: Final = Family(
    "kyverno_mp_snapshot_generation",
    "gauge",
    (),
    "Number of the latest version of the policies that the leader published.",
)
SERVED: Final = Family(
    "kyverno_mp_worker_generation",
    "gauge",
    _PROCESS,
    "Number of the version of the policies that a worker serves.",
)
AGE: Final = Family(
    "kyverno_mp_snapshot_age_seconds",
    "gauge",
    (),
    "Time since the leader published changed policies, in seconds.",
)
SIZE: Final = Family(
    "kyverno_mp_snapshot_bytes",
    "gauge",
    (),
    "Size of the compiled policies that the leader published, in bytes.",
)
LINKED: Final = Family(
    "kyverno_mp_worker_linked_rules",
    "gauge",
    _PROCESS,
    "Number of rules that a worker has linked.",
)
HELD: Final = Family(
    "kyverno_mp_worker_held_bytes",
    "gauge",
    _PROCESS,
    "Memory in a worker for requests that arrive, wait or are evaluated, and for"
    " answers that clients have not read yet, in bytes.",
)
QUEUE_DEPTH: Final = Family(
    "kyverno_mp_queue_depth",
    "gauge",
    ("process", "queue"),
    "Number of entries that wait in a queue.",
)
QUEUE_DROPS: Final = Family(
    "kyverno_mp_queue_dropped_total",
    "counter",
    ("process", "queue"),
    "Number of entries dropped because a queue was full.",
)
EVENTS_DROPPED: Final = Family(
    "kyverno_events_dropped_total",
    "counter",
    (),
    "Number of Events not written, because a queue was full or the API server rejected"
    " them.",
)
POLICIES: Final = Family(
    "kyverno_mp_policies",
    "gauge",
    ("ready",),
    "Number of policies, by whether they are fully in force.",
)
UNLINKED_POLICIES: Final = Family(
    "kyverno_mp_policies_unlinked",
    "gauge",
    (),
    "Number of policies whose rules are errors, because they exceed the memory limit of"
    " their namespace, or its share of the pod.",
)
UNDECODED_POLICIES: Final = Family(
    "kyverno_mp_policies_undecoded",
    "gauge",
    _PROCESS,
    "Number of policies that are errors in a worker, because their records in the"
    " snapshot cannot be decoded; the log names them.",
)
UNPUBLISHED_SEGMENTS: Final = Family(
    "kyverno_mp_segments_unpublished",
    "gauge",
    (),
    "Number of snapshot segments whose last version stays in force, because the newest"
    " one cannot be written to the runtime folder; /healthz has the reasons.",
)
FOLDER_SIZE: Final = Family(
    "kyverno_mp_runtime_folder_size_bytes",
    "gauge",
    (),
    "Size of the file system with the runtime folder, in bytes.",
)
FOLDER_FREE: Final = Family(
    "kyverno_mp_runtime_folder_free_bytes",
    "gauge",
    (),
    "Free space in the runtime folder, in bytes.",
)
LARGE_EXCEPTIONS: Final = Family(
    "kyverno_mp_exceptions_too_large",
    "gauge",
    (),
    "Number of pairs of PolicyException and policy where the exception exempts nothing"
    " because, linked, it would take more memory than its namespace may use.",
)
READY: Final = Family(
    "kyverno_mp_ready",
    "gauge",
    (),
    "1 if the pod is ready for reviews, otherwise 0; /health/readiness shows the"
    " reasons.",
)
PROBLEMS: Final = Family(
    "kyverno_mp_problems",
    "gauge",
    (),
    "Number of files, documents and configuration values that could not be used;"
    " /policies lists them.",
)
POLICIES_AGE: Final = Family(
    "kyverno_mp_policies_age_seconds",
    "gauge",
    (),
    "Time since the API server last confirmed the policies in force, in seconds.",
)
CERTIFICATE_ENDS: Final = Family(
    "kyverno_mp_certificate_expiry_timestamp_seconds",
    "gauge",
    (),
    "Unix time at which the certificate of the webhook expires.",
)
METRIC_PUSHES: Final = Family(
    "kyverno_mp_metric_pushes_total",
    "counter",
    ("outcome",),
    "Number of times that metrics were pushed, by outcome: exported, failed (the"
    " collector did not take them in time).",
)
GAUGED: Final = (
    *(RULE_INFO, INFO, READY, PROBLEMS, CERTIFICATE_ENDS, POLICIES_AGE),
    *(GENERATION, SERVED, AGE, SIZE, POLICIES, UNLINKED_POLICIES, LINKED, HELD),
    *(
        LARGE_EXCEPTIONS,
        UNDECODED_POLICIES,
        UNPUBLISHED_SEGMENTS,
        FOLDER_SIZE,
        FOLDER_FREE,
    ),
    *(QUEUE_DEPTH, EVENTS_DROPPED, QUEUE_DROPS, PSS, USS, CPU, RESTARTS, CRASH_LOOP),
    *(REFUSED, METRIC_PUSHES),
)
"""Families that the health process computes at each scrape."""


def table() -> str:
    """Return the Markdown table of metrics."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in (*RECORDED, *GAUGED):
        labels = ", ".join(family.labels) or "none"
        if family.counted_as:
            text = family.counted_text
            rows.append(f"| `{family.counted_as}` | counter | {labels} | {text} |")
        rows.append(f"| `{family.name}` | {family.kind} | {labels} | {family.text} |")
    return "\n".join(rows) + "\n"
