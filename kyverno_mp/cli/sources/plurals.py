"""Look up the resource names of kinds, like a REST mapper.

Room: cli. Takes: the file of ``--crd-path``. Gives: Plurals. Next:
cli/apply/stages/admission_policies, cli/apply/stages/cel_policies,
cli/cluster/given_cel.
May touch: the file of ``--crd-path``. Source: docs/behaviour/cli 5 (REST mapper).
"""

from pathlib import Path

from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN

Plurals = dict[tuple[str, str], str]
"""(group, kind) -> resource name."""


def load_plurals(path: str) -> Plurals:
    """Return the resource names of the CustomResourceDefinitions in a file."""
    found: Plurals = {}
    for raw in load_definitions(path):
        spec = raw["spec"]
        names = spec["names"]
        key = (str(spec.get("group", "")), str(names.get("kind", "")))
        found[key] = str(names.get("plural", ""))
    return found


def load_definitions(path: str) -> list[Json]:
    """Return the CustomResourceDefinitions in a file, [] without a file."""
    if not path:
        return []
    from kyverno_mp.cli.sources.strict import read_documents  # rarely needed

    found = list(read_documents(Path(path), is_argument=True))
    for raw in found:
        spec = raw.get("spec") if type(raw) is dict else None
        names = spec.get("names") if type(spec) is dict else None
        if type(spec) is not dict or type(names) is not dict:
            raise CommandFailed(f"--crd-path {path}: not a CustomResourceDefinition")
    return found


def known_plurals(more: Plurals | None) -> Plurals:
    """Return the resource names of the built-in kinds and of the given kinds."""
    return {(one.group, one.kind): one.plural for one in BUILT_IN} | (more or {})
