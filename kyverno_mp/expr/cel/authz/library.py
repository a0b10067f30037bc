"""List the functions, types and variables of the evaluation modes HTTP and Envoy.

Room: expr. Takes: the mode. Gives: Mode, ``mode_of``. Next:
compiler/cel_kinds/authorization.py, program/authorization.py.
Source: docs/behaviour/cel 15.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from kyverno_mp.expr.cel.authz import envoy, http, mcp, tokens
from kyverno_mp.expr.cel.authz.messages import Message, Schema, Verdict
from kyverno_mp.expr.cel.catalogue import base_library
from kyverno_mp.expr.cel.functions import encoders, mathematics
from kyverno_mp.expr.cel.functions.kyverno import images, resources, services
from kyverno_mp.expr.cel.functions.kyverno.documents import unmarshal
from kyverno_mp.expr.cel.library import Library, member
from kyverno_mp.expr.cel.types import Type, object_type, opaque_type

Constructor: TypeAlias = Callable[[dict[str, Any]], Any]
_VARIABLES: Final = object_type("kyverno.variables")
_MCP: Final = object_type("mcp.MCP")
_OF_BOTH: Final = Schema({**mcp.TABLES, **tokens.TABLES})
_ROUND_TO: Final = "math.round(double, int) -> double"
"""Kyverno's own function, which these modes do not have."""
_UNMARSHAL_COST: Final = 60


class Mode(NamedTuple):
    """An evaluation mode: the type of its requests and answers, and its functions."""

    name: str
    word: str
    """The mode in messages of the command line."""
    request: str
    response: str
    schema: Schema
    library: Callable[[], Library]
    verdict_of: Callable[[Message], Verdict]

    def names(self) -> dict[str, Type]:
        """Return the variables with their types, in the order of their values."""
        return {
            "object": object_type(self.request),
            "resource": opaque_type("resource.Context"),
            "image": opaque_type("imagedata.Context"),
            "http": opaque_type("http.Context"),
            "json": opaque_type("json.Json"),
            "jwks": opaque_type("jwk.Sets"),
            "mcp": _MCP,
            "variables": _VARIABLES,
        }

    def records(self, variables: dict[str, Type]) -> dict[str, dict[str, Type]]:
        """Return the fields of all types; ``variables`` are the policy's."""
        return {
            **_OF_BOTH.records(),
            **self.schema.records(),
            _MCP.name: mcp.FIELDS,
            _VARIABLES.name: variables,
        }

    def constructors(self) -> dict[str, Constructor]:
        """Return the constructors of all types."""
        return {**_OF_BOTH.constructors(), **self.schema.constructors()}


@cache
def _envoy_library() -> Library:
    return _common().extended(envoy.OVERLOADS)


@cache
def _http_library() -> Library:
    return _common().extended(http.OVERLOADS)


def _common() -> Library:
    return base_library().extended(
        (
            *(
                overload
                for overload in mathematics.OVERLOADS
                if overload.signature != _ROUND_TO
            ),
            *encoders.OVERLOADS,
            *images.OVERLOADS,
            *(
                overload
                for overload in services.OVERLOADS
                if "GlobalContext" not in overload.signature
            ),
            *resources.CLUSTER,
            *tokens.OVERLOADS,
            *mcp.OVERLOADS,
            member("Unmarshal(Json, dyn) -> dyn", unmarshal, cost=_UNMARSHAL_COST),
        )
    )


_MODES: Final = {
    mode.name: mode
    for mode in (
        Mode(
            "HTTP",
            "HTTP",
            http.REQUEST,
            http.RESPONSE,
            http.SCHEMA,
            _http_library,
            http.verdict_of,
        ),
        Mode(
            "Envoy",
            "envoy",
            envoy.REQUEST,
            envoy.RESPONSE,
            envoy.SCHEMA,
            _envoy_library,
            envoy.verdict_of,
        ),
    )
}


def mode_of(name: str) -> Mode:
    """Return the mode of this name, HTTP or Envoy."""
    return _MODES[name]
