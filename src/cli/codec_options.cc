#include "cli/codec_options.h"

#include "cli/open_model.h"
#include "cli/stdin_lines.h"
#include "cli/terminal.h"

namespace deepmint::cli {
namespace {

// Errors of a value name the option it came from.
template <class T>
Result<T> of_option(Result<T> value, std::string_view option) {
  if (!value) value.error().where = option;
  return value;
}

}  // namespace

void CodecOptions::add(Options& o) {
  o.group("Codec");
  o.text("--protocol", protocol, "NAME", "chat, messages or responses");
  o.text("--model-version", version, "NAME", "the prompt format: v4 or v4.1");
  o.text("--tokenizer", tokenizer, "PATH",
         "a tokenizer.json, a folder with one, or a .gguf file: for token ids and counts");
  o.text("--compat", compat, "NAME",
         "ours, or exactly what deepseek-recipe 0.1 or 0.2 does (docs/recipe.md)");
  o.flag("--jsonl", jsonl, "one case a line on standard input, one answer a line");
}

Result<recipe::CodecSettings> CodecOptions::settings(std::string_view op) const {
  recipe::CodecSettings s;
  s.op = op;
  DEEPMINT_TRY(found_version, of_option(recipe::version_from_name(version), "--model-version"));
  s.version = found_version;
  DEEPMINT_TRY(found_compat, of_option(recipe::compat_from_name(compat), "--compat"));
  s.compat = found_compat;
  if (protocol) {
    DEEPMINT_TRY(found, need_protocol());
    s.protocol = found;
  }
  if (tokenizer) {
    DEEPMINT_TRY(opened, open_tokenizer(*tokenizer));
    if (auto ok = recipe::check_tokenizer(*opened, s.version); !ok)
      return tl::unexpected(std::move(ok).error().at(*tokenizer));
    s.tokens = recipe::make_token_codec(opened);
  }
  return s;
}

Result<recipe::Protocol> CodecOptions::need_protocol() const {
  if (!protocol)
    return fail(ErrorCode::kInvalidArgument, "expected chat, messages or responses, found nothing",
                "--protocol");
  return of_option(recipe::protocol_from_name(*protocol), "--protocol");
}

Status run_codec_lines(const recipe::CodecSettings& settings) {
  StdinLines lines(kMaxCodecBytes);
  for (;;) {
    DEEPMINT_TRY(line, lines.next());
    if (!line) return {};
    if (line->find_first_not_of(" \t") == std::string_view::npos) continue;
    DEEPMINT_CHECK_OK(write_stdout(recipe::run_codec_case(*line, settings) + "\n"));
  }
}

}  // namespace deepmint::cli
