// deepmint tokenize, deepmint detokenize: text to token ids and back, without loading weights.
#include <fmt/format.h>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "core/json.h"
#include "core/utf8.h"

namespace deepmint::cli {
namespace {

std::string as_json(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                    std::string_view text) {
  json::Writer w;
  w.begin_object();
  w.key("text").value(utf8::sanitize(text));
  w.key("ids").begin_array();
  for (const TokenId id : ids) w.value(id);
  w.end_array();
  w.key("tokens").begin_array();
  for (const TokenId id : ids) w.value(utf8::sanitize(tokenizer.token_bytes(id)));
  w.end_array();
  w.end_object();
  return w.take();
}

class Tokenize : public Command {
 public:
  std::string_view name() const override { return "tokenize"; }
  std::string_view summary() const override { return "text to token ids"; }
  void options(Options& o) override {
    o.positional("MODEL", model_, "a .gguf file or a folder with tokenizer.json");
    o.group("Text");
    o.text("-p,--prompt", text_, "TEXT", "the text; - reads standard input");
    o.flag("--control", control_,
           "control strings in the text, such as <|im_end|>, are control tokens");
    o.group("Output");
    o.flag("--json", json_, "one JSON object: text, ids, tokens");
  }
  Status run(const Config&, const Settings&) override {
    if (!text_)
      return fail(ErrorCode::kInvalidArgument, "expected -p TEXT or -p - (standard input)",
                  "deepmint tokenize");
    DEEPMINT_TRY(tokenizer, open_tokenizer(model_));
    DEEPMINT_TRY(text, text_or_stdin(*text_));
    const std::vector<TokenId> ids = plain_ids(*tokenizer, text, control_);
    return write_stdout((json_ ? as_json(*tokenizer, ids, text) : join_ids(ids, ",")) + "\n");
  }

 private:
  std::string model_;
  std::optional<std::string> text_;
  bool control_ = false, json_ = false;
};

class Detokenize : public Command {
 public:
  std::string_view name() const override { return "detokenize"; }
  std::string_view summary() const override { return "token ids to text"; }
  void options(Options& o) override {
    o.positional("MODEL", model_, "a .gguf file or a folder with tokenizer.json");
    o.group("Ids");
    o.text("--ids", ids_, "N,N,…", "token ids; - reads them from standard input");
    o.group("Output");
    o.flag("--json", json_, "one JSON object: text, ids, tokens");
  }
  Status run(const Config&, const Settings&) override {
    if (!ids_)
      return fail(ErrorCode::kInvalidArgument, "expected --ids N,N,…", "deepmint detokenize");
    DEEPMINT_TRY(tokenizer, open_tokenizer(model_));
    DEEPMINT_TRY(ids, parse_ids(*ids_, "--ids"));
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] >= tokenizer->vocab_size())
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("expected ids below {}, found {} at entry {}",
                                tokenizer->vocab_size(), ids[i], i + 1),
                    "--ids");
    const std::string text = tokenizer->decode(ids);
    return write_stdout((json_ ? as_json(*tokenizer, ids, text) : text) + "\n");
  }

 private:
  std::string model_;
  std::optional<std::string> ids_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_tokenize() { return std::make_unique<Tokenize>(); }
std::unique_ptr<Command> make_detokenize() { return std::make_unique<Detokenize>(); }

}  // namespace deepmint::cli
