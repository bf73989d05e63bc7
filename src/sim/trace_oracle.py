#!/usr/bin/env python3
"""Hit rate of a trace in a plain LRU of trace blocks: the independent check of sim/replay.h.

    trace_oracle.py TRACE.jsonl [--capacity BLOCKS] [--ttl SECONDS] [--order tail-first|head-first]

Prints hit tokens and prompt tokens. A block counts as hit while every block before it was hit; what was not used for longer than the TTL
ends the prefix. `tail-first` makes the head of a prompt the most recently used, so that tails are evicted first, as the cache does;
`head-first` touches in reading order.
"""
import argparse
import collections
import json

BLOCK = 512

parser = argparse.ArgumentParser()
parser.add_argument("trace")
parser.add_argument("--capacity", type=int, default=0)
parser.add_argument("--ttl", type=float, default=None)
parser.add_argument("--order", choices=["tail-first", "head-first"], default="tail-first")
options = parser.parse_args()

last_use = collections.OrderedDict()  # block -> ms, least recently used first
hit_tokens = prompt_tokens = 0
with open(options.trace, encoding="utf-8") as lines:
    for line in lines:
        request = json.loads(line)
        now, length, blocks = request["timestamp"], request["input_length"], request["hash_ids"]
        prompt_tokens += length
        for i, block in enumerate(blocks):
            if block not in last_use or (options.ttl is not None and now - last_use[block] > options.ttl * 1000):
                break
            hit_tokens += min(BLOCK, length - i * BLOCK)
        for block in blocks if options.order == "head-first" else reversed(blocks):
            last_use[block] = now
            last_use.move_to_end(block)
        while options.capacity and len(last_use) > options.capacity:
            last_use.popitem(last=False)
print(hit_tokens, prompt_tokens)
