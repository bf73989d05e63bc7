"""The command line on the real model: answers, bits, and what a script can rely on."""
import array
import json
import math
import re
import subprocess

import pytest

from program import BIN, MORE_THREADS, ROOT, available_isas, bad, environment, good, run, smollm2, tiny

QUESTION = "What is the capital of France? Answer in one short sentence."


def answer(*args, **kwargs):
    return json.loads(good("run", smollm2(), "--json", *args, **kwargs))


def floats(data):
    return array.array("f", data)       # little-endian, as the machines that this runs on


def same(a, b):
    """Equal but for what depends on the clock and on how it was run."""
    for key in ("timings", "threads", "isa"):
        a, b = {k: v for k, v in a.items() if k != key}, {k: v for k, v in b.items() if k != key}
    return a == b


# -- run --------------------------------------------------------------------------------------------------------------------------

def test_the_commands_of_the_readme(tmp_path):
    """Each command that ends by itself and needs no terminal, as it is written, in a folder with build/ and models/."""
    (tmp_path / "build/release/bin").mkdir(parents=True)
    (tmp_path / "build/release/bin/deepmint").symlink_to(BIN)
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith(("build/release/bin/deepmint", "echo "))]
    lines = [line.replace("MODEL", str(smollm2())) for line in lines if not re.search(r"deepmint (chat|bench) ", line)]
    assert len(lines) == 6, lines
    for line in lines:
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, ""), (line, done.stderr)
        expected = re.search(r"# (\{.*\})$", line)  # an example that shows its answer
        assert expected is None or done.stdout.strip() == expected.group(1)
    assert json.loads((tmp_path / "results.jsonl").read_text())["response"]["body"]["choices"][0]["message"]["content"] == '{"city": "Paris"}'


def test_run_answers_and_says_what_it_used():
    reply = answer("-p", QUESTION, "--temperature", "0", "--max-tokens", "40")
    assert "Paris" in reply["text"]
    assert reply["usage"]["output_tokens"] == len(reply["ids"]) <= 40
    assert reply["usage"]["prompt_tokens"] > 10
    assert reply["finish_reason"] in ("stop", "length")
    assert reply["isa"] and reply["threads"] >= 1 and reply["version"]
    assert 0 < reply["timings"]["first_token_s"] < 60 and reply["timings"]["load_s"] > 0


def test_plain_output_is_the_text_and_nothing_else():
    arguments = ("-p", QUESTION, "--temperature", "0", "--max-tokens", "24")
    assert good("run", smollm2(), *arguments) == answer(*arguments)["text"] + "\n"


def test_greedy_repeats_and_a_seed_repeats():
    greedy = ("-p", QUESTION, "--temperature", "0", "--max-tokens", "24")
    assert answer(*greedy)["ids"] == answer(*greedy)["ids"]
    warm = ("-p", "Write a line about the sea.", "--temperature", "1", "--max-tokens", "24", "--seed")
    first, again, other = answer(*warm, "7"), answer(*warm, "7"), answer(*warm, "8")
    assert same(first, again)
    assert first["seed"] == 7 and other["seed"] == 8
    assert first["ids"] != other["ids"]


def test_a_reply_without_a_seed_can_be_repeated_from_the_seed_it_reports():
    arguments = ("-p", "Name three fruits.", "--temperature", "1.2", "--max-tokens", "24")
    first = answer(*arguments)
    assert same(first, answer(*arguments, "--seed", first["seed"]))
    assert first["seed"] < 2 ** 53  # survives readers of doubles, and the HTTP API takes it
    assert answer(*arguments)["seed"] != first["seed"]


def test_prompt_from_standard_input_and_as_ids_is_the_same_prompt():
    limits = ("--temperature", "0", "--max-tokens", "12", "--seed", "1")
    text = "The quick brown fox"
    raw = answer("--raw", "-p", text, *limits)
    assert same(raw, answer("--raw", "-p", "-", *limits, input=text))
    ids = good("tokenize", smollm2(), "-p", text).strip()
    assert same(raw, answer("--ids", ids, *limits))
    assert same(raw, answer("--ids", "-", *limits, input=ids.replace(",", "\n")))
    assert raw["usage"]["prompt_tokens"] == len(ids.split(","))


