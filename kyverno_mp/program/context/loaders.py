"""Load context entries: variable, configMap, globalReference, imageRegistry.

Room: program. Takes: ContextEntryIR records. Gives: closures that compute an entry's
value in a scope. Next: program/context/entries. For apiCall see
program/context/api_call.
May touch: the cluster data through the ports of the scope.
Source: docs/behaviour/engine 3.7; Kyverno pkg/engine/context/loaders/*.go.
"""

from collections.abc import Callable
from typing import Protocol

from kyverno_mp.errors import DeadlinePassed, DependencyError, ExpressionFailed
from kyverno_mp.expr.effects import NO_GLOBAL_REFERENCE
from kyverno_mp.expr.jmespath.query import search
from kyverno_mp.expr.scope import Runtime, Scope
from kyverno_mp.expr.template.link import Resolve, link_document
from kyverno_mp.expr.template.lookup import lookup_for
from kyverno_mp.expr.template.nodes import Document
from kyverno_mp.ir.rules import (
    ConfigMapEntryIR,
    GlobalReferenceEntryIR,
    ImageRegistryEntryIR,
    VariableEntryIR,
)
from kyverno_mp.program.own_namespace import is_outside
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.values.go.gotext import go_type, sprint
from kyverno_mp.values.jsonvalue import Json


class LoadingScope(Scope, Protocol):
    """A Scope with the ports that loaders need."""

    @property
    def cluster_data(self) -> ClusterData:
        """The ports for cluster data."""


_PARSED_PER_STEP = 4
Load = Callable[[LoadingScope], Json]


def failed(message: str, error: ExpressionFailed | None = None) -> ExpressionFailed:
    """Build a loader's error with the code of its cause."""
    return ExpressionFailed(error.code if error else "context.entry", message)


def with_floats(value: Json, runtime: Runtime) -> Json:
    """Return JSON data with every int64 as float64, as Go decodes it."""
    kind = type(value)
    if kind is int:
        return float(value)
    if kind is dict:
        runtime.charge_entries(len(value))
        return {key: with_floats(item, runtime) for key, item in value.items()}
    if kind is list:
        runtime.charge_items(2 * len(value))
        return [with_floats(item, runtime) for item in value]
    return value


def as_read(scope: LoadingScope, value: Json) -> Json:
    """Return data as the JSON context stores it.

    KYVERNO: upstream decodes entries from JSON, so their numbers are float64
    (docs/behaviour/engine 0.2).
    """
    # PERF: if ints count as numbers, the copy would make no visible difference.
    return (
        value if scope.runtime.ints_are_numbers else with_floats(value, scope.runtime)
    )


def from_port(call: Callable[[], Json]) -> Json:
    """Call a port; if it is unavailable, the expression fails, as in upstream."""
    try:
        return call()
    except DeadlinePassed:
        raise
    except DependencyError as error:
        raise ExpressionFailed(error.code, error.message) from error


