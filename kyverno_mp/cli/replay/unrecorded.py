"""Replace the cluster during a replay: none of its data is known.

Room: cli. Takes: a function that notes the data that a rule requested. Gives: the ports
of program/ports.py. Next: verdicts, which names the policies of these rules.

Ports that returned empty data could turn a denial into a pass.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn, cast

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.program.ports import (
    AccessQuery,
    ApiRequest,
    CelPorts,
    ClusterData,
    Namespaces,
    ObjectQuery,
)
from kyverno_mp.values.jsonvalue import Json

Note = Callable[[str], None]
_SHOWN_CHARACTERS_MAX: Final = 200


class Unrecorded:
    """All ports; each call is noted and fails."""

    def __init__(self, note: Note) -> None:
        self._note = note

    def _lacks(self, data: str) -> NoReturn:
        self._note(data)
        raise ExpressionFailed(
            "replay.not_recorded", f"not decidable from the recording: {data}"
        )

    def config_map(self, namespace: str, name: str, deadline_ns: int) -> Json:
        """Note a ConfigMap."""
        del deadline_ns
        self._lacks(f"ConfigMap {namespace}/{name}")

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        """Note a call to the API server or to a service."""
        del deadline_ns
        self._lacks(f"{request.method} {request.path or request.url}")

    def image_data(
        self, reference: str, deadline_ns: int, *, is_tenants: bool = False
    ) -> Json:
        """Note an image."""
        del deadline_ns, is_tenants
        self._lacks(f"image {reference}")

    def entry(self, name: str) -> Json:
        """Note a GlobalContextEntry."""
        self._lacks(f"GlobalContextEntry {name}")

    def opens(self, name: str, namespace: str) -> bool:
        """Note a GlobalContextEntry of a namespaced policy."""
        self._lacks(f"GlobalContextEntry {name} for namespace {namespace}")

    def namespace(self, name: str, deadline_ns: int) -> Json:
        """Note a Namespace, because only its labels are recorded."""
        del deadline_ns
        self._lacks(f"Namespace {name}")

    def objects(self, object_query: ObjectQuery, deadline_ns: int) -> Sequence[Json]:
        """Note objects."""
        del deadline_ns
        self._lacks(f"{object_query.kind} {object_query.namespace}/{object_query.name}")

    def may(self, access_query: AccessQuery, deadline_ns: int) -> tuple[bool, str]:
        """Note an access check."""
        del deadline_ns
        self._lacks(f"access of user {access_query.user}")

    def is_namespaced(self, group: str, version: str, kind: str) -> bool:
        """Note the scope of a kind."""
        del version
        self._lacks(f"scope of {group}/{kind}")

    def random_bytes(self, count: int) -> bytes:
        """Note a random value, which differs in each run."""
        self._note("random()")
        return bytes(count)

    def resolve_host(self, host: str) -> list[str]:
        """Note an address."""
        self._lacks(f"addresses of {host}")


class UnrecordedCel:
    """The ports of CEL policies with any method; each call is noted and fails."""

    def __init__(self, note: Note, prefix: str) -> None:
        self._note = note
        self._what = prefix

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        return self.noted(name)

    def noted(self, name: str) -> Callable[..., NoReturn]:
        """Return the method, which notes its call and fails."""

        def call(*arguments: object, **_named: object) -> NoReturn:
            strings = (
                str(argument)
                for argument in arguments
                if type(argument) is str and argument
            )
            lookup = " ".join((self._what, name, *strings))[:_SHOWN_CHARACTERS_MAX]
            self._note(lookup)
            raise ExpressionFailed(
                "replay.not_recorded", f"not decidable from the recording: {lookup}"
            )

        return call


class _CelNamespaces:
    """Namespaces with the recorded labels, which namespaceSelectors need."""

    def __init__(
        self,
        note: Note,
        labels: Namespaces,
        note_readers: Callable[[str], None],
        namespaces: Mapping[str, Json],
    ) -> None:
        self._note = note
        self._labels = labels
        self._note_readers = note_readers
        self._namespaces = namespaces

    def namespace(self, name: str, deadline_ns: int) -> Json:
        """Return the labels; note the policies that may read other fields."""
        del deadline_ns
        labels: Mapping[str, str] | None = self._labels.labels(name)
        if labels is None:
            self._note(f"Namespace {name}")
            raise ExpressionFailed(
                "replay.not_recorded", f"not decidable from the recording: {name}"
            )
        namespace = self._namespaces.get(f"{name}/")
        if namespace is not None:
            metadata = {**namespace["metadata"], "labels": dict(labels)}
            return {**namespace, "metadata": metadata}
        self._note_readers(f"Namespace {name}")
        return {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": dict(labels)},
        }


class Known(NamedTuple):
    """Ports that know more than the recording."""

    ports: Unrecorded
    resources: Any
    """The port of ``resource`` in CEL."""
    references: Any
    """The port of ``globalContext`` in CEL."""
    namespaces: Mapping[str, Json]
    """Each Namespace, by its name with a slash."""


def unrecorded(
    note: Note,
    namespaces: Namespaces,
    note_readers: Callable[[str], None],
    known: Known | None = None,
) -> ClusterData:
    """Return the ports; ``namespaces`` provides the recorded labels.

    ``note_readers`` notes a Namespace for the candidates in CEL that may read it;
    ``known`` is more than the recording has.
    """
    ports = known.ports if known else Unrecorded(note)

    def cel(prefix: str) -> Any:
        return cast("Any", UnrecordedCel(note, prefix))

    return ClusterData(
        config_maps=ports,
        api_calls=ports,
        images=ports,
        global_context=ports,
        namespaces=namespaces,
        namespace_objects=ports,
        objects=ports,
        scopes=ports,
        authority=ports,
        random_bytes=ports.random_bytes,
        resolve_host=ports.resolve_host,
        cel=CelPorts(
            resources=known.resources if known else cel("resource"),
            references=known.references if known else cel("globalContext"),
            images=cel("image"),
            services=cel("http"),
            namespaces=_CelNamespaces(
                note, namespaces, note_readers, known.namespaces if known else {}
            ),
            generator=cel("generator"),
            types=cel("schema"),
        ),
    )
