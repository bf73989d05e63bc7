"""Text that tokenizers disagree on when one of them is wrong, made from a seed: no downloads.

    for kind, text in mixed_text.documents(seed=1): ...
"""
import pathlib
import random

ROOT = pathlib.Path(__file__).resolve().parents[2]

WHITE_SPACE = [chr(c) for c in (9, 10, 11, 12, 13, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)]
DIGITS = [chr(base + i) for base in (0x30, 0x660, 0x966, 0xE50, 0xFF10, 0x1D7CE, 0x2070, 0x2160, 0x2460, 0x3007, 0x0BF0, 0x1E950) for i in range(8)]
MARKS = [chr(c) for c in (0x300, 0x301, 0x308, 0x323, 0x327, 0x483, 0x5B0, 0x64B, 0x93F, 0x94D, 0xE31, 0x20DD, 0x3099, 0x309A, 0xFE0F, 0x1F3FB)]
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "🫨", "🪿", "🫩", "❤️", "1️⃣", "🧑🏿‍🚀", "☕", "™", "©", "\u200d", "\ufe0f"]
# Letters and symbols of Unicode 15, 15.1 and 16, unassigned code points, private use, and the edges of every UTF-8 length.
RARE = [chr(c) for c in (0x31350, 0x2EBF0, 0x1C89, 0xA7CB, 0x10D40, 0x1FAE9, 0x16121, 0x378, 0x1F8FF, 0x2FFFF, 0xE000, 0xF0000,
                         0x0, 0x1, 0x7F, 0x80, 0x7FF, 0x800, 0xFFFD, 0xFFFE, 0xFFFF, 0x10000, 0x10FFFF, 0xAD, 0x200B, 0x2060, 0xFEFF)]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + list("、。「」！？：（）—–…·•‘’“”«»¿¡€£¥§°±×÷←→∑√∞≈")
CONTRACTIONS = ["'s", "'S", "'t", "'re", "'RE", "'Ve", "'m", "'ll", "'LL", "'d", "'ſ", "’s", "''s", "'x", "'l", "' s", "'sx", "'T't"]
CJK = ("的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实"
       "日本語東京大学生活時間会社新聞電車漢字仮名交文書読話聞見行来食飲買売高安新古")
KANA = "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをんアイウエオカキクケコサシスセソタチツテトー・ヽヾゝゞがぎぐげご゛゜"
SCRIPTS = ["абвгдежзийклмнопрстуфхцчшщъыьэюя", "αβγδεζηθικλμνξοπρστυφχψω", "אבגדהוזחטיכלמנסעפצקרשת", "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
           "कखगघङचछजझञटठडढणतथदधनपफबभमयरलवशषसह", "กขคฆงจฉชซญฎฐณดตถทธนบปผฝพฟภมยรลวศษสหอฮะาำเแโใไ", "가나다라마바사아자차카타파하한국어텍스트", "ÀÁÂÃÄÅàáâãäåçéèêëíìîïñóòôõöøúùûüýÿßœæ", "ʰʱʲǅǈǋꟿ"]


def _public_files():
    """Text that is on every machine that runs the tests: licences, and this repository's own sources."""
    paths = sorted(pathlib.Path("/usr/share/common-licenses").glob("*"))
    for pattern in ("src/**/*.cc", "src/**/*.h", "tools/*.py", "tests/**/*.py", "docs/**/*.md", "cmake/*.cmake"):
        paths += sorted(ROOT.glob(pattern))
    seen, total = set(), 0
    for path in paths:
        if not path.is_file() or path.resolve() in seen or path.stat().st_size > 200_000:
            continue
        seen.add(path.resolve())
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
        total += len(text)
        yield text
        if total > 900_000:
            return


def _word(rng):
    alphabet = rng.choice(["abcdefghijklmnopqrstuvwxyz"] * 5 + SCRIPTS)
    word = "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 12)))
    return rng.choice([word, word, word.capitalize(), word.upper()])


def _soup(rng, n):
    """n draws from everything at once: no two neighbours can be relied on."""
    out = []
    for _ in range(n):
        pick = rng.random()
        if pick < 0.25: out.append(_word(rng))
        elif pick < 0.42: out.append(rng.choice(WHITE_SPACE) * rng.choice([1, 1, 1, 2, 3]))
        elif pick < 0.52: out.append("".join(rng.choice(DIGITS) for _ in range(rng.randint(1, 7))))
        elif pick < 0.64: out.append(rng.choice(PUNCTUATION) * rng.choice([1, 1, 2, 3]))
        elif pick < 0.70: out.append(rng.choice(CONTRACTIONS))
        elif pick < 0.78: out.append(rng.choice(EMOJI))
        elif pick < 0.84: out.append(rng.choice(MARKS))
        elif pick < 0.92: out.append("".join(rng.choice(CJK + KANA) for _ in range(rng.randint(1, 9))))
        elif pick < 0.96: out.append(rng.choice(RARE))
        elif pick < 0.98: out.append(rng.choice(["\r\n", "\n\n", "\r", " \n", "\n ", " \r\n \n", "\t\n"]))
        else: out.append(chr(rng.choice([c for c in (rng.randrange(0xD800), rng.randrange(0xE000, 0x110000))])))
    return "".join(out)


def _chinese(rng, n):
    out = []
    for _ in range(n):
        out.append("".join(rng.choice(CJK) for _ in range(rng.randint(2, 18))) + rng.choice("，，。、？！\n"))
    return "".join(out)


def _japanese(rng, n):
    out = []
    for _ in range(n):
        out.append("".join(rng.choice(CJK if rng.random() < 0.35 else KANA) for _ in range(rng.randint(3, 20))) + rng.choice("、。。\n"))
    return "".join(out)


def documents(seed):
    """(kind, text) pairs, about 2.5 MB in all."""
    rng = random.Random(seed)
    for text in _public_files():
        yield "file", text
    for _ in range(2500):
        yield "soup", _soup(rng, rng.randint(1, 60))
    yield "soup", _soup(rng, 20_000)
    for _ in range(40):
        yield "chinese", _chinese(rng, 40)
        yield "japanese", _japanese(rng, 40)
    for script in SCRIPTS:
        yield "script", " ".join("".join(rng.choice(script) for _ in range(rng.randint(1, 10))) for _ in range(1000))
    for run in [" ", "\n", "\t", "\r\n", "a", "A", "1", "٣", "中", "の", "é", "e\u0301", "\u0301", "!", "'", "😀", "\u3000", "\x00", "\u0378", "'s"]:
        for n in (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 1000, 5000):
            yield "run", run * n
            yield "run", "x" + run * n + "y"
            yield "run", run * n + " " + run * (n // 2) + "\n"
    for white in WHITE_SPACE:
        for other in WHITE_SPACE:
            yield "space", f"a{white}{other}b{other}{white}{white}!{white}1{other}{other}"
    for contraction in CONTRACTIONS:
        for after in ("", "s", " ", "'", "1", "\n"):
            yield "contraction", f"we{contraction}{after}"
    numbers = " ".join(str(rng.randrange(10 ** rng.randint(1, 40))) for _ in range(4000))
    yield "numbers", numbers + "".join(f"{rng.random():.10f}," for _ in range(2000))
