#!/usr/bin/env python3
"""Decode speed of a model with a schema beside the same model without one.

    bench/structured_speed.py MODEL [--rounds 7] [--streams 1] [--max-tokens 200] [--threads N] [--limit 0.95]

Starts `deepmint serve MODEL` once; rounds alternate between requests with a schema and the same requests without (ignore_eos), temperature 1, each of exactly
--max-tokens tokens (the schema's shortest text is longer). Speed is the tokens between the first and the last that arrives, over the time between them,
summed over the streams. Prints the medians as one JSON object; exit 1 when their ratio is below --limit. Compiling is in the first token's time, which is printed too.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import streams

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Strings of every kind, numbers, choices: what replies in a format are made of.
SCHEMA = {
    "type": "array", "minItems": 60,
    "items": {"type": "object", "required": ["title", "description", "year", "genre", "rating", "tags", "available"], "additionalProperties": False,
              "properties": {"title": {"type": "string", "minLength": 3, "maxLength": 60}, "description": {"type": "string", "minLength": 20}, "year": {"type": "integer", "minimum": 1900, "maximum": 2030},
                             "genre": {"enum": ["drama", "comedy", "science fiction", "documentary"]}, "rating": {"type": "number", "minimum": 0, "maximum": 10},
                             "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z ]+$"}, "minItems": 1, "maxItems": 4}, "available": {"type": "boolean"}}}}


def once(url, options, seed, schema):
    extra = {"temperature": 1, "seed": seed}
    extra |= {"response_format": {"type": "json_schema", "json_schema": {"name": "films", "schema": SCHEMA}}} if schema else {"ignore_eos": True}
    got = streams.run(url, options.streams, options.max_tokens, messages=lambda i: [{"role": "user", "content": f"List films about {streams.TOPICS[i]} as JSON."}], extra=extra)
    assert got["tokens"] == options.streams * options.max_tokens, f"expected {options.max_tokens} tokens a stream, found {got['tokens']} in {options.streams}"
    return got["decode_tokens_per_s"], got["ttft_p50"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--limit", type=float, default=0.95)
    options = parser.parse_args()
    command = [pathlib.Path(options.build) / "bin/deepmint", "serve", options.model, "--port", "0", "--threads", options.threads]
    server = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    try:
        url = server.stdout.readline().split()[-1]
        found = {False: [], True: []}
        for schema in (False, True):  # warm
            once(url, options, 0, schema)
        for seed in range(1, options.rounds + 1):
            for schema in ((False, True), (True, False))[seed % 2]:
                found[schema].append(once(url, options, seed, schema))
    finally:
        server.kill()
        server.wait()
    speed = {schema: statistics.median(s for s, _ in values) for schema, values in found.items()}
    ratio = speed[True] / speed[False]
    print(json.dumps({"streams": options.streams, "tokens": options.max_tokens, "rounds": options.rounds, "free_tokens_per_s": round(speed[False], 1), "schema_tokens_per_s": round(speed[True], 1),
                      "ratio": round(ratio, 3), "ratios": [round(a[0] / b[0], 3) for a, b in zip(found[True], found[False])],
                      "first_token_ms": {"free": round(1e3 * statistics.median(t for _, t in found[False]), 1), "schema": round(1e3 * statistics.median(t for _, t in found[True]), 1)}}))
    return 0 if ratio >= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
