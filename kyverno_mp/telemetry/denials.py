"""Keep the last denials of one worker in a file that the dashboard can read.

Room: telemetry. Takes: Denials. Gives: DenialFile, written by a worker;
``last_denials``, read by the dashboard. Next: webhook/decisions.py writes,
process/roles/dashboard_facts.py reads. May touch: ``*.denials`` files beside the pages.

Layout: DENIALS_KEPT slots of DENIAL_BYTES_MAX. A slot has the length and the CRC of its
JSON, then the JSON, so a slot that is being written, or was when its process died, is
skipped.
"""

import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from kyverno_mp.limits import DENIAL_BYTES_MAX, DENIALS_KEPT, DENIALS_PER_S_MAX
from kyverno_mp.settings.machine import reserve
from kyverno_mp.snapshot.room import has_room
from kyverno_mp.values.records import UNDECODABLE

_SUFFIX: Final = ".denials"
_FILE_BYTES: Final = DENIALS_KEPT * DENIAL_BYTES_MAX
_HEADER: Final = struct.Struct("<II")
_JSON_BYTES_MAX: Final = DENIAL_BYTES_MAX - _HEADER.size
_OTHER_BYTES: Final = 256
"""Names of fields, numbers, quotes."""
_SECOND_NS: Final = 10**9
_GAP_NS: Final = _SECOND_NS // DENIALS_PER_S_MAX


class Denial(msgspec.Struct, frozen=True):
    """A request that was denied, with the first rule that denied it.

    ``time_s``: Unix time. ``others``: the number of other rules that denied it.
    """

    time_s: float
    operation: str
    kind: str
    namespace: str
    name: str
    user: str
    policy: str
    rule: str
    message: str
    others: int = 0


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Denial)


class DenialFile:
    """The last denials of this process; of a burst, those after the first are left out.

    It has one writer. A restarted process continues the file of its predecessor.
    """

    def __init__(
        self, page: Path, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """``page``: the metric page of the process, which no other process holds.

        Raises: OSError, also if there is no room for the file.
        """
        path = page.with_suffix(_SUFFIX)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not has_room(descriptor, _FILE_BYTES):
                raise OSError(f"no room for {path.name}")
            os.ftruncate(descriptor, _FILE_BYTES)
            reserve(descriptor, 0, _FILE_BYTES)
            self._map = mmap.mmap(descriptor, _FILE_BYTES)
        finally:
            os.close(descriptor)
        times = [denial.time_s if denial else 0.0 for denial in _slots(self._map)]
        self._next = (times.index(max(times)) + 1) % DENIALS_KEPT if any(times) else 0
        self._clock_ns = clock_ns
        self._due_ns = 0
        """When the next denial is due if they come evenly; a burst runs ahead of it."""

    def is_due(self) -> bool:
        """Return whether a denial is written now; false after many in a second."""
        return self._clock_ns() + _SECOND_NS > self._due_ns

    def write(self, denial: Denial) -> None:
        """Write a denial in place of the oldest one; long texts are cut."""
        self._due_ns = max(self._due_ns, self._clock_ns()) + _GAP_NS
        try:
            data = _ENCODER.encode(denial)
        except UnicodeEncodeError:
            # JSON may contain half of a surrogate pair.
            denial = msgspec.structs.replace(
                denial,
                **{
                    name: text.encode(errors="replace").decode()
                    for name, text in _texts(denial).items()
                },
            )
            data = _ENCODER.encode(denial)
        if len(data) > _JSON_BYTES_MAX:
            data = _ENCODER.encode(_cut(denial))
        at = self._next * DENIAL_BYTES_MAX
        header = _HEADER.pack(len(data), zlib.crc32(data))
        self._map[at : at + _HEADER.size + len(data)] = header + data
        self._next = (self._next + 1) % DENIALS_KEPT


def _texts(denial: Denial) -> dict[str, str]:
    values = msgspec.structs.asdict(denial)
    return {name: value for name, value in values.items() if isinstance(value, str)}


def _cut(denial: Denial) -> Denial:
    """Cut each text so that a slot holds it: a character is at most six bytes."""
    texts = _texts(denial)
    most = (_JSON_BYTES_MAX - _OTHER_BYTES) // len(texts) // 6
    cut = {name: value[:most] for name, value in texts.items() if name != "message"}
    used = sum(len(_ENCODER.encode(value)) for value in cut.values())
    room = _JSON_BYTES_MAX - _OTHER_BYTES - used
    message = denial.message[:room]
    while len(_ENCODER.encode(message)) > room:
        message = message[: len(message) // 2]
    return msgspec.structs.replace(denial, **cut, message=message)


def last_denials(directory: Path) -> list[Denial]:
    """Return the denials in all files of a folder, the newest first."""
    denials: list[Denial] = []
    for path in directory.glob(f"*{_SUFFIX}"):
        try:
            data = path.read_bytes()
        except OSError:
            continue
        denials.extend(denial for denial in _slots(data) if denial is not None)
    return sorted(denials, key=lambda denial: denial.time_s, reverse=True)


def _slots(data: bytes | mmap.mmap) -> Iterator[Denial | None]:
    """Yield the content of each slot, None for one without a whole denial."""
    for at in range(0, len(data) - DENIAL_BYTES_MAX + 1, DENIAL_BYTES_MAX):
        length, checksum = _HEADER.unpack_from(data, at)
        start = at + _HEADER.size
        content = data[start : start + length] if length <= _JSON_BYTES_MAX else b""
        if not content or zlib.crc32(content) != checksum:
            yield None
            continue
        try:
            yield _DECODER.decode(content)
        except UNDECODABLE:
            yield None
