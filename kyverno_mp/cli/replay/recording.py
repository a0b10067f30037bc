"""Read the reviews of a recording, and group the reviews of each request.

Room: cli. Takes: paths of files or of folders with them. Gives: Recording, which can
be read several times, and its Groups. Next: verdicts.
May touch: files named by the user.
Source: docs/replay.md (the format); webhook/recording/format.py.
"""

import gzip
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, cast

import msgspec

from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.folders import Bounds, regular
from kyverno_mp.errors import RequestInvalid, Where
from kyverno_mp.limits import RECORDING_LINE_BYTES_MAX, REPLAY_EQUAL_REQUESTS_MAX
from kyverno_mp.webhook.recording.format import (
    OPEN_SUFFIX,
    SUFFIX,
    VERSION,
    Answer,
    Header,
    Line,
    header_of,
    line_of,
)
from kyverno_mp.webhook.route import CEL_WEBHOOKS, Route, route_of

_PLAIN: Final = ".jsonl"
_SUFFIXES: Final = (SUFFIX, OPEN_SUFFIX, _PLAIN)
_TOGETHER_MS: Final = 30_000
"""The API server's longest timeout, in which it calls all webhooks of a request."""


@dataclass(slots=True)
class Group:
    """The reviews of one request; the API server may call several paths for it."""

    time_ms: int
    routes: list[Route]
    answer: Answer
    """The combined answer of all paths; allowed if every path allowed the request."""

    def takes(self, route: Route, time_ms: int) -> bool:
        """Return whether a review with equal content may belong to this request."""
        return abs(time_ms - self.time_ms) <= _TOGETHER_MS and all(
            route.path != grouped.path for grouped in self.routes
        )

    def add(self, route: Route, answer: Answer) -> None:
        """Add the review of another path."""
        self.routes.append(route)
        mine = self.answer
        self.answer = Answer(
            allowed=mine.allowed and answer.allowed,
            policies=sorted({*mine.policies, *answer.policies}),
            patch=[*mine.patch, *answer.patch],
            failed=mine.failed or answer.failed,
        )


