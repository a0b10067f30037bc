"""Print, write and compare objects that policies mutated or generated.

Room: cli. Takes: Responses of such policies, files of expected objects. Gives:
text, files, differences. Next: output, cli/testing/command.
May touch: files named by the user. Source: docs/behaviour/cli 11, 15 (comparison).
"""

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kyverno_mp.cli.apply.evaluate import Response
from kyverno_mp.cli.output.field_diff import field_differences
from kyverno_mp.cli.output.screen import one_line
from kyverno_mp.cli.output.yaml_text import dump
from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.reading import read_file
from kyverno_mp.cli.sources.resources import Text, parse
from kyverno_mp.program.matching.subject import metadata_of, metadata_text
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.selector import labels_of
from kyverno_mp.values.patches.json_equal import same, whole_numbers

DONE: Final = "\n\nMutation:\nMutation has been applied successfully."
GENERATED: Final = "\n\nGenerate:\nGeneration completed successfully."
DIFFERENT: Final = "Resource diff"
"""The reason of a difference between two objects."""
_MANAGED: Final = "app.kubernetes.io/managed-by"
_LEGEND: Final = "(red: missing, green: unexpected)"
_FIELD: Final = {"patched": "PatchedResources", "generated": "GeneratedResource"}
_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o750


def targets_of(response: Response) -> list[dict[str, Json]]:
    """Return the existing objects that the rules changed."""
    return [
        rule.patched_target
        for rule in response.results
        if rule.patched_target is not None
    ]


def _yaml(value: Json) -> str:
    return dump(whole_numbers(value))


def _patched(response: Response) -> str:
    """Return the object after the policy.

    GO: the numbers of a file are doubles until a rule changes the object, so those of a
    million and more have an exponent.
    """
    value = response.patched
    return dump(_doubles(value)) if response.is_as_read else _yaml(value)


def _doubles(value: Json) -> Json:
    if type(value) is dict:
        return {key: _doubles(item) for key, item in value.items()}
    if type(value) is list:
        return [_doubles(item) for item in value]
    return float(value) if type(value) is int else value


def mutated_text(response: Response, *, stdin: bool) -> str:
    """Return the output for one mutating policy, and whether it changed anything."""
    output = _head(response, stdin=stdin)
    output += f"\n{_patched(response)}\n---\n"
    targets = targets_of(response)
    if targets:
        output += "patched targets: \n"
        output += "".join(f"\n{_yaml(target)}\n---\n\n" for target in targets)
    return output + DONE


def _head(response: Response, *, stdin: bool) -> str:
    if stdin:
        return ""
    policy, path = one_line(response.policy.name), one_line(response.path)
    return f"\npolicy {policy} applied to {path}:"


def generated_of(response: Response) -> list[dict[str, Json]]:
    """Return the objects that the rules generated."""
    return [generated for rule in response.results for generated in rule.generated]


def documents_of(responses: Iterable[Response], *, as_json: bool) -> str:
    """Return mutated and generated objects as YAML documents or lines of JSON."""
    documents = []
    for response in responses:
        objects = [*targets_of(response), *generated_of(response)]
        if as_json:
            first = () if response.patched is None else (response.patched,)
            for value in (*first, *objects):
                line = json.dumps(whole_numbers(value), separators=(",", ":"))
                documents.append(f"{line}\n")
            continue
        if response.patched is not None:
            documents.append(f"---\n{_patched(response)}\n")
        documents += [f"---\n{_yaml(value)}\n" for value in objects]
    return "".join(documents)


def generated_text(response: Response, *, stdin: bool) -> str:
    """Return the output for the objects that one policy generated."""
    head = _head(response, stdin=stdin)
    return "".join(
        f"{head}\n{_yaml(generated)}\n---\n{GENERATED}"
        for generated in generated_of(response)
    )


