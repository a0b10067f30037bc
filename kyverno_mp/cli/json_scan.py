"""``json scan``: evaluate json.kyverno.io policies on any JSON or YAML.

Room: cli. Takes: a payload, policies, selectors. Gives: a line or object per rule.
May touch: files named by the user, standard output, the clock.
Source: docs/behaviour/cli 19 (json scan); kyverno-json v1alpha1 ValidatingPolicy.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from kyverno_mp.cli.apply.options import split
from kyverno_mp.cli.assertions import (
    Named,
    expand,
    program_of,
    search,
    violations,
)
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.policies import sources
from kyverno_mp.cli.sources.strict import check_fields, check_map, check_maps
from kyverno_mp.errors import InputError
from kyverno_mp.policy.reading.load import load
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.selector import LabelTest, compile_selector, labels_of

_GROUP = "json.kyverno.io/"
_RULE = {
    "name": str,
    "context": list,
    "match": dict,
    "exclude": dict,
    "identifier": str,
    "feedback": list,
    "assert": dict,
}
_CHECKS = {"any": list, "all": list}
_COMMA = re.compile(r",(?![^(]*\))")  # not inside a list of values
_HOLE = re.compile(r"{{(.*?)}}")
_TERM = re.compile(r"!?\s*[\w./-]+\s*(?:!?==?\s*[\w.-]*|)")
_LISTED = re.compile(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)")


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
        text = "\n".join(self.texts)
        return f"{head}: {text}" if self.texts else head


def scan(
    payload: str,
    pre_process: tuple[str, ...],
    paths: tuple[str, ...],
    labels: tuple[str, ...],
    output: str,
) -> None:
    """Scan the payload and print the verdicts."""
    echo = click.echo if output == "text" else _silent
    echo("Loading policies ...")
    policies = _policies(split(paths), labels)
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


def _pre_processed(value: Json, statements: Sequence[str]) -> Json:
    for statement in statements:
        try:
            value = search(statement, value, {})
        except InputError as error:
            raise CommandFailed(error.message) from error
        if value is None:
            # KYVERNO: upstream's spelling.
            raise CommandFailed(f"prepocessor resulted in `null` payload ({statement})")
    return value


def _silent(_text: str) -> None:
    """Print nothing; replaces echo if the output is data."""


def _policies(paths: Sequence[str], selectors: Sequence[str]) -> list[dict[str, Json]]:
    found = []
    keeps = _selector(selectors)
    for path in paths:
        for text, file in sources(path):
            for document in load(text, file=file):
                raw = document.raw
                api = str(raw.get("apiVersion", "")) if type(raw) is dict else ""
                if not api.startswith(_GROUP) or raw.get("kind") != "ValidatingPolicy":
                    raise CommandFailed(f"{file}: not a {_GROUP} ValidatingPolicy")
                meta = check_map(raw.get("metadata") or {}, f"{file}: metadata")
                if keeps(labels_of(meta.get("labels"))):
                    found.append(raw)
    return found


def _selector(texts: Sequence[str]) -> LabelTest:
    """Parse selectors in the syntax of ``kubectl -l``."""
    labels: list[tuple[str, str]] = []
    terms: list[tuple[str, str, tuple[str, ...]]] = []
    for part in (p.strip() for p in _COMMA.split(",".join(texts))):
        key, unequal, value = part.partition("!=")
        listed = _LISTED.fullmatch(part)
        if part and listed is None and _TERM.fullmatch(part) is None:
            raise CommandFailed(f"unable to parse requirement: {part}")
        if listed is not None:
            values = tuple(one.strip() for one in listed[3].split(","))
            operator = "In" if listed[2] == "in" else "NotIn"
            terms.append((listed[1], operator, values))
        elif unequal:
            terms.append((key.strip(), "NotIn", (value.strip(),)))
        elif "=" in part:
            key, _, value = part.replace("==", "=").partition("=")
            labels.append((key.strip(), value.strip()))
        elif part.startswith("!"):
            terms.append((part[1:], "DoesNotExist", ()))
        elif part:
            terms.append((part, "Exists", ()))
    return compile_selector(labels, terms)


def _payload(path: str) -> Json:
    text = Path(path).read_bytes()
    if path.endswith(".json"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CommandFailed(f"{path}: {error}") from error
    loaded = load(text, file=path, with_lists=True)
    documents = [document.raw for document in loaded]
    return documents[0] if len(documents) == 1 else documents


def _evaluate(policies: Sequence[dict[str, Json]], element: Json) -> Iterator[_Verdict]:
    for policy in policies:
        name = str((policy.get("metadata") or {}).get("name", ""))
        spec = check_map(policy.get("spec") or {}, f"{name}: spec")
        rules = check_maps(spec.get("rules"), f"{name}: spec.rules")
        for index, raw in enumerate(rules):
            rule = check_fields(raw, _RULE, f"{name}: spec.rules[{index}]")
            verdict = _Verdict(name, rule.get("name", ""), "", "PASSED")
            try:
                if _evaluate_rule(verdict, rule, element):
                    yield verdict
            except InputError as error:
                verdict.result, verdict.texts = "ERROR", [error.message]
                yield verdict


def _evaluate_rule(verdict: _Verdict, rule: dict[str, Json], element: Json) -> bool:
    """Set the verdict; return False if the rule does not apply to the element."""
    named: dict[str, Json] = {"payload": element}
    for entry in check_maps(rule.get("context"), "context"):
        named[str(entry.get("name"))] = expand(entry.get("variable"), element, named)
    if rule.get("identifier"):
        verdict.identifier = str(search(rule["identifier"], element, named))
    match, exclude = rule.get("match"), rule.get("exclude")
    if match and not _matches(match, element, named):
        return False
    if exclude and _matches(exclude, element, named):
        return False
    checks = check_fields(rule.get("assert", {}), _CHECKS, "assert")
    verdict.texts = _failures(checks, element, named)
    if verdict.texts:
        verdict.result = "FAILED"
    return True


def _matches(block: dict[str, Json], element: Json, named: dict[str, Json]) -> bool:
    trees = check_fields(block, _CHECKS, "match")
    some, every = trees.get("any", []), trees.get("all", [])
    return (
        not some or any(not _violated(tree, element, named) for tree in some)
    ) and all(not _violated(tree, element, named) for tree in every)


def _failures(
    checks: dict[str, Json], element: Json, named: dict[str, Json]
) -> list[str]:
    """Return the messages of ``any`` if every entry fails, else those of ``all``."""
    given = {kind: check_maps(checks.get(kind), kind) for kind in _CHECKS}
    found = {
        kind: [
            _messages_of(check, f"{kind}[{index}].check", element, named)
            for index, check in enumerate(listed)
        ]
        for kind, listed in given.items()
    }
    some = found["any"]
    return some if some and all(some) else [text for text in found["all"] if text]


def _messages_of(
    check: dict[str, Json], path: str, element: Json, named: dict[str, Json]
) -> str:
    """Return the message and a line for each violation, "" without any."""
    program = program_of(check.get("check"))
    found = list(program.evaluate(element, Named(named)))
    if not found:
        return ""
    lines = []
    if check.get("message"):
        lines.append(f"-> {_message(str(check['message']), element, named)}")
    for violation in found:
        dot = "." if violation.path and violation.path[0] != "[" else ""
        rest = violation.text.removeprefix(violation.path)
        lines.append(f" -> {path}{dot}{violation.path}{rest}")
    return "\n".join(lines)


def _message(text: str, element: Json, named: dict[str, Json]) -> str:
    """Replace ``{{ }}`` by results. KYVERNO: a failure is shown in the text."""

    def result(found: re.Match[str]) -> str:
        statement = found[1].strip()
        try:
            value = search(statement, element, named)
        except InputError as error:
            return f"ERR ({statement} - {error.message})"
        if value is None:
            return f"ERR ({statement} not found)"
        return value if type(value) is str else f"ERR ({statement} not a string)"

    return _HOLE.sub(result, text)


def _violated(tree: Json, element: Json, named: dict[str, Json]) -> list[str]:
    return violations(program_of(tree), element, named)
