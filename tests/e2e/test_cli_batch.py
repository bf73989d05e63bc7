"""batch as a process: a file of requests in, a file of results out, whatever happens in between."""
import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from program import BIN, Server, Terminal, bad, environment, good, run, smollm2

jsonschema = pytest.importorskip("jsonschema", reason="the jsonschema package is not installed")


def line(custom_id, content="Say something.", **fields):
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "seed": 1, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def put(path, lines):
    path.write_text("".join((entry if isinstance(entry, str) else json.dumps(entry)) + "\n" for entry in lines))
    return path


def results(path):
    """By custom_id, or "line 3" where there is none; every line is whole, and nobody is there twice."""
    data = path.read_bytes() if hasattr(path, "read_bytes") else path.encode()
    assert data == b"" or data.endswith(b"\n")
    entries = [json.loads(entry) for entry in data.decode().splitlines()]
    found = {entry["custom_id"] or entry["error"]["message"].partition(":")[0]: entry for entry in entries}
    assert len(found) == len(entries)
    assert len({entry["id"] for entry in entries}) == len(entries)
    for entry in entries:
        assert list(entry) == ["id", "custom_id", "response", "error"]
        assert (entry["response"] is None) != (entry["error"] is None)
    return found


def body(entry):
    assert entry["error"] is None and entry["response"]["status_code"] == 200, entry
    return entry["response"]["body"]


def content(entry):
    return body(entry)["choices"][0]["message"]["content"]


def same(answer):
    """An answer without what says when it was given, and what was in the cache."""
    answer = {k: v for k, v in answer.items() if k not in ("id", "created")}
    if "usage" in answer:
        answer["usage"] = {k: v for k, v in answer["usage"].items() if "details" not in k and "cache" not in k}
    return answer


def ask(server, request):
    call = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(request).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(call, timeout=60) as response:
            return 200, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def failing(*args, says="", **kwargs):
    """Exit code 1 because of requests that failed: one line says so."""
    result = run(*args, **kwargs)
    assert result.returncode == 1 and result.stderr.count("\n") == 1 and says in result.stderr, result
    return result.stdout


# --- What is answered

def test_the_same_bits_as_serve(server, tmp_path):
    lines = [line(f"r{i}", f"Name a fruit that begins with {chr(97 + i % 20)}.", temperature=1, seed=i, max_tokens=4 + i % 5) for i in range(12)]
    lines += [line("logprobs", logprobs=True, top_logprobs=3, n=3, temperature=1), line("stop", "Count to ten.", stop=["3", "5"], max_tokens=12),
              line("regex", response_format={"type": "regex", "regex": "[0-9]{3}-[a-f]{2}"}), line("hot", temperature="hot"),
              line("other", model="another-model"), line("long", "x " * 9000), line("bias", logit_bias={"11": 5}, temperature=1),
              line("tools", response_format={"type": "json_object"}, messages=[])]
    assert good("batch", smollm2(), put(tmp_path / "in", lines[:12]), "-o", tmp_path / "out") == ""
    failing("batch", smollm2(), put(tmp_path / "in", lines), "-o", tmp_path / "out", says="4 of 20 requests failed")
    found = results(tmp_path / "out")
    assert set(found) == {entry["custom_id"] for entry in lines}
    for entry in lines:
        status, answer = ask(server, entry["body"])
        response = found[entry["custom_id"]]["response"]
        assert response["status_code"] == status
        assert same(response["body"]) == same(answer)
        assert response["request_id"].startswith("req_")


def test_a_schema_for_all_who_ask_for_no_format(tmp_path):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
              "required": ["name", "n"], "additionalProperties": False}
    (tmp_path / "schema").write_text(json.dumps(schema))
    lines = [line(f"r{i}", "A name and a number.", temperature=1, seed=i, max_tokens=60) for i in range(8)]
    lines += [line("text", response_format={"type": "text"}, temperature=0),
              line("own", response_format={"type": "regex", "regex": "[ab]{4}"}),
              line("asked", "A name and a number.", temperature=1, seed=3, max_tokens=60,
                   response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})]
    good("batch", smollm2(), put(tmp_path / "in", lines), "-o", tmp_path / "out", "--schema", tmp_path / "schema")
    found = results(tmp_path / "out")
    whole = 0
    for i in range(8):
        if body(found[f"r{i}"])["choices"][0]["finish_reason"] == "stop":
            jsonschema.validate(json.loads(content(found[f"r{i}"])), schema)
            whole += 1
    assert whole >= 6
    assert content(found["r3"]) == content(found["asked"])       # as if each had asked for it
    assert set(content(found["own"])) <= set("ab") and len(content(found["own"])) == 4
    assert not content(found["text"]).startswith("{")
    alone = good("run", smollm2(), "-p", "A name and a number.", "--schema", tmp_path / "schema", "--temperature", "1", "--seed", "3", "--max-tokens", "60")
    assert alone.rstrip("\n") == content(found["r3"])


