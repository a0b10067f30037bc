"""Compare an authorizer for Envoy with an empty Check server on the same library.

One server process each, with the same requests over 64 kept-alive connections. The
measure is the server's CPU time for a request, because the client runs on the same
machine: ``ratio`` is the empty server's time divided by ours, the share of an empty
server's throughput per core. Times of single requests contain the client's own.

    python perf/authorizer.py [--connections 64] [--seconds 5] [--json FILE]
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import grpc
import grpc.aio

from tests.faults.authorizer import Authorizer, write_policy
from tests.ports import free_port
from tests.unit.expr_cel.envoy_protobuf import message
from tests.waiting import wait_for

_POLICIES = 10
_CHECK = "/envoy.service.auth.v3.Authorization/Check"
_HTTP = "object.attributes.request.http"
_ROW = "{:12} {:>10} {:>12} {:>8} {:>8}"


def _request() -> bytes:
    """Return a request with the headers that a browser and a mesh send."""
    request = message("CheckRequest")()
    http = request.attributes.request.http
    http.method, http.path, http.host = "GET", "/team-9/orders?page=2", "shop.example"
    http.protocol, http.scheme, http.id = "HTTP/1.1", "https", "1234567890"
    for number in range(20):
        http.headers[f"x-header-{number}"] = f"value of header {number} " * 2
    http.headers["x-role"] = "admin"
    source = request.attributes.source
    source.address.socket_address.address = "10.0.0.7"
    source.address.socket_address.port_value = 40000
    source.principal = "spiffe://cluster.local/ns/shop/sa/front"
    data: bytes = request.SerializeToString()
    return data


@contextlib.contextmanager
def _ours(folder: Path) -> Iterator[tuple[int, int]]:
    """Run an authorizer; yield its port and the process that serves."""
    for number in range(_POLICIES):
        write_policy(
            folder / "policies",
            f"team-{number}",
            "Envoy",
            f"{_HTTP}.path.startsWith('/team-{number}/')"
            f" && {_HTTP}.headers[?'x-role'].orValue('') != 'admin'"
            " ? envoy.Denied(403).Response() : null",
        )
    service = Authorizer(folder, "envoy", workers=1)
    try:
        states = json.loads(service.health("/healthz")[1])["processes"]
        pids = {state["name"]: state["pid"] for state in states}
        yield service.port, pids["authorizer"]
    finally:
        service.close()


@contextlib.contextmanager
def _empty(_folder: Path) -> Iterator[tuple[int, int]]:
    """Run a server whose Check does nothing."""
    port = free_port()
    process = subprocess.Popen([sys.executable, __file__, "--serve", str(port)])

    def listens() -> bool:
        with contextlib.suppress(grpc.RpcError), _channel(port) as channel:
            channel.unary_unary(_CHECK)(b"", timeout=1)
            return True
        return False

    try:
        wait_for(listens)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def _channel(port: int) -> Any:
    return grpc.insecure_channel(f"127.0.0.1:{port}")


async def _serve_nothing(port: int) -> None:
    async def check(_data: bytes, _context: Any) -> bytes:
        return b""

    server = grpc.aio.server()
    service, _, method = _CHECK[1:].partition("/")
    handler = grpc.unary_unary_rpc_method_handler(check)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


async def _load(port: int, connections: int, seconds: float) -> list[float]:
    """Return the time of each request, from all connections."""
    data, until = _request(), time.monotonic() + seconds
    times: list[float] = []

    async def one() -> None:
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            call = channel.unary_unary(_CHECK)
            await call(data)
            while time.monotonic() < until:
                began = time.monotonic()
                await call(data)
                times.append(time.monotonic() - began)

    await asyncio.gather(*(one() for _ in range(connections)))
    return times


def _measure(port: int, pid: int, connections: int, seconds: float) -> dict[str, float]:
    asyncio.run(_load(port, connections, 1.0))
    server = psutil.Process(pid)
    before = sum(server.cpu_times()[:2])
    times = sorted(asyncio.run(_load(port, connections, seconds)))
    cpu = sum(server.cpu_times()[:2]) - before
    return {
        "rate": len(times) / seconds,
        "cpu_us": cpu / len(times) * 1e6,
        "p50_ms": statistics.median(times) * 1e3,
        "p99_ms": times[int(len(times) * 0.99)] * 1e3,
    }


def main() -> None:
    """Measure both servers and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve_nothing(options.serve))
        return
    found: dict[str, Any] = {}
    print(_ROW.format("server", "requests/s", "CPU us each", "p50 ms", "p99 ms"))
    for name, run in (("empty", _empty), ("authorizer", _ours)):
        with (
            tempfile.TemporaryDirectory() as folder,
            run(Path(folder)) as (port, pid),
        ):
            one = _measure(port, pid, options.connections, options.seconds)
        found[name] = one
        shown = [f"{one[key]:.1f}" for key in ("rate", "cpu_us", "p50_ms", "p99_ms")]
        print(_ROW.format(name, *shown))
    found["ratio"] = found["empty"]["cpu_us"] / found["authorizer"]["cpu_us"]
    print(f"ratio {found['ratio']:.2f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
