"""Define the names, lifetimes and labels of the certificates.

Room: controllers. Takes: values of settings. Gives: CertificateRules. Next:
certificates/{plan,make,reconcile}.py.
Source: docs/behaviour/controllers 4.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

MANAGED_BY: Final = "cert.kyverno.io/managed-by"
MANAGER: Final = "kyverno"
SECRET_TYPE: Final = "kubernetes.io/tls"  # noqa: S105 - the type of a Secret, no secret
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
LEGACY_CERTIFICATE: Final = "rootCA.crt"
Algorithm = Literal["RSA", "ECDSA", "Ed25519"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRules:
    """The properties of one authority and its one server certificate."""

    namespace: str = "kyverno"
    service: str = "kyverno-svc"
    server: str = ""
    """The host that the API server calls instead of the Service (serverIP)."""
    ca_secret: str = ""
    tls_secret: str = ""
    algorithm: Algorithm = "RSA"
    renew_before: timedelta = timedelta(days=15)
    ca_lifetime: timedelta = timedelta(days=365)
    tls_lifetime: timedelta = timedelta(days=150)
    is_external: bool = False
    """Another program writes the Secrets; we only read them."""

    @property
    def ca_name(self) -> str:
        """The name of the Secret with the authority."""
        return self.ca_secret or f"{self.service}.{self.namespace}.svc.kyverno-tls-ca"

    @property
    def tls_name(self) -> str:
        """The name of the Secret with the server's certificate."""
        return (
            self.tls_secret or f"{self.service}.{self.namespace}.svc.kyverno-tls-pair"
        )

    @property
    def dns_names(self) -> tuple[str, ...]:
        """The DNS names of the Service."""
        return (
            self.service,
            f"{self.service}.{self.namespace}",
            f"{self.service}.{self.namespace}.svc",
        )
