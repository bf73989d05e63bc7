#!/usr/bin/env python3
"""Many chats behind one long system prompt: DeepMint's server beside llama-server, in one run.

    bench/peer_shared_prefix.py [--model FILE.gguf] [--streams 16,64] [--tokens 64] [--threads 2] [--json OUT]

For each number of streams both servers are started with as many places, and asked in turn:
  cold, repeated  the first token of a prompt of about 2,000 tokens that nobody has seen, and of the very same prompt again;
  waves           all streams at once behind one system prompt of that length that has been asked before, each with a question of its own;
                  every reply is of --tokens tokens. Figures are medians over the waves.
llama-server runs with its defaults, that is with its prompt cache per slot (cache_prompt) and in memory (--cache-ram), and with room for every
stream; --llama-args adds to them. So that no slot must compute the system prompt during the waves, its state is saved from the first slot
and restored into every other one before (--slot-save-path). --first-wave measures a wave before that. llama-server is built as
bench/peer_llamacpp.py does. Replies ignore the end token, so that all are of one length. Resident memory is read when all has run.
--check exits 1 when an aggregate is below 2.5 times llama-server's, or a repeated prompt's first token is not 20 times sooner than a cold one's.
"""
import argparse
import json
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import peer_llamacpp as peer  # noqa: E402
import streams  # noqa: E402

WORDS = ("river stone lamp garden winter paper bridge market copper window silver engine harbour letter forest candle mountain kettle ladder basket "
         "orange violin carpet thunder pocket needle button castle desert feather island jacket mirror pepper ribbon saddle tunnel valley wagon").split()
AGGREGATE_TARGET, REPEATED_TARGET = 2.5, 20.0
REPEATS = 5


def system_prompt(seed, words):
    """English-looking text of that many words, another one for every seed from its first word on."""
    rng = random.Random(seed)
    lines = [f"Rule {rng.randrange(10 ** 9)}."]
    while sum(line.count(" ") + 1 for line in lines) < words:
        lines.append(" ".join(rng.choice(WORDS) for _ in range(rng.randrange(6, 14))).capitalize() + ".")
    return " ".join(lines)


