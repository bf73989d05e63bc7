#include "server/api/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include "core/cpu_isa.h"
#include "core/hash.h"
#include "engine/grammar_masks.h"

namespace deepmint {
namespace {

constexpr size_t kMaxQueuedJobs = 4096;

int64_t unix_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// NFC may shorten text before it is tokenised; no composition shrinks by more than this factor.
constexpr size_t kNfcShrink = 4;

size_t longest_token(const Tokenizer& tokenizer) {
  size_t longest = 1;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id)
    longest = std::max(longest, tokenizer.token_bytes(id).size());
  return tokenizer.spec().normalizer == Normalizer::kNone ? longest : longest * kNfcShrink;
}

uint64_t random_word() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

ServedModel with_grammars(ServedModel model) {
  if (model.grammars == nullptr)
    model.grammars = std::make_shared<GrammarMasks>(
        model.tokenizer, static_cast<size_t>(model.engine->info().vocab_size), model.end_ids);
  return model;
}

}  // namespace

Status check_served(const ServedModel& model) {
  if (model.engine == nullptr)
    return fail(ErrorCode::kInvalidArgument, "expected an engine, found none", "server");
  if (!model.tokenizer)
    return fail(ErrorCode::kUnsupported, "the model has no tokenizer, and the API works on text",
                model.id);
  return {};
}

ApiContext::ApiContext(const ServerConfig& c, ServedModel m, ApiKeys k)
    : config(c),
      model(with_grammars(std::move(m))),
      keys(std::move(k)),
      fingerprint(fmt::format("fp_{:016x}", xxh3_64(as_byte_span(fmt::format(
                                                "{}|{}|{:016x}", model.build,
                                                isa_class(active_isa()), model.fingerprint))))),
      created(model.created > 0 ? model.created : unix_now()),
      longest_token_bytes(longest_token(*model.tokenizer)),
      workers(config.worker_threads, kMaxQueuedJobs),
      id_base_(random_word()) {}

bool ApiContext::knows_model(std::string_view name) const {
  return name == model.id ||
         std::find(model.aliases.begin(), model.aliases.end(), name) != model.aliases.end();
}

std::string ApiContext::next_completion_id() {
  const std::array<uint64_t, 2> words = {id_base_, next_id_++};
  const Hash128 h = xxh3_128(std::as_bytes(std::span(words)));
  return fmt::format("chatcmpl-{:016x}{:08x}", h.high, static_cast<uint32_t>(h.low));
}

}  // namespace deepmint
