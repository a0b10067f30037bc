"""Answer policies' calls from ``apiCallResponses`` and ``globalContextEntries``.

Room: cli. Takes: these fields of a test. Gives: ``mocked``, which returns the cluster
data with the answers. Next: one_test. May touch: files that the test names.
Source: docs/behaviour/v1.19 8; Kyverno cmd/cli/kubectl-kyverno/apis/v1alpha1/test.go
(checks), store/gctx_resolve.go, pkg/cel/libs/http_mock.go at v1.19.0.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from kyverno_mp.cli.cluster.given_entries import Given, GivenEntries, searched
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.strict import read_documents
from kyverno_mp.cli.testing.files import TestFile
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.program.ports import ApiCalls, ApiRequest, ClusterData
from kyverno_mp.values.go.duration import quote_text
from kyverno_mp.values.jsonvalue import Json

if TYPE_CHECKING:
    from kyverno_mp.expr.cel.outside import HttpPort, HttpRequest

_RESPONSES: Final = "apiCallResponses"
_ENTRIES: Final = "globalContextEntries"
_SOURCES: Final = ("data", "resources", "resourceFiles")
_STATUS: Final = range(100, 600)
_GOOD: Final = range(200, 300)
_Answer = tuple[int, dict[str, Json]]


def mocked(test: TestFile, data: ClusterData) -> ClusterData:
    """Return the cluster data with a test's answers. Raises: CommandFailed."""
    answers = _answers(test.raw.get(_RESPONSES) or [])
    if answers:
        services = _Services(answers, data.cel.services)
        data = replace(
            data,
            api_calls=_ApiCalls(answers, data.api_calls),
            cel=data.cel._replace(services=services),
        )
    raw_entries = test.raw.get(_ENTRIES) or []
    if raw_entries:
        entries = GivenEntries(dict(_entries(raw_entries, test.folder)))
        data = replace(
            data, global_context=entries, cel=data.cel._replace(references=entries)
        )
    return data


@dataclass(frozen=True, slots=True)
class _Answers:
    """Status and body by ``METHOD:url``, or by URL for any method."""

    by_key: Mapping[str, _Answer]

    def __bool__(self) -> bool:
        return bool(self.by_key)

    def find(self, method: str, url: str) -> _Answer | None:
        return self.by_key.get(f"{method}:{url}") or self.by_key.get(url)


@dataclass(frozen=True, slots=True)
class _Services:
    """``http`` of policies in CEL; URLs without an answer are really called."""

    answers: _Answers
    inner: "HttpPort | None"

    def exchange(self, request: "HttpRequest", deadline_ns: int) -> tuple[int, bytes]:
        answer = self.answers.find(request.method, request.url)
        if answer is None:
            if self.inner is None:
                message = f"{request.method} {request.url}: no answer is given for it"
                raise ExpressionFailed("cli.no_answer", message)
            return self.inner.exchange(request, deadline_ns)
        status, body = answer
        # KYVERNO: 1.19 answers with {body, statusCode}, but a real call returns the
        # body's fields and the status. Here, policies get both.
        return status, msgspec.json.encode({**body, "body": body})


@dataclass(frozen=True, slots=True)
class _ApiCalls:
    """``apiCall`` of context entries."""

    answers: _Answers
    inner: ApiCalls | None

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        url = request.url or request.path
        answer = self.answers.find(request.method, url)
        if answer is None and self.inner is not None:
            return self.inner.call(request, deadline_ns)
        if answer is None:
            message = f"{request.method} {url}: no answer is given for it"
            raise ExpressionFailed("cli.no_answer", message)
        status, body = answer
        if status not in _GOOD:
            message = f"HTTP {status} from apiCall mock for {request.method} {url}"
            raise ExpressionFailed("cli.status", message)
        return body


def _answers(responses: list[dict[str, Json]]) -> _Answers:
    answers: dict[str, _Answer] = {}
    for index, mock in enumerate(responses):
        location = f"{_RESPONSES}[{index}]"
        url = _url_of(mock, location)
        method = str(mock.get("method") or "").strip().upper()
        if method not in ("", "GET", "POST"):
            raise CommandFailed(f"{location}: method must be GET or POST")
        response = mock.get("response") or {}
        body = response.get("body")
        subject = f"{location} {quote_text(url)}"
        if body is None:
            raise CommandFailed(f"{subject}: response.body is required")
        if type(body) is not dict:
            raise CommandFailed(f"{subject}: response.body must be a JSON object")
        status = response.get("statusCode") or 200
        if type(status) is not int or status not in _STATUS:
            raise CommandFailed(
                f"{subject}: statusCode {status} must be between 100 and 599"
            )
        key = f"{method}:{url}" if method else url
        if key in answers:
            raise CommandFailed(
                f"{_RESPONSES}: duplicate entry for {quote_text(url)} (key"
                f" {quote_text(key)}) — each method+url combination must be unique"
            )
        answers[key] = status, body
    return _Answers(answers)


