"""The chat template interpreter against Python's jinja2, set up as `transformers` sets it up (deps/requirements-test.txt).

build/release/bin/test-tools/jinja_jsonl renders; the same template and variables go through jinja2. Compared: the bytes, or that both fail.
An answer "not supported" of ours is accepted only where a test says so. Cases: templates of the families (jinja_templates.py and the one in
the SmolLM2 file) over random conversations, every construct of docs/jinja.md, and random expressions.

Environment: DEEPMINT_JINJA_CASES (per kind, default 1000), DEEPMINT_SEED, DEEPMINT_BUILD (default build/release)."""
import copy
import datetime
import json
import os
import pathlib
import random
import subprocess
import sys
import warnings

import pytest

sys.path.insert(0, os.path.dirname(__file__))
jinja2 = pytest.importorskip("jinja2")
import jinja2.ext  # noqa: E402
import jinja2.sandbox  # noqa: E402
from jinja_templates import TEMPLATES  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("DEEPMINT_BUILD", ROOT / "build/release")) / "bin/test-tools/jinja_jsonl"
CASES = int(os.environ.get("DEEPMINT_JINJA_CASES", "1000"))
SEED = int(os.environ.get("DEEPMINT_SEED", "20261129"))
NOW = datetime.datetime(2026, 3, 7, 15, 4, 5, tzinfo=datetime.timezone.utc)
UNSUPPORTED = 2  # ErrorCode::kUnsupported
# Generators, methods and macros print with an address in Python.
PRINTS_AN_ADDRESS = ("<generator", "<built-in", "<bound method", "<function", "<LoopContext", "<list_reverseiterator", "<dict_reverse", "<reversed", "<jinja2", "<class")
CONTROL = ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "[INST]", "</s>", "<|end|>", "<end_of_turn>"]


