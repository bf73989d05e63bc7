// deepmint serve: the HTTP server in front of one model.
#include <fmt/format.h>
#include <poll.h>

#include <cerrno>
#include <csignal>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "core/log.h"
#include "server/server.h"

namespace deepmint::cli {
namespace {

class Serve : public Command {
 public:
  std::string_view name() const override { return "serve"; }
  std::string_view summary() const override { return "answer over HTTP"; }
  std::string_view description() const override {
    return "Prints `listening on URL` on standard output when requests are answered. SIGTERM or "
           "Ctrl-C lets running requests finish, "
           "up to the drain timeout, and ends with exit code 0; a second signal ends at once.";
  }
  std::span<const std::string_view> sections() const override {
    static constexpr std::string_view kSections[] = {"server", "engine", "sampling", "cpu", "log"};
    return kSections;
  }
  void options(Options& o) override {
    o.positional("MODEL", model_, "a .gguf file or a folder in Hugging Face layout");
    o.group("Model");
    o.text("--chat-template", chat_template_, "FILE",
           "a Jinja template for the prompt instead of the model's own");
    o.text("--name", name_, "TEXT", "what requests call the model; without it, the file's name");
  }
  Status run(const Config& config, const Settings& settings) override;

 private:
  std::string model_;
  std::optional<std::string> name_, chat_template_;
};

Status Serve::run(const Config& config, const Settings& settings) {
  if (name_ && name_->empty())
    return fail(ErrorCode::kInvalidArgument, "expected a name, found an empty text", "--name");
  // What is wrong with a setting or the port is known before a large model has loaded.
  DEEPMINT_TRY(bound, HttpServer::bind(config.server));
  DEEPMINT_TRY(open, open_model(model_, config, config.engine.max_running));
  const std::unique_ptr<HttpServer> server = std::move(bound);  // ends before the engine does
  for (const Setting& s : settings.all())
    log().info("setting {} = {} ({})", s.key, s.text(), s.origin.str());
  const EngineInfo& info = open.engine->info();
  log().info(
      "loaded {} ({}, vocabulary {}, context {}) in {:.2f} s; {} threads, {}, {} MiB for sequence "
      "state",
      info.model_name, info.architecture, info.vocab_size, info.context_tokens, open.load_s,
      info.threads, info.isa, info.kv_bytes >> 20);

  auto chat = open.chat_template(chat_template_);
  if (!chat) log().warn("no chat endpoint: {}", chat.error().str());
  ServedModel served = serve_model(open, config.sampling, name_, std::move(chat));

  SignalPipe signals({SIGINT, SIGTERM});
  DEEPMINT_CHECK_OK(server->serve(std::move(served)));
  DEEPMINT_CHECK_OK(write_stdout(fmt::format("listening on {}\n", server->url())));

  pollfd waiting = {signals.fd(), POLLIN, 0};
  while (::poll(&waiting, 1, -1) < 0 && errno == EINTR) {
  }
  const int signal = signals.take();
  signals.restore_defaults();
  const std::chrono::milliseconds grace(config.server.drain_timeout_ms);
  log().info("{}: finishing what is running, up to {} ms", signal == SIGINT ? "SIGINT" : "SIGTERM",
             grace.count());
  server->stop(grace);
  open.engine->drain(std::chrono::milliseconds(0));
  return {};
}

}  // namespace

std::unique_ptr<Command> make_serve() { return std::make_unique<Serve>(); }

}  // namespace deepmint::cli
