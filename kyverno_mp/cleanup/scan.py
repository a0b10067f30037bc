"""Find the objects that a run of a clean-up policy would delete.

Room: cleanup. Takes: a policy's Plan, an Evaluator, the served resources. Gives: Scan:
the candidates, counts and problems. Next: cleanup/batch.py deletes them. May touch: the
API server through kube/watch.py; it decodes one object at a time.
Source: docs/behaviour/controllers 7 (Matching; list errors).
"""

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.cleanup.evaluator import Evaluator, Verdict
from kyverno_mp.cleanup.plan import Plan
from kyverno_mp.cleanup.policy import seconds_of
from kyverno_mp.errors import (
    BudgetExceeded,
    KubeNotFound,
    KubeRefused,
)
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.own_access import OwnAccess
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope, keep, list_all
from kyverno_mp.limits import (
    CLEANUP_MATCHED_MAX,
    CLEANUP_RUN_OBJECTS_MAX,
    CLEANUP_RUN_S_MAX,
    CLEANUP_SHOWN_MAX,
)
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_VERBS: Final = frozenset(("list", "delete"))


class Candidate(NamedTuple):
    """An object to delete."""

    resource: Resource
    key: Key
    uid: str

    @property
    def shown(self) -> str:
        """``Kind/namespace/name``, as in upstream's Events."""
        return f"{self.resource.kind}/{self.key[0]}/{self.key[1]}"


class Failure(NamedTuple):
    """Why part of a run failed; ``resource_kind`` is spelled as in the policy."""

    text: str
    resource_kind: str = ""
    is_permission: bool = False


