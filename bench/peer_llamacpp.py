#!/usr/bin/env python3
"""DeepMint beside llama.cpp on the same file and threads, in one run.

    bench/peer_llamacpp.py [--model FILE.gguf] [--threads 2] [--rounds 5] [--streams 16] [--json OUT]

llama.cpp is built (once, into build/peer) from the source that the sdist of the published llama-cpp-python carries. The two
programs take turns, so that a slow minute of the machine hits both; figures are medians over the rounds. Warm page cache.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import streams  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSION = "0.3.36"
PEER = ROOT / "build" / "peer"
START_TIMEOUT_S = 300     # of a server, on a busy machine


def build_llama():
    """Path of the folder with llama-bench and llama-server; builds them when they are not there."""
    given = os.environ.get("LLAMA_CPP_BIN")
    if given:
        return pathlib.Path(given)
    binaries = PEER / "llama" / "bin"
    if (binaries / "llama-server").exists() and (binaries / "llama-bench").exists():
        return binaries
    PEER.mkdir(parents=True, exist_ok=True)
    source = PEER / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"
    if not source.exists():
        print(f"fetching the sdist of llama-cpp-python {VERSION}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--retries", "1", "--timeout", "15", "--no-deps", "--no-build-isolation",
                        "--no-binary", ":all:", "-d", str(PEER), f"llama-cpp-python=={VERSION}"], check=True)
        with tarfile.open(next(PEER.glob("llama_cpp_python-*.tar.gz"))) as sdist:
            sdist.extractall(PEER, filter="data")
    print("building llama.cpp (several minutes)", file=sys.stderr)
    subprocess.run(["cmake", "-S", str(source), "-B", str(PEER / "llama"), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
                    "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
                    "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_UI=OFF"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(PEER / "llama"), "-j2", "--target", "llama-server", "llama-bench"], check=True,
                   stdout=subprocess.DEVNULL)
    return binaries


def llama_bench(binaries, model, threads):
    out = subprocess.run([str(binaries / "llama-bench"), "-m", str(model), "-t", str(threads), "-p", "512", "-n", "128", "-r", "2", "-o", "json"],
                         check=True, capture_output=True, text=True).stdout
    rates = {}
    for row in json.loads(out):
        rates["decode" if row["n_gen"] else "prefill"] = row["avg_ts"]
    return rates


def deepmint_bench(binary, model, threads):
    out = subprocess.run([str(binary), "bench", str(model), "--threads", str(threads), "--rows", "1", "--contexts", "256", "--prefill", "512",
                          "--tokens", "128", "--runs", "3", "--json"],
                         check=True, capture_output=True, text=True).stdout
    return json.loads(out)


class Server:
    def __init__(self, command, pattern, environment=None):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})})
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            self.log.seek(0)
            text = self.log.read().decode("utf-8", "replace")
            found = re.search(pattern, text)
            if found:
                self.url = found.group(1) if found.groups() else None
                return
            if self.process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended:\n{text[-2000:]}")
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"{command[0]} did not start within {START_TIMEOUT_S} s")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve_both(binary, binaries, model, threads, count, tokens):
    server = Server([str(binary), "serve", str(model), "--threads", str(threads), "--port", "0", "--ctx", "1024"], r"(http://[0-9.]+:\d+)")
    try:
        streams.run(server.url, 2, 8)
        ours = streams.run(server.url, count, tokens)
    finally:
        server.stop()
    port = free_port()
    server = Server([str(binaries / "llama-server"), "-m", str(model), "-t", str(threads), "--parallel", str(count), "-c", str(count * 1024),
                     "--host", "127.0.0.1", "--port", str(port), "--no-webui"], r"server is listening|listening on")
    try:
        url = f"http://127.0.0.1:{port}"
        streams.run(url, 2, 8)
        theirs = streams.run(url, count, tokens)
    finally:
        server.stop()
    return ours, theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/release/bin/deepmint")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--stream-tokens", type=int, default=128)
    parser.add_argument("--stream-rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    binaries = build_llama()

    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(deepmint_bench(args.binary, args.model, args.threads))
        theirs.append(llama_bench(binaries, args.model, args.threads))
    served = [serve_both(args.binary, binaries, args.model, args.threads, args.streams, args.stream_tokens) for _ in range(args.stream_rounds)]

    def median(values):
        return statistics.median(list(values))

    def row(run, test):
        return next(r for r in run["results"] if r["test"] == test)

    result = {
        "decode": {"deepmint": median(row(r, "decode")["tokens_per_s"] for r in ours), "llama.cpp": median(r["decode"] for r in theirs)},
        "prefill 512": {"deepmint": median(row(r, "prefill")["tokens_per_s"] for r in ours), "llama.cpp": median(r["prefill"] for r in theirs)},
        f"{args.streams} streams": {"deepmint": median(o["tokens_per_s"] for o, _ in served), "llama.cpp": median(t["tokens_per_s"] for _, t in served)},
    }
    result["decode"]["share of DRAM roof"] = median(row(r, "decode")["dram_share"] for r in ours)
    result["decode"]["DRAM roof GB/s"] = median(r["roofs"]["dram_read_gb_per_s"] for r in ours)
    print(f"{'':<14}{'DeepMint':>12}{'llama.cpp':>12}{'ratio':>8}   tokens/s, {args.threads} threads, medians")
    for name, figures in result.items():
        figures["ratio"] = figures["deepmint"] / figures["llama.cpp"]
        print(f"{name:<14}{figures['deepmint']:>12.1f}{figures['llama.cpp']:>12.1f}{figures['ratio']:>8.2f}")
    print(f"decode reads {100 * result['decode']['share of DRAM roof']:.0f} % of the DRAM roof of {result['decode']['DRAM roof GB/s']:.1f} GB/s")
    for name, figures in (("DeepMint", [o for o, _ in served]), ("llama.cpp", [t for _, t in served])):
        print(f"{name:<10} {args.streams} streams: first token p50 {1e3 * median(f['ttft_p50'] for f in figures):.0f} ms, "
              f"gap p50 {1e3 * median(f['gap_p50'] for f in figures):.1f} ms, p99 {1e3 * median(f['gap_p99'] for f in figures):.1f} ms")
    if args.json:
        args.json.write_text(json.dumps({"summary": result, "deepmint": ours, "llama.cpp": theirs, "streams": served}, indent=1))


if __name__ == "__main__":
    main()
