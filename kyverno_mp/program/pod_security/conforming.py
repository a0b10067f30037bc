"""Decide quickly whether a Pod complies with every control, without messages.

Room: program.pod_security. Takes: a resource as JSON. Gives: bool. Next: evaluate. True
is final; False may also mean an unusual structure that only the explaining path can
evaluate.
Source: docs/behaviour/engine 6.5; tests compare it with ``standard.violations``.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from kyverno_mp.program.pod_security.baseline import (
    APP_ARMOR_PREFIX,
    CAPABILITIES,
    PROFILE_TYPES,
    SE_LINUX_TYPES_1_0,
    SE_LINUX_TYPES_1_31,
    SECCOMP_POD,
    SECCOMP_PREFIX,
    SYSCTLS_1_0,
    SYSCTLS_1_27,
    SYSCTLS_1_29,
    SYSCTLS_1_32,
    app_armor_annotation_allowed,
    seccomp_annotation_allowed,
)
from kyverno_mp.program.pod_security.pod import CONTAINER_LISTS, TEMPLATE_KINDS
from kyverno_mp.program.pod_security.restricted import VOLUME_SOURCES
from kyverno_mp.program.pod_security.standard import minor_version
from kyverno_mp.values.jsonvalue import Json

_FACTS_REMEMBERED_MAX: Final = 64
_WINDOWS_EXEMPT_SINCE: Final = 25
_SECCOMP_FIELD_SINCE: Final = 19
_EMPTY: Final[dict[str, Json]] = {}
_ADDABLE: Final = frozenset({"NET_BIND_SERVICE"})
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_HANDLERS: Final = ("httpGet", "tcpSocket")
_FLOAT_MAX: Final = 1e15
"""Whole floats up to this value are ints in JSON text; larger ones need the slow
path."""


class Facts(NamedTuple):
    """The requirements of a level and a version."""

    restricted: bool
    windows_exempt: bool
    seccomp_annotations: bool
    se_linux_types: frozenset[str]
    sysctls: frozenset[str]


@lru_cache(maxsize=_FACTS_REMEMBERED_MAX)
def facts_of(level: str, version: str) -> Facts:
    """Return a standard's facts; raises ExpressionFailed for an invalid version."""
    minor = minor_version(version)
    sysctls = SYSCTLS_1_0
    for since, names in ((27, SYSCTLS_1_27), (29, SYSCTLS_1_29), (32, SYSCTLS_1_32)):
        sysctls = names if since <= minor else sysctls
    return Facts(
        restricted=level != "baseline",
        windows_exempt=minor >= _WINDOWS_EXEMPT_SINCE,
        seccomp_annotations=minor < _SECCOMP_FIELD_SINCE,
        se_linux_types=SE_LINUX_TYPES_1_31 if minor >= 31 else SE_LINUX_TYPES_1_0,  # noqa: PLR2004 - the version is in the set's name
        sysctls=sysctls,
    )


def conforms(resource: dict[str, Json], kind: str, facts: Facts) -> bool:
    """Return whether the Pod, or the controller's template, complies with all controls.

    Cost: about 2 us per container. PERF: it creates no records or strings.
    """
    try:
        if kind == "Pod":
            holder = meta = resource
        elif kind in TEMPLATE_KINDS:
            holder = meta = _part(_part(resource, "spec"), "template")
        elif kind == "CronJob":
            meta = _part(_part(resource, "spec"), "jobTemplate")
            holder = _part(_part(meta, "spec"), "template")
        else:
            return False
        annotations = _part(meta, "metadata").get("annotations")
        return (
            annotations is None or _annotations_conform(annotations, facts)
        ) and _spec_conforms(_part(holder, "spec"), facts)
    except (AttributeError, TypeError):
        # The type of a field differs from Kubernetes: the slow path decides.
        return False


def _part(holder: dict[str, Json], key: str) -> dict[str, Json]:
    part: dict[str, Json] | None = holder.get(key)
    return _EMPTY if part is None else part


def _annotations_conform(annotations: dict[str, Json], facts: Facts) -> bool:
    for key, value in annotations.items():
        if type(value) is not str:
            return False
        if key.startswith(APP_ARMOR_PREFIX) and not app_armor_annotation_allowed(value):
            return False
        if (
            facts.seccomp_annotations
            and (key == SECCOMP_POD or key.startswith(SECCOMP_PREFIX))
            and not seccomp_annotation_allowed(value)
        ):
            return False
    return True


def _spec_conforms(spec: dict[str, Json], facts: Facts) -> bool:
    for flag in ("hostNetwork", "hostPID", "hostIPC"):
        shared = spec.get(flag)
        if shared is not None and shared is not False:
            return False
    context = spec.get("securityContext")
    if context is None:
        context = _EMPTY
    elif not _pod_context_conforms(context, facts):
        return False
    volumes = spec.get("volumes")
    if volumes is not None and not _volumes_conform(volumes, facts):
        return False
    needs = facts.restricted and _Needs(
        strict=not (
            facts.windows_exempt and _part(spec, "os").get("name") == "windows"
        ),
        non_root=context.get("runAsNonRoot") is None,
        seccomp=context.get("seccompProfile") is None,
    )
    for listed in CONTAINER_LISTS:
        containers = spec.get(listed)
        if containers is None:
            continue
        if type(containers) is not list:
            return False
        for container in containers:
            if not _container_conforms(container, facts, needs or None):
                return False
    return True


