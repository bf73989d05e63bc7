"""`deepmint grammar` and the JSON Schema compiler behind it: the command, the published suites, the published validator."""
import decimal
import fractions
import http.client
import importlib.util
import itertools
import json
import os
import random
import sys
import threading
import unicodedata

import pytest

import grammar_gen
from program import ROOT, Server, bad, good, run, smollm2

jsonschema = pytest.importorskip("jsonschema", reason="the jsonschema package is not installed")

FULL = os.environ.get("DEEPMINT_TEST_FULL") == "1"
SEED = int(os.environ.get("DEEPMINT_TEST_SEED", random.randrange(1 << 32)))

spec = importlib.util.spec_from_file_location("grammar_suites", ROOT / "bench/grammar_suites.py")
suites = importlib.util.module_from_spec(spec)
spec.loader.exec_module(suites)


def lines(cases, *args):
    out = good("grammar", *args, "--jsonl", input="".join(json.dumps(c) + "\n" for c in cases), timeout=900)
    return [json.loads(line) for line in out.split("\n") if line]


def verdict(schema, value):
    """The published validator's; None where it does not end (a reference that leads back to itself, behind a branch that decides nothing)."""
    text = json.dumps(schema)
    for ecmascript, python in (('$"', '\\\\Z"'),  # Python's $ also stands in front of a last line end
                               ('"^.{2}', '"^[^\\\\n\\\\r\\u2028\\u2029]{2}')):  # its . excludes that one line end only
        text = text.replace(ecmascript, python)
    try:
        read = exact(text)
        return jsonschema.validators.validator_for(read, jsonschema.Draft202012Validator)(read).is_valid(value)
    except RecursionError:
        return None


def exact(text):
    """The value of a JSON text with numbers as they are: doubles would round what the grammar keeps apart."""
    def number(spelling):
        exponent = spelling.lower().partition("e")[2]
        if exponent and abs(int(exponent)) > 1000:
            return float(spelling)
        value = fractions.Fraction(decimal.Decimal(spelling))
        return int(value) if value.denominator == 1 else value
    return json.loads(text, parse_float=number)


# --- the command ---

@pytest.fixture
def schema_file(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}')
    return path


def test_compile_says_what_a_grammar_is_made_of(schema_file):
    got = json.loads(good("grammar", "compile", "--schema", schema_file))
    assert got["productions"] > 0 and got["terminals"] > 0


def test_an_accepted_text_ends_with_0(schema_file, tmp_path):
    text = tmp_path / "text.json"
    text.write_text('{"n": 12}\n')
    assert good("grammar", "test", "--schema", schema_file, "--instance", text) == "accepted\n"


def test_a_rejected_text_ends_with_1_and_says_where_and_what_was_allowed(schema_file, tmp_path):
    text = tmp_path / "text.json"
    text.write_text('{"n": "x"}')
    bad("grammar", "test", "--schema", schema_file, "--instance", text, code=1, says=["rejected at byte 6 of 10", "0 … 9", "-", 'found "'])
    text.write_text('{"n": 1')
    bad("grammar", "test", "--schema", schema_file, "--instance", text, code=1, says=["rejected at byte 7 of 7", "}", "found the end of the text"])


