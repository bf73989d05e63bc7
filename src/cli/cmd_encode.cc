// deepmint encode: an API request to its prompt, token ids and options.
#include "cli/codec_options.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/terminal.h"

namespace deepmint::cli {
namespace {

class Encode : public Command {
 public:
  std::string_view name() const override { return "encode"; }
  std::string_view summary() const override { return "an API request to its prompt and token ids"; }
  std::string_view description() const override {
    return "Reads a request of the Chat Completions, Messages or Responses API as JSON from "
           "standard input and prints what it becomes for DeepSeek V4 or V4.1 as JSON: prompt, "
           "token_ids, images, options, parsing, warnings.";
  }
  void options(Options& o) override {
    codec_.add(o);
    o.group("Output");
    o.flag("--explain", explain_,
           "the prompt for a reader: control tokens in colour, and which message text came from");
    o.text("--color", colour_, "WHEN", "colours of --explain: auto (on a terminal), always, never");
  }
  Status run(const Config&, const Settings&) override {
    if (colour_ != "auto" && colour_ != "always" && colour_ != "never")
      return fail(ErrorCode::kInvalidArgument,
                  "expected auto, always or never, found \"" + colour_ + "\"", "--color");
    if (explain_ && codec_.jsonl)
      return fail(ErrorCode::kInvalidArgument, "expected --explain or --jsonl, found both",
                  "deepmint encode");
    DEEPMINT_TRY(settings, codec_.settings("encode"));
    if (codec_.jsonl) return run_codec_lines(settings);
    DEEPMINT_TRY(protocol, codec_.need_protocol());
    DEEPMINT_TRY(request, read_stdin(kMaxCodecBytes));
    const bool colour = colour_ == "always" || (colour_ == "auto" && stdout_is_terminal());
    auto out = explain_ ? recipe::explain_request(protocol, request, settings, colour)
                        : recipe::encode_request(protocol, request, settings);
    if (!out) return tl::unexpected(std::move(out).error().at("request"));
    return write_stdout(explain_ ? *out : *out + "\n");
  }

 private:
  CodecOptions codec_;
  std::string colour_ = "auto";
  bool explain_ = false;
};

}  // namespace

std::unique_ptr<Command> make_encode() { return std::make_unique<Encode>(); }

}  // namespace deepmint::cli
