"""What the system alone takes for the conversations of `load.py durables`: the same reads and writes, and nothing else.

    python benchmarks/broker/floor.py --connections 500 --count 100000 [--server epoll|uvloop]

Each client sends a message, waits for as many bytes as an acknowledgement and a delivery have, sends as many as an
acknowledgement of its own has, and the next message. The server, a process of its own, counts bytes and answers with
prepared ones: by bare system calls, or as a protocol of the event loop that the broker uses. The result is one line of
JSON: microseconds of the server's processor time for a message, the kernel's part of it, and its reads and loops.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import select
import socket
from typing import Any

#: Bytes of a PUB with a message of 128 bytes, of the PUB of an acknowledgement, and of what the broker writes.
PUBLISH, ACK, ANSWER = b"p" * 280, b"a" * 75, b"d" * 320
_ROUND = len(PUBLISH) + len(ACK)
_BUFFER = 1 << 17


class Server:
    """Answers whenever as much has come from a connection as one round has."""

    def __init__(self, listener: socket.socket, connections: int) -> None:
        self.listener, self.connections = listener, connections
        self.left = connections
        self.reads = self.loops = 0
        self.buffer = bytearray(_BUFFER)
        self.view = memoryview(self.buffer)

    def epoll(self) -> None:
        """Serves by system calls."""
        poll, buffer = select.epoll(), self.buffer
        clients: dict[int, socket.socket] = {}
        got: dict[int, int] = {}
        for _ in range(self.connections):
            client, _ = self.listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setblocking(False)
            clients[client.fileno()], got[client.fileno()] = client, len(ACK)
            poll.register(client.fileno(), select.EPOLLIN)
        while self.left:
            self.loops += 1
            answers = []
            for number, _ in poll.poll():
                self.reads += 1
                count = clients[number].recv_into(buffer)
                got[number] += count
                if not count:
                    self.left -= 1
                    poll.unregister(number)
                elif got[number] >= _ROUND:
                    got[number] -= _ROUND
                    answers.append(clients[number])
            # The broker writes when it has read from all.
            for client in answers:
                client.send(ANSWER)

    def uvloop(self) -> None:
        """Serves as the broker does, with protocols of an event loop."""
        import uvloop

        server = self

        class Protocol(asyncio.BufferedProtocol):
            got = len(ACK)

            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def get_buffer(self, sizehint: int) -> memoryview:
                return server.view

            def buffer_updated(self, count: int) -> None:
                server.reads += 1
                self.got += count
                if self.got >= _ROUND:
                    self.got -= _ROUND
                    if not server.answers:
                        loop.call_soon(server.flush)
                    server.answers.append(self.transport)

            def connection_lost(self, problem: Exception | None) -> None:
                server.left -= 1
                if not server.left:
                    loop.stop()

        self.answers: list[Any] = []
        loop = uvloop.new_event_loop()
        loop.run_until_complete(loop.create_server(Protocol, sock=self.listener))
        loop.run_forever()

    def flush(self) -> None:
        """Writes all answers."""
        self.loops += 1
        answers, self.answers = self.answers, []
        for transport in answers:
            transport.write(ANSWER)


def serve(listener: socket.socket, connections: int, how: str, count: int) -> dict[str, float]:
    """Serves until all clients are gone. Returns what it took."""
    server = Server(listener, connections)
    getattr(server, how)()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu": (used.ru_utime + used.ru_stime) / count * 1e6,
        "kernel": used.ru_stime / count * 1e6,
        "reads": server.reads / count,
        "loops": server.loops / count,
    }


def talk(port: int, connections: int, count: int) -> None:
    """Holds the conversations."""
    poll, clients, got, left = select.epoll(), {}, {}, {}
    for _ in range(connections):
        client = socket.create_connection(("127.0.0.1", port))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        clients[client.fileno()], got[client.fileno()] = client, 0
        left[client.fileno()] = count // connections
        poll.register(client.fileno(), select.EPOLLIN)
    for client in clients.values():
        client.send(PUBLISH)
    while clients:
        for number, _ in poll.poll():
            got[number] += len(clients[number].recv(_BUFFER))
            if got[number] < len(ANSWER):
                continue
            got[number] = 0
            left[number] -= 1
            clients[number].send(ACK)
            if left[number]:
                clients[number].send(PUBLISH)
            else:
                poll.unregister(number)
                clients.pop(number).close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="what the system takes for reads and writes of many conversations")
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--server", choices=("epoll", "uvloop"), default="epoll")
    options = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=options.connections)
    if not os.fork():
        talk(listener.getsockname()[1], options.connections, options.count)
        os._exit(0)
    print(json.dumps(serve(listener, options.connections, options.server, options.count)))
    os.wait()


if __name__ == "__main__":
    main()
