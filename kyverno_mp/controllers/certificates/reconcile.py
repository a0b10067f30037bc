"""Reconcile the two Secrets with our authority and our server's certificate.

Room: controllers. Takes: Objects guarded by the lease, CertificateRules, the time.
Gives: CertificateSecrets: the bundle for webhooks, the pair to serve with, problems.
Next: leader/cluster.py. May touch: the API server through kube/apply.py.
Source: docs/behaviour/controllers 4 (RenewCA then RenewTLS; on change and every 12 h).
"""

import base64
import logging
from dataclasses import dataclass, field, replace
from datetime import datetime

from kyverno_mp.controllers.certificates.make import (
    certificate_pem,
    key_pem,
    make_ca,
    make_key,
    make_server,
)
from kyverno_mp.controllers.certificates.plan import (
    PrivateKey,
    Stored,
    plan_ca,
    plan_tls,
    read_secret,
)
from kyverno_mp.controllers.certificates.rules import (
    CERTIFICATE,
    KEY,
    MANAGED_BY,
    MANAGER,
    SECRET_TYPE,
    CertificateRules,
)
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import core
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
SECRETS = core("secrets")


@dataclass(frozen=True, slots=True)
class CertificateSecrets:
    """The content of the Secrets; only the operator can fix the ``problems``."""

    ca_bundle: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    problems: tuple[str, ...] = ()


def reconcile(
    objects: Objects, rules: CertificateRules, now: datetime
) -> CertificateSecrets:
    """Renew certificates that are due; return the content of the Secrets.

    Raises: DependencyError, LeaseLost; KubeConflict if another replica wrote first;
    then call again.
    """
    if rules.is_external:
        return _awaited(read(objects, rules), rules)
    ca = _find(objects, rules, rules.ca_name)
    ca_plan = plan_ca(ca, now, rules)
    if ca_plan.make:
        key = ca.key or make_key(rules.algorithm)
        bundle = (*ca_plan.remaining, make_ca(key, now, rules))
        ca = _write(objects, rules, rules.ca_name, ca, key, certificate_pem(*bundle))
        _log.info(
            "issued a new certificate authority, stored in Secret %s", rules.ca_name
        )
    pair = _find(objects, rules, rules.tls_name)
    tls_plan = plan_tls(pair, ca.certificates, now, rules)
    problems = [one for one in (ca_plan.problem, tls_plan.problem) if one]
    if tls_plan.make and ca.key is None:
        problems.append(f"Secret {rules.ca_name} has no key to sign with")
    elif tls_plan.make and ca.certificates:
        key = make_key(rules.algorithm)
        leaf = make_server(key, ca.certificates[-1], ca.key, now, rules)  # type: ignore[arg-type] # the branch above took None
        pair = _write(objects, rules, rules.tls_name, pair, key, certificate_pem(leaf))
        _log.info("issued a new certificate, stored in Secret %s", rules.tls_name)
    return CertificateSecrets(ca.pem, pair.pem, _key_bytes(pair), tuple(problems))


def read(objects: Objects, rules: CertificateRules) -> CertificateSecrets:
    """Return the content of the Secrets without checks, as every replica does."""
    ca = _find(objects, rules, rules.ca_name)
    pair = _find(objects, rules, rules.tls_name)
    return CertificateSecrets(ca.pem, pair.pem, _key_bytes(pair))


def _awaited(
    certificate_secrets: CertificateSecrets, rules: CertificateRules
) -> CertificateSecrets:
    """Name the Secrets that another program has not written yet, or not completely."""
    lacking = {
        rules.ca_name: not certificate_secrets.ca_bundle,
        rules.tls_name: not (
            certificate_secrets.certificate and certificate_secrets.key
        ),
    }
    problems = [
        f"waiting for Secret {name}, which another program writes"
        f" ({CERTIFICATE}{'' if name == rules.ca_name else f', {KEY}'})"
        for name, is_lacking in lacking.items()
        if is_lacking
    ]
    return replace(certificate_secrets, problems=tuple(problems))


def _find(objects: Objects, rules: CertificateRules, name: str) -> Stored:
    return read_secret(objects.find(SECRETS, (rules.namespace, name)))


def _write(
    objects: Objects,
    rules: CertificateRules,
    name: str,
    stored: Stored,
    key: PrivateKey,
    pem: bytes,
) -> Stored:
    """Write a Secret at the version that was read; delete one of another type first."""
    metadata: Json = {
        "name": name,
        "namespace": rules.namespace,
        "labels": {MANAGED_BY: MANAGER},
    }
    raw: Json = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": SECRET_TYPE,
        "metadata": metadata,
        "data": {
            CERTIFICATE: base64.b64encode(pem).decode(),
            KEY: base64.b64encode(key_pem(key)).decode(),
        },
    }
    if stored.raw is not None and not stored.right_type:
        # K8S: the type of a Secret is immutable.
        uid = str(stored.raw["metadata"].get("uid", ""))
        objects.delete(SECRETS, (rules.namespace, name), uid)
    if stored.raw is None or not stored.right_type:
        return read_secret(objects.create(SECRETS, raw))
    raw["metadata"] = {**stored.raw["metadata"]}
    raw["metadata"].pop("managedFields", None)
    return read_secret(objects.replace(SECRETS, raw))


def _key_bytes(stored: Stored) -> bytes:
    return key_pem(stored.key) if stored.key is not None else b""
