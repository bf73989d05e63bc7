#!/usr/bin/env bash
# tools/check_accuracy.sh DEEPMINT MODEL.gguf   holds the program's logits against a float64 forward of the same file (about 2 minutes).
# Exit 1 when the gate of docs/models.md fails.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prompts=tests/golden/smollm2_prompts.json
/usr/bin/python3 tests/golden/dense_float64.py "$2" --prompts "$prompts" --save "$work/reference.npy"
n=0
while IFS= read -r ids; do
  "$1" score "$2" --ids "$ids" --logits "$work/$n.f32" > /dev/null
  n=$((n + 1))
done < <(/usr/bin/python3 -c 'import json, sys; [print(",".join(map(str, p["ids"]))) for p in json.load(open(sys.argv[1]))["prompts"]]' "$prompts")
/usr/bin/python3 tests/golden/dense_float64.py --reference "$work/reference.npy" --compare $(seq -f "$work/%g.f32" 0 $((n - 1)))
