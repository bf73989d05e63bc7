"""Random requests and model outputs for the differential test of the recipe. Everything is a function of the random generator that is
passed in, so a failing case is reproduced by its seed."""

WORDS = ["Hello", "weather", "json", "Paris", "日本", "é", "naïve", "🇫🇷", "\n", "\n\n", " ", "  ", "\t", "x", "1", "2.50", "-3e10",
         "<", "</", "<b>", "&", "\"", "\\", "'", "{", "}", "[1]", "```", "a\u0301", "\u200b", "\u0001", "\u007f", "\u2028", "Ａ１",
         "<｜User｜>", "<think>", "</think>", "｜DSML｜", "<｜image｜>", "<｜end▁of▁sentence｜>", "<tool_result>", "�", "end"]


def text(r, most=6):
    return "".join(r.choice(WORDS) for _ in range(r.randint(0, most)))


def word(r):
    return r.choice(["a", "b2", "get_weather", "Read-File", "x_y", "z" * 20])


def number(r):
    return r.choice([0, 1, -1, 7, 10**15, 2**53 + 1, -(2**63), 2**64 - 1, 0.5, -0.0, 1e-7, 1.5e-7, 1e16, 1e22, 0.00001, 123456.789, 1e5, 3.0])


def value(r, depth=0):
    kind = r.randint(0, 7 if depth < 3 else 4)
    if kind == 0:
        return None
    if kind == 1:
        return r.random() < 0.5
    if kind == 2:
        return number(r)
    if kind in (3, 4):
        return text(r, 3)
    if kind == 5:
        return [value(r, depth + 1) for _ in range(r.randint(0, 3))]
    return {text(r, 2): value(r, depth + 1) for _ in range(r.randint(0, 3))}


def arguments(r):
    import json
    kind = r.randint(0, 9)
    if kind == 0:
        return r.choice(["", "null", "[1, 2]", "not json", "{\"a\":1", "\"s\"", " {\"a\" : 1} ", "{\"a\":1,\"a\":2}", "{\"x\":1e400}", "{} "])
    return json.dumps({text(r, 2): value(r) for _ in range(r.randint(0, 4))}, ensure_ascii=r.random() < 0.5,
                      separators=r.choice([(",", ":"), (", ", ": ")]))


def schema(r, depth=0):
    kind = r.randint(0, 6)
    out = {}
    if depth == 0 or (kind == 0 and depth < 3):
        out["type"] = "object"
        if depth == 0 or r.random() < 0.9:
            out["properties"] = {r.choice(["a", "b", "城市", "c d"]): schema(r, depth + 1) for _ in range(r.randint(0, 3))}
        if r.random() < 0.2 and out.get("properties"):
            out["required"] = list(out["properties"])[:1]
        if r.random() < 0.2:
            out["additionalProperties"] = r.random() < 0.5
    elif kind == 1:
        out = {"type": "string", "enum": ["x", text(r, 2)]}
    elif kind == 2:
        out = {"type": r.choice(["number", "integer"]), "minimum": r.choice([0, 1.0, 1e-7]), "default": number(r)}
    elif kind == 3 and depth < 3:
        out = {"type": "array", "items": schema(r, depth + 1)}
    elif kind == 4:
        out = {"type": ["string", "null"]}
    elif kind == 5 and depth < 3:
        out = {"anyOf": [schema(r, depth + 1), {"type": "null"}]}
    else:
        out = {"type": r.choice(["string", "boolean"])}
    if r.random() < 0.3:
        out["description"] = text(r, 3)
    return out


BAD_SCHEMAS = [{}, {"type": "string"}, {"type": "bogus"}, {"type": "object", "properties": 5}, {"type": "object", "required": "a"},
               {"type": "object", "required": ["a", "a"]}, {"type": "object", "properties": {"a": {"pattern": "("}}},
               {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}}, {"type": "object", "properties": {"a": {"$ref": "http://e.com/x"}}},
               {"type": "object", "minProperties": -1}, {"type": "object", "additionalProperties": 5}, {"type": ["object"]}, "x", [], True,
               {"type": "object", "properties": {"a": {"description": 5}}}, {"type": "object", "$schema": "zzz"}]
IMAGES = ["https://example.com/a.png", "HTTP://x", "data:image/png;base64,iVBORw0KGgo=", "data:image/jpg;base64,AAAA", "data:image/GIF;base64,AAA"]
BAD_IMAGES = ["", "ftp://x", "data:image/bmp;base64,AAAA", "data:image/png;base64,A*", "zz", "data:image/png,AAAA", "https://" + "a" * 8190]
EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]


