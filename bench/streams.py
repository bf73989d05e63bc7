"""A light client for N concurrent streaming chat requests: raw sockets, one selector, no JSON per chunk.

The client shares the machine with the server it measures, so it does as little as it can per byte; the same client drives every server.
"""
import json
import re
import selectors
import socket
import statistics
import time
import urllib.parse

TOPICS = ["tides", "volcanoes", "bread", "sailing ships", "chess", "honey bees", "glaciers", "the printing press", "bicycles", "tea", "lighthouses",
          "paper", "owls", "bridges", "salt", "maps", "clocks", "wool", "rivers", "kites", "glass", "apples", "steam engines", "whales", "gardens",
          "violins", "comets", "markets", "canals", "windmills", "coral reefs", "mountains"]


def prompt(index):
    return f"Story {index}: write a very long and detailed story about {TOPICS[index % len(TOPICS)]}. Do not stop early."


class Stream:
    def __init__(self, address, host, body):
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
                   f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode() + body
        self.started = time.monotonic()
        self.socket.sendall(request)
        self.first = None
        self.ended = None
        self.times = []
        self.data = bytearray()


def run(url, count, max_tokens, messages=None, extra=None, timeout=600):
    """Starts `count` requests at once and reads them to their ends. Returns a dict of figures."""
    parts = urllib.parse.urlsplit(url)
    address = (parts.hostname, parts.port)
    selector = selectors.DefaultSelector()
    begin = time.monotonic()
    streams = []
    for index in range(count):
        body = {"model": "default", "messages": messages(index) if messages else [{"role": "user", "content": prompt(index)}],
                "max_tokens": max_tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}, **(extra or {})}
        stream = Stream(address, parts.netloc, json.dumps(body).encode())
        selector.register(stream.socket, selectors.EVENT_READ, stream)
        streams.append(stream)
    open_streams = count
    while open_streams:
        if time.monotonic() - begin > timeout:
            raise TimeoutError(f"{open_streams} of {count} streams still open after {timeout} s")
        for key, _ in selector.select(timeout=5):
            stream = key.data
            piece = stream.socket.recv(1 << 16)
            now = time.monotonic()
            if piece:
                stream.data += piece
                if b'"content":"' in piece or b'"content": "' in piece:
                    if b'"content":""' not in piece or stream.times:
                        stream.first = stream.first or now
                        stream.times.append(now)
                continue
            selector.unregister(stream.socket)
            stream.socket.close()
            stream.ended = now
            open_streams -= 1
    tokens, prompts = [], []
    for stream in streams:
        if not stream.data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError("server answered: " + stream.data[:400].decode("utf-8", "replace"))
        found = re.findall(rb'"completion_tokens":\s*(\d+)', bytes(stream.data))
        if not found:
            raise RuntimeError("no usage in the stream: " + stream.data[-400:].decode("utf-8", "replace"))
        tokens.append(int(found[-1]))
        prompts.append(int(re.findall(rb'"prompt_tokens":\s*(\d+)', bytes(stream.data))[-1]))
    seconds = max(stream.ended for stream in streams) - begin
    gaps = sorted(b - a for stream in streams for a, b in zip(stream.times, stream.times[1:]))
    first = sorted(s.first - s.started for s in streams if s.first)
    return {
        "streams": count, "tokens": sum(tokens), "seconds": seconds, "tokens_per_s": sum(tokens) / seconds,
        "prompt_tokens": statistics.median(prompts),
        "ttft_p50": statistics.median(first), "ttft_p99": first[len(first) * 99 // 100], "ttft_max": first[-1],
        "decode_tokens_per_s": sum((n - 1) / (s.times[-1] - s.times[0]) for n, s in zip(tokens, streams) if len(s.times) > 1),
        "gap_p50": gaps[len(gaps) // 2] if gaps else 0.0, "gap_p99": gaps[len(gaps) * 99 // 100] if gaps else 0.0,
    }
