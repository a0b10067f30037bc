"""List what a namespaced policy writes and reads with the service's permissions.

Room: policy. Takes: a namespaced policy of any kind. Gives: Needs: the permissions that
its author must have, too. Next: webhook/author_review.py.
Source: docs/differences.md (upstream does not check the author).

SAFETY: what is known only at run time is ``EVERYTHING``, all verbs on all resources of
the namespace.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.cel.nodes import Call, Const, Ident
from kyverno_mp.expr.cel.syntax.parse import parse
from kyverno_mp.policy.cel_kinds.admission_policy import MatchResources
from kyverno_mp.policy.cel_kinds.image_validating_policy import (
    KeyAttestor,
    RegistryCredentials,
    SignatureSource,
)
from kyverno_mp.policy.cel_kinds.policies import (
    DeletingPolicySpec,
    GeneratingPolicySpec,
    MutatingPolicySpec,
    TargetConstraints,
    Template,
)
from kyverno_mp.policy.checks.shared_entries import below, expressions, records
from kyverno_mp.policy.documents.cleanup_policy import CleanupSpec
from kyverno_mp.policy.fields.context import ContextEntry, ImageRegistryCredentials
from kyverno_mp.policy.fields.image_verification import (
    Attestor,
    ImageVerification,
    StaticKeyAttestor,
)
from kyverno_mp.policy.fields.mutation import (
    ForEachGeneration,
    Generation,
    TargetResourceSpec,
)
from kyverno_mp.policy.fields.validation import ParamKind
from kyverno_mp.values.kubernetes.api_path import fixed_path
from kyverno_mp.values.kubernetes.kinds import parse_kind
from kyverno_mp.values.wildcard import contains_wildcard

_READ: Final = ("get",)
_LISTED: Final = ("get", "list")
_REMOVED: Final = ("list", "delete")
_CHANGED: Final = ("get", "list", "update", "patch")
_CREATED: Final = ("get", "create")
_SYNCHRONIZED: Final = ("get", "create", "update", "delete")
_CALLS: Final = {"get": _READ, "list": ("list",), "post": ("create",)}


_IN_CLUSTER: Final = "k8s://"
_NAMES: Final = re.compile(r"[a-z0-9.-]+(/[a-z0-9]+)? [a-z0-9]+(/[a-z]+)?")
"""The apiVersion and the plural of a call, with a subresource."""
_CALLED: Final = re.compile(r"\b(resource|generator)\b")


class Need(NamedTuple):
    """Verbs on a resource, given as a kind or, in lower case, as a plural."""

    verbs: tuple[str, ...]
    api_version: str
    kind: str = ""
    plural: str = ""
    subresource: str = ""
    name: str = ""
    is_of_service: bool = False
    """Whether it concerns the namespace of this service, not the policy's."""


EVERYTHING: Final = Need(("*",), "*", plural="*")


def author_needs(document: msgspec.Struct) -> Iterator[Need]:
    """Yield the permissions that the policy uses; some may repeat."""
    spec: Any = getattr(document, "spec", None)
    for record in records(spec):
        yield from _of_record(record)
    for expression in expressions(spec):
        yield from _of_expression(expression)
    yield from _OF_SPEC.get(type(spec), lambda _spec: ())(spec)


def _of_record(record: msgspec.Struct) -> Iterator[Need]:
    if isinstance(record, TargetResourceSpec):
        is_known = not (contains_wildcard(record.name) or "{{" in record.name)
        name = record.name if is_known else ""
        need = _kind_need(_CHANGED, record.api_version, record.kind)
        if name and need is not EVERYTHING:
            need = need._replace(name=name, verbs=("get", "update", "patch"))
        yield need
    elif isinstance(record, Generation):
        verbs = _SYNCHRONIZED if record.synchronize else _CREATED
        patterns: Iterable[Generation | ForEachGeneration] = record.foreach or (record,)
        for pattern in patterns:
            yield from _of_generation(verbs, pattern)
    elif isinstance(record, ContextEntry):
        yield from _of_entry(record)
    elif isinstance(record, ParamKind):
        yield _kind_need(_LISTED, record.api_version, record.kind)
    else:
        yield from _of_images(record)


