"""``lint``: find errors and outdated or misleading parts of policies.

Room: cli. Takes: policy paths. Gives: all findings with file, line and a stable code,
as text, JSON, SARIF or annotations. Next: served, output.
May touch: files named by the user, standard output.
Source: docs/behaviour/engine 10; docs/behaviour/cli 4.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kyverno_mp.cli.lint.across import Known, across
from kyverno_mp.cli.lint.cel_documents import (
    cel_concerns,
    expressions_of,
)
from kyverno_mp.cli.lint.checks import (
    Concern,
    concerns,
    expiry_concerns,
    expression_concerns,
)
from kyverno_mp.cli.lint.corrected.report import corrections
from kyverno_mp.cli.lint.kinds import KnownKinds
from kyverno_mp.cli.lint.known_kinds import known_kinds
from kyverno_mp.cli.lint.near import message_of
from kyverno_mp.cli.lint.output import render
from kyverno_mp.cli.lint.served import (
    Refusal,
    left_out,
    left_out_without_pool,
    refused_by_webhook,
    unserved,
)
from kyverno_mp.cli.output import sarif
from kyverno_mp.cli.output.sarif import Finding
from kyverno_mp.cli.output.screen import show
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.shell.exit_codes import FAILED, OK
from kyverno_mp.cli.sources.folders import say_empty
from kyverno_mp.cli.sources.foreign import (
    foreign_kind,
    is_input_of_another_command,
    is_template,
)
from kyverno_mp.cli.sources.policies import sources
from kyverno_mp.cli.sources.positions import Positions
from kyverno_mp.cli.sources.reading import read_file
from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.expression_faults import (
    admission_faults,
    condition_faults,
    expression_faults,
)
from kyverno_mp.errors import InputError, PolicyInvalid
from kyverno_mp.leader.servable import NO_BACKGROUND, UNSUPPORTED
from kyverno_mp.leader.stored_document import refuse_unstorable
from kyverno_mp.limits import WATCHED_FILE_BYTES_MAX
from kyverno_mp.policy.cel_kinds.admission_policy import (
    MutatingAdmissionPolicy,
    ValidatingAdmissionPolicy,
    decode_admission_policy,
    is_admission_policy,
)
from kyverno_mp.policy.cel_kinds.served import decode_cel_document, is_cel_document
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException
from kyverno_mp.policy.check import check
from kyverno_mp.policy.checks.exception import (
    condition_faults as exception_condition_faults,
)
from kyverno_mp.policy.checks.long_texts import long_texts
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.problems import DocumentInvalid, Problem
from kyverno_mp.policy.reading.decode import examine
from kyverno_mp.policy.reading.free_form import as_go_reads
from kyverno_mp.policy.reading.json_duplicates import KEY_TWICE, refuses_duplicate_keys
from kyverno_mp.policy.reading.load import RawDocument, load
from kyverno_mp.policy.schema import is_cel_kind, schema_problems
from kyverno_mp.policy.stored import storage_problems
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import POLICY_KINDS
from kyverno_mp.values.wildcard import matches

_OF_TENANTS = frozenset(row.namespaced.kind for row in POLICY_KINDS)
_NOT_EVALUATED = ("policies.kyverno.io/", "admissionregistration.k8s.io/")


def lint(
    paths: Sequence[str], *, for_server: bool = True, kinds: KnownKinds | None = None
) -> list[Finding]:
    """Return all findings in the order of files and lines; raises CommandFailed.

    ``for_server``: include policies and rules that the server rejects or skips.
    ``kinds``: the known kinds, by default the built-in ones.
    """
    findings: list[Finding] = []
    linted = Known(for_server=for_server, kinds=kinds or KnownKinds())
    for path in paths:
        try:
            for data, file in _texts(path):
                findings.extend(_file(data, file, linted))
        except OSError as error:
            raise CommandFailed(_not_read(path, error)) from error
    findings.extend(across(linted))
    order = {file: n for n, file in enumerate(dict.fromkeys(f.file for f in findings))}
    return sorted(findings, key=lambda f: (order[f.file], f.line, f.column, f.code))


def _not_read(path: str, error: OSError) -> str:
    name = str(error.filename or path)
    return f"{name}: {(error.strerror or str(error)).lower()}"


def _texts(path: str) -> Iterable[tuple[bytes, str]]:
    """Yield text and name of each file; files given directly can have any name."""
    root = Path(path)
    if path == "-" or root.is_dir():
        return sources(path)
    return ((read_file(root, is_argument=True), path),)


def _file(data: bytes, file: str, linted: Known) -> Iterator[Finding]:
    if is_template(file):
        message = "a template of a Helm chart; lint what helm template prints"
        yield Finding("lint.not_a_policy", sarif.NOTE, message, file, 1, 1)
        return
    if linted.for_server and len(data) > WATCHED_FILE_BYTES_MAX:
        message = f"has {len(data)} bytes, more than {WATCHED_FILE_BYTES_MAX}"
        yield Finding("leader.too_large", sarif.ERROR, message, file, 1, 1)
    try:
        documents = load(data, file=file)
    except InputError as error:
        position = error.where
        yield Finding(
            error.code, sarif.ERROR, error.message, file, position.line, position.column
        )
        return
    if not documents:
        yield Finding("lint.not_a_policy", sarif.NOTE, "empty file", file, 1, 1)
    positions = Positions(data)
    policies = {
        document.index for document in documents if refuses_duplicate_keys(document.raw)
    }
    for index in dict.fromkeys(document.index for document in documents):
        for key, line, column in positions.duplicate_keys(index):
            message = f"key {key} appears twice in one mapping"
            code, level = KEY_TWICE, sarif.ERROR
            if index not in policies:
                message += "; the last one is used"
                code, level = "lint.duplicate_key", sarif.WARNING
            yield Finding(code, level, message, file, line, column)
    for document in documents:
        linter = _Linter(document, positions, for_server=linted.for_server)
        yield from linter.findings(linted)


class _Linter:
    """One document with the positions of its fields."""

    def __init__(
        self, document: RawDocument, positions: Positions, *, for_server: bool
    ) -> None:
        self.document = document
        self.for_server = for_server
        self.positions = positions
        raw = document.raw
        meta = raw.get("metadata") if type(raw) is dict else None
        self.name = str(meta.get("name", "")) if type(meta) is dict else ""

    def finding(self, code: str, level: str, message: str, path: str = "") -> Finding:
        """Return a finding at the position of the path."""
        line, column = self.positions.locate(
            self.document.index, path, item=self.document.item
        )
        subject = f"{self.name}:{path}" if path else self.name
        file = self.document.file
        return Finding(code, level, message, file, line, column, subject)

    def _admission_findings(self) -> Iterator[Finding]:
        """Yield the findings of the API server's own policies and bindings."""
        try:
            policy = decode_admission_policy(self.document.raw)
        except DocumentInvalid as error:
            yield from self._errors(error.problems)
            return
        if isinstance(policy, ValidatingAdmissionPolicy | MutatingAdmissionPolicy):
            yield from self._errors(admission_faults(policy))
        if self.for_server:
            kind = self.document.raw["kind"]
            message = f"the API server evaluates every {kind}; the server does not"
            yield self.finding("lint.api_server", sarif.NOTE, message, "kind")

    def _cel_findings(self) -> Iterator[Finding]:
        """Yield the findings of a policy in CEL or its PolicyException."""
        raw = self.document.raw
        problems = schema_problems(raw)
        yield from self._errors(problems)
        if problems:
            return
        try:
            policy = decode_cel_document(raw)
        except DocumentInvalid as error:
            yield from self._errors(error.problems)
            return
        yield from self._errors(storage_problems(raw))
        yield from self._errors(expressions_of(policy, for_server=self.for_server))
        yield from self._of_concerns(corrections(policy))
        if isinstance(policy, CelPolicyException):
            yield from self._of_concerns(expiry_concerns(policy, time.time_ns()))
        yield from self._of_concerns(cel_concerns(policy, for_server=self.for_server))
        if self.for_server and (kinds := unserved(policy)):
            message = f"the server does not evaluate {kinds}"
            yield self.finding("lint.unsupported", sarif.WARNING, message, "kind")

    def _errors(self, problems: Iterable[Problem]) -> Iterator[Finding]:
        """Yield errors; a problem's column counts within the field's text."""
        for problem in problems:
            yield self.finding(
                problem.code, sarif.ERROR, message_of(problem), problem.path
            )

    def findings(self, linted: Known) -> Iterator[Finding]:
        """Yield the findings of this document, and add it to ``linted``."""
        raw = self.document.raw
        if is_input_of_another_command(raw):
            return
        if (
            self.for_server
            and type(raw) is dict
            and str(raw.get("kind")) in _OF_TENANTS
        ):
            yield from self._errors(long_texts(raw))
        if kind := foreign_kind(raw):
            yield self.finding("lint.not_a_policy", sarif.NOTE, f"not a policy: {kind}")
        elif is_admission_policy(raw):
            yield from self._admission_findings()
        elif is_cel_document(raw):
            yield from self._cel_findings()
        elif str(raw.get("apiVersion", "")).startswith(_NOT_EVALUATED):
            yield from self._errors(schema_problems(raw) if is_cel_kind(raw) else ())
            message = (
                f"not evaluated by this version: {raw['apiVersion']} {raw['kind']}"
            )
            yield self.finding("lint.unsupported", sarif.WARNING, message, "kind")
        else:
            yield from self._decoded(raw, linted)
        if not foreign_kind(raw):
            yield from self._of_concerns(linted.kinds.concerns(raw))

    def _of_concerns(self, concerns: Iterable[Concern]) -> Iterator[Finding]:
        for concern in concerns:
            yield self.finding(
                concern.code, concern.level, concern.message, concern.path
            )

    def _decoded(self, raw: dict[str, Json], linted: Known) -> Iterator[Finding]:
        """Yield all findings of a document of Kyverno's own kinds."""
        decoded = examine(raw)
        yield from self._errors((*decoded.problems, *decoded.ignored))
        policy = decoded.document
        if policy is None:
            return
        # Invalid names are reported below, with the service's other rejections.
        already = {problem.path for problem in decoded.problems} | {"metadata.name"}
        yield from self._errors(
            storage_problem
            for storage_problem in storage_problems(raw)
            if storage_problem.path not in already
        )
        yield from self._of_concerns(corrections(policy))
        checked = check(policy)
        yield from self._errors(
            problem for problem in checked.problems if problem not in decoded.problems
        )
        is_sound = not (decoded.problems or checked.problems)
        if isinstance(policy, AnyPolicy):
            origin = self.finding("", "", "", "metadata.name")
            linted.policies.setdefault(policy.key, []).append((policy, origin))
            yield from self._of_policy(policy, checked.warnings, is_sound=is_sound)
            return
        yield from self._of_concerns(expression_concerns(raw))
        if isinstance(policy, PolicyException):
            faults = [
                *policy.expiry_problems(),
                *exception_condition_faults(policy),
            ]
            yield from self._of_concerns(expiry_concerns(policy, time.time_ns()))
            yield from self._errors(faults)
            is_sound = is_sound and not faults
            linted.exceptions.append((policy, self.finding("", "", "")))
        if self.for_server:
            yield from self._refusals(refused_by_webhook(raw) if is_sound else ())

    def _of_policy(
        self, policy: AnyPolicy, warnings: Sequence[str], *, is_sound: bool
    ) -> Iterator[Finding]:
        """Yield further findings of a decoded ClusterPolicy or Policy."""
        raw = self.document.raw
        yield from self._errors(expression_faults(policy))
        yield from self._concerns(policy, warnings, is_sound=is_sound)
        faults = [*self._errors(condition_faults(policy)), *self._served(policy)]
        if is_sound:
            faults += self._compiled(policy)
        yield from faults
        if (
            self.for_server
            and is_sound
            and all(fault.code in (UNSUPPORTED, NO_BACKGROUND) for fault in faults)
        ):
            # Names that nothing reads are reported already.
            read = as_go_reads(raw).raw
            yield from self._refusals(refused_by_webhook(read))

    def _concerns(
        self, policy: AnyPolicy, warnings: Iterable[str], *, is_sound: bool
    ) -> Iterator[Finding]:
        for concern in concerns(policy, self.document.raw):
            if self.for_server and is_sound and concern.code == "lint.unsupported":
                continue  # the server's rejection has more detail
            yield from self._of_concerns((concern,))
        for warning in dict.fromkeys(warnings):
            if "failure actions" in warning:
                path = "spec.validationFailureAction"
                yield self.finding(
                    "lint.deprecated_value", sarif.WARNING, warning, path
                )
            elif "predicateType" in warning:
                yield self.finding("lint.deprecated_field", sarif.WARNING, warning)
            elif not warning.startswith("Operator "):
                # concerns() reports operators with their positions.
                yield self.finding("lint.suspicious", sarif.WARNING, warning)

    def _served(self, policy: AnyPolicy) -> Iterator[Finding]:
        """Yield problems for which the service rejects a decoded document."""
        key = (policy.kind, policy.metadata.namespace, policy.metadata.name)
        try:
            refuse_unstorable(self.document.raw, key)
        except PolicyInvalid as error:
            path = error.where.path
            yield self.finding(error.code, sarif.ERROR, error.message, path)

    def _compiled(self, policy: AnyPolicy) -> Iterator[Finding]:
        try:
            compiled = compile_policy(policy, verifies=True)
        except PolicyInvalid as error:
            path = self._rule_path(error.where.rule) or error.where.path
            yield self.finding(error.code, sarif.ERROR, error.message, path)
            return
        if self.for_server:
            yield from self._refusals(left_out(compiled))
            yield from self._refusals(left_out_without_pool(compiled), sarif.NOTE)

    def _refusals(
        self, refusals: Iterable[Refusal], level: str = sarif.ERROR
    ) -> Iterator[Finding]:
        """Yield the server's rejections; autogen rules have their rule's position."""
        findings = [
            self.finding(
                refusal.code,
                level,
                refusal.message,
                self._rule_path(refusal.rule) if refusal.rule else "",
            )
            for refusal in refusals
        ]
        yield from dict.fromkeys(findings)

    def _rule_path(self, name: str) -> str:
        rules = self.document.raw["spec"].get("rules") or []
        bare = name.removeprefix("autogen-cronjob-").removeprefix("autogen-")
        for index, rule in enumerate(rules):
            if rule.get("name") in (name, bare):
                return f"spec.rules[{index}]"
        return ""


def called(
    paths: tuple[str, ...],
    output: str,
    target: str,
    *,
    strict: bool,
    ignore: tuple[str, ...],
    **of_kinds: Any,
) -> int:
    """Run the command with the flags that click parsed, without ``--fix``."""
    say_empty(paths)
    kinds = known_kinds(**of_kinds)
    findings = [
        finding
        for finding in lint(paths, for_server=target == "server", kinds=kinds)
        if not any(matches(code, finding.code) for code in ignore)
    ]
    show(render(findings, output))
    bad = (sarif.ERROR, sarif.WARNING) if strict else (sarif.ERROR,)
    return FAILED if any(finding.level in bad for finding in findings) else OK