def maybe(r, p, out, key, make):
    if r.random() < p:
        out[key] = make()


def settings(r, out, max_tokens="max_tokens"):
    maybe(r, 0.2, out, max_tokens, lambda: r.choice([1, 100, 393216]))
    maybe(r, 0.2, out, "temperature", lambda: r.choice([0, 0.3, 1, 1.5, 2, 0.7000000001]))
    maybe(r, 0.2, out, "top_p", lambda: r.choice([0.1, 0.5, 0.95, 0.99, 1]))
    maybe(r, 0.2, out, "stream", lambda: r.random() < 0.5)
    maybe(r, 0.1, out, r.choice(["foo", "metadata2", "x"]), lambda: value(r))


# Errors that every protocol knows, as (field, value).
COMMON_ERRORS = [("temperature", 2.5), ("temperature", -0.1), ("temperature", "x"), ("top_p", 0), ("top_p", 1.5), ("top_p", []), ("model", 5),
                 ("stream", "x"), ("stream", 1)]


def chat(r, error=False):
    out = {"model": "m", "messages": chat_messages(r)}
    settings(r, out)
    maybe(r, 0.3, out, "thinking", lambda: {"type": r.choice(["enabled", "disabled", "adaptive"])})
    maybe(r, 0.3, out, "reasoning_effort", lambda: r.choice(EFFORTS))
    if out.get("stream") and r.random() < 0.5:
        out["stream_options"] = {"include_usage": r.random() < 0.5}
    maybe(r, 0.2, out, "stop", lambda: r.choice(["END", ["a", "bb"], [], None]))
    maybe(r, 0.1, out, "seed", lambda: r.choice([0, 5, 2**63 - 1]))
    maybe(r, 0.1, out, "n", lambda: 1)
    maybe(r, 0.1, out, "frequency_penalty", lambda: r.choice([-2, 0.5, 2]))
    if r.random() < 0.1:
        out["logprobs"] = True
        maybe(r, 0.5, out, "top_logprobs", lambda: r.randint(0, 20))
    if r.random() < 0.5:
        names = r.sample(["f", "g", "h-1", "get_weather"], r.randint(1, 3))
        strict = r.random() < 0.1
        out["tools"] = [{"type": "function", "function": chat_function(r, n, strict)} for n in names]
        thinks = out.get("thinking", {}).get("type") != "disabled"
        if r.random() < 0.3:
            out["tool_choice"] = r.choice(["auto", "none"] + ([] if thinks else ["required", {"type": "function", "function": {"name": names[0]}}]))
    elif r.random() < 0.2:
        out["tools"] = r.choice([[], None])
        out["tool_choice"] = r.choice(["auto", "none", "required", None])
    if r.random() < 0.2 and not any(t["function"].get("strict") for t in out.get("tools") or []):
        out["response_format"] = r.choice([{"type": "text"}, {"type": "json_schema", "json_schema": {"name": "n", "schema": schema(r)}},
                                           {"type": "regex", "regex": "a+"}, {"type": "json_object"}])
    if error:
        chat_error(r, out)
    return out


def chat_function(r, name, strict):
    f = {"name": name}
    maybe(r, 0.7, f, "description", lambda: text(r, 4))
    maybe(r, 0.8, f, "parameters", lambda: schema(r))
    if strict:
        f["strict"] = True
        f["parameters"] = {"type": "object", "properties": {"a": {"type": "string", "description": text(r, 2)}, "b": {"type": "array", "items": {"type": "integer"}}}}
    return f


def chat_content(r, images=True):
    if r.random() < 0.6:
        return text(r)
    parts = []
    for _ in range(r.randint(0, 3)):
        if images and r.random() < 0.3:
            url = {"url": r.choice(IMAGES)}
            maybe(r, 0.5, url, "detail", lambda: r.choice(["low", "high", "original", "auto"]))
            parts.append({"type": "image_url", "image_url": url})
        else:
            parts.append({"type": "text", "text": text(r)})
    return parts


