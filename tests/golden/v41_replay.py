#!/usr/bin/env python3
"""Golden logits of bounded replay (spec model.md 10.3 and 10.4) on the tiny checkpoint: tests/golden/v41_replay.json.

    /usr/bin/python3 tests/golden/v41_replay.py > tests/golden/v41_replay.json

The oracle runs the prompt cold up to the hit. A second oracle takes over nothing but the global rows, runs the last window
before the hit and the rest of the prompt with a floor under every window, and leaves the global rows below the hit alone.
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "spec/model"))
import oracle  # noqa: E402


class Replay(oracle.Tiny):
    """A sequence whose positions below `hit` have global rows and nothing else."""

    def __init__(self, checkpoint, cold, prompt, hit, begin):
        super().__init__(checkpoint)
        self.hit, self.begin = hit, begin
        self.S, self.ids = begin, list(prompt[:begin])
        for layer in self.kv:
            rows = hit // self.c["ratios"][layer]
            self.kv[layer], self.ik[layer] = list(cold.kv[layer][:rows]), list(cold.ik[layer][:rows])

    def attn(self, i, u, pos, fl):
        return super().attn(i, u, pos, max(fl, self.begin))

    def compress(self, i, u, pos):
        for t, x in zip(pos, u):
            if t >= self.hit:
                super().compress(i, [x], [t])
            elif self.c["ratios"][i] == 2 and t % 2 == 0 and t + 1 == self.hit:
                super().compress(i, [x], [t])      # first half of a pair that the hit cuts


def main():
    checkpoint = oracle.make_tiny()
    prompt = [int(x) for x in oracle.np.floor(oracle.rnd("prompt", 101) * 512)]
    window = oracle.TINY["window"]
    cases = []
    for hit, length, keep in ((48, 101, None), (33, 60, None), (17, 40, None), (40, 101, 20), (64, 71, 16)):
        cold = oracle.Tiny(checkpoint)
        cold.forward(prompt[:hit])
        replay = Replay(checkpoint, cold, prompt, hit, hit - window)
        logits = replay.forward(prompt[hit - window:length], dec_rows=keep)[-1]
        cases.append({"hit": hit, "length": length, "keep": keep, "last_logits": [float(x) for x in logits]})
    print(json.dumps({"window": window, "cases": cases}))


if __name__ == "__main__":
    main()
