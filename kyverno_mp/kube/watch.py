"""List a resource page by page, and watch its changes.

Room: kube. Takes: a Resource, a scope, a Client. Gives: raw objects and changes.
Next: kube/cache.py. May touch: the API server through kube/rest.py; randomness.
Source: Kubernetes API concepts (efficient detection of changes, pages, 410 Gone,
bookmarks).

Objects stay undecoded (``msgspec.Raw``) until the caller projects them one by one: a
page never exists as Python objects.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from kyverno_mp.errors import KubeExpired, KubeRefused, KubeUnavailable
from kyverno_mp.kube.connection import Connection
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import JSON, Call, Client
from kyverno_mp.kube.translate import watch_failure
from kyverno_mp.limits import KUBE_PAGE_OBJECTS

METADATA_ONLY: Final = "application/json;as={};g=meta.k8s.io;v=v1"
_LISTS_MAX: Final = 3
"""How often pages may expire before the list is requested without pages."""
_WATCH_S_LOW: Final = 900
_WATCH_S_HIGH: Final = 1800
"""An idle process makes no other calls for a watch than to open it again."""
SILENCE_S: Final = 90.0
"""K8S: the server sends a bookmark about every minute; a longer silence means that the
watch is dead.
"""

ChangeType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]


class ObjectMeta(msgspec.Struct, rename="camel"):
    """The fields that identify an object and its version."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Identity(msgspec.Struct):
    """The part of an object that all caches need."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class _ListMeta(msgspec.Struct, rename={"resource_version": "resourceVersion"}):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[msgspec.Raw] | None = None


IDENTITY: Final = msgspec.json.Decoder(Identity)
_PAGE: Final = msgspec.json.Decoder(_Page)


class Change(msgspec.Struct):
    """One event of a watch; ``type`` is a ChangeType or an unknown text."""

    type: str
    object: msgspec.Raw


_CHANGE: Final = msgspec.json.Decoder(Change)


class WatchScope(msgspec.Struct, frozen=True, kw_only=True):
    """The objects to list: a resource, with an optional namespace and selectors."""

    resource: Resource
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""
    metadata_only: bool = False

    @property
    def path(self) -> str:
        """The path for list and watch."""
        return self.resource.collection(self.namespace)

    def query(self) -> list[tuple[str, str]]:
        """Return the selectors as query parameters."""
        pairs = (
            ("labelSelector", self.label_selector),
            ("fieldSelector", self.field_selector),
        )
        return [pair for pair in pairs if pair[1]]

    def accept(self, kind: str) -> str:
        """Return the Accept header for ``kind``."""
        return METADATA_ONLY.format(kind) if self.metadata_only else JSON


def list_all(
    client: Client,
    scope: WatchScope,
    take: Callable[[msgspec.Raw], None],
    *,
    restart: Callable[[], object],
    page_objects: int = KUBE_PAGE_OBJECTS,
) -> str:
    """Pass every object to ``take``; return the list's resource version.

    An expired page restarts the list. ``restart`` is called first and has to discard
    what ``take`` got, because these objects may have changed or been deleted since. A
    page that is too large is requested again with half as many objects.

    Raises: DependencyError.
    """
    version = ""
    for count, page in enumerate(list_pages(client, scope, page_objects=page_objects)):
        if count and not page.number:
            restart()
        version = page.resource_version
        for raw in page.items:
            take(raw)
    return version


def keep() -> None:
    """Keep what a list has returned before it restarts; for ``list_all``."""


@dataclass(frozen=True, slots=True)
class RawPage:
    """One undecoded page of a list. ``number`` is 0 for the first page."""

    body: bytes
    items: Sequence[msgspec.Raw]
    """The undecoded objects, which are slices of ``body``."""
    number: int
    resource_version: str
    is_last: bool


def list_pages(
    client: Client, scope: WatchScope, *, page_objects: int = KUBE_PAGE_OBJECTS
) -> Iterator[RawPage]:
    """Yield the pages of a list; no object is decoded.

    An expired page restarts the list: ``number`` is 0 again, and objects may be
    repeated. A page that is too large is requested again with half as many objects.

    Raises: DependencyError.
    """
    limit = page_objects
    lists, number = 1, 0
    token = ""
    while True:
        try:
            body = _body(client, scope, limit, token)
        except KubeExpired:
            lists, number = lists + 1, 0
            token = ""
            limit = limit if lists <= _LISTS_MAX else 0
            if lists > _LISTS_MAX + 1:
                raise
            continue
        except KubeRefused as error:
            if error.code != "kube.too_large" or limit == 1:
                raise
            limit = max(1, (limit or page_objects) // 2)
            continue
        page = _page_of(body, scope)
        token = page.metadata.continue_
        version = page.metadata.resource_version
        yield RawPage(body, page.items or (), number, version, is_last=not token)
        if not token:
            return
        number += 1


def _body(client: Client, scope: WatchScope, limit: int, token: str) -> bytes:
    query = scope.query()
    if limit:
        query.append(("limit", str(limit)))
    if token:
        query.append(("continue", token))
    call = Call(
        method="GET",
        path=scope.path,
        query=query,
        accept=scope.accept("PartialObjectMetadataList"),
    )
    return client.call(call)


def _page_of(body: bytes, scope: WatchScope) -> _Page:
    try:
        return _PAGE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KubeUnavailable(
            "kube.answer", f"{scope.path}: the response is not a list"
        ) from error


@contextmanager
def watch(
    client: Client,
    scope: WatchScope,
    resource_version: str,
    silence_s: float = SILENCE_S,
) -> Iterator[tuple[Connection, Iterator[Change]]]:
    """Follow changes after ``resource_version`` until the server ends the watch.

    Raises: KubeExpired if the version is too old and the caller must list again;
    DeadlinePassed after ``silence_s`` without any message; other DependencyErrors,
    after which the caller can watch again.
    """
    seconds = random.randint(_WATCH_S_LOW, _WATCH_S_HIGH)  # noqa: S311 - scatters load
    call = Call(
        method="GET",
        path=scope.path,
        query=[
            *scope.query(),
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", resource_version),
            ("timeoutSeconds", str(seconds)),
        ],
        accept=scope.accept("PartialObjectMetadata"),
    )
    with client.stream(call, silence_s=silence_s) as (connection, lines):
        yield connection, _changes(lines, scope.path)


def _changes(lines: Iterator[bytes], path: str) -> Iterator[Change]:
    for line in lines:
        try:
            change = _CHANGE.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise KubeUnavailable(
                "kube.answer", f"watch of {path}: a line is not an event"
            ) from error
        if change.type == "ERROR":
            raise watch_failure(bytes(change.object), path)
        yield change
