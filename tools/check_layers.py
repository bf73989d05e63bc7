#!/usr/bin/env python3
"""Checks that every include respects the dependency direction of docs/architecture.md.

Linking enforces it for code; this catches headers too. Exit 0 when clean, 1 with one line per violation.
"""
import pathlib
import re
import sys

ALLOWED = {
    "core": set(),
    "kernels": {"core"},
    "format": {"core"},
    "tokenizer": {"core"},
    "kvcache": {"core"},
    "sampling": {"core"},
    "grammar": {"core"},
    "model": {"kernels", "format", "core"},
    "engine": {"model", "kvcache", "sampling", "grammar", "tokenizer", "format", "core"},
    "sim": {"kvcache", "engine", "core"},
    "recipe": {"tokenizer", "grammar", "core"},
    "server": {"recipe", "engine", "grammar", "tokenizer", "core"},
    "router": {"kvcache", "core"},
    "cli": {"server", "router", "recipe", "engine", "model", "kernels", "format", "tokenizer", "sampling", "kvcache", "grammar", "core"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([a-z0-9_]+)/')


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent / "src"
    bad = 0
    for path in sorted(root.rglob("*")):
        if path.suffix not in {".h", ".cc", ".inl"}:
            continue
        module = path.relative_to(root).parts[0]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match or match[1] == module or match[1] == "deepmint":
                continue
            if match[1] in ALLOWED and match[1] not in ALLOWED[module]:
                print(f"src/{path.relative_to(root)}:{number}: {module} may not include {match[1]}")
                bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
