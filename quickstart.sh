#!/usr/bin/env bash
# ./quickstart.sh         installs what is needed, builds, fetches a small model, asks it one question over HTTP
# ./quickstart.sh serve   the same, then stays up on port 8080
# MODEL=path ./quickstart.sh   uses your own model (a .gguf file or a Hugging Face folder)
set -u
cd "$(dirname "$0")" || exit 1
mode=${1:-ask}
case $mode in
  ask | serve) ;;
  *) echo "usage: ./quickstart.sh [serve]" >&2; exit 2 ;;
esac

# Progress goes to stderr, dimmed on a terminal.
step() { if [ -t 2 ]; then printf '\033[2m%s\033[0m\n' "$*" >&2; else printf '%s\n' "$*" >&2; fi; }

tools/install_deps.sh build || exit 1
bin=build/release/bin/deepmint
if [ ! -f build/release/build.ninja ]; then
  step "configuring (release)"
  cmake --preset release > /dev/null || exit 1
fi
if [ -x "$bin" ]; then step "bringing the build up to date"; else step "building (the first time takes a few minutes)"; fi
if [ -t 2 ]; then
  ninja -C build/release deepmint || exit 1
else
  ninja -C build/release deepmint > build/quickstart.log 2>&1 || { tail -n 30 build/quickstart.log >&2; exit 1; }
fi

model=${MODEL:-}
if [ -z "$model" ]; then
  [ -s models/SmolLM2-135M-Instruct.Q4_1.gguf ] || step "fetching SmolLM2-135M-Instruct (98 MB)"
  model=$(tools/get_model.sh) || exit 1
fi

if [ "$mode" = serve ]; then
  exec "$bin" serve "$model" --port 8080
fi

log=$(mktemp)
"$bin" serve "$model" --port 0 > "$log" 2>&1 &
server=$!
trap 'kill "$server" 2> /dev/null; wait "$server" 2> /dev/null; rm -f "$log"' EXIT
url=
for _ in $(seq 600); do
  url=$(grep -om1 'http://[0-9.:]*' "$log") && break
  kill -0 "$server" 2> /dev/null || { cat "$log" >&2; exit 1; }
  sleep 0.05
done
[ -n "$url" ] || { echo "the server did not start within 30 s:" >&2; cat "$log" >&2; exit 1; }

question=${QUESTION:-"What is the capital of France, and what is it known for?"}
step "server at $url"
printf '\n> %s\n\n' "$question"
/usr/bin/python3 tools/ask.py "$url" "$question" || exit 1

cat << NEXT

Next:
  # talk to it in this terminal; one answer; how fast it runs here; what is in the file
  $bin chat $model
  $bin run $model -p "What is the capital of France, and what is it known for?" --temperature 0
  $bin bench $model
  $bin inspect $model

  # an OpenAI-compatible server on http://127.0.0.1:8080/v1
  ./quickstart.sh serve
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
       -d '{"model": "default", "messages": [{"role": "user", "content": "What is the capital of France, and what is it known for?"}], "max_tokens": 100, "temperature": 0}'
NEXT
