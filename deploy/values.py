"""Convert values of Kyverno's chart to our chart, and list each omitted value.

Takes: a values file of Kyverno's chart, ideally `helm get values kyverno -o yaml`,
which has only changed values. Gives: values for deploy/chart on standard output; on
standard error, a line for each omitted value. Run as ``python -m deploy.values FILE``.
Next: docs/upgrade.md. May touch: the named file.

Besides unknown names, it omits values with the same name that would break the pods:
Kyverno's images, and its probes, which use another port.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.chart import CHART

Values = dict[str, Any]
Tell = Callable[[str, str], None]
"""Takes the path of an omitted value, and the reason."""

_IMAGES: Final = frozenset({"repository", "tag"})
_PROBES: Final = frozenset({"livenessProbe", "readinessProbe", "startupProbe"})
_KYVERNO_REGISTRIES: Final = frozenset({"reg.kyverno.io", "ghcr.io"})
_NOT_NEEDED: Final = (
    "crds.groups",
    "crds.migration",
    "nameOverride",
    "fullnameOverride",
    "apiVersionOverride",
    "upgrade",
    "reportsServer",
    "openreports",
    "test",
    "webhooksCleanup",
    "policyReportsCleanup",
)


def converted(given: Values, tell: Tell) -> Values:
    """Return this chart's values, without Kyverno's images and probes."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    return _kept(given, schema, "", tell)


def _kept(given: Values, schema: Values, above: str, tell: Tell) -> Values:
    kept = {}
    for name, value in given.items():
        path = f"{above}.{name}" if above else name
        reason = _reason(name, value, path, schema)
        if reason:
            tell(path, reason)
            continue
        below = schema.get("properties", {}).get(name, {})
        if isinstance(value, dict) and "properties" in below:
            value = _kept(value, below, path, tell)  # noqa: PLW2901 - its kept part
            if not value:
                continue
        # In Helm, null removes our default; in upstream's file it means "unset".
        if value is not None:
            kept[name] = value
    return kept


def _reason(name: str, value: Any, path: str, schema: Values) -> str:
    """Return the reason for omitting a value, "" if it is kept."""
    parent = path.rpartition(".")[0].rpartition(".")[2]
    if parent == "image" and name in _IMAGES:
        return "the image of Kyverno; set that of kyverno-mp" if value else ""
    if name == "registry" and value in _KYVERNO_REGISTRIES:
        return "the registry of Kyverno; set the one with your image"
    if name in _PROBES:
        return "kyverno-mp answers probes on another port; the default fits"
    if name in schema.get("properties", {}) or "properties" not in schema:
        return ""
    if any(path == one or path.startswith(f"{one}.") for one in _NOT_NEEDED):
        return "not needed"
    return "not in this chart"


def main() -> None:
    """Convert the file that is named on the command line."""
    (file,) = sys.argv[1:] or [""]
    if not file:
        sys.exit("usage: python -m deploy.values FILE > values.yaml")
    given = yaml.safe_load(Path(file).read_text()) or {}
    if not isinstance(given, dict):
        sys.exit(f"{file}: not a file of values")

    def tell(path: str, reason: str) -> None:
        sys.stderr.write(f"left out: {path}: {reason}\n")

    kept = converted(given, tell)
    sys.stdout.write(yaml.safe_dump(kept, sort_keys=False) if kept else "{}\n")


if __name__ == "__main__":
    main()
