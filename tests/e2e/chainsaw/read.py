"""Read a chainsaw test with its step templates and its configuration.

Takes: the path of a test file. Gives: Test. A field that this reader does not know is
an error, because a silently skipped step proves nothing. Next: run.py, index.py. May
touch: files below the folder of the suite.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.chainsaw.documents import (
    DEFAULT_TIMEOUTS_S,
    TIMEOUT_OF,
    Binding,
    Expectation,
    Operation,
    Step,
    Test,
)

_SOURCE: Final = frozenset({"file", "resource"})
_SHARED: Final = frozenset(
    {"bindings", "outputs", "timeout", "template", "description"}
)
_WRITING: Final = _SOURCE | _SHARED | {"expect", "dryRun"}
_SELECTING: Final = frozenset({"apiVersion", "kind", "name", "namespace", "selector"})
_EXEC: Final = _SHARED | {"check", "env", "skipLogOutput", "skipCommandOutput"}
FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "apply": _WRITING,
    "create": _WRITING,
    "update": _WRITING,
    "patch": _WRITING,
    "assert": _SOURCE | _SHARED,
    "error": _SOURCE | _SHARED,
    "delete": _SHARED | {"file", "ref", "expect", "deletionPropagationPolicy"},
    "script": _EXEC | {"content", "shell", "shellArgs", "workDir"},
    "command": _EXEC | {"entrypoint", "args", "workDir"},
    "sleep": frozenset({"duration"}),
    "wait": _SELECTING | _SHARED | {"for", "format"},
    "events": _SELECTING | _SHARED | {"format"},
    "describe": _SELECTING | _SHARED | {"showEvents"},
    "get": _SELECTING | _SHARED | {"format"},
    "podLogs": _SELECTING | _SHARED | {"container", "tail"},
}
"""Every operation, and its allowed fields."""

_TEST_FIELDS: Final = frozenset(
    {
        "bindings",
        "catch",
        "concurrent",
        "description",
        "forceTerminationGracePeriod",
        "namespace",
        "namespaceTemplate",
        "skip",
        "skipDelete",
        "steps",
        "template",
        "timeouts",
    }
)
_STEP_FIELDS: Final = frozenset(
    {
        "bindings",
        "catch",
        "cleanup",
        "description",
        "finally",
        "name",
        "skipDelete",
        "template",
        "timeouts",
        "try",
        "use",
    }
)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
CONFIGURATION: Final = ".chainsaw.yaml"


class Unreadable(Exception):
    """This reader does not support the test."""


@dataclass(frozen=True)
class _Level:
    """The settings that inner levels inherit from an outer one."""

    folder: Path
    timeouts_s: Mapping[str, float]
    is_templated: bool
    patience_s: float


def read_test(path: Path, patience_s: float = math.inf) -> Test:
    """Read one test file; raises Unreadable naming the place.

    ``patience_s``: no operation can take longer, even if the test allows it.
    """
    document = _only(path, "Test")
    spec = document["spec"]
    _refuse_unknown(spec, _TEST_FIELDS, str(path))
    configured = _configuration(path.parent)
    timeouts = (
        dict(DEFAULT_TIMEOUTS_S)
        | _timeouts(configured.get("timeouts"))
        | _timeouts(spec.get("timeouts"))
    )
    is_templated = (configured.get("templating") or {}).get("enabled", True)
    level = _Level(
        path.parent, timeouts, spec.get("template", is_templated), patience_s
    )
    return Test(
        name=document["metadata"]["name"],
        folder=path.parent,
        steps=tuple(
            _step(step, f"step-{number:02d}", level)
            for number, step in enumerate(spec.get("steps") or [], start=1)
        ),
        namespace=spec.get("namespace", ""),
        bindings=_bindings(spec.get("bindings")),
        catches=_operations(spec.get("catch"), "catch", level),
        is_skipped=bool(spec.get("skip", False)),
        timeouts_s=timeouts,
    )


def duration_s(text: str) -> float:
    """Read a Go duration: ``1m30s``."""
    parts = _DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text or not text:
        raise Unreadable(f"not a duration: {text!r}")
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


def _step(raw: Mapping[str, Any], default_name: str, level: _Level) -> Step:
    name = raw.get("name") or default_name
    _refuse_unknown(raw, _STEP_FIELDS, name)
    own = _Level(
        level.folder,
        {**level.timeouts_s, **_timeouts(raw.get("timeouts"))},
        raw.get("template", level.is_templated),
        level.patience_s,
    )
    bindings = _bindings(raw.get("bindings"))
    parts = {part: _operations(raw.get(part), name, own) for part in _PARTS}
    if "use" in raw:
        used = raw["use"]
        given = _bindings((used.get("with") or {}).get("bindings"))
        template, defaults = _template(used["template"], own.folder)
        bindings = (*defaults, *bindings, *given)
        for part in _PARTS:
            parts[part] = _operations(template.get(part), name, own) + parts[part]
    return Step(
        name=name,
        tries=parts["try"],
        catches=parts["catch"],
        finals=parts["finally"],
        cleanups=parts["cleanup"],
        bindings=bindings,
    )


_PARTS: Final = ("try", "catch", "finally", "cleanup")


def _template(
    relative: str, folder: Path
) -> tuple[Mapping[str, Any], tuple[Binding, ...]]:
    # Upstream joins the path to the folder of the test, even if it starts with "/".
    path = folder / relative.lstrip("/")
    spec = _only(path, "StepTemplate")["spec"]
    return spec, _bindings(spec.get("bindings"))


def _operations(
    raw: list[dict[str, Any]] | None, step: str, level: _Level
) -> tuple[Operation, ...]:
    return tuple(
        _operation(one, f"{step}/{number}", level)
        for number, one in enumerate(raw or [], start=1)
    )


def _operation(raw: Mapping[str, Any], place: str, level: _Level) -> Operation:
    names = [key for key in raw if key != "description"]
    if len(names) != 1 or names[0] not in FIELDS:
        raise Unreadable(f"{place}: not one known operation: {names}")
    name = names[0]
    fields = dict(raw[name])
    _refuse_unknown(fields, FIELDS[name], f"{place}:{name}")
    bound = level.timeouts_s[TIMEOUT_OF.get(name, "exec")]
    timeout = fields.pop("timeout", None)
    return Operation(
        name=name,
        place=f"{place}:{name}",
        timeout_s=min(
            bound if timeout is None else duration_s(timeout), level.patience_s
        ),
        is_templated=fields.pop("template", level.is_templated),
        bindings=_bindings(fields.pop("bindings", None)),
        outputs=_bindings(fields.pop("outputs", None)),
        expect=tuple(
            Expectation(one["check"], one.get("match"))
            for one in fields.pop("expect", None) or []
        ),
        fields=fields,
    )


def _bindings(raw: list[dict[str, Any]] | None) -> tuple[Binding, ...]:
    return tuple(Binding(one["name"], one["value"]) for one in raw or [])


def _timeouts(raw: Mapping[str, str] | None) -> dict[str, float]:
    return {name: duration_s(text) for name, text in (raw or {}).items()}


def _configuration(folder: Path) -> dict[str, Any]:
    """Return the nearest configuration above; two of its fields matter here."""
    for above in (folder, *folder.parents):
        path = above / CONFIGURATION
        if path.is_file():
            spec: dict[str, Any] = _only(path, "Configuration").get("spec") or {}
            return spec
    return {}


def _only(path: Path, kind: str) -> dict[str, Any]:
    try:
        documents = [
            one
            for one in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader)
            if one
        ]
    except (OSError, yaml.YAMLError) as error:
        raise Unreadable(f"{path}: {error}") from error
    if len(documents) != 1 or documents[0].get("kind") != kind:
        raise Unreadable(f"{path}: not one {kind}")
    document: dict[str, Any] = documents[0]
    return document


def _refuse_unknown(raw: Mapping[str, Any], known: frozenset[str], place: str) -> None:
    unknown = sorted(set(raw) - known)
    if unknown:
        raise Unreadable(f"{place}: unknown fields {', '.join(unknown)}")
