"""Identify the object that a generate rule creates.

Room: program.generate. Takes: a substituted pattern. Gives: DownstreamTarget. Next:
program/generate/pattern.
Source: docs/behaviour/controllers 1.2 (ResourceSpec), 5.4.
"""

from collections.abc import Mapping
from typing import NamedTuple

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.jsonvalue import Json


class DownstreamTarget(NamedTuple):
    """Identity of one object; ``str`` formats it as upstream does in errors."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.api_version}/{self.kind}/{self.namespace}/{self.name}"


def target_of(pattern: Mapping[str, Json]) -> DownstreamTarget:
    """Return the identity of the pattern's target.

    Raises: ExpressionFailed if a variable resolved to a value that is not a string.
    """
    return DownstreamTarget(
        text_of(pattern, "apiVersion"),
        text_of(pattern, "kind"),
        text_of(pattern, "namespace"),
        text_of(pattern, "name"),
    )


def text_of(holder: Mapping[str, Json], key: str) -> str:
    """Return a string field, "" if it is absent. Raises: ExpressionFailed."""
    value = holder.get(key)
    if value is None:
        return ""
    if type(value) is str:
        return value
    raise ExpressionFailed(
        "generate.target",
        f"json: cannot unmarshal {key} of a generate pattern into Go value of type "
        "string",
    )