def test_other_forms(tmp_path):
    put(tmp_path / "in", [line("a")])
    (tmp_path / "gbnf").write_text('root ::= "yes" | "no"')
    good("batch", smollm2(), tmp_path / "in", "-o", tmp_path / "g", "--grammar", tmp_path / "gbnf")
    assert content(results(tmp_path / "g")["a"]) in ("yes", "no")
    good("batch", smollm2(), tmp_path / "in", "-o", tmp_path / "r", "--regex", "[xyz]{5}")
    assert len(content(results(tmp_path / "r")["a"])) == 5
    (tmp_path / "tags").write_text(json.dumps({"triggers": ["@"], "structures": [{"begin": "@", "schema": {"const": True}, "end": "!"}]}))
    put(tmp_path / "in", [line("a", max_tokens=9, logit_bias={good("tokenize", smollm2(), "-p", "@").strip(): 100})])
    good("batch", smollm2(), tmp_path / "in", "-o", tmp_path / "t", "--structural-tag", tmp_path / "tags")
    text = content(results(tmp_path / "t")["a"])
    assert len(text) > 6 and ("@true!" * 9).startswith(text)


def test_what_cannot_be_compiled_is_what_run_says(tiny_model, tmp_path):
    (tmp_path / "schema").write_text('{"type": "strnig"}')
    put(tmp_path / "in", [line("a")])
    said = bad("run", tiny_model, "-p", "a", "--schema", tmp_path / "schema")
    assert bad("batch", tiny_model, tmp_path / "in", "-o", tmp_path / "out", "--schema", tmp_path / "schema") == said
    assert not (tmp_path / "out").exists()
    bad("batch", tiny_model, tmp_path / "in", "--regex", "a", "--schema", tmp_path / "schema", says=["one of --schema, --regex"])


def test_options_are_defaults_of_requests(tmp_path):
    plain = {"messages": [{"role": "user", "content": "Tell me a story."}]}
    put(tmp_path / "in", [{"custom_id": "default", "body": plain}, {"custom_id": "own", "body": {**plain, "max_tokens": 3, "seed": 8}}])
    good("batch", smollm2(), tmp_path / "in", "-o", tmp_path / "out", "--temperature", "0", "--max-tokens", "6", "--seed", "5", "--name", "gpt-x")
    found = results(tmp_path / "out")
    assert (body(found["default"])["seed"], body(found["default"])["usage"]["completion_tokens"]) == (5, 6)
    assert (body(found["own"])["seed"], body(found["own"])["usage"]["completion_tokens"]) == (8, 3)
    assert body(found["own"])["model"] == "gpt-x"


def test_deepseek_with_the_real_vocabulary(tmp_path):
    import test_tokenizer
    model = tmp_path / "deepseek"
    good("synth", "--preset", "tiny", "--vocab", "129280", model)
    (model / "tokenizer.json").write_text(json.dumps(test_tokenizer.deepseek_v41_json(), ensure_ascii=False), encoding="utf-8")
    schema = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["x"], "additionalProperties": False}
    (tmp_path / "schema").write_text(json.dumps(schema))
    lines = [line(f"thinks{i}", temperature=1, seed=i, max_tokens=4) for i in range(4)]
    lines += [line(f"plain{i}", temperature=1, seed=i, max_tokens=60, thinking={"type": "disabled"}) for i in range(4)]
    good("batch", model, put(tmp_path / "in", lines), "-o", tmp_path / "out", "--schema", tmp_path / "schema")
    found = results(tmp_path / "out")
    for i in range(4):
        assert body(found[f"thinks{i}"])["choices"][0]["message"]["reasoning_content"]
        if body(found[f"plain{i}"])["choices"][0]["finish_reason"] == "stop":
            jsonschema.validate(json.loads(content(found[f"plain{i}"])), schema)
        else:
            assert content(found[f"plain{i}"]).lstrip().startswith("{")
    with Server(model) as running:
        status, answer = ask(running, lines[1]["body"])
    assert status == 200 and same(answer) == same(body(found["thinks1"]))


