"""Report which policies are in force, which were rejected and why.

Room: leader. Takes: outcomes of leader/loop.py. Gives: Status in ``status.json``, read
by the health process for GET /policies and metrics. May touch: that file.
Source: docs/behaviour/controllers 3.8 (ready, rulecount), 9.2 (rule info).
"""

from pathlib import Path
from typing import Final

import msgspec

from kyverno_mp.snapshot.room import replace_record
from kyverno_mp.values.records import UNDECODABLE

OVER_SHARE: Final = "leader.policies_share"
"""Code of a policy whose matches are errors, because the namespaced policies of the
cluster, or those of its namespace, take more than their share of this pod."""
OVER_SOURCES: Final = "leader.sources_share"
"""Code of a policy whose matches are errors, because the leader does not keep its
document: the namespaces' documents take more than their share of this pod."""
UNPUBLISHED: Final = "leader.unpublished"
"""Code of a policy whose newest version is not in force, because its segment could not
be written."""
UNLINKED: Final = "leader.linked_memory"
"""Code of a policy whose matches are errors, because it would take too much memory when
linked (leader/documents/linked_memory.py)."""


class RuleStatus(msgspec.Struct, frozen=True, array_like=True):
    """One rule in force, after autogen."""

    name: str
    rule_type: str


class PolicyStatus(msgspec.Struct, frozen=True):
    """One policy. ``rule_count`` counts rules as written, without generated ones.

    A policy that is not in force as written has ``ready`` False; ``message`` states the
    reason and names an earlier version or the rules that are in force, if any.
    """

    kind: str
    namespace: str
    name: str
    ready: bool
    message: str
    rule_count: int
    mode: str = "audit"
    background: bool = True
    rules: tuple[RuleStatus, ...] = ()
    generation: int = 0
    """The generation of the reported document; 0 for documents without one."""
    code: str = ""
    """Stable error code if the policy is not ready, otherwise ""."""
    file: str = ""
    """The file and line of the reported document; "" in a cluster."""
    in_force: str = ""
    """The earlier version, as JSON, that is in force in place of a rejected one."""
    large_exceptions: int = 0
    """Number of PolicyExceptions that have no effect because of their memory."""


class Status(msgspec.Struct, frozen=True):
    """The leader's last publication. ``published_ns`` is monotonic time."""

    generation: int = 0
    published_ns: int = 0
    snapshot_bytes: int = 0
    policies: tuple[PolicyStatus, ...] = ()
    problems: tuple[str, ...] = ()
    """Files that could not be read or contain something other than policies."""
    unread: tuple[str, ...] = ()
    """The reasons why a file or folder is not used."""


NOTHING = Status()
_NAME = "status.json"
_SOME: Final = "{}"
"""Stands for an earlier version in the file."""
_DECODER = msgspec.json.Decoder(Status)


def write_status(directory: Path, status: Status) -> bool:
    """Replace the record; return False if it stays, because the folder is full.

    Other processes read only whether an earlier version is in force. Its document would
    let a tenant fill the folder with rejected versions of large policies.
    """
    policies = tuple(
        msgspec.structs.replace(policy, in_force=_SOME) if policy.in_force else policy
        for policy in status.policies
    )
    written = msgspec.structs.replace(status, policies=policies)
    return replace_record(directory / _NAME, msgspec.json.encode(written))


class StatusReader:
    """The record as read by the health process, decoded only after a change."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _NAME
        self._seen: tuple[int, int] = (0, 0)
        self._status = NOTHING
        self._is_told = False

    def tell(self, status: Status) -> None:
        """Take the status from the leader of this process, instead of its file.

        It is complete and always current; the file may be old if the folder is full.
        """
        self._status, self._is_told = status, True

    def read(self) -> Status:
        """Return the last status, NOTHING before the first."""
        if self._is_told:
            return self._status
        try:
            facts = self._path.stat()
            version = (facts.st_mtime_ns, facts.st_ino)
            if version != self._seen:
                self._status = _DECODER.decode(self._path.read_bytes())
                self._seen = version
        except (OSError, *UNDECODABLE):
            return self._status
        return self._status
