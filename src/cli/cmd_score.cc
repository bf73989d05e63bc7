// deepmint score: log-probabilities of given text.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "core/json.h"
#include "core/utf8.h"
#include "sampling/sampler.h"

namespace deepmint::cli {
namespace {

// Rows of logits as raw little-endian float32, in order. Written as the rows come, so that a long
// text needs no memory.
class LogitsFile {
 public:
  // Opens without touching what is there: a path that cannot be written is known before the model
  // loads.
  static Result<std::unique_ptr<LogitsFile>> open(const std::string& path) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    std::FILE* file = fd >= 0 ? ::fdopen(fd, "wb") : nullptr;
    if (file == nullptr)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("cannot write: {}", std::strerror(errno)), path);
    return std::unique_ptr<LogitsFile>(new LogitsFile(path, file));
  }
  ~LogitsFile() {
    if (file_ != nullptr) std::fclose(file_);
  }
  LogitsFile(const LogitsFile&) = delete;
  LogitsFile& operator=(const LogitsFile&) = delete;

  // With the first row, so that a text that is refused leaves the file as it was.
  Status begin() {
    // A device or a pipe has no length to cut.
    return ::ftruncate(::fileno(file_), 0) == 0 || errno == EINVAL ? Status{} : trouble();
  }
  Status write(std::span<const float> row) {
    return std::fwrite(row.data(), sizeof(float), row.size(), file_) == row.size() ? Status{}
                                                                                   : trouble();
  }
  Status close() { return std::fclose(std::exchange(file_, nullptr)) == 0 ? Status{} : trouble(); }

 private:
  LogitsFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  Status trouble() const {
    return fail(ErrorCode::kUnavailable, fmt::format("cannot write: {}", std::strerror(errno)),
                path_);
  }

  std::string path_;
  std::FILE* file_;
};

// Turns each row of logits into one number as it comes. The engine's thread does the work: nothing
// else runs in this process.
class ScoreSink : public EventSink {
 public:
  ScoreSink(std::span<const TokenId> ids, LogitsFile* file, Progress* progress)
      : ids_(ids), file_(file), progress_(progress) {}

  void on_prefill(int32_t done, int32_t total) override {
    progress_->update(total > 0 ? double(done) / total : 1);
  }
  void on_prompt_logits(int32_t position, std::span<const float> logits) override {
    if (!outcome_) return;
    if (position != rows_++)
      return stop(fail(ErrorCode::kInternal,
                       fmt::format("expected logits of position {}, found {}", rows_ - 1, position),
                       "engine"));
    if (file_ != nullptr) {
      Status ok = position == 0 ? file_->begin() : Status{};
      if (ok) ok = file_->write(logits);
      if (!ok) return stop(std::move(ok));
    }
    const auto next = static_cast<size_t>(position) + 1;
    if (next < ids_.size()) logprobs_.push_back(log_prob(logits, ids_[next]));
  }
  void on_token(const TokenEvent&) override {}
  void on_finish(const FinishEvent& event) override {
    const std::lock_guard lock(mutex_);
    finish_ = event;
    changed_.notify_all();
  }

  Status wait(Ticket& ticket) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finish_ || stopped_; });
    if (stopped_) ticket.cancel();
    changed_.wait(lock, [&] { return finish_.has_value(); });
    DEEPMINT_CHECK_OK(outcome_);
    if (finish_->reason == FinishReason::kError)
      return tl::unexpected(finish_->error.value_or(
          Error{ErrorCode::kInternal, "the engine gave no reason", "engine"}));
    if (static_cast<size_t>(rows_) != ids_.size())
      return fail(ErrorCode::kInternal,
                  fmt::format("expected logits of {} positions, found {}", ids_.size(), rows_),
                  "engine");
    return {};
  }
  const std::vector<float>& logprobs() const { return logprobs_; }  // of ids[1] … ids[n-1]

 private:
  void stop(Status status) {
    const std::lock_guard lock(mutex_);
    outcome_ = std::move(status);
    stopped_ = true;
    changed_.notify_all();
  }

  const std::span<const TokenId> ids_;
  LogitsFile* const file_;
  Progress* const progress_;
  std::vector<float> logprobs_;
  int32_t rows_ = 0;
  Status outcome_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::optional<FinishEvent> finish_;
};

class Score : public Command {
 public:
  std::string_view name() const override { return "score"; }
  std::string_view summary() const override {
    return "log-probabilities and perplexity of given text";
  }
  std::string_view description() const override {
    return "The first token has no log-probability: nothing comes before it. --logits writes one "
           "row per token, the model's scores for "
           "the token after it: raw little-endian float32 [n, vocabulary].";
  }
  std::span<const std::string_view> sections() const override {
    static constexpr std::string_view kSections[] = {"engine", "cpu", "log"};
    return kSections;
  }
  void options(Options& o) override {
    o.positional("MODEL", model_, "a .gguf file or a folder in Hugging Face layout");
    o.group("Text");
    o.text("--text", text_, "TEXT", "what to score; - reads standard input");
    o.flag("--control", control_,
           "control strings in the text, such as <|im_end|>, are control tokens");
    o.text("--ids", ids_, "N,N,…", "token ids instead of text; - reads them from standard input");
    o.group("Output");
    o.text("--logits", logits_, "FILE", "write the logits of every position to this file");
    o.flag("--json", json_, "one JSON object: ids, tokens, logprobs, perplexity");
  }
  Status run(const Config& config, const Settings&) override;

