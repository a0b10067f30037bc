"""Generate the CustomResourceDefinition of every kind.

Room: policy. Takes: the tables of kinds in this folder. Gives: file name -> YAML text.
Next: ``kyverno-mp crds``, which writes the files in config/crds/.
Source: docs/behaviour/controllers 1; apiextensions/v1.
"""

from typing import Final

import yaml

from kyverno_mp.policy.crd.cel_kinds import CEL_KINDS
from kyverno_mp.policy.crd.kind import Column, Kind, Version
from kyverno_mp.policy.crd.notation import TEXT, Schema, record
from kyverno_mp.policy.crd.report_kinds import REPORT_KINDS
from kyverno_mp.policy.crd.typed_kinds import KYVERNO_KINDS
from kyverno_mp.values.jsonvalue import Json

ALL_KINDS: Final[tuple[Kind, ...]] = (*KYVERNO_KINDS, *CEL_KINDS, *REPORT_KINDS)

_HEAD: Final = "# Written by `kyverno-mp crds`; change the declarations instead.\n"


class _Plain(yaml.CSafeDumper):
    """A dumper that repeats shared parts, because the API server rejects anchors."""

    def ignore_aliases(self, data: Json) -> bool:
        """Return True, so that every part is written in full."""
        del data
        return True


def render() -> dict[str, str]:
    """Return the texts by file name (``<group>_<plural>.yaml``)."""
    return {
        f"{kind.group}_{kind.plural}.yaml": _HEAD
        + yaml.dump(definition(kind), Dumper=_Plain, sort_keys=False, width=10**6)
        for kind in ALL_KINDS
    }


def definition(kind: Kind) -> dict[str, Json]:
    """Return the CustomResourceDefinition of one kind."""
    names: dict[str, Json] = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.kind.lower(),
    }
    if kind.short_name:
        names["shortNames"] = [kind.short_name]
    if kind.is_in_category:
        names["categories"] = ["kyverno"]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "names": names,
            "scope": "Namespaced" if kind.is_namespaced else "Cluster",
            "versions": [_version(kind, version) for version in kind.versions],
        },
    }


def _version(kind: Kind, version: Version) -> dict[str, Json]:
    fields = {"apiVersion": TEXT, "kind": TEXT, "metadata": {"type": "object"}}
    version_schema: dict[str, Json] = {
        "name": version.name,
        "served": version.is_served,
        "storage": version.is_storage,
    }
    if version.is_deprecated:
        version_schema["deprecated"] = True
    columns = kind.columns if version.columns is None else version.columns
    if columns:
        version_schema["additionalPrinterColumns"] = [
            _column(column) for column in columns
        ]
    if kind.selectable_fields:
        version_schema["selectableFields"] = [
            {"jsonPath": path} for path in kind.selectable_fields
        ]
    if kind.has_status:
        version_schema["subresources"] = {"status": {}}
    schema = record({**fields, **version.all_fields()}, description=kind.about)
    version_schema["schema"] = {"openAPIV3Schema": _comparable(schema)}
    return version_schema


def _comparable(schema: Schema, *, is_in_list: bool = False) -> dict[str, Json]:
    """Copy a schema without the defaults in items of lists.

    K8S: three-way merges replace the lists of custom resources as a whole, so an item
    with a default differs from the applied one for ever: Argo CD shows the policy as
    OutOfSync. Defaults of maps do no harm. The documents have the same defaults.
    """
    copy = {
        name: part
        for name, part in schema.items()
        if name != "default" or not is_in_list
    }
    if "properties" in copy:
        copy["properties"] = {
            name: _comparable(part, is_in_list=is_in_list)
            for name, part in schema["properties"].items()
        }
    for name in ("items", "additionalProperties"):
        if name in copy:
            is_item = is_in_list or name == "items"
            copy[name] = _comparable(schema[name], is_in_list=is_item)
    return copy


def _column(column: Column) -> dict[str, Json]:
    column_schema: dict[str, Json] = {
        "name": column.name,
        "type": column.type,
        "jsonPath": column.path,
    }
    if column.is_wide:
        column_schema["priority"] = 1
    return column_schema
