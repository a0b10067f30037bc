"""Convert values of Kyverno's chart to our chart, and list each omitted value.

Takes: a values file of Kyverno's chart, ideally `helm get values kyverno -o yaml`,
which has only changed values. Gives: values for deploy/chart on standard output; on
standard error, a line for each value that is not in them. Run as ``python -m
deploy.values FILE``. The exit code is 1 if a value that asks for something was left
out, unless ``--leave-out`` accepts that. ``--split`` keeps the values of the other
controllers, which act only if they have Deployments of their own.
Next: docs/upgrade.md. May touch: the named file.

Besides values that the chart refuses, it omits values with the same name that would
break the pods: Kyverno's images, its probes, which use another port, its limits of
memory; and the defaults of Kyverno's chart where ours differ for a reason.
"""

import argparse
import difflib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from deploy import foreign
from deploy.chart import CHART, POOLS

Values = dict[str, Any]
Tell = Callable[[str, str, str], None]
"""Takes what happened (LOST, or a word for a note), a path, and the reason."""

LOST: Final = "left out"
_NOT_NEEDED: Final = "not needed"
_DEFAULT: Final = "default"
_IMAGES: Final = frozenset({"repository", "tag"})
_PROBES: Final = frozenset({"livenessProbe", "readinessProbe", "startupProbe"})
_KYVERNO_REGISTRIES: Final = frozenset({"reg.kyverno.io", "ghcr.io"})
_IMAGE: Final = "the image of Kyverno; set that of kyverno-mp"
_MEMORY_MIB_LEAST: Final = 512
_UNITS_MIB: Final = {"Ki": 1 / 1024, "Mi": 1, "Gi": 1024, "Ti": 1024**2}
_SIZE: Final = re.compile(r"([0-9.]+)([KMGT]i)?")
_CONTROLLERS: Final = ("admissionController", *POOLS)
_RESTRICTED: Final = {
    "runAsUser": 65534,
    "runAsGroup": 65534,
    "runAsNonRoot": True,
    "privileged": False,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
_SILENT: Final[Values] = {
    "updateStrategy": {
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "40%"},
        "type": "RollingUpdate",
    },
    "dnsPolicy": "ClusterFirst",
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "podSecurityContext": {},
    "priorityClassName": "",
    "topologySpreadConstraints": [],
    "tolerations": [],
}
"""Defaults of a controller in Kyverno's chart that ask for nothing."""
_PROBE: Final = {"port": 9443, "scheme": "HTTPS"}
_LIVE: Final = {"httpGet": {"path": "/health/liveness", **_PROBE}}
_READY: Final = {"httpGet": {"path": "/health/readiness", **_PROBE}}
_THEIRS: Final[Values] = {
    "securityContext": _RESTRICTED,
    "startupProbe": {
        **_LIVE,
        "failureThreshold": 20,
        "initialDelaySeconds": 2,
        "periodSeconds": 6,
    },
    "livenessProbe": {
        **_LIVE,
        "initialDelaySeconds": 15,
        "periodSeconds": 30,
        "timeoutSeconds": 5,
        "failureThreshold": 2,
        "successThreshold": 1,
    },
    "readinessProbe": {
        **_READY,
        "initialDelaySeconds": 5,
        "periodSeconds": 10,
        "timeoutSeconds": 5,
        "failureThreshold": 6,
        "successThreshold": 1,
    },
}
"""Defaults of a controller in Kyverno's chart that ours replace."""
_RESOURCES: Final[Mapping[str, Values]] = {
    name: {
        "limits": {"memory": f"{limit}Mi"},
        "requests": {"cpu": "100m", "memory": f"{request}Mi"},
    }
    for name, limit, request in (
        ("admissionController", 384, 128),
        *((pool, 128, 64) for pool in POOLS),
    )
}


def _spread(controller: str) -> Values:
    """Return the anti-affinity of a controller in Kyverno's chart."""
    component = controller.replace("Controller", "-controller")
    expression = {
        "key": "app.kubernetes.io/component",
        "operator": "In",
        "values": [component],
    }
    term = {
        "labelSelector": {"matchExpressions": [expression]},
        "topologyKey": "kubernetes.io/hostname",
    }
    preferred = [{"weight": 1, "podAffinityTerm": term}]
    return {"preferredDuringSchedulingIgnoredDuringExecution": preferred}


def _their_default(path: str, value: Any) -> tuple[str, str] | None:
    """Omit a default of Kyverno's chart, which nobody has chosen."""
    controller, _, rest = path.partition(".")
    name = rest.removeprefix("container.")
    if controller not in _CONTROLLERS or value is None:
        return None
    if name in _SILENT and value == _SILENT[name]:
        return "", ""
    theirs = {
        **_THEIRS,
        "resources": _RESOURCES[controller],
        "podAntiAffinity": _spread(controller),
    }
    for known, default in theirs.items():
        if name == known and _is_part(value, default):
            return _DEFAULT, "the default of Kyverno's chart; ours stays"
    return None


def _is_part(value: Any, whole: Any) -> bool:
    """Return whether everything in a value is also in the other one."""
    if isinstance(value, dict) and isinstance(whole, dict):
        return all(key in whole and _is_part(value[key], whole[key]) for key in value)
    return bool(value == whole)


