"""Read policy reports from files, from standard input or from a cluster.

Room: cli. Takes: paths, or a kubeconfig's cluster and selectors. Gives: Entries.
Next: command. May touch: files named by the user, standard input, the API server
through kube/ (reading only).
Source: wgpolicyk8s.io/v1alpha2 and openreports.io/v1alpha1 (config/crds); Kyverno
pkg/utils/report. ``apply --policy-report`` writes the fields of openreports.io, with
kind PolicyReport for namespaced policies.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgspec

from kyverno_mp.cli.output.progress import progress
from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.folders import YAML, files_below
from kyverno_mp.cli.sources.reading import read_file, read_standard_input
from kyverno_mp.dashboard.entries import Entry
from kyverno_mp.dashboard.stored import broken_entry, entries_of
from kyverno_mp.errors import InputError, KubeNotFound
from kyverno_mp.policy.reading.load import items_of, load
from kyverno_mp.values.jsonvalue import Json

_GROUPS: Final = ("wgpolicyk8s.io/", "openreports.io/")
_KINDS: Final = frozenset(
    {"PolicyReport", "ClusterPolicyReport", "Report", "ClusterReport"}
)
_CLUSTER_KINDS: Final = (
    ("wgpolicyk8s.io/v1alpha2", "PolicyReport"),
    ("wgpolicyk8s.io/v1alpha2", "ClusterPolicyReport"),
    ("openreports.io/v1alpha1", "Report"),
    ("openreports.io/v1alpha1", "ClusterReport"),
)
_SUFFIXES: Final = (*YAML, ".json", ".jsonl")
_BOM: Final = b"\xef\xbb\xbf"


class Scope(NamedTuple):
    """The namespace and label selector of a cluster's reports; "" = all."""

    namespace: str = ""
    selector: str = ""


def entries_of_paths(paths: Sequence[str]) -> list[Entry]:
    """Return the entries of all reports in files and folders, - for standard input.

    Documents of other kinds are skipped. Raises: CommandFailed for a path that cannot
    be read or has no report, InputError for a file that cannot be parsed.
    """
    entries: list[Entry] = []
    for path in paths:
        reports = 0
        for data, file in _texts(path):
            for raw in _documents(data, file):
                if _is_report(raw):
                    reports += 1
                    entries.extend(entries_of(raw, file))
        if not reports:
            raise CommandFailed(f"no policy reports in {path}")
    return entries


def entries_of_cluster(kubeconfig: str, context: str, scope: Scope) -> list[Entry]:
    """Return the entries of the reports that a cluster stores.

    Raises: SettingInvalid, DependencyError, CommandFailed.
    """
    # Imported late: importing the client takes 60 ms.
    from kyverno_mp.cli.cluster.access import open_cluster
    from kyverno_mp.kube.discovery import Discovery
    from kyverno_mp.kube.watch import WatchScope, list_all

    by_report: dict[bytes, list[Entry]] = {}
    with open_cluster(kubeconfig, context) as cluster:
        discovery = Discovery(cluster.client)
        discovery.refresh()
        served = [
            resource
            for api_version, kind in _CLUSTER_KINDS
            if (resource := discovery.directory.of_kind(api_version, kind)) is not None
        ]
        if not served:
            raise CommandFailed(
                "the cluster has no kind of policy reports (wgpolicyk8s.io/v1alpha2,"
                " openreports.io/v1alpha1)"
            )
        with progress("Reading", 0, "reports") as advance:
            for resource in served:
                if scope.namespace and not resource.namespaced:
                    continue
                # PERF: one report in memory at a time; only its entries stay.
                type_fields = {
                    "apiVersion": resource.api_version,
                    "kind": resource.kind,
                }

                listed = dict[bytes, list[Entry]]()

                def take(
                    raw: msgspec.Raw,
                    type_fields: dict[str, str] = type_fields,
                    listed: dict[bytes, list[Entry]] = listed,
                ) -> None:
                    report = msgspec.json.decode(raw) | type_fields
                    listed[_identity(report)] = _stored_entries(report)
                    advance(1)

                watched = WatchScope(
                    resource=resource,
                    namespace=scope.namespace,
                    label_selector=scope.selector,
                )
                # K8S: a 404 for a list means that the kind and its objects were
                # removed.
                with contextlib.suppress(KubeNotFound):
                    list_all(cluster.client, watched, take, restart=listed.clear)
                by_report |= listed
    return [entry for entries in by_report.values() for entry in entries]


def _stored_entries(report: dict[str, Json]) -> list[Entry]:
    """Return the entries of a stored report.

    An invalid one is an error: its author must not be able to hide other reports, and
    it must not look like a pass.
    """
    try:
        return list(entries_of(report, "the cluster"))
    except InputError as error:
        return [broken_entry(report, error.message)]


def _identity(report: dict[str, Json]) -> bytes:
    metadata = _mapping(report.get("metadata"))
    key = [report.get(name) for name in ("apiVersion", "kind")]
    key += [metadata.get(name) for name in ("namespace", "name")]
    return msgspec.json.encode(key)


def _texts(path: str) -> Iterator[tuple[bytes, str]]:
    if path == "-":
        if sys.stdin.isatty():
            click.echo("reading reports from standard input", err=True)
        yield read_standard_input(), "standard input"
        return
    try:
        root = Path(path)
        is_folder = root.is_dir()
        for file in files_below(root, _SUFFIXES) if is_folder else [root]:
            yield read_file(file, is_argument=not is_folder), str(file)
    except OSError as error:
        raise CommandFailed(read_error(error, path)) from error


def _documents(data: bytes, file: str) -> Iterator[Json]:
    """Yield the documents in YAML, JSON, lists of objects, or JSON lines.

    Raises: PolicyInvalid, with the position of the syntax error.
    """
    content = data.removeprefix(_BOM)
    if content.lstrip()[:1] == b"[":
        # Some programs write a bare array.
        loaded = load(b'{"kind":"List","items":' + content + b"}", file=file)
        yield from (document.raw for document in loaded)
        return
    lines = _json_lines(content)
    if lines is not None:
        for raw in lines:
            items = items_of(raw)
            yield from ((raw,) if items is None else (item for _, item in items))
        return
    yield from (document.raw for document in load(content, file=file))


def _json_lines(content: bytes) -> list[Json] | None:
    """Return the objects of JSON lines, which ``apply`` writes; None for other text.

    A single line is not treated as JSON lines.
    """
    if not content.startswith(b"{") or b"\n{" not in content:
        return None
    try:
        return [
            msgspec.json.decode(line) for line in content.splitlines() if line.strip()
        ]
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _is_report(raw: Json) -> bool:
    if type(raw) is not dict:
        return False
    version = _text(raw.get("apiVersion"))
    return version.startswith(_GROUPS) and _text(raw.get("kind")) in _KINDS


def _text(value: Json) -> str:
    return value if type(value) is str else ""


def _mapping(value: Json) -> dict[str, Json]:
    return value if type(value) is dict else {}
