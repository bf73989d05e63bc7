"""The served program against hostile and clumsy clients: one line or one 4xx each, nothing left behind, alive after."""
import http.client
import json
import pathlib
import socket
import threading
import time

import pytest


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def request(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def chat(server, body, **headers):
    data = body if isinstance(body, (bytes, str)) else json.dumps(body)
    status, text = request(server, "POST", "/v1/chat/completions", data, {"Content-Type": "application/json", **headers})
    return status, json.loads(text)


def error_of(answer):
    status, body = answer
    message = body["error"]["message"]
    assert message and "\n" not in message and len(message) < 1000
    return status, message


def metric(server, name):
    _, text = request(server, "GET", "/metrics")
    return sum(float(line.rsplit(b" ", 1)[1]) for line in text.splitlines() if line.startswith(name.encode()))


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def resident_mib(server):
    for line in pathlib.Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def user(content, **fields):
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 2, **fields}


@pytest.fixture(autouse=True)
def alive_and_idle_afterwards(server):
    yield
    assert request(server, "GET", "/health") == (200, b'{"status":"ok"}')
    wait_until(lambda: metric(server, "vllm:num_requests_running") + metric(server, "vllm:num_requests_waiting") == 0)
    assert metric(server, "vllm:kv_cache_usage_perc") == 0
    assert chat(server, user("hi"))[0] == 200


@pytest.mark.parametrize("body, says", [
    (b"", "found nothing"),
    (b"{", "invalid JSON"),
    (b"[1, 2]", "expected a JSON object"),
    (b'{"messages": [{"role": "user", "content": "\xff"}]}', "invalid JSON"),
    (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', "invalid JSON"),
    (b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}', "temperature"),
    (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1' + b"0" * 5000 + b"}", "max_tokens"),
    (b'{"messages": ' + b"[" * 200_000, "nested"),
    (b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"49152": 1}}', "49152"),
    (b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"-1": 1}}', "token id"),
    (b'{"messages": [{"role": "user", "content": "x"}], "repetition_penalty": 1e-300}', "from 0.01 to 100"),
])
def test_wrong_bodies(server, body, says):
    status, message = error_of(chat(server, body))
    assert status == 400
    assert says in message


@pytest.mark.parametrize("fields", [
    {"temperature": 1e-300}, {"temperature": 1e-40}, {"temperature": 2, "top_p": 1e-300}, {"temperature": 2, "min_p": 1},
    {"top_k": 2147483647}, {"top_k": 1}, {"repetition_penalty": 0.01}, {"repetition_penalty": 100}, {"presence_penalty": -2},
    {"min_tokens": 2147483647}, {"logit_bias": {"0": -100, "49151": 100}}, {"stop": "\x00"}, {"seed": 2 ** 63 - 1}, {"n": 16},
    {"max_tokens": 2147483647, "stop": ["e", "a", "o", " "]}, {"messages": [{"role": "user", "content": ""}]},
    {"messages": [{"role": "assistant", "content": "\x00\ud83d\ude00<|im_end|>"}]},
])
def test_extreme_values_that_are_allowed(server, fields):
    status, answer = chat(server, user("hi", **fields))
    assert status == 200, answer
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")


def test_a_ten_megabyte_prompt_is_refused_while_others_are_served(server):
    words = "many different words of ordinary English text, 12 of them. "
    answers = []
    big = threading.Thread(target=lambda: answers.append(chat(server, user(words * (10_000_000 // len(words))))))
    big.start()
    slowest = 0.0
    while big.is_alive():
        start = time.monotonic()
        assert request(server, "GET", "/health")[0] == 200
        slowest = max(slowest, time.monotonic() - start)
    big.join()
    status, message = error_of(answers[0])
    assert status == 400
    assert "tokens, context is" in message
    assert slowest < 1.0


def test_a_prompt_just_beyond_the_context_says_how_long_it_is(server):
    status, message = error_of(chat(server, user("word " * 9000)))
    assert status == 400
    assert message.startswith("messages: prompt has 90") and message.endswith("tokens, context is 8192")


def test_a_body_over_the_limit(server):
    with connect(server) as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Content-Length: 100000000\r\n\r\n{")
        assert s.recv(4096).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("raw, status", [
    (b"nonsense\r\n\r\n", b"400"),
    (b"GET /health HTTP/3.0\r\n\r\n", b"505"),
    (b"GET /health HTTP/1.1\r\n\r\n", b"400"),
    (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"414"),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", b"431"),
    (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
    (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", b"400"),
    (b"POST /v1/chat/completions HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 2\r\n\r\n{}", b"403"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
    (b"GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    (b"GET /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
])
def test_wrong_http(server, raw, status):
    with connect(server) as s:
        s.sendall(raw)
        assert s.recv(65536).split(b" ")[1] == status


def test_clients_that_leave_at_every_byte(server):
    body = json.dumps(user("Tell me a long story.", stream=True, max_tokens=500, ignore_eos=True)).encode()
    whole = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
             b"Content-Length: %d\r\n\r\n" % len(body)) + body
    for cut in range(len(whole)):
        with connect(server) as s:
            s.sendall(whole[:cut])
    for cut in range(0, 1200, 37):
        with connect(server) as s:
            s.sendall(whole)
            seen = 0
            while seen < cut:
                seen += len(s.recv(min(cut - seen, 100)))
            if cut % 2:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # reset


def test_nothing_is_left_behind(server):
    def round_of_trouble():
        for index in range(20):
            chat(server, user("x " * 9000))
            chat(server, b'{"messages": ' + b"[" * 1000)
            with connect(server) as s:
                body = json.dumps(user("Tell me a story.", stream=True, max_tokens=300, ignore_eos=True)).encode()
                s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                s.recv(100 * (index + 1))
    round_of_trouble()
    before = resident_mib(server)
    for _ in range(3):
        round_of_trouble()
    assert resident_mib(server) < before + 20
