"""Print the rows of tests: table, JSON, YAML, markdown, JUnit, TAP, SARIF, GitHub.

Room: cli. Takes: rows. Gives: text. Next: command.
May touch: the test files (for SARIF's lines). Source: docs/behaviour/cli 15 (output
formats).
"""

import json
from collections.abc import Iterable, Iterator, Sequence

from kyverno_mp.cli.output import junit
from kyverno_mp.cli.output.table import NOT_EVALUATED, Row, headers
from kyverno_mp.cli.output.table import render as render_table
from kyverno_mp.cli.sources.positions import Positions
from kyverno_mp.cli.sources.reading import read_file
from kyverno_mp.values.jsonvalue import Json


def render_rows(
    rows: Sequence[Row], output_format: str, *, detailed: bool, color: bool
) -> str:
    """Return the rows of one test or all tests in a format, by default as a table."""
    if output_format in ("json", "yaml"):
        return _data(rows, output_format, detailed=detailed)
    if output_format == "markdown":
        return _markdown(rows, detailed=detailed)
    if output_format == "junit":
        return junit.render(_cases(rows, detailed=detailed))
    if output_format == "tap":
        from kyverno_mp.cli.output import tap  # needed only for TAP

        return tap.render(_cases(rows, detailed=True)).rstrip("\n")
    return render_table(rows, detailed=detailed, color=color)


def _data(rows: Sequence[Row], output_format: str, *, detailed: bool) -> str:
    names = headers(detailed=False)
    data: list[Json] = []
    for row in rows:
        item: dict[str, Json] = dict(zip(names, row.cells(detailed=False), strict=True))
        item["ID"] = row.number
        if detailed:
            item["Message"] = row.message
        data.append(item)
    if output_format == "json":
        return json.dumps(data, indent=2, ensure_ascii=False, sort_keys=True)
    from kyverno_mp.cli.output.yaml_text import (
        dump,  # needed only for YAML
    )

    return dump(data)


def _markdown(rows: Sequence[Row], *, detailed: bool) -> str:
    names = headers(detailed=detailed)
    lines = ["| " + " | ".join(names) + " | ", "|" + "---|" * len(names)]
    for row in rows:
        cells = (_cell(cell) for cell in row.cells(detailed=detailed))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(content: str) -> str:
    return content.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")


def _cases(rows: Sequence[Row], *, detailed: bool) -> Iterator[junit.Case]:
    for row in rows:
        yield junit.Case(
            row.policy,
            row.rule,
            row.resource,
            _outcome(row),
            row.reason,
            row.message if detailed else "",
        )


def _outcome(row: Row) -> str:
    if row.is_failure:
        return junit.FAILURE
    return junit.SKIPPED if row.reason == NOT_EVALUATED else ""


def render_failures(
    failures: Iterable[tuple[Row, str, int, str]], output_format: str
) -> str:
    """Return failed rows as SARIF or annotations, located at the test file's entries.

    ``failures``: row, test file, document from 0, path of the entry.
    """
    from kyverno_mp.cli.output import sarif  # needed only for SARIF

    explained: dict[str, sarif.Explained] = {}
    positions: dict[str, Positions] = {}
    findings = []
    for row, file, index, path in failures:
        if file not in positions:
            positions[file] = Positions(read_file(file))
        line, column = positions[file].locate(index, path)
        code = f"test/{row.policy}/{row.rule}" if row.rule else f"test/{row.policy}"
        explained[code] = sarif.Explained(f"Test of rule {row.rule} of {row.policy}")
        message = f"{row.reason}: {row.message}" if row.message else row.reason
        findings.append(
            sarif.Finding(code, sarif.ERROR, message, file, line, column, row.resource)
        )
    if output_format == "github":
        from kyverno_mp.cli.output import github  # needed only for annotations

        return github.render(findings)
    return sarif.render(findings, explained)