def _url_of(mock: dict[str, Json], location: str) -> str:
    url = str(mock.get("url") or "").strip()
    path = str(mock.get("urlPath") or "").strip()
    if not url and not path:
        raise CommandFailed(f"{location}: either url or urlPath is required")
    if url and path:
        raise CommandFailed(f"{location}: url and urlPath are mutually exclusive")
    if url:
        try:
            parts = urlsplit(url)
        except ValueError as error:
            message = f"{location}: url {quote_text(url)} is not a valid URL: {error}"
            raise CommandFailed(message) from error
        if parts.scheme not in ("http", "https"):
            raise CommandFailed(
                f"{location}: url {quote_text(url)} must be an absolute https/http URL"
            )
        if not parts.hostname:
            raise CommandFailed(
                f"{location}: url {quote_text(url)} has scheme but no host"
            )
    elif not path.startswith("/"):
        raise CommandFailed(
            f"{location}: urlPath {quote_text(path)} must be an absolute path starting"
            " with '/'"
        )
    return url or path


def _entries(
    raw_entries: list[dict[str, Json]], folder: Path
) -> Iterator[tuple[str, Given]]:
    """Yield each entry's name and data. Raises: CommandFailed."""
    names: set[str] = set()
    for entry in raw_entries:
        name = str(entry.get("name") or "").strip()
        if not name:
            raise CommandFailed(f"{_ENTRIES}: name is required")
        if name in names:
            raise CommandFailed(f"{_ENTRIES}: duplicate name {quote_text(name)}")
        names.add(name)
        location = f"{_ENTRIES} entry {quote_text(name)}"
        projections = entry.get("projections") or []
        for projection in projections:
            _check_projection(projection, location)
        root = _root(entry, location, folder)
        if entry.get("fieldPath"):
            root = searched(entry["fieldPath"], root, f"{location} fieldPath")
        if projections:
            root = {
                str(each["name"]): searched(
                    each["path"],
                    root,
                    f"{location} projection {quote_text(each['name'])}",
                )
                for each in projections
            }
        # KYVERNO: names of fields in the data are also projections.
        yield name, Given(root, root if type(root) is dict else {})


def _check_projection(projection: dict[str, Json], location: str) -> None:
    name = str(projection.get("name") or "").strip()
    if not name:
        raise CommandFailed(f"{location}: projection name is required")
    if not str(projection.get("path") or "").strip():
        raise CommandFailed(
            f"{location} projection {quote_text(name)}: path is required"
        )


def _root(entry: dict[str, Json], location: str, folder: Path) -> Json:
    sources = [source for source in _SOURCES if entry.get(source) is not None]
    if len(sources) != 1:
        rule = "one of data, resources, or resourceFiles is required"
        if sources:
            rule = "data, resources, and resourceFiles are mutually exclusive"
        raise CommandFailed(f"{location}: {rule}")
    if "data" in sources:
        if type(entry["data"]) is not dict:
            raise CommandFailed(f"{location}: data must be a JSON object")
        return entry["data"]
    if "resources" in sources:
        for index, raw in enumerate(entry["resources"]):
            if type(raw) is not dict:
                raise CommandFailed(
                    f"{location} resources[{index}]: must be a JSON object (Kubernetes"
                    " resource manifest)"
                )
        return entry["resources"]
    return [
        raw
        for index, file in enumerate(entry["resourceFiles"])
        for raw in _documents(file, f"{location} resourceFiles[{index}]", folder)
    ]


def _documents(file: str, location: str, folder: Path) -> Iterator[dict[str, Json]]:
    name = file.strip()
    if not name:
        raise CommandFailed(f"{location}: file path must not be empty")
    path = PurePosixPath(name)
    if path.is_absolute():
        raise CommandFailed(f"{location}: file path must not be absolute")
    depth = 0
    for part in path.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            raise CommandFailed(
                f"{location}: file path must not escape the test directory"
            )
    for raw in read_documents(folder / path):
        if type(raw) is not dict:
            raise CommandFailed(f"{location}: {name} has a document that is no map")
        if raw:
            yield raw
