"""The library ``sigstore`` and this program agree about bundles and keyless signatures.

The library is the oracle: what it rejects, this program rejects, and both accept what
is good. Where one is stricter by intent, the case says so. A failure means: an image
counts as signed that Sigstore's own client rejects.

The library does not cover static keys, signatures under tags by themselves, log entries
without a proof, and chains that need Go's leniency.
"""

import base64
import datetime as dt
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.bundles.bundle import parse
from kyverno_mp.images.bundles.material import parse_material
from kyverno_mp.images.bundles.verify import Demands, check_bundle
from kyverno_mp.images.cosign import verified_payloads
from kyverno_mp.images.keys import Unproved
from kyverno_mp.images.sigstore.identity import require_identity
from kyverno_mp.images.sigstore.proof import Layer, Terms
from kyverno_mp.program.ports import Identity
from tests.image_rig import digest_of, payload_for
from tests.images import bundle_rig, oracle_rig, rig

_MUTATIONS: Final = 200
OWN: Final = oracle_rig.ProfiledSigstore()
OTHER: Final = oracle_rig.ProfiledSigstore()
ROOT: Final = oracle_rig.trusted_root(OWN)
GOOD: Final = oracle_rig.bundle(OWN)
SIGNED: Final = oracle_rig.message(OWN)
LATE: Final = rig.SIGNED + dt.timedelta(minutes=11)
EARLY: Final = rig.SIGNED - dt.timedelta(minutes=1)
ENDED: Final = {"start": "2020-01-01T00:00:00Z", "end": "2021-01-01T00:00:00Z"}


def ours(
    document: dict[str, Any],
    made: bytes,
    subject: str = rig.SUBJECT,
    issuer: str = rig.ISSUER,
    digest: str = rig.DIGEST,
) -> str:
    """Return why this program rejects a bundle, "" if it accepts it."""
    who = Identity(subject=subject, issuer=issuer)
    demands = Demands(digest, who, needs_log=True, needs_scts=True)
    material = parse_material(json.dumps(document).encode())
    try:
        check_bundle(parse(made), material, demands)
    except Unproved as error:
        return str(error) or "?"
    return ""


class Case(NamedTuple):
    """A bundle, and which of the two accept it."""

    made: dict[str, Any]
    library: bool = False
    program: bool = False
    document: dict[str, Any] = ROOT
    asked: Mapping[str, str] = MappingProxyType({})


