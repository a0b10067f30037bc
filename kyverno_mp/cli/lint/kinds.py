"""Find kinds and resources that no cluster serves, with the likely name.

Room: cli. Takes: a policy as written; the known kinds: the built-in ones, those of
``--crd-paths`` or of a cluster. Gives: Concerns. Next: command.
May touch: nothing outside its arguments.
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

    text: str
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

    def _of_kind(self, path: str, rule: str, text: str) -> Iterator[Concern]:
        selector = parse_kind(text)
        kind = selector.kind
        if not kind or "{{" in text or kind in _OF_REQUESTS:
            return
        place = (selector.group,), (selector.version,)
        if contains_wildcard(kind):
            fitting = [one for one in self._known if _fits(selector, one)]
            if not fitting:
                yield _note(path, rule, f"no known kind matches {text}", self._advice)
            yield from self._of_subresource(
                path, rule, f"kind {text}", selector.subresource, fitting
            )
            return
        name = _Name(text, kind, *place)
        found = self._near(name, [(one.kind, one) for one in self._known])
        if isinstance(found, ApiResource):
            shown = found.kind if "/" not in text else _api_name(found)
            yield _warning(path, rule, f"kind {text}", shown)
        elif found:
            yield _note(path, rule, f"kind {text} is not known", self._advice)
        else:
            fitting = [one for one in self._known if _fits(selector, one)]
            yield from self._of_subresource(
                path, rule, f"kind {text}", selector.subresource, fitting
            )

    def _of_resource(self, path: str, name: _Name) -> Iterator[Concern]:
        subresource = name.text.partition("/")[2]
        fitting = [
            one
            for one in self._known
            if name.name in ("*", one.plural) and _in_groups(name, one)
        ]
        yield from self._of_subresource(
            path, "", f"resource {name.text}", subresource, fitting
        )
        if name.name == "*":
            return
        found = self._near(name, [(one.plural, one) for one in self._known])
        if isinstance(found, ApiResource):
            shown = found.plural
            if found.plural == name.name:
                shown = f"{found.plural} in {found.api_version}"
            yield _warning(path, "", f"resource {name.text}", shown)
        elif found:
            message = f"resource {name.text} is not known"
            yield _note(path, "", message, self._advice)

    def _of_subresource(
        self,
        path: str,
        rule: str,
        what: str,
        subresource: str,
        fitting: Sequence[ApiResource],
    ) -> Iterator[Concern]:
        """Yield a concern if no kind that fits has a subresource of this name."""
        if not fitting or not subresource or contains_wildcard(subresource):
            return
        is_custom = not all(_is_of_kubernetes(one.group) for one in fitting)
        known = {name for one in fitting for name in one.subresources}
        known |= set(_CUSTOM if is_custom else ())
        if subresource in known or "{{" in what:
            return
        spellings = [(name, name) for name in sorted(known)]
        meant = nearest(subresource, spellings, int(len(subresource) >= _SHORT))
        if meant is not None:
            shown = what.partition(" ")[2].removesuffix(subresource) + meant
            yield _warning(path, rule, what, shown)
        elif not is_custom:
            advice = "no known kind that it names has this subresource"
            yield _note(path, rule, f"{what} is not known", advice)

    def _near(
        self, name: _Name, known: Sequence[tuple[str, ApiResource]]
    ) -> ApiResource | bool:
        """Return a likely kind; False: the name is known, True: nothing is like it."""
        same = [one for known_name, one in known if known_name == name.name]
        if any(_is_served(name, one) for one in same):
            return False
        may_be = [one for one in same if _is_misplaced(name, one)]
        if may_be:
            return may_be[0]
        if same and not all(map(_is_of_kubernetes, name.groups)):
            return True
        spellings = [
            (spelling, one)
            for _, one in known
            if _in_groups(name, one)
            for spelling in (one.kind, one.plural)
        ]
        found = nearest(name.name, spellings)
        return True if found is None else found


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


def _warning(path: str, rule: str, what: str, meant: str) -> Concern:
    return Concern(MISSPELT, path, rule, f"{what} is not known: did you mean {meant}?")


def _note(path: str, rule: str, text: str, advice: str) -> Concern:
    return Concern(UNKNOWN, path, rule, f"{text}: {advice}", sarif.NOTE)


def _selectors(spec: dict[str, Json]) -> Iterator[tuple[str, str, str]]:
    """Yield path, rule and text of each kind that a policy or exception names."""
    yield from ((path, "", text) for path, text in _matched(spec, "spec"))
    for index, rule in enumerate(_maps(spec.get("rules"))):
        path, name = f"spec.rules[{index}]", str(rule.get("name", ""))
        named = [*_matched(rule, path), *_changed(rule, path)]
        yield from ((place, name, text) for place, text in named)


def _matched(holder: dict[str, Json], path: str) -> Iterator[tuple[str, str]]:
    for block in ("match", "exclude"):
        given = holder.get(block)
        if type(given) is not dict:
            continue
        places = [(f"{path}.{block}", given)]
        for mode in ("any", "all"):
            places += [
                (f"{path}.{block}.{mode}[{index}]", each)
                for index, each in enumerate(_maps(given.get(mode)))
            ]
        for place, each in places:
            resources = each.get("resources")
            if type(resources) is dict:
                yield from _texts(resources, "kinds", f"{place}.resources")


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
        for place, each in places:
            yield from _one_kind(each, place)
            sources = each.get("cloneList")
            if type(sources) is dict:
                yield from _texts(sources, "kinds", f"{place}.cloneList")


def _one_kind(holder: dict[str, Json], path: str) -> Iterator[tuple[str, str]]:
    kind, version = holder.get("kind"), holder.get("apiVersion")
    if type(kind) is str and kind:
        text = f"{version}/{kind}" if type(version) is str and version else kind
        yield f"{path}.kind", text


def _resources(value: Json, path: str) -> Iterator[tuple[str, _Name]]:
    """Yield each resource of a policy in CEL with the groups and versions beside it."""
    if type(value) is not dict:
        return
    for key, item in value.items():
        if key not in ("resourceRules", "excludeResourceRules"):
            yield from _resources(item, f"{path}.{key}")
            continue
        for index, rule in enumerate(_maps(item)):
            place = f"{path}.{key}[{index}]"
            groups = tuple(text for _, text in _texts(rule, "apiGroups", place))
            versions = tuple(text for _, text in _texts(rule, "apiVersions", place))
            for where, text in _texts(rule, "resources", place):
                base = text.partition("/")[0]
                if groups and versions:
                    yield where, _Name(text, base, groups, versions)


def _texts(holder: dict[str, Json], key: str, path: str) -> Iterator[tuple[str, str]]:
    listed = holder.get(key)
    for index, text in enumerate(listed if type(listed) is list else ()):
        if type(text) is str:
            yield f"{path}.{key}[{index}]", text


def _maps(value: Json) -> list[dict[str, Json]]:
    """Return the entries of a list; others count as empty, so that indexes stay."""
    listed = value if type(value) is list else []
    return [each if type(each) is dict else {} for each in listed]
