"""Implement ``resource``: get, list, post and toGVR.

Room: expr. Takes: Meter and values. Gives: CLUSTER and NAMESPACED, the functions for
cluster-scoped and for namespaced policies. Next: expr/cel/catalogue.py.
May touch: the cluster, through the port of the variable.
Source: kyverno/sdk cel/libs/resource; docs/behaviour/cel 12.

The functions for namespaced policies have no parameter ``namespace``: they use the
policy's namespace.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from kyverno_mp.expr.cel.functions.kyverno.documents import json_data
from kyverno_mp.expr.cel.library import Declaration, Implementation
from kyverno_mp.expr.cel.outside import Gvr, ResourceContext, ResourcePort, asked, twins
from kyverno_mp.expr.cel.values import CelFailed, Meter, Value
from kyverno_mp.expr.effects import EFFECT_CLUSTER


def _port_of(context: ResourceContext, prefix: str) -> ResourcePort:
    if context.port is None:
        raise CelFailed(f"{prefix}: no cluster is available")
    return context.port


def _get(
    _meter: Meter, context: ResourceContext, api: str, plural: str, *names: str
) -> Value:
    prefix = "failed to get resource"
    port = _port_of(context, prefix)
    namespace = context.namespace or names[0]
    at = (namespace, names[-1])
    return asked(prefix, lambda: port.get(api, plural, at, context.deadline_ns))


def _get_gvr(meter: Meter, context: ResourceContext, gvr: Gvr, *names: str) -> Value:
    return _get(meter, context, gvr.api_version, gvr.plural, *names)


def _listed(
    context: ResourceContext, gvr: Gvr, namespace: str, labels: dict[str, str]
) -> Value:
    prefix = "failed to list resource"
    port = _port_of(context, prefix)
    for name, value in labels.items():
        if name.__class__ is not str or value.__class__ is not str:
            raise CelFailed("invalid arg 4: labels are not strings")
    within = context.namespace or namespace
    return asked(
        prefix,
        lambda: port.list(
            gvr.api_version, gvr.plural, within, labels, context.deadline_ns
        ),
    )


def _list(
    _meter: Meter, context: ResourceContext, api: str, plural: str, namespace: str
) -> Value:
    return _listed(context, Gvr(api, plural), namespace, {})


def _list_labelled(
    _meter: Meter,
    context: ResourceContext,
    api: str,
    plural: str,
    namespace: str,
    labels: dict[str, str],
) -> Value:
    return _listed(context, Gvr(api, plural), namespace, labels)


def _list_own(_meter: Meter, context: ResourceContext, api: str, plural: str) -> Value:
    return _listed(context, Gvr(api, plural), "", {})


def _list_own_labelled(
    _meter: Meter,
    context: ResourceContext,
    api: str,
    plural: str,
    labels: dict[str, str],
) -> Value:
    return _listed(context, Gvr(api, plural), "", labels)


def _list_gvr(
    _meter: Meter, context: ResourceContext, gvr: Gvr, namespace: str
) -> Value:
    return _listed(context, gvr, namespace, {})


def _list_gvr_labelled(
    _meter: Meter,
    context: ResourceContext,
    gvr: Gvr,
    namespace: str,
    labels: dict[str, str],
) -> Value:
    return _listed(context, gvr, namespace, labels)


def _list_own_gvr(_meter: Meter, context: ResourceContext, gvr: Gvr) -> Value:
    return _listed(context, gvr, "", {})


def _list_own_gvr_labelled(
    _meter: Meter, context: ResourceContext, gvr: Gvr, labels: dict[str, str]
) -> Value:
    return _listed(context, gvr, "", labels)


def _posted(
    meter: Meter, context: ResourceContext, gvr: Gvr, namespace: str, body: Value
) -> Value:
    prefix = "failed to create resource"
    port = _port_of(context, prefix)
    data = json_data(meter, body)
    within = context.namespace or namespace
    return asked(
        prefix,
        lambda: port.post(
            gvr.api_version, gvr.plural, within, data, context.deadline_ns
        ),
    )


def _post(
    meter: Meter, context: ResourceContext, api: str, plural: str, body: Value
) -> Value:
    return _posted(meter, context, Gvr(api, plural), "", body)


def _post_within(
    meter: Meter,
    context: ResourceContext,
    api: str,
    plural: str,
    namespace: str,
    body: Value,
) -> Value:
    return _posted(meter, context, Gvr(api, plural), namespace, body)


def _to_gvr(_meter: Meter, context: ResourceContext, api: str, kind: str) -> Value:
    prefix = "failed to map kind to resource"
    port = _port_of(context, prefix)
    return Gvr(api, asked(prefix, lambda: port.plural(api, kind)))


_LABELS: Final = "map(string, string)"
_OBJECT: Final = "map(string, any)"
_HEAD: Final = "ResourceContext, string, string"
_BY_GVR: Final = "ResourceContext, Gvr"
_SHARED_FUNCTIONS: Final[tuple[tuple[str, str, str, Implementation], ...]] = (
    ("toGVR", _HEAD, "Gvr", _to_gvr),
    ("post", f"{_HEAD}, {_OBJECT}", _OBJECT, _post),
)
_CLUSTER_FUNCTIONS: Final[tuple[tuple[str, str, str, Implementation], ...]] = (
    *_SHARED_FUNCTIONS,
    ("get", f"{_HEAD}, string, string", _OBJECT, _get),
    ("get", f"{_BY_GVR}, string, string", _OBJECT, _get_gvr),
    ("list", f"{_HEAD}, string", _OBJECT, _list),
    ("list", f"{_HEAD}, string, {_LABELS}", _OBJECT, _list_labelled),
    ("list", f"{_BY_GVR}, string", _OBJECT, _list_gvr),
    ("list", f"{_BY_GVR}, string, {_LABELS}", _OBJECT, _list_gvr_labelled),
    ("post", f"{_HEAD}, string, {_OBJECT}", _OBJECT, _post_within),
)
_NAMESPACED_FUNCTIONS: Final[tuple[tuple[str, str, str, Implementation], ...]] = (
    *_SHARED_FUNCTIONS,
    ("get", f"{_HEAD}, string", _OBJECT, _get),
    ("get", f"{_BY_GVR}, string", _OBJECT, _get_gvr),
    ("list", _HEAD, _OBJECT, _list_own),
    ("list", f"{_HEAD}, {_LABELS}", _OBJECT, _list_own_labelled),
    ("list", _BY_GVR, _OBJECT, _list_own_gvr),
    ("list", f"{_BY_GVR}, {_LABELS}", _OBJECT, _list_own_gvr_labelled),
)


def _declared(
    functions: Iterable[tuple[str, str, str, Implementation]],
) -> Iterator[Declaration]:
    for name, args, result, call in functions:
        yield from twins(name, args, result, call, EFFECT_CLUSTER)


CLUSTER: Final = tuple(_declared(_CLUSTER_FUNCTIONS))
NAMESPACED: Final = tuple(_declared(_NAMESPACED_FUNCTIONS))