 private:
  Result<std::vector<TokenId>> tokens(const OpenModel& open) const;
  std::string as_json(const OpenModel& open, std::span<const TokenId> ids,
                      std::span<const float> logprobs) const;
  std::string as_table(const OpenModel& open, std::span<const TokenId> ids,
                       std::span<const float> logprobs) const;

  std::string model_;
  std::optional<std::string> text_, ids_, logits_;
  bool control_ = false, json_ = false;
};

Result<std::vector<TokenId>> Score::tokens(const OpenModel& open) const {
  if (ids_) return parse_ids(*ids_, "--ids");
  DEEPMINT_TRY(tokenizer, open.need_tokenizer("--text"));
  DEEPMINT_TRY(text, text_or_stdin(*text_));
  std::vector<TokenId> ids = plain_ids(*tokenizer, text, control_);
  if (ids.empty())
    return fail(ErrorCode::kInvalidArgument, "expected some text, found none", "--text");
  return ids;
}

struct Totals {
  double sum = 0;  // of the log-probabilities, in order
  size_t count = 0;
  double mean() const { return sum / static_cast<double>(count); }
  double perplexity() const { return std::exp(-mean()); }
};

Totals totals(std::span<const float> logprobs) {
  Totals t;
  for (const float p : logprobs) t.sum += p;
  t.count = logprobs.size();
  return t;
}

std::string Score::as_json(const OpenModel& open, std::span<const TokenId> ids,
                           std::span<const float> logprobs) const {
  const Totals t = totals(logprobs);
  const Tokenizer* tokenizer = open.loaded.tokenizer.get();
  json::Writer w;
  w.begin_object();
  w.key("model").value(utf8::sanitize(open.engine->info().model_name));
  w.key("ids").begin_array();
  for (const TokenId id : ids) w.value(id);
  w.end_array();
  if (tokenizer != nullptr) {
    w.key("tokens").begin_array();
    for (const TokenId id : ids) w.value(utf8::sanitize(tokenizer->token_bytes(id)));
    w.end_array();
  }
  w.key("logprobs").begin_array().null();
  for (const float p : logprobs) w.value(p);
  w.end_array();
  w.key("sum_logprob").value(t.sum);
  if (t.count > 0) {
    w.key("mean_logprob").value(t.mean());
    w.key("perplexity").value(t.perplexity());
  }
  w.key("vocab_size").value(open.engine->info().vocab_size);
  w.key("isa").value(open.engine->info().isa);
  w.end_object();
  return w.take();
}

std::string Score::as_table(const OpenModel& open, std::span<const TokenId> ids,
                            std::span<const float> logprobs) const {
  const Tokenizer* tokenizer = open.loaded.tokenizer.get();
  std::string out;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string value = i == 0 ? "-" : fmt::format("{:.5f}", logprobs[i - 1]);
    out += fmt::format("{:>8} {:>11}", ids[i], value);
    if (tokenizer != nullptr) {
      out += "  ";
      json::append_escaped(out, utf8::sanitize(tokenizer->token_bytes(ids[i])));
    }
    out += '\n';
  }
  const Totals t = totals(logprobs);
  if (t.count > 0)
    out += fmt::format("{} tokens scored, mean log-probability {:.5f}, perplexity {:.4f}\n",
                       t.count, t.mean(), t.perplexity());
  return out;
}

Status Score::run(const Config& config, const Settings&) {
  if (text_.has_value() == ids_.has_value())
    return fail(ErrorCode::kInvalidArgument, "expected either --text or --ids", "deepmint score");
  if (control_ && ids_)
    return fail(ErrorCode::kInvalidArgument, "--control goes with --text", "deepmint score");
  std::unique_ptr<LogitsFile> file;
  if (logits_) {
    DEEPMINT_TRY(opened, LogitsFile::open(*logits_));
    file = std::move(opened);
  }
  DEEPMINT_TRY(open, open_model(model_, config, /*requests=*/1));
  DEEPMINT_TRY(ids, tokens(open));
  Progress progress("scoring");
  const auto sink = std::make_shared<ScoreSink>(ids, file.get(), &progress);
  GenerationRequest request;
  request.tokens = ids;
  request.max_tokens = 0;
  request.want_prompt_logits = true;
  const auto ticket = open.engine->submit(std::move(request), sink);
  if (!ticket) return tl::unexpected(in_option(ticket.error(), ids_ ? "--ids" : "--text"));
  const Status scored = sink->wait(**ticket);
  progress.clear();
  DEEPMINT_CHECK_OK(scored);
  if (file) DEEPMINT_CHECK_OK(file->close());
  return write_stdout(json_ ? as_json(open, ids, sink->logprobs()) + "\n"
                            : as_table(open, ids, sink->logprobs()));
}

}  // namespace

std::unique_ptr<Command> make_score() { return std::make_unique<Score>(); }

}  // namespace deepmint::cli