@dataclass(slots=True)
class Scan:
    """The result of one pass over the objects."""

    matched: int = 0
    """Number of objects that match and exclude select, each counted once."""
    selected: int = 0
    """Number of them that the conditions select, too: the run would delete them all."""
    candidates: list[Candidate] = field(default_factory=list)
    is_cut: bool = False
    """Whether there are more candidates than one pass collects."""
    undecided: int = 0
    failures: list[Failure] = field(default_factory=list)

    def fail(self, failure: Failure) -> None:
        """Record a failure; beyond the limit, only log it."""
        if failure in self.failures:
            return
        _log.warning("clean-up: %s", failure.text)
        if len(self.failures) < CLEANUP_SHOWN_MAX:
            self.failures.append(failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanInputs:
    """The inputs of a scan, apart from the policy."""

    client: Client
    directory: Directory
    access: OwnAccess | None
    """None: list without checking permissions (for the command line)."""
    bound_namespaces: Callable[[], Collection[str]]
    monotonic_s: Callable[[], float]
    check_continue: Callable[[], None]
    """Called for each object; raises if the run has to stop."""


def scan(
    plan: Plan,
    evaluator: Evaluator,
    inputs: ScanInputs,
    *,
    created_until_s: int | None = None,
) -> Scan:
    """List and evaluate the objects of a policy's kinds.

    ``created_until_s``: skip objects created later; None = no limit.
    Raises: DependencyError when the API server cannot answer, BudgetExceeded when it
    takes too long, and the errors of ``check_continue``.
    """
    result = Scan()
    walk = _Walk(result, evaluator, inputs, created_until_s)
    for resource, kind in resources_of(plan, inputs.directory, result):
        for scope in scopes_of(plan, resource, kind, inputs, result):
            walk.list(scope, kind)
    return result


class _Walk:
    """Lists and evaluates the objects of one scan."""

    def __init__(
        self,
        result: Scan,
        evaluator: Evaluator,
        inputs: ScanInputs,
        created_until_s: int | None,
    ) -> None:
        self._found = result
        self._evaluator = evaluator
        self._inputs = inputs
        self._created_until_s = created_until_s
        self._end_s = inputs.monotonic_s() + CLEANUP_RUN_S_MAX
        self._seen: set[str] = set()

    def list(self, scope: WatchScope, kind: str) -> None:
        """List and evaluate the objects of one scope."""
        resource = scope.resource

        def take(raw: msgspec.Raw) -> None:
            self._inputs.check_continue()
            if self._inputs.monotonic_s() > self._end_s:
                raise BudgetExceeded(
                    "cleanup.run_time",
                    f"the run took more than {CLEANUP_RUN_S_MAX} s to evaluate objects",
                )
            self._take(resource, msgspec.json.decode(raw), kind)

        try:
            # Each candidate is read again before its deletion.
            list_all(self._inputs.client, scope, take, restart=keep)
        except (KubeRefused, KubeNotFound) as error:
            # KYVERNO: a kind that cannot be listed is skipped; other failures end the
            # run (docs/behaviour/controllers 7).
            is_permission = error.code == "kube.forbidden"
            reason = error.message
            if is_permission:
                reason = f"{no_permission('list', kind)}: {reason}"
            self._found.fail(Failure(reason, kind, is_permission))

    def _take(self, resource: Resource, raw: Json, kind: str) -> None:
        metadata = raw["metadata"]
        result, uid = self._found, str(metadata.get("uid") or "")
        if self._created_until_s is not None:
            created_s = seconds_of(str(metadata.get("creationTimestamp") or ""))
            if created_s is None or created_s > self._created_until_s:
                return
        verdict, reason = self._evaluator.evaluate(resource, raw)
        if verdict is Verdict.IGNORED or uid in self._seen:
            return
        self._count_matched(uid)
        namespace, name = str(metadata.get("namespace") or ""), str(metadata["name"])
        if verdict is Verdict.UNDECIDED:
            result.undecided += 1
            failure = f"{resource.kind}/{namespace}/{name} cannot be decided: {reason}"
            result.fail(Failure(failure, kind))
        elif verdict is Verdict.DELETED:
            self._add_candidate(Candidate(resource, (namespace, name), uid))

    def _count_matched(self, uid: str) -> None:
        """Count an object once. K8S: restarted lists and two groups return it twice.

        Above the limit, objects are not counted, because a percentage budget must not
        grow with objects that are counted twice.
        """
        if len(self._seen) < CLEANUP_MATCHED_MAX:
            self._seen.add(uid)
            self._found.matched += 1

    def _add_candidate(self, candidate: Candidate) -> None:
        result = self._found
        result.selected += 1
        if len(result.candidates) >= CLEANUP_RUN_OBJECTS_MAX:
            result.is_cut = True
            return
        result.candidates.append(candidate)


def resources_of(
    plan: Plan, directory: Directory, result: Scan
) -> Iterator[tuple[Resource, str]]:
    """Yield each resource to list once, with its kind as spelled in the policy."""
    yielded: set[tuple[str, str, str]] = set()
    for kind in plan.kinds(directory):
        name = kind.text
        if kind.problem:
            result.fail(Failure(kind.problem, name))
            continue
        served = [
            resource for resource in kind.resources if _VERBS.issubset(resource.verbs)
        ]
        if not served:
            reason = f"kind {name} is not served, or its objects cannot be deleted"
            result.fail(Failure(reason, name))
        for served_resource in served:
            # K8S: all versions serve the same objects.
            key = (
                served_resource.group,
                served_resource.plural,
                served_resource.version if kind.is_versioned else "",
            )
            if key in yielded:
                continue
            if served_resource.namespaced or not plan.namespace:
                yielded.add(key)
                yield served_resource, name


def scopes_of(
    plan: Plan, resource: Resource, kind: str, inputs: ScanInputs, result: Scan
) -> list[WatchScope]:
    """Return the widest scopes that the account may list, or else single names."""
    policy_namespace = plan.namespace
    access = inputs.access
    if access is None or access.allows("list", resource, policy_namespace):
        return [WatchScope(resource=resource, namespace=policy_namespace)]
    names, named = plan.exact(resource)
    spaces: Collection[str] = (
        [policy_namespace] if policy_namespace or not resource.namespaced else ()
    )
    if not spaces:
        spaces = named or sorted(inputs.bound_namespaces())
    scopes = []
    for space in spaces or ("",):
        if space != policy_namespace and access.allows("list", resource, space):
            scopes.append(WatchScope(resource=resource, namespace=space))
            continue
        scopes += [
            WatchScope(
                resource=resource,
                namespace=space,
                # K8S: the authorizer reads the name from this selector.
                field_selector=f"metadata.name={name}",
            )
            for name in names
            if access.allows("list", resource, space, name)
        ]
    if not scopes:
        result.fail(Failure(no_permission("list", kind), kind, is_permission=True))
    return scopes


def no_permission(verb: str, kind: str) -> str:
    """Return upstream's message for a missing permission."""
    return f"cleanup controller has no permission to {verb} kind {kind}"
