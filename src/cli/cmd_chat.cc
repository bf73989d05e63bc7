// deepmint chat: a conversation in the terminal. Replies go to standard output, everything else to
// standard error.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "cli/app.h"
#include "cli/approximation.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/line_reader.h"
#include "cli/open_model.h"
#include "cli/prompt.h"
#include "cli/reply.h"
#include "cli/reply_json.h"
#include "cli/terminal.h"

namespace deepmint::cli {
namespace {

struct Totals {
  int64_t replies = 0, output_tokens = 0;
  int32_t context_used = 0;
  double decode_s = 0;
};

// One conversation with one open model.
class Session {
 public:
  Session(const OpenModel& open, const Config& config, recipe::ChatTemplate chat,
          std::vector<std::string> stop, std::optional<std::string> system,
          const Approximation& approximation)
      : open_(open),
        config_(config),
        chat_(std::move(chat)),
        stop_(std::move(stop)),
        approximation_(approximation),
        conversation_(std::move(system)) {}

  Status run() {
    const bool typed = ::isatty(STDIN_FILENO) == 1;
    if (typed)
      write_stderr(fmt::format("{} · /help lists the commands\n", open_.engine->info().model_name));
    bool interrupted = false;  // by the last thing that happened
    for (;;) {
      if (typed) write_stderr(text_.empty() ? "> " : "… ");
      const LineReader::Input input = reader_.next();
      if (input.kind == LineReader::Kind::kEnd) {
        if (typed) write_stderr("\n");
        return text_.empty() ? Status{} : take_text();
      }
      if (input.kind == LineReader::Kind::kInterrupt) {
        text_.clear();
        if (interrupted || !typed) return write_stderr("\n"), Status{};
        interrupted = true;
        write_stderr("\n(Ctrl-C again or Ctrl-D leaves)\n");
        continue;
      }
      interrupted = false;
      if (input.text.ends_with('\\')) {
        text_ += input.text.substr(0, input.text.size() - 1) + '\n';
        continue;
      }
      text_ += input.text;
      if (is_slash_command(text_)) {
        if (!command(std::exchange(text_, {}))) return {};
        continue;
      }
      DEEPMINT_CHECK_OK(take_text());
    }
  }

 private:
  // Answers what was typed. Only trouble with standard output ends the conversation.
  Status take_text() {
    std::string text = std::exchange(text_, {});
    if (text.starts_with("//")) text.erase(0, 1);
    if (text.find_first_not_of(" \t\n") == std::string::npos) return {};
    conversation_.say(std::move(text));
    if (auto ok = reply(); !ok) {
      conversation_.take_back();
      if (stdout_failed_) return ok;
      Error error = in_option(std::move(ok).error(), "the conversation");
      if (error.code == ErrorCode::kTooLarge) error.message += "; /reset starts over";
      report(error);
    }
    return {};
  }

  Status reply() {
    const Tokenizer& tokenizer = *open_.loaded.tokenizer;
    DEEPMINT_TRY(segments, recipe::render_chat(chat_, conversation_.messages()));
    GenerationRequest request;
    request.tokens = tokenizer.encode(segments);
    request.sampling = open_.sampling(config_.sampling);
    request.max_tokens = config_.sampling.max_tokens;
    request.stop_ids = open_.loaded.end_ids;
    approximation_.apply(request);

    Progress progress("reading the conversation");
    ReplyOptions options;
    options.stop = stop_;
    options.signals = &signals_;
    options.on_prefill = [&](int32_t done, int32_t total) {
      progress.update(total > 0 ? double(done) / total : 1);
      if (done == total) progress.clear();
    };
    options.on_text = [&](std::string_view text) {
      progress.clear();
      auto ok = write_stdout(text);
      stdout_failed_ = !ok;
      return ok;
    };
    DEEPMINT_TRY(reply, generate(*open_.engine, &tokenizer, std::move(request), options));
    progress.clear();
    auto ok = write_stdout("\n");
    stdout_failed_ = !ok;
    DEEPMINT_CHECK_OK(ok);
    if (reply.signal != 0) remark("(stopped)");
    if (reply.finish_reason == "length") remark("(cut at the token limit)");
    ++totals_.replies;
    totals_.output_tokens += reply.finish.usage.output_tokens;
    totals_.context_used = reply.finish.usage.prompt_tokens + reply.finish.usage.output_tokens;
    totals_.decode_s += reply.decode_s;
    last_ = reply_statistics(reply, open_);
    conversation_.answer(std::move(reply.text));
    return {};
  }

