"""Declare GlobalContextEntry.

Room: policy. Takes: nothing. Gives: GlobalContextEntry. Next: policy/reading/decode.py,
which creates it; the leader, which loads its data.
Source: docs/behaviour/controllers 1.5, 11.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from kyverno_mp.limits import OPENED_NAMESPACES_MAX
from kyverno_mp.policy.fields.context import Method, RequestData, ServiceCall
from kyverno_mp.policy.fields.meta import ObjectMeta
from kyverno_mp.policy.fields.record import Fields
from kyverno_mp.values.jsonvalue import Json

OPENED_TO: Final = "kyverno-mp.io/allowed-namespaces"
"""The annotation with the namespaces whose policies may read the entry."""
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class KubernetesResource(Fields, frozen=True, kw_only=True):
    """A collection to watch; an empty group is the core group."""

    group: str = ""
    version: str
    resource: str
    namespace: str = ""


class ExternalAPICall(Fields, frozen=True):
    """A call to repeat; ``refresh_interval`` is a Go duration string."""

    url_path: str = ""
    method: Method = "GET"
    data: tuple[RequestData, ...] = ()
    service: ServiceCall | None = None
    refresh_interval: str = "10m"
    retry_limit: Annotated[int, msgspec.Meta(ge=1)] = 3


class Projection(Fields, frozen=True, kw_only=True):
    """A named part of the data."""

    name: str
    jmes_path: str


class GlobalContextSpec(Fields, frozen=True):
    """``spec``, with exactly one of the two sources."""

    kubernetes_resource: KubernetesResource | None = None
    api_call: ExternalAPICall | None = None
    projections: tuple[Projection, ...] = ()


class GlobalContextEntry(Fields, frozen=True, kw_only=True):
    """Data that rules share under one name."""

    api_version: str
    kind: Literal["GlobalContextEntry"]
    metadata: ObjectMeta
    spec: GlobalContextSpec
    status: Json = None


def opened_to(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the namespaces whose policies may read the entry; none if invalid."""
    return () if opened_problem(annotations) else _opened(annotations)


def opened_problem(annotations: Mapping[str, str]) -> str:
    """Return why the annotation ``OPENED_TO`` is invalid, "" if it is valid."""
    names = _opened(annotations)
    if len(names) > OPENED_NAMESPACES_MAX:
        return f"at most {OPENED_NAMESPACES_MAX} namespaces"
    if not all(map(_NAMESPACE.fullmatch, names)):
        return "must be names of namespaces, separated by commas"
    return ""


def _opened(annotations: Mapping[str, str]) -> tuple[str, ...]:
    names = annotations.get(OPENED_TO)
    if names is None:
        return ()
    return tuple(name.strip() for name in names.split(",", OPENED_NAMESPACES_MAX))
