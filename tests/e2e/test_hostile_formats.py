"""Formats that mean harm, through HTTP and through the command: a reply in the format or a clear refusal, soon, while others are served."""
import http.client
import json
import os
import threading
import time

import pytest

from program import bad, run

BUSY = max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))  # a machine that does other things too takes longer
SOON_S = 20 * BUSY    # until the answer; a compilation is cut by steps that take half a second
STALL_S = 5 * BUSY    # between two pieces of a neighbour's reply


def chain(n):
    defs = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{n}": {"type": "integer"}}}


def doubling(keyword, n):
    defs = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(n)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{n}": {"minimum": 1}}}


def products(n):
    """2^n combinations of alternatives."""
    return {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(n)]}


def nested(n):
    schema = {"type": "integer"}
    for _ in range(n):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


SCHEMAS = {
    "references in a row": chain(2000),
    "a reference to itself": {"$ref": "#"},
    "a reference to nowhere": {"$ref": "#/$defs/x"},
    "a remote reference": {"properties": {"a": {"$ref": "http://example.test/schema"}}},
    "a file": {"$ref": "file:///etc/passwd"},
    "doubling allOf": doubling("allOf", 60),
    "doubling anyOf": doubling("anyOf", 60),
    "doubling oneOf": doubling("oneOf", 60),
    "a product of alternatives": products(40),
    "nested deeper than JSON may": nested(100),
    "a megabyte of properties": {"type": "object", "properties": {f"property number {i}": {"type": "string", "maxLength": i} for i in range(18_000)}},
    "over a megabyte": {"enum": ["x" * 1_200_000]},
    "ten thousand choices": {"enum": [f"choice number {i}" for i in range(10_000)]},
    "ten thousand alternatives": {"anyOf": [{"type": "object", "properties": {f"k{i}": {"type": "integer"}}, "required": [f"k{i}"]} for i in range(10_000)]},
    "huge counts": {"type": "array", "minItems": 999_999_999, "maxItems": 10 ** 18, "items": {"type": "string", "minLength": 10 ** 9}},
    "counts of counts": {"type": "array", "minItems": 20_000, "maxItems": 40_000, "contains": {"minimum": 3}, "minContains": 5_000, "maxContains": 9_000},
    "many required of many": {"type": "object", "properties": {f"k{i}": {} for i in range(2000)}, "minProperties": 1000, "maxProperties": 1500},
    "long numbers": {"type": "number", "minimum": 1e300, "multipleOf": 1e-300},
    "nothing": {"not": {}},
    "no number": {"type": "integer", "minimum": 5, "maximum": 4},
    "an endless object": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "a nested pattern": {"type": "string", "pattern": "^((((a{1,100}){1,100}){1,100}){1,100})$"},
    "an exponential pattern": {"type": "string", "pattern": "^(a|b)*a(a|b){4000}$"},
    "a backtracking pattern": {"type": "string", "pattern": "^(a+)+(a+)+(a+)+b$"},
    "a pattern against a pattern": {"allOf": [{"pattern": f"^(..{{{i}}})*$"} for i in (2, 3, 5, 7, 11, 13, 17, 19, 23)], "type": "string", "minLength": 1},
    "a look-behind": {"type": "string", "pattern": "(?<=a)b"},
    "an open pattern": {"type": "string", "pattern": "(((" * 1000},
    "a lone surrogate": {"const": "\ud800"},
    "a type that is none": {"type": "strin"},
    "no schema": [1, 2],
}
REGEXES = {
    "counts in counts": "((a{1,10000}){1,10000}){1,10000}",
    "an exponential automaton": "(a|b)*a(a|b){1000}",
    "any text a million times": "(.{0,10000}){0,10000}",
    "groups in groups": "(" * 5000 + "a" + ")" * 5000,
    "a back-reference": r"(a)\1",
    "a word boundary": r"\bword\b",
    "too long": "a" * 100_000,
    "nothing": "[^\\x00-\\x{10FFFF}]",
}
GRAMMARS = {
    "endless": 'root ::= root "a"\n',
    "endless in turns": 'root ::= x\nx ::= y "a"\ny ::= x | y\n',
    "no root": 'start ::= "a"\n',
    "unknown rule": "root ::= nowhere\n",
    "counts in counts": 'root ::= (("a"{1,10000}){1,10000}){1,10000}\n',
    "too deep": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000 + "\n",
    "too many rules": "root ::= r0\n" + "".join(f'r{i} ::= r{i + 1} "a" | "b"\n' for i in range(30_000)) + 'r30000 ::= "a"\n',
    "open": 'root ::= ("a" | [b',
    "ambiguous": 'root ::= s\ns ::= s s s | s s | "a" | ""\n',
}


