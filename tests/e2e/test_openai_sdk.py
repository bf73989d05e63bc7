"""The published OpenAI SDK as a client: what a real user's program sees."""
import asyncio
import hashlib
import json
import math
import pathlib
import re
import time
import urllib.request

import pytest

from program import Server

openai = pytest.importorskip("openai", reason="the openai package is not installed (registry out of reach?)")

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
STORY = [{"role": "user", "content": "Write the first lines of a story about a lighthouse."}]


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def text_of(stream):
    return "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)


def counter(server, name):
    """Sum of a metric's samples."""
    with urllib.request.urlopen(server.url + "/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


# -- models -----------------------------------------------------------------------------------------------------------------------

def test_models(client, model):
    listed = client.models.list().data
    assert [m.id for m in listed] == [model]
    assert client.models.retrieve(model) == listed[0]
    assert listed[0].owned_by == "deepmint" and listed[0].created > 1_000_000_000
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"


def test_the_snippet_of_the_readme(server, capsys):
    text = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
    snippet = re.search(r"```python\n(.*?)```", text, re.S).group(1)
    address = "http://127.0.0.1:8080"
    assert address in snippet
    exec(compile(snippet.replace(address, server.url), "README.md", "exec"), {})
    assert "Paris" in capsys.readouterr().out


# -- whole answers ----------------------------------------------------------------------------------------------------------------

def test_an_answer(client, model):
    reply = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=40)
    assert "Paris" in reply.choices[0].message.content
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == model and reply.object == "chat.completion" and reply.id.startswith("chatcmpl-")
    assert reply.system_fingerprint.startswith("fp_")
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0


def test_a_prompt_that_comes_again_is_found_and_says_the_same(client, model):
    """Usage counts what the cache gave; the bits of the answer do not depend on it."""
    words = " ".join(f"{i}: a word that nobody asked for." for i in range(40))
    ask = {"model": model, "messages": [{"role": "user", "content": f"{time.time_ns()} {words} Go on."}], "temperature": 1, "seed": 7,
           "max_tokens": 12, "logprobs": True, "top_logprobs": 2}
    cold = client.chat.completions.create(**ask)
    again = client.chat.completions.create(**ask)
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert cold.usage.prompt_tokens > 400
    assert cold.usage.prompt_tokens_details.cached_tokens < 64  # the template's beginning may be known
    assert again.usage.prompt_tokens - 64 <= cached < again.usage.prompt_tokens
    assert again.choices == cold.choices
    client.chat.completions.create(**{**ask, "seed": 8})
    longer = ask["messages"] + [{"role": "assistant", "content": "No."}, {"role": "user", "content": "Why?"}]
    turn = client.chat.completions.create(**{**ask, "messages": longer})
    assert cold.usage.prompt_tokens - 128 <= turn.usage.prompt_tokens_details.cached_tokens < cold.usage.prompt_tokens + 64


@pytest.mark.parametrize("stream", [False, True])
def test_choices_that_share_a_new_prompt_are_no_hit(client, model, stream):
    words = " ".join(f"{i}: a word that nobody asked for." for i in range(40))
    ask = {"model": model, "messages": [{"role": "user", "content": f"{time.time_ns()} {words} Go on."}], "temperature": 1, "seed": 7,
           "max_tokens": 3, "n": 4}
    for least, most in ((0, 64), (350, 2000)):  # new, then known
        if stream:
            usage = [chunk.usage for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask)][-1]
        else:
            usage = client.chat.completions.create(**ask).usage
        assert least <= usage.prompt_tokens_details.cached_tokens < most


def test_limits_are_reported_as_length(client, model):
    for limit in ({"max_tokens": 5}, {"max_completion_tokens": 5}, {"max_tokens": 50, "max_completion_tokens": 5}):
        reply = client.chat.completions.create(model=model, messages=STORY, temperature=0, **limit)
        assert reply.choices[0].finish_reason == "length"
        assert reply.usage.completion_tokens == 5


