"""Create Sigstore bundles and the trusted root that verifies them.

Gives: ``bundle`` (a dictionary), ``material``. Built on tests/images/rig.py. May touch:
nothing.
"""

import base64
import datetime as dt
import hashlib
import json
from typing import Any, Final

from tests.image_rig import IN_TOTO
from tests.images import rig

V3: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
OLD: Final = "application/vnd.dev.sigstore.bundle+json;version="
AT: Final = rig.SIGNED + dt.timedelta(minutes=5)
VALID: Final = {"start": "2020-01-01T00:00:00Z"}


def _log_id(own: rig.Sigstore) -> bytes:
    return hashlib.sha256(rig.spki(own.rekor)).digest()


def trusted_root(own: rig.Sigstore, **period: dict[str, str]) -> dict[str, Any]:
    """Return the document; ``period``: the validity of log, ca or tsa."""

    def chain(*issued: rig.Issued) -> dict[str, Any]:
        listed = [{"rawBytes": rig.b64(rig.der(one.certificate))} for one in issued]
        return {"certificates": listed}

    return {
        "tlogs": [
            {
                "logId": {"keyId": rig.b64(_log_id(own))},
                "publicKey": {
                    "rawBytes": rig.b64(rig.spki(own.rekor)),
                    "validFor": period.get("log", VALID),
                },
            }
        ],
        "certificateAuthorities": [
            {
                "certChain": chain(own.middle, own.root),
                "validFor": period.get("ca", VALID),
            }
        ],
        "timestampAuthorities": [
            {
                "certChain": chain(own.tsa, own.tsa_root),
                "validFor": period.get("tsa", VALID),
            }
        ],
    }


def entry(
    own: rig.Sigstore, body: bytes, at: dt.datetime = AT, *, others: int = 2
) -> dict[str, Any]:
    """Return an entry of a log with several entries, with promise and proof."""
    found = next(iter(own.found(body, at, others).values()))
    verification = found["verification"]
    proof = verification["inclusionProof"]
    root = bytes.fromhex(proof["rootHash"])
    text = f"rekor.example - 1\n{proof['treeSize']}\n{rig.b64(root)}\n"
    signed = _log_id(own)[:4] + rig.sign(own.rekor, text.encode())
    return {
        "logIndex": str(found["logIndex"]),
        "logId": {"keyId": rig.b64(_log_id(own))},
        "integratedTime": str(found["integratedTime"]),
        "canonicalizedBody": found["body"],
        "inclusionPromise": {
            "signedEntryTimestamp": verification["signedEntryTimestamp"]
        },
        "inclusionProof": {
            "logIndex": "0",
            "treeSize": str(proof["treeSize"]),
            "rootHash": rig.b64(root),
            "hashes": [rig.b64(bytes.fromhex(one)) for one in proof["hashes"]],
            "checkpoint": {
                "envelope": f"{text}\n\u2014 rekor.example {rig.b64(signed)}\n"
            },
        },
    }


def bundle(
    own: rig.Sigstore,
    signer: rig.Issued | None = None,
    *,
    at: dt.datetime = AT,
    **statement: Any,
) -> dict[str, Any]:
    """Return a bundle with a statement about ``rig.DIGEST``."""
    signer = signer or own.leaf()
    made = rig.envelope_of({**rig.STATEMENT, **statement}, signer.key)
    body = rig.entry_of("dsse", made, rig.pem(signer.certificate))
    envelope = json.loads(made)
    assert envelope["payloadType"] == IN_TOTO
    return {
        "mediaType": V3,
        "verificationMaterial": {
            "certificate": {"rawBytes": rig.b64(rig.der(signer.certificate))},
            "tlogEntries": [entry(own, body, at)],
        },
        "dsseEnvelope": envelope,
    }


def message(own: rig.Sigstore, content: bytes) -> dict[str, Any]:
    """Return a bundle with a signature of content."""
    signer = own.leaf()
    signature = rig.sign(signer.key, content)
    body = rig.hashedrekord(content, signature, rig.pem(signer.certificate))
    made = bundle(own, signer)
    del made["dsseEnvelope"]
    digest = rig.b64(hashlib.sha256(content).digest())
    made["messageSignature"] = {
        "messageDigest": {"algorithm": "SHA2_256", "digest": digest},
        "signature": rig.b64(signature),
    }
    made["verificationMaterial"]["tlogEntries"] = [entry(own, body)]
    return made


def stamped(own: rig.Sigstore, made: dict[str, Any], at: dt.datetime) -> dict[str, Any]:
    """Add a timestamp of the signature."""
    signature = base64.b64decode(made["dsseEnvelope"]["signatures"][0]["sig"])
    stamp = rig.b64(own.timestamp(signature, at))
    listed = {"rfc3161Timestamps": [{"signedTimestamp": stamp}]}
    made["verificationMaterial"]["timestampVerificationData"] = listed
    return made
