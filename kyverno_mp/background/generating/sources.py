"""Note which objects the expressions of a GeneratingPolicy read, and which are missing.

Room: background. Takes: what the port of ``resource`` gives. Gives: Sources, Reading (a
ResourcePort), SourceNotFound. Next: background/generating/evaluate.py,
background/generating/wanted.py, background/generating/run.py.
May touch: the API server, through the port.
Source: docs/background.md (GeneratingPolicies); Kyverno
pkg/background/gpol/dynamic_watcher.go (handleDelete).

That an expression fails does not say why: a read that was refused, an outage and an
absent annotation are failures, too. Only a source that the API server did not find is
one whose clones go.
"""

from dataclasses import dataclass
from typing import NamedTuple

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel.outside import ResourcePort
from kyverno_mp.values.jsonvalue import Json


class Missing(NamedTuple):
    """What an object that was not found would be.

    Without its namespace: a clone has the kind and the name of its source, no more.
    """

    group: str
    plural: str
    name: str


class Sources:
    """What one evaluation has read."""

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
        """Return whether an object is of the kind of its source, if that is known.

        Of objects that come from elsewhere, e.g. a GlobalContextEntry, it is not.
        """
        group = api_version.rpartition("/")[0]
        return self._kinds.get(uid, (group, kind)) == (group, kind)


class SourceNotFound(ExpressionFailed):
    """A policy failed, and something that it read does not exist."""

    sources: Sources

    @classmethod
    def of(cls, error: ExpressionFailed, sources: Sources) -> "SourceNotFound":
        """Return the failure with what was read."""
        made = cls(error.code, error.message, error.where)
        made.sources = sources
        return made


@dataclass(frozen=True, slots=True)
class Reading:
    """A port that notes what it gives."""

    port: ResourcePort
    sources: Sources

    def get(
        self, api_version: str, plural: str, place: tuple[str, str], deadline_ns: int
    ) -> Json | None:
        """Return the object, None if there is none. Raises: as the port."""
        found = self.port.get(api_version, plural, place, deadline_ns)
        if found is None:
            group = api_version.rpartition("/")[0]
            self.sources.missing.add(Missing(group, plural, place[1]))
        self.sources.saw_object(found)
        return found

    def list(
        self,
        api_version: str,
        plural: str,
        namespace: str,
        labels: dict[str, str],
        deadline_ns: int,
    ) -> Json:
        """Return the List. Raises: as the port."""
        found = self.port.list(api_version, plural, namespace, labels, deadline_ns)
        items = found.get("items") if type(found) is dict else None
        for item in items if type(items) is list else ():
            self.sources.saw_object(item)
        return found

    def post(
        self,
        api_version: str,
        plural: str,
        namespace: str,
        body: Json,
        deadline_ns: int,
    ) -> Json:
        """Create the object and return it. Raises: as the port."""
        found = self.port.post(api_version, plural, namespace, body, deadline_ns)
        self.sources.saw_object(found)
        return found

    def plural(self, api_version: str, kind: str) -> str:
        """Return the plural name of a kind. Raises: as the port."""
        return self.port.plural(api_version, kind)