def _of_generation(
    verbs: tuple[str, ...], pattern: Generation | ForEachGeneration
) -> Iterator[Need]:
    for kind in pattern.clone_list.kinds or ():
        yield _kind_need((*verbs, "list"), "", kind)
    if pattern.kind:
        yield _kind_need(verbs, pattern.api_version, pattern.kind)


def _of_images(record: msgspec.Struct) -> Iterator[Need]:
    """Yield the Secrets with keys and with the credentials of registries."""
    if isinstance(record, StaticKeyAttestor):
        key_names = (record.public_keys, record.kms)
        secret = record.secret.name if record.secret is not None else None
        yield from _of_keys(key_names, secret)
    elif isinstance(record, ImageVerification):
        yield from _of_keys((record.key,), None)
    elif isinstance(record, KeyAttestor):
        yield from _of_keys((record.kms,), None)
    elif isinstance(record, Attestor):
        yield from _of_nested(record.attestor)
    elif isinstance(record, ImageRegistryCredentials | RegistryCredentials):
        yield from map(_credentials, record.secrets)
    elif isinstance(record, SignatureSource):
        yield from (
            _credentials(pull_secret.name) for pull_secret in record.pull_secrets
        )


def _of_nested(attestors: Any) -> Iterator[Need]:
    """Yield the Secrets of a nested set, which is free-form."""
    waiting = [attestors]
    while waiting:
        node = waiting.pop()
        waiting.extend(below(node))
        keys = node.get("keys") if type(node) is dict else None
        if type(keys) is dict:
            secret = keys.get("secret")
            name = str(secret.get("name")) if type(secret) is dict else None
            key_names = (str(keys.get("publicKeys")), str(keys.get("kms")))
            yield from _of_keys(key_names, name)


def _of_keys(key_names: Iterable[str], secret: str | None) -> Iterator[Need]:
    """Yield the Secrets of references; those of variables are known at run time."""
    if secret is not None:
        yield _secret(secret)
    for key_name in key_names:
        if key_name.strip().startswith(_IN_CLUSTER):
            yield _secret(key_name.strip().rpartition("/")[2])
        elif "{{" in key_name:
            yield _secret("")


def _secret(name: str) -> Need:
    return Need(_READ, "v1", plural="secrets", name="" if "{{" in name else name)


def _credentials(name: str) -> Need:
    """Return the Secret with credentials: registries get them from our namespace."""
    return _secret(name.rpartition("/")[2])._replace(is_of_service=True)


def _of_entry(entry: ContextEntry) -> Iterator[Need]:
    if entry.config_map is not None:
        name = "" if "{{" in entry.config_map.name else entry.config_map.name
        yield Need(_READ, "v1", plural="configmaps", name=name)
    call = entry.api_call
    if call is None or not call.url_path:
        return
    path = fixed_path(call.url_path)
    if path is None:
        yield EVERYTHING
        return
    verbs = ("create",) if call.method == "POST" else _READ
    if path.may_list and call.method == "GET":
        verbs = ("list",)
    yield Need(
        verbs,
        f"{path.group}/*" if path.group else "v1",
        plural=path.resource,
        subresource=path.subresource,
        name=path.name,
    )


def _kind_need(verbs: tuple[str, ...], api_version: str, kind: str) -> Need:
    if "{{" in kind + api_version or contains_wildcard(kind) or not kind:
        return EVERYTHING
    selector = parse_kind(kind)
    if not api_version:
        api_version = f"{selector.group}/{selector.version}"
    return Need(verbs, api_version, selector.kind, subresource=selector.subresource)


