"""Find and read kyverno-test.yaml files.

Room: cli. Takes: folders, a file name, a selector. Gives: TestFile records.
May touch: files below the named folders. Next: command. Source:
docs/behaviour/cli 14, 15; docs/behaviour/v1.19 8 (mocks).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Final

import click

from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.folders import named_below
from kyverno_mp.cli.sources.go_struct import BOOL, FREE, TEXT, Many, Struct
from kyverno_mp.cli.sources.shapes import META, TEXTS, TYPE, VALUES
from kyverno_mp.cli.sources.strict import fields_of, read_strictly
from kyverno_mp.cli.sources.user_info import deprecation
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import CEL_POLICY_KINDS
from kyverno_mp.values.wildcard import matches

_WITHOUT_REVIEW: Final = tuple(
    f"is{row.name}" for row in CEL_POLICY_KINDS if not row.segment
)
_RESOURCE_SPEC: Final = Struct(
    "TestResourceSpec",
    dict.fromkeys(
        ("group", "version", "kind", "namespace", "subresource", "name"), TEXT
    ),
)
_RESULT: Final = Struct(
    "TestResult",
    {},
    (
        Struct(
            "TestResultBase",
            {
                "policy": TEXT,
                "rule": TEXT,
                "isValidatingAdmissionPolicy": BOOL,
                "isMutatingAdmissionPolicy": BOOL,
                **{f"is{row.name}": BOOL for row in CEL_POLICY_KINDS},
                "result": TEXT,
                "kind": TEXT,
                "operation": TEXT,
                "patchedResources": TEXT,
                "generatedResource": TEXT,
                "cloneSourceResource": TEXT,
                "failOnMissingResources": BOOL,
            },
        ),
        Struct(
            "TestResultData",
            {
                "resources": TEXTS,
                "resourceSpecs": Many(_RESOURCE_SPEC),
                "generatedResources": TEXTS,
            },
        ),
    ),
)
_OPERATIONS: Final = ("CREATE", "UPDATE", "DELETE")
_MATCH: Final = Struct("CheckMatch", {"resource": FREE, "policy": FREE, "rule": FREE})
_CHECK: Final = Struct("CheckResult", {"match": _MATCH, "assert": FREE, "error": FREE})
_API_RESPONSE: Final = Struct(
    "APICallResponseEntry",
    {
        "url": TEXT,
        "urlPath": TEXT,
        "method": TEXT,
        "response": Struct("APICallResponse", {"statusCode": FREE, "body": FREE}),
    },
)
_PROJECTION: Final = Struct("GlobalContextProjection", {"name": TEXT, "path": TEXT})
_GLOBAL_ENTRY: Final = Struct(
    "GlobalContextEntryValue",
    {
        "name": TEXT,
        "data": FREE,
        "resources": Many(FREE),
        "resourceFiles": TEXTS,
        "fieldPath": TEXT,
        "projections": Many(_PROJECTION),
    },
)
_TEST: Final = Struct(
    "Test",
    {
        "metadata": META,
        "name": TEXT,
        "policies": TEXTS,
        "resources": TEXTS,
        "jsonPayload": TEXT,
        "jsonPayloads": TEXTS,
        "httpPayloads": TEXTS,
        "envoyPayloads": TEXTS,
        "targetResources": TEXTS,
        "variables": TEXT,
        "paramResources": TEXTS,
        "userinfo": TEXT,
        "results": Many(_RESULT),
        "checks": Many(_CHECK),
        "values": VALUES,
        "exceptions": TEXTS,
        "context": TEXT,
        "clusterResources": TEXTS,
        "apiCallResponses": Many(_API_RESPONSE),
        "globalContextEntries": Many(_GLOBAL_ENTRY),
    },
    (TYPE,),
)


@dataclass(slots=True)
class Expected:
    """One entry of ``results``."""

    policy: str
    rule: str
    resources: list[str] | None
    resource_specs: list[dict[str, Json]]
    result: str
    patched: str = ""
    generated: tuple[str, ...] = ()
    """Files of which one has each generated object."""
    operation: str = ""
    clone_source: str = ""
    fails_on_missing: bool = False
    """Whether an object that is missing in the file of patched objects is a failure."""
    index: int = 0
    """Position among the results of the test."""

    @property
    def policy_name(self) -> str:
        """Return the policy's name without a namespace."""
        return self.policy.rpartition("/")[2]


