"""Connections to a listening socket that has no process to accept them."""

import contextlib
import socket

from kyverno_mp.process.startup.listen import listen, port_of, refuse_waiting


def test_waiting_connections_are_refused_up_to_a_number() -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen("127.0.0.1", 0, 16))
        address = ("127.0.0.1", port_of(listener))
        clients = [
            stack.enter_context(socket.create_connection(address, 30)) for _ in range(3)
        ]
        clients[0].sendall(b"hello")
        assert refuse_waiting(listener, 2) == 2
        assert refuse_waiting(listener, 2) == 1
        assert refuse_waiting(listener, 2) == 0
        for client in clients:
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