class _Converter:
    """One conversion; ``tell`` gets what is not in the result."""

    def __init__(self, tell: Tell, *, is_split: bool) -> None:
        self._tell = tell
        self._schema = json.loads((CHART / "values.schema.json").read_text())
        only_split = json.loads((CHART / "values-of-split.json").read_text())
        self._only_split = {} if is_split else only_split

    def converted(self, given: Values) -> Values:
        """Return the values of this chart."""
        return self._kept(given, self._schema, "")

    def _kept(self, given: Values, schema: Values, above: str) -> Values:
        kept = {}
        for name, value in given.items():
            path = f"{above}.{name}" if above else str(name)
            below = schema.get("properties", {}).get(name, {})
            if isinstance(value, dict) and value and _is_parent(path, below):
                value = self._kept(value, below, path)  # noqa: PLW2901 - its kept part
                if value:
                    kept[name] = value
                continue
            found = self._omission(name, value, path, schema)
            if found is not None:
                if any(found):
                    self._tell(*found[:1], path, *found[1:])
                continue
            kept[name] = value
        return kept

    def _omission(
        self, name: str, value: Any, path: str, schema: Values
    ) -> tuple[str, str] | None:
        """Return why a value is omitted, as kind and reason; None if it is kept."""
        refused = foreign.REFUSED.get(path)
        if refused is not None:
            return ("", "") if refused.is_neutral(value) else (LOST, refused.why)
        harmless = foreign.harmless_above(path)
        if harmless:
            return _NOT_NEEDED, foreign.HARMLESS[harmless]
        # In Helm, null removes our default; in upstream's file it means "unset".
        if value is None and not _removes(path):
            return "", ""
        return (
            self._unknown(name, path, schema)
            or _their_default(path, value)
            or _broken(name, value, path)
            or self._without_split(value, path)
        )

    def _unknown(self, name: str, path: str, schema: Values) -> tuple[str, str] | None:
        if path.startswith("global.") or "additionalProperties" in schema:
            known = name in schema.get("properties", {})
        else:
            known = name in schema.get("properties", {}) or "properties" not in schema
        if known:
            return None
        names = [*_paths(self._schema), *foreign.HARMLESS, *foreign.REFUSED]
        near = difflib.get_close_matches(path, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return LOST, f"no value of this chart or of Kyverno's{hint}"

    def _without_split(self, value: Any, path: str) -> tuple[str, str] | None:
        """Omit a value of a controller that has no Deployment of its own."""
        for name, default in self._only_split.items():
            if path == name or path.startswith(f"{name}."):
                if value in (default, _OFF.get(path), {}, [], ""):
                    return "", ""
                return LOST, "it acts only with split=true; --split keeps it"
        return None


_OFF: Final[Values] = {
    f"{pool}.{name}": value
    for pool in POOLS
    for name, value in {
        "podDisruptionBudget.enabled": False,
        "podDisruptionBudget.minAvailable": 1,
        "networkPolicy.enabled": False,
    }.items()
}
"""Defaults of Kyverno's chart that ask nothing of pods that do not exist."""


def _is_parent(path: str, below: Values) -> bool:
    """Return whether the parts of an object are looked at one by one."""
    if path in foreign.REFUSED:
        return False
    return "properties" in below or any(
        one.startswith(f"{path}.") for one in (*foreign.HARMLESS, *foreign.REFUSED)
    )


def _removes(path: str) -> bool:
    """Return whether null asks for something: users and groups of pods."""
    return "ecurityContext." in path


def _paths(schema: Values, above: str = "") -> Iterator[str]:
    for name, below in schema.get("properties", {}).items():
        path = f"{above}.{name}" if above else name
        yield path
        yield from _paths(below, path)


def _broken(name: str, value: Any, path: str) -> tuple[str, str] | None:
    """Omit what would break the pods."""
    *above, parent, _ = ["", *path.split(".")]
    if parent == "image" and above[1:2] != ["global"]:
        if name in _IMAGES:
            kyvernos = name == "repository" and str(value).startswith("kyverno/")
            return (_DEFAULT if kyvernos else LOST), _IMAGE
        if name == "registry" and value in _KYVERNO_REGISTRIES:
            return LOST, "the registry of Kyverno; set the one with your image"
    if name in _PROBES:
        return LOST, "kyverno-mp answers probes on another port; the default fits"
    if name == "resources" and isinstance(value, dict):
        limit = (value.get("limits") or {}).get("memory")
        if limit is not None and _mib(limit) < _MEMORY_MIB_LEAST:
            size = f"{_MEMORY_MIB_LEAST}Mi"
            return LOST, f"a limit of memory below {size} ends the pods; raise it"
    return None


def _mib(size: Any) -> float:
    found = _SIZE.fullmatch(str(size))
    if found is None:
        return _MEMORY_MIB_LEAST
    return float(found[1]) * _UNITS_MIB.get(found[2] or "", 1 / 1024**2)


def converted(given: Values, tell: Tell, *, split: bool = False) -> Values:
    """Return this chart's values for a file of Kyverno's values."""
    is_split = split or given.get("split") is True
    kept = _Converter(tell, is_split=is_split).converted(given)
    return {"split": True, **kept} if split else kept


def main() -> None:
    """Convert the file that is named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.values", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("file", type=Path, help="values of Kyverno's chart")
    parser.add_argument(
        "--split", action="store_true", help="a Deployment for each controller"
    )
    parser.add_argument(
        "--leave-out", action="store_true", help="exit with 0 if values are left out"
    )
    options = parser.parse_args()
    given = yaml.safe_load(options.file.read_text()) or {}
    if not isinstance(given, dict):
        sys.exit(f"{options.file}: not a file of values")
    lost = []

    def tell(what: str, path: str, reason: str) -> None:
        sys.stderr.write(f"{what}: {path}: {reason}\n")
        if what == LOST:
            lost.append(path)

    kept = converted(given, tell, split=options.split)
    sys.stdout.write(yaml.safe_dump(kept, sort_keys=False) if kept else "{}\n")
    if lost and not options.leave_out:
        sys.exit(1)


if __name__ == "__main__":
    main()
