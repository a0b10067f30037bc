"""Write the schemas of built-in kinds for merges of apply configurations.

``python -m tests.unit.values.typed_schemas FOLDER``: FOLDER has the OpenAPI v3
documents of one Kubernetes release (``builtins/1.32`` of sigs.k8s.io/kubectl-validate,
the release that the command line of Kyverno 1.18.2 embeds). The notation is that of
values/typed/schema.py.
"""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import kyverno_mp.values.typed.schema

_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_RAW = "io.k8s.apimachinery.pkg.runtime.RawExtension"
_FOLDER = Path(kyverno_mp.values.typed.schema.__file__).parent
_WIDTH = 88
_SCALARS = {"integer": "n", "number": "n", "boolean": "b"}


def _short(name: str) -> str:
    for long, short in (
        ("io.k8s.api.", ""),
        ("io.k8s.apimachinery.pkg.apis.", ""),
        ("io.k8s.apiextensions-apiserver.pkg.apis.", ""),
        ("io.k8s.kube-aggregator.pkg.apis.", ""),
    ):
        name = name.replace(long, short)
    return name


def _target(schema: dict[str, Any]) -> str:
    wrapped = schema.get("allOf") or [{}]
    reference: str = schema.get("$ref") or wrapped[0].get("$ref", "")
    return reference.rpartition("/")[2]


class _Writer:
    def __init__(self, schemas: dict[str, dict[str, Any]]) -> None:
        self._schemas = schemas
        self.used: dict[str, str] = {}

    def reference(self, name: str) -> str:
        """Return the notation of a named type, and write the type itself."""
        if name == _QUANTITY:
            return "u"
        if name == _RAW:
            return "!"
        schema = self._schemas[name]
        if not schema.get("properties"):
            return self.inlined(schema)
        if name not in self.used:
            self.used[name] = ""
            mark = "~" if schema.get("x-kubernetes-map-type") == "atomic" else ""
            fields = [
                f"{key}:{self.inlined(each)}"
                for key, each in sorted(schema["properties"].items())
            ]
            self.used[name] = f"{mark}{_short(name)} {' '.join(fields)}"
        return f"={_short(name)}"

    def inlined(self, schema: dict[str, Any]) -> str:
        """Return the notation of a schema."""
        target = _target(schema)
        if target:
            found = self.reference(target)
            if schema.get("x-kubernetes-map-type") == "atomic":
                return found.replace("=", "~", 1)
            if schema.get("x-kubernetes-map-type") == "granular":
                return found.replace("=", "+", 1)
            return found
        kind = schema.get("type", "")
        if kind == "array":
            return f"[{self._keys(schema)}]{self.inlined(schema['items'])}"
        if kind == "object":
            atomic = schema.get("x-kubernetes-map-type") == "atomic"
            more = schema.get("additionalProperties")
            items = self.inlined(more) if isinstance(more, dict) else "?"
            return ("{~}" if atomic else "{}") + items
        if kind == "string":
            return "s" if schema.get("format", "") in ("", "byte") else "u"
        return _SCALARS.get(kind, "?")

    def _keys(self, schema: dict[str, Any]) -> str:
        kind = schema.get("x-kubernetes-list-type")
        keys = schema.get("x-kubernetes-list-map-keys", [])
        if kind is None and "merge" in schema.get("x-kubernetes-patch-strategy", ""):
            merged = schema.get("x-kubernetes-patch-merge-key")
            kind, keys = ("map", [merged]) if merged else ("set", [])
        if kind != "map":
            return "*" if kind == "set" else ""
        items = self._schemas[_target(schema["items"])]["properties"]
        defaults = {key: items[key].get("default") for key in keys}
        return ",".join(
            key if defaults[key] is None else f"{key}={json.dumps(defaults[key])}"
            for key in keys
        )


def main(folder: Path) -> None:
    """Read the documents and write the file."""
    schemas: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("*.json")):
        schemas.update(json.loads(path.read_text())["components"]["schemas"])
    writer = _Writer(schemas)
    kinds = []
    for name, schema in sorted(schemas.items()):
        known = schema.get("x-kubernetes-group-version-kind", [])
        if len(known) != 1 or known[0]["kind"].endswith("List"):
            continue
        group, version, kind = (known[0][key] for key in ("group", "version", "kind"))
        kinds.append(f"{group}/{version} {kind} {writer.reference(name)}")
    lines = [*sorted(kinds), *sorted(writer.used.values())]
    folded = [
        wrapped
        for line in lines
        for wrapped in textwrap.wrap(
            line,
            _WIDTH,
            subsequent_indent=" ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]
    (_FOLDER / "built_in.txt").write_text("\n".join(folded) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
