#include "cli/grammar_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <numeric>

#include "engine/grammar_masks.h"

namespace deepmint::cli {

namespace {

// The processor's time of this thread: what else the machine does is no part of a grammar's cost.
double now_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

std::string shown(unsigned byte) {
  return byte > 0x20 && byte < 0x7f ? fmt::format("{}", static_cast<char>(byte))
         : byte == 0x20             ? "space"
                                    : fmt::format("0x{:02x}", byte);
}

}  // namespace

Result<std::shared_ptr<const grammar::Vocabulary>> byte_vocabulary() {
  std::vector<std::string> bytes;
  bytes.reserve(257);
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  bytes.emplace_back();
  return grammar::Vocabulary::make(std::move(bytes), 257, {256});
}

Result<std::shared_ptr<const grammar::Vocabulary>> vocabulary_of(const Tokenizer& tokenizer,
                                                                 size_t width) {
  std::vector<TokenId> ends = tokenizer.spec().end_ids;
  if (ends.empty() && tokenizer.spec().eos) ends.push_back(*tokenizer.spec().eos);
  const auto size = static_cast<size_t>(tokenizer.vocab_size());
  return make_vocabulary(tokenizer, width == 0 ? size : width, std::move(ends));
}

Result<grammar::Grammar> build_grammar(const GrammarSource& source) {
  if (source.kind != grammar::SpecKind::kJsonSchema)
    return grammar::compile_grammar({.kind = source.kind, .text = source.text});
  DEEPMINT_TRY(schema, json::parse(source.text, {.max_bytes = grammar::kMaxSpecBytes}));
  return grammar::compile_json_schema(schema, source.options);
}

TimeSummary summarize(std::vector<float> values) {
  TimeSummary out;
  if (values.empty()) return out;
  out.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return static_cast<double>(
        values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))]);
  };
  out.p50 = at(0.5);
  out.p99 = at(0.99);
  out.max = static_cast<double>(values.back());
  return out;
}

Status GrammarCase::compile(const GrammarSource& source) {
  const double start = now_ns();
  compiled_.reset();
  DEEPMINT_TRY(built, build_grammar(source));
  DEEPMINT_TRY(made, grammar::Compiled::make(std::move(built), vocabulary_));
  compile_us_ = (now_ns() - start) / 1000;
  compiled_ = std::move(made);
  return {};
}

Result<Walk> GrammarCase::walk(std::string_view text, GrammarTimes* times) const {
  grammar::Matcher matcher(compiled_);
  std::vector<uint32_t> bits(vocabulary_->mask_words());
  const auto timed = [&](std::vector<float> GrammarTimes::* list, auto&& work) {
    if (times == nullptr) return work();
    const double start = now_ns();
    auto result = work();
    (times->*list).push_back(static_cast<float>((now_ns() - start)));
    return result;
  };
  std::vector<TokenId> ids;
  if (tokenizer_ != nullptr) {
    ids = tokenizer_->encode_text(text);
  } else {
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  }
  const bool checked = times != nullptr || tokenizer_ != nullptr;
  Walk out;
  for (const TokenId id : ids) {
    if (checked) timed(&GrammarTimes::mask_ns, [&] { return matcher.mask(bits); });
    const bool allowed = !checked || ((bits[static_cast<size_t>(id) / 32] >> (id % 32)) & 1) != 0;
    const bool taken = timed(&GrammarTimes::accept_ns, [&] { return matcher.accept(id); });
    if (!matcher.status()) return tl::unexpected(matcher.status().error());
    if (taken != allowed && checked)
      return fail(ErrorCode::kInternal,
                  fmt::format("token {} after {} bytes: the mask says {}, the matcher {}", id,
                              out.bytes, allowed, taken));
    if (!taken) {
      const std::string_view rest = text.substr(std::min(out.bytes, text.size()));
      const size_t good = matcher.accepts_bytes(rest).bytes;
      out.bytes += good;
      return out;
    }
    out.bytes += vocabulary_->bytes(id).size();
    ++out.tokens;
  }
  if (checked) timed(&GrammarTimes::mask_ns, [&] { return matcher.mask(bits); });
  if (!matcher.status()) return tl::unexpected(matcher.status().error());
  out.accepted = matcher.may_stop();
  return out;
}

Result<std::string> sample(const GrammarCase& case_of_bytes, std::mt19937_64& rng,
                           size_t max_bytes) {
  grammar::Matcher matcher(case_of_bytes.shared());
  std::string out;
  const size_t wanted = 1 + rng() % 160;  // from here on, whatever ends things is preferred
  constexpr std::string_view kEnders = "]}\"", kBlanks = " \t\n\r";
  while (out.size() < max_bytes) {
    if (matcher.may_stop() && (!matcher.may_continue() || out.size() >= wanted || rng() % 4 == 0))
      return out;
    const grammar::ByteSet next = matcher.next_bytes();
    std::vector<uint8_t> likely, all;
    for (unsigned b = 0; b < 256; ++b) {
      if (!next.has(b)) continue;
      all.push_back(static_cast<uint8_t>(b));
      const char c = static_cast<char>(b);
      const bool ends = kEnders.find(c) != std::string_view::npos;
      const bool letter = (b >= 'a' && b <= 'z') || (b >= '0' && b <= '9');
      const size_t weight = out.size() >= wanted                        ? (ends     ? 400
                                                                           : letter ? 1
                                                                                    : 0)
                            : ends                                      ? 12
                            : kBlanks.find(c) != std::string_view::npos ? 0
                            : letter                                    ? 3
                                                                        : 1;
      likely.insert(likely.end(), weight, static_cast<uint8_t>(b));
    }
    if (all.empty()) break;
    const auto& from = likely.empty() || rng() % 50 == 0 ? all : likely;
    const uint8_t byte = from[rng() % from.size()];
    if (!matcher.accept(byte)) break;
    out.push_back(static_cast<char>(byte));
  }
  if (out.size() < max_bytes)
    return fail(
        ErrorCode::kInternal,
        fmt::format("nothing follows after {} bytes of a text that may not end there", out.size()));
  return fail(ErrorCode::kUnavailable, fmt::format("no end within {} bytes", max_bytes));
}

std::string describe(const grammar::ByteSet& bytes, bool may_stop) {
  std::vector<std::string> parts;
  for (unsigned b = 0; b < 256; ++b) {
    if (!bytes.has(b)) continue;
    unsigned last = b;
    while (last + 1 < 256 && bytes.has(last + 1)) ++last;
    if (last > b + 1) {
      parts.push_back(shown(b) + " … " + shown(last));
    } else {
      parts.push_back(shown(b));
      if (last > b) parts.push_back(shown(last));
    }
    b = last;
  }
  if (may_stop) parts.emplace_back("the end of the text");
  if (parts.empty()) return "nothing";
  std::string out = parts[0];
  for (size_t i = 1; i < parts.size(); ++i)
    out += (i + 1 == parts.size() ? " or " : ", ") + parts[i];
  return out;
}

}  // namespace deepmint::cli
