"""Cache costly compilation results for the pod's next leader.

Room: leader. Takes: outcomes of policy_store.py by the digest of all inputs. Gives:
CompileCache; read_compile_cache and write_compile_cache, for a file of the snapshot
directory. Next: leader/policy_store.py, leader/loop.py. May touch: that file.
Source: docs/architecture.md 3 (a damaged or foreign file is rejected; no pickle).

A policy that was rejected for its cost is cached as well, so that its compilation is
not repeated at every restart.
"""

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from kyverno_mp import __version__
from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.ir.index import EncodedPolicy
from kyverno_mp.ir.rules import LAYOUT_VERSION
from kyverno_mp.leader.status import PolicyStatus
from kyverno_mp.limits import COMPILED_KEPT_BYTES_MAX, COMPILED_KEPT_STEPS_MIN
from kyverno_mp.snapshot.encode import encode_segment
from kyverno_mp.snapshot.layout import SALT_BYTES
from kyverno_mp.snapshot.publish import segment_file
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.snapshot.write import write_file
from kyverno_mp.values.records import UNDECODABLE

_log = logging.getLogger(__name__)
_NAME: Final = "compiled"
_VERSION: Final = b"version"
"""Key of the record with the program's version, because versions compile differently.
"""
_PROGRAM: Final = f"{__version__}, layout {LAYOUT_VERSION}".encode()


class CompileOutcome(msgspec.Struct, frozen=True):
    """The result of one compilation; without ``status``, the policy was rejected."""

    status: PolicyStatus | None = None
    encoded: EncodedPolicy | None = None
    code: str = ""
    message: str = ""


class Compiled(msgspec.Struct, frozen=True, array_like=True):
    """An encoded CompileOutcome with the digest of its inputs and its cost."""

    identity: bytes
    content: bytes
    steps: int
    is_rejected: bool = False


_DECODER: Final = msgspec.msgpack.Decoder(CompileOutcome)


class CompileCache:
    """Outcomes by digest: the previous leader's, and those used since."""

    def __init__(
        self,
        before: Mapping[bytes, bytes] | None = None,
        bytes_max: int = COMPILED_KEPT_BYTES_MAX,
    ) -> None:
        self._bytes_max = bytes_max
        self._before = dict(before or {})
        self._used: dict[bytes, bytes] = {}
        self._bytes = 0
        self._lent: dict[bytes, Compiled] = {}

    def lend(self, outcomes: Iterable[Compiled]) -> None:
        """Add outcomes for one use each; the costly ones are kept when used."""
        self._lent |= {each.identity: each for each in outcomes}

    def end_loan(self) -> None:
        """Forget the outcomes that nobody used."""
        self._lent.clear()

    def take(self, identity: bytes, generation: int) -> CompileOutcome | None:
        """Return the earlier outcome of the same inputs, None if none is cached.

        ``generation`` is the current document's; the same text can occur again.
        """
        content = self._used.get(identity) or self._before.get(identity)
        lent = None if content else self._lent.pop(identity, None)
        if lent is not None:
            content = lent.content
        if content is None:
            return None
        try:
            outcome = _DECODER.decode(content)
        except UNDECODABLE:
            return None
        if lent is None or lent.steps >= COMPILED_KEPT_STEPS_MIN:
            self._use(identity, content)
        if outcome.status is None or outcome.status.generation == generation:
            return outcome
        status = msgspec.structs.replace(outcome.status, generation=generation)
        return msgspec.structs.replace(outcome, status=status)

    def keep(self, identity: bytes, outcome: CompileOutcome, steps: int) -> None:
        """Cache an outcome if it took many steps."""
        if steps >= COMPILED_KEPT_STEPS_MIN:
            self._use(identity, msgspec.msgpack.encode(outcome))

    def used(self) -> dict[bytes, bytes]:
        """Return the outcomes that were used or added."""
        return self._used

    def _use(self, identity: bytes, content: bytes) -> None:
        if identity in self._used or len(content) > self._bytes_max:
            return
        self._bytes += len(content)
        # Drop the oldest: policies that change constantly leave many outcomes.
        while self._bytes > self._bytes_max and self._used:
            oldest = next(iter(self._used))
            self._bytes -= len(self._used.pop(oldest))
        self._used[identity] = content


def read_compile_cache(
    directory: Path, bytes_max: int = COMPILED_KEPT_BYTES_MAX
) -> CompileCache:
    """Read the previous leader's cache; it is empty after a version change."""
    path = directory / segment_file(_NAME)
    empty = CompileCache(bytes_max=bytes_max)
    if not path.exists():
        return empty
    try:
        segment = Segment.attach(path, _NAME)
        if bytes(segment.get(_VERSION) or b"") != _PROGRAM:
            return empty
        compiled = {key: bytes(segment.get(key) or b"") for key in segment.list_keys()}
    except SnapshotUnusable as error:
        _log.info("no compiled policies to reuse: %s", error.message)
        return empty
    del compiled[_VERSION]
    return CompileCache(compiled, bytes_max)


def write_compile_cache(directory: Path, outcomes: Mapping[bytes, bytes]) -> bool:
    """Replace the file; False is a failure, which only costs the next leader time."""
    records = {**outcomes, _VERSION: _PROGRAM}
    try:
        content = encode_segment(
            _NAME, records, generation=1, salt=os.urandom(SALT_BYTES)
        )
        write_file(directory, segment_file(_NAME), content)
    except SnapshotUnusable as error:
        _log.warning("compiled policies not saved: %s", error.message)
        return False
    return True
