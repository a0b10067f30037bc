"""Wire one worker of the HTTP authorizer, after its fork.

Room: webhook. Takes: Settings, the paths in the runtime folder, the certificate, the
operator's expressions. Gives: a Start. Next: attach.py, http_app.py; webhook/worker.py
serves it. May touch: nothing itself; attach.py opens files and threads.
"""

import asyncio
import dataclasses
import time

from kyverno_mp.ir.authorization import ExchangeIR
from kyverno_mp.limits import JSON_PAYLOAD_THREADS, JSON_PAYLOADS_WAITING_MAX
from kyverno_mp.program.authorization import Exchange
from kyverno_mp.settings.settings import Settings
from kyverno_mp.webhook.authz.attach import Attached, Places
from kyverno_mp.webhook.authz.http_app import Exchanges, HttpAuthorizer, make_app
from kyverno_mp.webhook.http.callers import caller_check
from kyverno_mp.webhook.http.connections import Connections
from kyverno_mp.webhook.http.tls import Certificates
from kyverno_mp.webhook.http_errors import PATH_UNKNOWN, HttpError
from kyverno_mp.webhook.payloads import JsonPayloads
from kyverno_mp.webhook.review.lanes import Lane
from kyverno_mp.webhook.review.service import Answer
from kyverno_mp.webhook.worker import Served, Start


class _NoReviews:
    """Counts refused requests; an authorizer answers no reviews."""

    def __init__(self, attached: Attached) -> None:
        self.refused = attached.count_error

    def answer(self, *_request: object, **_facts: object) -> Answer:
        """Reject a review."""
        raise HttpError(PATH_UNKNOWN, "no webhook has this path")


def make_start(
    settings: Settings,
    places: Places,
    certificates: Certificates | None,
    given: ExchangeIR | None = None,
    sent: ExchangeIR | None = None,
) -> Start:
    """Return the Start that Gunicorn's workers run after their fork.

    ``given``, ``sent``: the operator's input and output expressions.
    """

    def start(loop: asyncio.AbstractEventLoop) -> Served:
        attached = Attached(settings, places, loop)
        exchanges = Exchanges(
            settings.authz_nested_request,
            None if given is None else Exchange(given),
            None if sent is None else Exchange(sent),
        )
        authorizer = HttpAuthorizer(attached.deciding, exchanges)
        lane = _lane(attached, loop)
        payloads = _payloads(settings, attached, lane)
        connections = Connections(
            loop,
            _NoReviews(attached),
            make_app(authorizer, attached.count_error, payloads),
            body_bytes_max=settings.body_bytes_max,
            keepalive_s=float(settings.webhook_keepalive_s),
            time_s=time.time,
            peers=attached.slot,
            # Nobody registers a path with a secret segment here.
            callers=caller_check(dataclasses.replace(settings, caller_path=False)),
            serves_reviews=False,
        )
        attached.listen()
        return Served(
            connections=connections,
            certificates=certificates,
            tick=lambda: attached.tick(len(connections.open)),
            stop=lambda _left_s: _stop(attached, lane),
        )

    return start


def _lane(attached: Attached, loop: asyncio.AbstractEventLoop) -> Lane:
    """Return the threads of JSON payloads, which take turns with the others."""
    return Lane(
        loop,
        JSON_PAYLOAD_THREADS,
        JSON_PAYLOADS_WAITING_MAX,
        time.monotonic_ns,
        attached.deciding.long_evaluations,
    )


def _payloads(
    settings: Settings, attached: Attached, lane: Lane
) -> JsonPayloads | None:
    if not settings.json_payloads:
        return None
    timeout_ns = int(settings.webhook_timeout_s * 1e9)
    return JsonPayloads(
        lane, attached.judge, timeout_ns, attached.on_payload, attached.count_error
    )


def _stop(attached: Attached, lane: Lane) -> None:
    attached.deciding.stop()
    lane.stop()
