#!/usr/bin/env python3
"""Public suites against `deepmint grammar test --jsonl`: what compiles, what is refused and why, which verdicts are wrong.

    bench/grammar_suites.py maskbench [--limit N] [--seed S] [--show N]
    bench/grammar_suites.py json-schema [--show N]

Reads maskbench-dev.jsonl.zst and json-schema-test-suite.jsonl.zst from $DEEPMINT_DATA (default: ../shared/data beside the project).
Exit 1 when a wrong text is accepted, a case crashes or takes longer than the time limit, or a share is below its target.
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = os.environ.get("DEEPMINT_BIN", str(ROOT / "build/release/bin/deepmint"))


def data_folder():
    given = os.environ.get("DEEPMINT_DATA")
    return pathlib.Path(given) if given else ROOT.parent / "shared/data"


def read_lines(name):
    path = data_folder() / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there (set DEEPMINT_DATA)")
    text = subprocess.run(["zstd", "-dc", str(path)], capture_output=True, check=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def run_cases(cases, timeout_s=600, args=("test",)):
    """One answer per case. A crash loses the cases after it: they are run again without the one that crashed."""
    answers, start = [], 0  # settings of the caller do not count
    while start < len(cases):
        text = "".join(json.dumps(c) + "\n" for c in cases[start:])
        done = subprocess.run([BIN, "grammar", *args, "--jsonl"], input=text, capture_output=True, text=True,
                              env={k: v for k, v in os.environ.items() if not k.startswith("DEEPMINT_")}, timeout=timeout_s, check=False)
        got = [json.loads(line) for line in done.stdout.split("\n") if line.endswith("}")]
        answers += got
        start += len(got)
        if done.returncode != 0 and start < len(cases):
            answers.append({"name": cases[start].get("name"), "crash": (done.stderr or f"exit {done.returncode}").strip()[-300:]})
            start += 1
        elif done.returncode == 0 and start < len(cases):
            raise RuntimeError("fewer answers than cases")
    return answers


TIME_OUT_US = 10e6  # of the clock on a machine that may be busy; the program itself counts steps


def reason(error):
    """A refusal without what is particular to one schema."""
    text = re.sub(r'"[^"]*"', '"…"', error["reason"])
    text = re.sub(r"found .*", "found …", text)
    text = re.sub(r"\d[\d,]*", "N", text)
    keyword = error["pointer"].rsplit("/", 1)[-1] if "/" in error["pointer"] else ""
    keyword = keyword if re.fullmatch(r"\$?[a-zA-Z]+", keyword) and keyword in KEYWORDS else ""
    return f"{keyword}: {text}" if keyword else text


KEYWORDS = {"pattern", "patternProperties", "format", "$ref", "$dynamicRef", "$recursiveRef", "type", "required", "enum", "uniqueItems", "items", "oneOf",
            "not", "multipleOf", "propertyNames", "properties", "$schema", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "additionalProperties",
            "dependencies", "contains", "minLength", "maxLength", "minItems", "maxItems", "default", "additionalItems", "if", "allOf", "anyOf"}


def table(counts):
    width = max((len(str(n)) for n in counts.values()), default=1)
    for text, n in counts.most_common():
        print(f"  {n:>{width}}  {text}")


def maskbench(options):
    cases = read_lines("maskbench-dev.jsonl.zst")
    if options.limit:
        random.Random(options.seed).shuffle(cases)
        cases = cases[: options.limit]
    start = time.monotonic()
    answers = run_cases(cases)
    refused, wrong_accept, wrong_reject, crashes, passed, slow = collections.Counter(), [], [], [], 0, []
    for case, answer in zip(cases, answers):
        if "crash" in answer:
            crashes.append((case["name"], answer["crash"]))
            continue
        if answer.get("compile_us", 0) > TIME_OUT_US:
            slow.append((case["name"], answer["compile_us"]))
        if "error" in answer:
            refused[reason(answer["error"])] += 1
            if options.refused and re.search(options.refused, reason(answer["error"])):
                print("refused:", case["name"], answer["error"])
            continue
        loose = [i for i, t in enumerate(answer["tests"]) if t["accepted"] and not t["valid"]]
        tight = [i for i, t in enumerate(answer["tests"]) if t["valid"] and not t["accepted"]]
        wrong_accept += [(case["name"], i) for i in loose]
        wrong_reject += [(case["name"], i, answer["tests"][i]["byte"]) for i in tight]
        passed += not loose and not tight
    n = len(cases)
    times = sorted(a["compile_us"] for a in answers if "compile_us" in a)
    print(f"maskbench-dev: {n} schemas, {sum(len(c['tests']) for c in cases)} texts, {time.monotonic() - start:.0f} s")
    print(f"  pass in full      {passed} ({passed / n:.1%})")
    print(f"  refused           {sum(refused.values())}")
    print(f"  wrongly accepted  {len(wrong_accept)} texts in {len({w[0] for w in wrong_accept})} schemas")
    print(f"  wrongly rejected  {len(wrong_reject)} texts in {len({w[0] for w in wrong_reject})} schemas")
    print(f"  crashes           {len(crashes)}")
    if times:
        print(f"  compile           p50 {times[len(times) // 2] / 1000:.2f} ms, p99 {times[int(0.99 * (len(times) - 1))] / 1000:.2f} ms, max {times[-1] / 1000:.1f} ms; {len(slow)} time-outs")
    if refused:
        print("refused, by reason:")
        table(refused)
    for name, found in (("accepted", wrong_accept), ("rejected", wrong_reject), ("crash", crashes), ("slow", slow)):
        for item in found[: options.show]:
            print(f"  {name}: {item}")
    return 0 if not wrong_accept and not crashes and not slow and passed >= 0.8 * n else 1


# Groups whose outcome the suite itself leaves open, with the reason.
def formats_of(case):
    """format.json takes format for an annotation, optional/format/ for an assertion: both are legal, by a switch."""
    return "annotate" if case["file"] == "format.json" else "assert"


def orders(value):
    """The value with its members in every order, those of a part up to 30: a grammar has an order of its own."""
    if isinstance(value, list):
        for parts in itertools.product(*[list(itertools.islice(orders(v), 30)) for v in value]):
            yield list(parts)
    elif isinstance(value, dict):
        for keys in itertools.permutations(value):
            for parts in itertools.product(*[list(itertools.islice(orders(value[k]), 30)) for k in keys]):
                yield dict(zip(keys, parts))
    else:
        yield value


def json_schema(options):
    cases = read_lines("json-schema-test-suite.jsonl.zst")
    for i, case in enumerate(cases):
        case["name"] = f"{case['draft']}/{case['file']}: {case['description']}"
        case["formats"] = formats_of(case)
        if case["draft"] == "draft7" and isinstance(case["schema"], dict) and "$schema" not in case["schema"]:
            case["schema"] = {"$schema": "http://json-schema.org/draft-07/schema#", **case["schema"]}
    # The order of members is the grammar's own: a text counts as accepted when one order of its members is.
    for case in cases:
        texts = []
        for i, test in enumerate(case["tests"]):
            texts += [{"valid": test["valid"], "data": one, "of": i} for one in itertools.islice(orders(test["data"]), 120)]
        case["texts"] = texts
    answers = run_cases([{**case, "tests": case["texts"]} for case in cases])
    for case, answer in zip(cases, answers):
        if answer.get("tests"):
            answer["tests"] = [max((a for a, t in zip(answer["tests"], case["texts"]) if t["of"] == i), key=lambda a: (a["accepted"], a["byte"]))
                               for i in range(len(case["tests"]))]
    refused, wrong, crashes, compiled, right = collections.Counter(), [], [], 0, 0
    for case, answer in zip(cases, answers):
        if "crash" in answer:
            crashes.append((case["name"], answer["crash"]))
            continue
        if "error" in answer:
            # A schema that no value satisfies is refused, and then every verdict is "invalid".
            if "some value satisfies" in answer["error"]["reason"] and not any(t["valid"] for t in case["tests"]):
                compiled += 1
                right += 1
                continue
            refused[reason(answer["error"])] += 1
            if options.refused and re.search(options.refused, reason(answer["error"])):
                print("refused:", case["name"], answer["error"])
            continue
        compiled += 1
        bad = [(t, a) for t, a in zip(case["tests"], answer["tests"]) if t["valid"] != a["accepted"]]
        right += not bad
        for t, a in bad:
            wrong.append((case["name"], t["description"], "accepted" if a["accepted"] else f"rejected at byte {a['byte']}", json.dumps(t["data"])[:80]))
    n = len(cases)
    print(f"JSON-Schema-Test-Suite: {n} groups; {compiled} compile ({compiled / n:.1%}), {right} of them right in full, {len(wrong)} wrong verdicts, {len(crashes)} crashes")
    looser = [w for w in wrong if w[2] == "accepted"]
    print(f"  wrongly accepted {len(looser)}, wrongly rejected {len(wrong) - len(looser)}")
    print("refused, by reason:")
    table(refused)
    for item in wrong[: options.show]:
        print("  wrong:", *item, sep=" | ")
    for item in crashes:
        print("  crash:", item)
    return 0 if not looser and not crashes and compiled >= 0.7 * n else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["maskbench", "json-schema"])
    parser.add_argument("--limit", type=int, default=0, help="that many schemas, drawn at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=20, help="how many wrong verdicts to list")
    parser.add_argument("--refused", default="", help="list the schemas whose refusal matches this expression")
    options = parser.parse_args()
    return maskbench(options) if options.suite == "maskbench" else json_schema(options)


if __name__ == "__main__":
    sys.exit(main())
