"""Compile context entries.

Room: compiler. Takes: the ``context`` list of a decoded rule or foreach entry. Gives:
entry records. Next: compiler/build.py, compiler/body.py.
May touch: nothing outside its arguments. Source: docs/behaviour/engine 3.7.
"""

from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.expr.template.nodes import Document
from kyverno_mp.ir.rules import (
    ApiCallEntryIR,
    ConfigMapEntryIR,
    ContextEntryIR,
    GlobalReferenceEntryIR,
    ImageRegistryEntryIR,
    InvalidEntryIR,
    VariableEntryIR,
)
from kyverno_mp.values.jsonvalue import Json


def build_entries(raw: Json) -> tuple[ContextEntryIR, ...]:
    """Compile the list; None and [] give ()."""
    return tuple(_entry(item) for item in raw or ())


def _optional(value: Json) -> Document | None:
    return None if value is None or value == "" else parse_document(value)


def _entry(raw: dict[str, Json]) -> ContextEntryIR:
    name = raw.get("name") or ""
    if (config_map := raw.get("configMap")) is not None:
        return ConfigMapEntryIR(
            name,
            parse_document(config_map.get("name") or ""),
            _optional(config_map.get("namespace")),
        )
    if (api_call := raw.get("apiCall")) is not None:
        call = {key: value for key, value in api_call.items() if key != "default"}
        default = api_call.get("default")
        return ApiCallEntryIR(name, parse_document(call), default, default is not None)
    if (registry := raw.get("imageRegistry")) is not None:
        return ImageRegistryEntryIR(
            name,
            parse_document(registry.get("reference") or ""),
            _optional(registry.get("jmesPath")),
        )
    if (reference := raw.get("globalReference")) is not None:
        return GlobalReferenceEntryIR(
            name,
            parse_document(reference.get("name") or ""),
            _optional(reference.get("jmesPath")),
        )
    if (variable := raw.get("variable")) is not None:
        value, default = variable.get("value"), variable.get("default")
        return VariableEntryIR(
            name,
            None if value is None else parse_document(value),
            _optional(variable.get("jmesPath")),
            None if default is None else parse_document(default),
        )
    return InvalidEntryIR(name)
