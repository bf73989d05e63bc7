#!/usr/bin/env bash
# tools/python_env.sh REQUIREMENTS...   makes .venv with the distribution's python3 and installs the named requirement files.
# Exit 3 with one line when the Python package registry is out of reach. Does nothing when the files have not changed.
set -u
cd "$(dirname "$0")/.." || exit 1
[ -x .venv/bin/python ] || /usr/bin/python3 -m venv .venv || exit 1
for file in "$@"; do
  stamp=".venv/$(basename "$file").installed"
  cmp -s "$file" "$stamp" && continue
  log=$(mktemp)
  if ! .venv/bin/pip --disable-pip-version-check --retries 1 --timeout 15 install -q -r "$file" > "$log" 2>&1; then
    if grep -qE "No matching distribution|hash" "$log" && ! grep -qE "Connection|timed out|Temporary failure|Name or service" "$log"; then
      tail -n 3 "$log" >&2
      rm -f "$log"
      exit 1
    fi
    rm -f "$log"
    echo "the Python package registry is out of reach ($file not installed)" >&2
    exit 3
  fi
  rm -f "$log"
  cp "$file" "$stamp"
done
