"""Random JSON Schemas, values and spellings of values, for tests of `deepmint grammar` against the published validator."""
import json

KEYS = ["a", "b", "c"]
STRINGS = ["", "a", "b", "ab", "ba", "abc", "é", "😀", "a\"b\\/", "\n", "0", "12"]
NUMBERS = [0, 1, -1, 2, 3, 5, 10, 12, 100, 0.5, -0.5, 2.5, 1.25, 0.1, 1e3]


def value(rng, depth=2):
    kind = rng.randrange(7 if depth > 0 else 5)
    if kind == 0:
        return None
    if kind == 1:
        return rng.random() < 0.5
    if kind in (2, 3):
        return rng.choice(NUMBERS)
    if kind == 4:
        return rng.choice(STRINGS)
    if kind == 5:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {k: value(rng, depth - 1) for k in rng.sample(KEYS, rng.randrange(4))}


def schema(rng, depth=3, defs=()):
    roll = rng.random()
    if depth <= 0 or roll < 0.06:
        return rng.choice([True, {}, {"type": "null"}, {"type": "integer"}, {"type": "string"}, {"type": "boolean"}, {"const": value(rng, 1)}])
    if roll < 0.09:
        return False
    if defs and roll < 0.14:
        return {"$ref": "#/$defs/" + rng.choice(list(defs))}
    out = {}

    def sub(d=1):
        return schema(rng, depth - d, defs)

    def maybe(share):
        return rng.random() < share

    if maybe(0.6):
        types = rng.sample(["null", "boolean", "integer", "number", "string", "array", "object"], rng.choice([1, 1, 1, 2, 3]))
        out["type"] = types[0] if len(types) == 1 else types
    types = out.get("type", ["number", "string", "array", "object"])
    types = [types] if isinstance(types, str) else types
    if "number" in types or "integer" in types:
        if maybe(0.4):
            out[rng.choice(["minimum", "exclusiveMinimum"])] = rng.choice(NUMBERS)
        if maybe(0.3):
            out[rng.choice(["maximum", "exclusiveMaximum"])] = rng.choice(NUMBERS)
        if maybe(0.15):
            out["multipleOf"] = rng.choice([1, 2, 3, 5, 0.5, 2.5])
    if "string" in types:
        if maybe(0.3):
            out["minLength"] = rng.randrange(4)
        if maybe(0.3):
            out["maxLength"] = rng.randrange(4)
        if maybe(0.3):
            out["pattern"] = rng.choice(["a", "^a", "b$", "^[a-c]*$", "^a|b$", "[0-9]+", "^.{2}$", "é"])
    if "array" in types:
        if maybe(0.3):
            out["prefixItems"] = [sub() for _ in range(rng.randrange(1, 3))]
        if maybe(0.4):
            out["items"] = sub()
        if maybe(0.2):
            out["minItems"] = rng.randrange(3)
        if maybe(0.2):
            out["maxItems"] = rng.randrange(4)
        if maybe(0.12):
            out["contains"] = sub()
            if maybe(0.4):
                out["minContains"] = rng.randrange(3)
            if maybe(0.4):
                out["maxContains"] = rng.randrange(3)
        if maybe(0.05):
            out["uniqueItems"] = True
    if "object" in types:
        if maybe(0.6):
            out["properties"] = {k: sub() for k in rng.sample(KEYS, rng.randrange(1, 4))}
        if maybe(0.4):
            out["required"] = rng.sample(KEYS, rng.randrange(1, 3))
        if maybe(0.2):
            out["patternProperties"] = {rng.choice(["^a", "b", "c$", "^[ab]$"]): sub()}
        if maybe(0.3):
            out["additionalProperties"] = rng.choice([False, sub()])
        if maybe(0.1):
            out["propertyNames"] = rng.choice([{"maxLength": 1}, {"pattern": "^[ab]"}, {"enum": ["a", "c"]}])
        if maybe(0.1):
            out["minProperties"] = rng.randrange(3)
        if maybe(0.1):
            out["maxProperties"] = rng.randrange(3)
        if maybe(0.1):
            out["dependentRequired"] = {rng.choice(KEYS): rng.sample(KEYS, 1)}
        if maybe(0.06):
            out["dependentSchemas"] = {rng.choice(KEYS): sub(2)}
    for keyword in ("allOf", "anyOf", "oneOf"):
        if maybe(0.1):
            out[keyword] = [sub() for _ in range(rng.randrange(1, 4))]
    if maybe(0.08):
        out["not"] = sub(2)
    if maybe(0.06):
        out["if"] = sub(2)
        if maybe(0.7):
            out["then"] = sub()
        if maybe(0.7):
            out["else"] = sub()
    if maybe(0.06):
        out["enum"] = [value(rng, 1) for _ in range(rng.randrange(1, 5))]
    if maybe(0.03):
        out["const"] = value(rng, 1)
    if maybe(0.03):
        out[rng.choice(["unevaluatedProperties", "unevaluatedItems"])] = rng.choice([False, sub(2)])
    items = list(out.items())
    rng.shuffle(items)
    return dict(items)


def document(rng):
    """A whole schema, with definitions that may refer to each other."""
    names = ["x", "y"]
    out = schema(rng, 3, names)
    if isinstance(out, dict):
        out = {**out, "$defs": {n: schema(rng, 2, names) for n in names}}
    return out


def spelled(rng, v):
    """JSON text of a value with escapes, white space and number spellings drawn at random."""
    def blank():
        return rng.choice(["", "", "", " ", "\n", "  \t"])

    if isinstance(v, str):
        out = ""
        for c in v:
            if rng.random() < 0.2 and ord(c) < 0x10000:
                out += f"\\u{ord(c):04{rng.choice('xX')}}"
            else:
                out += json.dumps(c, ensure_ascii=rng.random() < 0.3)[1:-1]
        return f'"{out}"'
    if isinstance(v, list):
        return "[" + blank() + (blank() + "," + blank()).join(spelled(rng, x) for x in v) + (blank() if v else "") + "]"
    if isinstance(v, dict):
        members = (blank() + "," + blank()).join(spelled(rng, k) + blank() + ":" + blank() + spelled(rng, x) for k, x in v.items())
        return "{" + blank() + members + (blank() if v else "") + "}"
    if isinstance(v, (int, float)) and not isinstance(v, bool) and rng.random() < 0.3:
        if float(v).is_integer():
            return f"{int(v)}.{'0' * rng.randrange(1, 3)}"
        return json.dumps(v) + "0"
    return json.dumps(v)
