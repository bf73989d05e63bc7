"""Metadata of a GGUF file, and the tokenizer.json that its tokenizer part came from."""
import struct

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read(path):
    with open(path, "rb") as file:
        def scalar(fmt):
            return struct.unpack("<" + fmt, file.read(struct.calcsize("<" + fmt)))[0]

        def string():
            return file.read(scalar("Q")).decode("utf-8")

        def value(kind):
            if kind == 8:
                return string()
            if kind == 9:
                element, count = scalar("I"), scalar("Q")
                return [value(element) for _ in range(count)]
            return scalar(_FORMATS[kind])

        assert file.read(4) == b"GGUF"
        scalar("I"), scalar("Q")
        return {string(): value(scalar("I")) for _ in range(scalar("Q"))}


def smollm_tokenizer_json(metadata):
    """SmolLM's tokenizer.json: its published normaliser (none) and pre-tokenizer, with the vocabulary of the GGUF file."""
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
                         for i, (t, kind) in enumerate(zip(tokens, types)) if kind == 3],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": {t: i for i, t in enumerate(tokens)},
                  "merges": metadata["tokenizer.ggml.merges"]},
    }