@dataclass(slots=True)
class Recording:
    """A recording on disk."""

    files: list[Path]
    notes: list[str] = field(default_factory=list)
    """Notes about files that end early."""
    one_of: int = 1
    _read: dict[Path, int] = field(default_factory=dict)
    """The number of reviews that the first pass read from each file."""
    _noted: set[Path] = field(default_factory=set)

    def lines(self) -> Iterator[Line]:
        """Yield all reviews, file by file. Raises: RequestInvalid, OSError.

        Reviews that a worker adds after the first pass are not in later ones, because
        the groups name reviews by their numbers.
        """
        for file in self.files:
            number = 0
            for line in islice(self._lines_of(file), self._read.get(file)):
                number += 1
                yield line
            self._read.setdefault(file, number)

    def _lines_of(self, file: Path) -> Iterator[Line]:
        number = 0
        with _opened(file) as stream:
            while True:
                try:
                    data = stream.readline(RECORDING_LINE_BYTES_MAX + 1)
                except EOFError:
                    # A worker still writes the file, or was killed.
                    state = (
                        "not complete yet"
                        if file.name.endswith(OPEN_SUFFIX)
                        else "truncated"
                    )
                    self._note(file, f"is {state}; its complete lines are used")
                    return
                except (zlib.error, gzip.BadGzipFile) as error:
                    raise _wrong(file, f"is damaged: {error}", number) from error
                if not data and number:
                    return
                number += 1
                if len(data) > RECORDING_LINE_BYTES_MAX:
                    raise _wrong(file, "has a line that is too long", number)
                if number == 1:
                    self._take_header(file, data)
                    continue
                try:
                    yield line_of(data)
                except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                    if not data.endswith(b"\n"):
                        self._note(file, "ends within a line, which is skipped")
                        return
                    raise _wrong(
                        file, f"has a line that is not a review: {error}", number
                    ) from error

    def _take_header(self, file: Path, data: bytes) -> None:
        try:
            header: Header = header_of(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            message = "is not a recording of reviews (KYVERNO_MP_RECORD_DIR)"
            raise _wrong(file, message) from error
        if header.kyverno_mp_recording != VERSION:
            version = header.kyverno_mp_recording
            raise _wrong(file, f"has version {version}, and only {VERSION} is known")
        self.one_of = max(self.one_of, header.one_of)

    def _note(self, file: Path, note: str) -> None:
        if file not in self._noted:
            self._noted.add(file)
            self.notes.append(f"{file}: {note}")


def _opened(file: Path) -> BinaryIO:
    try:
        if file.name.endswith((SUFFIX, OPEN_SUFFIX)):
            return cast("BinaryIO", gzip.open(file))
        return file.open("rb")
    except OSError as error:
        raise CommandFailed(read_error(error, file)) from error


def _wrong(file: Path, reason: str, line: int = 0) -> RequestInvalid:
    return RequestInvalid(
        "cli.recording", f"the recording {reason}", Where(file=str(file), line=line)
    )


def recording_of(path: str) -> Recording:
    """Return the recording in a file, or in all files of a folder.

    Raises: CommandFailed.
    """
    root = Path(path)
    bounds = Bounds(root)
    try:
        if root.is_dir():
            files = sorted(
                regular(bounds.check(entry))
                for entry in root.iterdir()
                if entry.name.endswith(_SUFFIXES)
            )
            if not files:
                raise CommandFailed(f"no recording in {path}")
        else:
            root.stat()
            files = [root]
    except OSError as error:
        raise CommandFailed(read_error(error, error.filename or path)) from error
    return Recording(files)


def route_of_line(line: Line, number: int) -> Route:
    """Return the route of a review. Raises: RequestInvalid for an unknown path."""
    route = route_of(line.path.encode())
    if route is None:
        raise RequestInvalid(
            "cli.recording", f"review {number} has the unknown path {line.path[:100]!r}"
        )
    return route


@dataclass(slots=True)
class Groups:
    """The groups of a recording, by the number of the first review."""

    first: dict[int, Group] = field(default_factory=dict)
    paths: set[tuple[str, str]] = field(default_factory=set)
    """(webhook, failurePolicy) of the shared paths that were recorded."""
    named: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """(namespace or "", name) of the policies in CEL on recorded paths, by webhook."""
    start_ms: int = 0
    end_ms: int = 0


def groups_of(lines: Iterator[Line]) -> Groups:
    """Group the reviews of each request.

    The API server sends each path a separate review, which differs only in its uid. Two
    reviews for the same path are two requests.
    """
    groups = Groups()
    open_groups: dict[bytes, deque[Group]] = {}
    for number, line in enumerate(lines):
        route = route_of_line(line, number)
        stamp = line.time_ms
        groups.start_ms = min(groups.start_ms or stamp, stamp)
        groups.end_ms = max(groups.end_ms, stamp)
        if route.webhook in CEL_WEBHOOKS:
            groups.named.setdefault(route.webhook, set()).update(named_in(route))
        elif not route.policy_key:
            groups.paths |= {
                (route.webhook, failure_policy)
                for failure_policy in route.failure_policies
            }
        key = _identity(line, route)
        waiting = open_groups.setdefault(key, deque(maxlen=REPLAY_EQUAL_REQUESTS_MAX))
        group = next(
            (candidate for candidate in waiting if candidate.takes(route, stamp)), None
        )
        if group is not None:
            group.add(route, line.answer)
            continue
        group = groups.first[number] = Group(stamp, [route], line.answer)
        waiting.append(group)
    return groups


def named_in(route: Route) -> list[tuple[str, str]]:
    """Return the policies on a path of policies in CEL: (namespace or "", name)."""
    if not route.policy_key.startswith("/"):
        return [("", name) for name in route.policy_key.split("/") if name]
    parts = iter(route.policy_key.split("/")[1:])
    return list(zip(parts, parts, strict=True))


def _identity(line: Line, route: Route) -> bytes:
    request = {name: value for name, value in line.request.items() if name != "uid"}
    data = msgspec.json.encode([route.webhook, request])
    return blake2b(data, digest_size=16).digest()
