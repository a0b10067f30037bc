"""Record answered reviews, for ``kyverno-mp replay``.

Room: webhook. Takes: a Request and its answer. Gives: ports.Recording. Next: redact.py,
denying.py, files.py. May touch: one thread, started after the fork; the folder, through
files.py; the clock.
Source: docs/replay.md.

A review is queued with its answer; a thread redacts, serializes and compresses it. The
queue is bounded; reviews that do not fit are counted and dropped.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import msgspec
import orjson

from kyverno_mp.limits import RECORDING_QUEUE_REVIEWS_MAX, RECORDING_REVIEW_BYTES_MAX
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.tally import Labels, Tally
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.audit.queue import AuditQueue
from kyverno_mp.webhook.audit.records import space_of
from kyverno_mp.webhook.recording.denying import denies
from kyverno_mp.webhook.recording.files import RecordingFiles
from kyverno_mp.webhook.recording.format import Answer, Line
from kyverno_mp.webhook.recording.redact import Redaction

_LOG = logging.getLogger(__name__)
WRITTEN: Final = "written"
DROPPED: Final = "dropped"
TOO_LARGE: Final = "too_large"
FAILED: Final = "failed"
_COMPLAINTS_S: Final = 60.0
"""With a full disk, each review fails, so this is logged at most once a minute."""


class ReviewRecorder:
    """Records one of every ``one_of`` reviews of a worker."""

    def __init__(
        self,
        files: RecordingFiles,
        redaction: Redaction,
        *,
        one_of: int = 1,
        time_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._files = files
        self._redaction = redaction
        self._one_of = one_of
        self._numbers = count()
        self._time_ms = time_ms
        self._counts = Tally()
        self._complained_s = -_COMPLAINTS_S
        self._queue = AuditQueue(
            RECORDING_QUEUE_REVIEWS_MAX,
            on_drop=lambda: self._counts.add((DROPPED,)),
            on_error=self._report,
        )

    def start(self) -> None:
        """Start the thread. SAFETY: call it only after the fork."""
        try:
            self._files.prepare()
        except OSError as error:
            # Logged once at the start; each review retries and counts the failure.
            _LOG.error("reviews cannot be recorded yet: %s", error)
        self._queue.start()

    def record(
        self,
        request: Request,
        path: str,
        responses: Sequence[PolicyResponse],
        patch: Sequence[dict[str, Json]],
        *,
        allowed: bool,
        failed: bool,
    ) -> None:
        """Queue one answered review; any thread can call it, and it does not block."""
        # Without a lock, because count() is atomic.
        if next(self._numbers) % self._one_of:
            return
        raw = request.review_request
        if raw is None:
            return
        if request.size > RECORDING_REVIEW_BYTES_MAX:
            self._counts.add((TOO_LARGE,))
            return
        time_ms, namespace = self._time_ms(), space_of(request)

        def write() -> None:
            if not self._files.admits(namespace):
                self._counts.add((DROPPED,))
                return
            denied = [
                response for response in responses if not allowed and denies(response)
            ]
            policies = sorted({one.policy.key for one in denied})
            answer = Answer(allowed, policies, list(patch), failed)
            line = self._line(request, raw, path, time_ms, answer)
            is_written = self._files.write(line, namespace)
            self._counts.add((WRITTEN if is_written else TOO_LARGE,))

        self._queue.put(write, request.size, namespace)

    def drain(self) -> Mapping[Labels, int]:
        """Return the counts by outcome since the last call."""
        return self._counts.drain()

    def stop(self, timeout_s: float) -> None:
        """Write the queued reviews, and finish the file."""
        if self._queue.stop(timeout_s):
            try:
                self._files.close()
            except OSError as error:
                self._report(error)

    def _line(
        self,
        request: Request,
        raw: dict[str, Json],
        path: str,
        time_ms: int,
        answer: Answer,
    ) -> bytes:
        stored, missing = self._redaction.review(raw, request.kind)
        if answer.patch:
            kinds = (request.kind, str(request.object.get("kind", "")))
            # A mutation can copy a redacted value to any field.
            answer.patch = self._redaction.patch(
                answer.patch, kinds, is_whole=bool(missing)
            )
        line = Line(
            time_ms=time_ms,
            path=path,
            kind=(request.group, request.version, request.kind),
            request=stored,
            answer=answer,
            namespace_labels=(
                dict(request.namespace_labels) if request.namespace_known else None
            ),
            roles=list(request.roles),
            cluster_roles=list(request.cluster_roles),
            redacted=list(missing),
        )
        built = msgspec.to_builtins(line)
        try:
            return orjson.dumps(built)
        except orjson.JSONEncodeError:
            # orjson fails beyond 254 levels; the other encoder supports any depth that
            # Python does.
            return msgspec.json.encode(built)

    def _report(self, error: Exception) -> None:
        self._counts.add((FAILED,))
        now_s = time.monotonic()
        if now_s - self._complained_s >= _COMPLAINTS_S:
            self._complained_s = now_s
            # Only an OSError's text is known to quote no object.
            text = str(error) if isinstance(error, OSError) else type(error).__name__
            _LOG.error("reviews are not recorded: %s", text)


def recorder_of(
    settings: Settings, on_delete: Callable[[], None] = lambda: None
) -> ReviewRecorder | None:
    """Return this worker's recorder; None if nothing is recorded.

    Raises: SettingInvalid.
    """
    if not settings.record_dir:
        return None
    files = RecordingFiles(
        Path(settings.record_dir),
        settings.record_bytes_max,
        settings.webhook_workers,
        one_of=settings.record_one_of,
        on_delete=on_delete,
    )
    redaction = Redaction(settings.record_redact, settings.record_plain)
    return ReviewRecorder(files, redaction, one_of=settings.record_one_of)
