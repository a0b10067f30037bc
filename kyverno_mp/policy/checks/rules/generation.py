"""Check the body of a generate rule.

Room: policy. Takes: Generation, Subject. Gives: problems. Next:
policy/checks/rules/rule.py.
Source: docs/behaviour/engine 10.5 (generate); Kyverno GeneratePattern.Validate.
"""

from collections.abc import Iterator

import msgspec

from kyverno_mp.expr.template.scan import find_variables
from kyverno_mp.policy.checks.rules.subject import Problems, Subject, forbidden
from kyverno_mp.policy.fields.mutation import CloneFrom, ForEachGeneration, Generation


def check_generation(
    generate: Generation, path: str, rule: str, subject: Subject
) -> Problems:
    """Check for one of data, clone, cloneList, foreach, and the target's namespace."""
    bodies = (
        generate.data is not None,
        generate.clone != CloneFrom(),
        generate.clone_list.kinds is not None,
        generate.foreach is not None,
    )
    if sum(bodies) > 1:
        detail = (
            "only one of generate patterns(data, clone, cloneList and foreach) can be "
            "specified"
        )
        yield forbidden(path, rule, detail)
    elif generate.foreach is not None:
        for index, entry in enumerate(generate.foreach):
            yield from _check_pattern(entry, f"{path}.foreach[{index}]", rule, subject)
    else:
        yield from _check_pattern(generate, path, rule, subject)


def clone_warnings(generate: Generation, path: str) -> Iterator[str]:
    """Warn about variables in the fields that locate the sources of clones."""
    patterns: list[tuple[str, Generation | ForEachGeneration]] = [(path, generate)]
    if generate.foreach is not None:
        named = enumerate(generate.foreach)
        patterns = [(f"{path}.foreach[{index}]", entry) for index, entry in named]
    for pattern_path, pattern in patterns:
        raw = [pattern.kind, pattern.api_version, pattern.clone, pattern.clone_list]
        if find_variables(msgspec.json.encode(raw).decode()):
            yield (
                f"variables in {pattern_path}.clone/cloneList would lead to incorrect "
                "synchronization behavior"
            )


def _check_pattern(
    target: Generation | ForEachGeneration, path: str, rule: str, subject: Subject
) -> Problems:
    if subject.is_namespaced:
        mismatch = _scope_mismatch(target, subject)
        if mismatch:
            detail = f"target resource scope mismatched: {mismatch} "
            yield forbidden(f"{path}.namespace", rule, detail)
    if target.kind and subject.cluster_kinds is not None:
        yield from _check_scope(target, path, rule, subject)
    if not target.clone_list.kinds:
        for name, value in (
            ("kind", target.kind),
            ("name", target.name),
            ("apiVersion", target.api_version),
        ):
            if not value:
                yield forbidden(f"{path}.{name}", rule, f"{name} can not be empty")
    else:
        yield from _check_clone_list(target, path, rule, subject)


def _check_scope(
    target: Generation | ForEachGeneration,
    path: str,
    rule: str,
    subject: Subject,
) -> Problems:
    if f"{target.api_version}/{target.kind}" not in (subject.cluster_kinds or ()):
        if not target.namespace and subject.knows_all_kinds:
            detail = "target namespace must be set for a namespaced resource"
            yield forbidden(f"{path}.namespace", rule, detail)
    elif target.namespace:
        detail = "target namespace must not be set for a cluster-wide resource"
        yield forbidden(f"{path}.namespace", rule, detail)


def _scope_mismatch(target: Generation | ForEachGeneration, subject: Subject) -> str:
    gvk = f"{target.api_version}/{target.kind}"
    policy_namespace = subject.policy.metadata.namespace
    if gvk in (subject.cluster_kinds or ()):
        return f"the target must be a namespaced resource: {gvk}"
    if target.namespace != policy_namespace:
        return (
            "a namespaced policy cannot generate resources in other namespaces, "
            f"expected: {policy_namespace}, received: {target.namespace}"
        )
    if target.clone.name and target.clone.namespace != policy_namespace:
        return (
            "a namespaced policy cannot clone resources from other namespaces, "
            f"expected: {policy_namespace}, received: {target.clone.namespace}"
        )
    return ""


def _check_clone_list(
    target: Generation | ForEachGeneration, path: str, rule: str, subject: Subject
) -> Problems:
    source = target.clone_list
    kinds = source.kinds or ()
    cluster_kinds = subject.cluster_kinds or frozenset()
    policy_namespace = subject.policy.metadata.namespace
    kinds_path = f"{path}.cloneList.kinds"
    namespace_path = f"{path}.cloneList.namespace"
    for kind in kinds if subject.is_namespaced else ():
        if kind in cluster_kinds:
            detail = f"the source in cloneList must be a namespaced resource: {kind}"
            yield forbidden(kinds_path, rule, detail)
        if source.namespace != policy_namespace:
            detail = (
                "a namespaced policy cannot clone resources from other namespace, "
                f"expected: {policy_namespace}, received: {source.namespace}"
            )
            yield forbidden(namespace_path, rule, detail)
    scopes = {kind in cluster_kinds for kind in kinds}
    if len(scopes) > 1:
        yield forbidden(
            kinds_path, rule, "mixed scope of target resources is forbidden"
        )
    if subject.cluster_kinds is None:
        return  # the scopes are not known here; the review knew them
    if False in scopes and not source.namespace and subject.knows_all_kinds:
        detail = "namespace is required for namespaced target resources"
        yield forbidden(namespace_path, rule, detail)
    elif scopes == {True} and not subject.is_namespaced and source.namespace:
        detail = "namespace is forbidden for cluster-wide target resources"
        yield forbidden(namespace_path, rule, detail)
