"""Read the ConfigMap ``kyverno`` into a Configuration, key by key.

Room: policy. Takes: the ConfigMap's data, the initial values, the last valid values.
Gives: Configuration and the rejected keys. Next: leader/configuration.py, which
publishes it; webhook/configured.py and controllers/webhook_config/options.py, which use
it.
Source: docs/behaviour/controllers 10.3, 14.39-40; Kyverno pkg/config/{config,types}.go.

For each key, the ConfigMap takes precedence over the environment's settings, and these
over the code. If a value is invalid, the last valid value is kept. Upstream falls back
to the default, which may evaluate requests that were excluded.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
import re2

from kyverno_mp.limits import (
    CONTEXT_BYTES_HIGHEST,
    CONTEXT_BYTES_MAX,
    MATCH_CONDITIONS_MAX,
)
from kyverno_mp.policy.reading.go_names import with_names_of
from kyverno_mp.policy.resource_filters import filters_in, filters_problem
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.image import DEFAULT_REGISTRY
from kyverno_mp.values.kubernetes.quantity import parse_quantity, quantity_error
from kyverno_mp.values.kubernetes.selector import (
    check_selector,
    is_label_key,
    is_label_value,
)

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_INTEGER: Final = re2.compile(r"[+-]?[0-9]{1,19}")
_INT64_MAX: Final = (1 << 63) - 1
_DNS_NAME: Final = re2.compile(
    r"[a-zA-Z0-9_][a-zA-Z0-9_-]{0,62}(\.[a-zA-Z0-9_][a-zA-Z0-9_-]{0,62})*[\._]?"
)
_DNS_LENGTH_MAX: Final = 255
_IPV4: Final = re2.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
UPDATE_REQUEST_THRESHOLD: Final = 1000
CheckExpression: TypeAlias = Callable[[str], str]
"""Returns the API server's reason to reject a match condition, "" if it is accepted."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings at run time, with the defaults of the code."""

    resource_filters: str = ""
    exclude_groups: str = ""
    exclude_usernames: str = ""
    exclude_roles: str = ""
    exclude_cluster_roles: str = ""
    default_registry: str = DEFAULT_REGISTRY
    default_registry_mutation: bool = True
    generate_success_events: bool = False
    success_event_actions: tuple[str, ...] = ()
    """Actions whose success creates an Event; empty = all."""
    namespace_selector: Json | None = None
    """None means not set in the ConfigMap."""
    object_selector: Json | None = None
    webhook_annotations: dict[str, str] = {}
    webhook_labels: dict[str, str] = {}
    match_conditions: tuple[Json, ...] = ()
    update_request_threshold: int = UPDATE_REQUEST_THRESHOLD
    context_bytes_max: int = CONTEXT_BYTES_MAX


class Decoded(msgspec.Struct, frozen=True):
    """The decoded ConfigMap, and the reasons why some keys were rejected."""

    configuration: Configuration
    problems: tuple[str, ...]


def decode_configuration(
    data: Mapping[str, str],
    base: Configuration,
    last: Configuration,
    check_expression: CheckExpression = lambda _: "",
) -> Decoded:
    """Read ``data``; use ``base`` for absent keys, ``last`` for invalid values.

    An absent ConfigMap is ``{}``, so that only ``base`` is used.
    """
    decoded: dict[str, Any] = {}
    problems = [f"{key}: no such key" for key in sorted(data) if key not in _READERS]
    for key, (fields, read) in _READERS.items():
        if key not in data:
            continue
        try:
            values = read(data[key])
            _check_expressions(values.get("match_conditions") or (), check_expression)
            decoded.update(values)
        except ValueError as error:
            problems.append(f"{key}: {error}; the last good value stays in force")
            decoded.update({name: getattr(last, name) for name in fields})
    return Decoded(msgspec.structs.replace(base, **decoded), tuple(problems))


_Found = dict[str, Any]
_Reader = Callable[[str], _Found]


def _text(name: str) -> _Reader:
    return lambda value: {name: value}


def _filters(value: str) -> _Found:
    # KYVERNO: text outside of filters is ignored. Upstream also accepts a string
    # without filters, and then evaluates requests that the last value excluded.
    if value.strip() and not filters_in(value):
        raise ValueError(filters_problem(value))
    return {"resource_filters": value}


_TEXTS: Final = msgspec.json.Decoder(dict[str, str] | None)


def _bool(name: str) -> _Reader:
    def read(value: str) -> _Found:
        if value not in _TRUE | _FALSE:
            raise ValueError(f"{value!r} is not true or false")
        return {name: value in _TRUE}

    return read


def _labels(name: str, *, values: bool) -> _Reader:
    """Read a JSON map of labels, or of annotations, whose values can be any string."""

    def read(document: str) -> _Found:
        labels = decode_with(_TEXTS, document) or {}
        for key, value in labels.items():
            if not is_label_key(key):
                raise ValueError(f"{key!r} is not a key that Kubernetes takes")
            if values and not is_label_value(value):
                raise ValueError(f"{value!r} is not a label's value")
        return {name: labels}

    return read


def _registry(value: str) -> _Found:
    host = value.partition("/")[0]
    if (
        len(host.replace(".", "")) > _DNS_LENGTH_MAX
        or not _DNS_NAME.fullmatch(host)
        or _IPV4.fullmatch(host)
    ):
        raise ValueError(f"{host!r} is not a valid DNS hostname")
    return {"default_registry": value}


def _actions(value: str) -> _Found:
    items = (item.strip() for item in value.split(","))
    return {"success_event_actions": tuple(item for item in items if item)}