def test_a_seed_repeats_and_the_reported_seed_does_too(client, model):
    ask = {"model": model, "messages": STORY, "temperature": 1.0, "max_tokens": 24}
    first = client.chat.completions.create(seed=7, **ask)
    assert first.seed == 7
    assert client.chat.completions.create(seed=7, **ask).choices == first.choices
    assert client.chat.completions.create(seed=8, **ask).choices != first.choices
    drawn = client.chat.completions.create(**ask)
    assert drawn.seed != client.chat.completions.create(**ask).seed
    assert client.chat.completions.create(seed=drawn.seed, **ask).choices == drawn.choices


def test_several_choices(client, model):
    reply = client.chat.completions.create(model=model, messages=STORY, temperature=1.5, max_tokens=16, n=3, seed=1)
    assert [c.index for c in reply.choices] == [0, 1, 2]
    assert len({c.message.content for c in reply.choices}) == 3
    alone = client.chat.completions.create(model=model, messages=STORY, temperature=1.5, max_tokens=16, seed=1)
    assert alone.choices[0].message == reply.choices[0].message


def test_a_conversation_of_parts_and_turns(client, model):
    reply = client.chat.completions.create(model=model, temperature=0, max_tokens=30, messages=[
        {"role": "developer", "content": "You answer with one word."},
        {"role": "user", "content": [{"type": "text", "text": "My name is Ada."}, {"type": "text", "text": "Remember it."}]},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "What is my name?"}])
    assert "Ada" in reply.choices[0].message.content


# -- streams ----------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("extra", [{"temperature": 0}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "seed": 3, "stop": ["\n", "the"]}])
def test_streamed_equals_whole(client, model, extra):
    ask = {"model": model, "messages": STORY, "max_tokens": 48, "logprobs": True, "top_logprobs": 2, **extra}
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask))
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    entries = [entry for c in chunks if c.choices and c.choices[0].logprobs for entry in c.choices[0].logprobs.content]
    assert entries == whole.choices[0].logprobs.content
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert len({c.id for c in chunks}) == 1


def test_the_stream_helper(client, model):
    with client.chat.completions.stream(model=model, messages=QUESTION, temperature=0, max_tokens=40) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content
    assert "Paris" in final.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


def test_closing_a_stream_early_cancels_the_request(client, model, server):
    cancelled = 'vllm:request_success_total{model_name="' + model + '",finished_reason="abort"}'
    before = counter(server, cancelled)
    stream = client.chat.completions.create(model=model, messages=STORY, stream=True, max_tokens=4000,
                                            extra_body={"ignore_eos": True})
    for count, _ in enumerate(stream):
        if count == 5:
            break
    stream.close()
    deadline = time.monotonic() + 20
    while counter(server, cancelled) == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert counter(server, cancelled) == before + 1
    while counter(server, "vllm:num_requests_running") > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert counter(server, "vllm:num_requests_running") == 0


def test_many_at_once_give_the_answers_that_they_give_alone(client, model, server):
    def ask(index):
        return {"model": model, "messages": [{"role": "user", "content": f"Tell me something about the number {index}."}],
                "temperature": 0.9, "seed": index, "max_tokens": 16 + index % 5, "stream": True}

    alone = [text_of(client.chat.completions.create(**ask(index))) for index in range(16)]

    async def together():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120) as many:
            async def one(index):
                text = ""
                async for chunk in await many.chat.completions.create(**ask(index)):
                    text += chunk.choices[0].delta.content or ""
                return text
            return await asyncio.gather(*(one(index) for index in range(16)))

    assert asyncio.run(together()) == alone


# -- stop strings and log-probabilities -------------------------------------------------------------------------------------------

