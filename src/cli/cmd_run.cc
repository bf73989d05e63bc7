// deepmint run: one prompt, one answer.
#include <fmt/format.h>

#include <csignal>

#include "cli/approximation.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/prompt.h"
#include "cli/reply.h"
#include "cli/reply_format.h"
#include "cli/reply_json.h"
#include "cli/terminal.h"

namespace deepmint::cli {
namespace {

class Run : public Command {
 public:
  std::string_view name() const override { return "run"; }
  std::string_view summary() const override { return "answer one prompt"; }
  std::string_view description() const override {
    return "The prompt goes through the model's chat template unless --raw or --ids is given. The "
           "reply streams to standard output; "
           "progress and a line of statistics go to standard error when it is a terminal.";
  }
  std::span<const std::string_view> sections() const override {
    static constexpr std::string_view kSections[] = {"sampling", "engine", "cpu", "log"};
    return kSections;
  }
  void options(Options& o) override {
    o.positional("MODEL", model_, "a .gguf file or a folder in Hugging Face layout");
    o.group("Prompt");
    o.text("-p,--prompt", prompt_, "TEXT", "what to answer; - reads standard input");
    o.text("--system", system_, "TEXT", "system message in front of the prompt");
    o.text("--chat-template", chat_template_, "FILE",
           "a Jinja template for the prompt instead of the model's own");
    o.flag("--raw", raw_, "continue the text as it is, without a chat template");
    o.text("--ids", ids_, "N,N,…", "token ids instead of text; - reads them from standard input");
    o.group("Reply");
    o.texts("--stop", stop_, "TEXT",
            "end the reply where this text comes up; the text itself is left out");
    format_.options(o);
    o.flag("--json", json_,
           "one JSON object at the end: text, ids, usage, seed, timings, instruction set");
    o.text("--logprobs", logprobs_, "N",
           "with --json: log-probability of each token, and of the N likeliest (0 to 20)");
    approximation_.options(o, Approximation::Prompts::kOne);
  }
  Status run(const Config& config, const Settings&) override;

 private:
  Status check() const;
  Result<std::vector<TokenId>> prompt_tokens(const OpenModel& open) const;

  std::string model_;
  std::optional<std::string> prompt_, system_, ids_, logprobs_, chat_template_;
  ReplyFormat format_;
  Approximation approximation_;
  std::vector<std::string> stop_;
  bool raw_ = false, json_ = false;
};

Status Run::check() const {
  const auto conflict = [](std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message), "deepmint run");
  };
  if (!prompt_ && !ids_) return conflict("expected -p TEXT, -p - (standard input) or --ids N,N,…");
  if (prompt_ && ids_) return conflict("expected --prompt or --ids, found both");
  if (system_ && (raw_ || ids_))
    return conflict("--system needs the chat template, which --raw and --ids leave out");
  if (chat_template_ && (raw_ || ids_))
    return conflict("--chat-template makes the prompt, which --raw and --ids give as it is");
  DEEPMINT_CHECK_OK(format_.check("deepmint run"));
  if (logprobs_ && !json_) return conflict("--logprobs needs --json");
  return {};
}

Result<std::vector<TokenId>> Run::prompt_tokens(const OpenModel& open) const {
  if (ids_) return parse_ids(*ids_, "--ids");
  DEEPMINT_TRY(tokenizer, open.need_tokenizer("a text prompt"));
  DEEPMINT_TRY(text, text_or_stdin(*prompt_));
  if (raw_) {
    std::vector<TokenId> ids = plain_ids(*tokenizer, text, /*allow_control=*/false);
    if (ids.empty())
      return fail(ErrorCode::kInvalidArgument, "expected some text, found none", "--prompt");
    return ids;
  }
  auto chat = open.chat_template(chat_template_);
  if (!chat) {
    chat.error().message += "; --raw continues the text without a template";
    return tl::unexpected(std::move(chat).error());
  }
  std::vector<recipe::ChatMessage> messages;
  if (system_) messages.push_back({"system", *system_});
  messages.push_back({"user", std::move(text)});
  DEEPMINT_TRY(segments, recipe::render_chat(*chat, messages));
  return tokenizer->encode(segments);
}

Status Run::run(const Config& config, const Settings&) {
  DEEPMINT_CHECK_OK(check());
  int32_t top_logprobs = -1;
  if (logprobs_) {
    auto ok = assign(top_logprobs, ConfigValue::from_text(*logprobs_),
                     Shape{.limits = {.min = 0, .max = 20}});
    if (!ok) return tl::unexpected(std::move(ok).error().at("--logprobs"));
  }
  DEEPMINT_CHECK_OK(approximation_.read());
  DEEPMINT_TRY(format, format_.read());
  DEEPMINT_TRY(open, open_model(model_, config, /*requests=*/1));
  DEEPMINT_CHECK_OK(approximation_.check(*open.loaded.model));
  DEEPMINT_TRY(tokens, prompt_tokens(open));

  GenerationRequest request;
  if (format) {  // compiled before the model is asked anything
    DEEPMINT_TRY(compiled, compile_format(*format, open));
    request.mask = std::move(compiled.mask);
  }
  request.tokens = std::move(tokens);
  request.sampling = open.sampling(config.sampling);
  request.sampling.top_logprobs = top_logprobs;
  request.max_tokens = config.sampling.max_tokens;
  request.stop_ids = open.loaded.end_ids;
  approximation_.apply(request);

  const Tokenizer* tokenizer = open.loaded.tokenizer.get();
  SignalPipe signals({SIGINT, SIGTERM});
  Progress progress("reading the prompt");
  ReplyOptions options;
  options.stop = stop_;
  options.signals = &signals;
  options.on_prefill = [&](int32_t done, int32_t total) {
    progress.update(total > 0 ? double(done) / total : 1);
    if (done == total) progress.clear();
  };
  bool first = true;
  if (!json_ && tokenizer != nullptr) {
    options.on_text = [&](std::string_view text) { return progress.clear(), write_stdout(text); };
  } else if (!json_) {
    options.on_id = [&](TokenId id) {
      progress.clear();
      return write_stdout(fmt::format("{}{}", std::exchange(first, false) ? "" : " ", id));
    };
  }
  auto generated = generate(*open.engine, tokenizer, std::move(request), options);
  progress.clear();
  if (!generated)
    return tl::unexpected(in_option(std::move(generated).error(), ids_ ? "--ids" : "--prompt"));
  const Reply& reply = *generated;
  if (json_) {
    DEEPMINT_CHECK_OK(write_stdout(reply_json(reply, open) + "\n"));
  } else {
    DEEPMINT_CHECK_OK(write_stdout("\n"));
    remark(reply_statistics(reply, open));
  }
  if (reply.signal != 0) die_of(reply.signal);
  return {};
}

}  // namespace

std::unique_ptr<Command> make_run() { return std::make_unique<Run>(); }

}  // namespace deepmint::cli
