"""Tool calls and reasoning of dense models as the published OpenAI SDK sees them: a scripted engine behind a family's own template."""
import json
import os
import pathlib
import subprocess

import pytest

from jinja_templates import TEMPLATES

openai = pytest.importorskip("openai")

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTED = pathlib.Path(os.environ.get("DEEPMINT_BUILD", ROOT / "build/release")) / "bin/test-tools/scripted_server"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.",
                                           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
CALL = {"city": "Zürich </tool_call> } \" {"}
REPLIES = {
    "qwen2.5": "Let me look.\n<tool_call>\n" + json.dumps({"name": "get_weather", "arguments": CALL}) + "\n</tool_call>",
    "qwen3": "<think>\nweather\n</think>\n\nLet me look.\n<tool_call>\n" + json.dumps({"name": "get_weather", "arguments": CALL}) + "\n</tool_call>",
    "llama3.1": json.dumps({"name": "get_weather", "parameters": CALL}),
    "mistral-v3": "[TOOL_CALLS][" + json.dumps({"name": "get_weather", "arguments": CALL}) + "]",
}


class Scripted:
    def __init__(self, template, text):
        self.process = subprocess.Popen([SCRIPTED, "say", template, text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split()[-1]

    def __enter__(self):
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=60)

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=30)


@pytest.mark.parametrize("family", REPLIES)
def test_a_call_and_its_answer(family, tmp_path):
    assert SCRIPTED.exists(), "scripted_server is not built"
    template = tmp_path / "chat.jinja"
    template.write_text(TEMPLATES[family][0], encoding="utf-8")
    messages = [{"role": "user", "content": "How is the weather in Zürich?"}]
    with Scripted(template, REPLIES[family]) as client:
        whole = client.chat.completions.create(model="test-model", messages=messages, tools=TOOLS)
        choice = whole.choices[0]
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        assert call.type == "function" and call.function.name == "get_weather" and json.loads(call.function.arguments) == CALL
        assert len(call.id) == 9 and call.id.isalnum()
        assert choice.message.content == ("Let me look." if "qwen" in family else None)
        assert getattr(choice.message, "reasoning_content", None) == ("weather" if family == "qwen3" else None)

        chunks = list(client.chat.completions.create(model="test-model", messages=messages, tools=TOOLS, stream=True))
        calls = [c for chunk in chunks for choice in chunk.choices for c in choice.delta.tool_calls or []]
        assert "".join(c.function.name or "" for c in calls) == "get_weather"
        assert json.loads("".join(c.function.arguments or "" for c in calls)) == CALL
        assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == ("Let me look." if "qwen" in family else "")
        assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "tool_calls"

        # The conversation goes on with the call and its result, through the same template.
        messages += [choice.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "22 degrees"}]
        again = client.chat.completions.create(model="test-model", messages=messages, tools=TOOLS)
        assert again.usage.prompt_tokens > whole.usage.prompt_tokens
