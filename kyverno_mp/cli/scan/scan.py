"""``json scan``: evaluate json.kyverno.io policies on any JSON or YAML.

Room: cli. Takes: a payload, policies, selectors. Gives: a line or object per rule.
May touch: files named by the user, standard output, the clock.
Source: docs/behaviour/cli 19 (json scan); kyverno-json pkg/json-engine, pkg/matching.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import click

from kyverno_mp.cli.apply.options import split
from kyverno_mp.cli.assertions import program_of
from kyverno_mp.cli.scan.policies import policies_of
from kyverno_mp.cli.scan.scope import EntryScope
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.reading import read_file
from kyverno_mp.errors import ExpressionFailed, InputError
from kyverno_mp.expr.assertion.link import Violation
from kyverno_mp.expr.jmespath.interim import GoInt
from kyverno_mp.policy.reading.load import load
from kyverno_mp.values.go.gotext import sprint
from kyverno_mp.values.jsonvalue import Json

_HOLE: Final = re.compile(r"{{(.*?)}}")
_NO_NAMES: Final[frozenset[str]] = frozenset()


@dataclass(slots=True)
class _Verdict:
    """The verdict of one rule on one element; ``texts``: violations or one error."""

    policy: str
    rule: str
    identifier: str
    result: str
    texts: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the line of the text output."""
        head = f"- {self.policy} / {self.rule} / {self.identifier} {self.result}"
        lines = "\n".join(self.texts)
        return f"{head}: {lines}" if self.texts else head


def scan(
    payload: str,
    pre_process: tuple[str, ...],
    paths: tuple[str, ...],
    labels: tuple[str, ...],
    output: str,
) -> int:
    """Scan the payload, print the verdicts, and return the exit code."""
    echo = click.echo if output == "text" else _silent
    echo("Loading policies ...")
    policies = policies_of(split(paths), labels)
    echo("Loading payload ...")
    value = _payload(payload)
    if value is None:
        raise CommandFailed("payload is `null`")
    echo("Pre processing ...")
    value = _pre_processed(value, pre_process)
    elements = value if isinstance(value, list) else [value]
    objects = "resource" if len(elements) == 1 else "resources"
    kinds = "policy" if len(policies) == 1 else "policies"
    echo(
        f"Running ( evaluating {len(elements)} {objects} against"
        f" {len(policies)} {kinds} ) ..."
    )
    verdicts = [v for element in elements for v in _evaluate(policies, element)]
    if output == "json":
        click.echo(json.dumps([asdict(v) for v in verdicts], indent=2))
    for verdict in verdicts:
        echo(verdict.line())
    echo("Done")
    # KYVERNO: there, the exit code is always 0, so no pipeline notices a failure.
    return int(any(verdict.result != "PASSED" for verdict in verdicts))


def _pre_processed(value: Json, statements: Sequence[str]) -> Json:
    for statement in statements:
        try:
            value = EntryScope(value, ()).search(statement)
        except InputError as error:
            raise CommandFailed(error.message) from error
        if value is None:
            # KYVERNO: upstream's spelling.
            raise CommandFailed(f"prepocessor resulted in `null` payload ({statement})")
    return value


def _silent(_message: str) -> None:
    """Print nothing; replaces echo if the output is data."""


def _payload(path: str) -> Json:
    data = read_file(path, is_argument=True)
    if path.endswith(".json"):
        try:
            return json.loads(
                data, parse_int=_number, parse_float=_number, parse_constant=_constant
            )
        except (ValueError, RecursionError) as error:
            raise CommandFailed(f"{path}: {error}") from error
    if not path.endswith((".yaml", ".yml")):
        message = f"unrecognized payload format, must be yaml or json ({path})"
        raise CommandFailed(message)
    loaded = load(data, file=path, with_lists=True)
    documents = [_go_ints(document.raw) for document in loaded]
    return documents[0] if len(documents) == 1 else documents


def _number(literal: str) -> float:
    """Return a number of JSON. GO: every number is a float64."""
    value = float(literal)
    if math.isinf(value):
        raise ValueError(f"number {literal[:20]} is out of range")
    return value


def _constant(literal: str) -> float:
    raise ValueError(f"{literal} is not JSON")


