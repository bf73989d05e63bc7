"""The Engram map of the V4.1 vocabulary against the published `tokenizers` package, entry by entry."""
import array
import hashlib
import json
import pathlib
import re
import struct
import subprocess

import pytest

from program import BIN, ROOT

tokenizers = pytest.importorskip("tokenizers")
TOOL = pathlib.Path(BIN).parent / "test-tools/tokenize_ids"
HEADER = (ROOT / "src/tokenizer/engram_map.h").read_text(encoding="utf-8")


def published_map(path):
    """spec/model.md 8.1 in terms of the package's normalizers."""
    n = tokenizers.normalizers
    stand_in = "\ue000"
    fold = n.Sequence([n.NFKC(), n.NFD(), n.StripAccents(), n.Lowercase(), n.Replace(tokenizers.Regex(r"[ \t\r\n]+"), " "),
                       n.Replace(tokenizers.Regex(r"^ $"), stand_in), n.Strip(), n.Replace(stand_in, " ")])
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    classes, out = {}, []
    for token in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        key = tokenizer.id_to_token(token) if "\ufffd" in text else fold.normalize_str(text) or text
        out.append(classes.setdefault(key, len(classes)))
    return out


def our_map(path):
    data = subprocess.run([TOOL, path, "engram"], capture_output=True, check=True).stdout
    count, = struct.unpack_from("<I", data)
    ids = array.array("i", data[4:])
    assert len(ids) == count
    return list(ids)


def test_v41_map(tmp_path):
    import test_tokenizer
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(test_tokenizer.deepseek_v41_json(), ensure_ascii=False), encoding="utf-8")
    ours, published = our_map(path), published_map(path)
    assert len(ours) == 129280
    assert [i for i, (a, b) in enumerate(zip(ours, published)) if a != b] == [] and len(published) == len(ours)
    assert len(set(ours)) == max(ours) + 1 == 99092 == int(re.search(r"kV41EngramClasses = (\d+)", HEADER)[1])
    digest = hashlib.sha256(array.array("i", ours).tobytes()).hexdigest()
    assert digest == re.search(r'kV41EngramMapSha256 =\s+"(\w+)"', HEADER)[1]
    assert ours[2] == 2     # the pad id of the hash
