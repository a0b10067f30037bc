"""Remove excluded controls from the violations of a Pod.

Room: program.pod_security. Takes: excludes of the rule or of exceptions, Pod, Failures.
Gives: the Failures that remain. Next: evaluate.
May touch: the error lists of the given Failures.
Source: docs/behaviour/engine 6.5; Kyverno pkg/pss/evaluate.go (exemptExclusions).
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from kyverno_mp.ir.rules import PodSecurityExcludeIR
from kyverno_mp.program.pod_security.failure import Failure, FieldError
from kyverno_mp.program.pod_security.pod import CONTAINER_LISTS, Container, Pod
from kyverno_mp.program.pod_security.standard import CHECKS_OF_CONTROL, violations
from kyverno_mp.values.kubernetes.image_hosts import is_image_like
from kyverno_mp.values.spending import FREE, Spender
from kyverno_mp.values.wildcard import matches

_STEPS_PER_CONTAINER: Final = 200
_SCAN_STEPS: Final = 5
_MATCH_STEPS: Final = 4
_DIGITS: Final = re.compile(r"[0-9]+")
_CONTAINER: Final = re.compile(r"spec\.([a-zA-Z]+)\[([0-9]+)\]")
_FAKE: Final[dict[str, tuple[Container, ...]]] = {
    "containers": (Container(name="fake"),)
}


def without_excluded(
    failures: list[Failure],
    excludes: Iterable[PodSecurityExcludeIR],
    pod: Pod,
    level: str,
    minor: int,
    spend: Spender = FREE,
) -> list[Failure]:
    """Return the failures that no exclude removes; modifies their error lists."""
    for exclude in excludes:
        if not failures:
            break
        failures = _without(failures, exclude, pod, (level, minor), spend)
    return failures


def _without(
    failures: list[Failure],
    exclude: PodSecurityExcludeIR,
    pod: Pod,
    standard: tuple[str, int],
    spend: Spender,
) -> list[Failure]:
    for listed in pod.containers.values():
        spend.charge(_STEPS_PER_CONTAINER * len(listed))
    variant = _variant(pod, exclude, spend)
    ids = CHECKS_OF_CONTROL.get(exclude.control_name, ())
    remaining = {failure.check: failure for failure in failures}
    for excluded in violations(variant, *standard):
        if excluded.check not in ids:
            continue
        for error in excluded.errors:
            # KYVERNO: each error of the variant Pod removes at most one error (6.5).
            failure = remaining.get(excluded.check)
            if (
                failure is None
                or not failure.errors
                or not _covers(exclude, error, spend)
            ):
                continue
            _lift(
                failure.errors,
                error,
                pod,
                variant,
                by_name=bool(exclude.images),
                spend=spend,
            )
            if not failure.errors:
                del remaining[excluded.check]
    # KYVERNO: upstream's order is random (a Go map); ours is fixed.
    return list(remaining.values())


def _variant(pod: Pod, exclude: PodSecurityExcludeIR, spend: Spender) -> Pod:
    """Return a Pod with fake or selected containers, whose violations are excluded."""
    if not exclude.images:
        return replace(pod, containers=_FAKE)
    chosen = {
        listed: tuple(
            container
            for container in pod.containers.get(listed, ())
            if _any_matches(exclude.images, container.image, spend, is_image_like)
        )
        for listed in CONTAINER_LISTS
    }
    return Pod(annotations={}, containers=chosen)


def _covers(exclude: PodSecurityExcludeIR, error: FieldError, spend: Spender) -> bool:
    spend.charge(_SCAN_STEPS)
    field = _DIGITS.sub("*", error.field)
    if exclude.restricted_field and field != exclude.restricted_field:
        return False
    return not exclude.values or all(
        _any_matches(exclude.values, bad, spend) for bad in error.bad_values()
    )


def _lift(
    errors: list[FieldError],
    excluded: FieldError,
    pod: Pod,
    variant: Pod,
    *,
    by_name: bool,
    spend: Spender,
) -> None:
    """Remove the first error of the field (with images: of the named container)."""
    field = _DIGITS.sub("*", excluded.field)
    name = _container_name(variant, excluded.field) if by_name else None
    for index, error in enumerate(errors):
        spend.charge(_SCAN_STEPS)
        if _DIGITS.sub("*", error.field) != field:
            continue
        if by_name and _container_name(pod, error.field) not in {None, name or ""}:
            continue
        # KYVERNO: the last error replaces the removed one.
        errors[index] = errors[-1]
        errors.pop()
        return


def _container_name(pod: Pod, field: str) -> str | None:
    match = _CONTAINER.match(field)
    if match is None or match.group(1) not in CONTAINER_LISTS:
        return None
    return pod.containers[match.group(1)][int(match.group(2))].name


def _any_matches(
    patterns: tuple[str, ...],
    value: str,
    spend: Spender,
    test: Callable[[str, str], bool] = matches,
) -> bool:
    for pattern in patterns:
        spend.charge(_MATCH_STEPS + (len(pattern) * len(value) >> 2))
        if test(pattern, value):
            return True
    return False
