// deepmint batch: a file of requests in, a file of results out.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <unordered_map>
#include <utility>

#include "cli/batch_output.h"
#include "cli/batch_request.h"
#include "cli/batch_run.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/reply_format.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/mapped_file.h"
#include "core/names.h"
#include "core/utf8.h"
#include "server/api/chat_request.h"
#include "server/local_api.h"

namespace deepmint::cli {
namespace {

constexpr int kRedrawMs = 200;

class Batch : public Command {
 public:
  std::string_view name() const override { return "batch"; }
  std::string_view summary() const override { return "answer a file of requests"; }
  std::string_view description() const override {
    return "INPUT has one request a line, in the format of OpenAI's Batch API or as the bare body "
           "of "
           "a chat request. OUTPUT gets one result a line, in the order in which they are ready; "
           "custom_id says whose it is. The same command goes on where an earlier one has stopped: "
           "what OUTPUT has an answer for is not asked again. Ctrl-C or SIGTERM lets what runs "
           "finish; a second one ends at once.";
  }
  std::span<const std::string_view> sections() const override {
    static constexpr std::string_view kSections[] = {"sampling", "engine", "cpu", "log"};
    return kSections;
  }
  void options(Options& o) override {
    o.positional("MODEL", model_, "a .gguf file or a folder in Hugging Face layout");
    o.positional("INPUT", input_, "a .jsonl file of requests; - is standard input");
    o.group("Results");
    o.text("-o,--output", output_, "FILE", "the .jsonl file of results; - is standard output");
    o.flag("--overwrite", overwrite_, "begin anew, whatever results OUTPUT has");
    o.flag("--json", json_, "one JSON object at the end: requests, failures, tokens, seconds");
    o.group("Requests that do not say");
    format_.options(o);
    o.text("--name", name_, "TEXT", "what requests call the model; without it, the file's name");
    o.text("--chat-template", chat_template_, "FILE",
           "a Jinja template for the prompts instead of the model's own");
  }
  Status run(const Config& config, const Settings& settings) override;

 private:
  Status check() const;
  Result<Hash128> options_digest(const Settings& settings) const;
  Status read_input(LineFile& input, const Hash128& options);
  Status run_rest(const Config& config, BatchRun& batch, BatchOutput& output);
  Status report(const BatchRun& batch, const BatchOutput& output, double seconds) const;

  std::string model_, input_, output_ = "-";
  std::optional<std::string> name_, chat_template_;
  ReplyFormat format_;
  bool overwrite_ = false, json_ = false;

