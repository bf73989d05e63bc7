#!/usr/bin/env python3
"""Proves that a build runs on any x86-64 machine: check_isa.py [build/release]

1. Portable objects (everything that deepmint_isa_sources does not compile, and its x86_64 objects) hold SSE2 at most: no VEX or EVEX
   encoding, so no ymm or zmm register, and no instruction of SSE3 … SSE4.2, BMI, FMA or later.
2. Objects of an instruction set define no global or weak symbol outside their own namespace. A shared inline function compiled there
   could be the copy that the linker keeps, and then code that looks portable dies on an older machine.
3. In the linked program, instructions beyond SSE2 stand in functions of such a namespace only.

Exit 0 when clean; else 1, one line per finding.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

ISAS = ("x86_64", "avx2", "avx512vnni", "avx512bf16", "avx512")
ISA_OBJECT = re.compile(r"/dm_\w+?_(%s)\.dir/" % "|".join(ISAS))
# cmake/isa.cmake puts everything of one set into this namespace. Mangled and demangled form.
NAMESPACE = {isa: (f"{len(isa) + 4}isa_{isa}", f"isa_{isa}::") for isa in ISAS}

FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
# "  1a:\tvaddps %ymm0,%ymm1,%ymm2": mnemonic, operands
INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\t(?:(?:lock|rep|repz|repnz|notrack|bnd|data16|cs|ds|es|gs|fs|rex\S*|addr32)\s+)*(\S+)\s*(.*)$")
# Mnemonics with v that are not VEX. VM and segment instructions would not be ours either, but they are no matter of registers.
NOT_VEX = {"verr", "verw"}
BEYOND = re.compile(
    r"^(?:"
    # SSE3, SSSE3
    r"addsub[ps][sd]|h(?:add|sub)p[sd]|lddqu|mov(?:s[hl]dup|ddup)|monitor|mwait|p(?:abs[bwd]|align[r]|h(?:add|sub)(?:s?w|d)|maddubsw|mulhrsw|"
    r"shufb|sign[bwd])|"
    # SSE4.1, SSE4.2
    r"p?blend\w*|dpp[sd]|extractps|insertps|movntdqa|mpsadbw|packusdw|pcmp(?:eqq|gtq|[ei]str[im])|pextr[bdq]|pinsr[bdq]|phminposuw|"
    r"pmax(?:s[bd]|u[wd])|pmin(?:s[bd]|u[wd])|pmov[sz]x\w+|pmul(?:dq|ld)|ptest|rounds?[ps][sd]|round[ps][sd]|crc32\w?|"
    # ABM, BMI, MOVBE, ADX, AES, SHA, CLMUL
    r"popcnt\w?|lzcnt\w?|andn\w?|bextr\w?|bls(?:i|r|msk)\w?|bzhi\w?|mulx\w?|pdep\w?|pext\w?|rorx\w?|(?:sa|sh)[lr]x\w?|movbe\w?|ad[co]x\w?|"
    r"aes\w+|sha(?:1|256)\w+|pclmul\w+|"
    # mask registers
    r"k(?:mov|and|andn|or|xor|xnor|not|shift[lr]|unpck|test|ortest|add)[bwdq]+"
    r")$")


def beyond_sse2(mnemonic, operands):
    if mnemonic.startswith("v") and mnemonic not in NOT_VEX:
        return True
    return "%ymm" in operands or "%zmm" in operands or BEYOND.match(mnemonic) is not None


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout


def wide_functions(path):
    """Functions of an object or program that hold an instruction beyond SSE2: name -> the first such instruction."""
    found, function = {}, "?"
    for line in run("objdump", "-d", "-C", "--no-show-raw-insn", "-w", str(path)).splitlines():
        if match := FUNCTION.match(line):
            function = match[1]
        elif function not in found and (match := INSTRUCTION.match(line)) and beyond_sse2(match[1], match[2]):
            found[function] = f"{match[1]} {match[2]}".strip()
    return found


def check_object(path):
    match = ISA_OBJECT.search(str(path))
    isa = match[1] if match else None
    findings = []
    if isa in (None, "x86_64"):
        findings += [f"{path}: {function}: {instruction}" for function, instruction in wide_functions(path).items()]
    if isa is not None:
        for line in run("nm", "--defined-only", str(path)).splitlines():
            *_, kind, name = line.split()
            local = kind.islower() and kind not in "uvw"
            if not local and NAMESPACE[isa][0] not in name:
                findings.append(f"{path}: symbol {name} ({kind}) is visible outside isa_{isa}")
    return findings


def main():
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/release")
    commands = json.loads((build / "compile_commands.json").read_text())
    objects = []
    for command in commands:
        output = command.get("output") or re.search(r" -o (\S+)", command["command"])[1]
        path = build / output
        if "/check-headers" not in str(path) and path.exists():
            objects.append(path)
    isa_objects = sum(1 for path in objects if ISA_OBJECT.search(str(path)))
    if not objects or not isa_objects:
        print(f"check_isa: expected a finished build in {build}, found {len(objects)} objects, {isa_objects} of them per instruction set")
        return 1
    findings = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
        for part in workers.map(check_object, objects):
            findings += part
    # The detector itself: it must see what the per-ISA objects are full of.
    if not any(wide_functions(path) for path in objects if "_avx2.dir/" in str(path)):
        findings.append("check_isa: saw no wide instruction where there must be some")
    program = build / "bin/deepmint"
    if program.exists():
        inside = tuple(NAMESPACE[isa][1] for isa in ISAS if isa != "x86_64")
        findings += [f"{program}: {function}: {instruction}" for function, instruction in wide_functions(program).items()
                     if not any(name in function for name in inside)]
    for finding in findings:
        print(finding)
    print(f"check_isa: {len(objects)} objects, {isa_objects} of them per instruction set, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
