"""What is wrong with a command line, a file or a model ends in one clear line and the right exit code."""
import json
import os
import pathlib
import random
import re
import shutil
import socket

import pytest

from program import MORE_THREADS, bad, good, run, smollm2, tiny, without_template


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tiny(folder / "tiny.gguf", context=64)
    tiny(folder / "hf", layout="hf", weights="BF16", context=64)
    return folder


@pytest.fixture
def model(models):
    return models / "tiny.gguf"


def test_tiny_models_answer(models):
    for model in (models / "tiny.gguf", models / "hf"):
        reply = json.loads(good("run", model, "--raw", "-p", "the", "--max-tokens", "5", "--temperature", "0", "--json"))
        assert len(reply["ids"]) <= 5 and reply["usage"]["prompt_tokens"] >= 1


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("layout, weights", [("gguf", "F32"), ("gguf", "Q4_1"), ("gguf", "Q6_K"), ("hf", "BF16")])
def test_every_shape_scores_the_same_on_one_and_two_threads(tmp_path, architecture, layout, weights):
    model = tiny(tmp_path / "m.gguf", architecture=architecture, layout=layout, weights=weights)
    ids = ",".join(map(str, range(3, 40)))
    one = good("score", model, "--ids", ids, "--json", "--threads", "1", "--step-tokens", "5")
    assert one == good("score", model, "--ids", ids, "--json", "--threads", MORE_THREADS)
    assert json.loads(one)["perplexity"] > 1


