#!/usr/bin/env python3
"""Whether a server keeps to its budget for sequence state, held against what the system says that it uses.

    bench/memory_budget.py MODEL.gguf [--kv-mib 256] [--check]

Starts `deepmint serve` with that --kv-bytes, asks once so that the buffers of a step are there, then asks different prompts until every block
has been written and old ones give way. Prints what the server reports by use (`deepmint:state_bytes`), and by how much its resident memory
has grown. --check exits 1 unless the growth is within 2 % of the budget, once when the budget is full and again after it was written over.
"""
import argparse
import pathlib
import re
import sys
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import peer_llamacpp as peer  # noqa: E402
import peer_shared_prefix as shared  # noqa: E402
import streams  # noqa: E402

LIMIT = 0.02


def state_bytes(url):
    """{use: bytes} as the server reports it."""
    text = urllib.request.urlopen(url + "/metrics", timeout=30).read().decode()
    return {use: float(value) for use, value in re.findall(r'^deepmint:state_bytes\{.*use="(\w+)"\} (\S+)$', text, re.MULTILINE)}


def evictions(url):
    text = urllib.request.urlopen(url + "/metrics", timeout=30).read().decode()
    return float(re.search(r"^deepmint:cache_evictions_total\{.*\} (\S+)$", text, re.MULTILINE).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--binary", type=pathlib.Path, default=peer.ROOT / "build/release/bin/deepmint")
    parser.add_argument("--kv-mib", type=int, default=256)
    parser.add_argument("--words", type=int, default=600, help="of a prompt")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    budget = args.kv_mib << 20
    server = peer.Server([str(args.binary), "serve", args.model, "--port", "0", "--ctx", "2048", "--kv-bytes", str(budget), "--park-bytes", "0"],
                         r"(http://[0-9.]+:\d+)")
    try:
        seeds = iter(range(1 << 30))

        def ask():
            streams.run(server.url, 2, 4, messages=lambda i: [{"role": "user", "content": shared.system_prompt(f"budget {next(seeds)}", args.words)}])

        ask()
        first, used = shared.resident_bytes(server.process.pid), state_bytes(server.url)
        server.log.seek(0)
        block = float(re.search(r"blocks of \d+ tokens, ([0-9.]+) KiB each", server.log.read().decode()).group(1)) * 1024
        # The last block of each of the two prompts is free again, and written in part: taken as half.
        base = first - used["cached"] - block
        growths = []
        while evictions(server.url) == 0:
            ask()
        growths.append(("full", shared.resident_bytes(server.process.pid) - base))
        while evictions(server.url) < 100:
            ask()
        growths.append(("written over", shared.resident_bytes(server.process.pid) - base))
        used = state_bytes(server.url)
    finally:
        server.stop()
    print(f"budget {budget / 2 ** 20:.1f} MiB; beside it weights and buffers, {base / 2 ** 20:.1f} MiB resident")
    print("reported: " + ", ".join(f"{use} {value / 2 ** 20:.2f} MiB" for use, value in used.items()))
    for title, growth in growths:
        print(f"resident memory of state, {title:<13} {growth / 2 ** 20:8.1f} MiB, {100 * growth / budget:.2f} % of the budget")
    if args.check and any(abs(growth / budget - 1) > LIMIT for _, growth in growths):
        sys.exit(f"memory_budget: more than {100 * LIMIT:.0f} % from the budget")


if __name__ == "__main__":
    main()