def test_no_number_of_choices_is_too_many(tiny_model, tmp_path):
    put(tmp_path / "in", [line(f"r{n}", n=n, temperature=1) for n in range(1, 17)])
    good("batch", tiny_model, tmp_path / "in", "-o", tmp_path / "out", "--max-running", "2", "--max-waiting", "1")
    assert [len(body(results(tmp_path / "out")[f"r{n}"])["choices"]) for n in range(1, 17)] == list(range(1, 17))


# --- Lines

HOSTILE = ["{", "[]", "null", '"x"', "7", "{}", '{"custom_id": 5, "body": {}}', '{"custom_id": "get", "method": "GET", "body": {}}',
           '{"custom_id": "url", "url": "/v1/embeddings", "body": {}}', '{"custom_id": "body", "body": []}',
           '{"custom_id": "stream", "body": {"stream": true, "messages": []}}', '{"body": ' * 200, "a\0b", '{"messages": "x"}',
           '{"custom_id": "\\ud800", "body": {}}', '{"custom_id": "model", "body": {"model": "x", "messages": [{"role": "user", "content": "x"}]}}']


def test_no_line_ends_the_batch(tiny_model, tmp_path):
    data = "\n".join(HOSTILE).encode() + b"\n\xff\xfe\n\n   \n" + json.dumps(line("good")).encode() + b"\r\n" + b"x" * 3000 + b"\n" + json.dumps(line("last")).encode()
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbf" + data)
    total = len(HOSTILE) + 4
    out = failing("batch", tiny_model, tmp_path / "in", "-o", tmp_path / "out", "--json", env={"DEEPMINT_SERVER_MAX_BODY_BYTES": "2000"}, says=f"{total - 2} of {total}")
    summary = json.loads(out)
    assert (summary["requests"], summary["succeeded"], summary["failed"], summary["earlier"]) == (total, 2, total - 2, 0)
    found = results(tmp_path / "out")
    assert len(found) == total
    assert body(found["good"]) and body(found["last"])
    for custom_id, entry in found.items():
        if entry["error"]:
            assert entry["error"]["message"].startswith("line "), entry
            assert custom_id in ("get", "url", "body", "stream") or entry["custom_id"] is None, entry
    assert "at most 2000 bytes, found 3001" in found[f"line {len(HOSTILE) + 5}"]["error"]["message"]
    assert found["model"]["response"]["status_code"] == 404
    assert found["6"]["response"]["body"]["error"]["param"] == "messages"


def test_a_custom_id_twice_is_refused_before_anything_is_run(tiny_model, tmp_path):
    put(tmp_path / "in", [line("a"), "", line("b"), line("c"), line("b")])
    bad("batch", tiny_model, tmp_path / "in", "-o", tmp_path / "out", says=['found "b" in lines 3 and 5'])
    assert not (tmp_path / "out").exists()
    put(tmp_path / "in", [line("2"), line("x")["body"]])         # the number of a bare line is a name
    bad("batch", tiny_model, tmp_path / "in", "-o", tmp_path / "out", says=['found "2" in lines 1 and 2 (one of them has none'])


def test_a_line_that_is_none_takes_nobodys_name(tiny_model, tmp_path):
    put(tmp_path / "in", [line("1"), '{"custom_id": "2", ', line("2"), line("3")])
    failing("batch", tiny_model, tmp_path / "in", "-o", tmp_path / "out", says="1 of 4")
    found = results(tmp_path / "out")
    assert set(found) == {"1", "2", "3", "line 2"} and found["line 2"]["custom_id"] is None
    failing("batch", tiny_model, tmp_path / "in", "-o", tmp_path / "out", says="1 of 4")
    assert results(tmp_path / "out") == found


def test_nothing_to_do(tiny_model, tmp_path):
    (tmp_path / "in").write_text("\n \n")
    assert json.loads(good("batch", tiny_model, tmp_path / "in", "-o", tmp_path / "out", "--json"))["requests"] == 0
    assert (tmp_path / "out").read_bytes() == b""


# --- Files