def chat_messages(r):
    out = []
    for _ in range(r.randint(0, 2)):
        out.append({"role": "system", "content": chat_content(r, False)})
    for _ in range(r.randint(1, 5)):
        kind = r.randint(0, 9)
        if kind < 5:
            out.append({"role": "user", "content": chat_content(r)})
        elif kind < 7:
            m = {"role": "assistant", "content": chat_content(r, False)}
            maybe(r, 0.5, m, "reasoning_content", lambda: text(r))
            out.append(m)
        elif kind == 7:
            out.append({"role": r.choice(["latest_reminder", "system"]), "content": text(r)})
        else:
            ids = r.sample(["c1", "c2", "c3", "call_é"], r.randint(1, 3))
            m = {"role": "assistant", "tool_calls": [{"id": i, "type": "function", "function": {"name": word(r), "arguments": arguments(r)}} for i in ids]}
            maybe(r, 0.5, m, "content", lambda: r.choice([None, text(r)]))
            maybe(r, 0.5, m, "reasoning_content", lambda: text(r))
            out.append(m)
            r.shuffle(ids)
            out += [{"role": "tool", "tool_call_id": i, "content": chat_content(r)} for i in ids]
    if r.random() < 0.1:
        m = {"role": "assistant", "content": r.choice(["", text(r)]), "prefix": True}
        maybe(r, 0.5, m, "reasoning_content", lambda: text(r))
        out.append(m)
    return out