def entry(made: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = made["verificationMaterial"]["tlogEntries"][0]
    return found


def by(**given: Any) -> dict[str, Any]:
    return oracle_rig.bundle(OWN, OWN.leaf(**given))


def edited(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    made = oracle_rig.changed(GOOD)
    change(made)
    return made


def foreign_log() -> rig.Sigstore:
    """Return the same authority with other logs."""
    found = oracle_rig.ProfiledSigstore()
    found.root, found.middle, found.ctlog = OWN.root, OWN.middle, OWN.ctlog
    return found


def other_ctlog() -> dict[str, Any]:
    found = oracle_rig.ProfiledSigstore()
    found.root, found.middle, found.rekor = OWN.root, OWN.middle, OWN.rekor
    return oracle_rig.bundle(found, found.leaf())


def stamped(at: dt.datetime, made: dict[str, Any] | None = None) -> dict[str, Any]:
    return bundle_rig.stamped(OWN, made or oracle_rig.bundle(OWN), at)


def damaged() -> dict[str, Any]:
    made = stamped(bundle_rig.AT)
    listed = made["verificationMaterial"]["timestampVerificationData"]
    listed["rfc3161Timestamps"] = [{"signedTimestamp": rig.b64(b"no timestamp")}]
    return made


def older(version: str) -> dict[str, Any]:
    made = oracle_rig.changed(GOOD)
    made["mediaType"] = bundle_rig.OLD + version
    material = made["verificationMaterial"]
    chain = {"certificates": [material.pop("certificate")]}
    material["x509CertificateChain"] = chain
    return made


def twice_signed() -> dict[str, Any]:
    made = oracle_rig.changed(GOOD)
    made["dsseEnvelope"]["signatures"] *= 2
    return made


def with_entry_of(other: dict[str, Any]) -> dict[str, Any]:
    made = oracle_rig.changed(GOOD)
    made["verificationMaterial"]["tlogEntries"] = [entry(other)]
    return made


def with_certificate(signer: rig.Issued) -> dict[str, Any]:
    made = oracle_rig.changed(GOOD)
    raw = rig.b64(rig.der(signer.certificate))
    made["verificationMaterial"]["certificate"] = {"rawBytes": raw}
    return made


def with_checkpoint_of(other: dict[str, Any]) -> dict[str, Any]:
    made = oracle_rig.changed(GOOD)
    theirs = entry(other)["inclusionProof"]["checkpoint"]
    entry(made)["inclusionProof"]["checkpoint"] = theirs
    return made


SERVER: Final = rig.usage(ExtendedKeyUsageOID.SERVER_AUTH)
URI: Final = x509.UniformResourceIdentifier("https://ci.example/a")
BOTH: Final = rig.names(x509.RFC822Name(rig.SUBJECT), URI)
CASES: Final[dict[str, Case]] = {
    "statement": Case(GOOD, True, True),
    "message": Case(SIGNED, True, True),
    "version 0.2": Case(older("0.2"), True, True),
    "version 0.1 with a proof": Case(older("0.1"), True, True),
    "timestamp": Case(stamped(bundle_rig.AT), True, True),
    # As sigstore-go: a timestamp that proves nothing is left out, the log has a time.
    "a damaged timestamp": Case(damaged(), False, True),
    # Identities.
    "another subject": Case(GOOD, asked={"subject": "you@example.com"}),
    "a wildcard": Case(GOOD, asked={"subject": "*@example.com"}),
    "another issuer": Case(GOOD, asked={"issuer": "https://other"}),
    "a beginning of the issuer": Case(GOOD, asked={"issuer": "https://issuer"}),
    "a URI": Case(
        by(san=rig.names(URI)), True, True, asked={"subject": "https://ci.example/a"}
    ),
    # KYVERNO: the first URI is the one name that counts.
    "a URI and a mail address": Case(by(san=BOTH), True, False),
    "a DNS name": Case(by(san=rig.names(x509.DNSName(rig.SUBJECT)))),
    # Images.
    "another image": Case(GOOD, asked={"digest": f"sha256:{'0' * 64}"}),
    "a message about another image": Case(SIGNED, asked={"digest": f"sha256:{1:064}"}),
    # Authorities and certificates.
    "another authority": Case(oracle_rig.bundle(OTHER)),
    "another authority, our logs": Case(by(by=OTHER.middle)),
    "an authority of the same name": Case(
        by(by=oracle_rig.authority("middle", OWN.root, path_length=0)),
    ),
    "below a leaf": Case(by(by=OWN.leaf())),
    "a usage of servers": Case(
        oracle_rig.bundle(
            OWN,
            rig.issue(
                "",
                OWN.middle,
                is_authority=False,
                extensions=[SERVER, rig.names(), rig.extension(1, rig.ISSUER)],
                begin=rig.SIGNED,
                end=rig.SIGNED + dt.timedelta(minutes=10),
            ),
        )
    ),
    "an authority that is not trusted now": Case(
        GOOD, True, False, oracle_rig.trusted_root(OWN, ca=ENDED)
    ),
    "another certificate": Case(with_certificate(OWN.leaf())),
    # Timestamps of certificate logs.
    "no SCT": Case(by(scts=0)),
    "an SCT of another log": Case(other_ctlog()),
    "an SCT of no certificate": Case(
        by(change=lambda listed: listed[:-1] + bytes([listed[-1] ^ 1]))
    ),
    # The library wants exactly one; here each must hold.
    "two SCTs": Case(by(scts=2), False, True),
    # Times.
    "signed too late": Case(oracle_rig.bundle(OWN, at=LATE)),
    "signed too early": Case(oracle_rig.bundle(OWN, at=EARLY)),
    "a late timestamp": Case(stamped(LATE)),
    "an early timestamp": Case(stamped(EARLY)),
    "a time that the log did not sign": Case(
        edited(lambda m: entry(m).update(integratedTime="1"))
    ),
    "no promise and no timestamp": Case(
        edited(lambda m: entry(m).pop("inclusionPromise"))
    ),
    # The log.
    "another log": Case(oracle_rig.bundle(foreign_log())),
    "the entry of another statement": Case(
        with_entry_of(oracle_rig.bundle(OWN, predicate={"x": 1}))
    ),
    "the entry of a message": Case(with_entry_of(SIGNED)),
    "a checkpoint of another log": Case(
        with_checkpoint_of(oracle_rig.bundle(foreign_log()))
    ),
    "a checkpoint of another tree": Case(
        with_checkpoint_of(oracle_rig.bundle(OWN, predicate={"x": 2}))
    ),
    "no proof": Case(edited(lambda m: entry(m).pop("inclusionProof"))),
    "no checkpoint": Case(
        edited(lambda m: entry(m)["inclusionProof"].pop("checkpoint"))
    ),
    "a short proof": Case(edited(lambda m: entry(m)["inclusionProof"]["hashes"].pop())),
    "a long proof": Case(
        edited(
            lambda m: entry(m)["inclusionProof"]["hashes"].append(rig.b64(b"x" * 32))
        )
    ),
    "another place in the log": Case(
        edited(lambda m: entry(m)["inclusionProof"].update(logIndex="1"))
    ),
    "another number": Case(edited(lambda m: entry(m).update(logIndex="8"))),
    "no entry": Case(
        edited(lambda m: m["verificationMaterial"].update(tlogEntries=[]))
    ),
    "an entry twice": Case(
        edited(lambda m: m["verificationMaterial"]["tlogEntries"].append(entry(m)))
    ),
    # SAFETY: the library uses keys of logs also before and after their time.
    "a log that is not trusted now": Case(
        GOOD, True, False, oracle_rig.trusted_root(OWN, log=ENDED)
    ),
    # Envelopes.
    "two signatures": Case(twice_signed()),
    "no signature": Case(edited(lambda m: m["dsseEnvelope"].update(signatures=[]))),
    "another payload": Case(
        edited(lambda m: m["dsseEnvelope"].update(payload=rig.b64(b'{"a": 1}')))
    ),
    "another type of payload": Case(
        edited(lambda m: m["dsseEnvelope"].update(payloadType="text/plain"))
    ),
    "no certificate": Case(
        edited(lambda m: m["verificationMaterial"].pop("certificate"))
    ),
    "a version that nobody knows": Case(
        edited(lambda m: m.update(mediaType=bundle_rig.OLD + "0.9"))
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    case = CASES[name]
    made = json.dumps(case.made).encode()
    library = oracle_rig.refused(case.document, made, **case.asked)
    program = ours(case.document, made, **case.asked)
    assert (not library, not program) == (case.library, case.program), (
        library,
        program,
    )


def leaves(made: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each text in a document."""
    if isinstance(made, str):
        yield path
    pairs = made.items() if isinstance(made, dict) else enumerate(made)
    if not isinstance(made, str):
        for key, value in pairs:
            yield from leaves(value, (*path, key))


def mutants(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield copies in which one bit of one text is flipped.

    Unsigned texts are skipped: the version of the bundle, and the kind of an entry,
    which is also in its signed body.
    """
    unsigned = {"mediaType", "kindVersion"}
    places = [one for one in leaves(made) if not unsigned & set(one)]
    chooser = random.Random(json.dumps(sorted(map(str, places))))
    for _ in range(_MUTATIONS):
        place = chooser.choice(places)
        copied = oracle_rig.changed(made)
        holder = copied
        for key in place[:-1]:
            holder = holder[key]
        data = holder[place[-1]]
        try:
            raw = base64.b64decode(data, validate=True)
        except ValueError:
            at = chooser.randrange(len(data))
            flipped = chr(ord(data[at]) ^ (1 << chooser.randrange(5)))
            holder[place[-1]] = data[:at] + flipped + data[at + 1 :]
        else:
            at = chooser.randrange(len(raw))
            bit = bytes([raw[at] ^ (1 << chooser.randrange(8))])
            holder[place[-1]] = rig.b64(raw[:at] + bit + raw[at + 1 :])
        yield copied


@pytest.mark.parametrize(
    ("form", "made"),
    [
        ("statement", GOOD),
        ("message", SIGNED),
        ("0.2", older("0.2")),
    ],
)
def test_mutations_rejected_by_sigstore_are_rejected(
    form: str, made: dict[str, Any]
) -> None:
    """SAFETY: the library accepts each mutation that we accept."""
    refusals = 0
    for mutant in mutants(made):
        blob = json.dumps(mutant).encode()
        library = oracle_rig.refused(ROOT, blob)
        refusals += bool(library)
        if library:
            assert ours(ROOT, blob), (form, library, mutant)
    assert refusals > _MUTATIONS / 2


def parts_of_two(
    one: dict[str, Any], other: dict[str, Any]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield copies of a bundle in which one text is that of another one."""
    for place in leaves(one):
        mixed = oracle_rig.changed(one)
        holder, theirs = mixed, other
        try:
            for key in place[:-1]:
                holder, theirs = holder[key], theirs[key]
            theirs = theirs[place[-1]]
        except (KeyError, IndexError):
            continue
        if theirs != holder[place[-1]]:
            holder[place[-1]] = theirs
            yield place, mixed


@pytest.mark.parametrize("form", ["statement", "message"])
def test_mixed_parts_of_two_valid_bundles(form: str) -> None:
    """Each part is genuine, but not of this signature."""
    make = oracle_rig.bundle if form == "statement" else oracle_rig.message
    count = 0
    for place, mixed in parts_of_two(make(OWN), make(OWN)):
        blob = json.dumps(mixed).encode()
        library, program = oracle_rig.refused(ROOT, blob), ours(ROOT, blob)
        assert library, place
        assert program, place
        count += 1
    assert count >= 5


# Signatures as Cosign attaches them: the same signing, told to the library as a bundle.


PAYLOAD: Final = payload_for(rig.DIGEST)
_CERTIFICATE: Final = "dev.sigstore.cosign/certificate"
_BUNDLE: Final = "dev.sigstore.cosign/bundle"
_SIGNATURE: Final = "dev.cosignproject.cosign/signature"


class Signing(NamedTuple):
    """One keyless signature of a payload, in both forms."""

    layer: Layer
    made: dict[str, Any]


def signing(signer: rig.Issued, at: dt.datetime = bundle_rig.AT) -> Signing:
    layer = OWN.layer(signer, PAYLOAD, at=at)
    signature = base64.b64decode(str(layer.annotations[_SIGNATURE]))
    body = rig.hashedrekord(PAYLOAD, signature, rig.pem(signer.certificate))
    made = {
        "mediaType": bundle_rig.V3,
        "verificationMaterial": {
            "certificate": {"rawBytes": rig.b64(rig.der(signer.certificate))},
            "tlogEntries": [bundle_rig.entry(OWN, body, at)],
        },
        "messageSignature": {"signature": rig.b64(signature)},
    }
    return Signing(layer, oracle_rig.with_kinds(made))


def layer_refused(layer: Layer, subject: str = rig.SUBJECT) -> str:
    terms = Terms(
        now=rig.NOW,
        roots=(OWN.root.certificate,),
        log=OWN.rekor_keys,
        scts=OWN.ctlog_keys,
    )
    try:
        found = verified_payloads([layer], rig.DIGEST, terms)
        who = Identity(subject=subject, issuer=rig.ISSUER)
        require_identity([one.certificate for one in found], who)
    except ExpressionFailed as error:
        return error.message
    return ""


def library_refused(made: dict[str, Any], subject: str = rig.SUBJECT) -> str:
    blob = json.dumps(made).encode()
    digest = digest_of(PAYLOAD)
    return oracle_rig.refused(ROOT, blob, subject, digest=digest)


@pytest.mark.parametrize(
    ("name", "signer", "at", "holds"),
    [
        ("good", OWN.leaf(), bundle_rig.AT, True),
        ("late", OWN.leaf(), LATE, False),
        ("early", OWN.leaf(), EARLY, False),
        ("no SCT", OWN.leaf(scts=0), bundle_rig.AT, False),
        ("another authority", OWN.leaf(by=OTHER.middle), bundle_rig.AT, False),
        ("below a leaf", OWN.leaf(by=OWN.leaf()), bundle_rig.AT, False),
        (
            "an SCT of no certificate",
            OWN.leaf(change=lambda listed: listed[:-1] + bytes([listed[-1] ^ 1])),
            bundle_rig.AT,
            False,
        ),
        ("another issuer", OWN.leaf(rig.extension(1, "x")), bundle_rig.AT, False),
        ("another name", OWN.leaf(san=rig.names(URI)), bundle_rig.AT, False),
    ],
)
def test_keyless_signatures(
    name: str,
    signer: rig.Issued,
    at: dt.datetime,
    holds: bool,  # noqa: FBT001 - a column
) -> None:
    found = signing(signer, at)
    assert (not library_refused(found.made)) is holds, name
    assert (not layer_refused(found.layer)) is holds, name
    assert library_refused(found.made, "you@example.com")
    assert layer_refused(found.layer, "you@example.com")


_PARTS: Final = ("certificate", "signature", "promise", "body")


@pytest.mark.parametrize("part", _PARTS)
def test_mutations_of_keyless_signatures(part: str) -> None:
    """The same bit of the same part, in both forms."""
    found = signing(OWN.leaf())
    assert not library_refused(found.made)
    assert not layer_refused(found.layer)
    data = _part(found.made, part)
    chooser = random.Random(part)
    for _ in range(_MUTATIONS // 4):
        at = chooser.randrange(len(data))
        bit = bytes([data[at] ^ (1 << chooser.randrange(8))])
        other = data[:at] + bit + data[at + 1 :]
        made = _with_part(oracle_rig.changed(found.made), part, other)
        layer = _layer_with(found.layer, part, other)
        if library_refused(made):
            assert layer_refused(layer), (part, at, other)


def _holder(made: dict[str, Any], part: str) -> tuple[dict[str, Any], str]:
    material = made["verificationMaterial"]
    return {
        "certificate": (material["certificate"], "rawBytes"),
        "signature": (made["messageSignature"], "signature"),
        "promise": (
            material["tlogEntries"][0]["inclusionPromise"],
            "signedEntryTimestamp",
        ),
        "body": (material["tlogEntries"][0], "canonicalizedBody"),
    }[part]


def _part(made: dict[str, Any], part: str) -> bytes:
    holder, name = _holder(made, part)
    return base64.b64decode(holder[name])


def _with_part(made: dict[str, Any], part: str, data: bytes) -> dict[str, Any]:
    holder, name = _holder(made, part)
    holder[name] = rig.b64(data)
    return made


def _layer_with(layer: Layer, part: str, data: bytes) -> Layer:
    given = dict(layer.annotations)
    if part == "certificate":
        given[_CERTIFICATE] = rig.pem_of(data)
    elif part == "signature":
        given[_SIGNATURE] = rig.b64(data)
    else:
        held = json.loads(str(given[_BUNDLE]))
        if part == "promise":
            held["SignedEntryTimestamp"] = rig.b64(data)
        else:
            held["Payload"]["body"] = rig.b64(data)
        given[_BUNDLE] = json.dumps(held)
    return replace(layer, annotations=given)
