"""Every deliberate difference between the recipe and the published package 0.2.0, by the name that docs/recipe.md gives it.

A case feeds the same request, or the same model output, to both sides and says what each does with it. test_recipe_differential.py runs them
and fails when a row of the tables has no case, a case no row, or a side behaves otherwise.
"""
import dataclasses
import typing


@dataclasses.dataclass
class Request:
    """`package` and `ours` look at the encoded request: {"error": …}, or conversation, options, parsing, prompt, …"""
    name: str
    protocol: str
    body: dict
    package: typing.Callable
    ours: typing.Callable
    version: str = "v4.1"
    case: dict = dataclasses.field(default_factory=dict)   # more members of our case (codec_cli.h)
    room: tuple = ()               # (prompt tokens, context): both resolve max_tokens, as "resolved_max_tokens"


@dataclasses.dataclass
class Output:
    """`package` and `ours` look at a Reply: what a client puts together."""
    name: str
    text: typing.Any               # str, or a list of chunks
    package: typing.Callable
    ours: typing.Callable
    protocol: str = "chat"
    tools: typing.Any = True       # the request declares f(a) and g(); or a list of tools
    more: dict = dataclasses.field(default_factory=dict)
    thinking: bool = False
    finish: str = "stop"
    as_ids: bool = False           # the text goes in as token ids, control tokens where they stand


USER = {"role": "user", "content": "x"}
F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
G = {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}
OFF = {"thinking": {"type": "disabled"}}


def chat(*messages, **more):
    return {"model": "m", "messages": list(messages) or [USER], **more}


def messages(*list_, **more):
    return {"model": "m", "max_tokens": 9, "messages": list(list_) or [USER], **more}


def responses(*items, **more):
    return {"model": "m", "input": list(items) or "x", **more}


def call(id_, name="f", arguments="{}"):
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def item(id_, name="f"):
    return {"type": "function_call", "call_id": id_, "name": name, "arguments": "{}"}


def result(id_, text="r"):
    return {"type": "function_call_output", "call_id": id_, "output": text}


def refused(*parts):
    def check(got):
        assert "error" in got, got.get("conversation")
        for part in parts:
            assert part in got["error"]["message"], got["error"]["message"]
    return check


def roles(got):
    return "".join(m["role"][0] for m in got["conversation"]["messages"])


def accepted(check=lambda got: True):
    def run(got):
        assert "error" not in got, got["error"]
        assert check(got), {k: got.get(k) for k in ("conversation", "options", "parsing", "warnings", "prompt")}
    return run


def names(got):
    return [t["name"] for t in got["conversation"]["tools"]]


def shown(got, tool):
    """How often the prompt has the schema of this tool."""
    return got["prompt"].count('{"name": "' + tool + '"')


DEFERRED = {"name": "late", "description": "d", "input_schema": {"type": "object"}, "defer_loading": True}
SHOWN = {"name": "now", "description": "d", "input_schema": {"type": "object"}}
FOUND = {"role": "assistant", "content": [{"type": "tool_use", "id": "s", "name": "now", "input": {}}]}


def found(*tools):
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "s", "content": [{"type": "tool_reference", "tool_name": t} for t in tools]}]}


SEARCH = {"type": "tool_search", "execution": "client", "description": "d", "parameters": {"type": "object"}}
SEARCH_CALL = {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {}}


def search_output(*tools):
    return {"type": "tool_search_output", "call_id": "s", "execution": "client", "tools": list(tools)}


