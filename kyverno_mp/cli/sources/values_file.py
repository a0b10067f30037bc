"""Read values that replace cluster and request data, from files and ``--set``.

Room: cli. Takes: a Values file or inline map, ``k=v`` strings. Gives: Values, by
(policy, resource) and by (policy, rule). Next: cli/apply/evaluate.
May touch: files named by the user. Source: docs/behaviour/cli 6, 7b.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import click
import msgspec

from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.user_info import deprecation
from kyverno_mp.values.dotted import merged, nested
from kyverno_mp.values.jsonvalue import Json

_HERE: Final = Path()


class Values(msgspec.Struct):
    """All given values. Keys of the value maps are dotted names."""

    global_values: dict[str, Json] = {}
    resources: dict[tuple[str, str], dict[str, Json]] = {}
    """(policy name, resource name) -> values."""
    rules: dict[tuple[str, str], dict[str, Json]] = {}
    """(policy name, rule name) -> tree to merge into the JSON context."""
    namespace_labels: dict[str, dict[str, str]] = {}
    namespace_objects: dict[str, Json] = {}
    subresources: list[dict[str, Json]] = []
    set_values: dict[str, str] = {}

    def lacks_namespace(self, name: str) -> bool:
        """Return whether the values have no labels for the named namespace."""
        return bool(name) and name not in self.namespace_labels

    def for_resource(self, policy: str, resource: str) -> dict[str, Json]:
        """Return dotted values for one policy and resource, by precedence."""
        values = dict(self.global_values)
        values.update(self.resources.get((policy, resource), {}))
        values.update(self.set_values)
        values.setdefault("request.operation", "CREATE")
        return values

    def for_rule(self, policy: str, rule: str) -> dict[str, Json]:
        """Return the tree of a rule's values; autogen rules use their rule's values."""
        for name in (
            rule,
            rule.removeprefix("autogen-cronjob-"),
            rule.removeprefix("autogen-"),
        ):
            values = self.rules.get((policy, name))
            if values is not None:
                return values
        return {}


def parse_set(assignments: Iterable[str]) -> dict[str, str]:
    """Parse ``--set``: parts other than ``k=v`` are ignored, the first value wins."""
    values: dict[str, str] = {}
    for assignment in assignments:
        parts = [part.strip() for part in assignment.split("=")]
        if len(parts) == 2 and all(parts) and "request.object." not in parts[0]:  # noqa: PLR2004 - key and value
            values.setdefault(parts[0], parts[1])
    return values


def load_values(
    path: Path, echo: Callable[[str], None] = click.echo, folder: Path = _HERE
) -> Values:
    """Read a Values file; raises CommandFailed."""
    # Imported late: rarely needed.
    from kyverno_mp.cli.sources.shapes import VALUES_FILE
    from kyverno_mp.cli.sources.strict import read_fields

    try:
        is_argument = folder is _HERE  # the folder of a test otherwise
        raw = read_fields(folder / path, VALUES_FILE, is_argument=is_argument)
    except CommandFailed as error:
        message = f"unable to load variable file: {path} ({error.message})"
        raise CommandFailed(message) from error
    if not (raw.get("apiVersion") and raw.get("kind")):
        echo(deprecation("values", path))
        raise CommandFailed(
            f"values file {path} uses a deprecated schema — please migrate to the"
            " latest format"
        )
    return values_from(raw)


def values_from(raw: dict[str, Json]) -> Values:
    """Build Values from the fields of a file, or of a test."""
    values = Values(global_values=raw.get("globalValues", {}))
    for policy in raw.get("policies", []):
        _add_policy(values, policy)
    for item in raw.get("namespaceSelector", []):
        values.namespace_labels[item.get("name", "")] = item.get("labels", {})
    for item in raw.get("namespaces", []):
        metadata = item.get("metadata", {})
        name = metadata.get("name", "")
        values.namespace_labels[name] = metadata.get("labels", {})
        values.namespace_objects[name] = item
    values.subresources.extend(raw.get("subresources", []))
    return values


def _add_policy(values: Values, policy: dict[str, Json]) -> None:
    name = policy.get("name", "")
    for entry in policy.get("resources", []):
        target = values.resources.setdefault((name, entry.get("name", "")), {})
        target.update(entry.get("values", {}))
    for entry in policy.get("rules", []):
        tree: Json = values.rules.get((name, entry.get("name", "")), {})
        for key, value in entry.get("values", {}).items():
            tree = merged(tree, nested(key, value))
        for key, items in entry.get("foreachValues", {}).items():
            if items:
                tree = merged(tree, nested(key, items[0]))
        values.rules[(name, entry.get("name", ""))] = tree
