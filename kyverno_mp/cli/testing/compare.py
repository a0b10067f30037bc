"""Compare responses with the results that a test file expects.

Room: cli. Takes: a TestFile, responses by object. Gives: TestRun, the rows and counts.
Next: command. May touch: the files of expected objects. Source:
docs/behaviour/cli 15.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kyverno_mp.cli.apply.evaluate import Response
from kyverno_mp.cli.apply.mutated import DIFFERENT, difference
from kyverno_mp.cli.apply.report import report_word
from kyverno_mp.cli.apply.stages.admission_policies import KINDS as ADMISSION_KINDS
from kyverno_mp.cli.output.table import NOT_EVALUATED, Row
from kyverno_mp.cli.testing.files import Expected, TestFile
from kyverno_mp.program import result
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.program.result import RuleResult
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import CEL_POLICY_KINDS

_RULELESS = (
    *ADMISSION_KINDS,
    *(name for row in CEL_POLICY_KINDS for name in row.names),
)
Key = tuple[str, str, str, str]
"""apiVersion, kind, namespace, name."""


@dataclass(slots=True)
class TestRun:
    """The rows of one test and their counts."""

    rows: list[Row] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    """Path of each row's entry in the test file, e.g. ``results[0]``."""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    lacking: list[str] = field(default_factory=list)
    """Missing features that the test needs; if there are any, the test was not run."""
    unread: list[str] = field(default_factory=list)
    """Folders of objects, or files in these folders, that could not be read."""
    warnings: int = 0

    def add_check(self, row: Row) -> None:
        """Add the row of an entry of ``checks``."""
        self.rows.append(row)
        self.origins.append("checks")
        if row.is_failure:
            self.failed += 1
        else:
            self.passed += 1


def not_run(test: TestFile, lacking: list[str]) -> TestRun:
    """Return the rows of a test that this version does not evaluate."""
    run = TestRun(lacking=lacking)
    for expected in test.results:
        names = ", ".join(expected.resources or ())
        row = Row(
            len(run.rows) + 1,
            expected.policy,
            expected.rule,
            names,
            "Skip",
            NOT_EVALUATED,
            ", ".join(lacking),
        )
        run.rows.append(row)
        run.origins.append(f"results[{expected.index}]")
    return run


def key_of(raw: dict[str, Json]) -> Key:
    """Return apiVersion, kind, namespace and name."""
    return (
        str(raw.get("apiVersion", "")),
        str(raw.get("kind", "")),
        metadata_text(raw, "namespace"),
        metadata_text(raw, "name"),
    )


class _Responses(NamedTuple):
    """Responses by triggering object, and by changed object."""

    trigger: dict[Key, list[Response]]
    target: dict[Key, list[tuple[Response, RuleResult]]]


def _by_target(
    responses: dict[Key, list[Response]],
) -> dict[Key, list[tuple[Response, RuleResult]]]:
    by_target: dict[Key, list[tuple[Response, RuleResult]]] = {}
    for listed in responses.values():
        for response in listed:
            for rule in response.results:
                if rule.patched_target is not None:
                    key = key_of(rule.patched_target)
                    by_target.setdefault(key, []).append((response, rule))
    return by_target


def _text_of(key: Sequence[str]) -> str:
    """Return a key's text for rows; payloads and generated objects have only a name."""
    path = "/".join(filter(None, key)) if not any(key[:-1]) else "/".join(key)
    return path if "/" in path else f"/{path}"


def _selected(expected: Expected, keys: Sequence[Key]) -> list[Key]:
    """Return the keys that a result selects, or all keys if none matches (cli 15)."""
    selected: list[Key] = []
    for name in expected.resources or []:
        payloads = [key for key in keys if key == ("", "", "", name)]
        if payloads:
            selected += payloads
            continue
        namespace, slash, bare = name.partition("/")
        if slash and "/" in bare:
            continue
        selected.extend(
            key
            for key in keys
            if (key[2:] == (namespace, bare) if slash else key[3] == name)
        )
    for spec in expected.resource_specs if expected.resources is not None else []:
        group, version = spec.get("group", ""), spec.get("version", "")
        api_version = f"{group}/{version}" if group else version
        identity = (api_version, spec.get("namespace", ""), spec.get("name", ""))
        selected.extend(key for key in keys if (key[0], key[2], key[3]) == identity)
    return selected or list(keys)


def compare(
    test: TestFile,
    trigger: Mapping[str, dict[Key, list[Response]]],
    invalid: Mapping[str, str],
) -> TestRun:
    """Compare all results of a test.

    ``trigger``: operation of the results -> the responses by object. ``invalid``:
    policies that did not compile, with the reason.
    """
    run = TestRun()
    responses = {
        operation: _Responses(by_key, _by_target(by_key))
        for operation, by_key in trigger.items()
    }
    for expected in test.results:
        comparing = _Comparing(run, expected, test.folder)
        _compare_result(comparing, responses[expected.operation], invalid)
        entry = f"results[{expected.index}]"
        run.origins += [entry] * (len(run.rows) - len(run.origins))
    return run


class _Comparing(NamedTuple):
    """One result of a test file, and the run that collects its rows."""

    run: TestRun
    expected: Expected
    folder: Path