def chat_error(r, out):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c1", "content": "x"}
    user = {"role": "user", "content": "x"}

    def extend(*messages):
        out["messages"] = [m for m in out["messages"] if not m.get("prefix")] + list(messages)

    choices = [lambda f=f, v=v: out.update({f: v}) for f, v in COMMON_ERRORS + [
        ("max_tokens", 0), ("max_tokens", 393217), ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", "x"), ("n", 2), ("n", 0), ("seed", -1), ("seed", 2**63),
        ("frequency_penalty", 3), ("presence_penalty", -2.5), ("stop", ["s"] * 17), ("stop", ["a", ""]), ("stop", ""), ("stop", 5), ("messages", []),
        ("messages", "x"), ("messages", [5]), ("reasoning_effort", "zz"), ("thinking", {"type": "zz"}), ("thinking", {}), ("response_format", {"type": "zz"}),
        ("response_format", {"type": "regex"}), ("top_logprobs", 3), ("tools", "x"), ("tools", [{}]), ("tools", [{"type": "zz"}]), ("tool_choice", "zz"), ("tool_choice", {}),
        ("parallel_tool_calls", 5), ("messages", [{"role": "critic", "content": "x"}]), ("messages", [{"role": "user"}]), ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "user", "content": [{"type": "zz"}]}]), ("messages", [{"role": "developer", "content": "x"}]), ("model", "zzz")]]
    choices += [lambda: out.pop("messages"), lambda: out.pop("model"), lambda: (out.pop("stream", None), out.update(stream_options={})),
                lambda: out.update(logprobs=True, top_logprobs=21), lambda: extend({"role": "assistant"}), lambda: extend({"role": "assistant", "content": "a", "tool_calls": []}),
                lambda: extend(user, result), lambda: extend({"role": "assistant", "tool_calls": [call]}), lambda: extend({"role": "assistant", "tool_calls": [call]}, {**result, "tool_call_id": "zz"}),
                lambda: extend({"role": "assistant", "tool_calls": [call]}, result, result), lambda: extend({"role": "assistant", "tool_calls": [call, call]}, result),
                lambda: extend({"role": "assistant", "tool_calls": [call]}, user, result), lambda: extend({"role": "assistant", "tool_calls": [{**call, "id": "c2"}, call]}, result, result),
                lambda: extend({"role": "assistant", "content": "a", "prefix": True}, user), lambda: extend({"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "https://x"}}]}),
                lambda: extend({"role": "user", "content": [{"type": "image_url", "image_url": {"url": r.choice(BAD_IMAGES)}}]}), lambda: extend({"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}),
                lambda: extend({"role": "tool", "content": "x"}), lambda: extend({"role": "assistant", "tool_calls": [{**call, "type": "zz"}]}),
                lambda: (out.pop("tool_choice", None), out.update(tools=[{"type": "function", "function": {"name": "f", "parameters": r.choice(BAD_SCHEMAS)}}])),
                lambda: out.update(tools=[{"type": "function", "function": {"name": r.choice(["", "a b", "é", "n" * 129])}}]),
                lambda: (out.pop("tool_choice", None), out.update(tools=[{"type": "function", "function": {"name": "f"}}] * 2)),
                lambda: out.update(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice=r.choice(["required", {"type": "function", "function": {"name": "zz"}}]), thinking={"type": "enabled"}),
                lambda: out.update(messages=[user], tools=None, response_format={"type": "json_object"}),
                lambda: out.update(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "bogus"}}}, tools=None)]
    r.choice(choices)()


def responses(r, error=False):
    out = {"model": "m"}
    if r.random() < 0.3:
        out["input"] = text(r)
    else:
        out["input"] = response_items(r)
    maybe(r, 0.3, out, "instructions", lambda: text(r))
    settings(r, out, "max_output_tokens")
    thinks = True
    if r.random() < 0.4:
        out["reasoning"] = {"effort": r.choice(EFFORTS + [None])}
        thinks = out["reasoning"]["effort"] != "none"
        maybe(r, 0.3, out["reasoning"], "summary", lambda: r.choice(["auto", "concise", "detailed", None]))
    maybe(r, 0.1, out, "top_logprobs", lambda: r.randint(0, 20))
    maybe(r, 0.2, out, "user", lambda: text(r))
    if r.random() < 0.5:
        tools = []
        for n in r.sample(["f", "g", "h"], r.randint(0, 2)):
            tools.append({"type": "function", **chat_function(r, n, False)})
            maybe(r, 0.1, tools[-1], "defer_loading", lambda: r.random() < 0.5)
        if r.random() < 0.3:
            tools.append({"type": "custom", "name": "apply_patch"})
        for ns in r.sample(["n", "m", "n"], r.randint(0, 2)):
            t = {"type": "namespace", "name": ns, "tools": [{"type": "function", **chat_function(r, n, False)} for n in r.sample(["f", "g"], r.randint(0, 2))]}
            maybe(r, 0.5, t, "description", lambda: r.choice(["", "nd", text(r, 3)]))
            tools.append(t)
        if r.random() < 0.2:
            tools.append({"type": r.choice(["web_search", "web_search_2025_08_26", "zz", "local_shell"])})
        if r.random() < 0.3:
            tools.append(search_tool(r))
        r.shuffle(tools)
        out["tools"] = tools
        if r.random() < 0.3:
            named = [t["name"] for t in tools if t["type"] == "function"]
            out["tool_choice"] = r.choice(["auto", "none", {"type": "web_search"}] + ([] if thinks else ["required"] + ([{"type": "function", "name": named[0]}] if named else [])))
    if r.random() < 0.2:
        out["text"] = {"format": r.choice([{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "name": "n", "schema": schema(r)}])}
        maybe(r, 0.3, out["text"], "verbosity", lambda: r.choice(["low", "high", None]))
    if error:
        responses_error(r, out)
    return out


def search_tool(r):
    t = {"type": "tool_search"}
    maybe(r, 0.9, t, "execution", lambda: r.choice(["client", "client", "client", "server", None]))
    maybe(r, 0.6, t, "description", lambda: text(r, 3))
    maybe(r, 0.6, t, "parameters", lambda: schema(r))
    return t


def search(r, n):
    """A search of the client and the tools that it found."""
    call = {"type": "tool_search_call", "call_id": "s%d" % n, "execution": r.choice(["client", "server"]), "arguments": {text(r, 2): value(r) for _ in range(r.randint(0, 2))}}
    tools = [{"type": "function", **chat_function(r, "found%d_%d" % (n, k), False), "defer_loading": True} for k in range(r.randint(0, 2))]
    if r.random() < 0.3:
        t = {"type": "namespace", "name": r.choice(["n", "m"]), "tools": [{"type": "function", **chat_function(r, f, False)} for f in r.sample(["f", "g"], r.randint(0, 2))]}
        maybe(r, 0.5, t, "description", lambda: r.choice(["", "nd"]))
        tools.append(t)
    if r.random() < 0.2:
        tools.append({"type": "web_search"})
    result = {"type": "tool_search_output", "call_id": "s%d" % n, "execution": "client", "tools": tools}
    return call, result


def response_content(r, output=False):
    if r.random() < 0.6:
        return text(r)
    parts = []
    for _ in range(r.randint(0, 3)):
        kind = r.random()
        if kind < 0.2:
            image = {"type": "input_image", "image_url": r.choice(IMAGES)}
            maybe(r, 0.4, image, "detail", lambda: r.choice(["low", "auto"]))
            parts.append(image)
        elif kind < 0.3:
            parts.append({"type": "input_file", "file_data": "x"})
        else:
            parts.append({"type": "input_text" if output or r.random() < 0.8 else "output_text", "text": text(r)})
    return parts


def response_items(r):
    out = []
    n = 0
    for _ in range(r.randint(1, 6)):
        kind = r.randint(0, 9)
        if kind < 4:
            m = {"role": r.choice(["user", "user", "user", "system", "developer"]), "content": response_content(r)}
            maybe(r, 0.5, m, "type", lambda: "message")
            out.append(m)
        elif kind < 6:
            out.append({"type": "message", "role": "assistant", "content": r.choice([text(r), [{"type": "output_text", "text": text(r)} for _ in range(r.randint(0, 2))]])})
        elif kind == 6:
            item = {"type": "reasoning", "summary": []}
            maybe(r, 0.8, item, "content", lambda: [{"type": "reasoning_text", "text": text(r)} for _ in range(r.randint(0, 2))])
            out.append(item)
        elif kind == 7 and r.random() < 0.5:
            out.append({"type": r.choice(["zz", "item_reference"]), "id": "x"})
        elif kind == 7:
            pairs = [search(r, n + k) for k in range(r.randint(1, 2))]
            n += 3
            out += [call for call, _ in pairs]
            r.shuffle(pairs)
            out += [result for _, result in pairs]
        else:
            ids = ["%s%d" % (r.choice("abz"), n + k) for k in range(r.randint(1, 3))]
            n += 3
            r.shuffle(ids)
            for i in ids:
                if r.random() < 0.2:
                    out.append({"type": "custom_tool_call", "call_id": i, "name": "apply_patch", "input": text(r)})
                else:
                    call = {"type": "function_call", "call_id": i, "name": word(r), "arguments": arguments(r)}
                    maybe(r, 0.3, call, "namespace", lambda: r.choice(["n", "m", None]))
                    out.append(call)
            r.shuffle(ids)
            out += [{"type": r.choice(["function_call_output", "custom_tool_call_output"]), "call_id": i, "output": response_content(r, True)} for i in ids]
    return out


def responses_error(r, out):
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "o"}
    user = {"role": "user", "content": "x"}

    def extend(*items):
        out["input"] = (out["input"] if isinstance(out.get("input"), list) else []) + list(items)

    choices = [lambda f=f, v=v: out.update({f: v}) for f, v in COMMON_ERRORS + [
        ("max_output_tokens", 0), ("max_output_tokens", 393217), ("max_output_tokens", "x"), ("input", []), ("input", 5), ("input", ["x"]), ("input", [{}]), ("input", [{"role": "tool", "content": "x"}]),
        ("input", [{"role": "user"}]), ("input", [{"role": "user", "content": [{"type": "input_audio"}]}]), ("instructions", 5), ("reasoning", {"effort": "zz"}), ("reasoning", {"summary": "zz"}), ("top_logprobs", 21),
        ("text", {"format": {"type": "regex", "regex": "a"}}), ("text", {"verbosity": "zz"}), ("text", 5), ("user", 5), ("tool_choice", "zz"), ("tools", [{}]), ("tools", [{"type": "function"}]), ("model", "zzz"),
        ("input", [{"type": "function_call", "name": "f", "arguments": "{}"}]), ("input", [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}])]]
    find, found = {"type": "tool_search_call", "call_id": "sx", "execution": "client", "arguments": {}}, {"type": "tool_search_output", "call_id": "sx", "tools": []}
    broken = [{**find, "arguments": r.choice([None, "{}", 5])}, {k: v for k, v in find.items() if k != r.choice(["call_id", "arguments"])}, {**find, "execution": r.choice(["zz", 5])}, find,
              {**find, "call_id": ""}]
    unfound = [{**found, "tools": r.choice([None, "x", [5], [{}], [{"type": "function"}], [{"type": "zz"}], [{"type": "function", "name": "a b"}], [{"type": "custom", "name": "exec"}],
                                            [{"type": "function", "name": "t"}] * 2, [{"type": "function", "name": "t", "parameters": {"type": "string"}}]])},
               {k: v for k, v in found.items() if k != r.choice(["call_id", "tools"])}, {**found, "execution": "zz"}, {**found, "call_id": "sy"}]
    choices += [lambda: extend(r.choice(broken), user), lambda: extend(find, r.choice(unfound)), lambda: extend(find, user, found), lambda: extend(found), lambda: extend(find, found, found),
                lambda: (out.pop("tool_choice", None), out.update(tools=[{"type": "tool_search", "execution": "client"}, r.choice([{"type": "function", "name": "tool_search"}, {"type": "tool_search", "execution": r.choice(["zz", 5])},
                                                                                                            {"type": "tool_search", "description": 5}, {"type": "tool_search", "execution": "client", "parameters": r.choice(BAD_SCHEMAS)}])]))]
    choices += [lambda: (out.pop("input"), out.pop("instructions", None)), lambda: out.pop("model"), lambda: extend({**call, "call_id": ""}), lambda: extend({**result, "call_id": "zz"}), lambda: extend(call, user, result),
                lambda: extend(call), lambda: extend(call, call, result), lambda: extend(call, result, result), lambda: extend(call, result, call, result), lambda: extend(call, result, user, result), lambda: extend(call, {**call, "call_id": "d"}, result, result), lambda: extend(call, {"type": "reasoning", "summary": []}, result),
                lambda: extend({"role": "user", "content": [{"type": "input_image"}]}), lambda: extend({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}),
                lambda: extend({"role": "user", "content": [{"type": "input_image", "image_url": "https://x", "file_id": "f"}]}), lambda: extend({"role": "user", "content": [{"type": "input_image", "image_url": r.choice(BAD_IMAGES)}]}),
                lambda: extend({"role": "assistant", "content": [{"type": "input_image", "image_url": "https://x"}]}), lambda: (out.pop("tool_choice", None), out.update(tools=[{"type": "custom", "name": "exec"}])),
                lambda: (out.pop("tool_choice", None), out.update(tools=[{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "apply_patch"}]}])),
                lambda: (out.pop("tool_choice", None), out.update(tools=[{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}] * 2}])),
                lambda: (out.pop("tool_choice", None), out.update(tools=[{"type": "function", "name": "f"}] * 2)), lambda: (out.pop("tool_choice", None), out.update(tools=[{"type": "function", "name": "f", "parameters": r.choice(BAD_SCHEMAS)}])),
                lambda: out.update(tools=[{"type": r.choice(["function", "namespace"]), "name": r.choice(["", "a b", "n" * 129]), "tools": []}]),
                lambda: out.update(tools=[{"type": "function", "name": "f"}], tool_choice=r.choice(["required", {"type": "function", "name": "zz"}]), reasoning={}),
                lambda: out.update(input="x", instructions="y", tools=[], text={"format": {"type": "json_object"}})]
    r.choice(choices)()


