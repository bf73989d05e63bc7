#include "cli/prompt.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "cli/terminal.h"
#include "format/names.h"

namespace deepmint::cli {
namespace {
// Far above any context, so that the engine's own limit gives the answer; bounds what a runaway
// pipe can cost.
constexpr size_t kMaxInputBytes = size_t{256} << 20;
}  // namespace

Result<std::string> text_or_stdin(const std::string& argument) {
  if (argument != "-") return argument;
  return read_stdin(kMaxInputBytes);
}

Result<std::vector<TokenId>> parse_ids(const std::string& argument, std::string_view option,
                                       std::string_view what) {
  DEEPMINT_TRY(text, text_or_stdin(argument));
  constexpr std::string_view kWhite = " \t\r\n";
  std::vector<TokenId> ids;
  const auto wrong = [&](std::string_view found) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected {} such as 1,2,3, found {} at entry {}", what,
                            found.empty() ? "nothing" : quote_name(found), ids.size() + 1),
                std::string(option));
  };
  // One comma, white space or both part two ids; a comma with no id on one side of it is a slip.
  bool after_comma = false;
  for (size_t begin = text.find_first_not_of(kWhite); begin != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(", \t\r\n", begin), text.size());
    TokenId id = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, id);
    if (error != std::errc() || stop != text.data() + end || id < 0)
      return wrong(std::string_view(text).substr(begin, end - begin));
    ids.push_back(id);
    begin = text.find_first_not_of(kWhite, end);
    after_comma = begin != std::string::npos && text[begin] == ',';
    if (after_comma) begin = text.find_first_not_of(kWhite, begin + 1);
  }
  if (after_comma) return wrong({});
  if (ids.empty())
    return fail(ErrorCode::kInvalidArgument, "expected at least one token id, found none",
                std::string(option));
  return ids;
}

Error in_option(Error error, std::string_view option) {
  constexpr std::string_view kTokens = "tokens";
  if (!error.where.starts_with(kTokens)) return error;
  std::string rest = error.where.substr(kTokens.size());
  if (!rest.empty() && rest.front() != '[') return error;
  error.where = std::string(option) + std::move(rest);
  return error;
}

std::vector<TokenId> plain_ids(const Tokenizer& tokenizer, std::string_view text,
                               bool allow_control) {
  const TokenizerSpec& spec = tokenizer.spec();
  std::vector<TokenId> ids;
  if (spec.add_bos && spec.bos) ids.push_back(*spec.bos);
  const Segment segment{allow_control ? Segment::Kind::kControl : Segment::Kind::kText,
                        std::string(text)};
  tokenizer.encode(std::span(&segment, 1), ids);
  if (spec.add_eos && spec.eos) ids.push_back(*spec.eos);
  return ids;
}

std::string join_ids(std::span<const TokenId> ids, std::string_view separator) {
  return fmt::format("{}", fmt::join(ids, separator));
}

}  // namespace deepmint::cli