def _of_constraints(
    verbs: tuple[str, ...], constraints: MatchResources | None
) -> Iterator[Need]:
    targets = constraints if isinstance(constraints, TargetConstraints) else None
    if constraints is None or (targets is not None and targets.expression):
        yield EVERYTHING
        return
    for rule in constraints.resource_rules:
        for group in rule.api_groups:
            for name in rule.resources:
                plural, _, subresource = name.partition("/")
                if "*" in group + name:
                    yield EVERYTHING
                else:
                    version = f"{group}/*" if group else "v1"
                    yield Need(verbs, version, plural=plural, subresource=subresource)


def _of_cleanup(spec: Any) -> Iterator[Need]:
    match = spec.match
    for entry in match.any or match.all:
        for kind in entry.resources.kinds or ("*",):
            yield _kind_need(_REMOVED, "", kind)


def _of_deleting(spec: Any) -> Iterator[Need]:
    yield from _of_constraints(_REMOVED, spec.match_constraints)


def _of_mutating(spec: Any) -> Iterator[Need]:
    existing = spec.evaluation.mutate_existing if spec.evaluation else None
    if existing is not None and existing.enabled:
        targets = spec.target_match_constraints or spec.match_constraints
        yield from _of_constraints(_CHANGED, targets)


def _of_generating(spec: Any) -> Iterator[Need]:
    synchronize = spec.evaluation.synchronize if spec.evaluation else None
    is_synchronized = synchronize is not None and synchronize.enabled
    verbs = _SYNCHRONIZED if is_synchronized else _CREATED
    for generation in spec.generate:
        if generation.template is None:
            yield EVERYTHING
        else:
            yield from _of_template(verbs, generation.template)


_OF_SPEC: Final[Mapping[type, Callable[[Any], Iterable[Need]]]] = {
    CleanupSpec: _of_cleanup,
    DeletingPolicySpec: _of_deleting,
    MutatingPolicySpec: _of_mutating,
    GeneratingPolicySpec: _of_generating,
}
"""What the kinds do that work on objects outside of a review."""


def _of_template(verbs: tuple[str, ...], template: Template) -> Iterator[Need]:
    """Yield the kinds of a template; those of placeholders are known at run time."""
    if template.interpolate == "cel" and _CALLED.search(template.value):
        yield EVERYTHING
        return
    try:
        documents = list(yaml.safe_load_all(template.value))
    except (yaml.YAMLError, ValueError, RecursionError):
        documents = [None]
    for document in documents:
        raw = document if type(document) is dict else {}
        kind, api_version = str(raw.get("kind")), str(raw.get("apiVersion"))
        is_known = "((" not in kind + api_version and not kind.endswith("List")
        if raw and is_known:
            yield _kind_need(verbs, api_version, kind)
        else:
            yield EVERYTHING


def _of_expression(expression: str) -> Iterator[Need]:
    """Yield what an expression reads and creates by ``resource`` and ``generator``."""
    if not _CALLED.search(expression):
        return
    try:
        waiting: list[Any] = [parse(expression)]
    except ExpressionInvalid:
        return
    while waiting:
        node = waiting.pop()
        if type(node) is Ident and node.name in ("resource", "generator"):
            yield EVERYTHING
        need = _of_call(node) if type(node) is Call else None
        if need is not None:
            yield need
            waiting.extend(node.args)
        else:
            waiting.extend(below(node))


def _of_call(node: Call) -> Need | None:
    """Return what a call with a literal kind uses, None for other calls."""
    target = node.target
    if type(target) is not Ident or target.name != "resource":
        return None
    verbs = _CALLS.get(node.function[:1].lower() + node.function[1:])
    parts = [
        str(arg.value)
        for arg in node.args[:2]
        if type(arg) is Const and arg.kind == "string"
    ]
    if verbs is None or not _NAMES.fullmatch(" ".join(parts)):
        return None
    plural, _, subresource = parts[1].partition("/")
    return Need(verbs, parts[0], plural=plural, subresource=subresource)
