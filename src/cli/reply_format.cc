#include "cli/reply_format.h"

#include <algorithm>
#include <iterator>

#include "core/mapped_file.h"

namespace deepmint::cli {

void ReplyFormat::options(Options& o) {
  o.text("--schema", schema_, "FILE",
         "the reply is JSON that satisfies this JSON Schema (docs/structured-output.md)");
  o.text("--regex", regex_, "RE", "the reply matches this regular expression from end to end");
  o.text("--grammar", grammar_, "FILE", "the reply is in the language of this GBNF grammar");
  o.text("--structural-tag", tags_, "FILE",
         "the reply is text with these tags, as JSON: {\"triggers\", \"structures\"}");
}

Status ReplyFormat::check(std::string_view command) const {
  if (int{schema_.has_value()} + int{regex_.has_value()} + int{grammar_.has_value()} +
          int{tags_.has_value()} <=
      1)
    return {};
  return fail(ErrorCode::kInvalidArgument,
              "expected one of --schema, --regex, --grammar and --structural-tag",
              std::string(command));
}

Result<std::optional<ReplyFormat::Given>> ReplyFormat::read() const {
  struct Source {
    std::string_view option;
    grammar::SpecKind kind;
    const std::optional<std::string>& given;
  };
  const Source sources[] = {{"--schema", grammar::SpecKind::kJsonSchema, schema_},
                            {"--regex", grammar::SpecKind::kRegex, regex_},
                            {"--grammar", grammar::SpecKind::kEbnf, grammar_},
                            {"--structural-tag", grammar::SpecKind::kStructuralTag, tags_}};
  const auto* source = std::find_if(std::begin(sources), std::end(sources),
                                    [](const Source& s) { return s.given.has_value(); });
  if (source == std::end(sources)) return std::optional<Given>();
  Given out{{source->kind, *source->given}, source->option, std::string(source->option)};
  if (source->kind != grammar::SpecKind::kRegex) {
    out.place = out.spec.text;
    DEEPMINT_TRY(file, MappedFile::open(out.place));
    const auto bytes = file.bytes();
    out.spec.text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return std::optional<Given>(std::move(out));
}

Result<CompiledFormat> compile_format(const ReplyFormat::Given& given, const OpenModel& open) {
  DEEPMINT_CHECK_OK(open.need_tokenizer(given.option));
  CompiledFormat out;
  out.grammars = std::make_shared<GrammarMasks>(open.loaded.tokenizer,
                                                static_cast<size_t>(open.engine->info().vocab_size),
                                                open.loaded.end_ids);
  auto mask = out.grammars->mask(given.spec);
  if (!mask) return tl::unexpected(std::move(mask).error().at(given.place));
  out.mask = std::move(*mask);
  return out;
}

}  // namespace deepmint::cli