def messages(r, error=False):
    names = r.sample(["f", "g", "h"], r.randint(1, 3)) if r.random() < 0.5 else []
    out = {"model": "m", "messages": message_list(r, names)}
    settings(r, out)
    maybe(r, 0.4, out, "system", lambda: r.choice([text(r), [], [{"type": "text", "text": text(r), "cache_control": {"type": "ephemeral"}} for _ in range(2)]]))
    thinks = True
    if r.random() < 0.4:
        out["thinking"] = {"type": r.choice(["enabled", "disabled", "adaptive"]), "budget_tokens": 1024}
        thinks = out["thinking"]["type"] != "disabled"
    maybe(r, 0.3, out, "output_config", lambda: {"effort": r.choice(EFFORTS + [None])})
    maybe(r, 0.2, out, "stop_sequences", lambda: r.choice([["a"], [], ["x"] * 16]))
    maybe(r, 0.1, out, "metadata", lambda: {"user_id": "u"})
    if names:
        out["tools"] = []
        for n in names:
            t = {"name": n, "input_schema": schema(r)}
            maybe(r, 0.6, t, "description", lambda: text(r, 4))
            maybe(r, 0.3, t, "defer_loading", lambda: r.random() < 0.7 and n != names[0])
            out["tools"].append(t)
        if r.random() < 0.3:
            out["tool_choice"] = r.choice([{"type": "auto"}, {"type": "any", "disable_parallel_tool_use": True}, {"type": "none"}] + ([] if thinks else [{"type": "tool", "name": names[0]}]))
            if out["tool_choice"].get("type") == "tool" and out.get("thinking", {}).get("type") != "disabled":
                del out["tool_choice"]
    if error:
        messages_error(r, out)
    return out


