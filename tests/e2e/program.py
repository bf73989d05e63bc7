"""The real program for end-to-end tests: where it is, how it is run, and small models to run it on."""
import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import termios
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = os.environ.get("DEEPMINT_BIN", str(ROOT / "build/release/bin/deepmint"))
MAKE_TINY = str(pathlib.Path(BIN).parent / "test-tools/make_tiny_model")
MORE_THREADS = str(len(os.sched_getaffinity(0)))      # as many as there is a CPU for; beyond, the program cuts them and says so
SMOLLM2 = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"


def environment(extra=None):
    """The caller's environment without settings of the program, so that a test sees only its own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DEEPMINT_")}
    env.update(extra or {})
    return env


def run(*args, env=None, timeout=120, **kwargs):
    kwargs.setdefault("stdin", None if "input" in kwargs else subprocess.DEVNULL)
    if kwargs["stdin"] is None:
        del kwargs["stdin"]
    return subprocess.run([BIN, *map(str, args)], capture_output=True, text=True, env=environment(env), timeout=timeout, check=False, **kwargs)


def good(*args, **kwargs):
    """Runs and returns standard output; anything but success with a silent standard error fails the test."""
    result = run(*args, **kwargs)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def bad(*args, code=2, says=(), **kwargs):
    """Runs and expects one clear line on standard error, nothing on standard output."""
    result = run(*args, **kwargs)
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    assert result.stdout == ""
    assert re.match(r"deepmint( [a-z]+)?: (?!deepmint)", result.stderr) and result.stderr.count("\n") == 1, result.stderr
    assert len(result.stderr) < 1000, result.stderr
    for part in says:
        assert part in result.stderr, result.stderr
    return result.stderr


def tiny(path, **values):
    """A small random model (tests/support/tiny_model.h): a .gguf file, or a folder with layout="hf"."""
    subprocess.run([MAKE_TINY, str(path), *(f"{k}={v}" for k, v in values.items())], check=True)
    return path


def without_template(source, target):
    """A copy of a tiny .gguf file whose chat template uses a statement that is not there."""
    data = source.read_bytes()
    assert data.count(b"{% for message in messages %}") == 1
    target.write_bytes(data.replace(b"{% for message in messages %}", b"{% include 'other.jinja'   %}"))
    return target


def smollm2():
    if not SMOLLM2.exists():
        pytest.skip(f"{SMOLLM2.relative_to(ROOT)} is not there (tools/get_model.sh)")
    return SMOLLM2


def available_isas():
    """Names that this machine can run, from what the program says about the best one."""
    names = ["x86-64", "avx2", "avx512", "avx512vnni", "avx512bf16"]
    best = next(name for name in reversed(names) if run("config", env={"DEEPMINT_CPU_ISA": name}).returncode == 0)
    return names[: names.index(best) + 1]


class Terminal:
    """The program in a pseudo-terminal of its own, as a person would use it."""

    def __init__(self, *args, env=None):
        self.master, slave = pty.openpty()

        def own_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen([BIN, *map(str, args)], stdin=slave, stdout=slave, stderr=slave,
                                        env=environment({"TERM": "xterm", **(env or {})}), preexec_fn=own_terminal)
        os.close(slave)
        self.seen = b""      # everything that came
        self.mark = 0        # what expect() has already consumed

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)

    def read(self, timeout):
        if not select.select([self.master], [], [], timeout)[0]:
            return b""
        try:
            return os.read(self.master, 65536)
        except OSError:      # the program's end closed the other side
            return b""

    def expect(self, text, timeout=60):
        """Waits until `text` comes after what was expected before; returns everything up to its end."""
        wanted = text.encode() if isinstance(text, str) else text
        deadline = time.monotonic() + timeout
        while True:
            at = self.seen.find(wanted, self.mark)
            if at >= 0:
                begin, self.mark = self.mark, at + len(wanted)
                return self.seen[begin:self.mark].decode(errors="replace")
            left = deadline - time.monotonic()
            assert left > 0 and (self.process.poll() is None or select.select([self.master], [], [], 0)[0]), \
                f"waited for {text!r}, saw {self.seen[self.mark:]!r}"
            self.seen += self.read(min(left, 1))

    def send(self, text):
        os.write(self.master, text.encode() if isinstance(text, str) else text)

    def ctrl_c(self):
        self.send(b"\x03")

    def wait(self, timeout=30):
        deadline = time.monotonic() + timeout
        while self.process.poll() is None and time.monotonic() < deadline:
            self.seen += self.read(0.1)
        return self.process.wait(timeout=1)


class Server:
    """deepmint serve on a free port."""

    def __init__(self, *args, env=None):
        self.process = subprocess.Popen([BIN, "serve", *map(str, args), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        stdin=subprocess.DEVNULL, text=True, env=environment(env))
        line = self.process.stdout.readline()
        if not line.startswith("listening on http://"):
            self.process.kill()
            raise AssertionError(line + self.process.stderr.read())
        self.url = line.split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def stop(self, number=signal.SIGTERM, timeout=30):
        """Exit code and standard error after a signal."""
        self.process.send_signal(number)
        return self.wait(timeout)

    def wait(self, timeout=30):
        """Exit code and standard error of a server that ends by itself."""
        _, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, err
