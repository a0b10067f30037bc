"""``inventory``: list the policies that Kyverno plans to stop executing.

Room: cli. Takes: files, or a cluster. Gives: a row for each ClusterPolicy, Policy,
clean-up policy and exception of kyverno.io, as a table, JSON or markdown.
May touch: files named by the user, the API server through kube/, standard output.
Source: docs/upgrade.md; Kyverno 1.19.1 (deprecated versions), its plan for 1.20.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgspec
from rich.console import Console
from rich.table import Table

from kyverno_mp.cli.cluster.access import open_cluster
from kyverno_mp.cli.cluster.resources import stored_objects
from kyverno_mp.cli.fix.to_cel import REWRITTEN, rewrite
from kyverno_mp.cli.output.counted import counted
from kyverno_mp.cli.output.progress import progress
from kyverno_mp.cli.output.screen import one_line, say
from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.folders import files_below, may_be_folder, say_empty
from kyverno_mp.cli.sources.reading import read_file
from kyverno_mp.errors import InputError
from kyverno_mp.kube.policy_resources import resource_of
from kyverno_mp.kube.rest import Client
from kyverno_mp.policy.gradual import rollout_of
from kyverno_mp.policy.reading.load import load
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    KYVERNO_GROUP,
    POLICY_EXCEPTION,
    POLICY_KINDS,
)

_STORED: Final = (
    *(stored for row in POLICY_KINDS if not row.is_in_cel for stored in row.stored),
    POLICY_EXCEPTION,
)
KINDS: Final = frozenset(stored.kind for stored in _STORED)
_BODIES: Final = ("validate", "mutate", "generate", "verifyImages")
_PLAIN: Final = frozenset(
    {"message", "failureAction", "failureActionOverrides", "allowExistingViolations"}
    | {"apiVersion", "kind", "name", "namespace", "uid", "synchronize"}
)
"""Fields of a body that every engine has."""
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
GRADUAL: Final = "gradual enforcement"
_ENFORCED: Final = (
    " Kyverno enforces {} with gradual enforcement for all objects at once."
)
_PLAN: Final = (
    "Kyverno 1.19.1 warns of each of them at every call. Of 1.20 it is merged that the"
    " command line refuses their files and the chart refuses to install beside them;"
    " whether it still executes stored ones is not decided. kyverno-mp executes all of"
    " them."
)
_NOT_TRIED: Final = "not tried"
_NO_COUNTERPART: Final = f"`fix policy --to` rewrites {', '.join(sorted(REWRITTEN))}"


class Row(NamedTuple):
    """One object.

    ``version``: in which its author wrote it, as far as that is known; ``uses``: what
    its rules consist of, e.g. ``validate.pattern``, ``context.apiCall``. ``moves_to``:
    the kind as which ``fix policy --to`` rewrites it, "" for the reason ``why_not``.
    """

    kind: str
    version: str
    namespace: str
    name: str
    rules: int
    uses: tuple[str, ...]
    moves_to: str
    why_not: str
    source: str


def rows(objects: Iterable[tuple[str, Json]], *, tries: bool) -> Iterator[Row]:
    """Yield the rows of objects, each with its source.

    ``tries``: whether to rewrite each ClusterPolicy, which takes up to a second.
    """
    for source, raw in objects:
        metadata, spec = raw.get("metadata"), raw.get("spec")
        metadata = metadata if type(metadata) is dict else {}
        spec = spec if type(spec) is dict else {}
        rules = spec.get("rules")
        moves_to, why_not = _move(raw) if tries else ("", _NOT_TRIED)
        yield Row(
            kind=raw["kind"],
            version=_version_of(raw, metadata),
            namespace=str(metadata.get("namespace", "")),
            name=str(metadata.get("name", "")),
            rules=len(rules) if type(rules) is list else 0,
            uses=tuple(sorted({*_uses(spec), *_gradual(metadata)})),
            moves_to=moves_to,
            why_not=why_not,
            source=source,
        )


def is_listed(raw: Json) -> bool:
    """Return whether an object is of a kind that Kyverno plans to give up."""
    if type(raw) is not dict:
        return False
    kind, version = raw.get("kind"), raw.get("apiVersion")
    if type(kind) is not str or type(version) is not str:
        return False
    return kind in KINDS and version.partition("/")[0] == KYVERNO_GROUP


def _move(raw: Json) -> tuple[str, str]:
    if raw["kind"] not in REWRITTEN:
        return "", _NO_COUNTERPART
    if type(raw.get("metadata")) is not dict:
        return "", "it is not valid: metadata is no object"
    rewritten = rewrite(raw)
    if rewritten.document is not None:
        return ", ".join(str(document["kind"]) for document in rewritten.documents), ""
    return (
        "",
        rewritten.reason or f"{counted(len(rewritten.differences), 'request')} differ",
    )


def _version_of(raw: Json, metadata: Json) -> str:
    """Return the version of the manifest; the API server converts what it stores."""
    annotations = metadata.get("annotations")
    applied = annotations.get(_APPLIED) if type(annotations) is dict else None
    if type(applied) is str:
        try:
            written = msgspec.json.decode(applied)
        except msgspec.DecodeError:
            written = None
        if is_listed(written):
            raw = written
    return str(raw["apiVersion"]).partition("/")[2]


def _gradual(metadata: Json) -> Iterator[str]:
    """Yield the use of annotations that Kyverno ignores: it enforces fully."""
    annotations = metadata.get("annotations")
    if type(annotations) is dict:
        strings = {
            key: value for key, value in annotations.items() if type(value) is str
        }
        if rollout_of(strings) is not None:
            yield GRADUAL


def _uses(spec: Json) -> Iterator[str]:
    """Yield the constructs of a policy: bodies of rules, sources of data, JMESPath."""
    waiting: list[Json] = [spec]
    while waiting:
        value = waiting.pop()
        if type(value) is dict:
            yield from _uses_of(value)
            waiting += value.values()
        elif type(value) is list:
            waiting += value
        elif type(value) is str and "{{" in value:
            yield "JMESPath"


def _uses_of(value: dict[str, Json]) -> Iterator[str]:
    for name in _BODIES:
        bodies = value.get(name)
        for body in bodies if type(bodies) is list else [bodies]:
            if type(body) is dict:
                keys = [key for key in body if key not in _PLAIN]
                yield from (f"{name}.{key}" for key in keys) if keys else (name,)
    entries = value.get("context")
    for entry in entries if type(entries) is list else ():
        if type(entry) is dict:
            yield from (f"context.{key}" for key in entry if key != "name")
    yield from (name for name in ("preconditions", "schedule") if name in value)


def _from_files(paths: Iterable[str]) -> Iterator[tuple[str, Json]]:
    """Yield the objects in files. Raises: CommandFailed for an unusable file."""
    for path in paths:
        is_folder = may_be_folder(path) and Path(path).is_dir()
        for file in files_below(Path(path)) if is_folder else [Path(path)]:
            try:
                documents = load(read_file(file), file=str(file))
            except OSError as error:
                raise CommandFailed(read_error(error, str(file))) from error
            except InputError as error:
                raise CommandFailed(f"{file}: {error.message}") from error
            for document in documents:
                if is_listed(document.raw):
                    yield f"{file}:{document.line}", document.raw


def _from_cluster(client: Client) -> Iterator[tuple[str, Json]]:
    """Yield the stored objects. Raises: DependencyError."""
    for raw in stored_objects(client, map(resource_of, _STORED)):
        yield "cluster", raw


def called(
    paths: tuple[str, ...],
    output: str,
    kubeconfig: str,
    context: str,
    *,
    cluster: bool,
    quick: bool,
) -> None:
    """Print the inventory of files, or of a cluster; ``quick``: rewrite nothing."""
    if cluster == bool(paths):
        raise CommandFailed("name files or folders, or --cluster")
    if cluster:
        with open_cluster(kubeconfig, context) as opened:
            objects = list(_from_cluster(opened.client))
    else:
        say_empty(paths)
        objects = list(_from_files(paths))
    inventory: list[Row] = []
    with progress("inventory", len(objects), "policies") as bar:
        for row in rows(objects, tries=not quick):
            inventory.append(row)
            bar(1)
        bar.hide()
    inventory.sort(key=lambda row: (row.kind, row.namespace, row.name))
    if output == "json":
        click.echo(json.dumps([_shown(row) for row in inventory], indent=2))
    elif output == "markdown":
        click.echo("\n".join(_markdown(inventory)))
    else:
        _print(inventory)


def _shown(row: Row) -> dict[str, Json]:
    names = {"moves_to": "movesTo", "why_not": "whyNot"}
    fields = {names.get(key, key): value for key, value in row._asdict().items()}
    return {**fields, "uses": list(row.uses)}


_HEADERS: Final = ("kind", "version", "policy", "rules", "uses", "moves to")


def _cells(row: Row) -> tuple[str, ...]:
    key = f"{row.namespace}/{row.name}" if row.namespace else row.name
    move = row.moves_to or f"- ({row.why_not})"
    uses = ", ".join(row.uses)
    cells = (row.kind, row.version, key, str(row.rules), uses, move)
    return tuple(map(one_line, cells))


def _summary(inventory: list[Row]) -> str:
    moved = sum(bool(row.moves_to) for row in inventory)
    gradual = sum(GRADUAL in row.uses for row in inventory)
    note = _ENFORCED.format(counted(gradual, "policy")) if gradual else ""
    return f"{counted(len(inventory), 'object')}, of which {moved} move. {_PLAN}{note}"


def _markdown(inventory: list[Row]) -> Iterator[str]:
    yield "| " + " | ".join(_HEADERS) + " |"
    yield "|" + "---|" * len(_HEADERS)
    for row in inventory:
        cells = (cell.replace("|", "\\|") for cell in _cells(row))
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield _summary(inventory)


def _print(inventory: list[Row]) -> None:
    if inventory:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in _HEADERS:
            table.add_column(name, overflow="fold")
        for row in inventory:
            table.add_row(*_cells(row))
        Console().print(table, markup=False, highlight=False)
    say(_summary(inventory))
