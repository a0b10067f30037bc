"""Look up the resource names of kinds, like a REST mapper.

Room: cli. Takes: CustomResourceDefinitions, such as the file of ``--crd-paths``. Gives:
Plurals, and the resource name of an object. Next: the stages in cli/apply/stages,
cli/cluster/given_cel.
May touch: the file of ``--crd-paths``. Source: docs/behaviour/cli 5 (REST mapper).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.errors import RequestInvalid
from kyverno_mp.ir.admission_policy import ConstraintsIR, ResourceRuleIR
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN

Plurals = dict[tuple[str, str], str]
"""(group, kind) -> resource name."""


def plurals_of(definitions: Iterable[Json]) -> Plurals:
    """Return the resource names of CustomResourceDefinitions."""
    plurals: Plurals = {}
    for raw in definitions:
        spec = raw.get("spec") or {}
        names = spec.get("names") or {}
        key = (str(spec.get("group", "")), str(names.get("kind", "")))
        plurals[key] = str(names.get("plural", ""))
    return plurals


def load_definitions(paths: Sequence[str]) -> list[Json]:
    """Return the CustomResourceDefinitions in files, also those in lists."""
    if not paths:
        return []
    from kyverno_mp.cli.sources.strict import read_documents  # rarely needed

    definitions: list[Json] = []
    for path in paths:
        for document in read_documents(Path(path), is_argument=True):
            for raw in _items_of(document):
                spec = raw.get("spec") if type(raw) is dict else None
                names = spec.get("names") if type(spec) is dict else None
                if type(spec) is not dict or type(names) is not dict:
                    message = f"--crd-paths {path}: not a CustomResourceDefinition"
                    raise CommandFailed(message)
                definitions.append(raw)
    return definitions


def _items_of(document: Json) -> list[Json]:
    """Return the items of a list, as kubectl prints it; otherwise the document."""
    if type(document) is dict and str(document.get("kind", "")).endswith("List"):
        items = document.get("items")
        return items if type(items) is list else []
    return [document]


def known_plurals(plurals: Plurals | None) -> Plurals:
    """Return the resource names of the built-in kinds and of the given kinds."""
    return {
        (built_in.group, built_in.kind): built_in.plural for built_in in BUILT_IN
    } | (plurals or {})


def resource_of(
    request: Request,
    plurals: Plurals,
    constraints: Iterable[ConstraintsIR | None],
    guess: str = "",
) -> str:
    """Return the resource name of the object's kind, or ``guess``.

    ``constraints``: those of the policies that will be evaluated; None matches all.
    A kind without a known name gets a likely name if none of them can match it.

    Raises: RequestInvalid.
    """
    resource = plurals.get((request.group, request.kind)) or guess
    if resource:
        return resource
    if any(each is None or _may_match(each, request) for each in constraints):
        raise _unknown_kind(request)
    return f"{request.kind.lower()}s"


def _may_match(constraints: ConstraintsIR, request: Request) -> bool:
    rules = constraints.rules
    return not rules or any(_rule_may_match(rule, request) for rule in rules)


def _rule_may_match(rule: ResourceRuleIR, request: Request) -> bool:
    """Return whether a kind of the group may have one of the resource names.

    A rule for every group names the resource of a built-in kind for this kind only.
    """
    names = [name for name in rule.resources if "/" not in name or name == "*/*"]
    if request.group in rule.groups:
        return bool(names)
    if "*" not in rule.groups:
        return False
    kinds = _built_in_kinds()
    return any(request.kind in kinds.get(name, (request.kind,)) for name in names)


@cache
def _built_in_kinds() -> Mapping[str, frozenset[str]]:
    """Return the built-in kinds of each resource name."""
    names = {built_in.plural for built_in in BUILT_IN}
    return {
        name: frozenset(
            built_in.kind for built_in in BUILT_IN if built_in.plural == name
        )
        for name in names
    }


def _unknown_kind(request: Request) -> RequestInvalid:
    group, version, kind = request.group, request.version, request.kind
    api_version = f"{group}/{version}" if group else version
    return RequestInvalid(
        "cli.unknown_kind",
        f"failed to map gvk to gvr {group}/{version}, Kind={kind} (no matches for kind"
        f' "{kind}" in version "{api_version}"): name its CustomResourceDefinition'
        " with --crd-paths, or in a test under spec.crds of a file of"
        " clusterResources\n",
    )
