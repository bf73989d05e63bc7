#include "cli/batch_run.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "core/json.h"

namespace deepmint::cli {
namespace {

constexpr int kLinesPerTurn = 256;
constexpr int kIdleMs = 10;  // between two looks at an engine that still ends cancelled requests
// Of bodies that wait for a worker. One that is longer goes alone.
constexpr int64_t kMaxBodyBytes = int64_t{64} << 20;

// The engine or the API had no room: not the request's fault, and no answer to it.
bool is_full(int status) { return status == 429 || status == 503; }

}  // namespace

Status BatchRun::write(BatchLedger::Entry& entry, const BatchResult& result) {
  DEEPMINT_CHECK_OK(output_.write(result_line(result)));
  entry.done = true;
  ++(result.error == nullptr && result.status == 200 ? totals_.succeeded : totals_.failed);
  return {};
}

void BatchRun::count_usage(std::string_view body) {
  const auto answer = json::parse(body);
  const json::Value* usage = answer ? answer->find("usage") : nullptr;
  if (usage == nullptr) return;
  const auto number = [](const json::Value* object, std::string_view key) -> int64_t {
    const json::Value* value = object != nullptr ? object->find(key) : nullptr;
    return value != nullptr ? value->to_int64().value_or(0) : 0;
  };
  totals_.prompt_tokens += number(usage, "prompt_tokens");
  totals_.completion_tokens += number(usage, "completion_tokens");
  totals_.cached_tokens += number(usage->find("prompt_tokens_details"), "cached_tokens");
}

Status BatchRun::begin(const FileLine& line) {
  BatchRequest request = read_batch_request(line, max_);
  const Hash128 digest = request_digest(line, request.custom_id, options_);
  BatchLedger::Entry* entry = ledger_.find(request.custom_id);
  if (entry == nullptr || !BatchLedger::is_same(*entry, digest))
    return fail(
        ErrorCode::kUnavailable,
        fmt::format("expected the file to stay as it was, found another line {}", line.number),
        input_.name());
  if (entry->done) return {};
  if (request.error)
    return write(*entry,
                 {.request = digest, .custom_id = request.custom_id, .error = &*request.error});
  Posted posted{line, std::move(request.custom_id), digest, ++posts_,
                api_->running() == 0 && api_->engine_is_idle()};
  posted.line.text = {};
  api_->post(request.path, std::move(request.body),
             [this, posted = std::move(posted)](const LocalApi::Answer& answer) {
               finish(posted, answer);
             });
  return {};
}

void BatchRun::finish(const Posted& posted, const LocalApi::Answer& answer) {
  if (!trouble_) return;
  const bool was_alone = posted.is_alone && posted.number == posts_;
  if (is_full(answer.status) && (!was_alone || signal_ != 0)) {
    // It comes again when there are fewer, and alone at the last.
    room_ = std::max<int64_t>(1, api_->running() - 1);
    again_.push_back(posted.line);
    return;
  }
  room_ = std::min(most_room_, room_ + 1);
  if (answer.status == 200) count_usage(answer.body);
  trouble_ = write(*ledger_.find(posted.custom_id), {.request = posted.request,
                                                     .custom_id = posted.custom_id,
                                                     .status = answer.status,
                                                     .body = answer.body});
}

Result<BatchRun::Fed> BatchRun::feed() {
  for (int lines = 0; signal_ == 0 && api_->running() < room_; ++lines) {
    if (api_->running() > 0 && api_->body_bytes() > kMaxBodyBytes) return Fed::kFull;
    if (lines == kLinesPerTurn) return Fed::kAtOnce;
    if (!again_.empty()) {
      // What was refused while others ran, cancelled ones too, is not refused for good.
      if (api_->running() == 0 && !api_->engine_is_idle()) return Fed::kWhenIdle;
      const FileLine place = again_.front();
      again_.pop_front();
      DEEPMINT_TRY(line, input_.again(place));
      DEEPMINT_CHECK_OK(begin(line));
      continue;
    }
    if (exhausted_) break;
    DEEPMINT_TRY(line, input_.next());
    if (line) {
      DEEPMINT_CHECK_OK(begin(*line));
    } else {
      exhausted_ = true;
    }
  }
  return api_->running() > 0 ? Fed::kFull : Fed::kDone;
}

Status BatchRun::run(LocalApi& api, int32_t room, SignalPipe* signals,
                     const std::function<void(const BatchTotals&)>& on_progress, int redraw_ms) {
  api_ = &api;
  room_ = most_room_ = std::max(1, room);
  input_.rewind();
  for (;;) {
    DEEPMINT_TRY(fed, feed());
    if (fed == Fed::kDone) break;
    pollfd fds[2] = {{api.fd(), POLLIN, 0}, {signals != nullptr ? signals->fd() : -1, POLLIN, 0}};
    if (::poll(fds, 2,
               fed == Fed::kAtOnce     ? 0
               : fed == Fed::kWhenIdle ? kIdleMs
                                       : redraw_ms) < 0 &&
        errno != EINTR)
      return fail(ErrorCode::kInternal, "poll failed", "events");
    if (signals != nullptr && signal_ == 0) {
      signal_ = signals->take();
      if (signal_ != 0) signals->restore_defaults();
    }
    api.step();
    DEEPMINT_CHECK_OK(std::move(trouble_));
    on_progress(totals_);
  }
  return {};
}

}  // namespace deepmint::cli