def message_blocks(r, result=False, names=()):
    if r.random() < 0.4:
        return text(r) if result else None
    blocks = []
    for _ in range(r.randint(0 if result else 1, 3)):
        kind = r.random()
        if result and names and r.random() < 0.3:
            blocks.append({"type": "tool_reference", "tool_name": r.choice(names)})
        elif kind < 0.15:
            blocks.append({"type": "image", "source": {"type": "base64", "media_type": r.choice(["image/png", "image/jpg"]), "data": r.choice(["iVBORw0KGgo=", "AAAA", "AA=="])}})
        elif kind < 0.25:
            blocks.append({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}})
        elif kind < 0.35:
            blocks.append({"type": "document", "source": r.choice([{"type": "text", "media_type": "text/plain", "data": "x"}, {"type": "url", "url": "https://x"}, {"type": "base64", "media_type": "application/pdf", "data": "AA=="}])})
        else:
            blocks.append({"type": "text", "text": text(r)})
    return blocks


def system_blocks(r, names):
    blocks = []
    for _ in range(r.randint(1, 3)):
        if names and r.random() < 0.6:
            blocks.append({"type": "tool_addition", "tool": {"type": "tool_reference", "name": r.choice(names)}})
        else:
            blocks.append({"type": "text", "text": text(r)})
    return blocks


