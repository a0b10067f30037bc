"""Check a Pod against each control of the baseline standard.

Room: program.pod_security. Takes: Pod. Gives: a Failure, or None if the Pod complies.
Next: standard, which selects the version.
Source: k8s.io/pod-security-admission v0.34 with the field errors of Kyverno's fork.
"""

import json
from typing import Final

from kyverno_mp.program.pod_security.failure import (
    Failure,
    FieldError,
    containers,
    forbidden,
    plural,
    quoted,
)
from kyverno_mp.program.pod_security.pod import Pod

APP_ARMOR_PREFIX: Final = "container.apparmor.security.beta.kubernetes.io/"
SECCOMP_POD: Final = "seccomp.security.alpha.kubernetes.io/pod"
SECCOMP_PREFIX: Final = "container.seccomp.security.alpha.kubernetes.io/"
PROFILE_TYPES: Final = frozenset({"RuntimeDefault", "Localhost"})
"""Allowed seccomp and AppArmor profile types."""
CAPABILITIES: Final = frozenset(
    {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
)
SYSCTLS_1_0: Final = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_unprivileged_port_start",
    }
)
SYSCTLS_1_27: Final = SYSCTLS_1_0 | {"net.ipv4.ip_local_reserved_ports"}
SYSCTLS_1_29: Final = SYSCTLS_1_27 | {
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}
SYSCTLS_1_32: Final = SYSCTLS_1_29 | {"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}
SE_LINUX_TYPES_1_0: Final = frozenset(
    {"", "container_t", "container_init_t", "container_kvm_t"}
)
SE_LINUX_TYPES_1_31: Final = SE_LINUX_TYPES_1_0 | {"container_engine_t"}


def app_armor_annotation_allowed(value: str) -> bool:
    """Return whether an AppArmor annotation names an allowed profile."""
    return value in {"", "runtime/default"} or value.startswith("localhost/")


def seccomp_annotation_allowed(value: str) -> bool:
    """Return whether a seccomp annotation (before 1.19) names an allowed profile."""
    return value in {"runtime/default", "docker/default"} or value.startswith(
        "localhost/"
    )


def app_armor(pod: Pod) -> Failure | None:
    """AppArmor: profile types and annotations."""
    setters, errors, bad = _profiles(pod, "app_armor", "appArmorProfile")
    annotations = sorted(
        (key, value)
        for key, value in pod.annotations.items()
        if key.startswith(APP_ARMOR_PREFIX) and not app_armor_annotation_allowed(value)
    )
    values = sorted(bad)
    if annotations:
        values.extend(f"{key}={_go_quoted(value)}" for key, value in annotations)
        errors.extend(
            forbidden(f"metadata.annotations[{key}]", value)
            for key, value in annotations
        )
        setters.append(plural("annotation", "annotations", len(annotations)))
    if not setters:
        return None
    return Failure(
        plural(
            "forbidden AppArmor profile", "forbidden AppArmor profiles", len(values)
        ),
        f"{' and '.join(setters)} must not set AppArmor profile type to "
        f"{quoted(values)}",
        errors,
    )


def capabilities(pod: Pod) -> Failure | None:
    """Capabilities: nothing added beyond the default set."""
    names: list[str] = []
    errors: list[FieldError] = []
    non_default: set[str] = set()
    for container, path in pod.visit():
        added, _ = container.security.capabilities or ((), ())
        bad = set(added) - CAPABILITIES
        if bad:
            non_default |= bad
            names.append(container.name)
            field = f"{path}.securityContext.capabilities.add"
            errors.append(forbidden(field, tuple(sorted(bad))))
    if not names:
        return None
    return Failure(
        "non-default capabilities",
        f"{containers(names)} must not include {quoted(sorted(non_default))} in "
        "securityContext.capabilities.add",
        errors,
    )


def host_namespaces(pod: Pod) -> Failure | None:
    """Host Namespaces: not shared."""
    if not pod.host_namespaces:
        return None
    return Failure(
        "host namespaces",
        ", ".join(f"{flag}=true" for flag in pod.host_namespaces),
        [forbidden(f"spec.{flag}", bad=True) for flag in pod.host_namespaces],
    )


def host_path_volumes(pod: Pod) -> Failure | None:
    """HostPath Volumes: none."""
    bad = [(i, v) for i, v in enumerate(pod.volumes) if "hostPath" in v.sources]
    if not bad:
        return None
    return Failure(
        "hostPath volumes",
        f"{plural('volume', 'volumes', len(bad))} {quoted(v.name for _, v in bad)}",
        [forbidden(f"spec.volumes[{i}].hostPath", v.host_path) for i, v in bad],
    )


def host_ports(pod: Pod) -> Failure | None:
    """Host Ports: none."""
    names: list[str] = []
    errors: list[FieldError] = []
    for container, path in pod.visit():
        bad = [(i, port) for i, port in enumerate(container.host_ports) if port]
        if bad:
            names.append(container.name)
            errors.extend(
                forbidden(f"{path}.ports[{i}].hostPort", port) for i, port in bad
            )
    if not names:
        return None
    ports = sorted({str(error.bad) for error in errors})
    return Failure(
        "hostPort",
        f"{containers(names)} {plural('uses', 'use', len(names))} "
        f"{plural('hostPort', 'hostPorts', len(ports))} {', '.join(ports)}",
        errors,
    )


def hosts(pod: Pod) -> Failure | None:
    """Hosts of probes and lifecycle hooks: must not be set (since 1.34)."""
    bad = [container for container, _ in pod.visit() if container.hosts]
    if not bad:
        return None
    names = sorted({container.name for container in bad})
    listed = sorted({host for container in bad for host in container.hosts})
    # KYVERNO: this control has no field errors, so no exclude can remove it (6.5).
    return Failure(
        "probe or lifecycle host",
        f"{containers(names)} {plural('uses', 'use', len(names))} "
        f"{plural('probe or lifecycle host', 'probe or lifecycle hosts', len(listed))} "
        f"{quoted(listed)}",
        [],
    )


def privileged(pod: Pod) -> Failure | None:
    """Privileged Containers: none."""
    bad = [(c, p) for c, p in pod.visit() if c.security.privileged]
    if not bad:
        return None
    return Failure(
        "privileged",
        f"{containers([c.name for c, _ in bad])} must not set "
        "securityContext.privileged=true",
        [forbidden(f"{path}.securityContext.privileged", bad=True) for _, path in bad],
    )


def proc_mount(pod: Pod) -> Failure | None:
    """/proc Mount Type: the default one."""
    names: list[str] = []
    errors: list[FieldError] = []
    mounts: set[str] = set()
    for container, path in pod.visit():
        mount = container.security.proc_mount
        if mount is not None and mount != "Default":
            names.append(container.name)
            mounts.add(mount)
            errors.append(forbidden(f"{path}.securityContext.procMount", mount))
    if not names:
        return None
    return Failure(
        "procMount",
        f"{containers(names)} must not set securityContext.procMount to "
        f"{quoted(sorted(mounts))}",
        errors,
    )


def se_linux_1_0(pod: Pod) -> Failure | None:
    """SELinux: allowed types, no user, no role."""
    return _se_linux(pod, SE_LINUX_TYPES_1_0)


def se_linux_1_31(pod: Pod) -> Failure | None:
    """SELinux, with one additional type."""
    return _se_linux(pod, SE_LINUX_TYPES_1_31)


def _se_linux(pod: Pod, types: frozenset[str]) -> Failure | None:
    setters: list[str] = []
    errors: list[FieldError] = []
    if pod.security.se_linux:
        errors = _se_linux_errors(pod.security.se_linux, "spec", types)
        setters = ["pod"] if errors else []
    names: list[str] = []
    for container, path in pod.visit():
        if container.security.se_linux:
            field_errors = _se_linux_errors(container.security.se_linux, path, types)
            errors.extend(field_errors)
            if field_errors:
                names.append(container.name)
    if names:
        setters.append(containers(names))
    if not setters:
        return None
    bad = sorted({str(e.bad) for e in errors if e.field.endswith(".type")})
    data = [f"{plural('type', 'types', len(bad))} {quoted(bad)}"] if bad else []
    data.extend(
        f"{part} may not be set"
        for part in ("user", "role")
        if any(error.field.endswith(f".{part}") for error in errors)
    )
    return Failure(
        "seLinuxOptions",
        f"{' and '.join(setters)} set forbidden securityContext.seLinuxOptions: "
        f"{'; '.join(data)}",
        errors,
    )


def _se_linux_errors(
    options: tuple[str, str, str], path: str, types: frozenset[str]
) -> list[FieldError]:
    kind, user, role = options
    field = f"{path}.securityContext.seLinuxOptions"
    errors = [] if kind in types else [forbidden(f"{field}.type", kind)]
    if user:
        errors.append(forbidden(f"{field}.user", user))
    if role:
        errors.append(forbidden(f"{field}.role", role))
    return errors


def seccomp_1_0(pod: Pod) -> Failure | None:
    """Seccomp: annotations, before the field existed."""
    keys = [SECCOMP_POD, *(SECCOMP_PREFIX + c.name for c, _ in pod.visit())]
    bad: dict[str, list[FieldError]] = {}
    for key in keys:
        value = pod.annotations.get(key)
        if value is not None and not seccomp_annotation_allowed(value):
            error = forbidden(f"metadata.annotations[{key}]", value)
            bad.setdefault(f"{key}={_go_quoted(value)}", []).append(error)
    if not bad:
        return None
    values = sorted(bad)
    return Failure(
        "seccompProfile",
        f"forbidden {plural('annotation', 'annotations', len(values))} "
        f"{', '.join(values)}",
        [error for value in values for error in bad[value]],
    )


def seccomp_1_19(pod: Pod) -> Failure | None:
    """Seccomp: allowed profile types, if the field is set."""
    setters, errors, bad = _profiles(pod, "seccomp", "seccompProfile")
    return seccomp_failure(setters, errors, bad) if setters else None


def seccomp_failure(
    setters: list[str], errors: list[FieldError], bad: set[str]
) -> Failure:
    """Return the failure for forbidden profile types."""
    return Failure(
        "seccompProfile",
        f"{' and '.join(setters)} must not set securityContext.seccompProfile.type to "
        f"{quoted(sorted(bad))}",
        errors,
    )


def bad_seccomp_profiles(pod: Pod) -> tuple[list[str], list[FieldError], set[str]]:
    """Return the setters of forbidden seccomp profiles, their fields and values."""
    return _profiles(pod, "seccomp", "seccompProfile")


def _profiles(
    pod: Pod, attribute: str, field: str
) -> tuple[list[str], list[FieldError], set[str]]:
    setters: list[str] = []
    errors: list[FieldError] = []
    kind = getattr(pod.security, attribute)
    if kind is not None and kind not in PROFILE_TYPES:
        setters.append("pod")
        errors.append(forbidden(f"spec.securityContext.{field}.type", kind))
    names: list[str] = []
    for container, path in pod.visit():
        kind = getattr(container.security, attribute)
        if kind is not None and kind not in PROFILE_TYPES:
            names.append(container.name)
            errors.append(forbidden(f"{path}.securityContext.{field}.type", kind))
    if names:
        setters.append(containers(names))
    return setters, errors, {str(error.bad) for error in errors}


def sysctls_1_0(pod: Pod) -> Failure | None:
    """Sysctls: the safe subset."""
    return _sysctls(pod, SYSCTLS_1_0)


def sysctls_1_27(pod: Pod) -> Failure | None:
    """Sysctls: the safe subset of 1.27."""
    return _sysctls(pod, SYSCTLS_1_27)


def sysctls_1_29(pod: Pod) -> Failure | None:
    """Sysctls: the safe subset of 1.29."""
    return _sysctls(pod, SYSCTLS_1_29)


def sysctls_1_32(pod: Pod) -> Failure | None:
    """Sysctls: the safe subset of 1.32."""
    return _sysctls(pod, SYSCTLS_1_32)


def _sysctls(pod: Pod, allowed: frozenset[str]) -> Failure | None:
    names = pod.security.sysctls
    bad = [(i, name) for i, name in enumerate(names) if name not in allowed]
    if not bad:
        return None
    return Failure(
        "forbidden sysctls",
        ", ".join(name for _, name in bad),
        [forbidden(f"spec.securityContext.sysctls[{i}].name", name) for i, name in bad],
    )


def host_process(pod: Pod) -> Failure | None:
    """HostProcess: no Windows host processes."""
    field = "securityContext.windowsOptions.hostProcess"
    setters: list[str] = []
    errors: list[FieldError] = []
    if pod.security.host_process:
        setters.append("pod")
        errors.append(forbidden(f"spec.{field}", bad=True))
    bad = [(c, p) for c, p in pod.visit() if c.security.host_process]
    if bad:
        setters.append(containers([c.name for c, _ in bad]))
        errors.extend(forbidden(f"{path}.{field}", bad=True) for _, path in bad)
    if not setters:
        return None
    return Failure(
        "hostProcess", f"{' and '.join(setters)} must not set {field}=true", errors
    )


def _go_quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
