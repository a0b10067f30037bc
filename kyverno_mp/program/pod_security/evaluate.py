"""Evaluate ``validate.podSecurity`` for a Pod or a Pod controller.

Room: program.pod_security. Takes: PodSecurityIR, resource as JSON, controls of matching
exceptions. Gives: passes(), the fast path, or evaluate() with upstream's messages and
the report properties. Next: program/bodies/pod_security.
Source: docs/behaviour/engine 6.5, 8.7; Kyverno validate_pss.go, report/results.go.
"""

import json
from dataclasses import dataclass, field
from typing import Final

import re2

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.ir.rules import PodSecurityExcludeIR, PodSecurityIR
from kyverno_mp.program.pod_security.conforming import conforms, facts_of
from kyverno_mp.program.pod_security.exclude import without_excluded
from kyverno_mp.program.pod_security.failure import Failure
from kyverno_mp.program.pod_security.pod import TEMPLATE_KINDS, read_pod
from kyverno_mp.program.pod_security.standard import (
    CONTROL_OF_CHECK,
    minor_version,
    violations,
)
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.containers import count_containers
from kyverno_mp.values.kubernetes.image import ImageSettings, extract_images
from kyverno_mp.values.spending import FREE, Spender

# SAFETY: RE2, because the names come from requests, and a name may be all spaces.
_CONTAINER_NAMES: Final = re2.compile(r"containers?\s*(.*?)\s*must")
_IMAGES: Final = ImageSettings()
STEPS_PER_CONTAINER: Final = 300
"""Steps for all checks, with messages, of a container that fails every check."""
_BYTES_PER_CONTAINER: Final = 4096
_JSON_ESCAPES: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


@dataclass(frozen=True, slots=True)
class PodSecurityVerdict:
    """The verdict of the standard on one resource.

    ``exempted``: the resource passes only because of exceptions, so the rule is
    skipped. ``properties``: standard, version, controls, controlsJSON; {} unless the
    resource fails.
    """

    passed: bool
    message: str
    properties: dict[str, str] = field(default_factory=dict)
    exempted: bool = False


def passes(
    ir: PodSecurityIR, resource: dict[str, Json], kind: str, spend: Spender = FREE
) -> bool:
    """Return whether every control passes or is excluded; ignores exceptions.

    False may be wrong for resources with an unusual structure; ``evaluate`` then
    decides.
    """
    try:
        if conforms(resource, kind, facts_of(ir.level, ir.version)):
            return True
        return bool(ir.exclude) and not _remaining(ir, resource, kind, (), spend)
    except ExpressionFailed:
        return False


def evaluate(  # noqa: PLR0913 - independent facts, keyword-only
    ir: PodSecurityIR,
    resource: dict[str, Json],
    kind: str,
    *,
    rule: str,
    exempt: tuple[PodSecurityExcludeIR, ...] = (),
    images: ImageSettings = _IMAGES,
    spend: Spender = FREE,
) -> PodSecurityVerdict:
    """Return the verdict with upstream's message.

    ``exempt``: the podSecurity controls of all matching exceptions. ``images``:
    settings to complete the references of the offending images in ``controlsJSON``.
    ``spend`` charges for excludes and messages.

    Raises: ExpressionFailed for other kinds, a malformed Pod or an invalid version.
    """
    failures = _remaining(ir, resource, kind, (), spend)
    if not failures:
        return PodSecurityVerdict(True, f"Validation rule '{rule}' passed.")
    if exempt:
        failures = _remaining(ir, resource, kind, exempt, spend)
        if not failures:
            return PodSecurityVerdict(True, "", exempted=True)
    _name_fields_of_template(failures, kind)
    return PodSecurityVerdict(
        False,
        f"Validation rule '{rule}' failed. It violates PodSecurity "
        f'"{ir.level}:{ir.version}": {"".join(f.text() for f in failures)}',
        _properties(ir, failures, _references(resource, kind, images)),
    )


def _remaining(
    ir: PodSecurityIR,
    resource: dict[str, Json],
    kind: str,
    exempt: tuple[PodSecurityExcludeIR, ...],
    spend: Spender,
) -> list[Failure]:
    count = count_containers(resource)
    spend.charge(STEPS_PER_CONTAINER * count)
    spend.charge_bytes(_BYTES_PER_CONTAINER * count)
    pod = read_pod(resource, kind)
    minor = minor_version(ir.version)
    failures = violations(pod, ir.level, minor)
    excludes = (*ir.exclude, *exempt)
    return without_excluded(failures, excludes, pod, ir.level, minor, spend)


def _name_fields_of_template(failures: list[Failure], kind: str) -> None:
    spec = "spec"
    if kind in TEMPLATE_KINDS:
        spec = "spec.template.spec"
    elif kind == "CronJob":
        spec = "spec.jobTemplate.spec.template.spec"
    for failure in failures:
        # KYVERNO: every occurrence of the text is replaced; ``metadata`` becomes the
        # template's metadata even for a Pod (6.5).
        failure.errors = [
            error._replace(
                field=error.field.replace("spec", spec).replace(
                    "metadata", "spec.template.metadata"
                )
            )
            for error in failure.errors
        ]


def _references(
    resource: dict[str, Json], kind: str, settings: ImageSettings
) -> dict[str, str]:
    """Return the image reference of each container, by name."""
    try:
        images = extract_images(resource, kind, settings=settings)
    except ExpressionFailed:
        return {}
    references: dict[str, str] = {}
    for listed in ("ephemeralContainers", "initContainers", "containers"):
        for name, image in images.get(listed, {}).items():
            references[name] = image["reference"]
    return references


def _properties(
    ir: PodSecurityIR, failures: list[Failure], references: dict[str, str]
) -> dict[str, str]:
    controls = [
        {
            "ID": failure.check,
            "Name": CONTROL_OF_CHECK.get(failure.check, ""),
            "Images": _images(failure, references),
        }
        for failure in failures
    ]
    encoded = json.dumps(controls, ensure_ascii=False, separators=(",", ":"))
    return {
        "standard": ir.level,
        "version": ir.version,
        "controls": ",".join(failure.check for failure in failures),
        "controlsJSON": encoded.translate(_JSON_ESCAPES),
    }


def _images(failure: Failure, references: dict[str, str]) -> list[str] | None:
    # KYVERNO: the containers are parsed from the detail text (validate_pss.go).
    match = _CONTAINER_NAMES.search(failure.detail)
    if match is None:
        return None
    names = match.group(1).replace('"', "").replace(" ", "").split(",")
    return [references.get(name, name) for name in names]