def test_stop_strings_end_the_reply(client, model):
    ask = {"model": model, "messages": STORY, "temperature": 0, "max_tokens": 60}
    whole = client.chat.completions.create(**ask).choices[0].message.content
    middle = whole[len(whole) // 2: len(whole) // 2 + 6]          # across tokens, wherever it falls
    cut = client.chat.completions.create(stop=middle, **ask)
    assert cut.choices[0].message.content == whole[: whole.index(middle)]
    assert cut.choices[0].finish_reason == "stop"
    assert client.chat.completions.create(stop=["no such text", "\x00"], **ask).choices[0].message.content == whole


def test_logprobs_are_those_of_the_reply(client, model):
    reply = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=40, logprobs=True, top_logprobs=5)
    entries = reply.choices[0].logprobs.content
    assert b"".join(bytes(e.bytes) for e in entries).decode() == reply.choices[0].message.content
    for entry in entries:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 5
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert entry.top_logprobs[0].token == entry.token and values[0] == entry.logprob   # greedy
        assert sum(math.exp(v) for v in values) <= 1 + 1e-4
    assert client.chat.completions.create(model=model, messages=QUESTION, max_tokens=2).choices[0].logprobs is None


# -- errors -----------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_keeps_to_its_schema(client, model, stream):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "inhabitants": {"type": "integer", "minimum": 0, "maximum": 99999999}},
              "required": ["city", "inhabitants"], "additionalProperties": False}
    for seed in range(3):
        ask = {"model": model, "messages": QUESTION, "temperature": 1, "seed": seed, "max_tokens": 200,
               "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}}
        text = text_of(client.chat.completions.create(stream=True, **ask)) if stream else client.chat.completions.create(**ask).choices[0].message.content
        found = json.loads(text)
        assert list(found) == ["city", "inhabitants"] and len(found["city"]) <= 12 and 0 <= found["inhabitants"] <= 99999999
    text = client.chat.completions.create(**{**ask, "response_format": {"type": "json_object"}, "temperature": 0, "max_tokens": 300}).choices[0]
    if text.finish_reason == "stop":
        assert isinstance(json.loads(text.message.content), dict)
    else:
        assert text.message.content.startswith("{")


@pytest.mark.parametrize("wrong, param, says", [
    ({"temperature": 3}, "temperature", "expected a number from 0 to 2, found 3"),
    ({"top_p": 0}, "top_p", "found 0"),
    ({"max_tokens": 0}, "max_tokens", "expected an integer from 1"),
    ({"n": 1000}, "n", "from 1 to 16"),
    ({"stop": ["a"] * 17}, "stop", "up to 16"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
    ({"logit_bias": {"999999999": 1}}, "logit_bias", "999999999"),
    ({"extra_body": {"stream": "yes"}}, "stream", 'expected true or false, found "yes"'),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, "tools", "no place for tools"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "strin"}}}}, "response_format", "strin"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"$ref": "http://a/b"}}}}, "response_format", "http://a/b"),
    ({"messages": []}, "messages", "at least one message"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "robot"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
     "messages[0].content[0].type", "image_url"),
])
def test_wrong_values_name_the_field(client, model, wrong, param, says):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": model, "messages": QUESTION, "max_tokens": 1, **wrong})
    assert caught.value.type == "invalid_request_error"
    assert says in caught.value.body["message"]
    assert caught.value.param.startswith(param)


def test_a_prompt_beyond_the_context(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "word " * 10_000}])
    assert caught.value.code == "context_length_exceeded"
    assert "tokens, context is" in caught.value.body["message"]


def test_an_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert caught.value.code == "model_not_found" and caught.value.param == "model"


def test_keys(tiny_model, tmp_path):
    keys = tmp_path / "keys.txt"
    keys.write_text(hashlib.sha256(b"right").hexdigest() + "  tester\n")
    with Server(tiny_model, "--api-keys-file", keys) as guarded:
        ask = {"model": "default", "messages": QUESTION, "max_tokens": 2}
        with openai.OpenAI(base_url=guarded.url + "/v1", api_key="wrong", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError) as caught:
                stranger.chat.completions.create(**ask)
            assert caught.value.code == "invalid_api_key"
        with openai.OpenAI(base_url=guarded.url + "/v1", api_key="right", max_retries=0) as known:
            assert known.chat.completions.create(**ask).choices
