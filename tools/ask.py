#!/usr/bin/env python3
"""Asks a running DeepMint server one question and streams the reply to the terminal.

    tools/ask.py http://127.0.0.1:8080 "Why is the sky blue?" [--max-tokens 128]

Needs nothing but the standard library. Prints time to first token and tokens per second on stderr.
"""
import argparse
import http.client
import json
import sys
import time
import urllib.parse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("question")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()

    url = urllib.parse.urlsplit(args.url)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=120)
    body = json.dumps({
        "model": "default",
        "messages": [{"role": "user", "content": args.question}],
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    })
    start = time.monotonic()
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        print(f"HTTP {response.status}: {response.read().decode('utf-8', 'replace')}", file=sys.stderr)
        return 1
    first = last = None
    tokens = 0
    for line in response:
        if not line.startswith(b"data: "):
            continue
        data = line[6:].strip()
        if data == b"[DONE]":
            break
        event = json.loads(data)
        if "error" in event:
            print(f"\n{event['error'].get('message', event['error'])}", file=sys.stderr)
            return 1
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
        for choice in event.get("choices", []):
            text = choice.get("delta", {}).get("content")
            if text:
                last = time.monotonic()
                first = first or last
                sys.stdout.write(text)
                sys.stdout.flush()
    print()
    if first is None:
        print("the reply was empty", file=sys.stderr)
        return 1
    rate = (tokens - 1) / (last - first) if tokens > 1 and last > first else 0.0
    print(f"[{tokens} tokens, first after {first - start:.2f} s, then {rate:.0f} tokens/s]", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
