"""The two approximations that a request to DeepSeek V4.1 may ask for, over HTTP and in the terminal: a bounded decoder tail, whose reply
is still a function of the request alone, and the bounded replay of a cached prefix. Neither leaves a trace in what others are told."""
import itertools
import json
import urllib.error
import urllib.request

import pytest

from program import Server, bad, good, run
from test_deepseek_serve import checkpoint  # noqa: F401 (a fixture: the test model with the real vocabulary)

# Of the test model: a window of 16, and 46 rows that make the tail exact (16 + 2 * 15).
WINDOW, EXACT_ROWS = 16, 46
WORDS = " ".join(f"word {i * i % 977} of the story" for i in range(70))
HISTORY = [{"role": "user", "content": WORDS}, {"role": "assistant", "content": "Go on."}]
SHORT = {"messages": HISTORY + [{"role": "user", "content": "Why?"}]}
LONG = {"messages": HISTORY + [{"role": "user", "content": "And then? " * 30}]}
FIXED = {"thinking": {"type": "disabled"}, "seed": 5, "max_tokens": 24, "logprobs": True, "top_logprobs": 3}
EXACT = {}
TAILS = {20: {"prefill_tail": "bounded", "prefill_tail_keep_tokens": 20}, WINDOW: {"prefill_tail": "bounded", "prefill_tail_keep_tokens": WINDOW}}
SALTS = itertools.count()


def post(server, body):
    request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def ask(server, request, *more, salt):
    body = {**request, **FIXED, "cache_salt": salt}
    for fields in more:
        body |= fields
    status, text = post(server, body)
    assert status == 200, text
    return json.loads(text)


def refusal(server, request, **fields):
    status, text = post(server, {**request, **FIXED, **fields})
    assert status == 400, text
    error = json.loads(text)["error"]
    return error["param"], error["message"]


def fresh():
    """A cache_salt under which nothing is cached yet."""
    return f"salt {next(SALTS)}"


def said(answer):
    """The reply with its log-probabilities: all that must not depend on anything but the request."""
    return answer["choices"]


def details(answer):
    return answer["usage"]["prompt_tokens_details"]


@pytest.fixture(scope="module")
def server(checkpoint):  # noqa: F811
    with Server(checkpoint) as running:
        yield running


@pytest.fixture(scope="module")
def cold(server):
    """Replies to LONG with nothing in the cache, by what was asked for."""
    return {name: ask(server, LONG, fields, salt=fresh()) for name, fields in {"exact": EXACT, **TAILS}.items()}


def test_a_bounded_tail_is_another_answer_and_the_usage_says_so(server, cold):
    prompt = cold["exact"]["usage"]["prompt_tokens"]
    assert prompt > 300
    assert "prefill_tail_skipped_tokens" not in details(cold["exact"])
    for keep in TAILS:
        assert said(cold[keep]) != said(cold["exact"])
        assert details(cold[keep])["prefill_tail_skipped_tokens"] == prompt - keep
        assert "prefix_replay" not in details(cold[keep])
    assert said(cold[20]) != said(cold[WINDOW])
    # As many rows as the exact tail has, 140 unless said, or more than the prompt has: nothing is approximated.
    for fields in ({}, {"prefill_tail_keep_tokens": EXACT_ROWS}, {"prefill_tail_keep_tokens": prompt}, {"prefill_tail_keep_tokens": 2147483647}):
        answer = ask(server, LONG, {"prefill_tail": "bounded"}, fields, salt=fresh())
        assert said(answer) == said(cold["exact"]) and "prefill_tail_skipped_tokens" not in details(answer)


@pytest.mark.parametrize("order", [["exact", 20, "exact", WINDOW, 20], [20, "exact", 20, WINDOW, "exact"]])
@pytest.mark.parametrize("before", [None, "exact", 20])
def test_the_cache_mixes_no_answers(server, cold, before, order):
    salt = fresh()
    kinds = {"exact": EXACT, **TAILS}
    if before is not None:  # a conversation that begins alike, and went on
        ask(server, SHORT, kinds[before], salt=salt)
    for number, kind in enumerate(order):
        answer = ask(server, LONG, kinds[kind], salt=salt)
        assert said(answer) == said(cold[kind]), (number, kind)
        assert (details(answer)["cached_tokens"] > 0) == (before is not None or number > 0)
        assert details(answer).get("prefill_tail_skipped_tokens") == details(cold[kind]).get("prefill_tail_skipped_tokens")


