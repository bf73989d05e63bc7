"""chat in a real pseudo-terminal, and progress that only a terminal sees."""
import json

import pytest

from program import Terminal, bad, good, run, smollm2, tiny, without_template

GREEDY = ("--temperature", "0")


def context_used(chat):
    chat.send("/stats\n")
    return int(chat.expect("> ").split("context ")[1].split()[0])


def test_a_conversation_keeps_its_history_until_reset():
    with Terminal("chat", smollm2(), *GREEDY, "--max-tokens", "24") as chat:
        def say(text):
            chat.send(text + "\n")
            chat.expect(text + "\r\n")
            return chat.expect("\r\n> ", timeout=120).rsplit("\x1b[K", 1)[-1]      # a slow machine shows progress first

        chat.expect("/help lists the commands")
        chat.expect("> ")
        first = say("Name a river.")
        used = context_used(chat)
        second = say("Name a river.")
        assert context_used(chat) > 1.5 * used
        chat.send("/reset\n")
        chat.expect("(the conversation is empty)")
        chat.expect("> ")
        assert say("Name a river.") == first
        assert context_used(chat) == used
        assert say("Name a river.") == second
        chat.send("/exit\n")
        assert chat.wait() == 0


def test_ctrl_c_stops_the_reply_and_not_the_program():
    with Terminal("chat", smollm2(), *GREEDY) as chat:
        chat.expect("> ")
        chat.send("Tell me a very long story about a dragon, a castle and a river.\n")
        chat.expect("river.\r\n")
        chat.expect(" ", timeout=120)       # the first words are there
        chat.ctrl_c()
        chat.expect("(stopped)")
        chat.expect("> ")
        chat.send("Say hi.\n")
        chat.expect("Say hi.\r\n")
        chat.expect("\r\n> ", timeout=120)
        chat.ctrl_c()
        chat.expect("(Ctrl-C again or Ctrl-D leaves)")
        chat.expect("> ")
        chat.ctrl_c()
        assert chat.wait() == 0


def test_ctrl_c_twice_leaves_only_when_nothing_comes_between():
    with Terminal("chat", smollm2(), *GREEDY, "--max-tokens", "4") as chat:
        chat.expect("> ")
        chat.ctrl_c()
        chat.expect("leaves)")
        chat.send("/stats\n")
        chat.expect("0 replies")
        chat.expect("> ")
        chat.ctrl_c()
        chat.expect("leaves)")
        chat.expect("> ")
        chat.send(b"\x04")      # Ctrl-D
        assert chat.wait() == 0


def test_commands_inside(tmp_path):
    saved = tmp_path / "talk.json"
    with Terminal("chat", smollm2(), *GREEDY, "--max-tokens", "8", "--system", "Be brief.") as chat:
        chat.expect("> ")
        chat.send("/help\n")
        chat.expect("/save FILE")
        chat.send("/rest\n")
        chat.expect('did you mean "/reset"?')
        chat.send("first line \\\n")
        chat.expect("… ")
        chat.send("second line\n")
        chat.expect("second line\r\n")
        chat.expect("\r\n> ", timeout=120)
        chat.send(f"/save {saved}\n")
        chat.expect("(saved")
        chat.send(f"/save {saved}\n")
        chat.expect("File exists")
        chat.send("/system Answer in German.\n")
        chat.expect("(new system message")
        chat.send("//slash\n")
        chat.expect("//slash\r\n")
        chat.expect("\r\n> ", timeout=120)
        chat.send("/quit\n")
        assert chat.wait() == 0
    messages = json.loads(saved.read_text())
    assert [m["role"] for m in messages] == ["system", "user", "assistant"]
    assert messages[1]["content"] == "first line \nsecond line"


def test_chat_from_a_pipe_prints_replies_only():
    result = run("chat", smollm2(), *GREEDY, "--max-tokens", "12", input="Hello\r\n\nWhat is 2+2?\nlast", timeout=300)
    assert result.returncode == 0 and result.stderr == ""
    one = good("run", smollm2(), *GREEDY, "--max-tokens", "12", "-p", "Hello")
    assert result.stdout.startswith(one)
    assert "> " not in result.stdout
    cut = run("chat", smollm2(), *GREEDY, "--max-tokens", "2", input="Hello\n", timeout=300)
    assert cut.returncode == 0 and cut.stderr == ""


def test_utf8_lines_and_broken_bytes():
    with Terminal("chat", smollm2(), *GREEDY, "--max-tokens", "4") as chat:
        chat.expect("> ")
        for line in ("naïve café 日本語 👩‍👩‍👧\n".encode(), b"\xff\xfe broken \xe2\x82\n"):
            chat.send(line)
            chat.expect("\r\n")
            chat.expect("\r\n> ", timeout=120)
        chat.send(b"\x04")
        assert chat.wait() == 0


def test_a_conversation_longer_than_the_context_goes_on_after_reset(tmp_path):
    model = tiny(tmp_path / "m.gguf", context=64)
    with Terminal("chat", model, *GREEDY, "--max-tokens", "4") as chat:
        chat.expect("> ")
        chat.send("x" * 200 + "\n")
        assert "64" in chat.expect("/reset starts over", timeout=60)
        chat.expect("> ")
        chat.send("hi\n")
        chat.expect("hi\r\n")
        chat.expect("> ")
        chat.send(b"\x04")
        assert chat.wait() == 0


def test_progress_is_for_terminals_only():
    arguments = ("run", smollm2(), "--raw", "-p", "word " * 1500, "--max-tokens", "2", *GREEDY)
    result = run(*arguments)
    assert result.stderr == ""
    with Terminal(*arguments) as terminal:
        terminal.expect("reading the prompt [", timeout=120)
        terminal.expect("tok", timeout=120)
        assert terminal.wait() == 0


def test_chat_needs_a_template(tmp_path):
    model = tiny(tmp_path / "m.gguf")
    without_template(model, model)
    bad("chat", model, says=["chat template"])


@pytest.mark.parametrize("number", [15])
def test_terminate_ends_chat(number):
    with Terminal("chat", smollm2()) as chat:
        chat.expect("> ")
        chat.process.send_signal(number)
        assert chat.wait() == -number