  bool command(const std::string& line) {  // false: leave
    const auto parsed = parse_slash_command(line);
    if (!parsed) {
      report(parsed.error());
      return true;
    }
    switch (parsed->kind) {
      case SlashCommand::Kind::kHelp:
        write_stderr(slash_help());
        break;
      case SlashCommand::Kind::kReset:
        conversation_.reset();
        write_stderr("(the conversation is empty)\n");
        break;
      case SlashCommand::Kind::kSystem:
        conversation_.reset();
        conversation_.set_system(parsed->argument);
        write_stderr(parsed->argument.empty()
                         ? "(the model's own system message; the conversation is empty)\n"
                         : "(new system message; the conversation is empty)\n");
        break;
      case SlashCommand::Kind::kStats:
        write_stderr(statistics());
        break;
      case SlashCommand::Kind::kSave:
        if (auto ok = save(parsed->argument); !ok) report(ok.error());
        break;
      case SlashCommand::Kind::kExit:
        return false;
    }
    return true;
  }

  std::string statistics() const {
    const EngineInfo& info = open_.engine->info();
    std::string out = fmt::format("{} replies, {} tokens", totals_.replies, totals_.output_tokens);
    if (totals_.decode_s > 0)
      out += fmt::format(", {:.1f} tok/s",
                         double(totals_.output_tokens - totals_.replies) / totals_.decode_s);
    out += fmt::format(", context {} of {} tokens, {} threads, {}\n", totals_.context_used,
                       info.context_tokens, info.threads, info.isa);
    if (!last_.empty()) out += "last reply: " + last_ + "\n";
    return out;
  }

  Status save(const std::string& path) const {
    if (path.empty()) return fail(ErrorCode::kInvalidArgument, "expected a file name", "/save");
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("cannot write a new file: {}", std::strerror(errno)), path);
    const std::string text = conversation_.json() + "\n";
    const bool whole = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    if (::close(fd) != 0 || !whole)
      return fail(ErrorCode::kUnavailable, fmt::format("cannot write: {}", std::strerror(errno)),
                  path);
    write_stderr(fmt::format("(saved {})\n", path));
    return {};
  }

  const OpenModel& open_;
  const Config& config_;
  const recipe::ChatTemplate chat_;
  const std::vector<std::string> stop_;
  const Approximation& approximation_;
  Conversation conversation_;
  SignalPipe signals_{SIGINT};
  LineReader reader_{signals_};
  std::string text_;  // of a message that goes on over several lines
  Totals totals_;
  std::string last_;
  bool stdout_failed_ = false;
};

class Chat : public Command {
 public:
  std::string_view name() const override { return "chat"; }
  std::string_view summary() const override { return "talk in the terminal"; }
  std::string_view description() const override {
    return "One line is one message; /help inside lists the commands. Ctrl-C stops a reply; at the "
           "prompt it leaves when pressed twice.";
  }
  std::span<const std::string_view> sections() const override {
    static constexpr std::string_view kSections[] = {"sampling", "engine", "cpu", "log"};
    return kSections;
  }
  void options(Options& o) override {
    o.positional("MODEL", model_, "a .gguf file or a folder in Hugging Face layout");
    o.group("Conversation");
    o.text("--system", system_, "TEXT", "system message; without it, the model's own");
    o.text("--chat-template", chat_template_, "FILE",
           "a Jinja template for the prompt instead of the model's own");
    o.texts("--stop", stop_, "TEXT",
            "end a reply where this text comes up; the text itself is left out");
    approximation_.options(o, Approximation::Prompts::kShareBeginnings);
  }
  Status run(const Config& config, const Settings&) override {
    DEEPMINT_CHECK_OK(approximation_.read());
    DEEPMINT_TRY(open, open_model(model_, config, /*requests=*/1));
    DEEPMINT_CHECK_OK(approximation_.check(*open.loaded.model));
    DEEPMINT_TRY(chat, open.chat_template(chat_template_));
    Session session(open, config, std::move(chat), stop_, system_, approximation_);
    return session.run();
  }

 private:
  std::string model_;
  std::optional<std::string> system_, chat_template_;
  std::vector<std::string> stop_;
  Approximation approximation_;
};

}  // namespace

std::unique_ptr<Command> make_chat() { return std::make_unique<Chat>(); }

}  // namespace deepmint::cli
