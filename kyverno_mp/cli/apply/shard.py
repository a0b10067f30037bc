"""The records of one shard of a run: JSON lines that ``merge`` puts together.

Room: cli. Takes: Responses of the shard's objects. Gives: lines: a Head, Rows, an End.
Next: finish, cli/merge.
Source: docs/fleets.md.

A row has all that any output of ``apply`` shows of a result, so that ``merge`` prints
what one run prints.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, Protocol

import msgspec

from kyverno_mp import __version__
from kyverno_mp.cli.apply.counts import Counts
from kyverno_mp.cli.apply.evaluate import Evaluator, Response
from kyverno_mp.cli.apply.finish import Remainder
from kyverno_mp.cli.apply.given import Given
from kyverno_mp.cli.apply.rounds import evaluate_all, shown_of
from kyverno_mp.cli.apply.scene import Scene
from kyverno_mp.cli.apply.work import Work
from kyverno_mp.cli.cluster.dump import Kept, part_of
from kyverno_mp.cli.sources.resources import Location
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.program.result import RuleResult
from kyverno_mp.values.jsonvalue import Json

OUTPUT: Final = (
    "policy_report",
    "output_format",
    "stdin",
    "audit_warn",
    "warn_exit_code",
    "warn_no_pass",
    "warnings_as_errors",
    "remove_color",
    "detailed_results",
    "table",
    "continue_on_fail",
    "generate_exceptions",
    "generated_exception_ttl",
)
"""Flags of ``apply`` that decide how results are shown and what they count."""
FORMAT: Final = 1
"""The version of the records."""


class Record(msgspec.Struct, rename="camel", omit_defaults=True):
    """A line; absent fields have their default."""


class Head(Record, kw_only=True, tag="shard", tag_field="record"):
    """The first line."""

    format: int
    version: str
    shard: int
    of: int
    run: str
    """Equal for the shards of one run: a hash of the compiled policies and of all
    inputs except the objects."""
    arguments: tuple[str, ...]
    """Of the run, without ``--shard``."""
    output: dict[str, bool | int | str]
    """The flags that decide what ``merge`` prints."""


class Row(Record, kw_only=True, tag="row", tag_field="record"):
    """One result of one rule for one object, in the order of the objects.

    ``result`` is pass, fail, warning, error or skip, before ``--audit-warn``; it is
    empty if the policy changed or passed the object without a result of a rule.
    """

    object: int
    """How many objects precede this one in the whole input."""
    response: int
    """Rows of the same object and number come from one policy."""
    file: str = ""
    document: int = 0
    item: int = -1
    line: int = 0
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    policy_kind: str
    policy_namespace: str = ""
    policy: str
    namespace_implied: bool = False
    scored: bool = True
    category: str = ""
    severity: str = ""
    admission: bool = True
    background: bool = True
    action: str = "Audit"
    rule: str = ""
    rule_type: str = ""
    result: str = ""
    message: str = ""
    code: str = ""
    properties: dict[str, str] = {}
    exceptions: tuple[str, ...] = ()
    warns: bool = False
    reasons: tuple[str, ...] = ()
    validation: int = -1
    patched_target: dict[str, Json] | None = None
    generated: tuple[dict[str, Json], ...] = ()
    passed: tuple[str, ...] = ()
    """Of the first row of a response: rules that passed and have no row."""
    skipped: tuple[str, ...] = ()
    patched: dict[str, Json] | None = None
    """Of the first row of a response: the object after a mutating policy."""
    path: str = ""
    is_as_read: bool = False


class End(Record, kw_only=True, tag="end", tag_field="record"):
    """The last line: the shard is complete. ``rows``: how many lines precede it."""

    rows: int
    counts: Counts
    """Of the results, and of objects that could not be evaluated."""
    objects: int
    """Of this shard."""
    total: int
    """Of all shards."""
    fingerprint: str
    """Of the identities of all objects."""
    warnings: int = 0
    heading: str = ""
    """What the run prints before its results."""
    rest: Remainder


LINE: Final = msgspec.json.Decoder(Head | Row | End)
_ENCODER: Final = msgspec.json.Encoder()
_OF_RULE: Final = (
    "rule",
    "rule_type",
    "message",
    "code",
    "properties",
    "exceptions",
    "warns",
    "reasons",
    "validation",
    "patched_target",
    "generated",
)
_OF_POLICY: Final = (
    "namespace_implied",
    "scored",
    "category",
    "severity",
    "admission",
    "background",
)


class Writer:
    """Writes the lines of a shard."""

    def __init__(self, show: Callable[[str], object]) -> None:
        self._show = show
        self._rows = 0

    def add(
        self, number: int, location: Location, responses: Sequence[Response]
    ) -> None:
        """Write the responses for one object; ``number``: its number in the input."""
        for order, response in enumerate(responses):
            for row in _rows(number, order, location, response):
                self.write(row)
                self._rows += 1

    def end(self, end: End) -> None:
        """Write the last line."""
        end.rows = self._rows
        self.write(end)

    def write(self, record: Record) -> None:
        """Write one line."""
        self._show(_ENCODER.encode(record).decode() + "\n")


def write_shard(
    work: Work,
    scene: Scene,
    remainder: Callable[[], Remainder],
    show: Callable[[str], object],
    arguments: Sequence[str],
    said: tuple[Callable[[], str], Sequence[str]],
) -> None:
    """Evaluate the objects of one shard and show its lines.

    ``said``: returns what the run has printed so far; its warnings.
    """
    kept = scene.resources
    assert isinstance(kept, Kept)
    writer, (heading, warnings) = Writer(show), said
    part, options = part_of(work.options.shard), work.options
    head = {name: getattr(options, name) for name in OUTPUT}
    writer.write(
        Head(
            format=FORMAT,
            version=__version__,
            shard=part.number,
            of=part.of,
            run=work.run(),
            arguments=tuple(arguments),
            output=head,
        )
    )
    printed = heading()
    evaluator = work.evaluator(scene.cluster_data)
    counts = write_rows(writer, evaluator, work, kept)
    rest = remainder()
    writer.end(
        End(
            rows=0,
            counts=counts,
            objects=len(kept),
            total=kept.total,
            fingerprint=f"{kept.fingerprint:016x}",
            rest=rest,
            warnings=len(warnings),
            heading=printed,
        )
    )


class Numbered(Given, Protocol):
    """Objects of a part of the input."""

    @property
    def numbers(self) -> Sequence[int]:
        """For each object, how many objects precede it in the whole input."""


def write_rows(
    writer: Writer, evaluator: Evaluator, work: Work, kept: Numbered
) -> Counts:
    """Evaluate the objects, write their rows, and return the counts."""
    counts, options = Counts(), work.options
    rounds = evaluate_all(evaluator, work, kept, options)
    for position, responses in enumerate(rounds):
        shown = shown_of(responses, counts, options)
        writer.add(kept.numbers[position], kept.location(position), shown)
    return counts


def _rows(
    number: int, order: int, location: Location, response: Response
) -> Iterator[Row]:
    policy, resource = response.policy, response.resource
    shared: dict[str, Any] = {
        "object": number,
        "response": order,
        "file": location.file,
        "document": location.index,
        "item": location.item,
        "line": location.line,
        "api_version": _word(resource.get("apiVersion")),
        "kind": _word(resource.get("kind")),
        "namespace": metadata_text(resource, "namespace"),
        "name": metadata_text(resource, "name"),
        "uid": metadata_text(resource, "uid"),
        "resource_version": metadata_text(resource, "resourceVersion"),
        "policy_kind": policy.kind,
        "policy_namespace": policy.namespace,
        "policy": policy.name,
        "action": response.action,
        **{name: getattr(policy, name) for name in _OF_POLICY},
    }
    first: dict[str, Any] = {
        "passed": response.passed,
        "skipped": response.skipped,
        "patched": response.patched,
        "path": response.path,
        "is_as_read": response.is_as_read,
    }
    if not response.results:
        yield Row(**shared, **first)
    for rule in response.results:
        fields = {name: getattr(rule, name) for name in _OF_RULE}
        yield Row(**shared, **fields, result=rule.status, **first)
        first = {}


def _word(value: Json) -> str:
    return value if type(value) is str else ""


def responses_of(
    rows: Iterable[Row],
) -> Iterator[tuple[Response, Location]]:
    """Yield the responses of rows, and the locations of their objects."""
    policies: dict[tuple[Any, ...], PolicyIR] = {}
    for _, group in groupby(rows, lambda row: (row.object, row.response)):
        results = list(group)
        row = results[0]
        resource = {
            "apiVersion": row.api_version,
            "kind": row.kind,
            "metadata": {
                key: value
                for key, value in (
                    ("name", row.name),
                    ("namespace", row.namespace),
                    ("uid", row.uid),
                    ("resourceVersion", row.resource_version),
                )
                if value
            },
        }
        response = Response(
            _policy_of(row, policies),
            resource,
            [_result_of(each) for each in results if each.result],
            row.action,
            row.passed,
            row.skipped,
            row.patched,
            row.path,
            row.is_as_read,
        )
        yield response, Location(row.file, row.document, row.item, row.line)


def _policy_of(row: Row, policies: dict[tuple[Any, ...], PolicyIR]) -> PolicyIR:
    fields = {name: getattr(row, name) for name in _OF_POLICY}
    key = (row.policy_kind, row.policy, row.policy_namespace, *fields.values())
    policy = policies.get(key)
    if policy is None:
        policy = policies[key] = PolicyIR(*key[:3], **fields)
    return policy


def _result_of(row: Row) -> RuleResult:
    fields = {name: getattr(row, name) for name in _OF_RULE}
    return RuleResult(status=row.result, **fields)
