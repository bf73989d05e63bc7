#!/usr/bin/env python3
"""Writes unicode_tables.inc: the general category of every code point, as Unicode 16.0 has it.

16.0 is the version inside the published `tokenizers` package (compared over all code points by tests/e2e/test_tokenizer.py),
so that a letter is a letter for both. Run with the package that carries that version:

    pip install unicodedata2==16.0.0 && python3 src/tokenizer/gen_unicode_tables.py > src/tokenizer/unicode_tables.inc
"""
import sys

import unicodedata2 as unicode16

LIMIT = 0x110000
BASE_VERSION = "14.0.0"  # of the oldest PCRE2 that we build on (10.42)


def runs(category_of):
    """(first code point, category) wherever the category changes, from 0 on."""
    out, last = [], None
    for code_point in range(LIMIT):
        category = category_of(code_point)
        if category != last:
            out.append((code_point, category))
            last = category
    return out


def emit(name, comment, entries):
    print(f"// {comment}")
    print(f"constexpr CategoryRun {name}[] = {{")
    line = "   "
    for first, category in entries:
        item = f" {{0x{first:X}, {category}}},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line + "\n};")


def main():
    import unicodedata as base

    if unicode16.unidata_version != "16.0.0" or base.unidata_version != BASE_VERSION:
        sys.exit(f"need unicodedata2 16.0.0 and a Python with Unicode {BASE_VERSION}, "
                 f"found {unicode16.unidata_version} and {base.unidata_version}")
    print("// Made by gen_unicode_tables.py from Unicode 16.0.0; do not edit.")
    emit("kCategoryRuns", "Each run reaches to the start of the next one.",
         runs(lambda c: unicode16.category(chr(c))))
    print()
    emit("kAddedSince14", "Code points that Unicode 14.0 leaves unassigned; Cn elsewhere.",
         runs(lambda c: unicode16.category(chr(c)) if base.category(chr(c)) == "Cn" else "Cn"))


if __name__ == "__main__":
    main()
