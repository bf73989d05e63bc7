#!/usr/bin/env python3
"""Share of the CPU time that the server's own threads use while streams run.

    bench/server_overhead.py MODEL [--streams 16] [--seconds 10]

Starts `deepmint serve MODEL`, keeps --streams replies running, and after they are all past their prompts reads user and system
time of every thread from /proc. Threads named dm-io-* and dm-work-* are the server's; all others compute. Prints one JSON object.
Exit 1 when the share is above --limit (0.03).
"""
import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def thread_times(pid):
    """{thread id: (name, seconds of CPU time)}"""
    tick = os.sysconf("SC_CLK_TCK")
    out = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            text = (task / "stat").read_text()
        except OSError:      # ended meanwhile
            continue
        name, rest = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
        out[int(task.name)] = (name, (int(rest[11]) + int(rest[12])) / tick)
    return out


class Stream(threading.Thread):
    """Asks again and again; counts the tokens that arrive."""

    def __init__(self, port, index):
        super().__init__(daemon=True)
        self.port, self.index, self.tokens, self.running, self.over = port, index, 0, threading.Event(), False

    def run(self):
        while not self.over:
            body = json.dumps({"messages": [{"role": "user", "content": f"Tell me a long story, number {self.index}."}], "stream": True,
                               "max_tokens": 1000, "ignore_eos": True, "seed": self.index})
            with socket.create_connection(("127.0.0.1", self.port)) as connection:
                connection.sendall(("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                                    f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}").encode())
                while not self.over:
                    data = connection.recv(65536)
                    if not data:
                        break
                    self.tokens += data.count(b'"content":')
                    if self.tokens > 3:
                        self.running.set()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--limit", type=float, default=0.03)
    arguments = parser.parse_args()
    command = [pathlib.Path(arguments.build) / "bin/deepmint", "serve", arguments.model, "--port", "0", "--threads", arguments.threads]
    server = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    try:
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        streams = [Stream(port, index) for index in range(arguments.streams)]
        for stream in streams:
            stream.start()
        for stream in streams:
            if not stream.running.wait(timeout=120):
                raise RuntimeError("a stream did not begin")
        tokens, before, start = sum(s.tokens for s in streams), thread_times(server.pid), time.monotonic()
        time.sleep(arguments.seconds)
        after, elapsed = thread_times(server.pid), time.monotonic() - start
        tokens = sum(s.tokens for s in streams) - tokens
        for stream in streams:
            stream.over = True
        used = {}
        for thread, (name, seconds) in after.items():
            used[name] = used.get(name, 0) + seconds - before.get(thread, (name, 0))[1]
        own = sum(seconds for name, seconds in used.items() if name.startswith(("dm-io", "dm-work")))
        total = sum(used.values())
        share = own / total
        print(json.dumps({"streams": arguments.streams, "seconds": round(elapsed, 2), "tokens_per_s": round(tokens / elapsed, 1),
                          "server_s": round(own, 3), "total_s": round(total, 3), "server_share": round(share, 4),
                          "microseconds_per_token": round(own / max(tokens, 1) * 1e6, 1),
                          "threads": {name: round(seconds, 3) for name, seconds in sorted(used.items())}, "limit": arguments.limit}))
        return 0 if share < arguments.limit else 1
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
