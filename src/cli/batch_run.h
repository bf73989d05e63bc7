// Runs the requests of a batch that are not done yet: keeps the engine full, and writes each result
// when it is there.
//
//   BatchRun run(input, ledger, output, options_digest, max_line_bytes);
//   DEEPMINT_CHECK_OK(run.run(*api, /*room=*/128, &signals, draw));
//   run.totals().succeeded
//
// Of the input, the lines that run are in memory and no others. After a signal nothing new begins;
// what runs is finished, unless a second signal ends the process.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "cli/batch_ledger.h"
#include "cli/batch_output.h"
#include "cli/batch_request.h"
#include "cli/line_file.h"
#include "cli/signals.h"
#include "deepmint/result.h"
#include "server/local_api.h"

namespace deepmint::cli {

struct BatchTotals {
  size_t succeeded = 0, failed = 0;  // results that this run has written
  int64_t prompt_tokens = 0, cached_tokens = 0,
          completion_tokens = 0;  // of those, as their usage says
};

class BatchRun {
 public:
  BatchRun(LineFile& input, BatchLedger& ledger, BatchOutput& output, const Hash128& options,
           size_t max_line_bytes)
      : input_(input), ledger_(ledger), output_(output), options_(options), max_(max_line_bytes) {}

  // room: how many requests the engine has at one time at most, running and waiting. `on_progress`
  // is called often; on a terminal at least `redraw_ms` milliseconds apart even if nothing happens.
  // signals may be null. Errors: of the input (it changed while it was read), of the output.
  Status run(LocalApi& api, int32_t room, SignalPipe* signals,
             const std::function<void(const BatchTotals&)>& on_progress, int redraw_ms = -1);

  const BatchTotals& totals() const { return totals_; }
  int signal() const { return signal_; }  // what stopped it, or 0

 private:
  // How a turn of feed() ended: when it is worth another one.
  enum class Fed { kFull, kAtOnce, kWhenIdle, kDone };
  Result<Fed> feed();  // requests to the engine, as long as there is room
  Status begin(const FileLine& line);
  struct Posted {
    FileLine line;  // without its text
    std::string custom_id;
    Hash128 request;
    uint64_t number;  // of posts
    bool is_alone;    // the engine had nothing else to do
  };
  void finish(const Posted& posted, const LocalApi::Answer& answer);
  Status write(BatchLedger::Entry& entry, const BatchResult& result);
  void count_usage(std::string_view body);

  LineFile& input_;
  BatchLedger& ledger_;
  BatchOutput& output_;
  const Hash128 options_;
  const size_t max_;

  LocalApi* api_ = nullptr;
  int64_t room_ = 1, most_room_ = 1;
  uint64_t posts_ = 0;
  std::deque<FileLine> again_;  // the engine was full; without their text
  bool exhausted_ = false;      // no line of the input is left
  int signal_ = 0;
  Status trouble_;
  BatchTotals totals_;
};

}  // namespace deepmint::cli
