"""Note the objects that a GeneratingPolicy's expressions read or fail to find.

Room: background. Takes: objects from the port of ``resource``. Gives: Sources, Reading
(a ResourcePort), SourceNotFound. Next: background/generating/evaluate.py,
background/generating/wanted.py, background/generating/run.py. May touch: the API
server, through the port.
Source: docs/background.md (GeneratingPolicies); Kyverno
pkg/background/gpol/dynamic_watcher.go (handleDelete).

An expression may also fail because of a rejected read, an outage or a missing
annotation. Clones are deleted only if the API server did not find their source.
"""

from dataclasses import dataclass
from typing import NamedTuple

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel.outside import ResourcePort
from kyverno_mp.values.jsonvalue import Json


class Missing(NamedTuple):
    """An object that was not found.

    It has no namespace, because a clone shares only kind and name with its source.
    """

    group: str
    plural: str
    name: str


class Sources:
    """The objects that one evaluation has read."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[str, str]] = {}
        self.missing: set[Missing] = set()

    def saw(self, uid: str, api_version: str, kind: str) -> None:
        """Note an object."""
        if uid:
            self._kinds[uid] = api_version.rpartition("/")[0], kind

    def saw_object(self, raw: Json) -> None:
        """Note an object of the API server."""
        metadata = raw.get("metadata") if type(raw) is dict else None
        if type(metadata) is dict:
            uid = str(metadata.get("uid") or "")
            kind = str(raw.get("kind") or "")
            self.saw(uid, str(raw.get("apiVersion") or ""), kind)

    def has(self, uid: str) -> bool:
        """Return whether an object was read."""
        return uid in self._kinds

    def may_be_clone(self, uid: str, api_version: str, kind: str) -> bool:
        """Return whether an object has the same kind as its source, if known.

        The kind is unknown for objects from other sources, e.g. a GlobalContextEntry.
        """
        group = api_version.rpartition("/")[0]
        return self._kinds.get(uid, (group, kind)) == (group, kind)


class SourceNotFound(ExpressionFailed):
    """A policy failed, and an object that it read does not exist."""

    sources: Sources

    @classmethod
    def of(cls, error: ExpressionFailed, sources: Sources) -> "SourceNotFound":
        """Return the failure together with the sources."""
        failure = cls(error.code, error.message, error.where)
        failure.sources = sources
        return failure


@dataclass(frozen=True, slots=True)
class Reading:
    """A port that notes the objects that it returns."""

    port: ResourcePort
    sources: Sources

    def get(
        self, api_version: str, plural: str, key: tuple[str, str], deadline_ns: int
    ) -> Json | None:
        """Return the object; None if it does not exist. Raises: the port's errors."""
        raw = self.port.get(api_version, plural, key, deadline_ns)
        if raw is None:
            group = api_version.rpartition("/")[0]
            self.sources.missing.add(Missing(group, plural, key[1]))
        self.sources.saw_object(raw)
        return raw

    def list(
        self,
        api_version: str,
        plural: str,
        namespace: str,
        labels: dict[str, str],
        deadline_ns: int,
    ) -> Json:
        """Return the List. Raises: the port's errors."""
        listed = self.port.list(api_version, plural, namespace, labels, deadline_ns)
        items = listed.get("items") if type(listed) is dict else None
        for item in items if type(items) is list else ():
            self.sources.saw_object(item)
        return listed

    def post(
        self,
        api_version: str,
        plural: str,
        namespace: str,
        body: Json,
        deadline_ns: int,
    ) -> Json:
        """Create the object and return it. Raises: the port's errors."""
        created = self.port.post(api_version, plural, namespace, body, deadline_ns)
        self.sources.saw_object(created)
        return created

    def plural(self, api_version: str, kind: str) -> str:
        """Return the plural name of a kind. Raises: the port's errors."""
        return self.port.plural(api_version, kind)