def message_list(r, names):
    out = []
    n = 0
    for _ in range(r.randint(1, 5)):
        kind = r.randint(0, 9)
        if kind < 5:
            out.append({"role": "user", "content": message_blocks(r) or text(r)})
        elif kind < 6:
            out.append({"role": "system", "content": r.choice([text(r), system_blocks(r, names)])})
        elif kind < 8:
            content = text(r)
            if r.random() < 0.5:
                content = [{"type": "thinking", "thinking": text(r), "signature": "s"} for _ in range(r.randint(0, 2))] + [{"type": "text", "text": text(r)} for _ in range(r.randint(1, 2))]
            out.append({"role": "assistant", "content": content})
        else:
            ids = ["t%d" % (n + k) for k in range(r.randint(1, 3))]
            n += 3
            content = [{"type": "thinking", "thinking": text(r), "signature": "s"}] if r.random() < 0.5 else []
            if r.random() < 0.5:
                content.append({"type": "text", "text": text(r)})
            content += [{"type": "tool_use", "id": i, "name": word(r), "input": {text(r, 2): value(r) for _ in range(r.randint(0, 3))}} for i in ids]
            out.append({"role": "assistant", "content": content})
            r.shuffle(ids)
            results = []
            for i in ids:
                t = {"type": "tool_result", "tool_use_id": i}
                maybe(r, 0.9, t, "content", lambda: message_blocks(r, True, names))
                maybe(r, 0.2, t, "is_error", lambda: True)
                results.append(t)
            if r.random() < 0.5:
                results.append({"type": "text", "text": text(r)})
            out.append({"role": "user", "content": results})
    return out