class _Needs(NamedTuple):
    """The requirements for each container at restricted level."""

    strict: bool
    """False for Windows, where capabilities, escalation and seccomp do not exist."""
    non_root: bool
    seccomp: bool


def _container_conforms(
    container: dict[str, Json], facts: Facts, needs: _Needs | None
) -> bool:
    context = container.get("securityContext")
    if context is None:
        context = _EMPTY
    else:
        for key, value in context.items():
            conforms = _CONTAINER_FIELDS.get(key)
            if (
                conforms is not None
                and value is not None
                and not conforms(value, facts)
            ):
                return False
    if needs is not None:
        if needs.non_root and context.get("runAsNonRoot") is None:
            return False
        if needs.strict and not _strictly_conforms(context, needs):
            return False
    return _ports_and_hosts_conform(container)


def _strictly_conforms(context: dict[str, Json], needs: _Needs) -> bool:
    if context.get("allowPrivilegeEscalation") is not False:
        return False
    if needs.seccomp and context.get("seccompProfile") is None:
        return False
    capabilities = context.get("capabilities")
    if capabilities is None or "ALL" not in (capabilities.get("drop") or ()):
        return False
    added = capabilities.get("add")
    return not added or _ADDABLE.issuperset(added)


def _pod_context_conforms(context: dict[str, Json], facts: Facts) -> bool:
    for key, value in context.items():
        conforms = _POD_FIELDS.get(key)
        if conforms is not None and value is not None and not conforms(value, facts):
            return False
    return True


def _volumes_conform(volumes: list[Json], facts: Facts) -> bool:
    if type(volumes) is not list:
        return False
    for volume in volumes:
        if volume.get("hostPath") is not None:
            return False
        if facts.restricted and not any(
            volume[source] is not None and source in VOLUME_SOURCES for source in volume
        ):
            return False
    return True


def _ports_and_hosts_conform(container: dict[str, Json]) -> bool:
    ports = container.get("ports")
    if ports is not None:
        if type(ports) is not list:
            return False
        for port in ports:
            number = port.get("hostPort")
            if number is not None and (number != 0 or not _is_whole(number)):
                return False
    for probe in _PROBES:
        owner = container.get(probe)
        if owner is not None and _names_host(owner):
            return False
    lifecycle = container.get("lifecycle")
    if lifecycle is None:
        return True
    return not any(
        _names_host(_part(lifecycle, hook)) for hook in ("postStart", "preStop")
    )


def _names_host(owner: dict[str, Json]) -> bool:
    for handler in _HANDLERS:
        action = owner.get(handler)
        if action is not None and action.get("host") not in {None, ""}:
            return True
    return False


def _capabilities(value: Json, _facts: Facts) -> bool:
    for listed in (value.get("add"), value.get("drop")):
        if listed is not None and type(listed) is not list:
            return False
    added = value.get("add")
    return not added or CAPABILITIES.issuperset(added)


def _seccomp(value: Json, facts: Facts) -> bool:
    kind = value.get("type")
    if facts.seccomp_annotations and not facts.restricted:
        # Baseline checks only annotations, but the field must have the correct type.
        return kind is None or type(kind) is str
    return kind in PROFILE_TYPES


def _app_armor(value: Json, _facts: Facts) -> bool:
    return value.get("type") in PROFILE_TYPES


def _se_linux(value: Json, facts: Facts) -> bool:
    kind = value.get("type")
    return (
        (kind is None or kind in facts.se_linux_types)
        and value.get("user") in {None, ""}
        and value.get("role") in {None, ""}
    )


def _windows_options(value: Json, _facts: Facts) -> bool:
    flag = value.get("hostProcess")
    return flag is None or flag is False


def _is_whole(value: Json) -> bool:
    if type(value) is float:
        return value.is_integer() and abs(value) < _FLOAT_MAX
    return type(value) is int


def _run_as_user(value: Json, facts: Facts) -> bool:
    return _is_whole(value) and (value != 0 or not facts.restricted)


def _run_as_non_root(value: Json, facts: Facts) -> bool:
    return value is True or (value is False and not facts.restricted)


def _sysctls(value: Json, facts: Facts) -> bool:
    return type(value) is list and all(
        sysctl.get("name") in facts.sysctls for sysctl in value
    )


def _privileged(value: Json, _facts: Facts) -> bool:
    return value is False


def _proc_mount(value: Json, _facts: Facts) -> bool:
    return bool(value == "Default")


def _allow_privilege_escalation(value: Json, facts: Facts) -> bool:
    return value is False or (value is True and not facts.restricted)


_Conforms = Callable[[Json, Facts], bool]
_SHARED_FIELDS: Final[dict[str, _Conforms]] = {
    "runAsNonRoot": _run_as_non_root,
    "runAsUser": _run_as_user,
    "seccompProfile": _seccomp,
    "appArmorProfile": _app_armor,
    "seLinuxOptions": _se_linux,
    "windowsOptions": _windows_options,
}
_POD_FIELDS: Final = {**_SHARED_FIELDS, "sysctls": _sysctls}
_CONTAINER_FIELDS: Final = {
    **_SHARED_FIELDS,
    "privileged": _privileged,
    "procMount": _proc_mount,
    "capabilities": _capabilities,
    "allowPrivilegeEscalation": _allow_privilege_escalation,
}
