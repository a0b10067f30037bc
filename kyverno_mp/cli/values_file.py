"""Values that stand in for what a cluster would say: files and ``--set``.

Room: cli. Takes: a Values file or inline map, ``k=v`` texts. Gives: Values, asked per
(policy, resource) and per (policy, rule). Next: evaluate.
May touch: files named by the user. Source: spec/cli.md 6, 7b.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import click

from kyverno_mp.cli.errors import CommandFailed
from kyverno_mp.cli.strict import (
    check_fields,
    check_map,
    check_maps,
    check_texts,
    read_documents,
)
from kyverno_mp.cli.user_info import deprecation
from kyverno_mp.values.dotted import merged, nested
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.selector import labels_of

_TOP = {
    "apiVersion": str,
    "kind": str,
    "metadata": dict,
    "globalValues": dict,
    "policies": list,
    "namespaceSelector": list,
    "namespaces": list,
    "subresources": list,
}
_POLICY = {"name": str, "resources": list, "rules": list}
_RESOURCE = {"name": str, "values": dict}
_SELECTOR = {"name": str, "labels": dict}
_SUBRESOURCE = {"subresource": dict, "parentResource": dict}
_RULE = {"name": str, "values": dict, "foreachValues": dict}


@dataclass(slots=True)
class Values:
    """All given values. Keys of the value maps are dotted names."""

    global_values: dict[str, Json] = field(default_factory=dict)
    resources: dict[tuple[str, str], dict[str, Json]] = field(default_factory=dict)
    """(policy name, resource name) -> values."""
    rules: dict[tuple[str, str], dict[str, Json]] = field(default_factory=dict)
    """(policy name, rule name) -> nested tree to merge into the JSON context."""
    namespace_labels: dict[str, dict[str, str]] = field(default_factory=dict)
    namespace_objects: dict[str, Json] = field(default_factory=dict)
    subresources: list[dict[str, Json]] = field(default_factory=list)
    set_values: dict[str, str] = field(default_factory=dict)

    def for_resource(self, policy: str, resource: str) -> dict[str, Json]:
        """Return dotted values for one policy and resource, by precedence."""
        values = dict(self.global_values)
        values.update(self.resources.get((policy, resource), {}))
        values.update(self.set_values)
        values.setdefault("request.operation", "CREATE")
        return values

    def for_rule(self, policy: str, rule: str) -> dict[str, Json]:
        """Return the tree of a rule's values; autogen names share their rule's."""
        for name in (
            rule,
            rule.removeprefix("autogen-cronjob-"),
            rule.removeprefix("autogen-"),
        ):
            found = self.rules.get((policy, name))
            if found is not None:
                return found
        return {}


def parse_set(texts: Iterable[str]) -> dict[str, str]:
    """Parse ``--set``: what has not the form ``k=v`` is ignored, the first one wins."""
    values: dict[str, str] = {}
    for text in texts:
        parts = [part.strip() for part in text.split("=")]
        if len(parts) == 2 and all(parts) and "request.object." not in parts[0]:  # noqa: PLR2004 - key and value
            values.setdefault(parts[0], parts[1])
    return values


def load_values(path: Path, tell: Callable[[str], None] = click.echo) -> Values:
    """Read a Values file; raises CommandFailed."""
    documents = read_documents(path)
    raw = check_fields(documents[0] if documents else {}, _TOP, str(path))
    if not (raw.get("apiVersion") and raw.get("kind")):
        tell(deprecation("values", path))
        raise CommandFailed(
            f"values file {path} uses a deprecated schema — please migrate to the"
            " latest format"
        )
    return values_from(raw, str(path))


def values_from(raw: Json, where: str) -> Values:
    """Build Values from the document; raises CommandFailed on unknown fields."""
    top = check_fields(raw, _TOP, where)
    values = Values(global_values=top.get("globalValues", {}))
    for index, item in enumerate(top.get("policies", [])):
        _add_policy(values, item, f"{where}: policies[{index}]")
    for raw_item in top.get("namespaceSelector", []):
        item = check_fields(raw_item, _SELECTOR, f"{where}: namespaceSelector")
        place = f"{where}: namespaceSelector: labels"
        check_texts([*item.get("labels", {}).values()], place)
        values.namespace_labels[item.get("name", "")] = item.get("labels", {})
    for item in check_maps(top.get("namespaces"), f"{where}: namespaces"):
        metadata = check_map(item.get("metadata"), f"{where}: namespaces: metadata")
        name = metadata.get("name")
        if not isinstance(name, str):
            raise CommandFailed(f"{where}: namespaces: metadata.name is no text")
        values.namespace_labels[name] = labels_of(metadata.get("labels"))
        values.namespace_objects[name] = item
    for index, item in enumerate(
        check_maps(top.get("subresources"), f"{where}: subresources")
    ):
        place = f"{where}: subresources[{index}]"
        values.subresources.append(check_fields(item, _SUBRESOURCE, place))
    return values


def _add_policy(values: Values, raw: Json, where: str) -> None:
    policy = check_fields(raw, _POLICY, where)
    name = policy.get("name", "")
    for index, item in enumerate(policy.get("resources", [])):
        entry = check_fields(item, _RESOURCE, f"{where}.resources[{index}]")
        target = values.resources.setdefault((name, entry.get("name", "")), {})
        target.update(entry.get("values", {}))
    for index, item in enumerate(policy.get("rules", [])):
        entry = check_fields(item, _RULE, f"{where}.rules[{index}]")
        tree: Json = values.rules.get((name, entry.get("name", "")), {})
        for key, value in entry.get("values", {}).items():
            tree = merged(tree, nested(key, value))
        for key, items in entry.get("foreachValues", {}).items():
            if isinstance(items, list) and items:
                tree = merged(tree, nested(key, items[0]))
        values.rules[(name, entry.get("name", ""))] = tree
