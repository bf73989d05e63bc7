#!/usr/bin/env python3
"""Builds and runs every test and prints one summary. Called by ./test.sh.

A stage is a named command. A stage that runs a test program counts that program's tests (GoogleTest JSON, pytest JUnit XML); any
other stage counts as one test. Everything skipped is listed at the end with its reason.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
# --quick is for before each commit: equalities of whole models, which take two minutes of both cores, are for ./test.sh.
QUICK_LEAVES_OUT = {"one_answer_test", "v41_invariance_test", "v41_load_test", "v41_replay_test", "v41_gate_test", "dense_invariance_test"}
QUICK_ARGUMENTS = {"engine_model_test": ("--gtest_filter=-EngineV41.*",)}
PARTS = ("tests", "asan", "tsan", "fuzz", "tidy")  # of --full, in the order in which they run
LONGEST = {"one_answer_test", "v41_invariance_test", "v41_gate_test", "v41_replay_test"}  # under sanitizers: begun first
OUT_OF_REACH = 3  # exit code of tools/*.sh when a registry cannot be reached


class Totals:
    def __init__(self):
        self.passed = self.failed = 0
        self.skips = []      # (test, reason)
        self.failures = []   # (stage or test, last lines of output)


def run(command, log, env=None, timeout=None):
    """Returns the exit code; output goes to the file `log`."""
    with open(log, "wb") as out:
        try:
            return subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                  env={**os.environ, **(env or {})}, timeout=timeout, check=False).returncode
        except subprocess.TimeoutExpired:
            out.write(f"\ntimed out after {timeout} s\n".encode())
            return 124
        except OSError as error:
            out.write(f"{error}\n".encode())
            return 127


def skip_reason(log, test):
    """What GTEST_SKIP() said: older GoogleTests write it to the log alone."""
    found = re.search(r": Skipped\n(.+)\n\s*\[  SKIPPED \] " + re.escape(test) + r"\b", log.read_text(errors="replace"))
    return found[1] if found else "no reason given"


def tail(log, lines=40):
    return "\n".join(pathlib.Path(log).read_text(errors="replace").splitlines()[-lines:])


class Runner:
    def __init__(self, work):
        self.work = pathlib.Path(work)
        self.totals = Totals()
        self.counting = threading.Lock()  # programs may run side by side

    def say(self, name, outcome, seconds):
        print(f"{name:<44} {outcome:<32} {seconds:7.1f} s", flush=True)

    def skip(self, name, reason):
        print(f"SKIP {name}: {reason}", flush=True)
        self.totals.skips.append((name, reason))

    def fail(self, name, text):
        self.totals.failed += 1
        self.totals.failures.append((name, text))

    def stage(self, name, command, env=None, timeout=3600, counts=True):
        """A command that passes or fails as one test. Returns whether it passed."""
        start = time.monotonic()
        log = self.work / (re.sub(r"\W+", "_", name) + ".log")
        code = run(command, log, env, timeout)
        with self.counting:
            if code == 0:
                self.totals.passed += counts
            else:
                self.fail(name, tail(log))
        self.say(name, "ok" if code == 0 else f"FAILED (exit {code})", time.monotonic() - start)
        return code == 0

    def gtest(self, program, label="", env=None, timeout=1200, arguments=()):
        name = label + program.name
        start = time.monotonic()
        report = self.work / (re.sub(r"\W+", "_", name) + ".json")
        log = report.with_suffix(".log")
        code = run([str(program), f"--gtest_output=json:{report}", *arguments], log, env, timeout)
        with self.counting:
            self.count_gtest(name, code, report, log, time.monotonic() - start)

    def count_gtest(self, name, code, report, log, seconds):
        try:
            suites = json.loads(report.read_text())["testsuites"]
        except (OSError, ValueError):
            self.fail(name, f"no report, exit {code}\n" + tail(log))
            self.say(name, f"FAILED (exit {code})", seconds)
            return
        passed = failed = skipped = 0
        for case in (case for suite in suites for case in suite["testsuite"]):
            full = f"{name}: {case['classname']}.{case['name']}"
            if case.get("failures"):
                failed += 1
                seed = re.search(r"DEEPMINT_TEST_SEED=\d+", log.read_text(errors="replace"))
                self.fail(full, case["failures"][0]["failure"] + (f"\n{seed[0]}" if seed else ""))
            elif case.get("result") == "SKIPPED":
                skipped += 1
                reason = case.get("skipped", [{}])[0].get("message", "").strip().splitlines()
                self.skip(full, reason[-1] if reason else skip_reason(log, f"{case['classname']}.{case['name']}"))
            elif case.get("status") == "RUN":
                passed += 1
        if code != 0 and failed == 0:
            failed += 1
            self.fail(name, f"exit {code} although every test passed\n" + tail(log))
        self.totals.passed += passed
        self.say(name, f"{passed} passed" + (f", {failed} FAILED" if failed else "") + (f", {skipped} skipped" if skipped else ""),
                 seconds)

    def pytest(self, paths, env=None, timeout=1500, name="pytest", python=".venv/bin/python"):
        start = time.monotonic()
        report = self.work / (name + ".xml")
        log = self.work / (name + ".log")
        code = run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *paths], log, env, timeout)
        try:
            cases = list(xml.etree.ElementTree.parse(report).iter("testcase"))
        except (OSError, xml.etree.ElementTree.ParseError):
            self.fail(name, f"no report, exit {code}\n" + tail(log))
            self.say(name, f"FAILED (exit {code})", time.monotonic() - start)
            return
        passed = failed = skipped = 0
        for case in cases:
            full = f"{name}: {case.get('classname')}.{case.get('name')}"
            problem = case.find("failure") if case.find("failure") is not None else case.find("error")
            if problem is not None:
                failed += 1
                self.fail(full, (problem.text or problem.get("message") or "")[-3000:])
            elif case.find("skipped") is not None:
                skipped += 1
                self.skip(full, case.find("skipped").get("message") or "no reason given")
            else:
                passed += 1
        if code not in (0, 1) and failed == 0:
            failed += 1
            self.fail(name, f"exit {code}\n" + tail(log))
        self.totals.passed += passed
        self.say(name, f"{passed} passed" + (f", {failed} FAILED" if failed else "") + (f", {skipped} skipped" if skipped else ""),
                 time.monotonic() - start)

    def build(self, preset, targets=()):
        if not (ROOT / "build" / preset / "build.ninja").exists():
            if not self.stage(f"configure {preset}", ["cmake", "--preset", preset], counts=False):
                return False
        return self.stage(f"build {preset}", ["ninja", "-C", f"build/{preset}", *targets], counts=False)

    def programs(self, preset):
        folder = ROOT / "build" / preset / "bin" / "tests"
        return sorted(p for p in folder.iterdir() if p.is_file() and os.access(p, os.X_OK)) if folder.is_dir() else []

    def finish(self, started):
        t = self.totals
        for name, text in t.failures:
            print(f"\nFAILED {name}\n{text}")
        if t.skips:
            print("\nSkipped:")
            for name, reason in t.skips:
                print(f"  {name}: {reason}")
        print(f"\n{time.monotonic() - started:.0f} s")
        print(f"{t.passed} passed, {t.failed} failed, {len(t.skips)} skipped")
        return 1 if t.failed or not t.passed else 0


def fetch(runner, name, command):
    """Runs a script that may find its registry out of reach. True when what it fetches is there."""
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if result.returncode == 0:
        return True
    reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
    if result.returncode == OUT_OF_REACH:
        runner.skip(name, reason)
    else:
        runner.fail(name, reason)
    return False


def side_by_side(work, items):
    """Most programs use one core: as many at once as there are cores."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as several:
        list(several.map(work, items))


