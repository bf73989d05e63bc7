"""Writes case_tables.inc: full case mappings (Unicode SpecialCasing, unconditional) that differ from the simple ones of utf8proc.

    python3 gen_case_tables.py > case_tables.inc

The mappings are Python's own str.upper(), title() and lower() of single characters, which is what templates are compared with."""
import unicodedata

print("// Made by gen_case_tables.py from Unicode", unicodedata.unidata_version, "full case mappings. {from, upper, title}: UTF-8.")
print("constexpr FullCase kFullCase[] = {")
for c in map(chr, [*range(0xD800), *range(0xE000, 0x110000)]):
    upper, title = c.upper(), c.title()
    if len(upper) > 1 or len(title) > 1:
        def spell(s):
            return '"' + "".join(f"\\x{b:02x}" for b in s.encode()) + '"'
        print(f"    {{0x{ord(c):04X}, {spell(upper)}, {spell(title)}}},")
print("};")
