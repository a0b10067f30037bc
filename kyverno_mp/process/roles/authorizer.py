"""Run the authorizer: Gunicorn's arbiter for HTTP, or one gRPC server for Envoy.

Room: process. Takes: Start. Gives: nothing; ends at SIGTERM. Next: webhook/server.py,
webhook/authz/start.py, webhook/authz/grpc_server.py.
May touch: this process becomes the arbiter, or the server.
Source: docs/behaviour/cel 15.8.

Modules of these evaluation modes are imported late: other services do not load them.
"""

import importlib
import importlib.util
from functools import partial
from typing import Final

from kyverno_mp.errors import SettingInvalid
from kyverno_mp.ir.authorization import ExchangeIR
from kyverno_mp.leader.loop import PAGES, SNAPSHOT
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.process.startup.start import Start
from kyverno_mp.process.supervision.status import is_draining
from kyverno_mp.settings.fields import variable
from kyverno_mp.settings.settings import Settings
from kyverno_mp.webhook import server
from kyverno_mp.webhook.http.tls import Certificates, client_ca_of

ENVOY: Final = "envoy"
LATE: Final = (
    "kyverno_mp.compiler.cel_kinds.authorization",
    "kyverno_mp.webhook.authz.start",
)


def run(start: Start) -> None:
    """Serve until SIGTERM."""
    from kyverno_mp.webhook.authz.attach import Places
    from kyverno_mp.webhook.authz.start import make_start

    settings, files = start.settings, start.files
    places = Places(start.runtime_dir / SNAPSHOT, start.runtime_dir / PAGES)
    if settings.authz_mode == ENVOY:
        from kyverno_mp.webhook.authz.grpc_server import serve

        pair = None if files is None else (files.cert, files.key)
        serve(settings, places, pair)
        return
    assert start.reviews is not None
    given, sent = exchanges_of(settings)
    certificates = None
    if files is not None:
        certificates = Certificates(files.cert, files.key, client_ca_of(settings))
    begin = make_start(settings, places, certificates, given, sent)
    is_leaving = partial(is_draining, start.runtime_dir)
    server.run(settings, start.reviews, begin, is_leaving)


def unusable(settings: Settings) -> list[str]:
    """Return the problems with the settings of an authorizer.

    Called before the fork, it also loads what all workers share.
    """
    if settings.authz_mode == ENVOY and importlib.util.find_spec("grpc") is None:
        return ["--mode envoy: needs grpcio: pip install 'kyverno-mp[authz]'"]
    for name in LATE:
        importlib.import_module(name)
    try:
        exchanges_of(settings)
    except SettingInvalid as error:
        return [error.message]
    return []


def exchanges_of(settings: Settings) -> tuple[ExchangeIR | None, ExchangeIR | None]:
    """Compile the operator's expressions. Raises: SettingInvalid."""
    from kyverno_mp.expr.cel.authz.http import REQUEST, RESPONSE, SENT

    return (
        _compiled("authz_input_expression", settings, REQUEST, REQUEST),
        _compiled("authz_output_expression", settings, RESPONSE, SENT),
    )


def _compiled(
    name: str, settings: Settings, given: str, result: str
) -> ExchangeIR | None:
    text = getattr(settings, name)
    if not text:
        return None
    from kyverno_mp.compiler.cel_kinds.authorization import compile_exchange

    try:
        return compile_exchange(text, given, result)
    except DocumentInvalid as error:
        message = "; ".join(problem.reason for problem in error.problems)
        raise SettingInvalid(
            "settings.invalid", f"{variable(name)}: {message}"
        ) from error
