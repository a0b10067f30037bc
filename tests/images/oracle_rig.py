"""Make signatures that the library ``sigstore`` accepts, and verify with it.

Gives: ProfiledSigstore, ``trusted_root``, ``bundle``, ``message``, ``refused``. Built
on tests/images/bundle_rig.py. May touch: nothing.

The library follows the profile of the web for certificates (key identifiers, usages)
and wants the kind of a log entry beside its body, which the rig otherwise leaves out.
"""

import copy
import json
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from sigstore.errors import VerificationError
from sigstore.hashes import Hashed
from sigstore.models import Bundle, TrustedRoot
from sigstore.verify import Verifier
from sigstore.verify.policy import Identity
from sigstore_models.common.v1 import HashAlgorithm
from sigstore_models.trustroot import v1 as trustroot

from tests.image_rig import IN_TOTO
from tests.images import bundle_rig, rig

_DETAILS: Final = "PKIX_ECDSA_P256_SHA_256"
_ROOT_TYPE: Final = "application/vnd.dev.sigstore.trustedroot+json;version=0.1"
Extension = tuple[Any, bool]


def _usages(**given: bool) -> Extension:
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: given.get(name, False) for name in names}), True


def _issued_by(key: ec.EllipticCurvePrivateKey) -> Extension:
    public = key.public_key()
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(public), False


def authority(name: str, by: rig.Issued | None = None, **given: Any) -> rig.Issued:
    key = rig.new_key()
    extensions = [
        _usages(key_cert_sign=True, crl_sign=True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        *([_issued_by(by.key)] if by else []),
        *given.pop("extensions", []),
    ]
    return rig.issue(name, by, key=key, extensions=extensions, **given)


class ProfiledSigstore(rig.Sigstore):
    """A deployment whose certificates have all that the library asks for."""

    def __init__(self, **given: Any) -> None:
        super().__init__(root=authority("root"), **given)
        self.middle = authority(
            "middle", self.root, path_length=0, extensions=[rig.usage()]
        )

    def leaf(
        self,
        *extra: Extension,
        by: rig.Issued | None = None,
        signs: bool = True,
        **given: Any,
    ) -> rig.Issued:
        """Return a certificate; ``signs``: its key may sign."""
        by = by or self.middle
        usages = _usages(digital_signature=signs, key_agreement=not signs)
        named = extra or (rig.extension(1, rig.ISSUER),)
        return super().leaf(*named, usages, _issued_by(by.key), by=by, **given)


def trusted_root(own: rig.Sigstore, **period: dict[str, str]) -> dict[str, Any]:
    """Return the document that the library and the product read."""
    found = bundle_rig.trusted_root(own, **period)
    subject = {"organization": "o", "commonName": "c"}
    ctlog = {
        "logId": {"keyId": rig.b64(next(iter(own.ctlog_keys)))},
        "publicKey": {"rawBytes": rig.b64(rig.spki(own.ctlog))},
    }
    ctlog["publicKey"]["validFor"] = bundle_rig.VALID  # type: ignore[assignment]
    found["ctlogs"] = [ctlog]
    for one in (*found["tlogs"], *found["ctlogs"]):
        one |= {"baseUrl": "https://log.example", "hashAlgorithm": "SHA2_256"}
        one["publicKey"]["keyDetails"] = _DETAILS
    for one in (*found["certificateAuthorities"], *found["timestampAuthorities"]):
        one |= {"uri": "https://ca.example", "subject": subject}
    return {"mediaType": _ROOT_TYPE, **found}


def bundle(own: rig.Sigstore, *given: Any, **changes: Any) -> dict[str, Any]:
    """Return a bundle with a statement."""
    return with_kinds(bundle_rig.bundle(own, *given, **changes))


def message(own: rig.Sigstore, content: bytes = b"image") -> dict[str, Any]:
    """Return a bundle with a signature of content."""
    return with_kinds(bundle_rig.message(own, content))


def with_kinds(made: dict[str, Any]) -> dict[str, Any]:
    """Add the kind of each log entry."""
    kind = "dsse" if "dsseEnvelope" in made else "hashedrekord"
    for one in made["verificationMaterial"]["tlogEntries"]:
        one["kindVersion"] = {"kind": kind, "version": "0.0.1"}
    return made


def refused(
    document: dict[str, Any],
    made: bytes,
    subject: str = rig.SUBJECT,
    issuer: str = rig.ISSUER,
    digest: str = rig.DIGEST,
) -> str:
    """Return why the library rejects a bundle, "" if it accepts it."""
    root = TrustedRoot(trustroot.TrustedRoot.from_json(json.dumps(document)))
    policy = Identity(identity=subject, issuer=issuer)
    try:
        found = Bundle.from_json(made)
        verifier = Verifier(trusted_root=root)
        if found._dsse_envelope is not None:
            kind, payload = verifier.verify_dsse(found, policy)
            _check_statement(kind, payload, digest)
        else:
            hashed = Hashed(
                algorithm=HashAlgorithm.SHA2_256, digest=bytes.fromhex(digest[7:])
            )
            verifier.verify_artifact(hashed, found, policy)
    except Exception as error:  # noqa: BLE001 - a wrong bundle makes it raise many kinds
        return f"{type(error).__name__}: {error}"
    return ""


def _check_statement(kind: str, payload: bytes, digest: str) -> None:
    """Require that the statement is about the image; the library leaves that to us."""
    subjects = json.loads(payload).get("subject") if kind == IN_TOTO else None
    if not any(one["digest"].get("sha256") == digest[7:] for one in subjects or ()):
        raise VerificationError("the statement is about something else")


def changed(made: dict[str, Any]) -> dict[str, Any]:
    """Return a copy to change."""
    return copy.deepcopy(made)