def text_file(text):
    import base64
    return {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64," + base64.b64encode(text.encode()).decode()}}


REQUESTS = [
    Request("unknown model names", "chat", {**chat(), "model": "gpt-4"}, refused("gpt-4"), accepted(lambda g: g["model"] == "gpt-4")),
    Request("temperature, top_p", "chat", chat(temperature=0, top_p=0.5), accepted(lambda g: g["options"]["temperature"] == 1 and g["options"]["top_p"] != 0.5),
            accepted(lambda g: g["options"]["temperature"] == 0 and g["options"]["top_p"] == 0.5)),
    Request("max_tokens above 393,216", "chat", chat(max_tokens=500_000), refused("max_tokens"), accepted(lambda g: g["options"]["max_tokens"] == 500_000)),
    Request("`developer` (chat)", "chat", chat({"role": "developer", "content": "d"}, USER), refused("developer"), accepted(lambda g: roles(g) == "su")),
    Request("`max_completion_tokens`", "chat", chat(max_tokens=5, max_completion_tokens=7), accepted(lambda g: g["options"]["max_tokens"] == 5),
            accepted(lambda g: g["options"]["max_tokens"] == 7)),
    Request("`n`", "chat", chat(n=2), refused("only n = 1"), accepted(lambda g: g["options"]["n"] == 2)),
    Request("results of calls", "chat", chat(USER, {"role": "assistant", "content": "", "tool_calls": [call("1"), call("2")]}, USER,
                                             {"role": "tool", "tool_call_id": "2", "content": "late"}),
            refused("tool_call_id"), accepted(lambda g: [m["content"] for m in g["conversation"]["messages"]][2:] == ["late", "[no result: the call was interrupted]", "x"])),
    Request("order of calls (Responses)", "responses", responses(USER, item("b"), item("a", "g"), result("b"), result("a")),
            accepted(lambda g: [c["id"] for c in g["conversation"]["messages"][1]["tool_calls"]] == ["a", "b"]),
            accepted(lambda g: [c["id"] for c in g["conversation"]["messages"][1]["tool_calls"]] == ["b", "a"])),
    Request("tool_choice required or named while thinking", "chat", chat(tools=[F], tool_choice="required"), refused("Thinking mode does not support this tool_choice"),
            accepted(lambda g: g["options"]["constraint"]["kind"] == "tool_call_required" and g["options"]["constraint"]["after_thinking"])),
    Request("tool_choice `any` (Messages)", "messages", messages(tools=[SHOWN], tool_choice={"type": "any"}, **OFF), accepted(lambda g: g["conversation"]["tool_choice"] == "auto"),
            accepted(lambda g: g["conversation"]["tool_choice"] == "required")),
    Request("custom tools (Responses)", "responses", responses(tools=[{"type": "custom", "name": "exec"}]), refused("exec"), accepted(lambda g: names(g) == ["exec"])),
    Request("custom tools (chat)", "chat", chat(tools=[{"type": "custom", "custom": {"name": "exec"}}]), refused("custom"), accepted(lambda g: names(g) == ["exec"])),
    Request("`additional_tools` items", "responses", responses({"type": "additional_tools", "tools": [{"type": "function", "name": "f"}]}, USER), accepted(lambda g: names(g) == []),
            accepted(lambda g: names(g) == ["f"])),
    Request("`allowed_tools`", "chat", chat(tools=[F, G], tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
        {"type": "function", "function": {"name": "g"}}]}}), refused("allowed_tools"), accepted(lambda g: names(g) == ["g"])),
    Request("strict tools", "chat", chat(tools=[{"type": "function", "function": {**F["function"], "strict": True}}, G]), refused("Cannot use strict tool with non-strict tool"),
            accepted(lambda g: g["options"]["constraint"]["must_enforce"] and "additionalProperties" not in g["options"]["constraint"]["schema"])),
    Request("a response format beside tools", "chat", chat({"role": "user", "content": "json"}, tools=[F], response_format={"type": "json_schema", "json_schema": {
        "name": "n", "schema": {"type": "object"}}}), accepted(lambda g: g["options"]["constraint"]["kind"] == "tool_call"),
            accepted(lambda g: g["options"]["constraint"]["answer"] == "json" and g["options"]["constraint"]["must_enforce"])),
    Request("a prompt that fills the context", "chat", chat(), accepted(lambda g: g["resolved_max_tokens"] == 1), refused("maximum context length is 100 tokens"), room=(100, 100)),
    Request("parameters `{}` or without `type`", "chat", chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]), refused("Invalid schema for function 'f'"),
            accepted(lambda g: names(g) == ["f"])),
    Request("text documents", "chat", chat({"role": "user", "content": [text_file("inside")]}), refused("file"), accepted(lambda g: "inside" in g["prompt"])),
    Request("`previous_response_id`, `encrypted_content`", "responses", responses({"role": "user", "content": "second"}, previous_response_id="r"),
            accepted(lambda g: roles(g) == "u"), accepted(lambda g: [m["content"] for m in g["conversation"]["messages"]] == ["first", "one", "second"]),
            case={"turns": {"r": [{"role": "user", "content": "first"}, {"role": "assistant", "content": "one"}]}}),
    Request("server tools (Messages)", "messages", messages(tools=[{"type": "web_search_20250305", "name": "web_search"}]), refused("server tools"),
            accepted(lambda g: names(g) == [] and g["warnings"])),
    Request("empty assistant messages, empty content", "chat", chat(USER, {"role": "assistant"}, USER), refused("content or tool_calls must be set"), accepted(lambda g: g["warnings"])),
    Request("neighbouring reminders", "chat", chat({"role": "latest_reminder", "content": "one"}, {"role": "latest_reminder", "content": "two"}, USER),
            accepted(lambda g: "one" in g["prompt"] and "two" not in g["prompt"]), accepted(lambda g: "one" in g["prompt"] and "two" in g["prompt"])),
    Request("a tool found twice, or found though it was shown at the start (Messages)", "messages",
            messages(USER, FOUND, found("late", "late", "now"), tools=[SHOWN, DEFERRED]),
            accepted(lambda g: shown(g, "late") + shown(g, "now") > 2), accepted(lambda g: (shown(g, "late"), shown(g, "now")) == (1, 1))),
    Request("deferred tools beside a `tool_search_tool_*` server tool", "messages",
            messages(tools=[SHOWN, DEFERRED, {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}]),
            refused("server tools"), accepted(lambda g: '"late"' in g["prompt"])),
    Request("a found tool that was declared before (Responses)", "responses",
            responses(USER, SEARCH_CALL, search_output({"type": "function", "name": "f", "description": "second", "defer_loading": True}),
                      tools=[SEARCH, {"type": "function", "name": "f", "description": "first"}]),
            refused("unique"), accepted(lambda g: '"description": "first"' in g["prompt"] and '"description": "second"' not in g["prompt"])),
    Request("the same call id in two groups (Responses)", "responses", responses(USER, item("c"), result("c"), USER, item("c"), result("c")), refused("Duplicate"),
            accepted(lambda g: roles(g) == "uatuat")),
    Request("`output_config.format` (Messages)", "messages", messages(output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}}),
            accepted(lambda g: g["conversation"]["response_format"] == "text"), accepted(lambda g: g["conversation"]["response_format"] == "json_schema")),
]


