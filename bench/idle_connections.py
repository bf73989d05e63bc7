#!/usr/bin/env python3
"""Memory of open streams that wait: resident bytes of the server per idle SSE connection.

    bench/idle_connections.py                        1,000 streams in front of a scripted engine: the server alone
    bench/idle_connections.py --model MODEL          the same against `deepmint serve MODEL`: most of them wait in the engine's queue

Opens the streams in rounds, and reads VmRSS before and after each. Prints one JSON object. Exit 1 when a connection costs more
than --limit-kib (25).
"""
import argparse
import json
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def resident_kib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError("no VmRSS")


def open_stream(port, max_tokens):
    body = json.dumps({"messages": [{"role": "user", "content": "Hello, how are you?"}], "stream": True, "max_tokens": max_tokens})
    request = ("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
               f"Content-Length: {len(body)}\r\n\r\n{body}")
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(request.encode())
    return connection


def await_head(connection):
    seen = b""
    while b"\r\n\r\n" not in seen or b'"role":"assistant"' not in seen:
        more = connection.recv(4096)
        if not more:
            raise RuntimeError(f"the stream ended: {seen!r}")
        seen += more
    if not seen.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(seen.decode(errors="replace"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--model")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--limit-kib", type=float, default=25)
    arguments = parser.parse_args()
    bin_folder = pathlib.Path(arguments.build) / "bin"
    if arguments.model:
        command = [bin_folder / "deepmint", "serve", arguments.model, "--port", "0", "--max-running", "1"]
    else:
        command = [bin_folder / "test-tools/scripted_server", "hang"]
    server = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        warm = [open_stream(port, 2) for _ in range(20)]      # code pages, arenas and tables that the first requests touch
        for connection in warm:
            await_head(connection)
            connection.close()
        before = resident_kib(server.pid)
        connections = []
        while len(connections) < arguments.connections:
            batch = [open_stream(port, 2000) for _ in range(100)]
            for connection in batch:
                await_head(connection)
            connections += batch
        after = resident_kib(server.pid)
        each = (after - before) / len(connections)
        print(json.dumps({"connections": len(connections), "resident_before_kib": before, "resident_after_kib": after,
                          "kib_per_connection": round(each, 2), "limit_kib": arguments.limit_kib}))
        return 0 if each < arguments.limit_kib else 1
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
