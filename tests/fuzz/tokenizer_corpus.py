#!/usr/bin/env python3
"""Writes the seeds of the tokenizer fuzzers to tests/fuzz/corpus/{tokenizer,tokenizer_json,tokenizer_bpe}; files named
regression-* are left alone.
"""
import json
import pathlib

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def split(regex):
    return {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
                                                  {**BYTE_LEVEL, "use_regex": False}]}


def document(pre=BYTE_LEVEL, normalizer=None, **model):
    return {"version": "1.0", "normalizer": normalizer, "pre_tokenizer": pre,
            "added_tokens": [{"id": 9, "content": "<s>", "special": True, "normalized": False, "lstrip": True, "rstrip": False, "single_word": False},
                             {"id": 10, "content": "é", "special": False, "normalized": True, "lstrip": False, "rstrip": True, "single_word": True}],
            "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]},
            "model": {"type": "BPE", "unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "1": 5, "Ċ": 6, "ĊĊ": 7, "中": 8},
                      "merges": ["a b", "Ġ ab", ["Ċ", "Ċ"]], **model}}


def write(folder, seeds):
    (CORPUS / folder).mkdir(parents=True, exist_ok=True)
    for name, data in seeds.items():
        (CORPUS / folder / name).write_bytes(data)


def main():
    documents = {
        "gpt2": document(), "nfc": document(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]}),
        "smollm": document({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]}),
        "llama3": document(split(LLAMA3), ignore_merges=True), "general": document(split(r"[^\s\p{Lu}]{1,4}|\d+(?=[\x41-\u0043])")),
        "fallback": document(unk_token="a", fuse_unk=True, byte_fallback=True, vocab={"a": 0, "<0xFF>": 1, "<0x0A>": 2}, merges=[]),
    }
    write("tokenizer_json", {name: json.dumps(d, ensure_ascii=False).encode() for name, d in documents.items()})
    texts = ["the token izer's 1234 \n\n  x", "中国 e\u0301 \U0001f600 <|a|><|b|> <tool>", "'LL\r\n \t ab  abc", "aaa...bca\u3000\u0301"]
    write("tokenizer", {f"{kind}-{i}": bytes([kind, i]) + t.encode() for kind in range(10) for i, t in enumerate(texts)}
          | {"bytes": b"\0\3the \xff\xe4\xb8 \xf0\x9f token"})
    write("tokenizer_bpe", {"one-letter": bytes([3, 0, 0, 4, 4, 4, 0]) + b"\0" * 20, "two-letters": bytes([4, 0, 1, 1, 0, 4, 4, 5, 0]) + bytes(range(0, 250, 7)),
                            "dead-ends": bytes([5, 1, 2, 0, 1, 5, 2, 4, 4, 0, 4]) + bytes([27, 228, 99, 147] * 6)})


if __name__ == "__main__":
    main()
