"""Evaluate the ``checks`` of a test file: assertion trees about responses.

Room: cli. Takes: checks, responses, policies as written. Gives: rows of the table.
Next: command.
Source: docs/behaviour/cli 15 (checks).
"""

from collections.abc import Iterator, Mapping, Sequence

from kyverno_mp.cli.apply.evaluate import Response, resource_path
from kyverno_mp.cli.assertions import aggregated, program_of, violations
from kyverno_mp.cli.output.table import Row
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.strict import check_fields
from kyverno_mp.errors import InputError
from kyverno_mp.expr.assertion.link import AssertionProgram
from kyverno_mp.program.result import RuleResult
from kyverno_mp.values.jsonvalue import Json

_CHECK = {"match": dict, "assert": dict, "error": dict}
_MATCH = {"resource": dict, "policy": dict, "rule": dict}
_UNEXPECTED = "The assertion succeeded but was expected to fail"


def check_rows(
    checks: Sequence[Json],
    responses: Sequence[Response],
    policies: Mapping[str, Json],
    location: str,
) -> list[Row]:
    """Return a row for each check and each of its rules; raises CommandFailed.

    KYVERNO: the numbers of these rows start at 1 again (docs/behaviour/cli 15).
    """
    rows: list[Row] = []
    for index, raw in enumerate(checks):
        check_location = f"{location}: checks[{index}]"
        try:
            for row in _rows(
                check_fields(raw, _CHECK, check_location), responses, policies
            ):
                row.number = len(rows) + 1
                rows.append(row)
        except InputError as error:
            raise CommandFailed(f"{check_location}: {error.message}") from error
    return rows


def _rows(
    check: dict[str, Json], responses: Sequence[Response], policies: Mapping[str, Json]
) -> Iterator[Row]:
    match = check_fields(check.get("match", {}), _MATCH, "match")
    programs = {name: program_of(tree) for name, tree in match.items()}
    asserted = program_of(check["assert"]) if "assert" in check else None
    refused = program_of(check["error"]) if "error" in check else None
    for response in responses:
        policy = policies.get(response.policy.name, {})
        if not (
            _holds(programs.get("resource"), response.resource)
            and _holds(programs.get("policy"), policy)
        ):
            continue
        for rule in response.results:
            if not _holds(programs.get("rule"), {"name": rule.rule}):
                continue
            facts = _facts(rule)
            if asserted is not None:
                messages = violations(asserted, facts)
                reason = aggregated(messages) if messages else "Ok"
                yield _row(response, rule, reason, good=not messages)
            if refused is not None:
                messages = violations(refused, facts)
                reason = aggregated(messages) if messages else _UNEXPECTED
                yield _row(response, rule, reason, good=bool(messages))


def _holds(program: AssertionProgram | None, value: dict[str, Json]) -> bool:
    return program is None or not violations(program, value)


def _facts(rule: RuleResult) -> dict[str, Json]:
    return {
        "name": rule.rule,
        "ruleType": rule.rule_type,
        "message": rule.message,
        "status": rule.status,
        "podSecurityChecks": dict(rule.properties) or None,
        "exceptions": list(rule.exceptions),
    }


def _row(response: Response, rule: RuleResult, reason: str, *, good: bool) -> Row:
    return Row(
        0,
        response.policy.name,
        rule.rule,
        resource_path(response.resource),
        "Pass" if good else "Fail",
        reason,
        rule.message,
        is_failure=not good,
    )
