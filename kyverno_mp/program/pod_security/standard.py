"""Select the controls of a level and a version, and run them.

Room: program.pod_security. Takes: level and version as written, Pod. Gives: Failures in
the order of the controls' ids. Next: evaluate, exclude.
Source: docs/behaviour/engine 6.5; Kyverno pkg/pss/evaluate.go (evaluatePSS,
ParseVersion).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.program.pod_security import baseline, restricted
from kyverno_mp.program.pod_security.failure import Failure
from kyverno_mp.program.pod_security.pod import Pod

LATEST: Final = 2**62
"""A minor version larger than any other."""
_MINOR_MAX: Final = 2**63 - 1
_VERSIONS_REMEMBERED_MAX: Final = 64

Control = Callable[[Pod], Failure | None]


class _Check(NamedTuple):
    """One check; ``versions``: each implementation's first minor version, sorted."""

    id: str
    is_baseline: bool
    versions: tuple[tuple[int, Control], ...]


def _baseline(check: str, *versions: tuple[int, Control]) -> _Check:
    return _Check(check, is_baseline=True, versions=versions)


def _restricted(check: str, *versions: tuple[int, Control]) -> _Check:
    return _Check(check, is_baseline=False, versions=versions)


_CHECKS: Final = (
    _restricted(
        "allowPrivilegeEscalation",
        (8, restricted.allow_privilege_escalation_1_8),
        (25, restricted.allow_privilege_escalation_1_25),
    ),
    _baseline("appArmorProfile", (0, baseline.app_armor)),
    _baseline("capabilities_baseline", (0, baseline.capabilities)),
    _restricted(
        "capabilities_restricted",
        (22, restricted.capabilities_1_22),
        (25, restricted.capabilities_1_25),
    ),
    _baseline("hostNamespaces", (0, baseline.host_namespaces)),
    _baseline("hostPathVolumes", (0, baseline.host_path_volumes)),
    _baseline("hostPorts", (0, baseline.host_ports)),
    _baseline("hostProbesAndHostLifecycle", (34, baseline.hosts)),
    _baseline("privileged", (0, baseline.privileged)),
    _baseline("procMount", (0, baseline.proc_mount)),
    _restricted("restrictedVolumes", (0, restricted.volumes)),
    _restricted("runAsNonRoot", (0, restricted.run_as_non_root)),
    _restricted("runAsUser", (23, restricted.run_as_user)),
    _baseline(
        "seLinuxOptions", (0, baseline.se_linux_1_0), (31, baseline.se_linux_1_31)
    ),
    _baseline(
        "seccompProfile_baseline",
        (0, baseline.seccomp_1_0),
        (19, baseline.seccomp_1_19),
    ),
    _restricted(
        "seccompProfile_restricted",
        (19, restricted.seccomp_1_19),
        (25, restricted.seccomp_1_25),
    ),
    _baseline(
        "sysctls",
        (0, baseline.sysctls_1_0),
        (27, baseline.sysctls_1_27),
        (29, baseline.sysctls_1_29),
        (32, baseline.sysctls_1_32),
    ),
    _baseline("windowsHostProcess", (0, baseline.host_process)),
)

CHECKS_OF_CONTROL: Final = {
    "Capabilities": ("capabilities_baseline", "capabilities_restricted"),
    "Seccomp": ("seccompProfile_baseline", "seccompProfile_restricted"),
    "Privileged Containers": ("privileged",),
    "Host Ports": ("hostPorts",),
    "/proc Mount Type": ("procMount",),
    "HostProcess": ("windowsHostProcess",),
    "SELinux": ("seLinuxOptions",),
    "Host Namespaces": ("hostNamespaces",),
    "HostPath Volumes": ("hostPathVolumes",),
    "Sysctls": ("sysctls",),
    "AppArmor": ("appArmorProfile",),
    "Privilege Escalation": ("allowPrivilegeEscalation",),
    "Running as Non-root": ("runAsNonRoot",),
    "Running as Non-root user": ("runAsUser",),
    "Volume Types": ("restrictedVolumes",),
}
"""Ids of the checks that an exclude for a control covers."""
CONTROL_OF_CHECK: Final = {
    check: control for control, checks in CHECKS_OF_CONTROL.items() for check in checks
}


def minor_version(version: str) -> int:
    """Return the minor version of a version string; LATEST for "" and ``latest``.

    Raises: ExpressionFailed (``podsecurity.version``).
    """
    if version in {"", "latest"}:
        return LATEST
    digits = version.removeprefix("v1.")
    canonical = digits.isascii() and digits.isdigit() and not digits.startswith("0")
    if digits == version or not (canonical or digits == "0"):
        raise _bad_version()
    # A number with more digits than an int64 is not converted.
    if len(digits) > len(str(_MINOR_MAX)) or int(digits) > _MINOR_MAX:
        raise _bad_version()
    return int(digits)


def violations(pod: Pod, level: str, minor: int) -> list[Failure]:
    """Return the violated checks of a level in a version."""
    failures = []
    for check, control in _controls(level == "baseline", minor):
        failure = control(pod)
        if failure is not None:
            failure.check = check
            failures.append(failure)
    return failures


@lru_cache(maxsize=_VERSIONS_REMEMBERED_MAX)
def _controls(baseline_only: bool, minor: int) -> tuple[tuple[str, Control], ...]:  # noqa: FBT001 - positional for the cache's key
    # KYVERNO: every level except baseline runs all checks, even privileged; and a
    # restricted check does not replace the baseline check that it includes (6.5).
    return tuple(
        (check.id, _at(check, minor))
        for check in _CHECKS
        if check.is_baseline or not baseline_only
    )


def _at(check: _Check, minor: int) -> Control:
    # KYVERNO: a version older than the check itself still runs its first
    # implementation (pkg/pss/evaluate.go), e.g. hostProbesAndHostLifecycle at v1.24.
    chosen = check.versions[0][1]
    for since, control in check.versions:
        if since <= minor:
            chosen = control
    return chosen


def _bad_version() -> ExpressionFailed:
    return ExpressionFailed(
        "podsecurity.version",
        'failed to parse pod security api version: must be "latest" or "v1.x"',
    )
