"""DeepSeek V4.1 over HTTP as the published OpenAI SDK sees it: a scripted engine that writes calls and reasoning, and a small random
checkpoint with the real vocabulary, whose prompts are those of `deepmint encode`."""
import json
import os
import pathlib
import re
import subprocess

import pytest

from program import ROOT, Server, good, run

openai = pytest.importorskip("openai", reason="the openai package is not installed (registry out of reach?)")

SCRIPTED = pathlib.Path(os.environ.get("DEEPMINT_BUILD", ROOT / "build/release")) / "bin/test-tools/scripted_server"
CITY = "Zürich </｜DSML｜ parameter> \" {"
SCRIPT = "ls -l\ncat <<E\n</x>"
REPLY = f"""weather?</think>Let me look.

<｜DSML｜ calls>
<｜DSML｜ invoke name="get_weather">
<｜DSML｜ parameter name="city" string="true">Zürich</｜DSML｜ parameter>
<｜DSML｜ parameter name="days" string="false">3</｜DSML｜ parameter>
</｜DSML｜ invoke>
<｜DSML｜ invoke name="shell">
<｜DSML｜ parameter name="input" string="true">{SCRIPT}</｜DSML｜ parameter>
</｜DSML｜ invoke>
</｜DSML｜ calls>"""
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}},
         {"type": "custom", "custom": {"name": "shell", "description": "Runs a script.", "format": {"type": "text"}}}]


@pytest.fixture(scope="module")
def scripted():
    assert SCRIPTED.exists(), "scripted_server is not built"
    process = subprocess.Popen([SCRIPTED, "deepseek", REPLY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    url = process.stdout.readline().split()[-1]
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client
    process.stdin.close()
    process.wait(timeout=30)


def test_reasoning_and_calls_in_the_published_sdk(scripted):
    messages = [{"role": "user", "content": "How is the weather in Zürich?"}]
    whole = scripted.chat.completions.create(model="test-model", messages=messages, tools=TOOLS)
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look." and choice.message.reasoning_content == "weather?"
    function, custom = choice.message.tool_calls
    assert function.type == "function" and function.function.name == "get_weather"
    assert json.loads(function.function.arguments) == {"city": "Zürich", "days": 3}
    assert custom.type == "custom" and custom.custom.name == "shell" and custom.custom.input == SCRIPT
    assert whole.usage.completion_tokens_details.reasoning_tokens == len("weather?")

    chunks = list(scripted.chat.completions.create(model="test-model", messages=messages, tools=TOOLS, stream=True,
                                                   stream_options={"include_usage": True}))
    deltas = [c.delta for chunk in chunks for c in chunk.choices]
    assert "".join(d.content or "" for d in deltas) == "Let me look."
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == "weather?"
    calls = [c for d in deltas for c in d.tool_calls or []]
    assert "".join(c.function.arguments or "" for c in calls if c.index == 0) == function.function.arguments
    assert "".join(c.custom["input"] for c in calls if c.index == 1) == SCRIPT  # this SDK's stream types have no custom calls yet
    assert [c.finish_reason for chunk in chunks for c in chunk.choices][-1] == "tool_calls"
    assert chunks[-1].usage == whole.usage

    # The calls and their results go back as they came.
    messages += [choice.message.model_dump(exclude_none=True),
                 {"role": "tool", "tool_call_id": function.id, "content": "22 degrees"},
                 {"role": "tool", "tool_call_id": custom.id, "content": "no files"}]
    again = scripted.chat.completions.create(model="test-model", messages=messages, tools=TOOLS)
    assert again.usage.prompt_tokens > whole.usage.prompt_tokens


def test_the_stream_helper_of_the_sdk_takes_function_calls(scripted):
    with scripted.chat.completions.stream(model="test-model", messages=[{"role": "user", "content": "x"}], tools=TOOLS[:1]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.name == "get_weather"


# ---- a checkpoint with the real vocabulary -------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    import test_tokenizer
    folder = tmp_path_factory.mktemp("v41") / "deepseek"
    assert good("synth", "--preset", "tiny", "--vocab", "129280", folder) == ""
    (folder / "tokenizer.json").write_text(json.dumps(test_tokenizer.deepseek_v41_json(), ensure_ascii=False), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def served(checkpoint):
    with Server(checkpoint) as running:
        with openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0, timeout=120) as client:
            yield client


REQUESTS = {
    "thinking": {"messages": [{"role": "user", "content": "Sind 12345 <｜User｜> viele? 你好 😀"}]},
    "plain": {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}], "thinking": {"type": "disabled"}},
    "effort": {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "max"},
    "tools": {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bern", "days": 1}'}},
        {"id": "b", "type": "custom", "custom": {"name": "shell", "input": SCRIPT}}]},
        {"role": "tool", "tool_call_id": "b", "content": "ok"}, {"role": "tool", "tool_call_id": "a", "content": "rain"}], "tools": TOOLS},
    "json": {"messages": [{"role": "user", "content": "json"}], "response_format": {"type": "json_object"}},
}


