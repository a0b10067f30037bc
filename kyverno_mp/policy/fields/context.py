"""Declare context entries: sources of a rule's data besides the request.

Room: policy. Takes: nothing. Gives: ContextEntry and its parts. Next: rules,
clean-up policies, global context.
Source: docs/behaviour/engine 3.7; docs/behaviour/controllers 1.2 (ContextEntry).
"""

from typing import Literal

from kyverno_mp.policy.fields.record import Fields
from kyverno_mp.values.jsonvalue import Json

Method = Literal["GET", "POST"]
RegistryProvider = Literal["default", "amazon", "azure", "google", "github"]


class ConfigMapReference(Fields, frozen=True, kw_only=True):
    """``configMap``; both parts may contain variables."""

    name: str
    namespace: str = ""


class RequestData(Fields, frozen=True, kw_only=True):
    """One field of a POST body."""

    key: str
    value: Json


class HTTPHeader(Fields, frozen=True, kw_only=True):
    """One header of a service call."""

    key: str
    value: str


class ServiceCall(Fields, frozen=True, kw_only=True):
    """A service outside the API server."""

    url: str
    headers: tuple[HTTPHeader, ...] = ()
    ca_bundle: str = ""


class ContextAPICall(Fields, frozen=True):
    """``apiCall`` of a context entry: urlPath or service."""

    url_path: str = ""
    method: Method = "GET"
    data: tuple[RequestData, ...] = ()
    service: ServiceCall | None = None
    default: Json = None
    jmes_path: str = ""


class ImageRegistryCredentials(Fields, frozen=True):
    """Credentials of a registry."""

    allow_insecure_registry: bool = False
    providers: tuple[RegistryProvider, ...] = ()
    secrets: tuple[str, ...] = ()


class ImageRegistry(Fields, frozen=True, kw_only=True):
    """``imageRegistry``: data of one image."""

    reference: str
    jmes_path: str = ""
    image_registry_credentials: ImageRegistryCredentials | None = None


class Variable(Fields, frozen=True):
    """``variable``; a null value or default is treated as absent, as in upstream."""

    value: Json = None
    jmes_path: str = ""
    default: Json = None


class GlobalReference(Fields, frozen=True, kw_only=True):
    """``globalReference``: the name of a GlobalContextEntry."""

    name: str
    jmes_path: str = ""


class ContextEntry(Fields, frozen=True, kw_only=True):
    """One entry; exactly one of the five sources must be set."""

    name: str
    config_map: ConfigMapReference | None = None
    api_call: ContextAPICall | None = None
    image_registry: ImageRegistry | None = None
    variable: Variable | None = None
    global_reference: GlobalReference | None = None
