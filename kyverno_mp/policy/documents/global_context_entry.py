"""Declare GlobalContextEntry.

Room: policy. Takes: nothing. Gives: GlobalContextEntry. Next: policy/reading/decode.py,
which creates it; the leader, which loads its data. May touch: nothing outside its
arguments.
Source: docs/behaviour/controllers 1.5, 11.
"""

from typing import Annotated, Literal

import msgspec

from kyverno_mp.policy.fields.context import Method, RequestData, ServiceCall
from kyverno_mp.policy.fields.meta import ObjectMeta
from kyverno_mp.policy.fields.record import Fields
from kyverno_mp.values.jsonvalue import Json


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
