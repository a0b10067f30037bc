"""Compile context entries.

Room: compiler. Takes: the context entries of a rule, a foreach entry, a mutate target
or a clean-up policy. Gives: entry records. Next: compiler/build.py,
compiler/rules/body.py. Source:
docs/behaviour/engine 3.7.

An API call is compiled from its JSON: any of its strings can contain variables, so
typed records exist only after substitution.
"""

from collections.abc import Iterable

from msgspec import structs

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
from kyverno_mp.policy.fields.context import ContextAPICall, ContextEntry, Variable
from kyverno_mp.values.jsonvalue import Json


def build_entries(entries: Iterable[ContextEntry]) -> tuple[ContextEntryIR, ...]:
    """Compile the entries in order."""
    return tuple(_entry(entry) for entry in entries)


def _entry(entry: ContextEntry) -> ContextEntryIR:
    name = entry.name
    if (config_map := entry.config_map) is not None:
        return ConfigMapEntryIR(
            name, parse_document(config_map.name), _text(config_map.namespace)
        )
    if entry.api_call is not None:
        return _api_call(name, entry.api_call)
    if (registry := entry.image_registry) is not None:
        return ImageRegistryEntryIR(
            name, parse_document(registry.reference), _text(registry.jmes_path)
        )
    if (reference := entry.global_reference) is not None:
        return GlobalReferenceEntryIR(
            name, parse_document(reference.name), _text(reference.jmes_path)
        )
    if entry.variable is not None:
        return _variable(name, entry.variable)
    return InvalidEntryIR(name)


def _api_call(name: str, call: ContextAPICall) -> ApiCallEntryIR:
    without_default = structs.replace(call, default=None).raw()
    return ApiCallEntryIR(
        name, parse_document(without_default), call.default, call.default is not None
    )


def _variable(name: str, variable: Variable) -> VariableEntryIR:
    return VariableEntryIR(
        name,
        _value(variable.value),
        _text(variable.jmes_path),
        _value(variable.default),
    )


def _text(source: str) -> Document | None:
    return parse_document(source) if source else None


def _value(value: Json) -> Document | None:
    return None if value is None else parse_document(value)
