"""Decide whether the API server sent a request: by path segment or certificate.

Room: webhook. Takes: settings, the path of a request, the certificate of its
connection, the segment ``callers``. Gives: CallerCheck. Next: protocol.
Source: docs/SECURITY.md (the caller).

Everybody in the cluster may reach the port. A review that the API server did not send
must start nothing: no object, no Event, no metric series, no recording. While
configurations without the path segment may be in force, such a review is still
evaluated; afterwards it is rejected before its body is read.
"""

from collections.abc import Iterable, Mapping
from hmac import compare_digest
from typing import Any, Final

from kyverno_mp.limits import CALLER_TARGET_BYTES_MAX, CALLER_TARGETS_KEPT_MAX
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.callers import PREFIX, SEGMENT_CHARS, Callers
from kyverno_mp.webhook.http_errors import CALLER_FOREIGN, CALLER_UNKNOWN

_START: Final = b"/" + PREFIX.encode()
_START_BYTES: Final = len(_START)
_END: Final = 1 + SEGMENT_CHARS
Target = tuple[bytes, bytes, bool]
Certificate = Mapping[str, Any] | None
"""A verified client certificate as decoded by ``ssl``; empty or None without one."""


class CallerCheck:
    """The proofs that one worker accepts; with none of both, every caller is trusted.

    ``requires_segments``: this installation registers paths with a secret segment.
    ``subjects``: the names of trusted client certificates, None if no certificates are
    requested.
    """

    __slots__ = (
        "_proved",
        "_segments",
        "_subjects",
        "is_required",
        "requires_segments",
    )

    def __init__(
        self,
        *,
        requires_segments: bool = False,
        subjects: Iterable[str] | None = None,
    ) -> None:
        self.requires_segments = requires_segments
        self._subjects = None if subjects is None else frozenset(subjects)
        self._segments: tuple[bytes, ...] = ()
        self._proved: dict[bytes, Target] = {}
        """PERF: an API server calls few targets. SAFETY: a look-up takes as long for a
        nearly equal target as for any other, because Python's hash has a secret key."""
        self.is_required = not requires_segments and self._subjects is not None
        """Whether a request without proof is rejected."""

    def take(self, callers: Callers) -> None:
        """Accept these path segments from now on."""
        self._segments = tuple(segment.encode() for segment in callers.segments)
        self._proved.clear()
        if self.requires_segments:
            self.is_required = callers.required

    @property
    def _trusts_all(self) -> bool:
        return not self.requires_segments and self._subjects is None

    def read(self, target: bytes) -> Target:
        """Return the path without its secret segment, the query, and the proof.

        The segment is also removed if it proves nothing, so that replicas with
        different settings answer the same paths.
        """
        known = self._proved.get(target)
        if known is not None:
            return known
        path, _, query = target.partition(b"?")
        path, is_proved = self._split(path)
        found = path, query, is_proved
        if is_proved and len(target) <= CALLER_TARGET_BYTES_MAX:
            if len(self._proved) >= CALLER_TARGETS_KEPT_MAX:
                self._proved.clear()
            self._proved[target] = found
        return found

    def _split(self, path: bytes) -> tuple[bytes, bool]:
        if path[:_START_BYTES] != _START:
            return path, self._trusts_all
        given, is_proved = path[1:_END], self._trusts_all
        for segment in self._segments:
            # SAFETY: in constant time, and without an early end.
            is_proved |= compare_digest(given, segment)
        return path[_END:], is_proved

    def certified(self, certificate: Certificate) -> bool | None:
        """Return whether a client certificate proves the caller; None without one."""
        if self._subjects is None or not certificate:
            return None
        names = [
            value
            for parts in certificate.get("subject", ())
            for name, value in parts
            if name == "commonName"
        ]
        return len(names) == 1 and names[0] in self._subjects

    def refusal(self, *, is_proved: bool, certified: bool | None) -> str:
        """Return the code with which a review is rejected; "" if it is evaluated."""
        if certified is False:
            return CALLER_FOREIGN
        if is_proved or not self.is_required:
            return ""
        return CALLER_UNKNOWN if self.requires_segments else CALLER_FOREIGN


def caller_check(settings: Settings) -> CallerCheck:
    """Return the proofs that callers of this pod need.

    Without a cluster nobody registers paths, so that only certificates can prove one.
    """
    names = (one.strip() for one in settings.client_names.split(","))
    return CallerCheck(
        requires_segments=settings.caller_path and not settings.standalone,
        subjects=filter(None, names) if settings.client_ca_file else None,
    )
