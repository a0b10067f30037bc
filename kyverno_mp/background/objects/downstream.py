"""Create, update and delete generated objects; skip writes that change nothing.

Room: background. Takes: an object as a rule wants it; the labels of objects to delete.
Gives: Downstream. Next: background/generate/generator.py,
background/generate/policy_events.py. May touch: the API server through kube.
Source: docs/behaviour/controllers 5.4 (table), 5.6; docs/background.md.

An object is deleted only if its labels name the policy and the rule, with the uid and
version that were read, so that an object whose labels have changed stays.

Over 400 lines: reads and writes share the record of written objects.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.background.objects.content import (
    at_version,
    has_same_content,
    is_applied,
    last_manager,
    over,
    shown,
    version_of,
)
from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.objects.labels import (
    Selector,
    selects,
    source_selector,
    text_of,
)
from kyverno_mp.background.objects.written import REVERTS_AT_ONCE, Written, is_newer
from kyverno_mp.background.outage import is_rejection
from kyverno_mp.background.update_request import Place, Trigger
from kyverno_mp.errors import (
    DependencyError,
    ExpressionFailed,
    KubeConflict,
    KubeNotFound,
    KubeRefused,
    LeaseLost,
)
from kyverno_mp.kube.apply import Objects, key_of
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope, list_all
from kyverno_mp.program.generate.labels import (
    POLICY,
    POLICY_NAMESPACE,
    RULE,
    is_generated,
)
from kyverno_mp.program.generate.pattern import Generated
from kyverno_mp.values.jsonvalue import Json

_MANAGER: Final = "kyverno-generate"
"""KYVERNO: the field manager of server-side applies. With another one, fields applied
by upstream before an upgrade would never be removed."""
_ATTEMPTS: Final = 5

CREATED: Final = "created"
UPDATED: Final = "updated"
KEPT: Final = "kept"
OTHERS: Final = "others"
"""The object does not belong to the policy, so it is not changed."""
CONTESTED: Final = "contested"
"""Other writers keep changing the object, so it is not written for a while."""


class Done(NamedTuple):
    """The result of a write."""

    action: str
    pause_s: float = 0.0
    """CONTESTED: the pause until the next write."""
    is_contest: bool = False
    """Whether the object became contested with this write."""
    rival: str = ""
    """The last field manager that changed the object, if known."""


class Found(NamedTuple):
    """The metadata of a generated object."""

    resource: Resource
    key: Key
    uid: str
    version: str
    labels: dict[str, str]
    created: str = ""
    """The creation time."""

    @property
    def place(self) -> Place:
        """Return kind, namespace and name of the object."""
        return self.resource.kind, *self.key


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] | None = None


class _Head(msgspec.Struct):
    metadata: _Meta


_HEAD: Final = msgspec.json.Decoder(_Head)


class Downstream:
    """Reads and writes generated objects; threads may share it."""

    def __init__(
        self,
        client: Client,
        kinds: Kinds,
        holds_lease: Callable[[], bool],
        clock_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._kinds = kinds
        self._holds_lease = holds_lease
        self._objects = Objects(client, self.guard, _MANAGER)
        self._written = Written(clock_s)

    def guard(self) -> None:
        """Raise LeaseLost unless this replica may write."""
        if not self._holds_lease():
            raise LeaseLost("background.lease_lost", "the background lease is not held")

    def write(
        self,
        generated: Generated,
        *,
        synchronizes: bool,
        server_side: bool,
        owned: Selector | None = None,
        reads_first: bool = False,
    ) -> Done:
        """Create or update an object; return what was done.

        ``reads_first``: the object probably exists, so it is read before a creation is
        tried, which the API server would store in its audit log and reject.

        ``owned``: do not change an object that has different labels and was not written
        here; None: replace any object.

        Raises: ExpressionFailed for an unknown kind; DependencyError.
        """
        resource, raw = self.resolved(generated)
        with self._written.writing(resource, raw):
            pause_s = self._written.pause_s(raw)
            if pause_s:
                return self._leave(resource, raw, pause_s)
            if server_side:
                return self._apply(resource, raw, owned, synchronizes=synchronizes)
            if reads_first:
                done = self._keep(resource, raw, owned, synchronizes=synchronizes)
                if done is not None:
                    return done
            return self._put(resource, raw, owned, synchronizes=synchronizes)

    def _put(
        self,
        resource: Resource,
        raw: Json,
        owned: Selector | None,
        *,
        synchronizes: bool,
    ) -> Done:
        """Create an object, or replace it."""
        for _ in range(_ATTEMPTS):
            try:
                created = self._objects.create(resource, raw)
            except KubeConflict as error:
                if error.code != "kube.exists":
                    raise
            else:
                return self._done(CREATED, created, raw)
            if not synchronizes:
                return Done(KEPT)
            done = self._update(resource, raw, owned)
            if done is not None:
                return done
        raise _changes(resource, raw)

    def _keep(
        self,
        resource: Resource,
        raw: Json,
        owned: Selector | None,
        *,
        synchronizes: bool,
    ) -> Done | None:
        """Keep or update an object; return None if it does not exist."""
        if synchronizes:
            return self._update(resource, raw, owned)
        live = self._objects.find(resource, key_of(raw))
        return None if live is None else Done(KEPT)

    def _apply(
        self,
        resource: Resource,
        raw: Json,
        owned: Selector | None,
        *,
        synchronizes: bool,
    ) -> Done:
        """Apply an object server-side: create it, or take ownership of its fields."""
        for _ in range(_ATTEMPTS):
            live = self._objects.find(resource, key_of(raw))
            if live is not None:
                self._written.not_deleted(live["metadata"].get("uid"))
                if not synchronizes or self._is_applied(live, raw):
                    return Done(KEPT)
            if live is not None and not self._is_owned(live, raw, owned):
                return Done(OTHERS)
            try:
                applied = self._objects.apply(resource, at_version(live, raw))
            except KubeConflict:
                # The object was created, changed or deleted in the meantime.
                continue
            return self._done(CREATED if live is None else UPDATED, applied, raw, live)
        raise _changes(resource, raw)

    def _update(
        self, resource: Resource, raw: Json, owned: Selector | None
    ) -> Done | None:
        """Replace an object; return None if it was deleted or changed meanwhile."""
        live = self._objects.find(resource, key_of(raw))
        if live is None:
            return None
        self._written.not_deleted(live["metadata"].get("uid"))
        if self._is_wanted(live, raw):
            return Done(KEPT)
        if not self._is_owned(live, raw, owned):
            return Done(OTHERS)
        try:
            updated = self._objects.replace(resource, over(live, raw))
        except (KubeConflict, KubeNotFound):
            return None
        return self._done(UPDATED, updated, raw, live)

    def _leave(self, resource: Resource, raw: Json, pause_s: float) -> Done:
        """Do not write a contested object; return KEPT if it has the wanted content."""
        live = self._objects.find(resource, key_of(raw))
        if live is not None:
            self._written.not_deleted(live["metadata"].get("uid"))
            if self._is_wanted(live, raw):
                return Done(KEPT)
        return Done(CONTESTED, pause_s)

    def _is_owned(self, live: Json, raw: Json, owned: Selector | None) -> bool:
        """Return whether an object may be replaced, even if its labels were removed."""
        if owned is None:
            return True
        labels = live["metadata"].get("labels") or {}
        return selects(owned, labels) or self._written.is_ours(live, raw)

    def is_own(self, generated: Found) -> bool:
        """Return whether an object has not changed since it was written here.

        An older version was already considered when the object was written.
        """
        version = self._written.version(
            generated.resource, generated.key, generated.uid
        )
        return bool(version) and not is_newer(generated.version, version)

    def is_changed(self, generated: Found) -> bool:
        """Return whether an object is newer than the version written here."""
        version = self._written.version(
            generated.resource, generated.key, generated.uid
        )
        return bool(version) and is_newer(generated.version, version)

    def is_deleted(self, uid: str) -> bool:
        """Return whether an object was deleted here or is about to be."""
        return self._written.is_deleted(uid)

    def when_written(self, generated: Found, decide: Callable[[], None]) -> None:
        """Call ``decide`` once no write to an object is in progress, often at once."""
        self._written.when_written(generated.resource, generated.key, decide)

    def is_written(self, generated: Found) -> bool:
        """Return whether an object was written here, even if it has changed since."""
        return bool(
            self._written.version(generated.resource, generated.key, generated.uid)
        )

    def _is_wanted(self, live: Json, raw: Json) -> bool:
        if self._written.is_as_written(live, raw):
            return True
        return has_same_content(live, over(live, raw), raw)

    def _is_applied(self, live: Json, raw: Json) -> bool:
        if self._written.is_as_written(live, raw):
            return True
        return is_applied(live, raw, _MANAGER)

    def _done(
        self, action: str, written: Json, raw: Json, live: Json | None = None
    ) -> Done:
        """Record a write; return its result."""
        before = "" if live is None else version_of(live)
        reverts = self._written.note(written, raw, before)
        # K8S: a write without changes keeps the resource version.
        if version_of(written) == before:
            return Done(KEPT)
        is_contest = reverts == REVERTS_AT_ONCE
        return Done(action, 0.0, is_contest, "" if live is None else last_manager(live))

    def place_of(self, generated: Generated) -> Place:
        """Return kind, namespace and name of an object that may not exist yet.

        Raises: ExpressionFailed for an unknown kind; DependencyError.
        """
        resource, raw = self.resolved(generated)
        return resource.kind, *key_of(raw)

    def find(
        self,
        selector: Selector,
        kinds: Collection[tuple[str, str]] | None,
        namespace: str = "",
    ) -> Iterator[Found]:
        """Yield the objects with all labels of the selector. ``kinds`` None: all kinds.

        ``namespace``: only in this one; "" = in all, for a namespaced policy only in
        its own: elsewhere, only copies of its objects can have its labels.

        Raises: after the last kind, when one of ``kinds`` cannot be listed, KubeRefused
        or the error of a failed webhook; other DependencyErrors at once.
        """
        namespace = namespace or selector.get(POLICY_NAMESPACE) or ""
        refused: DependencyError | None = None
        for resource in self._resources(kinds):
            if namespace and not resource.namespaced:
                continue
            try:
                yield from self._listed(resource, selector, namespace)
            except DependencyError as error:
                if not is_rejection(error):
                    raise
                if kinds is not None or not isinstance(error, KubeRefused):
                    refused = error
        if refused is not None:
            raise refused

    def cloned(self, source: Trigger) -> list[Found]:
        """Return the clones of a source by any rule. Raises: DependencyError."""
        # KYVERNO: a clone has the same kind as its source.
        kinds = [(source.api_version, source.kind)]
        return list(self.find(source_selector(source), kinds))

    def delete(self, generated: Found, selector: Selector) -> bool:
        """Delete an object if its labels still match; return whether it was deleted.

        Raises: DependencyError, LeaseLost.
        """
        self._written.deleting(generated.resource, generated.key, generated.uid)
        is_deleted = False
        try:
            is_deleted = self._delete(generated, selector)
        finally:
            if not is_deleted:
                self._written.not_deleted(generated.uid)
        return is_deleted

    def _delete(self, generated: Found, selector: Selector) -> bool:
        current: Found | None = generated
        for _ in range(_ATTEMPTS):
            if current is None or not selects(selector, current.labels):
                return False
            if not is_generated(current.labels):
                return False
            try:
                return self._objects.delete(
                    current.resource,
                    current.key,
                    current.uid,
                    resource_version=current.version,
                )
            except KubeConflict:
                raw = self._objects.find(current.resource, current.key)
                fresh = None if raw is None else _found(current.resource, raw)
                same_one = fresh is not None and fresh.uid == current.uid
                current = fresh if same_one else None
        raise KubeConflict(
            "background.conflict",
            f"{generated.resource.kind} {generated.key} keeps changing",
        )

    def release(self, generated: Found, selector: Selector) -> None:
        """Remove the labels of the rule from an object that still has them.

        An object that was written here after it was found keeps them: it is wanted.

        Raises: DependencyError, LeaseLost.
        """
        labels = dict.fromkeys((POLICY, POLICY_NAMESPACE, RULE))

        def edit(raw: Json) -> Json | None:
            metadata = raw["metadata"]
            labels_before = metadata.get("labels") or {}
            if metadata.get("uid") != generated.uid or not selects(
                selector, labels_before
            ):
                return None
            written = self._written.version(
                generated.resource, generated.key, generated.uid
            )
            if written and is_newer(written, generated.version):
                return None
            remaining = {
                name: value
                for name, value in labels_before.items()
                if name not in labels
            }
            return {**raw, "metadata": {**metadata, "labels": remaining}}

        self._objects.change(generated.resource, generated.key, edit)

    def _resources(
        self, kinds: Collection[tuple[str, str]] | None
    ) -> Iterable[Resource]:
        if kinds is None:
            yield from self._kinds.deletable()
            return
        for api_version, kind in kinds:
            resource = self._kinds.of_kind(api_version, kind)
            if resource is not None:
                yield resource

    def _listed(
        self, resource: Resource, selector: Selector, namespace: str
    ) -> list[Found]:
        generated: dict[str, Found] = {}

        def take(raw: msgspec.Raw) -> None:
            head = _HEAD.decode(raw).metadata
            labels = head.labels or {}
            if selects(selector, labels) and not head.deletion_timestamp:
                key = head.namespace, head.name
                generated[head.uid] = Found(
                    *(resource, key, head.uid, head.resource_version, labels),
                    created=head.creation_timestamp or "",
                )

        scope = WatchScope(
            resource=resource,
            namespace=namespace,
            label_selector=text_of(selector),
            metadata_only=True,
        )
        # K8S: a 404 for a list means that the kind was removed with its objects.
        with contextlib.suppress(KubeNotFound):
            list_all(self._client, scope, take, restart=generated.clear)
        return list(generated.values())

    def label_source(self, source: Json, label: str) -> None:
        """Label the source of a clone, so that admission notices its changes.

        Raises: KubeConflict or KubeNotFound when it has changed since it was read;
        other DependencyErrors.
        """
        metadata = source.get("metadata") or {}
        if label in (metadata.get("labels") or {}):
            return
        resource = self._kinds.of_kind(
            str(source.get("apiVersion") or ""), str(source.get("kind") or "")
        )
        if resource is not None:
            version = metadata.get("resourceVersion")
            patch = {"metadata": {"labels": {label: ""}, "resourceVersion": version}}
            self._objects.merge(resource, key_of(source), patch)

    def resolved(self, generated: Generated) -> tuple[Resource, Json]:
        """Return the resource of an object, and the complete object.

        Raises: ExpressionFailed for an unknown kind; DependencyError.
        """
        target = generated.target
        resource = self._kinds.of_kind(target.api_version, target.kind)
        if resource is None:
            kind = "/".join(filter(None, (target.api_version, target.kind)))
            raise ExpressionFailed(
                "background.kind", f"failed to get the resource of kind {kind}"
            )
        if target.namespace and not resource.namespaced:
            # SAFETY: the kind may be a variable, so its scope is unknown at admission.
            # A namespaced policy must never write outside its namespace.
            raise ExpressionFailed(
                "background.scope",
                "target namespace must not be set for a cluster-wide resource:"
                f" {target}",
            )
        raw = {**generated.resource, "apiVersion": resource.api_version}
        metadata = dict(raw["metadata"])
        if not resource.namespaced:
            metadata.pop("namespace", None)
        elif not metadata.get("namespace"):
            metadata["namespace"] = "default"
        return resource, {**raw, "metadata": metadata}


def _changes(resource: Resource, raw: Json) -> KubeConflict:
    """Return the error for an object that other writers change at every attempt."""
    return KubeConflict(
        "background.conflict", f"{shown(resource, raw)} changes all the time"
    )


def _found(resource: Resource, raw: Json) -> Found:
    metadata = raw.get("metadata") or {}
    return Found(
        resource,
        key_of(raw),
        str(metadata.get("uid") or ""),
        str(metadata.get("resourceVersion") or ""),
        dict(metadata.get("labels") or {}),
    )