def test_files_that_are_wrong(tiny_model, tmp_path):
    requests = put(tmp_path / "in", [line("a")])
    notes = tmp_path / "notes"
    notes.write_text("not to be lost")
    bad("batch", tiny_model, tmp_path / "nothing", "-o", tmp_path / "out", says=["nothing: expected a file of requests"])
    bad("batch", tiny_model, tmp_path, "-o", tmp_path / "out", says=["found a folder"])
    bad("batch", tiny_model, requests, "-o", tmp_path, says=["found a folder"])
    bad("batch", tiny_model, requests, "-o", tmp_path / "no" / "out", says=["No such file or directory"])
    bad("batch", tiny_model, requests, "-o", requests, says=["another file than INPUT"])
    (tmp_path / "link").symlink_to(requests)
    bad("batch", tiny_model, requests, "-o", tmp_path / "link", says=["another file than INPUT"])
    for more in ([], ["--overwrite"]):
        bad("batch", tiny_model, requests, "-o", notes, *more, says=["notes, line 1: expected a result of deepmint batch"])
        bad("batch", tiny_model, requests, "-o", tiny_model, *more, says=["expected a result of deepmint batch"])
    assert notes.read_text() == "not to be lost"
    bad("batch", tmp_path / "none.gguf", requests, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    bad("batch", tiny_model, requests, "--json", says=["-o FILE beside --json"])
    bad("batch", tiny_model, says=["INPUT"])
    bad("batch", tiny_model, requests, "-o", "", says=["--output: expected a file or -"])


def test_standard_input_and_output(tiny_model, tmp_path):
    lines = [line(f"r{i}") for i in range(5)]
    text = "".join(json.dumps(entry) + "\n" for entry in lines)
    piped = results(good("batch", tiny_model, "-", input=text))
    assert len(piped) == 5
    with open(put(tmp_path / "in", lines)) as file:
        redirected = results(good("batch", tiny_model, "-", "-o", "-", stdin=file))
    good("batch", tiny_model, tmp_path / "in", "-o", tmp_path / "out")
    for custom_id, entry in results(tmp_path / "out").items():
        assert same(body(entry)) == same(body(piped[custom_id])) == same(body(redirected[custom_id]))
        assert entry["id"] == piped[custom_id]["id"]
    # A pipe goes on with what a file began.
    assert json.loads(good("batch", tiny_model, "-", "-o", tmp_path / "out", "--json", input=text))["earlier"] == 5


def test_a_reader_that_leaves(tiny_model, tmp_path):
    # More than a pipe and one read of it hold (128 KiB), so that results are left when the reader has gone, however late it goes.
    requests = put(tmp_path / "in", [line(f"r{i}", max_tokens=40) for i in range(300)])
    shell = f"{BIN} batch {tiny_model} {requests} | head -1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert result.returncode == 1 and result.stdout.count("\n") == 1
    assert result.stderr.startswith("deepmint: standard output: closed with ") and result.stderr.count("\n") == 1


def test_a_full_disk(tiny_model, tmp_path):
    requests = put(tmp_path / "in", [line(f"r{i}") for i in range(8)])
    bad("batch", tiny_model, requests, "-o", "/dev/full", code=1, says=["/dev/full: cannot write: No space left on device"])

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))
    bad("batch", tiny_model, requests, "-o", tmp_path / "out", code=1, says=["out: cannot write: File too large"], preexec_fn=limit)
    assert 0 < len(results(tmp_path / "out")) < 8               # no torn line
    good("batch", tiny_model, requests, "-o", tmp_path / "out")
    assert len(results(tmp_path / "out")) == 8


# --- Going on

def test_the_same_command_goes_on(tiny_model, tmp_path):
    requests, out = tmp_path / "in", tmp_path / "out"
    put(requests, [line("a"), line("b")])
    good("batch", tiny_model, requests, "-o", out)
    first = out.read_text()
    put(requests, [line("c"), line("b"), line("a"), "{"])
    failing("batch", tiny_model, requests, "-o", out, says="1 of 4 requests failed")
    assert out.read_text().startswith(first) and set(results(out)) == {"a", "b", "c", "line 4"}
    put(requests, [line("c"), line("b"), line("a"), line("d")])       # mended
    assert json.loads(good("batch", tiny_model, requests, "-o", out, "--json"))["earlier"] == 3
    assert set(results(out)) == {"a", "b", "c", "d"}
    whole = out.read_bytes()
    good("batch", tiny_model, requests, "-o", out)
    assert out.read_bytes() == whole
    # What answers other requests is not taken for an answer to these.
    bad("batch", tiny_model, requests, "-o", out, "--temperature", "0.5", says=["--overwrite begins anew"])
    put(requests, [line("c"), line("b"), line("a", "Something else."), line("d")])
    bad("batch", tiny_model, requests, "-o", out, says=['answer to custom_id "a" as it is now', "--overwrite"])
    put(requests, [line("c")])
    bad("batch", tiny_model, requests, "-o", out, says=["which it does not have"])
    assert out.read_bytes() == whole
    good("batch", tiny_model, requests, "-o", out, "--overwrite")
    assert set(results(out)) == {"c"}