def ask(client, request, **more):
    body = {**request, **more}
    extra = {k: body.pop(k) for k in ("thinking", "top_k", "reasoning_effort") if k in body}
    return client.chat.completions.create(model="deepseek", extra_body=extra, **body)


@pytest.mark.parametrize("name", REQUESTS)
def test_the_prompt_is_that_of_encode(served, checkpoint, name):
    request = REQUESTS[name]
    encoded = run("encode", "--protocol", "chat", "--tokenizer", checkpoint, input=json.dumps({"model": "deepseek", **request}))
    assert encoded.returncode == 0, encoded.stderr
    ids = json.loads(encoded.stdout)["token_ids"]
    reply = ask(served, request, max_tokens=4, seed=5, logprobs=True)
    assert reply.usage.prompt_tokens == len(ids)
    # The engine was given exactly these: the same seed continues them with the same tokens.
    direct = json.loads(good("run", checkpoint, "--ids", ",".join(map(str, ids)), "--seed", "5", "--max-tokens", "4", "--json"))
    assert reply.usage.completion_tokens == direct["usage"]["output_tokens"]
    kind = "content" if request.get("thinking") else "reasoning_content"
    shown = getattr(reply.choices[0].message, kind) or ""
    if name != "json":  # where what surrounds the JSON is not shown
        # A random model may write place holders: the API shows control tokens, `run` does not.
        assert re.sub(r"<[|｜][^<>]*[|｜]>", "", shown) == direct["text"].lstrip("\n")


def test_streamed_is_whole_and_a_seed_repeats(served):
    request = REQUESTS["thinking"]
    whole = ask(served, request, max_tokens=24, n=2)
    again = ask(served, request, max_tokens=24, n=2, seed=whole.seed)
    assert [c.message for c in again.choices] == [c.message for c in whole.choices]
    assert whole.choices[0].message.reasoning_content != whole.choices[1].message.reasoning_content
    chunks = list(ask(served, request, max_tokens=24, n=2, seed=whole.seed, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        deltas = [c.delta for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == choice.message.reasoning_content
        assert "".join(d.content or "" for d in deltas) == choice.message.content
    # What was found in the cache may differ: the prompt was there the second time.
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == again.usage.completion_tokens
    assert chunks[-1].usage.completion_tokens_details == whole.usage.completion_tokens_details


PLACE = {"type": "object", "properties": {"city": {"enum": ["Bern", "Zürich", "</think>"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
         "required": ["city", "days"], "additionalProperties": False}


@pytest.mark.parametrize("thinks", [True, False])
def test_a_schema_binds_from_the_end_of_the_thinking_on(served, checkpoint, thinks):
    added = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    ends = next(token["id"] for token in added if token["content"] == "</think>")
    # Among 129,280 random logits this makes the end of the thinking likely at every token: the model thinks a little.
    request = {"messages": [{"role": "user", "content": "Where to, as JSON?"}], "logit_bias": {str(ends): 9}, "max_tokens": 400, "n": 3,
               "response_format": {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": PLACE}},
               "thinking": {"type": "enabled" if thinks else "disabled"}}
    whole = ask(served, request)
    for choice in whole.choices:
        assert choice.finish_reason == "stop"
        place = json.loads(choice.message.content)
        assert place.keys() == {"city", "days"} and place["city"] in PLACE["properties"]["city"]["enum"] and 1 <= place["days"] <= 14
    assert any(getattr(choice.message, "reasoning_content", None) for choice in whole.choices) == thinks
    chunks = list(ask(served, request, seed=whole.seed, stream=True))
    for choice in whole.choices:
        deltas = [c.delta for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(d.content or "" for d in deltas) == choice.message.content


def test_a_guarantee_that_nothing_can_give_is_refused(served):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(served, REQUESTS["thinking"], tools=[{"type": "custom", "custom": {"name": "sql", "format": {
            "type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /SELECT .*/"}}}}])
    assert "lark" in caught.value.message and caught.value.param.startswith("tools[0]")
    assert served.models.list().data[0].id == "deepseek"  # alive


def test_the_terminal_uses_the_same_format(checkpoint):
    encoded = run("encode", "--protocol", "chat", "--tokenizer", checkpoint,
                  input=json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], "thinking": {"type": "disabled"}}))
    ids = json.loads(encoded.stdout)["token_ids"]
    flags = ["--seed", "3", "--max-tokens", "6", "--json"]
    prompt = json.loads(good("run", checkpoint, "-p", "hello", *flags))
    direct = json.loads(good("run", checkpoint, "--ids", ",".join(map(str, ids)), *flags))
    assert prompt["ids"] == direct["ids"] and prompt["usage"]["prompt_tokens"] == len(ids)