def _threshold(value: str) -> _Found:
    if not _INTEGER.fullmatch(value) or abs(int(value)) > _INT64_MAX:
        raise ValueError(f"{value!r} is not a whole number")
    return {"update_request_threshold": int(value)}


def _context_size(value: str) -> _Found:
    quantity = parse_quantity(value)
    if quantity is None:
        raise ValueError(f"{value!r}: {quantity_error(value)}")
    size = quantity.approximate()
    # KYVERNO: zero and negative sizes mean no limit (pkg/engine/context). Here the
    # limit is then as high as memory allows.
    if not 0 < size < CONTEXT_BYTES_HIGHEST:
        return {"context_bytes_max": CONTEXT_BYTES_HIGHEST}
    return {"context_bytes_max": math.ceil(size)}


class _Term(msgspec.Struct, rename="camel"):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class _Selector(msgspec.Struct, rename="camel"):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[_Term, ...] | None = None


class _Webhooks(msgspec.Struct, rename="camel"):
    namespace_selector: _Selector | None = None
    object_selector: _Selector | None = None


_WEBHOOKS: Final = msgspec.json.Decoder(_Webhooks | None)


def _webhooks(value: str) -> _Found:
    webhooks = decode_with(_WEBHOOKS, value) or _Webhooks()
    return {
        "namespace_selector": _selector(webhooks.namespace_selector),
        "object_selector": _selector(webhooks.object_selector),
    }


def _selector(selector: _Selector | None) -> Json | None:
    if selector is None:
        return None
    labels = selector.match_labels or {}
    for key, value in labels.items():
        # K8S: selectors of webhooks, unlike selectors of rules, cannot have wildcards.
        if not is_label_key(key) or not is_label_value(value):
            raise ValueError(f"{key}: {value!r} is not a label")
    terms = selector.match_expressions or ()
    error = check_selector(
        tuple(labels.items()), [(t.key, t.operator, t.values or ()) for t in terms]
    )
    if error:
        raise ValueError(error)
    term_selector: dict[str, Json] = {"matchLabels": labels} if labels else {}
    if terms:
        term_selector["matchExpressions"] = [_term(term) for term in terms]
    return term_selector


def _term(term: _Term) -> dict[str, Json]:
    # K8S: the API server omits an empty list of values.
    expression: dict[str, Json] = {"key": term.key, "operator": term.operator}
    return expression | {"values": list(term.values)} if term.values else expression


class _Condition(msgspec.Struct):
    name: str = ""
    expression: str = ""


_CONDITIONS: Final = msgspec.json.Decoder(tuple[_Condition, ...] | None)


def _conditions(value: str) -> _Found:
    conditions = decode_with(_CONDITIONS, value) or ()
    if len(conditions) > MATCH_CONDITIONS_MAX:
        raise ValueError(f"more than {MATCH_CONDITIONS_MAX} conditions")
    names = {condition.name for condition in conditions}
    if len(names) < len(conditions) or not all(is_label_key(name) for name in names):
        raise ValueError("names must be qualified names, each once")
    return {
        "match_conditions": tuple(
            msgspec.to_builtins(condition) for condition in conditions
        )
    }


def _check_expressions(conditions: tuple[Json, ...], check: CheckExpression) -> None:
    for condition in conditions:
        reason = (
            check(condition["expression"])
            if condition["expression"]
            else "no expression"
        )
        if reason:
            raise ValueError(f"{condition['name']}: {reason}")


def decode_with(decoder: msgspec.json.Decoder[Any], value: str) -> Any:
    """Decode JSON with names in any case. Raises: ValueError, readable."""
    try:
        raw = msgspec.json.decode(value.encode("utf-8", "replace"))
        named = with_names_of(raw, decoder.type)
        return decoder.decode(msgspec.json.encode(named))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


_READERS: Final[Mapping[str, tuple[tuple[str, ...], _Reader]]] = {
    "resourceFilters": (("resource_filters",), _filters),
    "excludeGroups": (("exclude_groups",), _text("exclude_groups")),
    "excludeUsernames": (("exclude_usernames",), _text("exclude_usernames")),
    "excludeRoles": (("exclude_roles",), _text("exclude_roles")),
    "excludeClusterRoles": (
        ("exclude_cluster_roles",),
        _text("exclude_cluster_roles"),
    ),
    "defaultRegistry": (("default_registry",), _registry),
    "enableDefaultRegistryMutation": (
        ("default_registry_mutation",),
        _bool("default_registry_mutation"),
    ),
    "generateSuccessEvents": (
        ("generate_success_events",),
        _bool("generate_success_events"),
    ),
    "successEventActions": (("success_event_actions",), _actions),
    "webhooks": (("namespace_selector", "object_selector"), _webhooks),
    "webhookAnnotations": (
        ("webhook_annotations",),
        _labels("webhook_annotations", values=False),
    ),
    "webhookLabels": (("webhook_labels",), _labels("webhook_labels", values=True)),
    "matchConditions": (("match_conditions",), _conditions),
    "updateRequestThreshold": (("update_request_threshold",), _threshold),
    "maxContextSize": (("context_bytes_max",), _context_size),
}
"""Key of the ConfigMap -> (fields, parser)."""
KEYS: Final = tuple(_READERS)


def successes_of(configuration: Configuration) -> frozenset[str] | None:
    """Return the actions whose success creates an Event; None if no success does."""
    if not configuration.generate_success_events:
        return None
    return frozenset(configuration.success_event_actions)