class MutatedFiles:
    """``-o``: a file, truncated at the start, a stream, or a folder of files."""

    def __init__(self, output: str) -> None:
        from kyverno_mp.cli.output.files import is_stream  # only with -o

        self._path = Path(output)
        self._is_stream = is_stream(self._path)
        self._is_file = self._is_stream or self._path.suffix in (".yml", ".yaml")
        folder = self._path.parent if self._is_file else self._path
        try:
            folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
            if self._is_file and not self._is_stream:
                self._path.write_text("")
                self._path.chmod(_FILE_MODE)
        except OSError as error:
            raise CommandFailed(f"{output}: {error.strerror}") from error

    def write(self, response: Response) -> None:
        """Append the object, and the targets; files in a folder are never truncated."""
        documents = f"{_patched(response)}\n---\n\n"
        documents += "".join(
            f"{_yaml(target)}\n---\n" for target in targets_of(response)
        )
        self._append(f"{_file_name(response)}-mutated.yaml", documents)

    def write_generated(self, response: Response) -> None:
        """Append the objects that the rules generated."""
        documents = "".join(
            f"{_yaml(generated)}\n---\n\n" for generated in generated_of(response)
        )
        self._append(f"{response.policy.name}-generated.yaml", documents)

    def _append(self, name: str, documents: str) -> None:
        from kyverno_mp.cli.output.files import write_in_folder, write_to_stream

        path = self._path
        try:
            if self._is_stream:
                write_to_stream(path, documents)
                return
            if self._is_file:
                with path.open("a", encoding="utf-8") as file:
                    file.write(documents)
            else:
                path /= name
                write_in_folder(path, documents, append=True)
            path.chmod(_FILE_MODE)
        except OSError as error:
            raise CommandFailed(f"{path}: {error.strerror}") from error


def _file_name(response: Response) -> str:
    """Return a file name for the object that cannot leave the folder."""
    return response.path.rpartition("/")[2] or "object"


def difference(
    actual: dict[str, Json], path: Path, origin: str = "patched"
) -> tuple[str, str] | None:
    """Compare an object with the file's; return (reason, message) or None if equal."""
    try:
        documents = parse(Text(read_file(path), str(path)))
    except OSError as error:
        return _not_loaded(origin, read_error(error, path))
    except CommandFailed as error:
        return _not_loaded(origin, error.message)
    places = [_place(each) for each in documents]
    if _place(actual) in places:
        expected = documents[places.index(_place(actual))]
    elif (in_default := _place(actual, namespace="default")) in places:
        # As in 1.19: a cluster-wide object, put into a namespace by reading the file.
        expected = documents[places.index(in_default)]
        del metadata_of(expected)["namespace"]
    else:
        name = _place(actual)[-1]
        return _not_loaded(origin, f"resource with name {name} not found in manifest")
    before, after = _comparable(expected), _comparable(actual)
    if same(before, after):
        return None
    lines = difflib.ndiff(_yaml(before).splitlines(), _yaml(after).splitlines())
    return DIFFERENT, (
        f"Patched resource didn't match the {origin} resource in the test result\n"
        f"{_LEGEND}\n\n"
        + "\n".join(line for line in lines if line[0] != "?")
        + "\n\n"
        + "\n".join(field_differences(before, after))
    )


def _not_loaded(origin: str, reason: str) -> tuple[str, str]:
    message = f"error: failed to load {_FIELD[origin]} resource ({reason})"
    return "Resource error", message


def _place(raw: dict[str, Json], *, namespace: str = "") -> tuple[str, ...]:
    """Return where the object is; ``namespace``: instead of none."""
    values = (raw.get("apiVersion"), raw.get("kind"))
    names = (metadata_text(raw, "namespace") or namespace, metadata_text(raw, "name"))
    return (*("" if value is None else str(value) for value in values), *names)


def _comparable(raw: dict[str, Json]) -> Json:
    """Return the object without the parts that are not compared.

    These are the labels of generated objects, and empty values.
    """
    metadata = metadata_of(raw)
    labels = {
        key: value
        for key, value in labels_of(metadata.get("labels")).items()
        if not key.startswith("generate.kyverno.io/")
    }
    labels = {_MANAGED: "kyverno", **labels}
    return _tidied({**raw, "metadata": {**metadata, "labels": labels}})


def _tidied(value: Json) -> Json:
    """Return the value without nulls and empty maps and lists; None if it is empty."""
    if type(value) is dict:
        fields = {
            key: each for key, item in value.items() if _is_left(each := _tidied(item))
        }
        return fields or None
    if type(value) is list:
        return _left(value) or None
    return value


def _left(items: Iterable[Json]) -> list[Json]:
    return [each for item in items if _is_left(each := _tidied(item))]


def _is_left(value: Json) -> bool:
    return value is not None