def sanitizer(runner, preset):
    """Every unit test in a build that watches memory and undefined behaviour (asan) or threads (tsan)."""
    env = {"asan": {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"},
           "tsan": {"TSAN_OPTIONS": "halt_on_error=1"}}[preset]
    if runner.build(preset):
        programs = sorted(runner.programs(preset), key=lambda p: (p.name not in LONGEST, p.name))
        side_by_side(lambda program: runner.gtest(program, label=f"{preset} ", env=env, timeout=2 * 3600), programs)


def fuzz(runner):
    """Every fuzz target for FUZZ_SECONDS."""
    def one(program):
        corpus = ROOT / "tests/fuzz/corpus" / program.name.removesuffix("_fuzz")
        with tempfile.TemporaryDirectory() as fresh:
            seeds = [str(corpus)] if corpus.is_dir() else []
            runner.stage(f"fuzz {program.name}", [str(program), fresh, *seeds, f"-max_total_time={seconds}", "-rss_limit_mb=4096",
                                                  "-timeout=10", f"-artifact_prefix={runner.work}/"], timeout=int(seconds) + 600)
    seconds = os.environ.get("FUZZ_SECONDS", "60")
    if runner.build("fuzz"):
        side_by_side(one, (p for p in sorted((ROOT / "build/fuzz/bin/fuzz").iterdir()) if p.is_file() and os.access(p, os.X_OK)))


def tidy(runner):
    sources = [str(p.relative_to(ROOT)) for p in sorted((ROOT / "src").rglob("*.cc")) if not p.name.endswith(("_test.cc", "_simd.cc"))]
    runner.stage("clang-tidy", ["bash", "-c", "printf '%s\\n' \"$@\" | xargs -P \"$(nproc)\" -n 4 clang-tidy-19 -p build/release --quiet", "tidy", *sources],
                 timeout=4 * 3600)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["quick", "normal", "full"], default="normal")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of --mode full: {', '.join(PARTS)}")
    options = parser.parse_args()
    mode = options.mode
    for part in options.parts:
        if mode != "full" or part not in PARTS:
            parser.error(f"expected parts of --full, of {', '.join(PARTS)}, found {part}")
    parts = options.parts or (PARTS if mode == "full" else ("tests",))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="deepmint-tests-") as work:
        runner = Runner(work)
        if not runner.build("release"):
            return runner.finish(started)
        have_model = fetch(runner, "SmolLM2 model", ["tools/get_model.sh"]) if mode != "quick" else True
        if "tests" in parts:
            tests(runner, mode, have_model)
        for preset in ("asan", "tsan"):
            if preset in parts:
                sanitizer(runner, preset)
        if "fuzz" in parts:
            fuzz(runner)
        if "tidy" in parts:
            tidy(runner)
        return runner.finish(started)


