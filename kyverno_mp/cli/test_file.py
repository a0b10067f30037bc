"""Find and read kyverno-test.yaml files.

Room: cli. Takes: folders, a file name, a selector. Gives: TestFile records.
May touch: files below the named folders. Next: run_tests. Source: spec/cli.md 14, 15.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kyverno_mp.cli.errors import CommandFailed
from kyverno_mp.cli.strict import (
    check_fields,
    check_maps,
    check_texts,
    read_documents,
)
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import matches

_TOP = {
    "apiVersion": str,
    "kind": str,
    "metadata": dict,
    "name": str,
    "policies": list,
    "resources": list,
    "targetResources": list,
    "paramResources": list,
    "exceptions": list,
    "clusterResources": list,
    "variables": str,
    "values": dict,
    "userinfo": str,
    "context": str,
    "jsonPayload": str,
    "httpPayloads": list,
    "envoyPayloads": list,
    "results": list,
    "checks": list,
}
_PATHS = (
    "policies",
    "resources",
    "targetResources",
    "paramResources",
    "exceptions",
    "clusterResources",
    "httpPayloads",
    "envoyPayloads",
)
"""Lists of paths."""
_RESULT = {
    "policy": str,
    "rule": str,
    "kind": str,
    "resources": list,
    "resourceSpecs": list,
    "result": str,
    "patchedResources": str,
    "generatedResource": str,
    "cloneSourceResource": str,
    "failOnMissingResources": bool,
    "isValidatingAdmissionPolicy": bool,
    "isMutatingAdmissionPolicy": bool,
    "isValidatingPolicy": bool,
    "isMutatingPolicy": bool,
    "isGeneratingPolicy": bool,
    "isDeletingPolicy": bool,
    "isImageValidatingPolicy": bool,
}


@dataclass(slots=True)
class Expected:
    """One entry of ``results``."""

    policy: str
    rule: str
    resources: list[str] | None
    resource_specs: list[dict[str, Json]]
    result: str
    patched: str = ""
    generated: str = ""
    clone_source: str = ""
    fails_on_missing: bool = False
    """An object that the file of patched objects lacks is a failure."""
    index: int = 0
    """Its place among the results of the test."""

    @property
    def policy_name(self) -> str:
        """Return the last segment: a namespace in front does not count."""
        return self.policy.rpartition("/")[2]


@dataclass(slots=True)
class TestFile:
    """One test document; ``folder`` is what its paths are relative to."""

    path: Path
    folder: Path
    raw: dict[str, Json]
    results: list[Expected] = field(default_factory=list)
    document: int = 0
    """Its place in the file."""

    def paths(self, name: str) -> list[str]:
        """Return the paths of a list field, in order, each once."""
        listed = dict.fromkeys(self.raw.get(name, []))
        return [str(self.folder / path) for path in listed]


class Selector:
    """``--test-case-selector``: keys policy, rule, resource with wildcards."""

    def __init__(self, text: str) -> None:
        self._wanted = {"policy": "*", "rule": "*", "resource": "*"}
        self.problems: list[str] = []
        for part in text.split(","):
            key, equals, value = part.strip().partition("=")
            if not equals or key not in self._wanted:
                self.problems.append(f"invalid test-case-selector item: {part}")
                continue
            self._wanted[key] = value

    def keeps(self, expected: Expected) -> bool:
        """Tell whether the result is kept; a resource filter narrows its resources."""
        policy, rule = self._wanted["policy"], self._wanted["rule"]
        if expected.policy and not matches(policy, expected.policy):
            return False
        if expected.rule and not matches(rule, expected.rule):
            return False
        resource = self._wanted["resource"]
        if resource != "*" and expected.resources:
            kept = [name for name in expected.resources if matches(resource, name)]
            if not kept:
                return False
            # KYVERNO: the filter's own text replaces the list (cli.md 14).
            expected.resources = [resource]
        return True


def discover(folders: Sequence[str], file_name: str) -> Iterator[Path]:
    """Yield the test files below the folders, in name order."""
    for folder in folders:
        root = Path(folder)
        if not root.is_dir():
            raise CommandFailed(f"open {folder}: not a directory or not readable")
        yield from sorted(path for path in root.rglob(file_name) if path.is_file())


def read_tests(path: Path) -> list[TestFile]:
    """Return the tests of one file; raises CommandFailed on unknown fields."""
    tests = []
    for document, raw in enumerate(read_documents(path)):
        top = check_fields(raw, _TOP, str(path))
        if not (top.get("apiVersion") and top.get("kind")) or "name" in top:
            raise CommandFailed(
                f"test file {path} uses a deprecated schema — please migrate to the"
                " latest format"
            )
        for name in _PATHS:
            check_texts(top.get(name, []), f"{path}: {name}")
        results = [
            _expected(item, f"{path}: results[{index}]", index)
            for index, item in enumerate(top.get("results", []))
        ]
        tests.append(TestFile(path, path.parent, top, results, document))
    return tests


def _expected(raw: Json, where: str, index: int) -> Expected:
    item = check_fields(raw, _RESULT, where)
    if "resources" in item:
        check_texts(item["resources"], f"{where}.resources")
    check_maps(item.get("resourceSpecs"), f"{where}.resourceSpecs")
    return Expected(
        policy=item.get("policy", ""),
        rule=item.get("rule", ""),
        resources=item.get("resources"),
        resource_specs=item.get("resourceSpecs", []),
        result=item.get("result", ""),
        patched=item.get("patchedResources", ""),
        generated=item.get("generatedResource", ""),
        clone_source=item.get("cloneSourceResource", ""),
        fails_on_missing=item.get("failOnMissingResources", False),
        index=index,
    )
