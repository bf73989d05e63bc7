#include "tokenizer/regex_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "core/check.h"
#include "core/names.h"
#include "tokenizer/pattern.h"
#include "tokenizer/unicode.h"

namespace deepmint {
namespace {

// A sound pre-tokenizer pattern needs a few steps per character; the limit is for those that
// backtrack without end.
constexpr uint32_t kMatchLimit = 1'000'000;
constexpr uint64_t kMatchLimitPerByte = 32;
constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr size_t kJitStackBytes = 512 * 1024;

// Match state is a few hundred bytes and belongs to a thread, so that splitting neither locks nor
// allocates.
struct MatchState {
  MatchState()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        jit_stack(pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr)) {
    DEEPMINT_CHECK(data != nullptr && context != nullptr);
    pcre2_set_heap_limit(context, 64 * 1024);  // KiB
    if (jit_stack != nullptr) pcre2_jit_stack_assign(context, nullptr, jit_stack);
  }
  ~MatchState() {
    pcre2_jit_stack_free(jit_stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* jit_stack;
};

MatchState& match_state() {
  thread_local MatchState state;
  return state;
}

}  // namespace

struct RegexSplitter::Code {
  explicit Code(pcre2_code* c) : code(c) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* code;
};

RegexSplitter::RegexSplitter(std::unique_ptr<Code> code) : code_(std::move(code)) {}
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;
RegexSplitter& RegexSplitter::operator=(RegexSplitter&&) noexcept = default;
RegexSplitter::~RegexSplitter() = default;

Result<RegexSplitter> RegexSplitter::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes)
    return fail(ErrorCode::kTooLarge, fmt::format("pattern of {} bytes, at most {} are supported",
                                                  pattern.size(), kMaxPatternBytes));
  DEEPMINT_TRY(translated, pattern_to_pcre2(pattern));
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  DEEPMINT_CHECK(context != nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> text{};
    pcre2_get_error_message(error, text.data(), text.size());
    return fail(ErrorCode::kInvalidFile,
                fmt::format("pattern {}: {} at offset {}", quote_name(translated),
                            reinterpret_cast<const char*>(text.data()), offset));
  }
  // Without JIT support pcre2_match() interprets: slower, same matches.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return RegexSplitter(std::make_unique<Code>(code));
}

bool RegexSplitter::next(std::string_view text, Cursor& cursor) const {
  MatchState& state = match_state();
  const uint64_t limit = std::max<uint64_t>(kMatchLimit, kMatchLimitPerByte * text.size());
  pcre2_set_match_limit(state.context,
                        static_cast<uint32_t>(std::min<uint64_t>(limit, UINT32_MAX)));
  size_t start = cursor.end;
  while (start <= text.size()) {
    const int rc = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                               start, PCRE2_NO_UTF_CHECK, state.data, state.context);
    if (rc < 0) return false;  // no match, or past a limit
    const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(state.data);
    const size_t begin = ovector[0], end = ovector[1];
    // An empty match right behind the last one is passed over, as Oniguruma's iterator does.
    if (begin == end && cursor.matched && begin == cursor.end) {
      if (start >= text.size()) return false;
      start += unicode::decode(text.data() + start).length;
      continue;
    }
    cursor = {begin, end, true};
    return true;
  }
  return false;
}

}  // namespace deepmint