  std::optional<ReplyFormat::Given> held_to_;
  BatchLedger ledger_;
  BatchOutput::Earlier earlier_;
  size_t max_line_bytes_ = 0;
};

Status Batch::check() const {
  DEEPMINT_CHECK_OK(format_.check("deepmint batch"));
  if (json_ && output_ == "-")
    return fail(ErrorCode::kInvalidArgument,
                "expected -o FILE beside --json: standard output has the results",
                "deepmint batch");
  if (input_.empty() || output_.empty())
    return fail(ErrorCode::kInvalidArgument, "expected a file or -, found an empty text",
                input_.empty() ? "INPUT" : "--output");
  if (name_ && name_->empty())
    return fail(ErrorCode::kInvalidArgument, "expected a name, found an empty text", "--name");
  return {};
}

// What an answer depends on beside its line and the model. Settings that nobody has set are left
// out: a later version may have more of them, and still go on.
Result<Hash128> Batch::options_digest(const Settings& settings) const {
  json::Writer w;
  w.begin_array();
  for (const Setting& s : settings.all())
    if (s.section() == "sampling" && s.origin.kind != Origin::Kind::kDefault)
      w.value(s.key + "=" + s.text());
  if (held_to_)
    w.value(static_cast<int>(held_to_->spec.kind)).value(utf8::sanitize(held_to_->spec.text));
  if (chat_template_) {
    DEEPMINT_TRY(file, MappedFile::open(*chat_template_));
    const Hash128 digest = xxh3_128(file.bytes());
    w.value(digest_hex(digest));
  }
  w.end_array();
  return xxh3_128(as_byte_span(w.str()));
}

// Which requests there are. A custom_id that is there twice is an error, before anything is run.
Status Batch::read_input(LineFile& input, const Hash128& options) {
  for (;;) {
    DEEPMINT_TRY(line, input.next());
    if (!line) break;
    const BatchRequest request = read_batch_request(*line, max_line_bytes_);
    ledger_.add(request.custom_id, request_digest(*line, request.custom_id, options));
  }
  ledger_.seal();
  if (!ledger_.has_duplicates()) return {};
  struct Seen {
    size_t line;
    bool is_numbered;
  };
  std::unordered_map<std::string, Seen> seen;
  input.rewind();
  for (;;) {
    DEEPMINT_TRY(line, input.next());
    if (!line) break;
    const BatchRequest request = read_batch_request(*line, max_line_bytes_);
    if (!ledger_.is_duplicate(request.custom_id)) continue;
    const auto [first, is_new] =
        seen.emplace(request.custom_id, Seen{line->number, request.is_numbered});
    if (is_new) continue;
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected each custom_id once, found {} in lines {} and {}{}",
                            quote_name(request.custom_id, 64), first->second.line, line->number,
                            first->second.is_numbered || request.is_numbered
                                ? " (one of them has none: its number is its name)"
                                : ""),
                input.name());
  }
  return fail(ErrorCode::kUnavailable, "expected the file to stay as it was", input.name());
}

Status Batch::run_rest(const Config& config, BatchRun& batch, BatchOutput& output) {
  // The queue of a file is the file: nothing is refused because it has many choices.
  Config roomy = config;
  roomy.engine.max_waiting =
      std::max(config.engine.max_waiting, 2 * kMaxChoices * config.engine.max_running);
  DEEPMINT_TRY(open, open_model(model_, roomy, config.engine.max_running));
  DEEPMINT_TRY(chat, open.chat_template(chat_template_));
  ServedModel served = serve_model(open, config.sampling, name_, std::move(chat));
  served.request_class = RequestClass::kBatch;
  if (held_to_) {
    DEEPMINT_TRY(compiled, compile_format(*held_to_, open));
    served.grammars = std::move(compiled.grammars);
    served.default_format = held_to_->spec;
  }
  DEEPMINT_TRY(api, LocalApi::create(config.server, std::move(served)));
  DEEPMINT_CHECK_OK(output.prepare());
  if (earlier_.torn)
    write_stderr(fmt::format("deepmint: {}: the last line was torn; its request is run again\n",
                             printable(output.name())));

  // As many wait as run, so that each step finds its rows.
  const int32_t running = open.engine->info().max_running;
  const int32_t room = running + std::min(running, config.engine.max_waiting);
  const auto start = std::chrono::steady_clock::now();
  Progress progress("answering");
  // A bar between results would be neither.
  const bool draws = stderr_is_terminal() && !(output_ == "-" && stdout_is_terminal());
  bool is_ending = false;
  const auto draw = [&](const BatchTotals& totals) {
    if (batch.signal() != 0 && !std::exchange(is_ending, true)) {
      progress.clear();
      remark("finishing what runs; a second signal ends at once");
    }
    if (!draws) return;
    const size_t done = earlier_.done + totals.succeeded + totals.failed;
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const auto tokens = static_cast<double>(open.engine->stats().output_tokens);
    progress.update(double(done) / double(ledger_.size()),
                    fmt::format("{} of {}, {:.0f} tok/s", done, ledger_.size(),
                                seconds > 0 ? tokens / seconds : 0.0));
  };
  SignalPipe signals({SIGINT, SIGTERM}, SignalPipe::Second::kEndsAtOnce);
  Status done = batch.run(*api, room, &signals, draw, draws ? kRedrawMs : -1);
  progress.clear();
  return done;
}

