"""Rewrite context entries that read the cluster as variables in CEL.

Room: cli. Takes: ``configMap`` and ``apiCall`` entries, the names of queries. Gives:
the expression that reads, and the names of what is read. Next: variables.py.
Source: docs/behaviour/engine 3.7; docs/behaviour/cel 12 (resource); Kubernetes API
paths.

A path has to name a resource whose types are known, and its variables have to be names:
any other text could lead to another resource. ``resource.Get`` of a missing object is
null, of which each field is an error, as the answer of the API server is.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from kyverno_mp.cli.fix.rewrite.jmespath import value_of
from kyverno_mp.cli.fix.rewrite.known_kinds import CONNECTED
from kyverno_mp.cli.fix.rewrite.match import Resource
from kyverno_mp.cli.fix.rewrite.query_values import Code, Names, Value
from kyverno_mp.cli.fix.rewrite.texts import NotRewritten, is_name, literal
from kyverno_mp.cli.fix.rewrite.typed import Typed, root_of
from kyverno_mp.policy.fields.context import ContextAPICall, ContextEntry
from kyverno_mp.policy.fields.meta import NamedExpression
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN, ApiResource

_SEGMENT: Final = r"(?:[a-z0-9.-]+|\{\{[^{}]+\}\})"
_PATH: Final = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[a-z0-9.-]+/[a-z0-9]+))"
    rf"(?:/namespaces/(?P<namespace>{_SEGMENT})(?=/))?"
    rf"/(?P<plural>[a-z]+)(?:/(?P<name>{_SEGMENT}))?"
    r"(?:\?labelSelector=(?P<label>[\w./-]+)(?:=|%3D)(?P<value>[\w.-]+))?"
)
_TEXT_IN_QUERY: Final = re.compile(r"'\{\{\s*+([^{}']+)\}\}'")
_NAMESPACE: Final = "Namespace"
_CONNECTED: Final = frozenset(CONNECTED.values())
_OF_CONFIG_MAPS: Final = ("data", "metadata")
"""The parts of a ConfigMap that a rule can read."""


class Read(NamedTuple):
    """Objects of a resource, or one of them; the parts are written as in the policy.

    ``name`` is "" for a list, ``namespace`` "" for all namespaces; ``label``: a name
    and a value that the objects have, or nothing.
    """

    resource: ApiResource
    namespace: str
    name: str
    label: tuple[str, ...] = ()


def read_of(entry: ContextEntry) -> Read:
    """Return what an entry reads. Raises: NotRewritten."""
    if entry.config_map is not None:
        namespace = entry.config_map.namespace or "default"
        (resource,) = (one for one in BUILT_IN if one.kind == "ConfigMap")
        return Read(resource, namespace, entry.config_map.name)
    call = entry.api_call
    if call is None or not call.url_path:
        raise NotRewritten(f"context entry {entry.name}, which is no variable")
    if call.method != "GET" or call.default is not None or call.data:
        raise NotRewritten(f"context entry {entry.name} with data or a default")
    return _read_at(entry.name, call)


def _read_at(entry: str, call: ContextAPICall) -> Read:
    parts = _PATH.fullmatch(call.url_path)
    if parts is None:
        raise NotRewritten(f"context entry {entry} with the path {call.url_path}")
    api_version, plural = parts["core"] or parts["group"], parts["plural"]
    resources = [
        one
        for one in BUILT_IN
        if one.plural == plural
        and one.group == api_version.rpartition("/")[0]
        and one.version == api_version.rpartition("/")[2]
    ]
    name, namespace = parts["name"] or "", parts["namespace"] or ""
    label = (parts["label"], parts["value"]) if parts["label"] else ()
    # An object of a resource with namespaces needs one, a cluster's resource has none.
    if (
        not resources
        or (namespace and not resources[0].is_namespaced)
        or (name and not namespace and resources[0].is_namespaced)
        or (name and label)
    ):
        raise NotRewritten(f"context entry {entry} with the path {call.url_path}")
    return Read(resources[0], namespace, name, label)


def read_names(entry: ContextEntry, names: Names) -> dict[str, Value]:
    """Return the names of what an entry reads. Raises: NotRewritten."""
    read = read_of(entry)
    if not is_name(entry.name) or entry.name in names:
        raise NotRewritten(f"context entry {entry.name}, whose name is used")
    _expression(read, names)
    holder = f"variables.{entry.name}"
    resource = read.resource
    item = root_of(
        [Resource(resource.group, resource.version, resource.plural, resource.kind)],
        holder,
    )
    if not item.notations:
        raise NotRewritten(f"context entry {entry.name}, whose type is not known")
    if entry.config_map is not None:
        return {f"{entry.name}.{part}": item.field(part) for part in _OF_CONFIG_MAPS}
    query = entry.api_call.jmes_path if entry.api_call is not None else ""
    within = {} if read.name else {"items": _list_of(item)}
    if not query:
        return (
            {entry.name: item}
            if read.name
            else {f"{entry.name}.items": within["items"]}
        )
    query, others = _without_variables(query, names)
    return {
        entry.name: value_of(query, {**within, **others}, item if read.name else None)
    }


def read_variables(
    entries: Sequence[ContextEntry], names: Names
) -> tuple[NamedExpression, ...]:
    """Return the variables of the entries that read the cluster."""
    return tuple(
        NamedExpression(name=entry.name, expression=_expression(read_of(entry), names))
        for entry in entries
        if entry.variable is None
    )


def _list_of(item: Typed) -> Typed:
    # K8S: the API server writes an empty list, never null.
    return item._replace(notations=tuple(f"[]{one}" for one in item.notations))


def _without_variables(query: str, names: Names) -> tuple[str, dict[str, Value]]:
    """Return a query in which names replace the variables, and these names."""
    others: dict[str, Value] = {}

    def name_of(found: re.Match[str]) -> str:
        value = value_of(found[1].strip(), names)
        if not isinstance(value, Code | Typed) or not value.is_name:
            raise NotRewritten(f"the variable {found[1]} in a query")
        name = f"{{{{{found[1]}}}}}"
        others[name] = value
        return f'"{name}"'

    changed = _TEXT_IN_QUERY.sub(name_of, query)
    if "{{" in _TEXT_IN_QUERY.sub("", query):
        raise NotRewritten("variables in a query")
    return changed, others


def _expression(read: Read, names: Names) -> str:
    resource = read.resource
    arguments = [literal(resource.api_version), literal(resource.plural)]
    arguments.append(_part(read.namespace, names))
    if read.name:
        arguments.append(_part(read.name, names))
        return f"dyn(resource.Get({', '.join(arguments)}))"
    if read.label:
        key, value = map(literal, read.label)
        arguments.append(f"{{{key}: {value}}}")
    return f"dyn(resource.List({', '.join(arguments)}).items)"


def _part(source: str, names: Names) -> str:
    """Return an expression for a name in a path."""
    if "{{" not in source:
        return literal(source)
    query = source.strip()[2:-2].strip()
    if "{{" in query or not source.strip().endswith("}}"):
        raise NotRewritten(f"the name {source} in a context entry")
    value = value_of(query, names)
    if query == "request.namespace" and not _has_namespace(names):
        raise NotRewritten("request.namespace of a kind without a namespace")
    if not isinstance(value, Code | Typed) or not value.is_name:
        raise NotRewritten(f"the name {source} in a context entry")
    return value.plain


def _has_namespace(names: Names) -> bool:
    """Return whether requests for the object have a namespace, as Namespaces do."""
    root = names["request.object"]
    if isinstance(root, Typed) and {one[1:] for one in root.notations} & _CONNECTED:
        return True
    kinds = (
        {one.rpartition(".")[2] for one in root.notations}
        if isinstance(root, Typed)
        else set()
    )
    scopes = [
        one.is_namespaced or one.kind == _NAMESPACE
        for one in BUILT_IN
        if one.kind in kinds
    ]
    return bool(scopes) and all(scopes)