def _compare_result(
    comparing: _Comparing, responses: _Responses, invalid: Mapping[str, str]
) -> None:
    rows, expected = comparing.run.rows, comparing.expected
    keys = [*dict.fromkeys([*responses.target, *responses.trigger])]
    for key in _selected(expected, keys):
        before = len(rows)
        is_left_out = not _compare_key(comparing, key, responses.trigger.get(key, []))
        for response, rule in responses.target.get(key, ()):
            _add_row(comparing, key, response, rule, rule.patched_target)
        if len(rows) == before and not is_left_out:
            _add_missing(comparing, key, invalid)


def _add_missing(comparing: _Comparing, key: Key, invalid: Mapping[str, str]) -> None:
    """Add a row for an object without a response of the policy."""
    run, expected, _ = comparing
    is_invalid = expected.policy_name in invalid
    run.rows.append(
        Row(
            len(run.rows) + 1,
            expected.policy,
            expected.rule,
            _text_of(key),
            "Skip" if is_invalid else "Fail",
            "Invalid Policy" if is_invalid else "Not found",
            invalid.get(expected.policy_name, "Not found"),
            is_failure=not is_invalid,
        )
    )
    if is_invalid:
        run.skipped += 1
    else:
        run.failed += 1


def _compare_key(comparing: _Comparing, key: Key, responses: list[Response]) -> bool:
    """Add the rows of one object; return False if an unexpected object was skipped.

    KYVERNO: until the first row, each response without a row is reported as excluded,
    even if a later response of the policy has the rule.
    """
    run, expected, _ = comparing
    names = {
        expected.rule,
        f"autogen-{expected.rule}",
        f"autogen-cronjob-{expected.rule}",
    }
    before = len(run.rows)
    is_left_out = False
    responses = [
        response for response in responses if not _changes_existing(response, key)
    ]
    for response in responses:
        if response.policy.name != expected.policy_name:
            continue
        for rule in response.results:
            is_ruleless = response.policy.kind in _RULELESS
            if expected.rule and not is_ruleless and rule.rule not in names:
                continue
            if rule.rule_type == result.GENERATION:
                for generated in rule.generated:
                    name = ("", str(generated["metadata"].get("name", "")))
                    _add_row(comparing, name, response, rule, generated)
                continue
            mutated = rule.rule_type == result.MUTATION
            compared = response.patched if mutated else response.resource
            if not _add_row(comparing, key, response, rule, compared):
                is_left_out = True
        if len(run.rows) == before and not is_left_out:
            run.skipped += 1
            run.rows.append(
                Row(
                    len(run.rows) + 1,
                    expected.policy,
                    expected.rule,
                    _text_of(key),
                    "Pass",
                    "Excluded",
                    "Excluded",
                )
            )
    return not is_left_out


def _changes_existing(response: Response, key: Key) -> bool:
    """Return whether the object is itself the changed one, which has its own row."""
    targets = [rule.patched_target for rule in response.results]
    return bool(targets) and all(
        target is not None and key_of(target) == key for target in targets
    )


def _add_row(
    comparing: _Comparing,
    key: tuple[str, ...],
    response: Response,
    rule: RuleResult,
    compared: dict[str, Json] | None,
) -> bool:
    """Add one row; return False if the file of expected objects lacks the object."""
    run, expected, folder = comparing
    reason, message = _verdict(expected, folder, response, rule, compared)
    is_generated = rule.rule_type == result.GENERATION
    if "not found in manifest" in message and not (
        expected.fails_on_missing or is_generated
    ):
        return False
    good = reason == "Ok"
    run.rows.append(
        Row(
            len(run.rows) + 1,
            expected.policy,
            rule.rule,
            _text_of(key),
            "Pass" if good else "Fail",
            reason,
            message,
            is_failure=not good,
        )
    )
    if not good:
        run.failed += 1
    elif expected.result == "skip":
        run.skipped += 1
    else:
        run.passed += 1
    return True


def _verdict(
    expected: Expected,
    folder: Path,
    response: Response,
    rule: RuleResult,
    compared: dict[str, Json] | None,
) -> tuple[str, str]:
    """Return (reason, message) of the first difference (behaviour/cli 15)."""
    if expected.patched:
        deviation = difference(compared or {}, folder / expected.patched)
        if deviation is not None:
            return _intended(expected, deviation)
    if expected.generated:
        paths = [folder / path for path in expected.generated]
        deviation = _from_all(compared or {}, paths)
        if deviation is not None:
            return _intended(expected, deviation)
    word = report_word(response, rule, audit_warn=False)
    if word != expected.result:
        return f"Want {expected.result}, got {word}", rule.message
    return "Ok", rule.message


def _intended(expected: Expected, deviation: tuple[str, str]) -> tuple[str, str]:
    """Return a difference, or "Ok" if the result expects it.

    As in 1.17, an object that differs on purpose is a wanted failure.
    """
    is_wanted = expected.result == "fail" and deviation[0] == DIFFERENT
    return ("Ok", deviation[1]) if is_wanted else deviation


def _from_all(actual: dict[str, Json], paths: Sequence[Path]) -> tuple[str, str] | None:
    """Compare a generated object with several files, one of which has to have it."""
    deviations = [difference(actual, path, "generated") for path in paths]
    if None in deviations:
        return None
    wrong = [deviation for deviation in deviations if deviation is not None]
    return next(
        (deviation for deviation in wrong if deviation[0] == DIFFERENT), wrong[-1]
    )