def test_what_cannot_be_compiled_ends_with_2_and_says_pointer_and_reason(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text('{"properties": {"x": {"$ref": "http://example.test/other"}}}')
    bad("grammar", "compile", "--schema", path, says=["schema.json", "#/properties/x/$ref", "inside this document"])
    path.write_text('{"type": "array", "items": {"type": "string"}, "uniqueItems": true}')
    bad("grammar", "compile", "--schema", path, says=["uniqueItems"])
    path.write_text('{"type": ')
    bad("grammar", "compile", "--schema", path, says=["schema.json"])
    path.write_bytes(b'{"const": "\xff"}')
    bad("grammar", "compile", "--schema", path, says=["schema.json"])


def test_a_regex_and_an_ebnf_are_tested_too(tmp_path):
    text = tmp_path / "text"
    text.write_text("2024-05\n")
    assert good("grammar", "test", "--regex", "[0-9]{4}-[0-9]{2}", "--instance", text) == "accepted\n"
    bad("grammar", "test", "--regex", "[0-9]{4}", "--instance", text, code=1, says=["rejected at byte 4 of 7", "the end of the text"])
    grammar = tmp_path / "g.ebnf"
    grammar.write_text('root ::= [0-9]+ ("-" [0-9]+)*\n')
    assert good("grammar", "test", "--ebnf", grammar, "--instance", text) == "accepted\n"


def test_structural_tags_are_tested_too(tmp_path):
    text, tags = tmp_path / "text", tmp_path / "tags.json"
    tags.write_text(json.dumps({"triggers": ["<f="], "structures": [{"begin": "<f=add>", "schema": {"type": "integer"}, "end": "</f>"}]}))
    text.write_text("one <f=add>12</f> two\n")
    assert good("grammar", "test", "--structural-tag", tags, "--instance", text) == "accepted\n"
    text.write_text("one <f=mul>12</f> two\n")
    bad("grammar", "test", "--structural-tag", tags, "--instance", text, code=1, says=["rejected at byte 7 of 21", "expected a, found m"])
    got = lines([{"structural_tag": json.loads(tags.read_text()), "tests": [{"valid": True, "text": "<f=add>1</f>"}, {"valid": False, "text": "<f="}]}], "test")
    assert [t["accepted"] for t in got[0]["tests"]] == [True, False]
    tags.write_text('{"triggers": ["<"], "structures": [{"begin": "<", "schema": {"type": "strin"}, "end": ""}]}')
    bad("grammar", "compile", "--structural-tag", tags, says=["tags.json", "#/structures/0", "#/type", "strin"])
    bad("run", smollm2(), "-p", "x", "--structural-tag", tags, says=["tags.json", "#/structures/0"])


def test_wrong_command_lines_are_named(schema_file):
    bad("grammar", "comple", "--schema", schema_file, says=["compile, test, bench or sample"])
    bad("grammar", "test", "--schema", schema_file, says=["--instance"])
    bad("grammar", "compile", says=["found none"])
    bad("grammar", "compile", "--schema", schema_file, "--regex", "a", says=["found several"])
    bad("grammar", "compile", "--schema", "/nowhere/s.json", says=["/nowhere/s.json"])
    bad("grammar", "test", "--schema", schema_file, "--instance", "/nowhere/i.json", says=["/nowhere/i.json"])
    bad("grammar", "sample", "--schema", schema_file, "--count", "x", says=["--count"])


def test_bench_times_a_text_and_says_where_it_is_rejected(schema_file, tmp_path):
    text = tmp_path / "text.json"
    text.write_text('{"n": 12}')
    got = json.loads(good("grammar", "bench", "--schema", schema_file, "--instance", text))
    assert got["accepted"] and "rejected_at" not in got
    assert got["tokens"] == 9 and got["memory_bytes"] > 0
    assert all(0 <= got[k]["p50"] <= got[k]["p99"] <= got[k]["max"] for k in ("compile_us", "mask_us", "accept_us"))
    text.write_text('{"n": "x"}')
    got = json.loads(good("grammar", "bench", "--schema", schema_file, "--instance", text))
    assert not got["accepted"] and got["tokens"] == 6
    assert got["rejected_at"].startswith("byte 6 of 10: expected ") and got["rejected_at"].endswith('found "')


def test_texts_are_walked_by_the_tokens_of_a_tokenizer(schema_file, tmp_path):
    text = tmp_path / "text.json"
    text.write_text('{"n": 12}')
    command = ["--schema", schema_file, "--instance", text, "--tokenizer", smollm2()]
    assert good("grammar", "test", *command) == "accepted\n"
    assert json.loads(good("grammar", "bench", *command))["tokens"] < 9
    text.write_text('{"n": "x"}')
    bad("grammar", "test", *command, code=1, says=["rejected at byte 6 of 10"])


def test_lines_answer_one_for_one():
    got = lines([{"name": "a", "schema": {"type": "integer"}, "tests": [{"valid": True, "data": 1}, {"valid": False, "data": "x"}, {"valid": True, "text": "1.0"}]},
                 {"name": "b", "schema": {"$ref": "http://x.test"}, "tests": [{"valid": True, "data": 1}]},
                 {"name": "c", "regex": "a+", "tests": [{"valid": True, "text": "aa"}]},
                 {"name": "d", "rexeg": "a+", "tests": [{"valid": True, "text": "aa"}]}], "test")
    assert [t["accepted"] for t in got[0]["tests"]] == [True, False, True]
    assert got[0]["tests"][1]["byte"] == 0
    assert got[1]["error"]["pointer"] == "#/$ref" and got[1]["tests"] == []
    assert got[2]["tests"] == [{"valid": True, "accepted": True, "byte": 2}]
    assert got[3]["error"]["pointer"] == "standard input, line 4" and '"schema"' in got[3]["error"]["reason"] and got[3]["tests"] == []


# --- the published suites ---

def suite(call, *args):
    """Runs a suite as its command does, in this process."""
    before, sys.argv = sys.argv, ["grammar_suites.py", *args]
    try:
        return call()
    finally:
        sys.argv = before


@pytest.mark.parametrize("name", ["json-schema", "maskbench"])
def test_no_suite_finds_a_text_that_is_wrongly_accepted(name, capsys):
    if not suites.data_folder().exists():
        pytest.skip(f"{suites.data_folder()} is not there (DEEPMINT_DATA)")
    args = [] if name == "json-schema" or FULL else ["--limit", "400", "--seed", str(SEED)]
    status = suite(suites.main, name, *args)
    assert status == 0, capsys.readouterr().out


# --- against the published validator ---

def test_every_text_that_a_grammar_can_write_validates():
    rng = random.Random(SEED)
    schemas = [grammar_gen.document(rng) for _ in range(20_000 if FULL else 1_500)]
    answers = lines([{"schema": s} for s in schemas], "sample", "--count", "12", "--seed", str(SEED))
    compiled = texts = 0
    for schema, answer in zip(schemas, answers, strict=True):
        if "error" in answer:
            continue
        compiled += 1
        for text in answer["samples"]:
            texts += 1
            assert verdict(schema, exact(text)) is not False, f"seed {SEED}: {text}\n{json.dumps(schema)}"
    assert compiled > 0.6 * len(schemas) and texts > 4 * compiled, (compiled, texts, len(schemas))


def test_a_grammar_accepts_exactly_what_validates():
    """Up to the order of members: a value is accepted in one order of them at least, or in none when it is not valid."""
    rng = random.Random(SEED + 1)
    cases = []
    for _ in range(20_000 if FULL else 1_500):
        schema = grammar_gen.document(rng)
        values = [grammar_gen.value(rng) for _ in range(8)]
        tests = []
        for i, value in enumerate(values):
            for one in itertools.islice(suites.orders(value), 40):
                tests.append({"i": i, "valid": False, "text": grammar_gen.spelled(rng, one)})
        cases.append({"schema": schema, "values": values, "tests": tests})
    answers = lines([{"schema": c["schema"], "tests": c["tests"]} for c in cases], "test")
    compiled = accepted = rejected = 0
    for case, answer in zip(cases, answers, strict=True):
        if "error" in answer:
            continue
        compiled += 1
        for i, value in enumerate(case["values"]):
            mine = [t for t in range(len(case["tests"])) if case["tests"][t]["i"] == i]
            got = any(answer["tests"][t]["accepted"] for t in mine)
            expected = verdict(case["schema"], exact(json.dumps(value)))
            if expected is None or (expected and not got and len(mine) == 40):
                continue  # no verdict, or not all orders were tried
            accepted += got
            rejected += not got
            assert got == expected, f"seed {SEED}: {json.dumps(value)} is {'' if expected else 'not '}valid\n{json.dumps(case['schema'])}\n{[case['tests'][t]['text'] for t in mine[:3]]}"
    assert compiled > 0.6 * len(cases) and accepted > compiled and rejected > compiled, (compiled, accepted, rejected)


def test_encoded_host_names_are_those_of_the_published_package():
    idna = pytest.importorskip("idna", reason="the idna package is not installed")
    rng = random.Random(SEED + 3)
    blocks = [(0xe0, 0x24f), (0x370, 0x3ff), (0x400, 0x4ff), (0x590, 0x5f4), (0x600, 0x6ff), (0x700, 0x74f), (0x900, 0x97f), (0x1100, 0x11ff), (0x3040, 0x30ff), (0xac00, 0xac80)]
    special = [0xb7, 0x375, 0x5f3, 0x5f4, 0x30fb, 0x660, 0x665, 0x6f0, 0x6f4, 0x200c, 0x200d, 0x94d, 0x640, 0x7fa, 0xdf, 0x3c2, 0x302e, 0x3007]
    labels = []
    while len(labels) < (40_000 if FULL else 3_000):
        block = rng.choice(blocks)
        points = [rng.choice(special) if rng.random() < 0.2 else ord(rng.choice("abl09-z")) if rng.random() < 0.3 else rng.randint(*block) for _ in range(rng.randrange(1, 7))]
        text = "".join(map(chr, points))
        if max(points) >= 128 and all(unicodedata.category(c) != "Cn" for c in text):
            encoded = text.encode("punycode").decode()
            labels.append(encoded)
            at = rng.randrange(len(encoded))
            labels.append(encoded[:at] + rng.choice("abcdefghijklmnopqrstuvwxyz0123456789-") + encoded[at + 1:])
    labels = [label for label in labels if label.isascii() and label == label.lower() and "." not in label]

    def valid(label):
        try:
            text = idna.ulabel("xn--" + label)
            if any(unicodedata.category(c) == "Cn" for c in text):
                return None  # newer than what one of the two knows
            return not text.isascii() and idna.alabel(text).decode() == "xn--" + label
        except idna.IDNAError as error:
            return None if "nknown" in str(error) else False
    answer, = lines([{"schema": {"type": "string", "format": "hostname"}, "tests": [{"valid": False, "text": f'"xn--{label}"'} for label in labels]}], "test")
    accepted = 0
    for label, got in zip(labels, answer["tests"], strict=True):
        expected = valid(label)
        accepted += got["accepted"]
        assert expected is None or got["accepted"] == expected, f"seed {SEED}: xn--{label} is {'' if expected else 'not '}valid"
    assert accepted > len(labels) // 20


def test_spellings_of_a_member_never_slip_past_its_schema():
    schema = {"type": "object", "properties": {"ab": {"type": "integer"}}, "required": ["ab"]}
    texts = ['{"ab":1,"x":2}', '{"\\u0061b":1}', '{"ab":1,"\\u0061b":"x"}', '{"ab":1,"a\\u0062":"x"}', '{"ab":1,"ab":"x"}']
    got = lines([{"schema": schema, "tests": [{"valid": False, "text": t} for t in texts]}], "test")
    assert [t["accepted"] for t in got[0]["tests"]] == [True, True, False, False, False]


PRACTICAL = [
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
     "required": ["name", "age", "tags"], "additionalProperties": False},
    {"type": "array", "items": {"type": "number", "minimum": -1, "exclusiveMaximum": 2.5, "multipleOf": 0.25}, "minItems": 2, "maxItems": 4},
    {"anyOf": [{"type": "object", "properties": {"kind": {"const": "date"}, "value": {"type": "string", "format": "date"}}, "required": ["kind", "value"], "additionalProperties": False},
               {"type": "object", "properties": {"kind": {"const": "flag"}, "value": {"type": "boolean"}}, "required": ["kind", "value"], "additionalProperties": False}]},
    {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"},
    {"type": "object", "properties": {"id": {"type": "string", "format": "uuid"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["id", "next"], "additionalProperties": False},
]


def reply_schemas():
    """Practical ones, then those of the public suite in a fixed order; random ones where the suite is not there."""
    yield from PRACTICAL
    if suites.data_folder().exists():
        cases = suites.read_lines("maskbench-dev.jsonl.zst")
        random.Random(2026).shuffle(cases)
        yield from (c["schema"] for c in cases)
    rng = random.Random(SEED + 2)
    while True:
        yield {"type": "object", "properties": {k: grammar_gen.schema(rng, 2) for k in "abc"}, "required": ["a", "b"], "additionalProperties": False}


def ask(server, fields):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(fields), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_what_a_model_writes_under_a_schema_validates():
    """At temperature 1: every reply that ends by itself parses and validates; those cut by their length are only beginnings."""
    wanted = 200 if FULL else 20
    schemas = reply_schemas()
    lock = threading.Lock()
    got = []

    def work(server):
        while True:
            with lock:
                if len(got) >= wanted:
                    return
                schema = next(schemas)
                n = len(got)
                got.append(None)
            status, reply = ask(server, {"messages": [{"role": "user", "content": "Write a short JSON example."}], "temperature": 1, "seed": n, "max_tokens": 160,
                                         "response_format": {"type": "json_schema", "json_schema": {"name": "example", "schema": schema}}})
            with lock:
                if status == 400:  # refused: the next schema takes its place
                    got.remove(None)
                else:
                    got[got.index(None)] = (n, schema, status, reply)

    with Server(smollm2()) as server:
        workers = [threading.Thread(target=work, args=(server,)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    ended = 0
    for n, schema, status, reply in got:
        assert status == 200, (n, reply, schema)
        choice = reply["choices"][0]
        assert choice["finish_reason"] in ("stop", "length"), (n, choice, schema)
        if choice["finish_reason"] == "stop":
            ended += 1
            assert verdict(schema, exact(choice["message"]["content"])) is not False, (n, choice, schema)
    print(f"{len(got)} replies under as many schemas, {ended} ended by themselves, all of them valid")
    assert len(got) == wanted and ended >= wanted // 4, (len(got), ended)


def test_large_hostile_schemas_end_in_a_line():
    deep = "{}"
    for _ in range(120):
        deep = '{"properties":{"a":' + deep + "}}"
    run_cases = [
        '{"schema":' + deep + ',"tests":[{"valid":true,"data":{}}]}',
        json.dumps({"schema": {"enum": [f"v{i}" for i in range(10_000)]}, "tests": [{"valid": True, "data": "v77"}]}),
        json.dumps({"schema": {"properties": {f"p{i}": {"type": "string", "maxLength": i} for i in range(5_000)}}, "tests": [{"valid": True, "data": {"p7": "x"}}]}),
        json.dumps({"schema": {"anyOf": [{"required": [f"k{i}"]} for i in range(400)]}, "tests": [{"valid": True, "data": {"k7": 1}}]}),
        "[" * 5000, '"\\ud800"', "nonsense",
    ]
    result = run("grammar", "test", "--jsonl", input="\n".join(run_cases) + "\n", timeout=300)
    assert result.returncode == 0, result.stderr
    got = [json.loads(line) for line in result.stdout.split("\n") if line]
    assert len(got) == len(run_cases)
    assert all("error" in a or all(t["accepted"] for t in a["tests"]) for a in got), got
