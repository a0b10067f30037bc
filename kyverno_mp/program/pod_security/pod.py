"""Read the fields that the Pod Security Standards check.

Room: program.pod_security. Takes: a Pod or a Pod controller as JSON. Gives: Pod.
Next: baseline, restricted, exclude. Only failing Pods are read here; see conforming.py.
Source: docs/behaviour/engine 6.5; Kubernetes core/v1 types; Kyverno validate_pss.go
(getSpec).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.go.gotext import float_json
from kyverno_mp.values.jsonvalue import Json

TEMPLATE_KINDS: Final = frozenset(
    {
        "DaemonSet",
        "Deployment",
        "Job",
        "StatefulSet",
        "ReplicaSet",
        "ReplicationController",
    }
)
CONTAINER_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS: Final = ("postStart", "preStop")
_HANDLERS: Final = ("httpGet", "tcpSocket")
_LIMITS: Final = {"int32": 1 << 31, "int64": 1 << 63}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityContext:
    """A securityContext of a Pod or a container; None = the field is not set.

    ``present``: False if there is no securityContext at all. ``seccomp``,
    ``app_armor``: the profile's type. ``se_linux``: type, user, role. ``capabilities``:
    added and dropped capabilities. ``sysctls``: names, only for Pods.
    """

    present: bool = True
    privileged: bool = False
    allow_privilege_escalation: bool | None = None
    run_as_non_root: bool | None = None
    run_as_user: int | None = None
    proc_mount: str | None = None
    seccomp: str | None = None
    app_armor: str | None = None
    se_linux: tuple[str, str, str] | None = None
    capabilities: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    host_process: bool = False
    sysctls: tuple[str, ...] = ()


NO_SECURITY: Final = SecurityContext(present=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container; ``hosts`` are the hosts of its probes and hooks."""

    name: str = ""
    image: str = ""
    security: SecurityContext = NO_SECURITY
    host_ports: tuple[int, ...] = ()
    """One port for each entry of ``ports``; 0 = not set."""
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume; ``sources`` are the keys other than ``name`` that are not null."""

    name: str
    sources: frozenset[str]
    host_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The fields of one Pod that the controls check; ``containers`` by list name."""

    annotations: dict[str, str]
    containers: dict[str, tuple[Container, ...]]
    security: SecurityContext = NO_SECURITY
    volumes: tuple[Volume, ...] = ()
    host_namespaces: tuple[str, ...] = ()
    """The fields hostNetwork, hostPID, hostIPC that are true."""
    windows: bool = False

    def visit(self) -> Iterator[tuple[Container, str]]:
        """Yield each container with its field path, in the order of the controls."""
        for listed in CONTAINER_LISTS:
            for index, container in enumerate(self.containers.get(listed, ())):
                yield container, f"spec.{listed}[{index}]"


class _Object:
    """A JSON object, decoded like a Go struct."""

    __slots__ = ("_path", "_struct", "_value")

    def __init__(self, value: dict[str, Json], struct: str, path: str = "") -> None:
        self._value = value
        self._struct = struct
        self._path = path

    def child(self, key: str, struct: str) -> "_Object | None":
        """Return the object under ``key``; None if absent or null."""
        value = self._value.get(key)
        if value is None:
            return None
        if type(value) is not dict:
            raise self._mismatch(key, value, f"v1.{struct}")
        return _Object(value, struct, f"{self._path}{key}.")

    def children(self, key: str, struct: str) -> list["_Object"]:
        """Return the objects of the list under ``key``; null counts as empty."""
        path = f"{self._path}{key}."
        entries = []
        for entry in self._listed(key, f"[]v1.{struct}"):
            if entry is not None and type(entry) is not dict:
                raise self._mismatch(key, entry, f"v1.{struct}")
            entries.append(_Object(entry or {}, struct, path))
        return entries

    def text(self, key: str) -> str:
        value = self._value.get(key)
        if value is None:
            return ""
        if type(value) is not str:
            raise self._mismatch(key, value, "string")
        return value

    def texts(self, key: str, struct: str) -> tuple[str, ...]:
        """Return the strings of a list; ``struct``: the Go name of an item's type."""
        values = self._listed(key, f"[]{struct}")
        for value in values:
            if value is not None and type(value) is not str:
                raise self._mismatch(key, value, struct)
        return tuple(value or "" for value in values)

    def flag(self, key: str) -> bool | None:
        value = self._value.get(key)
        if value is not None and type(value) is not bool:
            raise self._mismatch(key, value, "bool")
        return value

    def number(self, key: str, go_type: str) -> int | None:
        value = self._value.get(key)
        if value is None:
            return None
        if type(value) not in {int, float}:
            raise self._mismatch(key, value, go_type)
        # KYVERNO: the object is encoded as JSON again, which makes a whole float look
        # like an int.
        printed = float_json(value) if type(value) is float else str(value)
        is_integer = printed.removeprefix("-").isdecimal()
        if not is_integer or not -_LIMITS[go_type] <= int(printed) < _LIMITS[go_type]:
            raise self._mismatch(key, value, go_type, f"number {printed}")
        return int(printed)

    def loose_text(self, key: str) -> str:
        """Return a string that no control checks, "" for a value of another type."""
        value = self._value.get(key)
        return value if type(value) is str else ""

    def present(self) -> frozenset[str]:
        return frozenset(key for key, value in self._value.items() if value is not None)

    def items(self) -> Iterator[tuple[str, str]]:
        for key in self._value:
            yield key, self.text(key)

    def _listed(self, key: str, go_type: str) -> list[Json]:
        value = self._value.get(key)
        if value is None:
            return []
        if type(value) is not list:
            raise self._mismatch(key, value, go_type)
        return value

    def _mismatch(
        self, key: str, value: Json, go_type: str, description: str = ""
    ) -> ExpressionFailed:
        kinds = {str: "string", bool: "bool", list: "array", dict: "object"}
        kind = description or kinds.get(type(value), "number")
        return failed(
            f"json: cannot unmarshal {kind} into Go struct field "
            f"{self._struct}.{self._path}{key} of type {go_type}"
        )


