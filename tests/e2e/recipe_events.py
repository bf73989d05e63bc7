"""Event streams of the three protocols, for comparing: deltas of one run are joined, because how text is cut is not part of the answer."""
import copy
import json


def from_sse(text, protocol):
    """The data of server-sent events; the framing is checked on the way."""
    events = []
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    if protocol == "chat":
        assert blocks.pop() == "data: [DONE]"
    for block in blocks:
        name = None
        if protocol != "chat":
            first, block = block.split("\n")
            assert first.startswith("event: ")
            name = first[7:]
        assert block.startswith("data: ") and "\n" not in block
        events.append(json.loads(block[6:]))
        assert name is None or events[-1]["type"] == name
    return events


def join(a, b):
    """Appends delta b to delta a when both continue the same text; False when they do not."""
    if a.get("type") != b.get("type"):
        return False
    if "choices" in a:
        if not a["choices"] or not b["choices"]:
            return False
        x, y = a["choices"][0], b["choices"][0]
        if y["finish_reason"] or set(x["delta"]) != set(y["delta"]) or "role" in x["delta"]:
            return False
        x, y = x["delta"], y["delta"]
        if "tool_calls" in x:
            x, y = x["tool_calls"][0], y["tool_calls"][0]
            if "id" in x or "id" in y or x["index"] != y["index"]:
                return False
            x["function"]["arguments"] += y["function"]["arguments"]
            return True
        for k in ("content", "reasoning_content"):
            if isinstance(x.get(k), str) and isinstance(y.get(k), str):
                x[k] += y[k]
                return True
        return False
    if a["type"] == "content_block_delta" and a["delta"]["type"] == b["delta"]["type"]:
        k = next(k for k in a["delta"] if k != "type")
        a["delta"][k] += b["delta"][k]
        return True
    if a["type"].endswith(".delta") and a["output_index"] == b["output_index"]:
        a["delta"] += b["delta"]
        return True
    return False


def joined(events):
    """Events with deltas that continue the same text made one, and numbered anew."""
    out = []
    for e in copy.deepcopy(events):
        if not out or not join(out[-1], e):
            out.append(e)
    for i, e in enumerate(out):
        if "sequence_number" in e:
            e["sequence_number"] = i
    return out