class Generation(jinja2.ext.Extension):
    """{% generation %}: transformers marks the assistant's tokens with it."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    @staticmethod
    def _render(caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: NOW.replace(tzinfo=None).strftime(fmt)
    return env


ENV = environment()
warnings.simplefilter("ignore")  # odd escapes in random strings


def python(case):
    """The text, or None when it fails."""
    try:  # a copy: {{ l | indent }} adds to the list
        return ENV.from_string(case["template"]).render(**{**case.get("trusted", {}), **copy.deepcopy(case.get("variables", {}))})
    except RecursionError:
        raise
    except Exception:  # noqa: BLE001 whatever Python raises counts as a refusal
        return None


def ours(cases):
    lines = "".join(json.dumps({"now": int(NOW.timestamp()), **c}, ensure_ascii=False) + "\n" for c in cases)
    done = subprocess.run([str(BINARY)], input=lines.encode("utf-8", "surrogatepass"), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = done.stdout.decode().split("\n")[:-1]
    assert len(answers) == len(cases)
    return [json.loads(a) for a in answers]


def check(cases, may_be_unsupported=0.0):
    """Every case equal; returns how many rendered, failed on both sides, and were not supported by ours."""
    rendered = failed = refused = 0
    wrong = []
    for case, answer in zip(cases, ours(cases)):
        wanted = python(case)
        if "error" in answer:
            assert "\n" not in answer["error"] and answer["where"].startswith("chat template line "), answer
        # jinja2 folds constants while compiling, where what cannot be sliced gives undefined; while rendering it raises.
        folded = "cannot be sliced" in answer.get("error", "") and wanted is not None
        prints_an_address = wanted is not None and any(x in wanted for x in PRINTS_AN_ADDRESS)
        if answer.get("code") == UNSUPPORTED or folded or prints_an_address:
            refused += 1
            if may_be_unsupported == 0.0:
                wrong.append((case, wanted, answer))
        elif wanted is None and "error" in answer:
            failed += 1
        elif answer.get("text") != wanted:
            wrong.append((case, wanted, answer))
        else:
            rendered += 1
            if rendered % 50 == 0:
                ranges_are_template_text(case, answer)
    report = "\n".join(f"template: {c['template'][:600]!r}\nvariables: {json.dumps(c.get('variables'), ensure_ascii=False)[:600]}\n"
                       f"python: {w if w is None else w[-400:]!r}\nours:   {({**a, 'text': a['text'][-400:]} if 'text' in a else a)!r}" for c, w, a in wrong[:8])
    assert not wrong, f"{len(wrong)} of {len(cases)} differ (seed {SEED}):\n{report}"
    assert refused <= may_be_unsupported * len(cases), refused
    return rendered, failed, refused


def ranges_are_template_text(case, answer):
    data = answer["text"].encode()
    assert all(0 <= b < e <= len(data) for b, e in answer["control"]), case


# ---- conversations ----------------------------------------------------------------------------------------------------------------

WORDS = ["hello", "wörld", "日本語", "🙂👍🏽", "a  b", "\n", "  lead", "trail \n", "</think>", "<think>", "x = {}", "{{ x }}", "{% if %}", "\"q\"", "'s'",
         "\\n", "\t", "\u00a0", "é", "<tool_response>", "</tool_response>", "&amp;", "\u2028", "/no_think", *CONTROL]


def text(r, most=6):
    return r.choice(["", " ", "\n"]).join(r.choice(WORDS) for _ in range(r.randint(0, most)))


def number(r):
    return r.choice([0, 1, -1, 7, 2**40, -0.0, 0.5, 1e16, 1e-7, 1.0, 123456789.125, 3.14159, 1e22, True, False, None])


def json_value(r, depth=0):
    kind = r.randrange(6 if depth < 3 else 4)
    if kind == 0:
        return text(r, 3)
    if kind in (1, 2):
        return number(r)
    if kind == 3:
        return r.choice(["on", "off", "", "x"])
    if kind == 4:
        return [json_value(r, depth + 1) for _ in range(r.randrange(4))]
    return {r.choice(["a", "b", "key", "名", "items", "x y"]): json_value(r, depth + 1) for _ in range(r.randrange(4))}


def schema(r, depth=0):
    kind = r.choice(["string", "integer", "number", "boolean", "array", "object"] if depth < 2 else ["string", "integer"])
    out = {"type": kind}
    if r.random() < 0.5:
        out["description"] = text(r, 3)
    if kind == "array":
        out["items"] = schema(r, depth + 1)
    if kind == "object":
        out["properties"] = {name: schema(r, depth + 1) for name in r.sample(["city", "unit", "日付", "limit"], r.randint(0, 3))}
        out["required"] = list(out["properties"])[:1]
    if kind == "string" and r.random() < 0.3:
        out["enum"] = ["a", "b"]
    return out


def tools(r):
    out = []
    for name in r.sample(["get_weather", "search", "Rechne", "x1"], r.randint(1, 3)):
        function = {"name": name, "description": text(r, 4), "parameters": {"type": "object", **schema(r, 0), "type": "object"}}
        if r.random() < 0.2:
            del function["description"]
        out.append({"type": "function", "function": function})
    return out


def conversation(r, needs):
    messages = []
    if r.random() < 0.5:
        messages.append({"role": "system", "content": text(r)})
    turns = r.randint(1, 5)
    for i in range(turns):
        role = ("user", "assistant")[i % 2] if needs == "alternating" or r.random() < 0.8 else r.choice(["user", "assistant", "system"])
        message = {"role": role, "content": text(r)}
        if role == "assistant" and r.random() < 0.3:
            message["content"] = "<think>\n" + text(r) + "\n</think>\n\n" + text(r)
        if role == "assistant" and r.random() < 0.2:
            message["reasoning_content"] = text(r)
        messages.append(message)
        if needs == "tools" and r.random() < 0.4:
            calls = [{"id": f"{r.randrange(10**9):09}", "type": "function",
                      "function": {"name": "search", "arguments": {k: json_value(r) for k in r.sample(["q", "n", "ü"], r.randint(0, 3))}}}
                     for _ in range(r.choice([1, 1, 2]))]
            messages.append({"role": "assistant", "content": r.choice([None, "", text(r)]), "tool_calls": calls})
            for call in calls:
                messages.append({"role": "tool", "tool_call_id": call["id"], "name": "search", "content": text(r)})
    variables = {"messages": messages, "add_generation_prompt": r.random() < 0.7}
    if needs == "tools":
        variables["tools"] = tools(r) if r.random() < 0.6 else None
    if r.random() < 0.2:
        variables["enable_thinking"] = r.random() < 0.5
    if r.random() < 0.1:
        variables["date_string"] = "1 Jan 2001"
    return variables


TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_families(name):
    template, needs = TEMPLATES[name]
    r = random.Random(f"{SEED} {name}")
    cases = [{"template": template, "variables": conversation(r, needs), "trusted": TOKENS} for _ in range(max(CASES // 10, 20))]
    rendered, failed, _ = check(cases)
    assert rendered >= len(cases) // 20, (rendered, failed)


def test_the_template_of_smollm2():
    import gguf_metadata
    from program import smollm2
    template = gguf_metadata.read(smollm2())["tokenizer.chat_template"]
    r = random.Random(SEED)
    cases = [{"template": template, "variables": conversation(r, "any"), "trusted": TOKENS} for _ in range(max(CASES // 10, 20))]
    assert check(cases)[0] == len(cases)


# ---- every construct --------------------------------------------------------------------------------------------------------------

VARIABLES = {
    "s": "Hello World", "empty": "", "ws": "  \t mixed\u00a0 \n", "u": "Straße ﬁn ΑΣ ǆ 日本語🙂", "lines": "one\ntwo\r\nthree\x0bfour\u2028five\n", "n": 7, "neg": -3, "z": 0,
    "f": 2.5, "big": 123456789012345678901234567890, "tiny": 1e-7, "t": True, "no": False, "nil": None, "l": [3, 1, 2], "le": [], "ls": ["b", "A", "c", "a", "B"],
    "d": {"b": 1, "a": [1, {"x": None}], "C": "ü\"\\\n\x01\x7f"}, "de": {}, "m": {"items": 5, "get": 6, "keys": "k", "x": {"y": {"z": "deep"}}},
    "people": [{"name": "Zoë", "age": 30, "tags": ["x", "y"]}, {"name": "adam", "age": 5, "tags": []}, {"name": "Bob", "age": 30}],
    "mixed": [1, "a", None, 2.0, True, [1], {"k": 1}], "csv": "a,b,,c", "q": "it's", "qq": "it's \"both\"", "html": "<a href='x'>&</a>", "esc": "<|im_end|>",
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}],
}

EXPRESSIONS = """
s|u|empty|ws
1 + 2 * 3 - 4 / 2 ** 2|7 // 2, -7 // 2, 7 % 3, -7 % 3, 7.5 // 2, -7.5 % 2, 2 ** 10, 2 ** -1, 2.0 ** 3
1 / 2, 4 / 2, 1 // 1, 10 / 4|-2 ** 2|(-2) ** 2|- n|+ n|--n|2 ** 3 ** 2
1 ~ 2 ~ s ~ nil ~ t ~ f|'a' ~ 1 + 2|1 + 2 ~ 'a'|"x" "y" 'z'
n < 10|1 < 2 < 3|3 > 2 > 2|1 < 2 > 1 == t|n == 7.0|t == 1|'a' < 'b'|[1, 2] < [1, 3]|s == 'Hello World'|nil == none|missing == missing2|nil == missing|1 != 2
'a' in 'abc'|'z' not in s|3 in l|4 not in l|'a' in d|1 in d|'x' in missing|nil in mixed|n in (7, 8)|[1] in mixed
s is string|n is number|f is float|n is integer|t is boolean|nil is none|missing is defined|missing is not defined|s is undefined|l is sequence|d is mapping|d is iterable|n is iterable
n is odd|n is even|n is divisibleby 7|n is divisibleby(2)|s is lower|'abc' is lower|'ABC' is upper|n is eq 7|n is gt 3|n is lessthan(3)|n is in [7]|n is sameas n|t is true|no is false|1 is true
'upper' is filter|'odd' is test|range is callable|s is callable|l is string or l is iterable|n is eq(7) and true|not n is odd|n is ge 7|n is le(6)|n is ne 3|s is equalto 'x'
l[0]|l[-1]|l[5]|l[1:]|l[:-1]|l[::-1]|l[::2]|l[-1:0:-1]|l[5:]|s[0]|s[-1]|s[1:4]|s[::-1]|u[0:7]|u[-1]|u[::-2]|u[3:1]|d['a']|d.a|d['zz']|d.zz|d['a'][1].x|l['x']|s['x']|s.x|(1, 2, 3)[1:]
m.items|m['items']|m.get|m['get']|m.x.y.z|m.keys|m['keys']|m.x['y'].z|m.pop|d.update|nil.x|nil['x']|n.x|missing.x|missing['x']|t.x|f[0]|l.append|''.join|mixed[6].k|l.0
'yes' if t else 'no'|'yes' if no|('a' if no else 'b' if no else 'c')|1 if t|(1 if no) is undefined|[1 if t else 2]
t and s|no and s|nil or s|'' or 0|not t|not not s|t and no or s|n and l and d|missing or 'x'|missing and 'x'
[1, 'a', none, true, 1.5]|(1, 2)|(1,)|()|{}|{'a': 1, 2: 'b', none: true}|[[1], [2, [3]]]|{'a': {'b': [1]}}|1, 2|[]|["it's", 'say "x"', "both ' \\""]|['\\n\\t\\\\', '日', '\\x00\\x7f\\u00ad']
q, qq|[q, qq]|d|mixed|people[0]|'\\u00e9\\x41\\101\\q\\''|"\\U0001F600"
1.0|1e16|1e15|123456.789|1e-5|0.0001|1e-4|0.1 + 0.2|1e22|1e300 * 1e10|-0.0|5e-324|1.7976931348623157e308|100000000000000000.0|9007199254740993.0|2.5e10|1_000|1_0.5
tiny|f|big|[big, tiny]|big|string ~ '!'|big == big|big is integer|n * f|n * 1.0
s.upper()|s.lower()|s.title()|s.capitalize()|s.swapcase()|u.upper()|u.lower()|u.title()|u.capitalize()|'ΑΣ ΑΣΑ Σ'.lower()|'İ'.lower()|"they're bill's".title()
s.split()|s.split('o')|s.split('o', 1)|csv.split(',')|ws.split()|s.rsplit('o', 1)|'a b  c'.split(' ')|'a b c d'.split(none, 2)|'a b c d'.rsplit(none, 2)|'  a  b '.rsplit()|''.split()|''.split(',')|s.split('')|'aXbXc'.split(sep='X', maxsplit=1)
ws.strip()|ws.lstrip()|ws.rstrip()|'xxaxx'.strip('x')|'abcba'.strip('ab')|'abc'.lstrip('ab')|'ééaé'.strip('é')|'a\\n'.strip('\\n')|'--a--'.rstrip('-')
s.startswith('He')|s.startswith(('x', 'H'))|s.endswith('ld')|s.startswith('llo', 2)|s.endswith('ell', 0, 4)|s.find('o')|s.rfind('o')|s.find('zz')|s.index('W')|s.index('zz')|s.count('l')|s.count('')|u.find('日')|s.find('o', 5)|s.find('o', -3)|s.count('o', 5)
s.replace('l', 'L')|s.replace('l', 'L', 1)|s.replace('', '-')|u.replace('', '.')|s.replace('zz', 'y')|s.replace('o', '')|'aaa'.replace('aa', 'b')
','.join(ls)|''.join([])|','.join(s)|','.join([1])|'-'.join(d)|lines.splitlines()|lines.splitlines(true)|''.splitlines()|'a\\n\\nb'.splitlines()
s.partition(' ')|s.rpartition('o')|s.partition('zz')|s.rpartition('zz')|s.removeprefix('He')|s.removesuffix('ld')|s.removeprefix('x')|'7'.zfill(3)|'-7'.zfill(4)|'a'.center(4)|'ab'.center(5)|'a'.ljust(3, '.')|'a'.rjust(3)|'ab'.center(7, '*')
'12'.isdigit()|'a1'.isalnum()|'abc'.isalpha()|' '.isspace()|''.isspace()|'٣'.isdecimal()|'²'.isdigit()|'½'.isnumeric()|'Ab'.islower()|'AB1'.isupper()|'1'.islower()|'é'.isascii()|'\\n'.isprintable()
d.keys()|list|d.values()|list|d.items()|list|d.get('a')|d.get('zz')|d.get('zz', 5)|d.get(none)|d.keys() == d.keys()|d.items()|length|d.copy()|m.items()|list|d.get([1])|l.count(1)|l.index(2)|l.index(9)|l.copy()|(1, 2, 2).count(2)
'%s and %d' % ('a', 3)|'%s' % s|'%5.2f|%-5d|%05d|%+d' % (3.14159, 42, 42, 42)|'%(a)s' % {'a': 1}|'%x %X %o' % (255, 255, 8)|'%r' % q|'%%'|'%d%%' % 5|'%s %s' % (1,)|'%s' % (1, 2)|'%e %g' % (12345.678, 0.00001)|'%10s|%-10s|' % ('a', 'b')|'%.2s' % 'abc'|'%c' % 'x'|'%d' % 'a'|'%i' % 3.9|'%#x' % 255|'%s' % nil|'%s' % [1]
'{} {}'.format(1, 'a')|'{0} {1} {0}'.format('a', 'b')|'{x} {y}'.format(x=1, y=[2])|'{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}|{:x}|{:%}'.format('a', 'b', 'c', 42, 3.14159, 1234567, 255, 0.5)|'{{}}'.format()|'{0.x}'.format(m)|'{0[a]}'.format(d)|'{!r}'.format(q)|'{'.format()|'{} {0}'.format(1)|'{:*^9}'.format('mid')|'{:+d} {:e}'.format(5, 1234.5)|'{}'.format()
range(5)|list|range(2, 8, 3)|list|range(5, 0, -2)|list|range(3)|range(1, 7, 2)|range(0)|range(5)[1:3]|list|range(5)[-1]|range(3)|length|3 in range(5)|range(0, 5, 0)|range('a')|range(200000)|length
dict(a=1, b=2)|dict([('a', 1)])|dict({'a': 1}, b=2)|namespace(a=1).a|namespace(a=1)['a']|namespace().x|dict(de)
s|upper|s|lower|s|title|u|title|"they're bill's-a (b <c"|title|s|capitalize|n|upper|nil|lower
ws|trim|'xxaxx'|trim('x')|n|trim|s|replace('o', '0')|s|replace('o', '0', 1)|n|replace(7, 8)
s|length|l|length|d|count|missing|length|n|length|u|length|le|length
l|first|l|last|le|first|s|first|s|last|d|first|le|last|missing|first
l|join|ls|join(', ')|people|join(', ', attribute='name')|s|join('-')|d|join(',')|mixed|join('|')|l|join(d=':')
d|tojson|l|tojson|s|tojson|u|tojson|nil|tojson|t|tojson|f|tojson|tiny|tojson|big|tojson|d|tojson(indent=2)|d|tojson(indent=0)|people|tojson(indent=4)|d|tojson(sort_keys=true)|u|tojson(ensure_ascii=true)|'🙂'|tojson(true)|l|tojson(separators=(',', ':'))|d|tojson(separators=[';', '='])|{}|tojson(indent=2)|[[], {}]|tojson(indent=1)|(1, 2)|tojson|missing|tojson|{1: 2, none: 3, true: 4, 1.5: 5}|tojson|range(3)|tojson|d.items()|tojson|html|tojson|1e400|tojson|d|tojson(indent='\\t')|(d|tojson)|length
missing|default('x')|''|default('x')|''|default('x', true)|nil|default('x')|nil|default('x', boolean=true)|s|default|missing|d('y')|missing.x|default('z')|m.nope|default('z')
ls|sort|ls|sort(case_sensitive=true)|l|sort(reverse=true)|people|sort(attribute='age')|map(attribute='name')|list|people|sort(attribute='age,name')|map(attribute='name')|list|mixed|sort|s|sort|d|sort
ls|unique|list|[1, 1.0, true, 2]|unique|list|people|unique(attribute='age')|map(attribute='name')|list|ls|unique(true)|list|[[1]]|unique|list
l|reverse|list|s|reverse|d|reverse|list|l|max|l|min|ls|max|people|max(attribute='age')|le|max|l|sum|people|sum(attribute='age')|[1.5, 2]|sum|[[1], [2]]|sum(start=[])|n|sum
people|map(attribute='name')|join(',')|people|map(attribute='tags')|list|people|map(attribute='tags', default='none')|list|ls|map('upper')|list|l|map('string')|list|ls|map('replace', 'a', 'x')|list|le|map('upper')|list|people|map(attribute='tags.0')|list|people|map(attribute='nope')|list
l|select('odd')|list|l|reject('odd')|list|mixed|select|list|mixed|select('string')|list|people|selectattr('age', 'equalto', 30)|map(attribute='name')|list|people|rejectattr('tags')|list|people|selectattr('tags')|list|people|selectattr('tags', 'defined')|list|l|select('gt', 1)|list|l|select('in', [1, 2])|list|people|selectattr('age', '>', 10)|list|length
d|dictsort|d|dictsort(true)|d|dictsort(by='value')|d|dictsort(reverse=true)|d|items|list|missing|items|list|l|items|list|[('a', 1)]|list|d|list|s|list|missing|list|n|list
'a\\nb\\n\\nc'|indent|'a\\nb'|indent(2, true)|'a\\n\\nb'|indent(2, blank=true)|'a\\nb'|indent('> ')|'a\\nb'|indent(width=1, first=true)|n|indent|lines|indent(1)
f|int|'42'|int|'4.9'|int|'x'|int|'x'|int(5)|'0x1A'|int(0, 16)|nil|int|' 7 '|int|'1_000'|int|t|int|-2.7|int|'inf'|int|l|int|missing|int|'1e3'|int|'1 2'|int
'2.5'|float|n|float|'x'|float|'x'|float(1.5)|'inf'|float|'-nan'|float|' 1e3 '|float|nil|float|'1__0'|float|'.5'|float|'5.'|float|'0x1'|float
-3|abs|2.7|round|2.5|round|3.5|round|2.675|round(2)|1234.5678|round(-2)|2.1|round(method='ceil')|2.9|round(0, 'floor')|7|round|1.005|round(2, 'ceil')|15|round(-1)|25|round(-1)|-0.5|round|'s'|round|1e20|round
l|batch(2)|list|l|batch(2, 'x')|list|range(7)|batch(3)|map('list')|list|s|string|nil|string|l|string|1.0|string|html|escape|html|e|html|safe|'a b'|center(9)|'%s-%s'|format(1, 2)|'%(a)s'|format(a=3)|'hello world foo'|truncate(9)|'hello world foo'|truncate(9, true)|'hello world foo'|truncate(9, false, '…', 0)|'short'|truncate(9)
people|attr('x')|m|attr('items')|m|attr('x')|s|attr('upper')|(l|select('odd')) is sequence|(l|map('string')) and 'yes'|l|select('odd')|length|(l|select('odd'))[0]|le|select|first|l|map('abs')|first
s * 2|2 * s|l * 2|[0] * 3|s * -1|s + 1|l + [4]|l + (1,)|(1,) + (2,)|s - 1|nil + 1|d + d|t + t|n - f|'a' * 2.0|l * l
missing + 1|missing ~ 1|-missing|missing()|missing < 1|missing|upper|[missing]|{'a': missing}|s()|n()|nil()|missing is none|missing|string|missing in l|s in missing|missing * 2|not missing
strftime_now('%d %b %Y')|strftime_now('%A, %B %d, %Y %H:%M:%S %p %y %j %I %%')|strftime_now('%-d %-m')|raise_exception('no')|raise_exception()
(1 if t else 2) + 3|[l, ls]|length|l|length + 1|l|length > 2 and s|length < 20|n|string + 'x'|(n|string) ~ 'x'|s|upper|lower|title|not l|length|-n|abs|(-n)|abs|- l|length|n ** 2|string
l[n:]|l[:nil]|l[none:2]|l['a':]|s[1:][1:]|s[:t]|l[f]|l[t]|l[1.0]|d[1:2]|d[[1]]|d[none]|u[2]|mixed[1:4][::-1]|csv.split(',')[-1]|csv.split(',')[1:]|join('+')|s.split(' ')[0].upper()[::-1]
9223372036854775807 + 0|-9223372036854775807 - 1|3000000000 * 3|7 % 2.5|-7 % 2.5|7 // 0|7 % 0|7 / 0|0 ** 0|0.0 ** -1|1e308 * 10|(0.1).x|1.5 % 1
"""

STATEMENTS = [
    "{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}",
    "{% if missing %}a{% elif nil %}b{% else %}c{% endif %}|{% if le %}x{% endif %}",
    "{% for x in l %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}:{{ x }};{% endfor %}",
    "{% for x in le %}a{% else %}nothing{% endfor %}{% for x in missing %}a{% else %}none{% endfor %}{% for x in nil %}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in u %}[{{ c }}]{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}:{{ loop.length }} {% else %}no{% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}no{% endfor %}",
    "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% else %}never{% endfor %}",
    "{% for x in l %}{% for y in ls %}{{ loop.index }}{{ y }}{% if loop.last %}|{% endif %}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }} {{ loop.depth }}{% endfor %}",
    "{% for node in tree recursive %}{{ node.v }}@{{ loop.depth }}{% if node.kids %}[{{ loop(node.kids) }}]{% endif %}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3)), [4, [5, 6]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in l %}{{ a }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}",
    "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d2) = l[:2] %}{{ c }}{{ d2 }}{% set t2 = 1, %}{{ t2 }}",
    "{% set ns = namespace(n=0, s='') %}{% for x in l %}{% set ns.n = ns.n + x %}{% set ns.s = ns.s ~ x %}{% endfor %}{{ ns.n }}{{ ns.s }}{{ ns.nope }}",
    "{% set d.x = 1 %}",
    "{% set x %}a{{ n }}b{% endset %}{{ x | upper }}{% set y | upper | trim %} q{% endset %}[{{ y }}]",
    "{% set x %}{% set inner = 5 %}{{ inner }}{% endset %}{{ x }}{{ inner }}",
    "{% filter upper %}abc{{ s }}{% endfilter %}{% filter replace('a', 'b') | title %}aa aa{% endfilter %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set a = 5 %}{{ a }}{% endwith %}{{ a }}",
    "{% set a = 9 %}{% with a = a + 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% macro f(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f() }}{{ f(a=5, b=6) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, b=2) }}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, x=3) }}{{ f() }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro f(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call f(1) %}body{{ n }}{% endcall %}",
    "{% macro each(xs) %}{% for x in xs %}{{ caller(x, loop.index) }}{% endfor %}{% endmacro %}{% call(v, i) each(l) %}{{ i }}={{ v }} {% endcall %}",
    "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}",
    "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}o{% endmacro %}{{ outer() }}",
    "{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ f() }}",
    "{% macro f() %}{{ y }}{% endmacro %}{% for y in l %}{{ f() }}{% endfor %}",
    "{% macro f() %}x{% endmacro %}{{ f }}{{ f.name }}" if False else "{% macro f() %}x{% endmacro %}{{ f.name }}{{ f is callable }}",
    "{% raw %}{{ not }} {% evaluated %}{# #}{% endraw %}!",
    "a{%- raw -%}  x {{ }}  {%- endraw -%}  b",
    "{% raw %}\n  kept\n  {% endraw %}\nafter",
    "a{# comment {{ x }} #}b{#- c -#} c\n{# whole line #}\nd",
    "  {% if t %}\n    x\n  {% endif %}\ny\n",
    "  {%+ if t %}\n    x\n  {%+ endif +%}\ny\n",
    "a  {%- if t -%}  x  {%- endif -%}  b",
    "a\n  {{- s -}}  \n b  {{ n }}\n",
    "{% for x in l %}\n  {{ x }}\n{% endfor %}\nend\n\n",
    "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\nend",
    "x\n\t {# c #} \n{# d #}\ny",
    "line {% if t %} same {% endif %} line\n   {% set q = 1 %}   \n z",
    "{{ 'a' }}\r\n{% if t %}\r\nb\r{% endif %}\r\n",
    "{{'{{ }}'}}{{ '%}' }}{{ \"}}\" }}",
    "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': 1}.a }}",
    "{{ [\n1,\n2,\n] }}{{ (\n1\n) }}{{ {'a': 1,} }}",
    "{% if t %}{% generation %}gen{{ n }}{% set leak = 1 %}{% endgeneration %}{{ leak }}{% endif %}",
    "{% generation %}\n x\n{% endgeneration %}\ny",
    "{% set x = l | map('string') %}{{ x | join(',') }}|{{ x | join(',') }}",
    "{% set g = l | select('odd') %}{{ g | first }}{{ g | list }}{{ 3 in g }}",
    "{% for x in l | select('odd') %}{{ loop.length }}{{ x }}{% endfor %}",
    "{% for a in people %}{% for tag in a.tags %}{{ a.name }}:{{ tag }} {% endfor %}{% endfor %}",
    "{% set messages = people[1:] %}{{ messages | length }}{{ people | length }}",
    "{% for p in people %}{% set p = p.name %}{{ p }}{% endfor %}",
    "{% if 'a' in d and d['a'] is not string and d.a[1] is mapping %}ok{% endif %}",
    "{{ n if n is defined else 'x' }}{{ 'x' if n is not defined else n }}{{ s if not nil }}",
    "{{ s[0] | upper ~ s[1:] }}{{ (s ~ '!') | upper }}{{ s ~ '!' | upper }}",
    "{% if not (n == 1 or n == 7) %}a{% else %}b{% endif %}{{ not n == 7 }}{{ not (n in [1]) }}",
    "{% do l.append(4) %}", "{% include 'x' %}", "{% block a %}x{% endblock %}", "{% nope %}", "{% if %}x{% endif %}", "{{ }}", "{{ 1 + }}", "{% endif %}", "{% for x in %}{% endfor %}",
    "{% if t %}", "{{ 'open", "{# open", "{% raw %}", "{{ s", "{% macro %}{% endmacro %}", "{{ ) }}", "{{ a b }}", "{% set 1 = 2 %}", "{% set none = 2 %}", "{% break %}", "{{ s | nofilter }}", "{{ s is notest }}",
    "{% for x in l %}{% break %}{% else %}e{% endfor %}after", "{{ l.append(4) }}", "{{ s.__class__ }}x", "{{ ''.__class__.__mro__ }}", "{{ d.update({'z': 1}) }}", "{{ 1 if }}", "{{ f( }}", "{% elif %}", "{{ [1, }}", "{{ {1} }}",
    "{{ 'é' ~ \"\\u00e9\" }}", "{{ loop }}", "{{ loop.index }}", "{% for x in l %}{% macro f() %}{{ x }}{{ loop.index }}{% endmacro %}{{ f() }}{% endfor %}",
    "{% set x = namespace(a=[]) %}{% for i in l %}{% set x.a = x.a + [i * 2] %}{% endfor %}{{ x.a }}",
    "{% for i in range(3) %}{% for j in range(3) %}{% if j == 1 %}{% continue %}{% endif %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}",
    "{%if t%}x{%endif%}{%-if t-%} y {%-endif-%}", "{{-1}}{{- 1 -}}", "{{+1}}", "{{ -1 - -1 }}", "a{{ '' }}\n{{ '' }}\nb", "\n\n{{ n }}\n\n", "",
    "{{ 5 is divisibleby 5 and 4 is even }}{{ 5 is not even }}{{ s is string and n is number }}", "{{ [1,2,3] | sum + 1 }}", "{{ x.y.z | default('q') if x is defined else 'w' }}",
]


def expressions():
    """The table above: cells are separated by | that is not a filter, so each line is split only where the result parses on its own."""
    for line in EXPRESSIONS.strip().split("\n"):
        parts = line.split("|")
        for i in range(len(parts)):
            for j in range(i + 1, min(i + 7, len(parts)) + 1):
                yield "|".join(parts[i:j])


def test_expressions():
    cases = []
    for expression in dict.fromkeys(expressions()):
        cases.append({"template": "{{ " + expression + " }}", "variables": VARIABLES})
    rendered, failed, refused = check(cases, may_be_unsupported=0.6)  # | splits filters from their arguments, too
    assert rendered > 600, (rendered, failed, refused)


def test_supported_expressions_render():
    """One cell of the table each: where jinja2 renders it, ours does, but for what docs/jinja.md refuses by name."""
    refused_by_name = ("'%c' %", "9223372036854775807", "1e400", "d.items()|tojson", "'İ'")
    cases = []
    for line in EXPRESSIONS.strip().split("\n"):
        for cell in line.split("|"):
            cases.append({"template": "{{ " + cell + " }}", "variables": VARIABLES})
    for case, answer in zip(cases, ours(cases)):
        wanted = python(case)
        if wanted is not None and not any(x in case["template"] for x in refused_by_name) and not any(x in wanted for x in PRINTS_AN_ADDRESS):
            assert answer.get("text") == wanted, (case["template"], wanted, answer)


def test_statements():
    cases = [{"template": template, "variables": VARIABLES} for template in STATEMENTS]
    for case, answer in zip(cases, ours(cases)):
        wanted = python(case)
        if answer.get("code") == UNSUPPORTED:  # these jinja2 has (or names differently) and we refuse by name
            assert any(x in case["template"] for x in ("{% do", "{% include", "{% block", "nofilter", "notest")), (case, wanted, answer)
            assert answer["where"] == "chat template line 1"
        else:
            assert answer.get("text") == wanted, (case["template"], wanted, answer)


# ---- random templates ---------------------------------------------------------------------------------------------------------------

class Maker:
    """Random templates that mostly make sense: what does not is an error on both sides."""

    def __init__(self, r):
        self.r = r

    def leaf(self):
        r = self.r
        return r.choice([*VARIABLES, *VARIABLES, "missing", "x", "loop.index", "1", "0", "-2", "2.5", "'a'", "'o'", "\" \"", "''", "none", "true", "false", "[]", "'é🙂'"])

    def expression(self, depth=0):
        r = self.r
        if depth > 3 or r.random() < 0.2:
            return self.leaf()
        e = lambda: self.expression(depth + 1)  # noqa: E731
        kind = r.randrange(16)
        if kind == 0:
            return f"({e()} {r.choice(['+', '-', '*', '/', '//', '%', '~', '~', '+'])} {e()})"
        if kind == 1:
            return f"({e()} {r.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {e()})"
        if kind == 2:
            return f"({e()} {r.choice(['and', 'or'])} {e()})"
        if kind == 3:
            return f"(not {e()})"
        if kind == 4:
            return f"({e()} if {e()} else {e()})"
        if kind == 5:
            return f"{e()}[{r.choice(['0', '-1', '1:', ':2', '::-1', '1:3', '::2', e()])}]"
        if kind == 6:
            return f"{e()}.{r.choice(['a', 'b', 'name', 'items', 'x', 'tags', 'index'])}"
        if kind == 7:
            return "[" + ", ".join(e() for _ in range(r.randrange(4))) + "]"
        if kind == 8:
            return "{" + ", ".join(f"{r.choice(['1', repr('k'), repr('b'), 's'])}: {e()}" for _ in range(r.randrange(3))) + "}"
        if kind in (9, 10, 11):
            return f"({e()} | {self.filter()})"
        if kind in (12, 13):
            return f"{e()}.{self.method()}"
        if kind == 14:
            return f"({e()} is {r.choice(['', 'not '])}{self.test()})"
        return f"(-{e()})" if r.random() < 0.3 else f"({e()}, {e()})"

    def filter(self):
        r = self.r
        small = lambda: r.choice(["'a'", "'o'", "2", "s", "' '", "true"])  # noqa: E731
        return r.choice(["upper", "lower", "title", "capitalize", "trim", "length", "first", "last", "list", "string", "tojson", "tojson(indent=2)", "sort", "reverse | list", "unique | list",
                         f"join({small()})", f"default({small()})", f"default({small()}, true)", f"replace({small()}, {small()})", "int", "float", "abs", "round", "round(1)", "items | list",
                         "map('upper') | list", "map(attribute='name') | list", "select('string') | list", "reject('none') | list", "selectattr('age') | list", "dictsort", "indent", "indent(2, true)",
                         "batch(2) | list", "max", "min", "sum", "tojson(sort_keys=true)", "center(12)", "truncate(7)", f"trim({small()})"])

    def method(self):
        r = self.r
        small = lambda: r.choice(["'a'", "'o'", "' '", "s", "'ll'"])  # noqa: E731
        return r.choice(["upper()", "lower()", "strip()", "lstrip()", "rstrip()", "title()", "capitalize()", "split()", f"split({small()})", f"split({small()}, 1)", f"rsplit({small()}, 1)", f"startswith({small()})",
                         f"endswith({small()})", f"replace({small()}, {small()})", f"find({small()})", f"count({small()})", "items()", "keys()", "values()", f"get({small()})", "splitlines()", f"join({self.leaf()})",
                         "isdigit()", "isspace()", f"strip({small()})", f"partition({small()})", "format(1, 2)", "swapcase()", f"index({small()})", "zfill(9)", f"removeprefix({small()})"])

    def test(self):
        return self.r.choice(["defined", "none", "string", "number", "mapping", "sequence", "iterable", "boolean", "integer", "float", "true", "false", "eq(1)", "in([1, 's'])", "lower", "undefined", "callable", "sameas(none)"])

    def body(self, depth=0):
        return "".join(self.statement(depth) for _ in range(self.r.randint(1, 3)))

    def space(self):
        return self.r.choice(["", "", " ", "\n", "  \n ", "text", " t\n"])

    def tag(self, inside):
        r = self.r
        return "{%" + r.choice(["", "", "-", "+"]) + " " + inside + " " + r.choice(["", "", "-", "+"]) + "%}" + self.space()

    def statement(self, depth):
        r = self.r
        kind = r.randrange(12 if depth < 3 else 5)
        if kind < 4:
            return self.space() + "{{" + r.choice(["", "-"]) + " " + self.expression(1) + " " + r.choice(["", "-"]) + "}}" + self.space()
        if kind == 4:
            return self.tag(f"set x = {self.expression(1)}")
        if kind == 5:
            return self.tag(f"if {self.expression(1)}") + self.body(depth + 1) + (self.tag("else") + self.body(depth + 1) if r.random() < 0.5 else "") + self.tag("endif")
        if kind in (6, 7):
            where = r.choice(["", "", f" if {self.expression(2)}"])
            control = r.choice(["", "", "{% if loop.index == 2 %}{% break %}{% endif %}", "{% if loop.first %}{% continue %}{% endif %}"])
            return self.tag(f"for x in {r.choice(['l', 'ls', 'd', 'people', 's', 'mixed', 'range(3)', self.expression(2)])}{where}") + control + self.body(depth + 1) + self.tag("endfor")
        if kind == 8:
            return self.tag("set x") + self.body(depth + 1) + self.tag("endset")
        if kind == 9:
            return self.tag("filter " + r.choice(["upper", "trim", "indent", "replace('a', 'b')"])) + self.body(depth + 1) + self.tag("endfilter")
        if kind == 10:
            return self.tag("macro make(x, y=1)") + self.body(depth + 1) + self.tag("endmacro") + "{{ make(" + self.expression(2) + ") }}"
        return self.tag(f"with x = {self.expression(2)}") + self.body(depth + 1) + self.tag("endwith")


@pytest.mark.parametrize("part", range(4))
def test_random_templates(part):
    r = random.Random(f"{SEED} random {part}")
    cases = []
    while len(cases) < CASES // 2:
        template = Maker(r).body()
        case = {"template": template, "variables": VARIABLES}
        wanted = python(case)
        if wanted is not None and len(wanted) > 1_000_000:
            continue
        cases.append(case)
    rendered, failed, _ = check(cases, may_be_unsupported=0.2)
    assert rendered > len(cases) // 40, (rendered, failed)


# ---- provenance -----------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", TEMPLATES)
def test_caller_text_is_never_control(name):
    """Control tokens in messages and tools come out as text, those of the template as control."""
    template, needs = TEMPLATES[name]
    r = random.Random(f"{SEED} control {name}")
    cases = []
    for _ in range(40):
        spelled = json.dumps(conversation(r, needs), ensure_ascii=False)
        for token in CONTROL:  # whatever a caller writes as a control token is marked
            spelled = spelled.replace(token, token + "ↂ")
        cases.append({"template": template, "variables": json.loads(spelled), "trusted": TOKENS})
    rendered = 0
    for case, answer in zip(cases, ours(cases)):
        if "text" not in answer:
            continue
        rendered += 1
        data = answer["text"].encode()
        control = b"".join(data[b:e] for b, e in answer["control"])
        assert "ↂ".encode() not in control
        for token in CONTROL:  # and all that the template wrote count
            assert control.count(token.encode()) >= answer["text"].count(token) - answer["text"].count(token + "ↂ"), (token, answer)
    assert rendered > 0
