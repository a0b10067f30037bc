"""Check a Pod against each control that the restricted standard adds.

Room: program.pod_security. Takes: Pod. Gives: a Failure, or None if the Pod complies.
Next: standard, which selects the version.
Source: k8s.io/pod-security-admission v0.34 with the field errors of Kyverno's fork.
"""

from typing import Final

from kyverno_mp.program.pod_security.baseline import (
    bad_seccomp_profiles,
    seccomp_failure,
)
from kyverno_mp.program.pod_security.failure import (
    FORBIDDEN,
    Failure,
    FieldError,
    containers,
    forbidden,
    plural,
    quoted,
    required,
)
from kyverno_mp.program.pod_security.pod import Pod

VOLUME_SOURCES: Final = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
"""Allowed volume types."""
_FORBIDDEN_SOURCES: Final = (
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
)


def allow_privilege_escalation_1_8(pod: Pod) -> Failure | None:
    """Privilege Escalation: every container must forbid it."""
    names: list[str] = []
    errors: list[FieldError] = []
    for container, path in pod.visit():
        field = f"{path}.securityContext.allowPrivilegeEscalation"
        if not container.security.present:
            errors.append(required(field))
        elif container.security.allow_privilege_escalation is None:
            errors.append(forbidden(field, "nil"))
        elif container.security.allow_privilege_escalation:
            errors.append(forbidden(field, bad=True))
        else:
            continue
        names.append(container.name)
    if not names:
        return None
    return Failure(
        "allowPrivilegeEscalation != false",
        f"{containers(names)} must set securityContext.allowPrivilegeEscalation=false",
        errors,
    )


def allow_privilege_escalation_1_25(pod: Pod) -> Failure | None:
    """Privilege Escalation, except for Windows."""
    return None if pod.windows else allow_privilege_escalation_1_8(pod)


def capabilities_1_22(pod: Pod) -> Failure | None:
    """Capabilities: all dropped, only NET_BIND_SERVICE may be added."""
    missing: list[str] = []
    missing_errors: list[FieldError] = []
    adding: list[str] = []
    adding_errors: list[FieldError] = []
    not_allowed: set[str] = set()
    for container, path in pod.visit():
        field = f"{path}.securityContext.capabilities"
        added, dropped = container.security.capabilities or ((), ())
        if "ALL" not in dropped:
            missing.append(container.name)
            missing_errors.append(
                forbidden(f"{field}.drop", tuple(sorted(set(dropped))))
                if dropped
                else required(f"{field}.drop")
            )
        bad = set(added) - {"NET_BIND_SERVICE"}
        if bad:
            not_allowed |= bad
            adding.append(container.name)
            adding_errors.append(forbidden(f"{field}.add", tuple(sorted(bad))))
    details = []
    if missing:
        details.append(
            f'{containers(missing)} must set securityContext.capabilities.drop=["ALL"]'
        )
    if adding:
        details.append(
            f"{containers(adding)} must not include {quoted(sorted(not_allowed))} in "
            "securityContext.capabilities.add"
        )
    if not details:
        return None
    errors = missing_errors + adding_errors
    return Failure("unrestricted capabilities", "; ".join(details), errors)


def capabilities_1_25(pod: Pod) -> Failure | None:
    """Capabilities, except for Windows."""
    return None if pod.windows else capabilities_1_22(pod)


def volumes(pod: Pod) -> Failure | None:
    """Volume Types: only those that Kubernetes manages."""
    names: list[str] = []
    kinds: set[str] = set()
    errors: list[FieldError] = []
    for index, volume in enumerate(pod.volumes):
        if not volume.sources.isdisjoint(VOLUME_SOURCES):
            continue
        kind = next((k for k in _FORBIDDEN_SOURCES if k in volume.sources), "unknown")
        names.append(volume.name)
        kinds.add(kind)
        errors.append(FieldError(FORBIDDEN, f"spec.volumes[{index}].{kind}"))
    if not names:
        return None
    return Failure(
        "restricted volume types",
        f"{plural('volume', 'volumes', len(names))} {quoted(names)} "
        f"{plural('uses', 'use', len(names))} "
        f"{plural('restricted volume type', 'restricted volume types', len(kinds))} "
        f"{quoted(sorted(kinds))}",
        errors,
    )


def run_as_non_root(pod: Pod) -> Failure | None:
    """Running as Non-root: required for the Pod or for every container."""
    field = "securityContext.runAsNonRoot"
    of_pod = pod.security.run_as_non_root
    setters = ["pod"] if of_pod is False else []
    errors = [forbidden(f"spec.{field}", bad=False)] if of_pod is False else []
    explicit: list[str] = []
    implicit: list[str] = []
    implicit_errors: list[FieldError] = []
    for container, path in pod.visit():
        of_container = container.security.run_as_non_root
        if of_container is False:
            explicit.append(container.name)
            errors.append(forbidden(f"{path}.{field}", bad=False))
        elif of_container is None and of_pod is not True:
            implicit.append(container.name)
            implicit_errors.append(required(f"{path}.{field}"))
    if explicit:
        setters.append(containers(explicit))
    details = []
    if setters:
        details.append(f"{' and '.join(setters)} must not set {field}=false")
    if implicit:
        details.append(f"pod or {containers(implicit)} must set {field}=true")
    if not details:
        return None
    # KYVERNO: Kyverno's fork lists both kinds of errors; upstream stops at the first.
    errors += implicit_errors
    return Failure("runAsNonRoot != true", "\n".join(details), errors)


def run_as_user(pod: Pod) -> Failure | None:
    """Running as Non-root user: runAsUser must not be 0."""
    setters: list[str] = []
    errors: list[FieldError] = []
    if pod.security.run_as_user == 0:
        setters.append("pod")
        errors.append(forbidden("spec.securityContext.runAsUser", 0))
    bad = [(c, p) for c, p in pod.visit() if c.security.run_as_user == 0]
    if bad:
        setters.append(containers([c.name for c, _ in bad]))
        errors.extend(forbidden(f"{p}.securityContext.runAsUser", 0) for _, p in bad)
    if not setters:
        return None
    return Failure(
        "runAsUser=0", f"{' and '.join(setters)} must not set runAsUser=0", errors
    )


def seccomp_1_19(pod: Pod) -> Failure | None:
    """Seccomp: the Pod or every container must set an allowed profile."""
    setters, errors, bad = bad_seccomp_profiles(pod)
    if setters:
        return seccomp_failure(setters, errors, bad)
    if pod.security.seccomp is not None:
        return None
    unset = [
        (container, path)
        for container, path in pod.visit()
        if container.security.seccomp is None
    ]
    if not unset:
        return None
    return Failure(
        "seccompProfile",
        f"pod or {containers([c.name for c, _ in unset])} must set "
        'securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"',
        [required(f"{path}.securityContext.seccompProfile.type") for _, path in unset],
    )


def seccomp_1_25(pod: Pod) -> Failure | None:
    """Seccomp, except for Windows."""
    return None if pod.windows else seccomp_1_19(pod)