# ---- model output --------------------------------------------------------------------------------------------------------------------

def parameter(name, value, string="true"):
    return f'<｜DSML｜ parameter name="{name}" string="{string}">{value}</｜DSML｜ parameter>'


def invoke(*parameters, name="f"):
    return f'<｜DSML｜ invoke name="{name}">\n' + "\n".join(parameters) + "\n</｜DSML｜ invoke>"


def block(*invokes):
    return "\n\n<｜DSML｜ calls>\n" + "\n".join(invokes) + "\n</｜DSML｜ calls>"


def calls(*wanted, **more):
    """Exactly these calls as (name, arguments); more: other fields of the reply."""
    def check(reply):
        assert reply.calls == list(wanted), reply
        for key, value in more.items():
            assert getattr(reply, key) == value, reply
    return check


def text(content, **more):
    return calls(content=content, **more)


def last(reply):
    return reply.events[-1]


def check_true(test):
    def check(reply):
        assert test(reply), reply
    return check


CALL = block(invoke(parameter("a", "x")))
DONE = ("f", '{"a": "x"}')
NAMESPACE = [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]

OUTPUTS = [
    Output("a lone `<｜DSML｜` in prose", "A <｜DSML｜ token.", text("A "), text("A <｜DSML｜ token.")),
    Output("look-alike bars (`||`, `‖`, doubled, ASCII, spaced)", CALL.replace("｜", "||"), text(CALL.replace("｜", "||").lstrip("\n")), calls(DONE, content="")),
    Output("a close tag inside a value", block(invoke(parameter("a", "1</｜DSML｜ parameter>2"))), calls(("f", '{"a": "1"}')),
           calls(("f", '{"a": "1</｜DSML｜ parameter>2"}'))),
    Output("parameter names", block(invoke(parameter("a\\b", "x"))), calls(("f", '{"a\\b": "x"}')), calls(("f", '{"a\\\\b": "x"}'))),
    Output("missing `string` attribute", block(invoke('<｜DSML｜ parameter name="a">x</｜DSML｜ parameter>')), check_true(lambda r: r.calls[0][1] != DONE[1]), calls(DONE)),
    Output("a value that is not JSON", block(invoke(parameter("a", "x", "false"))), calls(("f", '{"a": x}')), calls(DONE)),
    Output("a sole parameter `arguments` that the schema lacks", block(invoke(parameter("arguments", '{"a": "x"}', "false"))), calls(("f", '{"arguments": {"a": "x"}}')), calls(DONE)),
    Output("a missing or extra namespace prefix in a call's name", block(invoke()), calls(("f", "{}")), calls(("n::f", "{}")), protocol="responses", tools=NAMESPACE),
    Output("missing closes", CALL.replace("</｜DSML｜ invoke>", invoke(name="g")), calls(DONE), calls(DONE, ("g", "{}"))),
    Output("`parallel_tool_calls: false`, `disable_parallel_tool_use`", block(invoke(parameter("a", "x")), invoke(name="g")), calls(DONE, ("g", "{}")), calls(DONE),
           more={"parallel_tool_calls": False}),
    Output("more than 256 newlines in front of the calls", "A" + 300 * "\n" + CALL, calls(DONE, content="A"), calls(DONE, content="A" + 46 * "\n")),
    Output("a marker token inside a name or attribute", "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f</think>\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>", calls(("f</think>", "{}")),
           check_true(lambda r: r.calls == []), as_ids=True),
    Output("a call cut off while the engine says stop", CALL[:CALL.index("x</")], check_true(lambda r: r.finish == "tool_calls"), check_true(lambda r: r.finish == "length")),
    Output("JSON mode", 'Sure: {"a": 1} That is all.', check_true(lambda r: r.content.strip() == '{"a": 1} That is all.'), text('{"a": 1}'), tools=False,
           more={"response_format": {"type": "json_object"}, "messages": [{"role": "user", "content": "json"}]}),
    Output("stop string of a newline at the start", "\nabc\ndef", text("", finish="stop"), text("abc", finish="stop"), tools=False, more={"stop": "\n"}),
    Output("text before a possible marker", ["Hello <", "b> world"], check_true(lambda r: r.deltas[0] == "Hello <"), check_true(lambda r: r.deltas[0] == "Hello ")),
    Output("usage chunk (chat, include_usage)", "x", check_true(lambda r: last(r)["choices"] and last(r)["usage"]), check_true(lambda r: last(r)["choices"] == [] and last(r)["usage"]),
           tools=False, more={"stream": True, "stream_options": {"include_usage": True}}),
    Output("`encrypted_content`", "why</think>x", check_true(lambda r: r.response["output"][0]["encrypted_content"]),
           check_true(lambda r: r.response["output"][0]["encrypted_content"] is None), protocol="responses", thinking=True, tools=False, more={"include": ["reasoning.encrypted_content"]}),
    Output("errors in streams", ["x", {"fail": {"type": "internal_error", "message": "trouble"}}], check_true(lambda r: r.events and not r.failed),
           check_true(lambda r: r.failed == "trouble"), tools=False),
    Output("namespaces of found tools (Responses)", block(invoke(name="n::late")), calls(("n::late", "{}")), calls(("n::late", "{}"), spaces=["n"]), protocol="responses",
           tools=[SEARCH], more={"input": [USER, SEARCH_CALL, search_output({"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "function", "name": "late", "defer_loading": True}]})]}),
]