def test_a_pipe_is_not_a_model(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # nobody writes to it: opening it must not wait
    for command in (["inspect"], ["run", "-p", "x"], ["serve", "--port", "0"], ["score", "--ids", "1"]):
        bad(command[0], pipe, *command[1:], says=[f"{pipe}: expected a regular file"])


# -- the command line -------------------------------------------------------------------------------------------------------------

def test_commands_and_options(model):
    bad(says=["expected a command"])
    bad("rnu", model, says=['unknown command "rnu"', 'did you mean "run"?'])
    bad("run", model, "--promt", "x", says=['unknown option "--promt"', 'did you mean "--prompt"?'])
    bad("run", says=["expected MODEL"])
    bad("run", model, says=["-p TEXT", "--ids"])
    bad("run", model, "-p", says=["deepmint run: expected -p TEXT, found no TEXT"])
    bad("run", model, "-p", "a", "--json=x", says=['--json: expected true, false or no value, found "x"'])
    bad("run", model, "-p", "a", "--ids", "1", says=["both"])
    bad("run", model, "--ids", "1", "--system", "x", says=["--system"])
    bad("run", model, "-p", "a", "extra", says=['unexpected argument "extra"'])
    bad("score", model, says=["--text or --ids"])
    bad("score", model, "--text", "a", "--ids", "1", says=["--text or --ids"])
    bad("bench", model, "--json", "--csv", says=["both"])
    bad("bench", model, "--rows", "0", says=["--rows"])
    bad("run", "--", model, "-p", "x", says=['deepmint run: unexpected argument "-p"'])
    bad("config", "--json", "--markdown", says=["both"])
    for page in (("--help",), ("-h",), ("help",), ("run", "--help"), ("help", "score"), ("--version",)):
        assert good(*page).count("\n") >= 1


@pytest.mark.parametrize("option, value", [
    ("--temperature", "nan"), ("--temperature", "-1"), ("--temperature", "inf"), ("--temperature", "hot"), ("--top-p", "0"),
    ("--top-p", "1.5"), ("--top-p", "nan"), ("--top-k", "-1"), ("--top-k", "2.5"), ("--min-p", "2"), ("--seed", "-1"),
    ("--seed", "99999999999999999999"), ("--max-tokens", "-2"), ("--threads", "-1"), ("--threads", "x"), ("--repetition-penalty", "0"),
    ("--frequency-penalty", "nan"), ("--presence-penalty", "inf"), ("--cpu-isa", "sse9"), ("--log-level", "loud"), ("--kv-bytes", "2XB"),
    ("--ctx", "-1"), ("--max-running", "0"), ("--step-tokens", "0"), ("--step-tokens", "2000000000"), ("--logprobs", "21"),
    ("--temperature", "1e300"), ("--top-k", "2147483648"), ("--max-tokens", "2147483648")])
def test_values_out_of_range_name_the_option(model, option, value):
    line = bad("run", model, "-p", "a", "--json", option, value)
    assert option in line or option[2:].replace("-", "_") in line, line
    assert "expected" in line and value.lstrip("-").split(".")[0] in line
    if value.lstrip("-").replace(".", "").replace("e", "").isdigit():       # a number: then both ends of the range are said
        assert re.search(r"(from|above) -?[0-9.e-]+ (and up )?to [0-9.e+]+", line), line


def test_token_ids(model):
    bad("run", model, "--ids", "1,2,x", says=["--ids", '"x"', "entry 3"])
    bad("run", model, "--ids", "-1", says=["--ids"])
    bad("run", model, "--ids", "", says=["at least one"])
    for slip, entry in (("1,,2", 2), (",1", 1), ("1,", 2), ("1, ,2", 2), (",", 1)):
        bad("score", model, "--ids", slip, says=[f"--ids: expected token ids such as 1,2,3, found nothing at entry {entry}"])
    for spelling in ("1 2 3", " 1,2 , 3\n", "1\t2\r\n3"):
        assert good("score", model, "--ids", spelling) == good("score", model, "--ids", "1,2,3")
    bad("run", model, "--ids", "99999999999", says=["--ids"])
    bad("run", model, "--ids", "1,100000", says=["--ids[1]: ", "100000"])
    bad("score", model, "--ids", "1,100000", says=["100000"])
    bad("run", model, "--raw", "-p", "", says=["expected some text"])
    bad("score", model, "--text", "", says=["expected some text"])


def test_prompt_longer_than_the_context(model):
    long = ",".join(["5"] * 65)
    for option, command in (("--ids", ("run", model, "--ids", long)), ("--ids", ("score", model, "--ids", long)),
                            ("--prompt", ("run", model, "-p", "a" * 500)), ("--text", ("score", model, "--text", "a" * 500))):
        bad(*command, says=[f"deepmint: {option}: expected at most 64 tokens, the context, found "])
    assert "[null," in good("score", model, "--ids", long[:-2], "--json")      # exactly the context: fits
    bad("run", model, "--raw", "-p", "-", says=["64"], input="the quick brown fox " * 500_000)


def test_instruction_set_that_is_not_one(model):
    bad("run", model, "-p", "a", env={"DEEPMINT_CPU_ISA": "foo"}, says=["DEEPMINT_CPU_ISA", "foo", "avx2"])
    bad("--version", env={"DEEPMINT_CPU_ISA": "foo"}, says=["DEEPMINT_CPU_ISA"])


def test_files_that_cannot_be_written(model, tmp_path):
    bad("score", model, "--ids", "1", "--logits", tmp_path / "no/such/folder/x", says=["cannot write", "no/such/folder"])
    bad("score", model, "--ids", "1", "--logits", tmp_path, says=["cannot write"])
    bad("bench", model, "--svg", tmp_path / "no/x.svg", says=["cannot write"])


# -- models -----------------------------------------------------------------------------------------------------------------------

COMMANDS = [("run", "-p", "a"), ("score", "--ids", "1"), ("chat",), ("serve", "--port", "0"), ("bench",), ("inspect",),
            ("tokenize", "-p", "a")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_model_that_is_not_there(command, tmp_path):
    bad(command[0], tmp_path / "none.gguf", *command[1:], says=["none.gguf"])
    empty = tmp_path / "empty"
    empty.mkdir()
    bad(command[0], empty, *command[1:], says=["empty"])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_model_that_is_not_one(command, tmp_path):
    for content in (b"", b"G", b"GGUF", b"hello world\n" * 100, bytes(4096), b"\xff" * 4096):
        file = tmp_path / "x.gguf"
        file.write_bytes(content)
        if command[0] == "inspect":        # describes what it can, and then says what is wrong
            result = run("inspect", file)
            assert result.returncode == 2 and result.stderr.count("\n") == 1 and "x.gguf" in result.stderr
        else:
            bad(command[0], file, *command[1:], says=["x.gguf"])
    bad(command[0], "/dev/null", *command[1:], says=["/dev/null"])


def one_line_or_fine(result):
    """Damage may go unnoticed where it only changes a weight; nothing else may happen."""
    if result.returncode == 0:
        return
    assert result.returncode in (1, 2), (result.returncode, result.stderr)
    assert result.stderr.startswith("deepmint: ") and result.stderr.count("\n") == 1, result.stderr


def test_truncated_model(model, tmp_path):
    data = model.read_bytes()
    file = tmp_path / "cut.gguf"
    rng = random.Random(1)
    cuts = [*range(0, 64, 7), *(rng.randrange(len(data)) for _ in range(30)), len(data) - 1, len(data) - 32]
    for cut in sorted(cuts):
        file.write_bytes(data[:cut])
        bad("score", file, "--ids", "1,2", says=["cut.gguf"])
    assert run("inspect", file).returncode == 2


def test_corrupted_model(model, tmp_path):
    data = bytearray(model.read_bytes())
    file = tmp_path / "bent.gguf"
    rng = random.Random(2)
    head = 8000        # metadata and tensor list
    for _ in range(60):
        bent = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            bent[rng.randrange(head)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        file.write_bytes(bent)
        one_line_or_fine(run("score", file, "--ids", "1,2", timeout=60))
    nan = bytearray(data)
    nan[-65536:] = b"\xff" * 65536      # NaN weights
    file.write_bytes(nan)
    one_line_or_fine(run("run", file, "--ids", "1,2", "--max-tokens", "2"))


def test_unknown_architecture(model, tmp_path):
    file = tmp_path / "other.gguf"
    file.write_bytes(model.read_bytes().replace(b"llama", b"mamba"))
    bad("run", file, "-p", "a", says=["mamba", "llama"])


def test_unknown_pre_tokenizer_is_named(models, tmp_path):
    data = (models / "tiny.gguf").read_bytes()
    key = data.index(b"tokenizer.ggml.pre")
    at = key + len(b"tokenizer.ggml.pre") + 4 + 8
    length = int.from_bytes(data[at - 8:at], "little")
    file = tmp_path / "pre.gguf"
    file.write_bytes(data[:at] + b"z" * length + data[at + length:])
    bad("run", file, "-p", "a", says=["z" * length])


def test_folder_without_tokenizer_works_on_ids(models, tmp_path):
    folder = shutil.copytree(models / "hf", tmp_path / "hf")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
    reply = json.loads(good("run", folder, "--ids", "5,6,7", "--max-tokens", "3", "--temperature", "0", "--json"))
    assert reply["text"] is None and len(reply["ids"]) <= 3
    assert good("run", folder, "--ids", "5,6,7", "--max-tokens", "3", "--temperature", "0").split() == [str(i) for i in reply["ids"]]
    assert "logprobs" in json.loads(good("score", folder, "--ids", "5,6,7", "--json"))
    bad("run", folder, "-p", "hello", says=["tokenizer", "--ids"])
    bad("run", folder, "--ids", "5", "--stop", "x", says=["tokenizer"])
    bad("score", folder, "--text", "hello", says=["tokenizer"])
    bad("chat", folder, says=["tokenizer"])
    bad("tokenize", folder, "-p", "hello", says=["tokenizer"])


@pytest.mark.parametrize("kind, says", [("folder", "a directory"), ("pipe", "a pipe"), ("dangling", "a symbolic link to nothing"),
                                       ("loop", "Too many levels of symbolic links")])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"])
def test_a_name_in_the_folder_that_is_no_file_is_not_an_absent_file(models, tmp_path, name, kind, says):
    folder = shutil.copytree(models / "hf", tmp_path / "hf")
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere" if kind == "dangling" else name)
    bad("run", folder, "-p", "a", says=[f"{path}: expected a ", says])
    result = run("inspect", folder)
    assert result.returncode == 2 and f"{path}: expected a " in result.stderr and says in result.stderr, result.stderr
    if name.startswith("tokenizer"):
        bad("tokenize", folder, "-p", "a", says=[f"{path}: expected a ", says])


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_inspect_calls_whole_what_the_loader_takes(tmp_path, architecture):
    data = tiny(tmp_path / "m.gguf", architecture=architecture).read_bytes()
    changes = [(b"", b"")]
    # The same length, so that every offset stays right.
    changes += [(b"blk.0.ffn_norm.weight", name.encode()) for name in
                ("blk.0.attn_q_.bias...", "blk.0.attn_output.bia", "blk.0.attn_q.bias....")]
    changes += [(b"blk.1.attn_norm.weight", b"blk.1.attn_output.bias"), (b"rope.freq_base", b"rope.freq_bass"),
                (b"attention.head_count_kv", b"attention.head_count_xx"), (b"layer_norm_rms_epsilon", b"layer_norm_rms_epsilom"),
                (b"tokenizer.ggml.pre", b"tokenizer.ggml.prx"), (b"tokenizer.ggml.merges", b"tokenizer.ggml.mergez"),
                (b"output_norm.weight", b"output_nori.weight")]
    file = tmp_path / "changed.gguf"
    for old, new in changes:
        file.write_bytes(data.replace(old, new) if old else data)
        loaded, inspected = run("score", file, "--ids", "1,2"), run("inspect", file)
        assert loaded.returncode == inspected.returncode, (old, new, loaded.stderr, inspected.stderr)
        if loaded.returncode == 0:
            assert "whole: the" in inspected.stdout
        else:
            assert "not whole: " in inspected.stdout


@pytest.mark.parametrize("name, change, says", [
    ("config.json", None, ["config.json"]),
    ("model.safetensors", None, ["safetensors"]),
    ("config.json", b"{", ["config.json"]),
    ("config.json", b"[]", ["config.json"]),
    ("config.json", b'{"architectures": ["MambaForCausalLM"], "model_type": "mamba"}', ["Mamba"]),
    ("tokenizer.json", b"{", ["tokenizer.json"]),
    ("tokenizer.json", b'{"model": {"type": "WordPiece"}}', ["tokenizer.json"]),
    ("model.safetensors", b"\xff" * 8, ["model.safetensors"]),
])
def test_damaged_folder(models, tmp_path, name, change, says):
    folder = shutil.copytree(models / "hf", tmp_path / "hf")
    if change is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(change)
    bad("run", folder, "-p", "a", says=says)


def test_missing_tensor_is_named(models, tmp_path):
    data = (models / "tiny.gguf").read_bytes()
    file = tmp_path / "t.gguf"
    file.write_bytes(data.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight"))
    bad("run", file, "--ids", "1", says=["blk.1.ffn_up.weight"])
    result = run("inspect", file)
    assert result.returncode == 2 and "ffn_up" in result.stderr and result.stderr.count("\n") == 1


def test_nan_weights_are_one_line_not_a_token(tmp_path):
    model = tiny(tmp_path / "nan.gguf", context=64)
    data = bytearray(model.read_bytes())
    data[-256 * 1024:] = b"\xff\xff\xff\x7f" * (64 * 1024)
    model.write_bytes(data)
    bad("run", model, "--ids", "1,2,3", "--max-tokens", "3", code=1)


def test_model_without_a_known_chat_template_says_what_to_do(models, tmp_path):
    file = without_template(models / "tiny.gguf", tmp_path / "t.gguf")
    bad("run", file, "-p", "a", says=["t.gguf", "chat template line 1", "{% include %}", "--chat-template FILE", "--raw"])
    other = tmp_path / "other.jinja"
    other.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert good("run", file, "-p", "a", "--chat-template", other, "--max-tokens", "1", "--temperature", "0").endswith("\n")
    bad("run", file, "-p", "a", "--chat-template", tmp_path / "none.jinja", says=["none.jinja"])
    bad("run", file, "--raw", "-p", "a", "--chat-template", other, says=["--chat-template", "--raw"])
    assert good("run", file, "--raw", "-p", "a", "--max-tokens", "1", "--temperature", "0").endswith("\n")


def test_port_in_use(model):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("serve", model, "--port", port, "--log-level", "off")
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.count("\n") == 1 and str(port) in result.stderr


@pytest.mark.parametrize("option, value", [("--port", "65536"), ("--port", "-1"), ("--host", "999.1.1.1"), ("--io-threads", "0"),
                                           ("--api-keys-file", "/no/such/file"), ("--max-body-bytes", "-5")])
def test_server_settings(model, option, value):
    result = run("serve", model, "--port", "0", option, value, "--log-level", "off", timeout=30)
    assert result.returncode in (1, 2) and result.stdout == ""
    assert result.stderr.startswith("deepmint: ") and result.stderr.count("\n") == 1, result.stderr


@pytest.mark.parametrize("option, value, says", [("--api-keys-file", "/no/such/file", "/no/such/file"), ("--io-threads", "0", "--io-threads"),
                                                 ("--max-running", "600", "--step-tokens"), ("--name", "", "--name"), ("--host", "999.1.1.1", "--host"),
                                                 ("--allowed-origins", "x", "--allowed-origins")])
def test_a_wrong_setting_is_found_before_the_model_is_looked_at(option, value, says, tmp_path):
    if option == "--max-running":
        bad("run", tmp_path / "none.gguf", "-p", "a", option, "4097", says=[option, "4096"])
        bad("serve", tmp_path / "none.gguf", "--port", "0", option, value, says=["engine.step_tokens", "600"])
    else:
        bad("serve", tmp_path / "none.gguf", "--port", "0", option, value, says=[says])


def test_a_port_in_use_is_found_before_the_model_is_looked_at(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        bad("serve", tmp_path / "none.gguf", "--port", port, code=1, says=[f"127.0.0.1:{port}: cannot listen"])


def test_more_threads_than_cpus_are_cut_with_one_line(model):
    result = run("run", model, "--raw", "-p", "the", "--max-tokens", "4", "--temperature", "0", "--threads", "1024")
    assert result.returncode == 0 and result.stderr.count("\n") == 1
    assert "1024 threads were asked for" in result.stderr
    assert result.stdout == good("run", model, "--raw", "-p", "the", "--max-tokens", "4", "--temperature", "0")


def test_the_real_model_cut_short(tmp_path):
    data = smollm2().read_bytes()
    file = tmp_path / "cut.gguf"
    for cut in (len(data) - 1, len(data) // 2, 100_000):
        file.write_bytes(data[:cut])
        for command in (("run", "-p", "a"), ("inspect",)):
            result = run(command[0], file, *command[1:])
            assert result.returncode == 2 and result.stderr.count("\n") == 1 and "cut.gguf" in result.stderr
    assert pathlib.Path(file).exists()
