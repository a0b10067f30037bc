"""Check a CleanupPolicy or ClusterCleanupPolicy.

Room: policy. Takes: the document. Gives: problems. Next: policy/check.py. May touch:
nothing outside its arguments.
Source: docs/behaviour/controllers 7; Kyverno api/kyverno/v2/cleanup_policy_types.go;
robfig/cron ParseStandard.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kyverno_mp.policy.checks.exception import check_no_user_info
from kyverno_mp.policy.checks.rule import check_block
from kyverno_mp.policy.checks.spec import NAME_BYTES_MAX
from kyverno_mp.policy.checks.subject import Problems, invalid, plain
from kyverno_mp.policy.checks.variables import syntax_errors
from kyverno_mp.policy.cleanup_policy import (
    CleanupPolicy,
    CleanupSpec,
    ClusterCleanupPolicy,
)
from kyverno_mp.policy.fields.match import MatchFilters
from kyverno_mp.policy.ports import ClusterView, PermissionTarget
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.duration import parse_duration
from kyverno_mp.values.kinds import parse_kind

_EMPTY_SET: Final = "CleanupPolicy is matching an empty set"
_DESCRIPTORS: Final = frozenset(
    {
        "@yearly",
        "@annually",
        "@monthly",
        "@weekly",
        "@daily",
        "@midnight",
        "@hourly",
    }
)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun")
_MONTHS_LATER: Final = ("jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_FIELDS: Final[tuple[tuple[int, int, dict[str, int]], ...]] = (
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, {name: index + 1 for index, name in enumerate(_MONTHS + _MONTHS_LATER)}),
    (0, 6, {name: index for index, name in enumerate(_DAYS)}),
)
_RANGE: Final = re.compile(
    r"(\*|\?|[0-9a-z]{1,9})(?:-([0-9a-z]{1,9}))?(?:/([0-9]{1,9}))?"
)


@dataclass(frozen=True, slots=True)
class _CleanupScope:
    is_namespaced: bool
    cluster_kinds: frozenset[str] | None


def check_cleanup(
    document: CleanupPolicy | ClusterCleanupPolicy,
    cluster_kinds: frozenset[str] | None = None,
) -> Problems:
    """Check name, context, schedule, match, a non-empty result, conditions."""
    spec, name = document.spec, document.metadata.name
    if len(name.encode()) > NAME_BYTES_MAX:
        reason = f"may not be more than {NAME_BYTES_MAX} bytes"
        text = f"metadata.name: Too long: {reason}"
        yield Problem("policy.too_long", "metadata.name", "", reason, text)
    for entry in spec.context:
        for name, given in (
            ("ImageRegistry", entry.image_registry),
            ("ConfigMap", entry.config_map),
        ):
            if given is not None:
                detail = f"{name} is not allowed in CleanUp Policy"
                value = [one.raw() for one in spec.context]
                yield invalid("spec.context", "", value, detail)
    if not is_schedule(spec.schedule):
        detail = "schedule spec in the cleanupPolicy is not in proper cron format"
        yield invalid("spec.schedule", "", spec.schedule, detail)
    scope = _CleanupScope(isinstance(document, CleanupPolicy), cluster_kinds)
    for place, block in (("spec.match", spec.match), ("spec.exclude", spec.exclude)):
        if block is not None:
            users = [*check_no_user_info(block, place)]
            yield from users or check_block(block, place, "", scope)
    if _covers_match(spec):
        yield invalid("spec", "", spec, _EMPTY_SET)
    if spec.conditions is not None:
        for text in syntax_errors(spec.conditions.raw()):
            told = f"variable substitution failed for policy {name}: {text}"
            yield plain("spec.conditions", "", told, "policy.variable")


def deletion_refusals(
    document: CleanupPolicy | ClusterCleanupPolicy, view: ClusterView
) -> Iterator[str]:
    """Return upstream's text for each kind that the clean-up account cannot delete."""
    permissions = view.permissions if view.cleanup else None
    match = document.spec.match
    for entry in match.any or match.all if permissions is not None else ():
        for kind in entry.resources.kinds:
            found = view.kinds.find(parse_kind(kind))
            if not found:
                if view.kinds.is_complete:
                    yield f"failed to get GVR for kind {kind}"
                continue
            for name in entry.resources.names or ("",):
                namespace = document.metadata.namespace
                target = PermissionTarget(found[0].resource, "", namespace, name)
                for verb in ("delete", "list"):
                    assert permissions is not None
                    if not permissions.allows(view.cleanup, verb, target):
                        yield (
                            f"cleanup controller has no permission to {verb} kind "
                            f"{kind}"
                        )


def is_schedule(text: str) -> bool:
    """Return whether robfig's standard parser accepts it: 5 fields or ``@...``."""
    lowered = text.lower()
    if text.startswith("@every "):
        return parse_duration(text.removeprefix("@every ")) is not None
    if text.startswith("@"):
        return text in _DESCRIPTORS
    fields = lowered.split()
    if len(fields) != len(_FIELDS):
        return False
    return all(
        all(_is_range(part, *bounds) for part in field.split(","))
        for field, bounds in zip(fields, _FIELDS, strict=True)
    )


def _is_range(text: str, low: int, high: int, names: dict[str, int]) -> bool:
    found = _RANGE.fullmatch(text)
    if found is None:
        return False
    first, last, step = found.groups()
    if step is not None and int(step) == 0:
        return False
    if first in ("*", "?"):
        return last is None
    start = _number(first, names)
    end = start if last is None else _number(last, names)
    return start is not None and end is not None and low <= start <= end <= high


def _number(text: str, names: dict[str, int]) -> int | None:
    if text in names:
        return names[text]
    return int(text) if text.isdigit() else None


def _covers_match(spec: CleanupSpec) -> bool:
    exclude = spec.exclude
    if exclude is None or exclude.all or spec.match.all:
        return False
    if spec.match.any and exclude.any:
        return any(one in exclude.any for one in spec.match.any)
    return exclude != MatchFilters()
