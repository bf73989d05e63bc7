#!/usr/bin/env python3
"""Writes seeds and a dictionary for the fuzzers of the recipe from tests/spec/recipe.

    tests/fuzz/recipe_corpus.py FOLDER      FOLDER/{chat,messages,responses,output,reply,family,image}/ and FOLDER/recipe.dict
    recipe_chat_fuzz FOLDER/chat -dict=FOLDER/recipe.dict -max_total_time=600
"""
import hashlib
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEC = ROOT / "tests/spec/recipe"
WORDS = ["｜DSML｜", "<｜DSML｜ calls>", "</｜DSML｜ calls>", "<｜DSML｜ invoke name=\"f\">", "</｜DSML｜ invoke>",
         "<｜DSML｜ parameter name=\"a\" string=\"true\">", "<｜DSML｜ parameter name=\"a\" string=\"false\">", "</｜DSML｜ parameter>", "</think>", "<think>",
         "<｜image｜>", "<||DSML||invoke", "```json\n", "\n\n", "\\ud83d\\ude00", "1e999", "base64,", "data:text/plain;base64,", "http://", "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>",
         "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "IHDR", "VP8X", "VP8L"]
KEYS = ["model", "messages", "role", "user", "assistant", "system", "developer", "tool", "content", "tool_calls", "tool_call_id", "function", "name", "arguments",
        "parameters", "type", "object", "properties", "required", "$ref", "#/$defs/a", "$defs", "anyOf", "pattern", "enum", "strict", "tools", "tool_choice", "auto",
        "none", "any", "thinking", "enabled", "disabled", "reasoning_content", "reasoning_effort", "response_format", "json_object", "json_schema", "schema", "regex",
        "image_url", "url", "file", "file_data", "input", "instructions", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
        "call_id", "output", "reasoning", "summary", "encrypted_content", "namespace", "custom", "additional_tools", "tool_search", "allowed_tools", "input_text",
        "output_text", "input_image", "input_file", "previous_response_id", "include", "custom", "format", "grammar", "syntax", "lark", "definition", "tool_use", "tool_result", "tool_use_id", "tool_reference", "tool_name",
        "tool_addition", "input_schema", "source", "base64", "media_type", "data", "document", "is_error", "signature", "server_tool_use", "stop", "stop_sequences",
        "max_tokens", "n", "logprobs", "top_logprobs", "prefix", "latest_reminder", "defer_loading"]


# Replies in the formats of recipe/family_parser.h, and headers of the image formats.
CALL = '{"name": "f", "arguments": {"a": "}</tool_call>"}}'
FAMILIES = [f"<think>\nwhy\n</think>\n\nNow.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{CALL}</tool_call>", '{"name": "f", "parameters": {"a": 1}}',
            f"<|python_tag|>{CALL}; {CALL}", f"[TOOL_CALLS][{CALL}, {CALL}]", "[TOOL_CALLS]f{\"a\": 1}",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"]
RIFF = b"RIFF\0\0\0\0WEBP"
IMAGES = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0", b"\xff\xd8\xff\xe0\0\x04\x01\x02\xff\xff\xc4\0\x03\x09\xff\xc2\0\x11\x08\x01\x02\x03\x04",
          b"GIF89a\x40\x01\xf0\0", RIFF + b"VP8X\x0a\0\0\0\0\0\0\0\x7f\2\0\xdf\1\0", RIFF + b"VP8 \0\0\0\0\0\0\0\x9d\1\x2a\x80\2\xe0\1",
          RIFF + b"VP8L\0\0\0\0\x2f\x7f\xc2\x77\0\0\0\0\0\0"]
CUSTOM = {"model": "m", "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "exec", "input": "ls"}}]},
                                     {"role": "tool", "tool_call_id": "c", "content": "ok"}],
          "tools": [{"type": "custom", "custom": {"name": "exec", "description": "d", "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a/"}}}}],
          "tool_choice": {"type": "custom", "custom": {"name": "exec"}}}


def write(folder, seeds):
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (folder / hashlib.sha1(seed).hexdigest()[:16]).write_bytes(seed)


def main():
    out = pathlib.Path(sys.argv[1])
    vectors = {name: json.loads((SPEC / f"{name}_vectors.json").read_text(encoding="utf-8")) for name in ("convert", "parse", "stream")}
    for protocol in ("chat", "messages", "responses"):
        requests = [v["request"] for group in ("ok", "errors") for v in vectors["convert"][group] if v["protocol"] == protocol]
        requests += [CUSTOM] if protocol == "chat" else []
        bodies = [json.dumps(r, ensure_ascii=False).encode() for r in requests]
        write(out / protocol, [bytes([choice]) + body for body in bodies for choice in (0, 1, 2, 0xF2)])
    texts = [v["text"] for v in vectors["parse"]["recipe"]] + ["".join(v["chunks"]) for v in vectors["stream"]["vectors"]]
    write(out / "output", [bytes([flags, 1]) + t.encode() for t in texts for flags in (1, 3, 0x41, 0x51)])
    write(out / "reply", [bytes([which, 3]) + t.encode() for t in texts for which in range(8)])
    write(out / "reply", [bytes([which, 3]) + t.replace("｜DSML｜", "\ue000").replace("</think>", "\ue001").encode().replace("\ue000".encode(), b"\xf8")
                          .replace("\ue001".encode(), b"\xf9") for t in texts for which in range(8)])
    write(out / "family", [bytes([flags, 3]) + t.encode() for t in FAMILIES for flags in range(64)])
    write(out / "image", IMAGES)
    words = [w.encode() for w in WORDS] + [f'"{k}"'.encode() for k in KEYS]
    (out / "recipe.dict").write_text("".join('"' + "".join(f"\\x{b:02x}" for b in w) + '"\n' for w in words))


if __name__ == "__main__":
    main()