@dataclass(slots=True)
class TestFile:
    """One test document; its paths are relative to ``folder``."""

    path: Path
    folder: Path
    raw: dict[str, Json]
    results: list[Expected] = field(default_factory=list)
    document: int = 0
    """Position of the document in the file."""

    def paths(self, name: str) -> list[str]:
        """Return the paths of a list field, in order and without duplicates."""
        listed = dict.fromkeys(self.raw.get(name, []))
        return [str(self.folder / path) for path in listed]


class Selector:
    """``--test-case-selector``: keys policy, rule, resource with wildcards."""

    def __init__(self, expression: str) -> None:
        self._wanted: dict[str, list[str]] = {"policy": [], "rule": [], "resource": []}
        self.problems: list[str] = []
        for item in expression.split(",") if expression else ():
            parts = [part.strip() for part in item.split("=")]
            if len(parts) != 2:  # noqa: PLR2004 - key and value
                self.problems.append(
                    f"Invalid test-case-selector argument ({item}). Parameter must be"
                    " in the form `<key>=<value>`."
                )
            elif parts[0] not in self._wanted:
                self.problems.append(
                    f"Invalid test-case-selector ({item}). Parameter can only be"
                    " policy, rule or resource."
                )
            else:
                self._wanted[parts[0]].append(parts[1])
        # KYVERNO: only resources before the first "*" count, and none if an item is
        # malformed (docs/behaviour/cli 14).
        resources = [] if self.problems else self._wanted["resource"]
        self._resources = [*takewhile(lambda each: each != "*", resources)]

    def keeps(self, expected: Expected) -> bool:
        """Return whether the result is selected; a filter replaces its resources."""
        named = {
            "policy": [expected.policy] if expected.policy else [],
            "rule": [expected.rule] if expected.rule else [],
            "resource": expected.resources or [],
        }
        for key, patterns in self._wanted.items():
            for pattern in patterns if named[key] else ():
                if not any(matches(pattern, name) for name in named[key]):
                    return False
        if self._resources:
            # KYVERNO: the filter's strings replace the list (docs/behaviour/cli 14).
            expected.resources = list(self._resources)
        return True


def discover(
    folders: Sequence[str], file_name: str, echo: Callable[[str], None] = click.echo
) -> Iterator[Path]:
    """Yield the test files below the folders, in name order."""
    for folder in folders:
        try:
            # KYVERNO: the name cannot contain wildcards (docs/behaviour/cli 14).
            yield from named_below(Path(folder), file_name)
        except OSError as error:
            message = read_error(error, error.filename or folder)
            echo(f"\nError loading tests: {message}")
            raise CommandFailed(message) from error


def read_tests(path: Path, echo: Callable[[str], None] = click.echo) -> list[TestFile]:
    """Return the tests of one file; raises CommandFailed on unknown fields."""
    tests = []
    for document, raw in enumerate(read_strictly(path)):
        top = fields_of(raw, _TEST)
        if not (top.get("apiVersion") and top.get("kind")) or top.get("name"):
            echo(deprecation("test", path))
            raise CommandFailed(
                f"test file {path} uses a deprecated schema — please migrate to the"
                " latest format"
            )
        results = [
            _expected(item, index) for index, item in enumerate(top.get("results", []))
        ]
        tests.append(TestFile(path, path.parent, top, results, document))
    return tests


def _expected(item: dict[str, Json], index: int) -> Expected:
    return Expected(
        policy=item.get("policy", ""),
        rule=item.get("rule", ""),
        resources=item.get("resources"),
        resource_specs=item.get("resourceSpecs", []),
        result=item.get("result", ""),
        patched=item.get("patchedResources", ""),
        generated=_generated(item),
        operation=_operation(item),
        clone_source=item.get("cloneSourceResource", ""),
        fails_on_missing=item.get("failOnMissingResources", False),
        index=index,
    )


def _generated(item: dict[str, Json]) -> tuple[str, ...]:
    """Return the files of generated objects; a list replaces the single file."""
    single = item.get("generatedResource", "")
    return tuple(item.get("generatedResources", ())) or ((single,) if single else ())


def _operation(item: dict[str, Json]) -> str:
    """Return the operation of a result, "" for the run's. Raises: CommandFailed."""
    operation: str = item.get("operation", "")
    reason = ""
    if operation and operation not in _OPERATIONS:
        listed = ", ".join(_OPERATIONS)
        reason = f'invalid operation "{operation}", must be one of {listed}'
    elif operation and any(map(item.get, _WITHOUT_REVIEW)):
        reason = "operation is not supported for deleting policies"
    if reason:
        policy = item.get("policy", "")
        raise CommandFailed(f"invalid test result for policy {policy}: {reason}")
    return operation
