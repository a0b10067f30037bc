"""Check rules against the cluster: existing kinds, permissions of accounts.

Room: policy. Takes: a Rule, its index, ClusterView. Gives: problems and warnings. Next:
policy/review.py. May touch: the cluster only through policy/ports.py.
Source: docs/behaviour/engine 10.6 (unknown kind, subresource, auth);
docs/behaviour/controllers 5.9; Kyverno pkg/policy/{generate,mutate,auth}.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kyverno_mp.errors import DependencyError
from kyverno_mp.policy.checks.rules.bodies import CEL_ONLY
from kyverno_mp.policy.checks.rules.kinds import kinds_of
from kyverno_mp.policy.checks.rules.subject import Problems, Subject, plain
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.mutation import ForEachGeneration, Generation
from kyverno_mp.policy.ports import ClusterView, PermissionTarget
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.kubernetes.kinds import KindSelector, parse_kind
from kyverno_mp.values.wildcard import contains_wildcard

_SYNCHRONIZING: Final = ("list", "get")
_WATCHING: Final = ("get", "list", "watch")
_CODE: Final = "policy.permission"


def unknown_kind(subject: Subject, rule: Rule, view: ClusterView) -> str:
    """Return upstream's warning for the first kind that does not exist, or "".

    Missing subresources that check_subresources rejects are skipped here, because a
    rejection is stricter than a warning.
    """
    if not view.kinds.is_complete:
        return ""
    is_scanned = rule.validate is not None and subject.policy.spec.background
    parts = view.kinds.subresource_kinds() if is_scanned else frozenset()
    for _, kinds in kinds_of(rule):
        for kind in kinds if "*" not in kinds else ():
            selector = parse_kind(kind)
            if is_scanned:
                selector = selector._replace(subresource="")
            if not view.kinds.find(selector) and selector.kind not in parts:
                return (
                    "the kind defined in the all match resource is invalid: unable to "
                    f"convert GVK to GVR for kinds {kind}, err: resource not found"
                )
    return ""


def check_subresources(
    subject: Subject, rule: Rule, index: int, view: ClusterView
) -> Problems:
    """Reject kinds of subresources, which a background scan never evaluates.

    Upstream only warns, as for a kind that does not exist. But such a rule would never
    match, and its author should learn this immediately.
    """
    if rule.validate is None or not subject.policy.spec.background:
        return
    parts = view.kinds.subresource_kinds()
    for kinds_path, kinds in kinds_of(rule):
        for kind in kinds if "*" not in kinds else ():
            selector = parse_kind(kind)
            if selector.subresource or selector.kind in parts:
                path = f"spec.rules[{index}].{kinds_path}.kinds"
                message = f"background scan enabled with subresource {kind}"
                upstream = f"path: {path}: {message}"
                yield Problem("policy.kind", path, rule.name, message, upstream)


def check_generate_conditions(rule: Rule, index: int) -> Problems:
    """Reject ``celPreconditions`` of a generate rule, which nothing evaluates.

    KYVERNO: only the policy webhook checks this, so stored policies and those of the
    command line keep the field, without effect.
    """
    if rule.cel_preconditions is not None and "generate" in rule.types():
        path = f"spec.rules[{index}].generate"
        yield plain(path, rule.name, f"path: {path}..: {CEL_ONLY}")


def check_permissions(rule: Rule, index: int, view: ClusterView) -> Problems:
    """Check that the service accounts have the permissions that the rule needs."""
    path, types = f"spec.rules[{index}]", rule.types()
    if "mutate" in types:
        refusal = _mutate_refusal(rule, view)
        if refusal:
            upstream = f"path: {path}.mutate.targets.: {refusal}"
            yield plain(f"{path}.mutate.targets", rule.name, upstream, _CODE)
    if rule.generate is not None and "generate" in types:
        for field, refusal in _generate_refusals(rule.generate, view):
            upstream = f"path: {path}.generate.{field}.: {refusal}"
            yield plain(f"{path}.generate", rule.name, upstream, _CODE)


def report_warnings(rule: Rule, view: ClusterView) -> Iterator[str]:
    """Warn if the reports account cannot watch the kinds that the rule matches."""
    kinds = rule.match.kinds()
    if not view.reports or view.permissions is None:
        return
    if any(contains_wildcard(kind) for kind in kinds):
        return
    for kind in kinds:
        group_version, bare = _split(kind)
        asking = _Asking(
            view=view,
            account=view.reports,
            shown=kind,
            group_version=group_version,
            kind=bare,
        )
        try:
            refusal = asking.refusal(_WATCHING)
        except DependencyError as error:
            # Failures that cause only a warning must not reject the policy.
            yield error.message
            return
        if refusal:
            yield refusal


def _mutate_refusal(rule: Rule, view: ClusterView) -> str:
    refusals = []
    for target in (rule.mutate.targets if rule.mutate else None) or ():
        if "{{" in target.kind:
            continue
        selector = parse_kind(target.kind)
        asking = _Asking(
            view=view,
            account=view.background,
            shown=f"{target.api_version}/{selector.kind}",
            group_version=target.api_version,
            kind=selector.kind,
            namespace=target.namespace,
            name=target.name,
            subresource=selector.subresource,
        )
        refusal = asking.refusal(("get", "update"))
        if refusal:
            refusals.append(refusal)
    if not refusals:
        return ""
    return (
        "auth check fails, additional privileges are required for the service account "
        f"'{view.background}': {'; '.join(refusals)}"
    )


def _generate_refusals(
    generate: Generation, view: ClusterView
) -> Iterator[tuple[str, str]]:
    verbs: tuple[str, ...] = ("get", "create")
    rounds: list[tuple[str, Sequence[str]]] = []
    if generate.synchronize:
        verbs = ("get", "create", "update", "delete")
        rounds.append((view.admission, _SYNCHRONIZING))
    rounds.append((view.background, verbs))
    patterns: list[tuple[str, Generation | ForEachGeneration]] = [("", generate)]
    if generate.foreach is not None:
        patterns = [("foreach", entry) for entry in generate.foreach]
    for account, account_verbs in rounds:
        for field, pattern in patterns:
            refusal = _generate_refusal(pattern, view, account, account_verbs)
            if refusal:
                yield field, refusal


def _generate_refusal(
    pattern: Generation | ForEachGeneration,
    view: ClusterView,
    account: str,
    verbs: Sequence[str],
) -> str:
    """Check generation. KYVERNO: only a cloneList's first kind (controllers 5.9)."""
    group_version = pattern.api_version
    kind, _, subresource = pattern.kind.partition("/")
    kind_name = f"{group_version}/{kind}"
    if pattern.clone_list.kinds:
        kind_name = pattern.clone_list.kinds[0]
        group_version, kind = _split(kind_name)
    if "{{" in kind_name:
        return ""
    asking = _Asking(
        view=view,
        account=account,
        shown=kind_name,
        group_version=group_version,
        kind=kind,
        namespace=pattern.namespace,
        subresource=subresource,
    )
    return asking.refusal(verbs)