def tests(runner, mode, have_model):
    """Everything but sanitizers, fuzzing and clang-tidy; of --quick, the unit tests alone."""
    runner.stage("include direction", ["python3", "tools/check_layers.py"])
    formatted = [str(p.relative_to(ROOT)) for d in ("include", "src", "tests", "bench", "examples") for p in sorted((ROOT / d).rglob("*"))
                 if p.suffix in {".h", ".cc", ".inl"} and "build" not in p.parts]
    runner.stage("clang-format", ["clang-format-19", "--dry-run", "-Werror", *formatted])
    if mode == "quick":  # side by side: the time until an answer counts, not a test's own
        side_by_side(lambda program: runner.gtest(program, env={"DEEPMINT_TEST_QUICK": "1"}, arguments=QUICK_ARGUMENTS.get(program.name, ())),
                     (p for p in runner.programs("release") if p.name not in QUICK_LEAVES_OUT))
        return
    full = mode == "full"
    env = {"DEEPMINT_TEST_FULL": "1"} if full else {}
    for program in runner.programs("release"):
        runner.gtest(program, env=env, timeout=4 * 3600 if full else 1200)
    runner.stage("every header compiles alone", ["ninja", "-C", "build/release", "check-headers"])
    runner.stage("no wide registers in portable code", ["python3", "tools/check_isa.py", "build/release"])
    runner.stage("shell scripts parse", ["bash", "-n", "test.sh", "quickstart.sh", *map(str, (ROOT / "tools").glob("*.sh"))])
    packages = ["deps/requirements-test.txt"] + (["deps/requirements-peers.txt"] if full else [])
    if fetch(runner, "Python packages for end-to-end tests", ["tools/python_env.sh", *packages]):
        runner.pytest(["tests/e2e"], env={"DEEPMINT_BIN": str(ROOT / "build/release/bin/deepmint"), **env}, timeout=4 * 3600 if full else 1500)
    if full and have_model:
        runner.stage("accuracy against float64", ["tools/check_accuracy.sh", "build/release/bin/deepmint",
                                                  "models/SmolLM2-135M-Instruct.Q4_1.gguf"])


if __name__ == "__main__":
    sys.exit(main())
