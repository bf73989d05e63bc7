"""serve as a process: its address, its signals, its log. What it answers is tested beside the server."""
import json
import signal
import socket
import threading
import urllib.request

import pytest

from program import Server, smollm2, tiny


def post(url, body, timeout=60):
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.loads(response.read())


@pytest.fixture
def model(tmp_path):
    return tiny(tmp_path / "tiny-model.gguf")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_free_port_and_a_clean_end(model, number):
    with Server(model) as server:
        with urllib.request.urlopen(server.url + "/health", timeout=10) as response:
            assert response.status == 200
        with urllib.request.urlopen(server.url + "/v1/models", timeout=10) as response:
            assert json.loads(response.read())["data"][0]["id"] == "tiny-model"
        code, log = server.stop(number)
        assert code == 0
        assert number.name in log
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", server.port)) != 0


def test_start_logs_every_setting_with_its_origin(model):
    with Server(model, "--max-waiting", "9", env={"DEEPMINT_CPU_THREADS": "1"}) as server:
        _, log = server.stop()
    assert "setting engine.max_waiting = 9 (--max-waiting)" in log
    assert "setting cpu.threads = 1 (DEEPMINT_CPU_THREADS)" in log
    assert "setting server.host = 127.0.0.1 (default)" in log


def test_quiet_when_told(model):
    with Server(model, "--log-level", "off") as server:
        code, log = server.stop()
    assert code == 0 and log == ""


def test_the_model_has_the_name_that_was_given(model):
    with Server(model, "--name", "my/model") as server:
        with urllib.request.urlopen(server.url + "/v1/models", timeout=10) as response:
            assert json.loads(response.read())["data"][0]["id"] == "my/model"
        for name in ("my/model", "default"):
            assert post(server.url, {"model": name, "messages": [{"role": "user", "content": "a"}], "max_tokens": 2})["choices"]


def test_a_model_file_cut_short_under_the_server_ends_in_one_line(model):
    with Server(model, "--log-level", "off") as server:
        assert post(server.url, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2})["choices"]
        with open(model, "r+b") as file:       # not a rename: the mapping loses its pages
            file.truncate(0)
        with pytest.raises(OSError):
            post(server.url, {"messages": [{"role": "user", "content": "b"}], "max_tokens": 2})
        code, log = server.wait()
    assert code == 1
    assert log.count("\n") == 1 and log.startswith(f"deepmint: {model}: expected the file to stay as it was"), log


def test_a_model_file_replaced_by_renaming_changes_nothing(model, tmp_path):
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8, "seed": 1}
    with Server(model, "--log-level", "off") as server:
        before = post(server.url, body)["choices"]
        other = tmp_path / "other"
        other.write_bytes(bytes(100))
        other.replace(model)
        assert post(server.url, body)["choices"] == before
        assert server.stop() == (0, "")


def test_sampling_settings_are_the_defaults_of_requests():
    with Server(smollm2(), "--temperature", "0", "--max-tokens", "7") as server:
        body = {"model": "default", "messages": [{"role": "user", "content": "Tell me a story."}]}
        first, second = post(server.url, body), post(server.url, body)
        assert first["choices"][0]["message"] == second["choices"][0]["message"]
        assert first["usage"]["completion_tokens"] == 7


def test_a_running_request_finishes_when_the_server_drains():
    with Server(smollm2(), "--temperature", "0") as server:
        body = {"model": "default", "messages": [{"role": "user", "content": "Tell me a long story."}], "max_tokens": 60, "stream": True}
        request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            first = response.readline()
            assert first.startswith(b"data: ")
            result = []
            stopper = threading.Thread(target=lambda: result.append(server.stop()))
            stopper.start()
            rest = response.read()
        stopper.join()
        assert rest.rstrip().endswith(b"data: [DONE]")
        assert result[0][0] == 0


def test_a_second_signal_ends_at_once():
    with Server(smollm2(), "--temperature", "0", "--drain-timeout-ms", "600000") as server:
        body = {"model": "default", "messages": [{"role": "user", "content": "Tell me a very long story."}], "stream": True}
        request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        response = urllib.request.urlopen(request, timeout=60)
        assert response.readline()
        server.process.send_signal(signal.SIGTERM)
        line = ""
        while "finishing" not in line:
            line = server.process.stderr.readline()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=10) == -signal.SIGTERM
        response.close()