def messages_error(r, out):
    use = {"type": "tool_use", "id": "zt", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "zt", "content": "x"}
    user = {"role": "user", "content": "x"}

    def extend(*items):
        out["messages"] = out["messages"] + list(items)

    def a(*blocks):
        return {"role": "assistant", "content": list(blocks)}

    def u(*blocks):
        return {"role": "user", "content": list(blocks)}

    choices = [lambda f=f, v=v: out.update({f: v}) for f, v in COMMON_ERRORS + [
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", "x"), ("messages", []), ("messages", "x"), ("messages", [{"role": "zz", "content": "x"}]), ("messages", [{"role": "user", "content": []}]),
        ("messages", [{"role": "user", "content": None}]), ("system", 5), ("system", [{"type": "zz"}]), ("stop_sequences", [""]), ("stop_sequences", ["x"] * 17), ("stop_sequences", "a"), ("thinking", {"type": "zz"}), ("thinking", {}),
        ("output_config", {"effort": "zz"}), ("metadata", 5), ("tool_choice", {"type": "zz"}), ("tool_choice", "auto"), ("tool_choice", {"type": "tool"}), ("tools", [{}]), ("model", "zzz")]]
    def addition(**tool):
        return {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f", **tool}}

    choices += [lambda: extend(u(addition())), lambda: extend(a(addition())), lambda: extend({"role": "system", "content": [addition(name=r.choice(["zz", 5, None]))]}),
                lambda: extend({"role": "system", "content": [r.choice([addition(type="zz"), {"type": "tool_addition"}, {"type": "tool_addition", "tool": 5}])]}),
                lambda: extend(a(use), u({**result, "content": [{"type": "tool_reference", "tool_name": "zz"}]})),
                lambda: (out.pop("tool_choice", None), out.update(tools=[{"name": "f", "input_schema": {"type": "object"}, "defer_loading": r.choice([True, "x", 1])}]))]
    choices += [lambda: out.pop("messages"), lambda: out.pop("model"), lambda: extend(a(use)), lambda: extend(a(use), user), lambda: extend(u(result)), lambda: extend(a(use), u(result, result)), lambda: extend(a(use, use), u(result)),
                lambda: extend(a(use, {"type": "text", "text": "x"}), u(result)), lambda: extend(a(use), u({"type": "text", "text": "x"}, result)), lambda: extend(a(use), a({"type": "text", "text": "x"}), u(result)),
                lambda: extend(a(use, {**use, "id": "zu"}), u(result)), lambda: extend(u(use)), lambda: extend(u({"type": "thinking", "thinking": "x", "signature": ""})), lambda: extend(u({"type": "zz"})),
                lambda: extend(a({"type": "image", "source": {"type": "url", "url": "https://x"}})), lambda: extend(a({"type": "server_tool_use", "id": "s", "name": "w", "input": {}})),
                lambda: extend(u({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": r.choice(["***", "AAA", "A A A", "AAAAA"])}})),
                lambda: extend(u({"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": "AAAA"}})), lambda: extend(u({"type": "image", "source": {"type": "url", "url": r.choice(["ftp://x", "", "https://" + "a" * 8190])}})),
                lambda: extend(u({"type": "image", "source": {"type": "file", "file_id": "f"}})), lambda: extend({"role": "assistant", "content": []}),
                lambda: (out.pop("tool_choice", None), out.update(tools=[{"type": "web_search_20250305", "name": "web_search"}])), lambda: (out.pop("tool_choice", None), out.update(tools=[{"name": "f", "input_schema": r.choice(BAD_SCHEMAS)}])),
                lambda: (out.pop("tool_choice", None), out.update(tools=[{"name": "f"}])), lambda: out.update(tools=[{"name": r.choice(["", "a b", "n" * 129]), "input_schema": {"type": "object"}}]),
                lambda: (out.pop("tool_choice", None), out.update(tools=[{"name": "f", "input_schema": {"type": "object"}}] * 2)),
                lambda: (out.pop("output_config", None), out.update(tools=[{"name": "f", "input_schema": {"type": "object"}}], tool_choice={"type": "tool", "name": r.choice(["f", "zz"])}, thinking={"type": "enabled"}))]
    r.choice(choices)()


# ---- model output -----------------------------------------------------------------------------------------------------------------

def parameter(r, space):
    name = r.choice(["a", "b", "city", "é", "", "c d", "k\"q", "back\\slash"]) if r.random() < 0.3 else r.choice(["a", "b", "city"])
    is_string = r.random() < 0.6
    body = text(r) if is_string else r.choice(["1", " 2 ", "{\"k\": [1, null]}", "{oops", "", "true", "[\"<\"]"])
    attribute = " string=\"%s\"" % ("true" if is_string else "false")
    if r.random() < 0.04:
        attribute = r.choice(["", " string=\"yes\"", " x=\"1\" string=\"true\""])
    close = "</｜DSML｜%sparameter>" % space if r.random() < 0.95 else ""
    return "<｜DSML｜%sparameter name=\"%s\"%s>%s%s" % (space, name, attribute, body, close)


def block(r):
    space = r.choice([" ", ""])
    outer = r.choice([" calls", "tool_calls"])
    calls = []
    for _ in range(r.randint(0, 3)):
        lines = "\n".join(parameter(r, space) for _ in range(r.randint(0, 3)))
        close = "</｜DSML｜%sinvoke>" % space if r.random() < 0.95 else ""
        calls.append("<｜DSML｜%sinvoke name=\"%s\">\n%s\n%s" % (space, r.choice(["f", "g", "n::f", "apply_patch", "tool_search", "x y", ""]), lines, close))
    whole = "\n\n<｜DSML｜%s>\n%s\n</｜DSML｜%s>" % (outer, "\n".join(calls), outer)
    if r.random() < 0.2:
        whole = whole[: r.randint(0, len(whole))]
    return whole


def output(r):
    """Model text with its parsing options: (text, options, thinking)."""
    options = {"parse_tool_calls": r.random() < 0.7, "parse_json_output": r.random() < 0.15, "tool_call_initial_stage": False, "stop_sequences": [], "reasoning_initial_stage": None}
    thinking = r.random() < 0.5
    if thinking:
        options["reasoning_initial_stage"] = r.choice(["start", "start", "start", "reasoning", "content"])
    if r.random() < 0.2:
        options["stop_sequences"] = [r.choice(["END", "\n\n", "aab", "</", "x", "日", "aaab"]) for _ in range(r.randint(1, 2))]
    parts = []
    if options["parse_tool_calls"] and r.random() < 0.1:
        options["tool_call_initial_stage"] = True
        parts.append(block(r)[r.choice([0, 17]):])
    if thinking and options["reasoning_initial_stage"] != "content":
        parts.append(r.choice(["", "\n", "\n\n"]) + text(r) + r.choice(["", "\n", "\n\n"]))
        if r.random() < 0.9:
            parts.append("</think>")
    parts.append(r.choice(["", "\n", "\n\n"]) + text(r))
    if options["parse_json_output"]:
        parts.append(r.choice(["{\"a\": 1}", "```json\n[1]\n```", "```\n{}\n``` tail", "no json"]))
    if r.random() < 0.6:
        parts.append(block(r))
    if r.random() < 0.3:
        parts.append(r.choice(["\n", "</think>", "END", "aaab", "<｜DS", "tail"]) + text(r))
    return "".join(parts), options, thinking


def cuts(r, s):
    if r.random() < 0.2:
        return [s] if s else []
    step = r.choice([1, 2, 3, 5, 8, 20])
    out, i = [], 0
    while i < len(s):
        n = r.randint(1, step)
        out.append(s[i:i + n])
        i += n
    return out