def failed(reason: str) -> ExpressionFailed:
    """Return the error of a resource without a readable Pod."""
    return ExpressionFailed(
        "podsecurity.resource", f"Error while getting new resource: {reason}"
    )


def read_pod(resource: dict[str, Json], kind: str) -> Pod:
    """Read the Pod, or the template of the Pod controller.

    Raises: ExpressionFailed (``podsecurity.resource``) for other kinds, and for a field
    whose type differs from Kubernetes.
    """
    if kind == "Pod":
        holder = meta = _Object(resource, "Pod")
    elif kind in TEMPLATE_KINDS:
        holder = meta = _below(_Object(resource, kind), "spec", "template")
    elif kind == "CronJob":
        # KYVERNO: the metadata is the jobTemplate's instead of the Pod template's
        # (6.5).
        meta = _below(_Object(resource, kind), "spec", "jobTemplate")
        holder = _below(meta, "spec", "template")
    else:
        raise failed("could not find correct resource type")
    metadata = meta.child("metadata", "ObjectMeta") or _Object({}, "ObjectMeta")
    spec = holder.child("spec", "PodSpec") or _Object({}, "PodSpec")
    annotations = metadata.child("annotations", "ObjectMeta")
    return _pod(spec, dict(annotations.items()) if annotations else {})


def _below(start: _Object, *keys: str) -> _Object:
    for key in keys:
        start = start.child(key, "Spec") or _Object({}, "Spec")
    return start


def _pod(spec: _Object, annotations: dict[str, str]) -> Pod:
    os = spec.child("os", "PodOS")
    flags = ("hostNetwork", "hostPID", "hostIPC")
    return Pod(
        annotations=annotations,
        containers={
            listed: tuple(_container(c) for c in spec.children(listed, "Container"))
            for listed in CONTAINER_LISTS
        },
        security=_security(spec, "PodSecurityContext"),
        volumes=tuple(_volume(v) for v in spec.children("volumes", "Volume")),
        host_namespaces=tuple(flag for flag in flags if spec.flag(flag)),
        windows=os is not None and os.text("name") == "windows",
    )


def _container(container: _Object) -> Container:
    ports = container.children("ports", "ContainerPort")
    return Container(
        name=container.loose_text("name"),
        image=container.loose_text("image"),
        security=_security(container, "SecurityContext"),
        host_ports=tuple(port.number("hostPort", "int32") or 0 for port in ports),
        hosts=tuple(_hosts(container)),
    )


def _hosts(container: _Object) -> Iterator[str]:
    owners = [container.child(probe, "Probe") for probe in _PROBES]
    lifecycle = container.child("lifecycle", "Lifecycle")
    if lifecycle is not None:
        owners.extend(lifecycle.child(hook, "LifecycleHandler") for hook in _HOOKS)
    for owner in owners:
        if owner is None:
            continue
        for handler in _HANDLERS:
            action = owner.child(handler, handler)
            host = action.text("host") if action is not None else ""
            if host:
                yield host


def _security(holder: _Object, struct: str) -> SecurityContext:
    context = holder.child("securityContext", struct)
    if context is None:
        return NO_SECURITY
    seccomp = context.child("seccompProfile", "SeccompProfile")
    app_armor = context.child("appArmorProfile", "AppArmorProfile")
    se_linux = context.child("seLinuxOptions", "SELinuxOptions")
    windows = context.child("windowsOptions", "WindowsSecurityContextOptions")
    shared = SecurityContext(
        run_as_non_root=context.flag("runAsNonRoot"),
        run_as_user=context.number("runAsUser", "int64"),
        seccomp=None if seccomp is None else seccomp.text("type"),
        app_armor=None if app_armor is None else app_armor.text("type"),
        se_linux=None if se_linux is None else _se_linux(se_linux),
        host_process=windows is not None and bool(windows.flag("hostProcess")),
    )
    if struct == "PodSecurityContext":
        sysctls = context.children("sysctls", "Sysctl")
        return replace(shared, sysctls=tuple(s.text("name") for s in sysctls))
    caps = context.child("capabilities", "Capabilities")
    mounted = "procMount" in context.present()
    return replace(
        shared,
        privileged=bool(context.flag("privileged")),
        allow_privilege_escalation=context.flag("allowPrivilegeEscalation"),
        proc_mount=context.text("procMount") if mounted else None,
        capabilities=None if caps is None else _capabilities(caps),
    )


def _capabilities(caps: _Object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    kind = "v1.Capability"
    return caps.texts("add", kind), caps.texts("drop", kind)


def _se_linux(options: _Object) -> tuple[str, str, str]:
    return options.text("type"), options.text("user"), options.text("role")


def _volume(volume: _Object) -> Volume:
    host_path = volume.child("hostPath", "HostPathVolumeSource")
    return Volume(
        volume.loose_text("name"),
        volume.present() - {"name"},
        host_path.loose_text("path") if host_path is not None else "",
    )
