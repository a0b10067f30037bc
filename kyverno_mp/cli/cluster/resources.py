"""Load a cluster's objects of the kinds that policies match.

Room: cli. Takes: compiled policies, a Cluster and its Directory, the flags of
``apply``. Gives: objects in a Spool, and statistics. Next: cli/apply/from_cluster.
May touch: the API server through kube/, threads that end when loading is finished, the
clock.
Source: docs/behaviour/cli 2, 5 (cluster mode); Kyverno cmd/cli utils/common/fetch.go.
"""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePath

import msgspec

from kyverno_mp.cli.cluster.spool import Part, Spool
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.compiled import Compiled
from kyverno_mp.errors import DependencyError, KubeNotFound
from kyverno_mp.ir.admission_policy import AdmissionPolicyIR, ConstraintsIR
from kyverno_mp.ir.match import KindIR
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.kube.watch import IDENTITY, WatchScope, list_all
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.kinds import KindSelector
from kyverno_mp.values.wildcard import contains_wildcard

_ANSWER_NS = 5 * 60 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The objects that ``apply`` loads.

    ``names``: only objects with these names, each of which must exist.
    """

    namespace: str = ""
    cluster_wide: bool = False
    names: tuple[str, ...] = ()
    concurrent: int = 1
    page_objects: int = 100
    continue_on_error: bool = True


@dataclass(slots=True)
class Loading:
    """Statistics of one load."""

    objects: int
    calls: int
    seconds: float
    workers: int
    errors: list[str]
    """One error text for each resource that could not be listed."""

    def summary(self) -> str:
        """Return the output of ``--show-performance``."""
        lines = [
            "",
            "Resource Loading Performance:",
            f"  Duration: {self.seconds:.3f}s",
            f"  Resources loaded: {self.objects}",
            f"  API calls: {self.calls}",
            f"  Concurrent workers: {self.workers}",
        ]
        if self.errors:
            lines.append(f"  Errors: {len(self.errors)}")
            lines += [f"    - {error}" for error in self.errors]
        return "\n".join(lines)


def kinds_of(compiled: Compiled) -> Iterator[KindIR]:
    """Yield the kinds that the policies match.

    KYVERNO: kinds excluded by clean-up policies are included (docs/behaviour/cli 5).
    """
    for policy in compiled.policies:
        for rule in policy.rules:
            for entry in rule.match.filters:
                yield from entry.kinds
    for cleanup in compiled.cleanups:
        for block in (cleanup.match, cleanup.exclude):
            for entry in block.filters if block is not None else ():
                yield from entry.kinds


def resources_of(
    kinds: Iterable[KindIR],
    constraints: Sequence[ConstraintsIR | None],
    directory: Directory,
) -> list[Resource]:
    """Return the resources to list, in one version unless policies name several.

    Subresources are not listed: they are parts of their parents, or cannot be listed.
    """
    exact: list[Resource] = []
    loose: list[Resource] = []
    for kind in dict.fromkeys(kinds):
        # Subresources cannot be listed, and do not match listed objects.
        if not kind.subresource:
            selector = KindSelector(kind.group, kind.version, kind.kind, "")
            matching = directory.find(selector)
            (loose if contains_wildcard(kind.version) else exact).extend(matching)
    loose += [
        resource
        for resource in directory.resources
        if any(_is_constrained(constraint, resource) for constraint in constraints)
    ]
    chosen = dict.fromkeys(exact)
    served = {(resource.group, resource.plural) for resource in exact}
    for resource in loose:
        if (resource.group, resource.plural) not in served:
            served.add((resource.group, resource.plural))
            chosen[resource] = None
    return [
        resource
        for resource in directory.resources
        if resource in chosen and "list" in resource.verbs
    ]


def _is_constrained(constraints: ConstraintsIR | None, resource: Resource) -> bool:
    def has(listed: Sequence[str], value: str) -> bool:
        return "*" in listed or value in listed

    return constraints is not None and any(
        has(rule.groups, resource.group)
        and has(rule.versions, resource.version)
        and has(rule.resources, resource.name)
        and not resource.subresource
        for rule in constraints.rules
    )


def load_cluster(
    client: Client, resources: Sequence[Resource], selection: Wanted, spool: Spool
) -> Loading:
    """List the resources into the spool.

    Raises: CommandFailed if a name is not found, or for the first failed list if
    ``continue_on_error`` is off.
    """
    begun = time.monotonic()
    run = _Run(client, selection, spool)
    listed = [resource for resource in resources if run.is_wanted(resource)]
    workers = max(1, min(selection.concurrent, len(listed)))
    with ThreadPoolExecutor(max_workers=workers) as pool:
        parts = list(pool.map(run.load, listed))
    run.check_names()
    spool.finish(parts)
    seconds = time.monotonic() - begun
    return Loading(len(spool), run.client.calls, seconds, workers, run.errors)


class _CountingClient(Client):
    """Wrapper of a client that counts the calls."""

    def __init__(self, inner: Client) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self.calls = 0

    def call(self, call: Call, deadline_ns: int = 0) -> bytes:
        with self._lock:
            self.calls += 1
        # On slow networks, large pages take longer than the 30 s of a review.
        return self._inner.call(call, deadline_ns or time.monotonic_ns() + _ANSWER_NS)


class _Run:
    """The state of one load, shared by its threads."""

    def __init__(self, client: Client, selection: Wanted, spool: Spool) -> None:
        self.client = _CountingClient(client)
        self._spool = spool
        self.errors: list[str] = []
        self._wanted = selection
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._names = _names_of(selection.names)
        self._found: set[str] = set()

    def is_wanted(self, resource: Resource) -> bool:
        """Return whether the flags select the resource.

        KYVERNO: with a namespace, --cluster-wide-resources has no effect
        (docs/behaviour/cli 5).
        """
        if self._wanted.namespace:
            return resource.namespaced
        return not (self._wanted.cluster_wide and resource.namespaced)

    def load(self, resource: Resource) -> Part:
        """List one resource."""
        part = Part(self._spool, resource)
        new: list[str] = []

        def take(raw: msgspec.Raw) -> None:
            metadata = IDENTITY.decode(raw).metadata
            key = f"{resource.version}/{metadata.uid}" if metadata.uid else ""
            if self._is_new(key) and self._is_named(metadata.name):
                part.add(bytes(raw))
                new.append(key)

        def restart() -> None:
            part.clear()
            with self._lock:
                self._seen.difference_update(new)
            new.clear()

        scope = WatchScope(resource=resource, namespace=self._wanted.namespace)
        try:
            list_all(
                self.client,
                scope,
                take,
                restart=restart,
                page_objects=self._wanted.page_objects,
            )
        except DependencyError as error:
            message = f"{resource.api_version} {resource.plural}: {error.message}"
            if not self._wanted.continue_on_error:
                raise CommandFailed(f"failed to load resources ({message})") from error
            with self._lock:
                self.errors.append(message)
        return part

    def _is_new(self, key: str) -> bool:
        """Return whether the object is new; two groups may contain it.

        K8S: core/v1 and events.k8s.io/v1 return the same Events. An object that is
        requested in two versions is returned in both.
        """
        if not key:
            return True
        with self._lock:
            if key in self._seen:
                return False
            self._seen.add(key)
            return True

    def _is_named(self, name: str) -> bool:
        if not self._names:
            return True
        arguments = self._names.get(name)
        if arguments is None:
            return False
        self._found.update(arguments)
        return True

    def check_names(self) -> None:
        """Raise CommandFailed if a requested name was not found."""
        for name in self._wanted.names:
            if name not in self._found:
                raise CommandFailed(f"{name} not found in cluster")


def _names_of(paths: Sequence[str]) -> dict[str, list[str]]:
    """Map object names to their arguments: the name, or a file with that name.

    KYVERNO: 1.18.2 compares with a dash-separated part of ``Kind-namespace-name`` and
    requires a file with that name. Later versions compare as this function does.
    """
    arguments: dict[str, list[str]] = {}
    for path in paths:
        file = PurePath(path).name
        for name in {path, file, PurePath(file).stem}:
            arguments.setdefault(name, []).append(path)
    return arguments


def load_params(
    client: Client, policies: Sequence[AdmissionPolicyIR], directory: Directory
) -> list[Json]:
    """Return all objects of the policies' parameter kinds.

    Raises: CommandFailed, because a policy without its parameters would decide wrongly.
    """
    params: list[Json] = []
    for api_version, kind in dict.fromkeys(policy.param_kind for policy in policies):
        if not kind:
            continue
        resource = directory.of_kind(api_version, kind)
        if resource is None:
            raise CommandFailed(f"paramKind {api_version} {kind}: not in the cluster")
        try:
            params += objects_of(client, WatchScope(resource=resource))
        except DependencyError as error:
            raise CommandFailed(f"paramKind {kind}: {error.message}") from error
    return params


def stored_objects(client: Client, resources: Iterable[Resource]) -> Iterator[Json]:
    """Yield the objects of the kinds that the cluster serves. Raises: DependencyError.

    An older installation does not serve every kind.
    """
    for resource in resources:
        with contextlib.suppress(KubeNotFound):
            yield from objects_of(client, WatchScope(resource=resource))


def objects_of(client: Client, scope: WatchScope) -> list[Json]:
    """Return all objects of a scope. Raises: DependencyError."""
    items: list[bytes] = []
    list_all(client, scope, lambda raw: items.append(bytes(raw)), restart=items.clear)
    # K8S: items of a list have no kind and no apiVersion.
    resource = scope.resource
    type_fields = {"apiVersion": resource.api_version, "kind": resource.kind}
    return [msgspec.json.decode(item) | type_fields for item in items]
