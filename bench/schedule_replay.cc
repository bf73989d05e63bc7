// Does a recorded schedule again and compares every plan, token and log-probability.
//
//   deepmint serve MODEL --record-schedule schedule.jsonl        # or run, batch of requests, …
//   schedule_replay MODEL schedule.jsonl [threads = all cores]
//
// Prints what was done again, or the first line that came out differently (exit 1).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "engine/schedule_replay.h"

int main(int argc, char** argv) {
  using namespace deepmint;
  if (argc < 3) {
    fmt::print(stderr, "usage: schedule_replay MODEL SCHEDULE [threads]\n");
    return 2;
  }
  const auto lines = read_schedule(argv[2]);
  if (!lines) return fmt::print(stderr, "schedule_replay: {}\n", lines.error().str()), 2;
  const auto loaded =
      load_model(argv[1], {.threads = argc > 3 ? std::max(0, std::atoi(argv[3])) : 0});
  if (!loaded) return fmt::print(stderr, "schedule_replay: {}\n", loaded.error().str()), 2;
  const auto begin = std::chrono::steady_clock::now();
  const auto done = replay_schedule(*lines, *loaded);
  if (!done) return fmt::print(stderr, "schedule_replay: {}\n", done.error().str()), 1;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  fmt::print("{} requests, {} steps, {} tokens: the same plans and the same bits, {:.1f} s\n",
             done->requests, done->steps, done->tokens, took.count());
  return 0;
}
