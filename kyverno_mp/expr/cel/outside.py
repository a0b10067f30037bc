"""Define the variables that access external data, and the ports that they use.

Room: expr. Takes: ports. Gives: the values of ``resource``, ``globalContext``,
``image``, ``http`` and ``generator``; Protocols of the ports; ``asked``, which calls a
port. Next: expr/cel/functions/kyverno/resources.py and
expr/cel/functions/kyverno/services.py; program/ports.py names the ports, whose adapters
live at the edges. May touch: only the systems behind the ports.
Source: kyverno/sdk cel/libs/{resource,globalcontext,imagedata,http};
docs/behaviour/cel 12.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from kyverno_mp.errors import DeadlinePassed, DependencyError, ExpressionFailed
from kyverno_mp.expr.cel.library import Declaration, Implementation, member
from kyverno_mp.expr.cel.values import CelFailed, Value
from kyverno_mp.expr.effects import EFFECT_SHARED
from kyverno_mp.values.jsonvalue import Json

_CALL_COST: Final = 5_000
"""An external call waits for other systems; at most 200 calls fit into one
expression."""
_LOOKUP_COST: Final = 60
FORBIDDEN: Final = "resource.forbidden"
"""The error code if the API server denies permission; upstream's error mentions it."""


class ResourcePort(Protocol):
    """Access to objects of the cluster by apiVersion and plural name."""

    def get(
        self, api_version: str, plural: str, key: tuple[str, str], deadline_ns: int
    ) -> Json | None:
        """Return the object at ``(namespace, name)``; None if it does not exist.

        Raises: ExpressionFailed, DependencyError.
        """

    def list(
        self,
        api_version: str,
        plural: str,
        namespace: str,
        labels: dict[str, str],
        deadline_ns: int,
    ) -> Json:
        """Return the List. Raises: as ``get``."""

    def post(
        self,
        api_version: str,
        plural: str,
        namespace: str,
        body: Json,
        deadline_ns: int,
    ) -> Json:
        """Create the object and return it. Raises: as ``get``."""

    def plural(self, api_version: str, kind: str) -> str:
        """Return the plural name of a kind. Raises: ExpressionFailed."""


class GlobalPort(Protocol):
    """Access to GlobalContextEntries."""

    def reference(self, name: str, projection: str) -> Json:
        """Return the data; None for an unknown entry. Raises: ExpressionFailed."""

    def opens(self, name: str, namespace: str) -> bool:
        """Return whether policies of the namespace may read the entry."""


class ImagePort(Protocol):
    """Access to image metadata."""

    def metadata(self, image: str, deadline_ns: int) -> Json:
        """Return the metadata. Raises: ExpressionFailed, DependencyError."""


class GeneratorPort(Protocol):
    """Creates the objects that policies generate."""

    def generate(
        self, namespace: str, objects: Sequence[Json], deadline_ns: int
    ) -> None:
        """Create the objects. Raises: ExpressionFailed, DependencyError."""


class HttpRequest(NamedTuple):
    """One call of a service; ``body`` is None if the call has no body."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None
    ca_bundle: str


class HttpPort(Protocol):
    """Access to services by URL, restricted by the operator's rules."""

    def exchange(self, request: HttpRequest, deadline_ns: int) -> tuple[int, bytes]:
        """Return the status and the body. Raises: ExpressionFailed, DependencyError."""


class ResourceContext(NamedTuple):
    """The value of ``resource``; ``namespace``: a namespaced policy's, else ""."""

    port: ResourcePort | None
    namespace: str = ""
    deadline_ns: int = 0

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "resource.Context"


class GlobalContext(NamedTuple):
    """The value of ``globalContext``; ``namespace``: a namespaced policy's, else ""."""

    port: GlobalPort | None
    namespace: str = ""

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "globalcontext.Context"


class ImageContext(NamedTuple):
    """The value of ``image``."""

    port: ImagePort | None
    deadline_ns: int = 0

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "imagedata.Context"


class HttpContext(NamedTuple):
    """The value of ``http``, and of ``http.client(..)`` with its certificates."""

    port: HttpPort | None
    is_namespaced: bool = False
    ca_bundle: str = ""
    deadline_ns: int = 0

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "http.Context"


class GeneratorContext(NamedTuple):
    """The value of ``generator``; ``namespace``: a namespaced policy's, else ""."""

    port: GeneratorPort | None
    namespace: str = ""
    deadline_ns: int = 0

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "generator.Context"


class Gvr(NamedTuple):
    """A resource, the result of ``resource.toGVR``."""

    api_version: str
    plural: str

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "schema.GroupVersionResource"


def asked(prefix: str, call: Callable[[], Value]) -> Value:
    """Call a port; an error of the port becomes an error of the expression.

    Raises: DeadlinePassed, which nothing absorbs.
    """
    try:
        return call()
    except DeadlinePassed:
        raise
    except (ExpressionFailed, DependencyError) as error:
        denied = "permission denied: " if error.code == FORBIDDEN else ""
        raise CelFailed(f"{prefix}: {denied}{error.message}") from error


def twins(
    name: str, args: str, result: str, call: Implementation, effects: int
) -> Iterator[Declaration]:
    """Declare a function under both of its names, e.g. ``get`` and ``Get``."""
    cost = _CALL_COST if effects & ~EFFECT_SHARED else _LOOKUP_COST
    for spelled in (name, name[0].upper() + name[1:]):
        yield member(f"{spelled}({args}) -> {result}", call, cost=cost, effects=effects)