def test_killed_at_any_moment_each_is_answered_once(tmp_path):
    seed = random.randrange(2**32)
    print("seed", seed)
    moments = random.Random(seed)
    lines = [line(f"r{i}", f"Tell me about the number {i}.", seed=i, temperature=1, max_tokens=20) for i in range(64)]
    requests, out = put(tmp_path / "in", lines), tmp_path / "out"
    command = [BIN, "batch", str(smollm2()), str(requests), "-o", str(out), "--max-running", "8"]
    kills = 0
    while kills < 3:
        process = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.3 + moments.random() * 0.5)
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
        if out.exists() and moments.random() < 0.5:         # and the disk has lost the end of what was written
            os.truncate(out, max(0, out.stat().st_size - moments.randrange(300)))
    assert kills > 0
    result = run("batch", smollm2(), requests, "-o", out, "--max-running", "8")
    assert result.returncode == 0 and result.stdout == "", result
    found = results(out)
    assert set(found) == {entry["custom_id"] for entry in lines}
    good("batch", smollm2(), put(tmp_path / "some", lines[:8]), "-o", tmp_path / "at_once")
    for custom_id, entry in results(tmp_path / "at_once").items():
        assert same(body(entry)) == same(body(found[custom_id]))


def start_long(tmp_path, name="out"):
    requests = put(tmp_path / "in", [line(f"r{i}", "Tell me a long story.", max_tokens=60, ignore_eos=True, seed=i) for i in range(9)])
    process = subprocess.Popen([BIN, "batch", str(smollm2()), str(requests), "-o", str(tmp_path / name), "--max-running", "2", "--max-waiting", "1"],
                               env=environment(), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not ((tmp_path / name).exists() and (tmp_path / name).stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    return requests, process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_what_runs_finish(tmp_path, number):
    requests, process = start_long(tmp_path)
    bad("batch", smollm2(), requests, "-o", tmp_path / "out", code=1, says=["another process writing it"])
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == -number
    done = len(results(tmp_path / "out"))
    assert 1 <= done < 9
    assert said == f"deepmint: {tmp_path / 'out'}: stopped with {done} of 9 requests done; the same command does the rest\n"


def test_a_second_signal_ends_at_once(tmp_path):
    _, process = start_long(tmp_path)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGINT and time.monotonic() - begin < 5
    results(tmp_path / "out")


def test_a_second_signal_ends_what_waits_for_its_reader(tiny_model, tmp_path):
    requests = put(tmp_path / "in", ["x" * 900] * 400)
    process = subprocess.Popen([BIN, "batch", str(tiny_model), str(requests)], env=environment(), stdout=subprocess.PIPE)
    assert process.stdout.read(1) == b"{"  # it writes, and then waits: a pipe holds less
    time.sleep(0.2)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert process.wait(timeout=10) == -signal.SIGINT
    process.stdout.close()


def test_the_files_beside_it_stay(tiny_model, tmp_path):
    requests = put(tmp_path / "out.tmp", [line("a"), {**line("b"), "method": "GET"}, line("c")])
    before = requests.read_bytes()
    for _ in range(2):  # the second run takes out what the first one has failed
        failing("batch", tiny_model, requests, "-o", tmp_path / "out", says="1 of 3")
        put(tmp_path / "out", sorted((tmp_path / "out").read_text().splitlines(), key=lambda text: '"error":null' in text))
    assert requests.read_bytes() == before and sorted(os.listdir(tmp_path)) == ["out", "out.tmp"]


def test_requests_that_are_added_meanwhile_are_the_next_runs(tmp_path):
    requests, process = start_long(tmp_path)
    with requests.open("a") as file:
        file.write(json.dumps(line("added")) + "\n")
    process.communicate(timeout=60)
    assert process.returncode == 0 and len(results(tmp_path / "out")) == 9
    good("batch", smollm2(), requests, "-o", tmp_path / "out")
    assert "added" in results(tmp_path / "out")


def test_a_terminal_sees_how_far_it_is(tmp_path):
    requests = put(tmp_path / "in", [line(f"r{i}", max_tokens=50, ignore_eos=True) for i in range(8)])
    with Terminal("batch", smollm2(), requests, "-o", tmp_path / "out", "--max-running", "2") as terminal:
        terminal.expect("answering [")
        terminal.expect(" of 8, ")
        terminal.expect(" tok/s")
        terminal.expect("[8 requests · ")
        assert terminal.wait() == 0
    assert len(results(tmp_path / "out")) == 8
