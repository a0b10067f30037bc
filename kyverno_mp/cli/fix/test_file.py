"""Convert test, values and user files to the current schema.

Room: cli. Takes: raw documents. Gives: fixed documents, and messages.
Next: fix. May touch: its arguments. Source: docs/behaviour/cli 18.
"""

from typing import Final

from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.values.jsonvalue import Json

API_VERSION: Final = "cli.kyverno.io/v1alpha1"
_ORDER: Final = (
    "policy",
    "rule",
    "result",
    "kind",
    "generatedResource",
    "cloneSourceResource",
)


def fix_head(raw: dict[str, Json], kind: str) -> tuple[dict[str, Json], list[str]]:
    """Put apiVersion and kind first in a test file or values file."""
    messages = []
    for name, wanted in (("apiVersion", API_VERSION), ("kind", kind)):
        if not raw.get(name):
            messages.append(f"{name} is not set, setting `{wanted}`")
    head = {
        "apiVersion": raw.get("apiVersion") or API_VERSION,
        "kind": raw.get("kind") or kind,
    }
    return {**head, **{k: v for k, v in raw.items() if k not in head}}, messages


def fix_test(
    raw: dict[str, Json], file_name: str, *, compress: bool
) -> tuple[dict[str, Json], list[str]]:
    """Return the fixed test and its messages; raises CommandFailed."""
    _check_shape(raw)
    fixed, messages = fix_head(raw, "Test")
    metadata = dict(fixed.get("metadata") or {})
    name = fixed.pop("name", None)
    if name:
        messages.append("name is deprecated, moving it into `metadata.name`")
    elif not metadata.get("name"):
        messages.append("name is not set")
        name = file_name
    if name and not metadata.get("name"):
        metadata["name"] = name
    tail = {k: v for k, v in fixed.items() if k not in ("apiVersion", "kind")}
    fixed = {
        "apiVersion": fixed["apiVersion"],
        "kind": fixed["kind"],
        "metadata": metadata,
        **{k: v for k, v in tail.items() if k != "metadata"},
    }
    for listed in ("policies", "resources"):
        if not fixed.get(listed):
            messages.append(f"test has no {listed}")
    results = [_fix_result(dict(r), messages) for r in fixed.get("results") or []]
    if compress:
        results = _compressed(results)
    fixed["results"] = sorted(results, key=_sort_key)
    return fixed, messages


def _check_shape(raw: Json) -> None:
    if type(raw) is not dict:
        raise CommandFailed("expected a map")
    if type(raw.get("metadata") or {}) is not dict:
        raise CommandFailed("metadata: expected a map")
    results = raw.get("results") or []
    if type(results) is not list or any(type(item) is not dict for item in results):
        raise CommandFailed("results: expected a list of maps")
    for index, item in enumerate(results):
        if type(item.get("resources") or []) is not list:
            raise CommandFailed(f"results[{index}].resources: expected a list")


def _fix_result(result: dict[str, Json], messages: list[str]) -> dict[str, Json]:
    if result.get("resource"):
        if result.get("resources"):
            messages.append(
                "test result should not use both `resource` and `resources` fields"
            )
        messages.append(
            "test result uses deprecated `resource` field, moving it into the"
            " `resources` field"
        )
        resource = result.pop("resource")
        result["resources"] = [*(result.get("resources") or []), resource]
    if result.get("namespace"):
        messages.append(
            "test result uses deprecated `namespace` field, replacing `policy` with a"
            " `<namespace>/<name>` pattern"
        )
        namespace = result.pop("namespace")
        result["policy"] = f"{namespace}/{result.get('policy', '')}"
    if result.get("status"):
        if result.get("result"):
            raise CommandFailed(
                "test result should not use both `status` and `result` fields"
            )
        messages.append(
            "test result uses deprecated `status` field, moving it into the `result`"
            " field"
        )
        result["result"] = result.pop("status")
    if result.get("patchedResource"):
        messages.append(
            "test result uses deprecated `patchedResource` field, moving it into the"
            " `patchedResources` field"
        )
        result["patchedResources"] = result.pop("patchedResource")
    if result.get("resources"):
        # A resource that is named twice produces two equal rows.
        result["resources"] = _unique(result["resources"])
    return result


def _unique(names: list[Json]) -> list[str]:
    return sorted({str(name) for name in names})


def _compressed(results: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Merge results that differ only in their resources."""
    merged: dict[str, dict[str, Json]] = {}
    for result in results:
        base = {k: v for k, v in result.items() if k != "resources"}
        # Results without resources apply to all resources, so they are not merged.
        key = repr((sorted(base.items(), key=str), "resources" in result))
        known = merged.setdefault(key, result)
        if known is not result:
            names = [*known.get("resources", []), *result.get("resources", [])]
            known["resources"] = _unique(names)
    return list(merged.values())


def _sort_key(result: dict[str, Json]) -> tuple[Json, ...]:
    names = [str(name) for name in result.get("resources") or []]
    return (*(str(result.get(key, "")) for key in _ORDER), len(names), names)
