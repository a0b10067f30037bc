"""Find kinds and resources that no cluster serves, with the likely name.

Room: cli. Takes: a policy as written; the known kinds: the built-in ones, those of
``--crd-paths`` or of a cluster. Gives: Concerns. Next: command.
Source: docs/behaviour/engine 1.3 (selectors of kinds); the deprecation guide of
Kubernetes (versions that are no longer served).

Upstream accepts every name: a rule with a misspelt kind never matches, without a word.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kyverno_mp.cli.lint.checks import Concern
from kyverno_mp.cli.lint.near import nearest
from kyverno_mp.cli.output import sarif
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN, ApiResource
from kyverno_mp.values.kubernetes.kinds import KindSelector, parse_kind
from kyverno_mp.values.wildcard import contains_wildcard, matches

MISSPELT: Final = "lint.kind_misspelt"
UNKNOWN: Final = "lint.kind_unknown"

_OF_REQUESTS: Final = frozenset(
    {
        "Eviction",
        "NodeProxyOptions",
        "PodAttachOptions",
        "PodExecOptions",
        "PodPortForwardOptions",
        "PodProxyOptions",
        "Scale",
        "ServiceProxyOptions",
        "TokenRequest",
    }
)
"""Kinds of requests to subresources, which discovery does not list as kinds."""
_PREVIEWED: Final = frozenset(
    {
        "DeviceClass",
        "IPAddress",
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "ResourceClaim",
        "ResourceClaimTemplate",
        "ResourceSlice",
        "ServiceCIDR",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "VolumeAttributesClass",
    }
)
"""Kinds that clusters still serve in versions before the stable one."""
_SHORT: Final = 3
"""A subresource of this length may have one wrong letter, because there are few."""
_CUSTOM: Final = ("scale", "status")
"""The subresources that a custom kind can have."""


class _Name(NamedTuple):
    """A name in a policy, and where it may be served."""

    written: str
    name: str
    groups: tuple[str, ...]
    versions: tuple[str, ...]


class KnownKinds:
    """The kinds that can be served; ``cluster``: they are those of a cluster."""

    def __init__(
        self, more: Iterable[ApiResource] = (), *, is_cluster: bool = False
    ) -> None:
        self._known = (*more,) if is_cluster else (*BUILT_IN, *more)
        self._advice = (
            "the cluster does not serve it"
            if is_cluster
            else "if it is a custom kind, name its CustomResourceDefinition with"
            " --crd-paths, or check with --cluster"
        )

    def concerns(self, raw: dict[str, Json]) -> Iterator[Concern]:
        """Yield a concern for each kind or resource of a policy that is not known."""
        spec = raw.get("spec")
        if type(spec) is not dict:
            return
        for path, rule, selector in _selectors(spec):
            yield from self._of_kind(path, rule, selector)
        for path, name in _resources(spec, "spec"):
            yield from self._of_resource(path, name)

    def _of_kind(self, path: str, rule: str, written: str) -> Iterator[Concern]:
        selector = parse_kind(written)
        kind = selector.kind
        if not kind or "{{" in written or kind in _OF_REQUESTS:
            return
        api = (selector.group,), (selector.version,)
        if contains_wildcard(kind):
            fitting = [
                known_kind for known_kind in self._known if _fits(selector, known_kind)
            ]
            if not fitting:
                yield _note(
                    path, rule, f"no known kind matches {written}", self._advice
                )
            yield from self._of_subresource(
                path, rule, f"kind {written}", selector.subresource, fitting
            )
            return
        name = _Name(written, kind, *api)
        likely = self._near(
            name, [(known_kind.kind, known_kind) for known_kind in self._known]
        )
        if isinstance(likely, ApiResource):
            spelling = likely.kind if "/" not in written else _api_name(likely)
            yield _warning(path, rule, f"kind {written}", spelling)
        elif likely:
            yield _note(path, rule, f"kind {written} is not known", self._advice)
        else:
            fitting = [
                known_kind for known_kind in self._known if _fits(selector, known_kind)
            ]
            yield from self._of_subresource(
                path, rule, f"kind {written}", selector.subresource, fitting
            )

    def _of_resource(self, path: str, name: _Name) -> Iterator[Concern]:
        subresource = name.written.partition("/")[2]
        fitting = [
            known_kind
            for known_kind in self._known
            if name.name in ("*", known_kind.plural) and _in_groups(name, known_kind)
        ]
        yield from self._of_subresource(
            path, "", f"resource {name.written}", subresource, fitting
        )
        if name.name == "*":
            return
        likely = self._near(
            name, [(known_kind.plural, known_kind) for known_kind in self._known]
        )
        if isinstance(likely, ApiResource):
            spelling = likely.plural
            if likely.plural == name.name:
                spelling = f"{likely.plural} in {likely.api_version}"
            yield _warning(path, "", f"resource {name.written}", spelling)
        elif likely:
            message = f"resource {name.written} is not known"
            yield _note(path, "", message, self._advice)

    def _of_subresource(
        self,
        path: str,
        rule: str,
        subject: str,
        subresource: str,
        fitting: Sequence[ApiResource],
    ) -> Iterator[Concern]:
        """Yield a concern if no kind that fits has a subresource of this name."""
        if not fitting or not subresource or contains_wildcard(subresource):
            return
        is_custom = not all(
            _is_of_kubernetes(known_kind.group) for known_kind in fitting
        )
        subresources = {
            name for known_kind in fitting for name in known_kind.subresources
        }
        subresources |= set(_CUSTOM if is_custom else ())
        if subresource in subresources or "{{" in subject:
            return
        spellings = [(name, name) for name in sorted(subresources)]
        meant = nearest(subresource, spellings, int(len(subresource) >= _SHORT))
        if meant is not None:
            spelling = subject.partition(" ")[2].removesuffix(subresource) + meant
            yield _warning(path, rule, subject, spelling)
        elif not is_custom:
            advice = "no known kind that it names has this subresource"
            yield _note(path, rule, f"{subject} is not known", advice)

    def _near(
        self, name: _Name, candidates: Sequence[tuple[str, ApiResource]]
    ) -> ApiResource | bool:
        """Return a likely kind; False: the name is known, True: nothing is like it."""
        same = [
            resource for known_name, resource in candidates if known_name == name.name
        ]
        if any(_is_served(name, resource) for resource in same):
            return False
        may_be = [resource for resource in same if _is_misplaced(name, resource)]
        if may_be:
            return may_be[0]
        if same and not all(map(_is_of_kubernetes, name.groups)):
            return True
        spellings = [
            (spelling, resource)
            for _, resource in candidates
            if _in_groups(name, resource)
            for spelling in (resource.kind, resource.plural)
        ]
        closest = nearest(name.name, spellings)
        return True if closest is None else closest


def _is_served(name: _Name, resource: ApiResource) -> bool:
    if not _in_groups(name, resource):
        return False
    if resource.kind in _PREVIEWED or resource.group.endswith("kyverno.io"):
        return True
    return any(matches(version, resource.version) for version in name.versions)


def _in_groups(name: _Name, resource: ApiResource) -> bool:
    return any(matches(group, resource.group) for group in name.groups)


def _is_misplaced(name: _Name, resource: ApiResource) -> bool:
    """Return whether the name is known, but in another group or version.

    Custom groups may have kinds with the names of built-in ones.
    """
    return _in_groups(name, resource) or all(map(_is_of_kubernetes, name.groups))


def _is_of_kubernetes(group: str) -> bool:
    return "." not in group or group.endswith(".k8s.io")


def _fits(selector: KindSelector, resource: ApiResource) -> bool:
    return matches(selector.kind, resource.kind) and matches(
        selector.group, resource.group
    )


def _api_name(resource: ApiResource) -> str:
    return f"{resource.api_version}/{resource.kind}"


def _warning(path: str, rule: str, subject: str, meant: str) -> Concern:
    return Concern(
        MISSPELT, path, rule, f"{subject} is not known: did you mean {meant}?"
    )


def _note(path: str, rule: str, message: str, advice: str) -> Concern:
    return Concern(UNKNOWN, path, rule, f"{message}: {advice}", sarif.NOTE)


def _selectors(spec: dict[str, Json]) -> Iterator[tuple[str, str, str]]:
    """Yield path, rule and text of each kind that a policy or exception names."""
    yield from ((path, "", kind) for path, kind in _matched(spec, "spec"))
    for index, rule in enumerate(_maps(spec.get("rules"))):
        path, name = f"spec.rules[{index}]", str(rule.get("name", ""))
        named = [*_matched(rule, path), *_changed(rule, path)]
        yield from ((subpath, name, kind) for subpath, kind in named)


def _matched(holder: dict[str, Json], path: str) -> Iterator[tuple[str, str]]:
    for block in ("match", "exclude"):
        matched = holder.get(block)
        if type(matched) is not dict:
            continue
        places = [(f"{path}.{block}", matched)]
        for mode in ("any", "all"):
            places += [
                (f"{path}.{block}.{mode}[{index}]", each)
                for index, each in enumerate(_maps(matched.get(mode)))
            ]
        for subpath, each in places:
            resources = each.get("resources")
            if type(resources) is dict:
                yield from _texts(resources, "kinds", f"{subpath}.resources")


def _changed(rule: dict[str, Json], path: str) -> Iterator[tuple[str, str]]:
    """Yield the kinds of targets, of generated objects and of their sources."""
    mutate, generate = rule.get("mutate"), rule.get("generate")
    if type(mutate) is dict:
        for index, target in enumerate(_maps(mutate.get("targets"))):
            yield from _one_kind(target, f"{path}.mutate.targets[{index}]")
    if type(generate) is dict:
        places = [(f"{path}.generate", generate)]
        places += [
            (f"{path}.generate.foreach[{index}]", each)
            for index, each in enumerate(_maps(generate.get("foreach")))
        ]
        for subpath, each in places:
            yield from _one_kind(each, subpath)
            sources = each.get("cloneList")
            if type(sources) is dict:
                yield from _texts(sources, "kinds", f"{subpath}.cloneList")


def _one_kind(holder: dict[str, Json], path: str) -> Iterator[tuple[str, str]]:
    kind, version = holder.get("kind"), holder.get("apiVersion")
    if type(kind) is str and kind:
        selector = f"{version}/{kind}" if type(version) is str and version else kind
        yield f"{path}.kind", selector


def _resources(value: Json, path: str) -> Iterator[tuple[str, _Name]]:
    """Yield each resource of a policy in CEL with the groups and versions beside it."""
    if type(value) is not dict:
        return
    for key, item in value.items():
        if key not in ("resourceRules", "excludeResourceRules"):
            yield from _resources(item, f"{path}.{key}")
            continue
        for index, rule in enumerate(_maps(item)):
            rule_path = f"{path}.{key}[{index}]"
            groups = tuple(group for _, group in _texts(rule, "apiGroups", rule_path))
            versions = tuple(
                version for _, version in _texts(rule, "apiVersions", rule_path)
            )
            for resource_path, resource in _texts(rule, "resources", rule_path):
                base = resource.partition("/")[0]
                if groups and versions:
                    yield resource_path, _Name(resource, base, groups, versions)


def _texts(holder: dict[str, Json], key: str, path: str) -> Iterator[tuple[str, str]]:
    listed = holder.get(key)
    for index, value in enumerate(listed if type(listed) is list else ()):
        if type(value) is str:
            yield f"{path}.{key}[{index}]", value


def _maps(value: Json) -> list[dict[str, Json]]:
    """Return the entries of a list; others count as empty, so that indexes stay."""
    listed = value if type(value) is list else []
    return [each if type(each) is dict else {} for each in listed]