def _go_ints(value: Json) -> Json:
    """Return YAML data with Go's ``int``, which no literal of a query equals."""
    if isinstance(value, dict):
        return {key: _go_ints(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_go_ints(item) for item in value]
    return GoInt(value) if type(value) is int else value


def _evaluate(policies: Sequence[dict[str, Json]], element: Json) -> Iterator[_Verdict]:
    for policy in policies:
        name = str(policy["metadata"].get("name", ""))
        for rule in policy["spec"]["rules"]:
            verdict = _Verdict(name, rule["name"], "", "PASSED")
            scope = EntryScope(element, rule.get("context", ()))
            try:
                applies = _evaluate_rule(verdict, rule, element, scope)
            except InputError as error:
                verdict.result, verdict.texts = "ERROR", [error.message]
                applies = True
            if applies:
                yield verdict


def _evaluate_rule(
    verdict: _Verdict, rule: dict[str, Json], element: Json, scope: EntryScope
) -> bool:
    """Set the verdict; return False if the rule does not apply to the element."""
    if rule.get("identifier"):
        try:
            verdict.identifier = sprint(scope.search(rule["identifier"]))
        except InputError as error:
            verdict.identifier = f"(error: {error.message})"
    if "match" in rule and not _matches(rule["match"], element, scope):
        return False
    if "exclude" in rule and _matches(rule["exclude"], element, scope):
        return False
    verdict.texts = _failures(rule["assert"], element, scope)
    if verdict.texts:
        verdict.result = "FAILED"
    return True


def _matches(block: dict[str, Json], element: Json, scope: EntryScope) -> bool:
    """Return whether an entry of ``any`` and all of ``all`` match.

    As in upstream, entries of ``any`` after the first match are not evaluated.
    """
    some, every = _checks_of(block, "match")
    return (
        not some or any(not _violated(*entry, element, scope) for entry in some)
    ) and not [entry for entry in every if _violated(*entry, element, scope)]


def _failures(block: dict[str, Json], element: Json, scope: EntryScope) -> list[str]:
    """Return the messages of ``any`` if every entry fails, else those of ``all``."""
    some, every = _checks_of(block, "assert")
    messages: list[str] = []
    for path, check in some:
        message = _messages_of(check, f"{path}.check", element, scope)
        if not message:
            messages = []
            break
        messages.append(message)
    if messages:
        return messages
    failures = [_messages_of(c, f"{path}.check", element, scope) for path, c in every]
    return [message for message in failures if message]


def _checks_of(
    block: dict[str, Json], name: str
) -> tuple[list[tuple[str, Json]], list[tuple[str, Json]]]:
    """Return the entries of ``any`` and ``all`` with their paths."""
    some, every = block.get("any", []), block.get("all", [])
    if not some and not every:
        message = f"<nil>: Invalid value: {{}}: an empty {name} is not valid"
        raise ExpressionFailed("assertion.failed", message)
    return (
        [(f"any[{index}]", entry) for index, entry in enumerate(some)],
        [(f"all[{index}]", entry) for index, entry in enumerate(every)],
    )


def _violated(
    path: str, tree: Json, element: Json, scope: EntryScope
) -> list[Violation]:
    program = program_of(tree)
    return program.evaluate(element, scope, path=(None, path), hidden=_NO_NAMES)


def _messages_of(
    check: dict[str, Json], path: str, element: Json, scope: EntryScope
) -> str:
    """Return the message and a line for each violation, "" without any."""
    violations = _violated(path, check["check"], element, scope)
    if not violations:
        return ""
    lines = []
    if check.get("message"):
        lines.append(f"-> {_message(check['message'], scope)}")
    lines += [f" -> {violation.message}" for violation in violations]
    return "\n".join(lines)


def _message(message: str, scope: EntryScope) -> str:
    """Replace ``{{ }}`` by results. KYVERNO: a failure is shown in the text."""

    def result(match: re.Match[str]) -> str:
        statement = match[1].strip()
        try:
            value = scope.search(statement)
        except InputError as error:
            return f"ERR ({statement} - {error.message})"
        if value is None:
            return f"ERR ({statement} not found)"
        return value if type(value) is str else f"ERR ({statement} not a string)"

    return _HOLE.sub(result, message)
