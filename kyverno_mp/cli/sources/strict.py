"""Read the CLI's own files (Values, UserInfo, Test), and reject unknown fields.

Room: cli. Takes: YAML text and the allowed fields. Gives: dicts. Next: values_file, ...
May touch: files named by the user. Source: docs/behaviour/cli 6, 15.
"""

from collections.abc import Mapping
from pathlib import Path

import yaml

from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.go_struct import Misfit, Struct, decode
from kyverno_mp.cli.sources.positions import Positions
from kyverno_mp.cli.sources.reading import read_file
from kyverno_mp.errors import Error
from kyverno_mp.policy.reading.load import load
from kyverno_mp.values.go.gotext import folded, json_text
from kyverno_mp.values.jsonvalue import Json


def read_documents(path: Path, *, is_argument: bool = False) -> list[Json]:
    """Return the documents of a YAML or JSON file; raises CommandFailed."""
    try:
        data = read_file(path, is_argument=is_argument)
        return [doc.raw for doc in load(data, file=str(path))]
    except OSError as error:
        raise CommandFailed(read_error(error, path)) from error
    except Error as error:
        line = f"line {error.where.line}: " if error.where.line else ""
        raise CommandFailed(f"{path}: {line}{error.message}") from error


def read_strictly(path: Path, *, is_argument: bool = False) -> list[Json]:
    """Return the documents of a file; repeated keys are errors.

    Raises: CommandFailed with upstream's message, which does not name the file.
    """
    try:
        data = read_file(path, is_argument=is_argument)
        documents = load(data, file=str(path), with_lists=True)
    except OSError as error:
        raise CommandFailed(read_error(error, path)) from error
    except Error as error:
        message = (
            f"error converting YAML to JSON: yaml: {_go_line(error)}{error.message}"
        )
        raise CommandFailed(message) from error
    positions = Positions(data)
    twice = [
        f"\n  line {line}: key {key} already set in map"
        for document in documents
        for key, line in positions.repeated_keys(document.index)
    ]
    if twice:
        message = f"yaml: unmarshal errors:{''.join(twice)}"
        raise CommandFailed(f"error converting YAML to JSON: {message}")
    return [document.raw for document in documents]


def _go_line(error: Error) -> str:
    """Return the line in go-yaml's count, which can differ from the error's line."""
    cause = error.__cause__
    if not isinstance(cause, yaml.MarkedYAMLError):
        return ""
    marks = (cause.context_mark, cause.problem_mark)
    line = next((mark.line for mark in marks if mark is not None and mark.line), 0)
    if line and isinstance(cause, yaml.scanner.ScannerError):
        line += 1
    return f"line {line}: " if line else ""


def read_fields(
    path: Path, struct: Struct, *, is_argument: bool = False
) -> dict[str, Json]:
    """Return the fields of a file's first document. GO: later documents are ignored.

    Raises: CommandFailed with upstream's message, which does not name the file.
    """
    documents = read_strictly(path, is_argument=is_argument)
    return fields_of(documents[0] if documents else None, struct)


def fields_of(raw: Json, struct: Struct) -> dict[str, Json]:
    """Return a document's fields by their declared names; raises CommandFailed."""
    try:
        return decode(raw, struct)
    except Misfit as error:
        message = f"error unmarshaling JSON: while decoding JSON: {error.text}"
        raise CommandFailed(message) from error


def objects_of(spec: dict[str, Json]) -> list[dict[str, Json]]:
    """Return ``resources`` of a spec; raises CommandFailed for items without a kind."""
    for raw in spec.get("resources", []):
        if not (raw or {}).get("kind"):
            message = f"Object 'Kind' is missing in '{json_text(raw)}'"
            raise CommandFailed(
                f"error unmarshaling JSON: while decoding JSON: {message}"
            )
    return list(spec.get("resources", []))


def check_fields(
    raw: Json, allowed: Mapping[str, type], location: str
) -> dict[str, Json]:
    """Return ``raw`` with the names in ``allowed``; their case may differ, as in Go.

    Raises: CommandFailed for unknown fields or wrong types.
    """
    if not isinstance(raw, dict):
        raise CommandFailed(f"{location}: expected a map, got {type(raw).__name__}")
    names = {folded(name): name for name in allowed}
    fields: dict[str, Json] = {}
    for key in sorted(raw):
        value = raw[key]
        name = key if key in allowed else names.get(folded(key))
        if name is None:
            raise CommandFailed(f'{location}: unknown field "{key}"')
        if value is not None and not isinstance(value, allowed[name]):
            raise CommandFailed(
                f"{location}.{key}: expected {allowed[name].__name__},"
                f" got {type(value).__name__}"
            )
        if value is not None:
            fields[name] = value
    return fields
