"""``lint``: find errors, outdated and misleading parts of policies.

Room: cli. Takes: policy paths. Gives: all findings with file, line and a stable code,
as text, JSON or SARIF. May touch: files named by the user, standard output.
Source: docs/behaviour/engine 10; docs/behaviour/cli 4.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import click

from kyverno_mp.cli.errors import CommandFailed
from kyverno_mp.cli.lint.checks import CODES, doubts
from kyverno_mp.cli.output import sarif
from kyverno_mp.cli.output.sarif import Explained, Finding
from kyverno_mp.cli.sources.policies import sources
from kyverno_mp.cli.sources.positions import Positions
from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.expression_faults import (
    admission_faults,
    condition_faults,
    expression_faults,
)
from kyverno_mp.errors import InputError, PolicyInvalid
from kyverno_mp.leader.policy_store import refuse_unbounded
from kyverno_mp.policy.admission_policy import (
    MutatingAdmissionPolicy,
    ValidatingAdmissionPolicy,
    decode_admission_policy,
    is_admission_policy,
)
from kyverno_mp.policy.check import check
from kyverno_mp.policy.cluster_policy import AnyPolicy, ClusterPolicy, Policy
from kyverno_mp.policy.decode import examine
from kyverno_mp.policy.exception import PolicyException
from kyverno_mp.policy.load import RawDocument, load
from kyverno_mp.policy.problems import DocumentInvalid, Problem
from kyverno_mp.policy.schema import is_cel_kind, schema_problems
from kyverno_mp.policy.stored import storage_problems
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import matches

_NOT_POLICIES = ("cli.kyverno.io/", "kustomize.config.k8s.io/", "chainsaw.kyverno.io/")
_NOT_EVALUATED = ("policies.kyverno.io/", "admissionregistration.k8s.io/")


@dataclass(slots=True)
class _Set:
    """The content of the files of one run, for checks across files."""

    policies: dict[str, list[tuple[AnyPolicy, Finding]]] = field(default_factory=dict)
    exceptions: list[tuple[PolicyException, Finding]] = field(default_factory=list)


def lint(paths: Sequence[str]) -> list[Finding]:
    """Return all findings in the order of files and lines; raises CommandFailed."""
    found: list[Finding] = []
    known = _Set()
    for path in paths:
        try:
            for text, file in _texts(path):
                found.extend(_file(text, file, known))
        except OSError as error:
            raise CommandFailed(_not_read(path, error)) from error
    found.extend(_across(known))
    order = {file: n for n, file in enumerate(dict.fromkeys(f.file for f in found))}
    return sorted(found, key=lambda f: (order[f.file], f.line, f.column, f.code))


def _not_read(path: str, error: OSError) -> str:
    name = str(error.filename or path)
    return f"{name}: {(error.strerror or str(error)).lower()}"


def _texts(path: str) -> Iterable[tuple[bytes, str]]:
    """Yield text and name of each file; one that is named is read whatever its name."""
    root = Path(path)
    if path == "-" or root.is_dir():
        return sources(path)
    return ((root.read_bytes(), path),)


def _file(text: bytes, file: str, known: _Set) -> Iterator[Finding]:
    try:
        documents = load(text, file=file)
    except InputError as error:
        where = error.where
        yield Finding(
            error.code, sarif.ERROR, error.message, file, where.line, where.column
        )
        return
    positions = Positions(text)
    for index in dict.fromkeys(document.index for document in documents):
        for key, line, column in positions.duplicate_keys(index):
            said = f"key {key} stands twice in one mapping; the last one counts"
            yield Finding("lint.duplicate_key", sarif.WARNING, said, file, line, column)
    for document in documents:
        yield from _Linter(document, positions).findings(known)


class _Linter:
    """One document with its places."""

    def __init__(self, document: RawDocument, positions: Positions) -> None:
        self.document = document
        self.positions = positions
        raw = document.raw
        meta = raw.get("metadata") if type(raw) is dict else None
        self.name = str(meta.get("name", "")) if type(meta) is dict else ""

    def finding(self, code: str, level: str, message: str, path: str = "") -> Finding:
        """Make a finding at the place of the path."""
        line, column = self.positions.locate(
            self.document.index, path, item=self.document.item
        )
        subject = f"{self.name}:{path}" if path else self.name
        file = self.document.file
        return Finding(code, level, message, file, line, column, subject)

    def _admission_findings(self) -> Iterator[Finding]:
        """Yield errors that prevent decoding a policy of the API server itself."""
        try:
            policy = decode_admission_policy(self.document.raw)
        except DocumentInvalid as error:
            yield from self._errors(error.problems)
            return
        if isinstance(policy, ValidatingAdmissionPolicy | MutatingAdmissionPolicy):
            yield from self._errors(admission_faults(policy))

    def _errors(self, problems: Iterable[Problem]) -> Iterator[Finding]:
        """Yield errors; a column is one within the text of the field."""
        for one in problems:
            found = self.finding(one.code, sarif.ERROR, one.reason, one.path)
            if one.column:
                found = replace(found, message=f"column {one.column}: {one.reason}")
            yield found

    def findings(self, known: _Set) -> Iterator[Finding]:
        """Yield everything about the document itself, and enter it into ``known``."""
        raw = self.document.raw
        api = str(raw.get("apiVersion", "")) if type(raw) is dict else ""
        if api.startswith(_NOT_POLICIES):
            return
        if is_admission_policy(raw):
            yield from self._admission_findings()
            return
        if api.startswith(_NOT_EVALUATED):
            yield from self._errors(schema_problems(raw) if is_cel_kind(raw) else ())
            text = f"not evaluated by this version: {api} {raw.get('kind', '')}"
            yield self.finding("lint.unsupported", sarif.WARNING, text, "kind")
            return
        decoded = examine(raw)
        yield from self._errors(decoded.problems)
        if type(raw) is dict and decoded.document is not None:
            # Invalid names are reported below, with all that the service refuses.
            already = {one.path for one in decoded.problems} | {"metadata.name"}
            found = storage_problems(raw)
            yield from self._errors(one for one in found if one.path not in already)
        policy = decoded.document
        if policy is None:
            return
        findings = check(policy)
        known_already = set(decoded.problems)
        yield from self._errors(
            one for one in findings.problems if one not in known_already
        )
        is_sound = not (decoded.problems or findings.problems)
        if isinstance(policy, PolicyException):
            known.exceptions.append((policy, self.finding("", "", "")))
        if not isinstance(policy, ClusterPolicy | Policy):
            return
        known.policies.setdefault(policy.key, []).append(
            (policy, self.finding("", "", "", "metadata.name"))
        )
        yield from self._errors(condition_faults(policy))
        yield from self._errors(expression_faults(policy))
        yield from self._doubts(policy, raw, findings.warnings)
        yield from self._served(policy)
        if is_sound:
            yield from self._compiled(policy)

    def _doubts(
        self, policy: AnyPolicy, raw: dict[str, Json], warnings: Iterable[str]
    ) -> Iterator[Finding]:
        for doubt in doubts(policy, raw):
            yield self.finding(doubt.code, doubt.level, doubt.text, doubt.path)
        for text in dict.fromkeys(warnings):
            if "failure actions" in text:
                path = "spec.validationFailureAction"
                yield self.finding("lint.deprecated_value", sarif.WARNING, text, path)
            elif "predicateType" in text:
                yield self.finding("lint.deprecated_field", sarif.WARNING, text)
            elif not text.startswith("Operator "):
                # Operators are found with their places by doubts().
                yield self.finding("lint.suspicious", sarif.WARNING, text)

    def _served(self, policy: AnyPolicy) -> Iterator[Finding]:
        """Yield problems for which the service refuses a document that decodes."""
        key = (policy.kind, policy.metadata.namespace, policy.metadata.name)
        try:
            refuse_unbounded(self.document.raw, key)
        except PolicyInvalid as error:
            place = error.where.path
            yield self.finding(error.code, sarif.ERROR, error.message, place)

    def _compiled(self, policy: AnyPolicy) -> Iterator[Finding]:
        try:
            compile_policy(policy)
        except PolicyInvalid as error:
            path = self._rule_path(error.where.rule) or error.where.path
            yield self.finding(error.code, sarif.ERROR, error.message, path)

    def _rule_path(self, name: str) -> str:
        rules = self.document.raw["spec"].get("rules") or []
        bare = name.removeprefix("autogen-cronjob-").removeprefix("autogen-")
        for index, rule in enumerate(rules):
            if rule.get("name") in (name, bare):
                return f"spec.rules[{index}]"
        return ""


def _across(known: _Set) -> Iterator[Finding]:
    """Find errors that depend on the other files."""
    for key, members in known.policies.items():
        for _, place in members[1:]:
            first = members[0][1]
            text = f"policy {key} is also in {first.file}, line {first.line}"
            yield _at(place, "lint.duplicate_name", text)
    if not known.policies:
        return
    for exception, place in known.exceptions:
        for target in exception.spec.exceptions:
            members = known.policies.get(target.policy_name, [])
            if not members:
                text = (
                    f"the exception names policy {target.policy_name}, not in the set"
                )
                yield _at(place, "lint.exception_unused", text)
                continue
            names = _computed_names(members[0][0])
            for wanted in target.rule_names:
                if not any(matches(wanted, name) for name in names):
                    text = f"policy {target.policy_name} has no rule {wanted}"
                    yield _at(place, "lint.exception_unused", text)


def _computed_names(policy: AnyPolicy) -> list[str]:
    try:
        return [rule.name for rule in compile_policy(policy).rules]
    except PolicyInvalid:
        return [rule.name for rule in policy.spec.rules]


def _at(place: Finding, code: str, text: str) -> Finding:
    return Finding(
        code,
        sarif.WARNING,
        text,
        place.file,
        place.line,
        place.column,
        place.subject,
    )


def _text(findings: Sequence[Finding]) -> str:
    lines = []
    for f in findings:
        subject = f" ({f.subject})" if f.subject else ""
        where = f"{f.file}:{f.line}:{f.column}"
        lines.append(f"{where}: {f.level}: {f.message}{subject} [{f.code}]")
    errors = sum(f.level == sarif.ERROR for f in findings)
    lines.append(f"{errors} errors, {len(findings) - errors} warnings")
    return "\n".join(lines) + "\n"


def render(findings: Sequence[Finding], output: str) -> str:
    """Return the findings as text, json (a list of objects) or sarif."""
    if output == "sarif":
        return sarif.render(findings, {c: Explained(t) for c, t in CODES.items()})
    if output == "json":
        return json.dumps([asdict(f) for f in findings], indent=2) + "\n"
    return _text(findings)


@click.command(
    "lint",
    help="Finds faults and doubtful places in policies: all at once, each with file,"
    " line and a stable code.\n\nExit codes: 0 nothing refused (warnings may be"
    " printed); 1 an error, or a warning with --strict.",
)
@click.argument("paths", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "sarif"]),
    default="text",
    help="Format of the findings.",
)
@click.option("--strict", is_flag=True, help="Warnings end with exit code 1, too.")
@click.option("--ignore", multiple=True, help="Codes to leave out; wildcards allowed.")
def command(
    paths: tuple[str, ...], output: str, *, strict: bool, ignore: tuple[str, ...]
) -> int:
    """Lint and print."""
    wanted = [
        f for f in lint(paths) if not any(matches(code, f.code) for code in ignore)
    ]
    click.echo(render(wanted, output), nl=False)
    if strict:
        return 1 if wanted else 0
    return 1 if any(f.level == sarif.ERROR for f in wanted) else 0
