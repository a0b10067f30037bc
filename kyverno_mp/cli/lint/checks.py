"""Find outdated or misleading parts of a valid policy.

Room: cli. Takes: decoded documents. Gives: Concerns, each with a path. Next: command.
Source: docs/behaviour/engine 1 (match), 10.1 (deprecations), 10.6;
docs/behaviour/cli 18.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kyverno_mp.compiler.autogen.rules import unknown_controllers
from kyverno_mp.policy.capabilities import missing_capability
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException
from kyverno_mp.policy.checks.rules.calls import call_faults
from kyverno_mp.policy.checks.rules.kinds import kinds_of
from kyverno_mp.policy.documents.cluster_policy import (
    AUTOGEN_ANNOTATION,
    AnyPolicy,
    Policy,
    Rule,
)
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.expiry import EXPIRED, EXPIRING, standing, written
from kyverno_mp.policy.fields.match import MatchResources, ResourceFilter
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN
from kyverno_mp.values.kubernetes.kinds import parse_kind
from kyverno_mp.values.wildcard import contains_wildcard, matches

CODES: Final = {
    "leader.too_large": "The file is too large for the server.",
    "leader.no_background_pool": ("A server without a background pool skips the rule."),
    "leader.unsupported": "The server skips the rule or rejects the policy.",
    "leader.unsupported_kind": "The server runs no policies of this kind.",
    "lint.api_server": "The API server itself evaluates the policy.",
    "lint.call": "The function is unknown or takes another number of arguments.",
    "lint.deprecated_field": "The field is deprecated; use its replacement.",
    "lint.deprecated_operator": "The operator of a condition is deprecated.",
    "lint.deprecated_value": "The value is deprecated; use its replacement.",
    "lint.duplicate_key": "The key appears twice in one mapping; the last one is used.",
    "lint.duplicate_name": "Two policies of the set have the same name.",
    "lint.exception_expired": "A PolicyException has expired, or does within a week.",
    "lint.exception_unused": "A PolicyException names an unknown policy or rule.",
    "lint.kind_misspelt": "No cluster serves the kind; another one has a similar name.",
    "lint.kind_unknown": "The kind is not known without its definition.",
    "lint.never_matches": "No request can ever match the rule.",
    "lint.not_a_policy": "The file or document is not meant to be a policy.",
    "lint.suspicious": "The rule probably does not do what its author intended.",
    "lint.autogen_controllers": "An entry of autogen has no effect.",
    "lint.unverified_images": "No image can meet required: nothing verifies it.",
    "lint.unsupported": "This version does not evaluate the policy or rule.",
    "lint.wildcard_kind": "The rule matches every kind of object.",
    "webhook.policy_refused": "The policy webhook of the server denies the policy.",
}
"""Code -> its meaning; codes never change their meaning."""

_OLD_OPERATORS: Final = {
    "Equal": "Equals",
    "NotEqual": "NotEquals",
    "In": "AllIn or AnyIn",
    "NotIn": "AllNotIn or AnyNotIn",
}
_OLD_FIELDS: Final = {
    "validationFailureAction": "use failureAction under validate of each rule",
    "validationFailureActionOverrides": (
        "use failureActionOverrides under validate of each rule"
    ),
    "generateExisting": "use generateExisting under generate of each rule",
    "generateExistingOnPolicyUpdate": "use generateExisting under generate",
    "mutateExistingOnPolicyUpdate": (
        "use mutateExistingOnPolicyUpdate under mutate of each rule"
    ),
    "schemaValidation": "it no longer has any effect",
    "webhookTimeoutSeconds": "use webhookConfiguration.timeoutSeconds",
    "failurePolicy": "use webhookConfiguration.failurePolicy",
}
_NO_CONDITIONS: Final = frozenset(
    {"matchExpressions", "pattern", "anyPattern", "patchStrategicMerge", "data"}
)
"""Fields whose content may look like a condition, but is data."""
_CLUSTER_SCOPED: Final = frozenset(
    built_in.kind for built_in in BUILT_IN if not built_in.is_namespaced
)


class Concern(NamedTuple):
    """One questionable field; ``level`` is a SARIF level."""

    code: str
    path: str
    rule: str
    message: str
    level: str = "warning"


def concerns(policy: AnyPolicy, raw: dict[str, Json]) -> Iterator[Concern]:
    """Yield all concerns of one policy; ``raw`` is the document as written."""
    spec = raw.get("spec") or {}
    for name, advice in _OLD_FIELDS.items():
        if name in spec:
            message = f"{name} is deprecated: {advice}"
            yield Concern("lint.deprecated_field", f"spec.{name}", "", message)
    for name in unknown_controllers(policy):
        message = (
            f"{quote(name)} is no controller of Pods, so it is ignored: names are"
            " case-sensitive and not trimmed, and objects of custom workloads are"
            " validated only by policies of policies.kyverno.io"
        )
        path = f"metadata.annotations['{AUTOGEN_ANNOTATION}']"
        yield Concern("lint.autogen_controllers", path, "", message)
    for index, rule in enumerate(policy.spec.rules):
        path = f"spec.rules[{index}]"
        yield from _rule_concerns(policy, rule, path)
        for subpath, operator in _operators(raw["spec"]["rules"][index], path):
            advice = _OLD_OPERATORS[operator]
            message = f"operator {operator} is deprecated: use {advice}"
            yield Concern("lint.deprecated_operator", subpath, rule.name, message)
        for subpath, reason in call_faults(raw["spec"]["rules"][index]):
            message = f"{reason}; the rule fails with an error when this call runs"
            yield Concern("lint.call", f"{path}{subpath}", rule.name, message)


def expression_concerns(raw: dict[str, Json]) -> Iterator[Concern]:
    """Yield the concerns of the expressions of an exception or a clean-up policy."""
    spec = raw.get("spec")
    for subpath, operator in _operators(spec, "spec"):
        message = f"operator {operator} is deprecated: use {_OLD_OPERATORS[operator]}"
        yield Concern("lint.deprecated_operator", subpath, "", message)
    for subpath, reason in call_faults(spec):
        message = f"{reason}; an evaluation fails when this call runs"
        yield Concern("lint.call", f"spec{subpath}", "", message)


def expiry_concerns(
    exception: PolicyException | CelPolicyException, now_ns: int
) -> Iterator[Concern]:
    """Yield a concern if an exception has expired, or expires within a week."""
    expires_at_ns = exception.expires_at_ns
    state = standing(expires_at_ns, now_ns)
    if expires_at_ns is None or state not in (EXPIRED, EXPIRING):
        return
    time = written(expires_at_ns)
    message = (
        f"it has expired at {time}; it exempts nothing"
        if state == EXPIRED
        else f"it expires at {time}"
    )
    yield Concern("lint.exception_expired", "metadata", "", message)


def _rule_concerns(policy: AnyPolicy, rule: Rule, path: str) -> Iterator[Concern]:
    lacking = missing_capability(rule, verifies=True)
    if lacking:
        message = f"not evaluated by this version: {lacking}"
        yield Concern("lint.unsupported", path, rule.name, message)
    for name, block in (("match", rule.match), ("exclude", rule.exclude)):
        if block is not None and _is_inline(block):
            message = f"resources directly under {name} are deprecated: use any or all"
            yield Concern("lint.deprecated_field", f"{path}.{name}", rule.name, message)
    yield from _wildcards(rule, path)
    yield from _no_kinds(rule, path)
    reason = _never(policy, rule)
    if reason:
        yield Concern("lint.never_matches", f"{path}.match", rule.name, reason)


def _is_inline(block: MatchResources) -> bool:
    return not (block.any or block.all) and block != MatchResources()


def _filters(block: MatchResources) -> list[tuple[str, ResourceFilter]]:
    """Return each filter with its path below the block."""
    if block.any:
        return [(f"any[{i}].", f) for i, f in enumerate(block.any)]
    if block.all:
        return [(f"all[{i}].", f) for i, f in enumerate(block.all)]
    inline = ResourceFilter(
        block.roles, block.cluster_roles, block.subjects, block.resources
    )
    return [("", inline)]


def _no_kinds(rule: Rule, path: str) -> Iterator[Concern]:
    """Yield kinds that match nothing, which Kyverno accepts without a warning."""
    for block, kinds in kinds_of(rule):
        for position, kind in enumerate(kinds):
            if not parse_kind(kind).kind:
                message = f'"{kind}" is not a kind, it matches nothing'
                kind_path = f"{path}.{block}.kinds[{position}]"
                yield Concern("lint.suspicious", kind_path, rule.name, message)


def _wildcards(rule: Rule, path: str) -> Iterator[Concern]:
    for block, entry in _filters(rule.match):
        for position, kind in enumerate(entry.resources.kinds):
            if kind.rpartition("/")[2] == "*" and kind.count("/") < 2:  # noqa: PLR2004 - group/version/Kind/subresource
                kind_path = f"{path}.match.{block}resources.kinds[{position}]"
                message = (
                    f"kind {kind} matches every kind: the webhook is called for every"
                    " request of the cluster"
                )
                yield Concern("lint.wildcard_kind", kind_path, rule.name, message)


def _never(policy: AnyPolicy, rule: Rule) -> str:
    """Return the reason why no request can match, "" if none is known."""
    block = rule.match
    filters = [entry for _, entry in _filters(block)]
    excluded = _filters(rule.exclude) if rule.exclude is not None else []
    alone = [e for _, e in excluded if not (rule.exclude and len(rule.exclude.all) > 1)]
    if filters and all(any(e == f or _covers(e, f) for e in alone) for f in filters):
        return "exclude covers everything that match selects"
    if block.all and len(block.all) > 1 and _disjoint(block.all):
        return "all filters must match, but no kind is in all of them"
    if isinstance(policy, Policy):
        return _never_in_namespace(policy.metadata.namespace or "default", filters)
    return ""


def _covers(wide: ResourceFilter, narrow: ResourceFilter) -> bool:
    """Return whether ``wide`` has only kinds, which cover all kinds of ``narrow``."""
    kinds = wide.resources.kinds
    only_kinds = ResourceFilter(resources=type(wide.resources)(kinds=kinds))
    return (
        wide == only_kinds
        and bool(narrow.resources.kinds)
        and all(
            any(k == pattern or matches(pattern, k) for pattern in kinds)
            for k in narrow.resources.kinds
        )
    )


def _disjoint(filters: Sequence[ResourceFilter]) -> bool:
    sets = [frozenset(f.resources.kinds) for f in filters]
    plain = [s for s in sets if s and not any(map(contains_wildcard, s))]
    bare = [frozenset(kind.rpartition("/")[2] for kind in s) for s in plain]
    return len(bare) > 1 and not frozenset.intersection(*bare)


def _never_in_namespace(namespace: str, filters: list[ResourceFilter]) -> str:
    for entry in filters:
        named = entry.resources.namespaces
        kinds = entry.resources.kinds
        elsewhere = bool(named) and not any(matches(n, namespace) for n in named)
        if not elsewhere and not (kinds and _CLUSTER_SCOPED.issuperset(kinds)):
            return ""
    return (
        f"a Policy of namespace {namespace} applies to objects of that namespace only,"
        " and match selects none of them"
    )


def _operators(value: Json, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and operator of each condition with a deprecated operator."""
    if type(value) is dict:
        operator = value.get("operator")
        if "key" in value and type(operator) is str and operator in _OLD_OPERATORS:
            yield f"{path}.operator", operator
        for key, item in value.items():
            if key not in _NO_CONDITIONS:
                yield from _operators(item, f"{path}.{key}")
    elif type(value) is list:
        for index, item in enumerate(value):
            yield from _operators(item, f"{path}[{index}]")