def test_a_conversation_that_goes_on_from_a_bounded_reply(server, cold):
    """The reply's own tokens are in the cache as well, computed behind a bounded tail: the next turn is that of a cold run all the same."""
    message = said(cold[20])[0]["message"]
    turn = {"messages": LONG["messages"] + [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": "More."}]}
    for fields in (EXACT, TAILS[20]):
        expected = ask(server, turn, fields, salt=fresh())
        salt = fresh()
        ask(server, LONG, TAILS[20], salt=salt)
        warm = ask(server, turn, fields, salt=salt)
        assert details(warm)["cached_tokens"] > 300
        assert said(warm) == said(expected)


def test_streamed_is_whole(server, cold):
    for keep, fields in TAILS.items():
        status, text = post(server, {**LONG, **FIXED, **fields, "stream": True, "stream_options": {"include_usage": True}, "cache_salt": fresh()})
        assert status == 200
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        choices = [c for chunk in chunks for c in chunk["choices"]]
        whole = said(cold[keep])[0]
        assert "".join(c["delta"].get("content") or "" for c in choices) == whole["message"]["content"]
        assert [entry for c in choices for entry in (c["logprobs"] or {}).get("content") or []] == whole["logprobs"]["content"]
        assert chunks[-1]["usage"] == cold[keep]["usage"]


@pytest.mark.parametrize("flags", [["--step-tokens", "7", "--max-running", "2"], ["--threads", "1", "--step-tokens", "64"], ["--prefix-cache=false"]])
def test_chunks_threads_and_company_do_not_show(checkpoint, cold, flags):  # noqa: F811
    with Server(checkpoint, *flags) as server:
        for keep, fields in TAILS.items():
            both = ask(server, LONG, fields, {"n": 2}, salt=fresh())
            assert said(both)[0] == said(cold[keep])[0]
            assert said(both)[0] != said(both)[1]


def test_a_file_of_requests_gets_the_servers_answers(checkpoint, cold, tmp_path):  # noqa: F811
    kinds = {"exact": EXACT, **TAILS}
    lines = [{"custom_id": str(kind), "url": "/v1/chat/completions", "body": {**LONG, **FIXED, **fields}} for kind, fields in kinds.items()]
    lines.append({"custom_id": "wrong", "url": "/v1/chat/completions", "body": {**LONG, "prefill_tail": "some"}})
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("batch", checkpoint, tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl").returncode == 1  # one line is wrong
    results = {r["custom_id"]: r["response"] for r in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    for kind in kinds:
        assert said(results[str(kind)]["body"]) == said(cold[kind]), kind
    assert results["wrong"]["status_code"] == 400
    assert results["wrong"]["body"]["error"]["message"] == 'prefill_tail: expected exact or bounded, found "some"'


def test_a_bounded_replay_happens_where_window_state_is_gone_and_says_so(checkpoint, cold):  # noqa: F811
    bounded = {"prefix_replay": "bounded"}
    with Server(checkpoint, "--snapshot-bytes", "0") as server:
        salt = fresh()
        first = ask(server, LONG, bounded, salt=salt)
        assert said(first) == said(cold["exact"]) and "prefix_replay" not in details(first)  # nothing to replay
        hit = ask(server, LONG, bounded, salt=salt)
        assert details(hit)["prefix_replay"] == "bounded" and details(hit)["replayed_tokens"] == WINDOW
        assert said(hit) != said(cold["exact"])
        assert said(ask(server, LONG, bounded, salt=salt)) == said(hit)
        # With a bounded tail as well; nobody else is told any of it.
        ask(server, LONG, bounded, TAILS[20], salt=salt)
        exact = ask(server, LONG, salt=salt)
        assert said(exact) == said(cold["exact"])
        assert "prefix_replay" not in details(exact) and details(exact)["replayed_tokens"] > WINDOW
        assert said(ask(server, LONG, TAILS[20], salt=salt)) == said(cold[20])


def test_a_bounded_replay_takes_a_snapshot_where_there_is_one(server, cold):
    salt = fresh()
    ask(server, LONG, salt=salt)
    hit = ask(server, LONG, {"prefix_replay": "bounded"}, salt=salt)
    assert said(hit) == said(cold["exact"])
    assert details(hit)["cached_tokens"] > 300 and details(hit)["replayed_tokens"] == 0 and "prefix_replay" not in details(hit)


def test_what_cannot_be_is_refused_by_the_fields_name(server, tiny_model):
    assert refusal(server, LONG, prefill_tail="bounded", prefill_tail_keep_tokens=15) == (
        "prefill_tail_keep_tokens", "prefill_tail_keep_tokens: expected at least the window, 16, found 15")
    assert refusal(server, LONG, prefill_tail_keep_tokens=140) == (
        "prefill_tail_keep_tokens", 'prefill_tail_keep_tokens: expected prefill_tail: "bounded" beside it')
    assert refusal(server, LONG, prefix_replay="fast") == ("prefix_replay", 'prefix_replay: expected exact or bounded, found "fast"')
    with Server(tiny_model) as dense:
        body = {"messages": [{"role": "user", "content": "x"}], "seed": 5, "max_tokens": 4}
        status, text = post(dense, {**body, "prefill_tail": "bounded"})
        error = json.loads(text)["error"]
        assert status == 400 and error["param"] == "prefill_tail"
        assert error["message"] == ("prefill_tail: expected the exact tail, since every token of a prompt runs the whole of this model (llama), "
                                    "found a bounded one")
        # Without window state there is nothing to replay: the exact answer.
        answers = [json.loads(post(dense, {**body, **fields})[1]) for fields in ({}, {"prefix_replay": "bounded"}, {"prefix_replay": "bounded"})]
        assert said(answers[0]) == said(answers[1]) == said(answers[2])
        assert "prefix_replay" not in details(answers[2])


def test_the_terminal_gives_the_servers_answers(checkpoint, cold, tiny_model, tmp_path):  # noqa: F811
    encoded = run("encode", "--protocol", "chat", "--tokenizer", checkpoint,
                  input=json.dumps({"model": "m", **LONG, "thinking": FIXED["thinking"]}))
    ids = ",".join(map(str, json.loads(encoded.stdout)["token_ids"]))
    args = ["run", checkpoint, "--ids", ids, "--seed", "5", "--max-tokens", "24", "--json", "--logprobs", "3"]
    for keep in TAILS:
        flags = ["--prefill-tail", "bounded", "--prefill-tail-keep-tokens", keep]
        answers = [json.loads(good(*args, *flags, *more)) for more in ([], ["--step-tokens", "7", "--max-running", "1"])]
        entries = said(cold[keep])[0]["logprobs"]["content"]
        for answer in answers:
            assert answer["usage"]["prefill_tail_skipped_tokens"] == answer["usage"]["prompt_tokens"] - keep
            assert [x["logprob"] for x in answer["logprobs"]][:len(entries)] == [x["logprob"] for x in entries]
        assert answers[0]["logprobs"] == answers[1]["logprobs"]
    exact = json.loads(good(*args))
    assert "prefill_tail_skipped_tokens" not in exact["usage"]
    assert json.loads(good(*args, "--prefill-tail", "bounded"))["logprobs"] == exact["logprobs"]

    def last_reply(*flags):
        """What a conversation of two turns says of its second reply."""
        told = run("chat", checkpoint, "--seed", "5", "--max-tokens", "8", *flags, input=WORDS + "\nWhy?\n/stats\n")
        assert told.returncode == 0
        return told.stderr
    bounded_tail = ["--prefill-tail", "bounded", "--prefill-tail-keep-tokens", "16"]
    assert "· bounded tail ·" in last_reply(*bounded_tail) and "bounded" not in last_reply()
    assert "bounded" not in last_reply("--prefix-replay", "bounded")  # a snapshot is there
    assert "· bounded replay ·" in last_reply("--prefix-replay", "bounded", "--snapshot-bytes", "0")

    short = ["run", checkpoint, "--ids", "1,2,3"]
    bad(*short, "--prefill-tail", "short", says=["--prefill-tail: expected", "exact", "bounded", '"short"'])
    bad(*short, "--prefill-tail-keep-tokens", "140", says=["--prefill-tail-keep-tokens: expected --prefill-tail bounded beside it"])
    bad(*short, "--prefill-tail", "bounded", "--prefill-tail-keep-tokens", "0", says=["--prefill-tail-keep-tokens: expected an integer from 1"])
    for command in (short, ["chat", checkpoint]):
        bad(*command, "--prefill-tail", "bounded", "--prefill-tail-keep-tokens", "15",
            says=["--prefill-tail-keep-tokens: expected at least the window, 16, found 15"])
    for command in (["run", tiny_model, "-p", "x"], ["chat", tiny_model]):
        bad(*command, "--prefill-tail", "bounded", says=["--prefill-tail: expected the exact tail", "(llama)", "found a bounded one"])
    # One prompt of a fresh process finds nothing cached; log-probabilities of a prompt need every row of it.
    bad(*short, "--prefix-replay", "bounded", says=['unknown option "--prefix-replay"'])
    bad("score", checkpoint, "--ids", "1,2,3", "--prefill-tail", "bounded", says=['unknown option "--prefill-tail"'])
