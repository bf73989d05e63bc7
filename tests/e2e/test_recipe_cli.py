"""deepmint encode and deepmint decode: what a user or a script can rely on."""
import json
import subprocess

import pytest

import recipe_events
from program import BIN, ROOT, bad, environment, good, run, smollm2

SPEC = ROOT / "tests/spec/recipe"
HELLO = {"model": "deepseek-flash", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <｜User｜>"}],
         "thinking": {"type": "disabled"}}
TOOL = {"name": "get_weather", "parameters": {"type": "object", "properties": {"location": {"type": "string"}}}}


def vectors(name):
    return json.loads((SPEC / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The V4.1 vocabulary as a file."""
    tokenizers = pytest.importorskip("test_tokenizer")
    path = tmp_path_factory.mktemp("v41") / "tokenizer.json"
    path.write_text(json.dumps(tokenizers.deepseek_v41_json(), ensure_ascii=False), encoding="utf-8")
    return path


def encode(request, *args):
    return json.loads(good("encode", *args, input=json.dumps(request)))


# -- encode -----------------------------------------------------------------------------------------------------------------------

def test_encode_gives_the_prompt_and_what_the_request_asks_for():
    out = encode({**HELLO, "max_tokens": 9, "stop": "END"}, "--protocol", "chat")
    assert out["prompt"] == "<｜begin▁of▁sentence｜><｜System｜>Be brief.<｜User｜>Hi <｜User｜><｜Assistant｜></think>"
    assert out["options"]["max_tokens"] == 9 and out["options"]["temperature"] is None
    assert out["parsing"]["stop_sequences"] == ["END"]
    assert out["images"] == [] and out["warnings"] == [] and "token_ids" not in out
    prompt = out["prompt"].encode()
    assert [prompt[a:b].decode() for a, b in out["controls"]] == \
        ["<｜begin▁of▁sentence｜>", "<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "</think>"]


def test_encode_with_a_tokenizer_keeps_control_tokens_and_text_apart(tokenizer):
    ids = encode(HELLO, "--protocol", "chat", "--tokenizer", tokenizer)["token_ids"]
    names = {t["text"]: t["id"] for t in vectors("constants.json")["tokens"].values()}
    assert ids.count(names["<｜User｜>"]) == 1      # the user's own "<｜User｜>" is text
    assert ids[0] == names["<｜begin▁of▁sentence｜>"] and ids[-1] == names["</think>"]
    assert ids == encode(HELLO, "--protocol", "chat", "--tokenizer", tokenizer.parent)["token_ids"]      # a folder


@pytest.mark.parametrize("version", ["v4", "v4.1"])
def test_encode_conversion_vectors(version):
    """Every request of the vectors through --jsonl: the answers of one process are those of one process each."""
    cases = [(v["protocol"], v["request"]) for v in vectors("convert_vectors.json")["ok"]]
    lines = "".join(json.dumps({"protocol": p, "request": r}) + "\n\n" for p, r in cases)
    answers = [json.loads(line) for line in good("encode", "--jsonl", "--compat", "0.1", "--model-version", version, input=lines).splitlines()]
    assert len(answers) == len(cases) and not any("error" in a for a in answers)
    for (protocol, request), answer in list(zip(cases, answers))[::9]:
        assert encode(request, "--protocol", protocol, "--compat", "0.1", "--model-version", version) == answer


def test_jsonl_takes_bare_requests_and_answers_errors_in_place():
    lines = json.dumps(HELLO) + "\n{}\nnot json\n[1]\n" + json.dumps({"version": "v5", "request": HELLO}) + "\n" + json.dumps(HELLO)
    answers = [json.loads(line) for line in good("encode", "--jsonl", "--protocol", "chat", input=lines).splitlines()]
    assert len(answers) == 6 and answers[0] == answers[5] and "prompt" in answers[0]
    assert answers[1]["error"] == {"message": "invalid request body: missing field `messages`", "type": "invalid_request_error", "class": "body"}
    assert all("error" in a for a in answers[1:5])
    assert "v4 or v4.1" in answers[4]["error"]["message"]


def test_jsonl_answers_each_line_before_the_next_comes():
    process = subprocess.Popen([BIN, "encode", "--jsonl", "--protocol", "chat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    for _ in range(3):
        process.stdin.write(json.dumps(HELLO) + "\n")
        process.stdin.flush()
        assert "prompt" in json.loads(process.stdout.readline())
    process.stdin.close()
    assert process.wait(timeout=10) == 0
    process.stdout.close()


def test_explain_shows_control_tokens_and_where_text_came_from():
    request = json.dumps({**HELLO, "messages": HELLO["messages"] + [{"role": "assistant", "content": "Yes\x1b[31m"}, {"role": "user", "content": "\u0085?"}]})
    plain = good("encode", "--protocol", "chat", "--explain", input=request)
    assert plain == ("⟪<｜begin▁of▁sentence｜>⟫⟪<｜System｜>⟫⟦0 system⟧Be brief.⟪<｜User｜>⟫⟦1 user⟧Hi <｜User｜>⟪<｜Assistant｜>⟫⟪</think>⟫"
                     "⟦2 assistant⟧Yes\\x1b[31m⟪<｜end▁of▁sentence｜>⟫⟪<｜User｜>⟫⟦3 user⟧\\u0085?⟪<｜Assistant｜>⟫⟪</think>⟫\n")
    colour = good("encode", "--protocol", "chat", "--explain", "--color", "always", input=request)
    assert "\x1b[1;35m<｜User｜>\x1b[0m\x1b[36m⟦1 user⟧\x1b[0mHi <｜User｜>\x1b[1;35m" in colour
    assert "Yes\\x1b[31m" in colour and "⟪" not in colour


def test_explain_dims_the_template_and_lists_warnings():
    request = {**HELLO, "tools": [{"type": "function", "function": TOOL}]}
    out = good("encode", "--protocol", "chat", "--explain", "--color", "always", input=json.dumps(request))
    assert "\x1b[2m\n\n## Tools" in out.replace("\x1b[2m\n\n\n\n", "\x1b[2m\n\n")
    messages = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}
    assert "\nwarning: " in good("encode", "--protocol", "messages", "--explain", input=json.dumps(messages))


# -- decode -----------------------------------------------------------------------------------------------------------------------

BODIES = {"chat": {"model": "deepseek-flash", "messages": [{"role": "user", "content": "x"}]},
          "messages": {"model": "deepseek-flash", "max_tokens": 100, "messages": [{"role": "user", "content": "x"}]},
          "responses": {"model": "deepseek-flash", "input": "x"}}


def request_for(protocol, vector):
    """A request that asks for what a stream vector assumes; None where the protocol cannot say it."""
    body, options = dict(BODIES[protocol]), vector["options"]
    if protocol == "responses":
        body["reasoning"] = {"effort": "high" if vector["thinking_mode"] else "none"}
    else:
        body["thinking"] = {"type": "enabled" if vector["thinking_mode"] else "disabled"}
    if options.get("parse_tool_calls", True):
        body["tools"] = {"chat": [{"type": "function", "function": TOOL}], "responses": [{"type": "function", **TOOL}, {"type": "custom", "name": "apply_patch"}],
                         "messages": [{"name": TOOL["name"], "input_schema": TOOL["parameters"]}]}[protocol]
    if options.get("stop_sequences"):
        if protocol == "responses":
            return None
        body["stop" if protocol == "chat" else "stop_sequences"] = options["stop_sequences"]
    if protocol == "chat" and vector["chat"].get("include_usage"):
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def chunk_lines(vector):
    usage, lines = vector["prompt_usage"], []
    lines.append({"usage": usage, "fingerprint": "fp-1"})
    for i, chunk in enumerate(vector["chunks"]):
        lines.append({"text": chunk, "tokens": 0 if i else vector["completion_tokens"]})
    if vector["backend_finish"]:
        lines.append({"finish": vector["backend_finish"]})
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
def test_every_stream_vector_through_decode_chunks(protocol, tmp_path):
    seen = 0
    for vector in vectors("stream_vectors.json")["vectors"]:
        request = request_for(protocol, vector)
        if request is None:
            continue
        file = tmp_path / "request.json"
        file.write_text(json.dumps(request), encoding="utf-8")
        arguments = ("decode", "--protocol", protocol, "--request", file, "--chunks", "--compat", "0.1", "--id", "r1", "--created", "1700000000", "--finish", "none")
        response = json.loads(good(*arguments, input=chunk_lines(vector)))
        assert response == vector[protocol]["response"], vector["name"]
        events = recipe_events.from_sse(good(*arguments, "--stream", input=chunk_lines(vector)), protocol)
        assert recipe_events.joined(events) == recipe_events.joined(vector[protocol]["events"]), vector["name"]
        seen += 1
    assert seen == (15 if protocol == "responses" else 16)


OUTPUT = "Let me look.</think>Sure — “ça va”.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n" \
         "<｜DSML｜ parameter name=\"location\" string=\"true\">Köln</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
def test_decode_is_the_same_at_every_cut(protocol, tmp_path):
    vector = {"options": {}, "thinking_mode": True, "chat": {}}
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request_for(protocol, vector)), encoding="utf-8")
    arguments = ("decode", "--protocol", protocol, "--request", file, "--id", "r7", "--created", "5")
    whole = json.loads(good(*arguments, input=OUTPUT))
    assert "Köln" in json.dumps(whole, ensure_ascii=False) and "r7" in json.dumps(whole)
    events = recipe_events.joined(recipe_events.from_sse(good(*arguments, "--stream", input=OUTPUT), protocol))
    for cut in (1, 2, 3, 7, 64):
        assert json.loads(good(*arguments, "--cut", cut, input=OUTPUT)) | {"usage": 0} == whole | {"usage": 0}
        again = recipe_events.joined(recipe_events.from_sse(good(*arguments, "--stream", "--cut", cut, input=OUTPUT), protocol))
        assert again == events


def test_decode_finish_reasons(tmp_path):
    file = tmp_path / "request.json"
    file.write_text(json.dumps({**BODIES["chat"], "thinking": {"type": "disabled"}}), encoding="utf-8")
    for finish, want in (("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("none", "stop")):
        out = json.loads(good("decode", "--protocol", "chat", "--request", file, "--finish", finish, input="hi"))
        assert out["choices"][0]["finish_reason"] == want and out["choices"][0]["message"]["content"] == "hi"
    assert json.loads(good("decode", "--protocol", "chat", "--request", file, input=""))["choices"][0]["message"]["content"] == ""


def test_decode_with_a_tokenizer_counts_and_takes_ids(tokenizer, tmp_path):
    file = tmp_path / "request.json"
    request = request_for("chat", {"options": {}, "thinking_mode": True, "chat": {}})
    file.write_text(json.dumps(request), encoding="utf-8")
    arguments = ("decode", "--protocol", "chat", "--request", file, "--tokenizer", tokenizer)
    ids = json.loads(good("tokenize", tokenizer, "-p", "-", "--control", "--json", input=OUTPUT))["ids"]
    text = json.loads(good(*arguments, input=OUTPUT))
    assert text["usage"]["prompt_tokens"] == len(encode(request, "--protocol", "chat", "--tokenizer", tokenizer)["token_ids"])
    assert text["usage"]["completion_tokens"] == len(ids)
    lines = "".join(json.dumps({"token_ids": [i]}) + "\n" for i in ids)
    tokens = json.loads(good(*arguments, "--chunks", input=lines))
    assert tokens["choices"] == text["choices"] and tokens["usage"]["completion_tokens"] == len(ids)
    assert tokens["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    # The characters of a close tag as ordinary tokens are part of the value.
    head, tail = OUTPUT.split("Köln")
    literal = "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
    ids = []
    for piece, control in ((head, ["--control"]), (literal, []), (tail, ["--control"])):
        ids += json.loads(good("tokenize", tokenizer, "-p", "-", *control, "--json", input=piece))["ids"]
    call, = json.loads(good(*arguments, "--chunks", input=json.dumps({"token_ids": ids})))["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"location": literal}


def test_decode_streams_while_chunks_come(tmp_path):
    file = tmp_path / "request.json"
    file.write_text(json.dumps({**BODIES["messages"], "thinking": {"type": "disabled"}}), encoding="utf-8")
    process = subprocess.Popen([BIN, "decode", "--protocol", "messages", "--request", str(file), "--chunks", "--stream"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    process.stdin.write('"Hello"\n')
    process.stdin.flush()
    seen = ""
    while '"text":"Hello"' not in seen:
        line = process.stdout.readline()
        assert line
        seen += line
    process.stdin.close()
    assert "message_stop" in process.stdout.read()
    assert process.wait(timeout=10) == 0
    process.stdout.close()


def test_decode_jsonl_gives_events_and_response():
    case = {"protocol": "responses", "request": BODIES["responses"], "chunks": ["hm</think>", "yes", {"finish": "length"}], "id": "r1", "created": 3}
    out, wrong = [json.loads(line) for line in good("decode", "--jsonl", input=json.dumps(case) + "\n" + json.dumps({**case, "chunks": [5]})).splitlines()]
    assert out["events"][0]["event"] == "response.created" and out["events"][-1]["event"] == "response.incomplete"
    assert out["response"]["status"] == "incomplete" and out["finish_reason"] == "length"
    assert "chunk 1" in wrong["error"]["message"]


# -- wrong input ------------------------------------------------------------------------------------------------------------------

def test_wrong_options(tmp_path):
    file = tmp_path / "request.json"
    file.write_text(json.dumps(BODIES["chat"]), encoding="utf-8")
    bad("encode", input="{}", says=["--protocol", "chat, messages or responses"])
    bad("encode", "--protocol", "grpc", input="{}", says=["--protocol", "grpc"])
    bad("encode", "--protocol", "chat", "--model-version", "5", input="{}", says=["--model-version", "v4 or v4.1"])
    bad("encode", "--protocol", "chat", "--compat", "0.3", input="{}", says=["--compat", "0.3"])
    bad("encode", "--protocol", "chat", "--color", "red", input="{}", says=["--color", "red"])
    bad("encode", "--protocol", "chat", "--explain", "--jsonl", input="{}", says=["both"])
    bad("decode", "--protocol", "chat", input="x", says=["--request"])
    for option, value in (("--finish", "done"), ("--cut", "-1"), ("--cut", "x"), ("--created", "1.5"), ("--created", "99999999999999999999")):
        bad("decode", "--protocol", "chat", "--request", file, f"{option}={value}", input="x", says=[option, value])
    bad("decode", "--jsonl", "--request", file, input="", says=["--jsonl", "--request"])


def test_wrong_requests_and_chunks(tmp_path):
    for body, says in (("", ["request"]), ("{", ["request", "byte"]), ("[]", ["request"]), ('{"model":"m"}', ["missing field `messages`"]),
                       ('{"model":"m","messages":"x"}', ["sequence"]), ("[" * 500, ["request"]), ('{"a":"\\ud800"}', ["request"])):
        bad("encode", "--protocol", "chat", input=body, says=says)
    result = run("encode", "--protocol", "chat", input="\udcff{}", errors="surrogateescape")
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    file = tmp_path / "request.json"
    bad("decode", "--protocol", "chat", "--request", file, input="x", says=["request.json"])
    bad("decode", "--protocol", "chat", "--request", tmp_path, input="x", says=[tmp_path.name])
    file.write_text("{", encoding="utf-8")
    bad("decode", "--protocol", "chat", "--request", file, input="x", says=["request.json"])
    file.write_text(json.dumps(BODIES["chat"]), encoding="utf-8")
    for lines, says in (("5", ["line 1"]), ('"a"\n\n{"txt":"b"}', ["line 3", "txt"]), ('{"finish":"done"}', ["line 1", "done"]), ('{"token_ids":[5]}', ["tokenizer"]),
                        ('{"text":5}', ["text"]), ('{"tokens":-1,"text":"a"}', ["tokens"]), ('{"usage":{"prompt_tokens":1,"cached_tokens":2}}', ["cached_tokens"]), ("{", ["line 1"])):
        bad("decode", "--protocol", "chat", "--request", file, "--chunks", input=lines, says=says)


def test_wrong_tokenizers(tmp_path):
    bad("encode", "--protocol", "chat", "--tokenizer", tmp_path / "none", input="{}", says=["none"])
    bad("encode", "--protocol", "chat", "--tokenizer", tmp_path, input="{}", says=["tokenizer.json"])
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}", encoding="utf-8")
    bad("encode", "--protocol", "chat", "--tokenizer", broken, input="{}", says=["tokenizer.json"])
    bad("encode", "--protocol", "chat", "--tokenizer", smollm2(), input="{}", says=["<｜begin▁of▁sentence｜>"])


def test_output_that_is_not_utf8_still_gives_a_response(tmp_path):
    file = tmp_path / "request.json"
    file.write_text(json.dumps({**BODIES["chat"], "thinking": {"type": "disabled"}}), encoding="utf-8")
    result = subprocess.run([BIN, "decode", "--protocol", "chat", "--request", str(file)], input=b"a\xffb\xc3", capture_output=True, env=environment(), check=True)
    assert json.loads(result.stdout)["choices"][0]["message"]["content"] == "a\ufffdb\ufffd"


