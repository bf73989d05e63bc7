#!/usr/bin/env python3
"""Time from an empty process to the first token, and the memory that a loaded model takes.

    bench/load_time.py models/SmolLM2-135M-Instruct.Q4_1.gguf [--runs 11] [--ctx 2048] [--check]

Runs `deepmint run MODEL -p … --max-tokens 1` a number of times with a warm page cache and prints the medians of: wall time of the
whole process, time until the first byte of the reply is on standard output, and peak resident memory. Memory is held against
file size + K/V + 150 MB, where K/V is what one sequence of the context takes. --check exits 1 when a limit of docs/benchmarks.md is
broken (first token 0.6 s, memory as above). --cold drops the page cache before each run (root only).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST_TOKEN_LIMIT_S = 0.6
MEMORY_HEADROOM = 150e6


def one_run(command, environment):
    """(seconds to the first byte, seconds to the end, peak resident bytes of the child)."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment)
    first = process.stdout.read(1)
    at_first = time.monotonic() - begin
    process.stdout.read()
    error = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    at_end = time.monotonic() - begin
    if process.returncode != 0 or not first:
        sys.exit(f"load_time: the program failed: {error.strip()}")
    return at_first, at_end, usage.ru_maxrss * 1024


def settings(program, model, args):
    """What `inspect` says that a token of K/V takes."""
    report = json.loads(subprocess.run([program, "inspect", model, "--json"], capture_output=True, text=True, check=True).stdout)
    d = report["dimensions"]
    head = d.get("head_dim") or d["hidden"] // d["heads"]
    per_token = 2 * 2 * d["layers"] * (d.get("kv_heads") or d["heads"]) * head      # K and V in BF16
    return min(args.ctx, d["context"]) * per_token


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/deepmint"))
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    environment = {k: v for k, v in os.environ.items() if not k.startswith("DEEPMINT_")}
    command = [args.program, "run", args.model, "-p", "Hello", "--max-tokens", "1", "--temperature", "0", "--ctx", str(args.ctx),
               "--threads", str(args.threads)]
    file_bytes = sum(f.stat().st_size for f in ([pathlib.Path(args.model)] if os.path.isfile(args.model)
                                                 else pathlib.Path(args.model).glob("*.safetensors")))
    kv_bytes = settings(args.program, args.model, args)
    if not args.cold:
        one_run(command, environment)       # warms the page cache
    runs = []
    for _ in range(args.runs):
        if args.cold:
            os.sync()
            pathlib.Path("/proc/sys/vm/drop_caches").write_text("1\n")
        runs.append(one_run(command, environment))
    first, whole, memory = (statistics.median(values) for values in zip(*runs))
    limit = file_bytes + kv_bytes + MEMORY_HEADROOM
    result = {"model": pathlib.Path(args.model).name, "runs": args.runs, "cache": "cold" if args.cold else "warm", "ctx": args.ctx,
              "first_token_s": round(first, 4), "first_token_s_low": round(min(r[0] for r in runs), 4),
              "first_token_s_high": round(max(r[0] for r in runs), 4), "process_s": round(whole, 4), "peak_rss_bytes": int(memory),
              "file_bytes": file_bytes, "kv_bytes": kv_bytes, "rss_limit_bytes": int(limit)}
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{result['model']}, {args.runs} runs, {result['cache']} page cache, context {args.ctx}")
        print(f"  process start to first token {first * 1e3:8.0f} ms   ({min(r[0] for r in runs) * 1e3:.0f} … "
              f"{max(r[0] for r in runs) * 1e3:.0f}; limit {FIRST_TOKEN_LIMIT_S * 1e3:.0f})")
        print(f"  process start to end         {whole * 1e3:8.0f} ms")
        print(f"  peak resident memory         {memory / 1e6:8.1f} MB   (file {file_bytes / 1e6:.1f} + K/V {kv_bytes / 1e6:.1f} + 150 = "
              f"{limit / 1e6:.1f})")
    if args.check and (first > FIRST_TOKEN_LIMIT_S or memory > limit):
        sys.exit("load_time: over the limit")


if __name__ == "__main__":
    main()
