"""The recipe beside the published package deepseek-recipe in one run, on one core.

    python bench/recipe_vs_package.py [--build build/release]

Both get the same 1 MB chat request (English and code) with the V4.1 tokenizer, and the same model output. Times of the package are taken
around its Python calls; a call costs about a microsecond, which matters only token by token.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
import deepseek_recipe as recipe  # noqa: E402
import test_tokenizer  # noqa: E402

PROSE = ("The quick brown fox jumps over the lazy dog; afterwards it rests in the shade, counts to 12, and writes a short report about it.\n"
         "for (size_t i = 0; i < items.size(); ++i) { total += items[i].price * 1.19; }  // gross < net\n")


def passages(n, size):
    """English and code of this repository: `n` pieces of `size` characters, no two alike."""
    files = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.cc"), *ROOT.glob("src/**/*.h")])
    text = "\n".join(f.read_text(encoding="utf-8") for f in files)
    step = max(size, len(text) // n)
    return [text[i * step:][:size] for i in range(n)]


def best(rounds, f):
    out = 1e9
    for _ in range(rounds):
        start = time.perf_counter()
        f()
        out = min(out, time.perf_counter() - start)
    return out


def package(request, tokenizer_path):
    options = recipe.ConversionOptions().with_model_alias("m", recipe.ModelVersion.DeepseekV41Flash)
    encoding = recipe.DeepseekV41Encoding().with_tokenizer(recipe.Tokenizer.from_file(tokenizer_path))
    out = {"request_to_ids_ms": 1e3 * best(3, lambda: encoding.encode(recipe.ChatCompletionRequest(request).convert(options).conversation))}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "thinking": {"type": "disabled"}, "stream": True}
    text = (PROSE * ((1 << 20) // len(PROSE) + 1))[: 1 << 20]

    def stream(step, n):
        converted = recipe.ChatCompletionRequest(body).convert(options)
        processor = recipe.StreamProcessor(recipe.ChatCompletionRequest.chunk_generator(converted, "chatcmpl-0123456789", "flash"), converted.parsing_options)
        processor.push(recipe.InferenceChunk.ready())
        for i in range(n):
            for event in processor.push(recipe.InferenceChunk.text(text[i * step % len(text):][:step], 1)):
                event.to_json()
        processor.finish()

    out["chat_whole_mb_per_s"] = len(text) / 1e6 / best(3, lambda: stream(64 * 1024, 16))
    out["chat_events_per_s"] = 50_000 / best(3, lambda: stream(4, 50_000))
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    arguments = parser.parse_args()
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(passages(20, 50_000))]
    request = json.dumps({"model": "m", "messages": messages + [{"role": "user", "content": "Go on."}]})
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = pathlib.Path(folder) / "tokenizer.json"
        tokenizer.write_text(json.dumps(test_tokenizer.deepseek_v41_json(), ensure_ascii=False), encoding="utf-8")
        body = pathlib.Path(folder) / "request.json"
        body.write_text(request, encoding="utf-8")
        run = [str(pathlib.Path(arguments.build) / "bin/bench/recipe_bench"), str(tokenizer), str(body)]
        ours = json.loads(subprocess.run(run, capture_output=True, check=True, text=True).stdout)
        theirs = package(request, str(tokenizer))
    print(json.dumps({"ours": ours, "package": theirs}, indent=1))


if __name__ == "__main__":
    main()