def post(server, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


class Neighbour(threading.Thread):
    """A streaming reply of somebody else; `gap` is the longest time between two of its pieces."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.gap, self.pieces, self.over, self.error, self.running = server, 0.0, 0, False, None, threading.Event()

    def run(self):
        try:
            while not self.over:
                connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
                connection.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "Tell a long story."}], "stream": True, "ignore_eos": True, "max_tokens": 2000}),
                                   {"Content-Type": "application/json"})
                response = connection.getresponse()
                assert response.status == 200
                last = time.monotonic()
                while not self.over and response.readline():
                    now = time.monotonic()
                    self.gap, last = max(self.gap, now - last), now
                    self.pieces += 1
                    if self.pieces > 4:
                        self.running.set()
                connection.close()
        except Exception as error:  # told to the test
            self.error = error
            self.running.set()


@pytest.fixture(scope="module")
def neighbour(server):
    one = Neighbour(server)
    one.start()
    assert one.running.wait(timeout=60)
    yield one
    one.over = True
    one.join(timeout=60)
    assert one.error is None, one.error


def answer_soon(server, neighbour, response_format):
    neighbour.gap, before = 0.0, neighbour.pieces
    start = time.monotonic()
    status, answer = post(server, json.dumps({"messages": [{"role": "user", "content": "go"}], "max_tokens": 4, "temperature": 1, "seed": 1, "response_format": response_format}))
    took = time.monotonic() - start
    assert took < SOON_S and neighbour.gap < STALL_S, (took, neighbour.gap, neighbour.pieces - before)
    if status == 400:
        error = answer["error"]
        assert error["param"] == ("response_format" if "request body" not in error["message"] else None) and len(error["message"]) < 1000 and "\n" not in error["message"], error
    else:
        assert status == 200 and answer["choices"][0]["finish_reason"] in ("stop", "length"), answer
    return status


REFUSED = {"a reference to itself", "a reference to nowhere", "a remote reference", "a file", "a product of alternatives", "over a megabyte", "nothing", "no number", "an endless object",
           "a look-behind", "an open pattern", "a type that is none", "no schema"}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_over_http(server, neighbour, name):
    if name == "a lone surrogate":
        status, answer = post(server, '{"messages": [{"role": "user", "content": "go"}], "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": "\\ud800"}}}}')
        assert status == 400 and "\n" not in answer["error"]["message"]
        return
    status = answer_soon(server, neighbour, {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMAS[name]}})
    assert status == 400 or name not in REFUSED


@pytest.mark.parametrize("name", REGEXES)
def test_regular_expressions_over_http(server, neighbour, name):
    status = answer_soon(server, neighbour, {"type": "regex", "regex": REGEXES[name]})
    assert status == 400 or name not in ("groups in groups", "a back-reference", "a word boundary", "too long", "nothing")


def test_bytes_that_are_no_text_over_http(server, neighbour):
    body = b'{"messages": [{"role": "user", "content": "go"}], "response_format": {"type": "regex", "regex": "a\xff"}}'
    status, answer = post(server, body)
    assert status == 400 and "\n" not in answer["error"]["message"]


def command_ends_soon(args):
    start = time.monotonic()
    result = run(*args, timeout=120)
    assert time.monotonic() - start < SOON_S
    assert result.returncode in (0, 2), (result.returncode, result.stderr)
    if result.returncode == 2:
        assert result.stderr.count("\n") == 1 and len(result.stderr) < 1000 and result.stdout == "", result.stderr


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_through_the_command(tmp_path, name):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMAS[name]))
    command_ends_soon(["grammar", "compile", "--schema", path])


@pytest.mark.parametrize("name", REGEXES)
def test_regular_expressions_through_the_command(name):
    command_ends_soon(["grammar", "compile", "--regex", REGEXES[name]])


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars_through_the_command(tmp_path, name):
    path = tmp_path / "grammar.gbnf"
    path.write_text(GRAMMARS[name])
    command_ends_soon(["grammar", "compile", "--ebnf", path])


def test_bytes_that_are_no_text_through_the_command(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b'root ::= "\xff"\n')
    bad("grammar", "compile", "--ebnf", path, says=["UTF-8", "1:"])
    path.write_bytes(b'{"triggers": ["\xff"]}')
    bad("grammar", "compile", "--structural-tag", path)
    bad("grammar", "compile", "--regex", "(?<=a)b", says=["look"])