Status Batch::report(const BatchRun& batch, const BatchOutput& output, double seconds) const {
  const BatchTotals& totals = batch.totals();
  const size_t requests = ledger_.size(), succeeded = earlier_.done + totals.succeeded;
  if (batch.signal() != 0) {
    write_stderr(fmt::format("deepmint: {}: stopped with {} of {} requests done{}\n",
                             printable(output.name()), succeeded + totals.failed, requests,
                             output.is_resumable() ? "; the same command does the rest" : ""));
    die_of(batch.signal());
  }
  if (json_) {
    json::Writer w;
    w.begin_object();
    w.key("requests").value(uint64_t{requests});
    w.key("succeeded").value(uint64_t{succeeded});
    w.key("failed").value(uint64_t{totals.failed});
    w.key("earlier").value(uint64_t{earlier_.done});
    w.key("usage").begin_object();
    w.key("prompt_tokens").value(totals.prompt_tokens);
    w.key("cached_tokens").value(totals.cached_tokens);
    w.key("completion_tokens").value(totals.completion_tokens);
    w.end_object();
    w.key("seconds").value(std::round(seconds * 1e6) / 1e6);
    w.end_object();
    DEEPMINT_CHECK_OK(write_stdout(w.take() + "\n"));
  } else {
    std::string line = fmt::format("[{} requests", requests);
    if (earlier_.done > 0) line += fmt::format(" · {} answered before", earlier_.done);
    line += fmt::format(" · {} + {} tokens · {} cached", totals.prompt_tokens,
                        totals.completion_tokens, totals.cached_tokens);
    if (seconds > 0)
      line += fmt::format(" · {:.1f} tok/s", double(totals.completion_tokens) / seconds);
    remark(line + fmt::format(" · {:.2f} s]", seconds));
  }
  if (totals.failed == 0) return {};
  return fail(
      ErrorCode::kUnavailable,
      fmt::format("{} of {} requests failed; their results say why", totals.failed, requests),
      output.name());
}

Status Batch::run(const Config& config, const Settings& settings) {
  DEEPMINT_CHECK_OK(check());
  // What is wrong with the files is known before a large model has loaded.
  max_line_bytes_ = static_cast<size_t>(config.server.max_body_bytes);
  DEEPMINT_TRY(held_to, format_.read());
  held_to_ = std::move(held_to);
  DEEPMINT_TRY(options, options_digest(settings));
  DEEPMINT_TRY(input, LineFile::open(input_, max_line_bytes_));
  DEEPMINT_CHECK_OK(read_input(input, options));
  DEEPMINT_TRY(output, BatchOutput::open(output_, overwrite_));
  if (output.is_same_file(input.fd()))
    return fail(ErrorCode::kInvalidArgument, "expected another file than INPUT", output.name());
  DEEPMINT_TRY(earlier, output.read(ledger_));
  earlier_ = earlier;

  BatchRun batch(input, ledger_, output, options, max_line_bytes_);
  double seconds = 0;
  if (earlier_.done < ledger_.size()) {
    const auto start = std::chrono::steady_clock::now();
    if (Status done = run_rest(config, batch, output); !done) {
      if (done.error().code != ErrorCode::kCancelled) return done;
      const BatchTotals& totals = batch.totals();
      return fail(ErrorCode::kUnavailable,
                  fmt::format("closed with {} of {} results written",
                              totals.succeeded + totals.failed, ledger_.size()),
                  output.name());
    }
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  } else {
    DEEPMINT_CHECK_OK(output.prepare());
  }
  DEEPMINT_CHECK_OK(output.finish());
  return report(batch, output, seconds);
}

}  // namespace

std::unique_ptr<Command> make_batch() { return std::make_unique<Batch>(); }

}  // namespace deepmint::cli
