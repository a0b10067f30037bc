"""Find parts of rules whose answer differs from that of Kyverno 1.18.

Room: cli. Takes: decoded ClusterPolicies and Policies. Gives: Concerns. Next: report.
Source: docs/differences.md (corrected); docs/behaviour/engine 5, 10.5.
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.cli.lint.checks import Concern
from kyverno_mp.cli.lint.corrected.conditions import condition_concerns
from kyverno_mp.cli.lint.corrected.queries import query_concerns
from kyverno_mp.policy.checks.conflict import covers_match
from kyverno_mp.policy.checks.rules.variables import queries_of
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, Rule
from kyverno_mp.policy.fields.match import MatchResources
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import matches

EMPTY_MAP: Final = "corrected.empty_map"
FOREACH_CONTEXT: Final = "corrected.foreach_context"
EMPTY_SET: Final = "corrected.empty_set"
NULL_LABEL: Final = "corrected.null_label"
IMAGE_RECORD: Final = "corrected.image_record"

_VERIFYING: Final = ("attestors", "attestations", "key", "issuer", "roots")
_MERGE: Final = "patchStrategicMerge"
_METADATA: Final = ("labels", "annotations")


def rule_concerns(policy: AnyPolicy) -> Iterator[Concern]:
    """Yield a Concern for each part of a rule that a correction reaches."""
    for index, rule in enumerate(policy.spec.rules):
        raw, path = rule.raw(), f"spec.rules[{index}]"
        assert type(raw) is dict
        yield from condition_concerns(raw, path, rule.name)
        yield from query_concerns(raw, path, rule.name)
        for patch, subpath in _patches(raw.get("mutate"), f"{path}.mutate"):
            yield from _patch(patch, subpath, rule.name)
        for body in ("validate", "mutate"):
            yield from _contexts(raw, body, path, rule.name)
        for number, block in enumerate(raw.get("verifyImages") or ()):
            # KYVERNO: other entries record nothing (docs/behaviour/images 2.3).
            if any(block.get(name) for name in _VERIFYING):
                message = (
                    "1.18 accepts what an UPDATE keeps, or another policy verified"
                )
                subpath = f"{path}.verifyImages[{number}]"
                yield Concern(IMAGE_RECORD, subpath, rule.name, message, "note")
        if _was_empty_set(rule) and not covers_match(rule):
            message = "exclude leaves something; 1.18 refuses the policy (empty set)"
            yield Concern(EMPTY_SET, f"{path}.exclude", rule.name, message, "note")


def _patches(value: Json, path: str) -> Iterator[tuple[Json, str]]:
    """Yield each strategic merge patch below ``path``, also those of foreach."""
    if type(value) is dict:
        for name, item in value.items():
            if name == _MERGE:
                yield item, f"{path}.{name}"
            elif name == "foreach" and type(item) is list:
                for index, loop in enumerate(item):
                    yield from _patches(loop, f"{path}.{name}[{index}]")


def _patch(patch: Json, path: str, rule: str) -> Iterator[Concern]:
    for subpath in _empty_maps(patch, path):
        message = "the empty map is merged; 1.18 drops it"
        yield Concern(EMPTY_MAP, subpath, rule, message, "note")
    for holder, subpath in _metadata(patch, path):
        for name in _METADATA:
            values = holder.get(name)
            for key, value in values.items() if type(values) is dict else ():
                if value is None:
                    message = "null deletes it; 1.18 refuses the policy"
                    label_path = f"{subpath}.{name}.{key}"
                    yield Concern(NULL_LABEL, label_path, rule, message, "note")


def _empty_maps(value: Json, path: str) -> Iterator[str]:
    """Yield the path of each empty map, except those of conditions: ``(name): {}``."""
    if type(value) is dict:
        for name, item in value.items():
            if name.startswith(("(", "<(")):
                continue
            subpath = f"{path}.{name}"
            if item == {}:
                yield subpath
            yield from _empty_maps(item, subpath)
    elif type(value) is list:
        for index, item in enumerate(value):
            subpath = f"{path}[{index}]"
            if item == {}:
                yield subpath
            yield from _empty_maps(item, subpath)


def _metadata(patch: Json, path: str) -> Iterator[tuple[dict[str, Json], str]]:
    """Yield the metadata that 1.18 checks: the object's, or that of its template."""
    for keys in (("metadata",), ("spec", "template", "metadata")):
        holder = patch
        for name in keys:
            holder = holder.get(name) if type(holder) is dict else None
        if type(holder) is dict:
            yield holder, ".".join((path, *keys))
            return


def _contexts(
    raw: dict[str, Json], body: str, path: str, rule: str
) -> Iterator[Concern]:
    """Yield the variables that only the context of an inner foreach defines."""
    block = raw.get(body)
    loops = block.get("foreach") if type(block) is dict else None
    outer = _names(raw)
    for loop in loops or ():
        outer |= _names(loop)
    for index, loop in enumerate(loops or ()):
        for loop_path, inner in _inner(loop, f"{path}.{body}.foreach[{index}]"):
            for name in sorted(_names(inner) - outer):
                if any(_reads(query, name) for query in _queries(inner)):
                    message = f"the check knows {name}; 1.18 refuses the policy"
                    context_path = f"{loop_path}.context"
                    yield Concern(FOREACH_CONTEXT, context_path, rule, message, "note")


def _inner(loop: dict[str, Json], path: str) -> Iterator[tuple[str, dict[str, Json]]]:
    for index, nested in enumerate(loop.get("foreach") or ()):
        nested_path = f"{path}.foreach[{index}]"
        yield nested_path, nested
        yield from _inner(nested, nested_path)


def _names(block: dict[str, Json]) -> set[str]:
    return {entry["name"] for entry in block.get("context") or ()}


def _queries(value: Json) -> Iterator[str]:
    if type(value) is dict:
        for key, item in value.items():
            yield from queries_of(key)
            yield from _queries(item)
    elif type(value) is list:
        for item in value:
            yield from _queries(item)
    elif type(value) is str:
        yield from queries_of(value)


def _reads(query: str, name: str) -> bool:
    """Return whether a query begins with the variable; others pass 1.18's check."""
    return query.replace('"', "").startswith(name)


def _was_empty_set(rule: Rule) -> bool:
    """Return whether 1.18 says "matching an empty set" (docs/behaviour/engine 10.5)."""
    match, exclude = rule.match, rule.exclude
    if exclude is None or exclude.all or match.all or exclude == MatchResources():
        return False
    if match.any and exclude.any:
        return any(entry in exclude.any for entry in match.any)
    matched, excluded = match.resources, exclude.resources
    lists = [
        (match.roles, exclude.roles),
        (match.cluster_roles, exclude.cluster_roles),
        (match.subjects, exclude.subjects),
    ]
    if excluded.name and not matches(excluded.name, matched.name):
        return False
    if excluded.names:
        if not any(
            matches(pattern, name)
            for name in matched.names
            for pattern in excluded.names
        ):
            return False
    else:
        lists += [
            (matched.namespaces, excluded.namespaces),
            (matched.kinds, excluded.kinds),
        ]
        equal = (matched.annotations, matched.selector, matched.namespace_selector)
        if equal != (
            excluded.annotations,
            excluded.selector,
            excluded.namespace_selector,
        ):
            return False
    return all(
        not theirs_of
        or (bool(ours_of) and all(entry in theirs_of for entry in ours_of))
        for ours_of, theirs_of in lists
    )