def _split(kind: str) -> tuple[str, str]:
    """Return (group/version, kind) of a kind selector, "" for omitted parts."""
    selector = parse_kind(kind)
    parts = [part for part in (selector.group, selector.version) if part != "*"]
    return "/".join(parts), selector.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """A check for verbs that an account lacks; messages show the kind ``shown``."""

    view: ClusterView
    account: str
    shown: str
    group_version: str
    kind: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    def refusal(self, verbs: Sequence[str]) -> str:
        """Return upstream's message, "" if nothing is missing or the check fails."""
        kinds, permissions = self.view.kinds, self.view.permissions
        group, _, version = self.group_version.rpartition("/")
        selector = KindSelector(
            group if version else "*", version or "*", self.kind, ""
        )
        resources = kinds.find(selector)
        if not resources:
            unknown = f"failed to get GVR for kind {self.shown}"
            return unknown if kinds.is_complete else ""
        if permissions is None or not self.account:
            return ""
        resource = resources[0].resource
        target = PermissionTarget(resource, self.subresource, self.namespace, self.name)
        lacking = [
            verb for verb in verbs if not permissions.allows(self.account, verb, target)
        ]
        if not lacking:
            return ""
        kind_name = "/".join(filter(None, (self.shown, self.subresource)))
        suffix = f" in namespace {self.namespace}" if self.namespace else ""
        return (
            f"{self.account} requires permissions {','.join(lacking)} for resource "
            f"{kind_name}{suffix}"
        )