def search_data(scope: LoadingScope, path: str, data: Json) -> Json:
    """Apply JMESPath to loaded data; raises ExpressionFailed without a prefix."""
    scope.runtime.charge(1 + len(path) // _PARSED_PER_STEP)
    return search(path)(scope.runtime, data)


def given(document: Document | None) -> bool:
    """Return whether an optional field is set; null counts as absent."""
    return document is not None and not (
        document.is_constant and document.constant is None
    )


def link_variable_entry(entry: VariableEntryIR) -> Load:
    """Link ``variable {value, jmesPath, default}``."""
    name = entry.name
    path_of = _link_path(entry)
    default_of = _link_part(name, entry.default)
    value_of = _link_part(name, entry.value)
    has_value = given(entry.value)

    def load(scope: LoadingScope) -> Json:
        path = path_of(scope)
        default = default_of(scope)
        if has_value:
            output = value_of(scope)
            if path:
                output = _searched(scope, path, output, default)
        else:
            output = _queried(scope, path, default) if path else default
        if output is None:
            raise failed(
                f"failed to add context entry for variable {name} since it evaluated"
                " to nil"
            )
        return as_read(scope, output)

    return load


def _link_path(entry: VariableEntryIR) -> Callable[[LoadingScope], str]:
    if entry.jmes_path is None:
        return lambda _scope: ""
    resolve, source = link_document(entry.jmes_path), entry.jmes_path.source

    def path_of(scope: LoadingScope) -> str:
        try:
            path = resolve(scope)
        except ExpressionFailed as error:
            raise failed(
                f"failed to substitute variables in context entry {entry.name}"
                f" {source}: {error.message}",
                error,
            ) from error
        if type(path) is not str:
            raise failed(
                f"jmespath value must be a string {entry.name} {source}: <nil>"
            )
        return path

    return path_of


def _link_part(name: str, document: Document | None) -> Resolve:
    """Link value or default; null if it is absent."""
    if document is None:
        return lambda _scope: None
    resolve, source = link_document(document), document.source

    def part_of(scope: Scope) -> Json:
        try:
            return resolve(scope)
        except ExpressionFailed as error:
            raise failed(
                f"failed to substitute variables in context entry {name}"
                f" {sprint(source)}: {error.message}",
                error,
            ) from error

    return part_of


def _searched(scope: LoadingScope, path: str, value: Json, default: Json) -> Json:
    """Apply jmesPath to the value; the default replaces errors, but not null."""
    try:
        return search_data(scope, path, value)
    except ExpressionFailed as error:
        if default is not None:
            return default
        raise failed(
            f"failed to apply jmespath {path} to variable <nil>: {error.message}",
            error,
        ) from error


def _queried(scope: LoadingScope, path: str, default: Json) -> Json:
    """Query the context; the default replaces errors and null."""
    try:
        value = lookup_for(path)(scope)
    except ExpressionFailed as error:
        if default is not None:
            return default
        raise failed(
            f"failed to apply jmespath {path} to variable <nil>: {error.message}",
            error,
        ) from error
    return default if value is None else value


def link_config_map(entry: ConfigMapEntryIR, policy_namespace: str) -> Load:
    """Link ``configMap {name, namespace}``."""
    name = entry.name
    name_of = _link_name(name, "name", entry.config_map_name)
    namespace_of = (
        _link_name(name, "namespace", entry.namespace)
        if entry.namespace is not None
        else (lambda _scope: "")
    )

    def fetch(scope: LoadingScope) -> Json:
        map_name = name_of(scope)
        namespace = namespace_of(scope) or policy_namespace or "default"
        if is_outside(policy_namespace, namespace):
            raise failed(
                f'context entry {name}: configMap namespace "{namespace}" is different'
                f' from policy namespace "{policy_namespace}"'
            )
        port = scope.cluster_data.config_maps
        assert port is not None, "registered only with a port"
        try:
            deadline_ns = scope.runtime.deadline_ns
            config_map = from_port(
                lambda: port.config_map(namespace, map_name, deadline_ns)
            )
        except ExpressionFailed as error:
            raise failed(
                f"failed to get configmap {namespace}/{map_name} : {error.message}",
                error,
            ) from error
        return {
            "data": config_map.get("data"),
            "metadata": config_map.get("metadata") or {},
        }

    def load(scope: LoadingScope) -> Json:
        try:
            return as_read(scope, fetch(scope))
        except ExpressionFailed as error:
            raise failed(
                f"failed to retrieve config map for context entry {name}:"
                f" {error.message}",
                error,
            ) from error

    return load


def _link_name(
    entry: str, field: str, document: Document
) -> Callable[[LoadingScope], str]:
    resolve, source = link_document(document), document.source

    def name_of(scope: LoadingScope) -> str:
        prefix = (
            f"failed to substitute variables in context {entry} configMap.{field}"
            f" {source}: "
        )
        try:
            value = resolve(scope)
        except ExpressionFailed as error:
            raise failed(prefix + error.message, error) from error
        if type(value) is not str:
            kind = "<nil>" if value is None else go_type(value)
            raise failed(f"{prefix}expected string, got {kind}")
        return value

    return name_of


def link_global_reference(entry: GlobalReferenceEntryIR) -> Load:
    """Link ``globalReference {name, jmesPath}``."""
    name = entry.name
    reference_of = link_document(entry.reference)
    path_of = (
        link_document(entry.jmes_path)
        if entry.jmes_path is not None
        else (lambda _scope: "")
    )

    def fetch(scope: LoadingScope) -> Json:
        reference, path = reference_of(scope), path_of(scope)
        if type(reference) is not str or type(path) is not str:
            raise failed("globalReference name and jmesPath must be strings")
        port = scope.cluster_data.global_context
        assert port is not None, "registered only with a port"
        data = as_read(scope, from_port(lambda: port.entry(reference)))
        if not path:
            return data
        try:
            return search_data(scope, path, data)
        except ExpressionFailed as error:
            raise failed(
                f"failed to apply JMESPath {path} for context entry {name}:"
                f" {error.message}",
                error,
            ) from error

    def load(scope: LoadingScope) -> Json:
        try:
            return fetch(scope)
        except ExpressionFailed as error:
            raise failed(
                f"failed to marshal APICall data for context entry {name}:"
                f" {error.message}",
                error,
            ) from error

    return load


def link_refusal(
    entry: GlobalReferenceEntryIR, policy_namespace: str
) -> Callable[[ClusterData], str]:
    """Return a function that returns why a namespaced policy may not read the entry.

    "" if the operator has opened the entry to the namespace. SAFETY: an entry whose
    name is known only at run time is refused, as in the policy's review.
    """
    message = f"context entry {entry.name}: {NO_GLOBAL_REFERENCE}"
    reference = entry.reference
    name = reference.constant if reference.is_constant else None

    def refusal(cluster_data: ClusterData) -> str:
        port = cluster_data.global_context
        if type(name) is not str or port is None:
            return message
        return "" if port.opens(name.partition(".")[0], policy_namespace) else message

    return refusal


def link_image_registry(entry: ImageRegistryEntryIR, policy_namespace: str) -> Load:
    """Link ``imageRegistry {reference, jmesPath}``."""
    name = entry.name
    # KYVERNO: upstream's first message lacks its first letter.
    reference_of = _link_image_part(name, "ailed", entry.reference)
    path_of = (
        _link_image_part(name, "failed", entry.jmes_path)
        if entry.jmes_path is not None
        else (lambda _scope: "")
    )

    def load(scope: LoadingScope) -> Json:
        reference, path = reference_of(scope), path_of(scope)
        if type(reference) is not str:
            raise failed(
                f"invalid image reference {sprint(reference)}, image reference must be"
                " a string"
            )
        port = scope.cluster_data.images
        assert port is not None, "registered only with a port"
        deadline_ns = scope.runtime.deadline_ns
        try:
            data = from_port(
                lambda: port.image_data(
                    reference, deadline_ns, is_tenants=bool(policy_namespace)
                )
            )
        except ExpressionFailed as error:
            raise failed(
                f"failed to fetch image descriptor: {reference}, error:"
                f" {error.message}",
                error,
            ) from error
        data = as_read(scope, data)
        if not path:
            return data
        try:
            return search_data(scope, str(path), data)
        except ExpressionFailed as error:
            raise failed(
                f"failed to apply JMESPath ({path}) results to context entry {name},"
                f" error: {error.message}",
                error,
            ) from error

    return load


def _link_image_part(name: str, verb: str, document: Document) -> Resolve:
    resolve, source = link_document(document), document.source

    def part_of(scope: Scope) -> Json:
        try:
            return resolve(scope)
        except ExpressionFailed as error:
            raise failed(
                f"{verb} to substitute variables in context entry {name} {source}:"
                f" {error.message}",
                error,
            ) from error

    return part_of
