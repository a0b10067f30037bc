"""Stand in for Kyverno's admission controller: probes, its paths, a policy's verdict.

Takes: the files of a certificate and its key; the address from the environment, as our
own pods do. Gives: answers over TLS until some seconds after SIGTERM: what is tested is
who answers, not how Kyverno drains. May touch: port 9443 of that address.
Source: docs/behaviour/controllers 10.5 (port, probes), 15 (paths). The verdicts of
ImageValidatingPolicies are as in 1.19, which needs no annotation between its webhooks.
"""

import json
import os
import re
import signal
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any, Final

PORT: Final = 9443
DRAIN_S: Final = 6.0
TABLE: Final = (
    Path(__file__).parents[2] / "docs/behaviour/controllers/15-webhook-paths.md"
)
_PATTERNS: Final = {"{f}": "(fail|ignore)", "{key}": ".+", "{names}": ".*"}
DENIAL: Final = "label team is needed, says the program that was here before"


def served() -> re.Pattern[str]:
    """Return the paths that the admission controller of 1.18.2 answers."""
    paths = []
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if cells[0] == "admission" and "1.18" in cells[3]:
            path = re.escape(cells[1]).replace(r"\{", "{").replace(r"\}", "}")
            for name, pattern in _PATTERNS.items():
                path = path.replace(name, pattern)
            paths.append(path)
    return re.compile("|".join(paths))


SERVED: Final = served()


class Handler(BaseHTTPRequestHandler):
    """Answer one request; HTTP/1.0, so no connection outlives its answer."""

    def do_GET(self) -> None:
        """Answer probes with success."""
        self._answer({})

    def do_POST(self) -> None:
        """Deny a ConfigMap without the label ``team``, allow everything else."""
        length = int(self.headers["Content-Length"])
        if not SERVED.fullmatch(self.path.partition("?")[0]):
            self.rfile.read(length)
            self.send_error(404)
            return
        request = json.loads(self.rfile.read(length))["request"]
        labels = ((request.get("object") or {}).get("metadata") or {}).get("labels")
        allowed = (
            not self.path.startswith("/validate/")
            or request["kind"]["kind"] != "ConfigMap"
            or request["operation"] == "DELETE"
            or "team" in (labels or {})
        )
        response = {"uid": request["uid"], "allowed": allowed}
        if not allowed:
            response["status"] = {"message": DENIAL}
        self._answer(
            {
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "response": response,
            }
        )

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Log nothing."""

    def _answer(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """A server with TLS handshakes in separate threads: a slow one delays no other."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        super().__init__(address, Handler)
        self._context = context

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer over TLS."""
        with self._context.wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore callers that disconnect."""


def main(certificate: str, key: str) -> None:
    """Serve until SIGTERM, and for a short time after it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server = Server((os.environ["KYVERNO_MP_WEBHOOK_HOST"], PORT), context)

    def end(_number: int, _frame: FrameType | None) -> None:
        threading.Timer(DRAIN_S, server.shutdown).start()

    signal.signal(signal.SIGTERM, end)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
