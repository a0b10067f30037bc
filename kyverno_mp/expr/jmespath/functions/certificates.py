"""Implement the decoding of X.509 certificates and requests.

Room: expr. Takes: Runtime and checked arguments. Gives: function rows. Next: calls.py.
Source: docs/behaviour/engine 9.2 (x509_decode).
"""

from typing import Final

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.jmespath.functions.entry import OBJECT, STRING, FunctionEntry
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import CERTIFICATE_CHARACTERS_MAX
from kyverno_mp.values.jsonvalue import Json

_STEPS: Final = 1000
"""The steps for decoding a small certificate."""


def _x509_decode(runtime: Runtime, pem: str) -> Json:
    if len(pem) > CERTIFICATE_CHARACTERS_MAX:
        raise BudgetExceeded("expr.certificate", "certificate is too long")
    runtime.charge(_STEPS + 4 * len(pem))
    runtime.charge_bytes(32 * len(pem))
    # PERF: importing the library takes 50 ms, a third of the CLI's ``jp query``. The
    # service loads it before it forks (process/startup/preload.py).
    from kyverno_mp.expr.jmespath.certificate_document import decode_pem

    return decode_pem(pem)


FUNCTIONS: Final = (
    FunctionEntry(
        "x509_decode",
        (STRING,),
        _x509_decode,
        OBJECT,
        "decodes an x.509 certificate to an object. you may also use this in "
        "conjunction with `base64_decode` jmespath function to decode a "
        "base64-encoded certificate",
    ),
)