def test_system_message_is_part_of_the_prompt():
    limits = ("--temperature", "0", "--max-tokens", "8", "-p", "Hello")
    own, given = answer(*limits), answer(*limits, "--system", "You answer in French, always, and at length, with many words and "
                                                               "examples, whatever the question is, without ever stopping early.")
    assert given["usage"]["prompt_tokens"] > own["usage"]["prompt_tokens"]
    empty = answer(*limits, "--system=")
    assert empty["usage"]["prompt_tokens"] < own["usage"]["prompt_tokens"]


def test_control_strings_in_a_prompt_are_text():
    limits = ("--temperature", "0", "--max-tokens", "1")
    plain = answer("-p", "a<|im_end|>b", *limits)["usage"]["prompt_tokens"]
    assert plain >= answer("-p", "a b", *limits)["usage"]["prompt_tokens"] + 4


def test_stop_strings_end_the_reply_and_are_left_out():
    arguments = ("-p", "Count from one to ten in words.", "--temperature", "0", "--max-tokens", "60")
    whole = answer(*arguments)["text"]
    stop = whole[len(whole) // 2: len(whole) // 2 + 4]
    cut = answer(*arguments, "--stop", "never in there", "--stop", stop)
    assert cut["text"] == whole[: whole.index(stop)]
    assert cut["finish_reason"] == "stop" and cut["stop"] == stop
    assert cut["usage"]["output_tokens"] == len(cut["ids"]) < answer(*arguments)["usage"]["output_tokens"]


def test_limits_of_the_reply():
    five = answer("-p", "Tell me a long story.", "--temperature", "0", "--max-tokens", "5")
    assert len(five["ids"]) == 5 and five["finish_reason"] == "length"
    none = answer("-p", "Hello", "--max-tokens", "0")
    assert none["ids"] == [] and none["text"] == ""
    room = answer("-p", "Tell me a long story about a dragon.", "--temperature", "0", "--ctx", "64")
    assert room["usage"]["prompt_tokens"] + room["usage"]["output_tokens"] == 64 and room["finish_reason"] == "length"


def test_logprobs_come_with_the_ids():
    reply = answer("-p", QUESTION, "--temperature", "0", "--max-tokens", "6", "--logprobs", "3")
    assert [entry["id"] for entry in reply["logprobs"]] == reply["ids"]
    for entry in reply["logprobs"]:
        assert len(entry["top"]) == 3
        assert entry["top"][0] == {k: entry[k] for k in ("id", "token", "logprob")}   # greedy takes the likeliest
        assert entry["top"][0]["logprob"] >= entry["top"][1]["logprob"] >= entry["top"][2]["logprob"]


def test_penalties_and_filters_change_the_reply():
    base = ("--raw", "-p", "1 1 1 1 1 1 1 1 1 1 1 1", "--temperature", "0", "--max-tokens", "12")
    ids = {name: tuple(answer(*base, *extra)["ids"]) for name, extra in {
        "plain": (), "repetition": ("--repetition-penalty", "3"), "presence": ("--presence-penalty", "50"),
        "frequency": ("--frequency-penalty", "50")}.items()}
    assert ids["repetition"] != ids["plain"]
    assert len(set(ids["presence"])) == len(ids["presence"]) == len(set(ids["frequency"]))
    hot = ("-p", "Hello", "--temperature", "3", "--seed", "1", "--max-tokens", "12")
    greedy = answer("-p", "Hello", "--temperature", "0", "--max-tokens", "12")["ids"]
    assert answer(*hot)["ids"] != greedy
    for narrow in (("--top-k", "1"), ("--top-p", "1e-9"), ("--min-p", "1")):
        assert answer(*hot, *narrow)["ids"] == greedy, narrow


# -- one answer -------------------------------------------------------------------------------------------------------------------

def test_threads_and_chunks_do_not_change_a_bit():
    arguments = ("-p", "Explain photosynthesis to a child, step by step.", "--temperature", "0.9", "--seed", "3", "--max-tokens", "24",
                 "--logprobs", "2")
    one = answer(*arguments, "--threads", "1")
    assert one["threads"] == 1
    for other in (("--threads", MORE_THREADS), ("--step-tokens", "7"), ("--max-running", "1"), ("--ctx", "256")):
        assert same(one, answer(*arguments, *other)), other


def test_instruction_sets_of_one_class_give_the_same_bits(tmp_path):
    replies, logits = {}, {}
    for isa in available_isas():
        env = {"DEEPMINT_CPU_ISA": isa}
        reply = answer("-p", QUESTION, "--temperature", "0.8", "--seed", "5", "--max-tokens", "16", "--logprobs", "2", env=env)
        assert reply["isa"].startswith(isa) or isa in reply["isa"] or reply["isa"] == "fma", reply["isa"]
        file = tmp_path / isa
        scores = json.loads(good("score", smollm2(), "--json", "--text", "It was the best of times, it was the worst of times.",
                                 "--logits", file, env=env))
        replies[isa], logits[isa] = (reply, scores), file.read_bytes()
    for isa in ("avx512", "avx512vnni"):
        if isa in replies:
            assert same(replies["avx2"][0], replies[isa][0])
            assert same(replies["avx2"][1], replies[isa][1])
            assert logits["avx2"] == logits[isa]
    # The others round differently, which is allowed to be seen but not to matter.
    perplexities = [scores["perplexity"] for _, scores in replies.values()]
    assert max(perplexities) < 1.05 * min(perplexities)


# -- score ------------------------------------------------------------------------------------------------------------------------

def test_score_agrees_with_the_logits_it_writes(tmp_path):
    file = tmp_path / "logits.f32"
    text = "The Eiffel Tower stands in Paris, the capital of France."
    scores = json.loads(good("score", smollm2(), "--text", text, "--logits", file, "--json"))
    ids, logprobs = scores["ids"], scores["logprobs"]
    assert "".join(scores["tokens"]) == text
    assert logprobs[0] is None and len(logprobs) == len(ids)
    vocab, logits = scores["vocab_size"], floats(file.read_bytes())
    assert len(logits) == len(ids) * vocab
    for position in range(len(ids) - 1):
        row = logits[position * vocab:(position + 1) * vocab]
        most = max(row)
        expected = row[ids[position + 1]] - most - math.log(math.fsum(math.exp(x - most) for x in row))
        # One rounding to float32 of a sum of 49152 terms in float32.
        assert abs(expected - logprobs[position + 1]) < 1e-5 * max(1, abs(expected)), position
    assert abs(scores["sum_logprob"] - sum(logprobs[1:])) < 1e-6
    assert abs(scores["perplexity"] - math.exp(-sum(logprobs[1:]) / (len(ids) - 1))) < 1e-6 * scores["perplexity"]
    assert scores["perplexity"] < 40        # a sentence that the model finds easy


def test_score_of_a_reply_is_what_the_reply_reported():
    prompt = good("tokenize", smollm2(), "-p", "Once upon a time").strip()
    reply = answer("--ids", prompt, "--temperature", "0", "--max-tokens", "12", "--logprobs", "0")
    ids = prompt + "," + ",".join(map(str, reply["ids"]))
    scores = json.loads(good("score", smollm2(), "--ids", ids, "--json"))
    assert scores["logprobs"][-len(reply["ids"]):] == [entry["logprob"] for entry in reply["logprobs"]]


def test_score_chunks_and_threads_do_not_change_a_bit(tmp_path):
    text = "All happy families are alike; each unhappy family is unhappy in its own way. " * 3
    outputs = []
    for i, extra in enumerate([("--threads", "1"), ("--threads", MORE_THREADS), ("--step-tokens", "5"), ("--step-tokens", "1")]):
        file = tmp_path / str(i)
        outputs.append((good("score", smollm2(), "--text", text, "--logits", file, "--json", *extra), file.read_bytes()))
    assert all(output == outputs[0] for output in outputs)


def test_score_reads_text_from_standard_input_and_control_tokens_only_when_told():
    text = "<|im_start|>user\nHi<|im_end|>"
    plain = json.loads(good("score", smollm2(), "--json", "--text", "-", input=text))
    control = json.loads(good("score", smollm2(), "--json", "--text", text, "--control"))
    assert len(control["ids"]) < len(plain["ids"])
    assert "".join(plain["tokens"]) == "".join(control["tokens"]) == text
    table = good("score", smollm2(), "--text", text)
    assert "perplexity" in table and table.count("\n") == len(plain["ids"]) + 1


def test_logits_file_is_replaced_and_cut_to_length(tmp_path):
    file = tmp_path / "logits"
    file.write_bytes(b"x" * (1 << 22))
    good("score", smollm2(), "--ids", "1,2", "--logits", file)
    assert file.stat().st_size == 2 * 49152 * 4
    one = json.loads(good("score", smollm2(), "--ids", "5", "--json"))
    assert one["logprobs"] == [None] and one["sum_logprob"] == 0 and "perplexity" not in one


def test_a_refused_text_leaves_the_logits_file_alone(tmp_path):
    dense, v41, file = tmp_path / "tiny.gguf", tmp_path / "v41", tmp_path / "logits"
    tiny(dense)
    good("synth", "--preset", "tiny", "--vocab", "129280", v41)
    file.write_text("what was there")
    bad("score", dense, "--ids", "1,2,3,4,5", "--ctx", "4", "--logits", file, says=["--ids: expected at most 4 tokens, the context, found 5"])
    bad("score", v41, "--ids", "1,2,129264", "--logits", file, says=["--ids[2]: expected a text token, found image token 129264"])
    assert file.read_text() == "what was there"


# -- inspect, tokenize, bench -----------------------------------------------------------------------------------------------------

def test_inspect_describes_the_file():
    report = json.loads(good("inspect", smollm2(), "--json"))
    assert report["architecture"] == "llama"
    assert "whole" in good("inspect", smollm2()).lower()


@pytest.mark.parametrize("text", ["Hello, world!", "naïve café 日本語 👩‍👩‍👧", "  spaces\n\ttabs", "<|im_start|>", "-", "0"])
def test_tokenize_and_detokenize_are_inverse(text):
    ids = good("tokenize", smollm2(), "-p", "-", input=text).strip()
    assert good("detokenize", smollm2(), "--ids", ids) == text + "\n"


def test_tokenize_keeps_control_strings_text_unless_told():
    assert len(good("tokenize", smollm2(), "-p", "<|im_start|>").split(",")) > 1
    assert len(good("tokenize", smollm2(), "-p", "<|im_start|>", "--control").split(",")) == 1
    parts = json.loads(good("tokenize", smollm2(), "-p", "Hello world", "--json"))
    assert "".join(parts["tokens"]) == "Hello world" and len(parts["tokens"]) == len(parts["ids"])


def test_bench_measures_and_draws(tmp_path):
    chart = tmp_path / "bench.svg"
    arguments = ("--rows", "1,2", "--contexts", "64", "--prefill", "64", "--tokens", "4", "--runs", "1")
    report = json.loads(good("bench", smollm2(), *arguments, "--json", "--svg", chart))
    assert [r["test"] for r in report["results"]] == ["decode", "decode", "context", "prefill"]
    for result in report["results"]:
        assert result["tokens_per_s"] > 0 and 0 < result["dram_share"] < 2
        assert 0 < result["arithmetic_share"] < 1.2
    assert report["roofs"]["dram_read_gb_per_s"] > 1
    assert chart.read_text().startswith("<svg") and chart.read_text().count('class="bar"') == 4
    lines = good("bench", smollm2(), *arguments, "--csv").splitlines()
    assert len(lines) == 5 and lines[0].startswith("test,rows,context,tokens_per_s")


# -- standard streams -------------------------------------------------------------------------------------------------------------

def test_a_reader_that_leaves_ends_the_program_quietly():
    process = subprocess.Popen([BIN, "run", str(smollm2()), "-p", "Tell me a very long story.", "--temperature", "0"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment())
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_full_disk_is_one_line():
    with open("/dev/full", "wb") as full:
        result = subprocess.run([BIN, "run", str(smollm2()), "-p", "Hi", "--max-tokens", "4"], stdout=full, stderr=subprocess.PIPE,
                                stdin=subprocess.DEVNULL, text=True, env=environment(), timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr == "deepmint: standard output: cannot write: No space left on device\n"
    bad("score", smollm2(), "--ids", "1,2,3", "--logits", "/dev/full", code=1, says=["/dev/full", "No space left"])


def test_closed_standard_streams_do_no_harm(tmp_path):
    file = tmp_path / "logits"
    script = f'"{BIN}" score "{smollm2()}" --ids 1,2 --logits "{file}" <&- >&- 2>&-'
    result = subprocess.run(["bash", "-c", script], env=environment(), timeout=60, check=False)
    assert result.returncode == 0
    assert file.stat().st_size == 2 * 49152 * 4


def test_interrupt_ends_run_as_the_signal_would():
    process = subprocess.Popen([BIN, "run", str(smollm2()), "-p", "Tell me a very long story.", "--temperature", "0"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment())
    first = process.stdout.read(8)
    process.send_signal(2)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == -2
    assert (first + rest).endswith(b"\n") and err == b""

