"""Check a CleanupPolicy or ClusterCleanupPolicy.

Room: policy. Takes: the document. Gives: problems. Next: policy/check.py.
Source: docs/behaviour/controllers 7; Kyverno api/kyverno/v2/cleanup_policy_types.go.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Final

import msgspec

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.limits import SCHEDULE_CHARACTERS_MAX
from kyverno_mp.policy.checks.exception import check_no_user_info
from kyverno_mp.policy.checks.rules.rule import check_block
from kyverno_mp.policy.checks.rules.subject import Problems, invalid, plain
from kyverno_mp.policy.checks.rules.variables import syntax_errors
from kyverno_mp.policy.checks.spec import NAME_BYTES_MAX
from kyverno_mp.policy.documents.cleanup_policy import (
    BUDGET,
    DRY_RUN,
    DRY_RUN_EXPECTED,
    DRY_RUNS,
    AnyCleanupPolicy,
    CleanupPolicy,
    CleanupSpec,
)
from kyverno_mp.policy.fields.match import MatchFilters
from kyverno_mp.policy.ports import ClusterView, FoundKind, PermissionTarget
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.budget import budget_problem
from kyverno_mp.values.kubernetes.kinds import parse_kind
from kyverno_mp.values.wildcard import contains_wildcard

if TYPE_CHECKING:
    # PERF: faster start of the CLI.
    from kyverno_mp.policy.cel_kinds.served import AnyCelDocument

_SOME_YEAR_S: Final = 1767225600
"""A time in 2026; the next five years include a 29 February."""
_CHARACTERS_PER_STEP: Final = 4
_EMPTY_SET: Final = "CleanupPolicy is matching an empty set"


class _CleanupScope(msgspec.Struct, frozen=True):
    is_namespaced: bool
    cluster_kinds: frozenset[str] | None


def check_cleanup(
    document: AnyCleanupPolicy,
    cluster_kinds: frozenset[str] | None = None,
) -> Problems:
    """Check name, context, schedule, match, a non-empty result, conditions."""
    spec, name = document.spec, document.metadata.name
    if len(name.encode()) > NAME_BYTES_MAX:
        reason = f"may not be more than {NAME_BYTES_MAX} bytes"
        message = f"metadata.name: Too long: {reason}"
        yield Problem("policy.too_long", "metadata.name", "", reason, message)
    for entry in spec.context:
        for name, is_set in (
            ("ImageRegistry", entry.image_registry),
            ("ConfigMap", entry.config_map),
        ):
            if is_set is not None:
                detail = f"{name} is not allowed in CleanUp Policy"
                value = [entry.raw() for entry in spec.context]
                yield invalid("spec.context", "", value, detail)
    if len(spec.schedule) > SCHEDULE_CHARACTERS_MAX:
        yield schedule_too_long()
    elif not is_schedule(spec.schedule):
        detail = "schedule spec in the cleanupPolicy is not in proper cron format"
        yield invalid("spec.schedule", "", spec.schedule, detail)
    scope = _CleanupScope(isinstance(document, CleanupPolicy), cluster_kinds)
    for path, block in (("spec.match", spec.match), ("spec.exclude", spec.exclude)):
        if block is not None:
            users = [*check_no_user_info(block, path)]
            yield from users or check_block(block, path, "", scope)
    if _covers_match(spec):
        yield invalid("spec", "", spec, _EMPTY_SET)
    if spec.conditions is not None:
        for message in syntax_errors(spec.conditions.raw()):
            upstream = f"variable substitution failed for policy {name}: {message}"
            yield plain("spec.conditions", "", upstream, "policy.variable")


def deletion_refusals(document: AnyCleanupPolicy, view: ClusterView) -> Iterator[str]:
    """Yield upstream's message for each kind that clean-up is not allowed to delete."""
    permissions = view.permissions if view.cleanup else None
    match = document.spec.match
    for entry in match.any or match.all if permissions is not None else ():
        for kind in entry.resources.kinds:
            resources = view.kinds.find(parse_kind(kind))
            if not resources:
                if view.kinds.is_complete:
                    yield f"failed to get GVR for kind {kind}"
                continue
            places = product(
                _namespaces_of(document, entry.resources.namespaces, resources[0]),
                entry.resources.names or ("",),
            )
            for namespace, name in places:
                target = PermissionTarget(resources[0].resource, "", namespace, name)
                for verb in ("delete", "list"):
                    assert permissions is not None
                    if not permissions.allows(view.cleanup, verb, target):
                        yield (
                            f"cleanup controller has no permission to {verb} kind "
                            f"{kind}"
                        )


def _namespaces_of(
    document: AnyCleanupPolicy,
    named: Sequence[str],
    kind: FoundKind,
) -> Sequence[str]:
    """Return the namespaces in which permissions are needed; "" = all namespaces.

    Upstream checks all namespaces even if a ClusterCleanupPolicy names some, so that it
    ignores Roles.
    """
    if document.metadata.namespace:
        return (document.metadata.namespace,)
    if kind.resource.is_namespaced and named and not any(map(contains_wildcard, named)):
        return named
    return ("",)


def run_warnings(
    document: "AnyCleanupPolicy | AnyCelDocument",
) -> Iterator[str]:
    """Yield reasons why an accepted policy with a schedule will not run.

    Its status has them, too.
    """
    schedule = getattr(document.spec, "schedule", None)
    if schedule is None:
        return
    from kyverno_mp.values.cron import parse_schedule

    annotations = document.metadata.annotations
    problem = budget_problem(annotations.get(BUDGET, ""))
    if problem:
        yield f"the policy will not run: annotation {BUDGET}: {problem}"
    if annotations.get(DRY_RUN, "") not in DRY_RUNS:
        yield f"the policy will not run: annotation {DRY_RUN}: {DRY_RUN_EXPECTED}"
    if parse_schedule(schedule).next_s(_SOME_YEAR_S) is None:
        yield f"the policy will not run: schedule {schedule!r} never occurs"


def schedule_too_long() -> Problem:
    """Return the problem of a schedule that is not parsed, and not repeated."""
    path = "spec.schedule"
    reason = f"may not be more than {SCHEDULE_CHARACTERS_MAX} characters"
    return Problem("policy.too_long", path, "", reason, f"{path}: Too long: {reason}")


def is_schedule(schedule: str) -> bool:
    """Return whether the clean-up controller accepts the schedule, with its parser."""
    # PERF: imports the time zones, which the CLI rarely needs.
    from kyverno_mp.values.cron import parse_schedule

    spend(1 + len(schedule) // _CHARACTERS_PER_STEP)
    try:
        parse_schedule(schedule)
    except ExpressionFailed:
        return False
    return True


def _covers_match(spec: CleanupSpec) -> bool:
    exclude = spec.exclude
    if exclude is None or exclude.all or spec.match.all:
        return False
    if spec.match.any and exclude.any:
        return any(exclude_filter in exclude.any for exclude_filter in spec.match.any)
    return exclude != MatchFilters()
