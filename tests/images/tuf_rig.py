"""A test TUF repository: file contents by path."""

import datetime as dt
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import (
    Key,
    Metadata,
    MetaFile,
    Role,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)

_ROLES = ("root", "timestamp", "snapshot", "targets")
_END = dt.datetime(2099, 1, 1, tzinfo=dt.UTC)


def new_signer() -> CryptoSigner:
    signer: CryptoSigner = CryptoSigner.generate_ecdsa()
    return signer


@dataclass
class TufRepository:
    """``files``: contents by name; ``usages``: the usage of each name."""

    files: Mapping[str, bytes]
    usages: Mapping[str, str]
    end: dt.datetime = _END
    signer: CryptoSigner = field(default_factory=new_signer)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.served: dict[str, bytes] = {}
        self.root = self._root(1, [self.signer])
        self.served["1.root.json"] = self.root
        targets: dict[str, TargetFile] = {}
        for name, data in self.files.items():
            info = TargetFile.from_data(name, data, ["sha256"])
            if name in self.usages:
                usage = {"usage": self.usages[name], "status": "Active"}
                info.unrecognized_fields["custom"] = {"sigstore": usage}
            targets[name] = info
            self.served[f"targets/{hashlib.sha256(data).hexdigest()}.{name}"] = data
        self._add(
            "1.targets.json", Metadata(Targets(1, expires=self.end, targets=targets))
        )
        meta = {"targets.json": MetaFile(1)}
        self._add("1.snapshot.json", Metadata(Snapshot(1, expires=self.end, meta=meta)))
        self._add(
            "timestamp.json",
            Metadata(Timestamp(1, expires=self.end, snapshot_meta=MetaFile(1))),
        )

    def rotate(self) -> None:
        """Replace the root's key; the other roles keep theirs."""
        self.served["2.root.json"] = self._root(2, [self.signer, new_signer()])

    def _root(self, version: int, signers: list[CryptoSigner]) -> bytes:
        roles = {
            role: Role([signers[-1 if role == "root" else 0].public_key.keyid], 1)
            for role in _ROLES
        }
        keys: dict[str, Key] = {one.public_key.keyid: one.public_key for one in signers}
        made = Metadata(Root(version, expires=self.end, keys=keys, roles=roles))
        for one in signers:
            made.sign(one, append=True)
        return made.to_bytes()

    def _add(self, name: str, made: Metadata) -> None:  # type: ignore[type-arg]
        made.sign(self.signer)
        self.served[name] = made.to_bytes()

    def fetch(self, url: str, _deadline_ns: int) -> tuple[int, bytes]:
        """Answer like a mirror."""
        path = url.partition("/tuf/")[2]
        self.asked.append(path)
        found = self.served.get(path)
        return (404, b"") if found is None else (200, found)