def resident_bytes(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS")


def start_deepmint(args, count):
    command = [str(args.binary), "serve", str(args.model), "--threads", str(args.threads), "--port", "0", "--ctx", str(args.context),
               "--max-running", str(count), "--kv-bytes", f"{args.kv_mib}MiB"]
    return peer.Server(command, r"(http://[0-9.]+:\d+)")


def start_llama(args, binaries, count):
    port = peer.free_port()
    command = [str(binaries / "llama-server"), "-m", str(args.model), "-t", str(args.threads), "--parallel", str(count), "-c", str(count * args.context),
               "--host", "127.0.0.1", "--port", str(port), "--no-webui", "--slot-save-path", args.slot_folder, *args.llama_args.split()]
    server = peer.Server(command, r"server is listening|listening on")
    server.url = f"http://127.0.0.1:{port}"
    return server


def copy_first_slot(server, count):
    """The state of slot 0 of a llama-server into all the others."""
    def post(slot, action):
        request = urllib.request.Request(f"{server.url}/slots/{slot}?action={action}", json.dumps({"filename": "shared"}).encode(),
                                         {"Content-Type": "application/json"})
        return json.loads(urllib.request.urlopen(request, timeout=120).read())

    saved = post(0, "save")["n_saved"]
    for slot in range(1, count):
        if post(slot, "restore")["n_restored"] != saved:
            raise RuntimeError(f"slot {slot} did not take the state of slot 0")


def measure(server, args, count):
    """Everything about one server at one number of streams."""
    def ask(n, tokens, system, wave, extra={}):  # noqa: B006
        print(f"{server.name}: {n} streams of {tokens} tokens", file=sys.stderr, flush=True)
        return streams.run(server.url, n, tokens, timeout=1800, extra={"ignore_eos": True, **extra},
                           messages=lambda i: [{"role": "system", "content": system}, {"role": "user", "content": f"{streams.prompt(i)} ({wave})"}])

    streams.run(server.url, 2, 8)
    cold, repeated = [], []
    for seed in range(args.cold_prompts):
        system = system_prompt(f"cold {seed}", args.words)
        cold.append(ask(1, 4, system, 0))
        repeated += [ask(1, 4, system, 0) for _ in range(REPEATS)]
    system = system_prompt("shared", args.words)
    theirs = server.name == "llama-server"
    ask(1, 4, system, 0, {"id_slot": 0} if theirs else {})
    first_wave = [ask(count, args.tokens, system, 0)] if args.first_wave else []
    if theirs:
        copy_first_slot(server, count)
    waves = [ask(count, args.tokens, system, wave) for wave in range(1, args.waves + 1)]

    def median(runs):
        return {key: statistics.median(run[key] for run in runs) for key in runs[0]}

    return {"prompt_tokens": cold[0]["prompt_tokens"], "cold_s": median(cold)["ttft_p50"], "repeated_s": median(repeated)["ttft_p50"],
            **({"first wave": median(first_wave)} if first_wave else {}), "waves": median(waves), "runs": {"cold": cold, "repeated": repeated, "waves": waves},
            "resident_bytes": resident_bytes(server.process.pid)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=peer.ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--binary", type=pathlib.Path, default=peer.ROOT / "build/release/bin/deepmint")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", default="16,64")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--waves", type=int, default=3)
    parser.add_argument("--first-wave", action="store_true")
    parser.add_argument("--cold-prompts", type=int, default=3)
    parser.add_argument("--words", type=int, default=1750, help="of the system prompt; 1,750 are about 2,000 tokens")
    parser.add_argument("--context", type=int, default=2560, help="of each stream")
    parser.add_argument("--kv-mib", type=int, default=1024, help="DeepMint's budget for state")
    parser.add_argument("--llama-args", default="")
    parser.add_argument("--only", choices=["deepmint", "llama-server"])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))     # so that the servers end as well
    folder = tempfile.TemporaryDirectory(prefix="shared_prefix")
    args.slot_folder = folder.name
    starts = {"deepmint": start_deepmint}
    if args.only != "deepmint":
        binaries = peer.build_llama()
        starts["llama-server"] = lambda a, count: start_llama(a, binaries, count)
    if args.only == "llama-server":
        del starts["deepmint"]

    results, missed = [], []
    for count in map(int, args.streams.split(",")):
        row = {"streams": count}
        for name, start in starts.items():
            server = start(args, count)
            server.name = name
            try:
                row[name] = measure(server, args, count)
            finally:
                server.stop()
        results.append(row)
        print(f"\n{count} streams, {args.tokens} tokens each, {args.threads} threads")
        for name in starts:
            r = row[name]
            print(f"{name:<13} prompt of {r['prompt_tokens']} tokens: first token {1e3 * r['cold_s']:.0f} ms cold, {1e3 * r['repeated_s']:.1f} ms repeated "
                  f"({r['cold_s'] / r['repeated_s']:.1f}x sooner); {r['resident_bytes'] / 2 ** 20:.0f} MiB resident")
            for title in ("first wave", "waves"):
                if title not in r:
                    continue
                w = r[title]
                print(f"{'':<13} {title:<11}{w['tokens_per_s']:>8.1f} tokens/s; first token p50 {1e3 * w['ttft_p50']:.0f} ms, "
                      f"p99 {1e3 * w['ttft_p99']:.0f}; between tokens p50 {1e3 * w['gap_p50']:.1f} ms, p99 {1e3 * w['gap_p99']:.1f}")
        if "deepmint" in row and row["deepmint"]["cold_s"] < REPEATED_TARGET * row["deepmint"]["repeated_s"]:
            missed.append(f"a repeated prompt's first token {REPEATED_TARGET:.0f} times sooner, at {count} streams")
        if len(starts) == 2:
            row["ratio"] = row["deepmint"]["waves"]["tokens_per_s"] / row["llama-server"]["waves"]["tokens_per_s"]
            print(f"{'ratio':<13} {row['ratio']:.2f}", flush=True)
            if row["ratio"] < AGGREGATE_TARGET:
                missed.append(f"{AGGREGATE_TARGET} times the aggregate at {count} streams")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    if args.check and missed:
        sys.exit("peer_shared_prefix: missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
