#include "support/fake_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace deepmint::testing {
namespace {

uint64_t mix(uint64_t x) {  // splitmix64's finaliser
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t extend(uint64_t chain, TokenId token, int32_t position) {
  return mix(chain ^ mix((static_cast<uint64_t>(static_cast<uint32_t>(position)) << 32) |
                         static_cast<uint32_t>(token)));
}

uint64_t accumulate(uint64_t sum, TokenId token) {
  return sum * 0x100000001B3u + mix(static_cast<uint64_t>(token));
}

std::byte* element(const PartMemory& part, size_t index, size_t bytes) {
  return part.base + index * bytes;
}

}  // namespace

// Part "chain": per position, everything that the positions before it add up to.
struct FakeModel::Cell {
  uint64_t chain;
  int32_t position;
  TokenId token;
};
// Part "carry": per sequence, a sum that only grows in order.
struct FakeModel::Carry {
  uint64_t sum;
  int64_t length;  // no padding: saved states are compared byte by byte
};

FakeModel::FakeModel(Options options) : options_(std::move(options)) {
  info_.architecture = "fake";
  info_.name = "fake";
  info_.vocab_size = options_.vocab_size;
  info_.n_layers = 1;
  info_.hidden = 1;
  info_.context_tokens = options_.context_tokens;
  info_.fingerprint = options_.fingerprint;
  parts_.push_back({"chain", StatePart::Family::kGlobal, sizeof(Cell) * kBlockTokens});
  parts_.push_back({"echo", StatePart::Family::kGlobal, sizeof(uint32_t) * kBlockTokens});
  if (options_.private_part) parts_.push_back({"carry", StatePart::Family::kPrivate, 64});
  tokens_.reserve(static_cast<size_t>(options_.context_tokens) + 1);
}

size_t FakeModel::bytes_per_block() const { return parts_[0].bytes + parts_[1].bytes; }
size_t FakeModel::bytes_per_slot() const { return options_.private_part ? parts_[2].bytes : 0; }

Status FakeModel::reserve(size_t max_rows, size_t max_logit_rows) {
  max_rows_ = std::max(max_rows_, max_rows);
  max_logit_rows_ = std::max(max_logit_rows_, max_logit_rows);
  return {};
}

Status FakeModel::damaged_at(const Row& row, const char* what) {
  std::string text = fmt::format("{} (sequence {}, position {}, token {})", what, row.sequence,
                                 row.position, row.token);
  if (damaged_++ == 0) damage_ = text;
  return fail(ErrorCode::kInternal, std::move(text), "fake model");
}

Status FakeModel::check(const StepInput& input, size_t logit_values) {
  if (input.rows.empty()) return damaged_at({}, "step without rows");
  if (input.rows.size() > max_rows_) return damaged_at({}, "more rows than reserved");
  if (input.state.size() != parts_.size()) return damaged_at({}, "wrong number of state parts");
  size_t logit_rows = 0, sequences = 0;
  for (size_t r = 0; r < input.rows.size(); ++r) {
    const Row& row = input.rows[r];
    if (row.needs_logits) ++logit_rows;
    if (row.sequence >= input.sequences.size())
      return damaged_at(row, "row of an unknown sequence");
    if (row.token < 0 || row.token >= options_.vocab_size)
      return damaged_at(row, "token outside the vocabulary");
    if (row.position < 0 || row.position >= options_.context_tokens)
      return damaged_at(row, "position outside the context");
    const bool first = r == 0 || input.rows[r - 1].sequence != row.sequence;
    if (first && row.sequence != sequences++)
      return damaged_at(row, "rows of a sequence are not together");
    if (!first && row.position != input.rows[r - 1].position + 1)
      return damaged_at(row, "positions have a gap");
    const SequenceRef& ref = input.sequences[row.sequence];
    const auto block = static_cast<size_t>(row.position) / kBlockTokens;
    if (block >= ref.blocks.size()) return damaged_at(row, "position without a block");
    if (static_cast<size_t>(ref.blocks[block]) >= input.state[0].count)
      return damaged_at(row, "block outside the pool");
    if (options_.private_part && static_cast<size_t>(ref.slot) >= input.state[2].count)
      return damaged_at(row, "slot outside the pool");
  }
  if (sequences != input.sequences.size()) return damaged_at({}, "sequence without rows");
  if (logit_rows > max_logit_rows_) return damaged_at({}, "more logit rows than reserved");
  if (logit_values != logit_rows * static_cast<size_t>(options_.vocab_size))
    return damaged_at({}, "wrong logits size");
  return {};
}

Status FakeModel::forward(const StepInput& input, std::span<float> logits, Tap* tap) {
  if (options_.on_forward) options_.on_forward(input);
  DEEPMINT_CHECK_OK(check(input, logits.size()));
  for (const Row& row : input.rows)
    if (row.token == options_.fail_token)
      return fail(ErrorCode::kInternal, "the step was told to fail", "fake model");
  ++steps_;
  rows_ += static_cast<int64_t>(input.rows.size());
  largest_step_ = std::max<int64_t>(largest_step_, static_cast<int64_t>(input.rows.size()));
  const auto vocab = static_cast<size_t>(options_.vocab_size);
  size_t logit_row = 0;
  uint64_t chain = 0, sum = 0;
  for (size_t r = 0; r < input.rows.size(); ++r) {
    const Row& row = input.rows[r];
    const SequenceRef& ref = input.sequences[row.sequence];
    const auto cell_at = [&](int32_t position) {
      const auto block =
          static_cast<size_t>(ref.blocks[static_cast<size_t>(position) / kBlockTokens]);
      const size_t offset = static_cast<size_t>(position) % kBlockTokens;
      return std::pair(element(input.state[0], block, parts_[0].bytes) + offset * sizeof(Cell),
                       element(input.state[1], block, parts_[1].bytes) + offset * sizeof(uint32_t));
    };
    if (r == 0 || input.rows[r - 1].sequence != row.sequence) {  // read the whole past back
      chain = sum = 0;
      tokens_.clear();
      for (int32_t position = 0; position < row.position; ++position) {
        const auto [cell_bytes, echo_bytes] = cell_at(position);
        Cell cell;
        uint32_t echo = 0;
        std::memcpy(&cell, cell_bytes, sizeof cell);
        std::memcpy(&echo, echo_bytes, sizeof echo);
        chain = extend(chain, cell.token, position);
        sum = accumulate(sum, cell.token);
        if (cell.position != position || cell.chain != chain ||
            echo != static_cast<uint32_t>(chain))
          return damaged_at(row, "state of an earlier position is not what was written");
        tokens_.push_back(cell.token);
      }
      if (options_.private_part && row.position > 0) {
        Carry carry;
        std::memcpy(&carry, element(input.state[2], static_cast<size_t>(ref.slot), parts_[2].bytes),
                    sizeof carry);
        if (carry.length != row.position || carry.sum != sum)
          return damaged_at(row, "carry belongs to another timeline");
      }
    }
    chain = extend(chain, row.token, row.position);
    sum = accumulate(sum, row.token);
    tokens_.push_back(row.token);
    if (row.position >= row.write_global_from) {
      const Cell cell{chain, row.position, row.token};
      const auto echo = static_cast<uint32_t>(chain);
      const auto [cell_bytes, echo_bytes] = cell_at(row.position);
      std::memcpy(cell_bytes, &cell, sizeof cell);
      std::memcpy(echo_bytes, &echo, sizeof echo);
    }
    if (options_.private_part) {
      const Carry carry{sum, row.position + 1};
      std::memcpy(element(input.state[2], static_cast<size_t>(ref.slot), parts_[2].bytes), &carry,
                  sizeof carry);
    }
    if (row.needs_logits)
      fill_logits(chain, sum, tokens_, logits.subspan(logit_row++ * vocab, vocab));
  }
  if (tap != nullptr) {
    const auto value = static_cast<float>(chain % 1024);
    tap->sublayer(0, "norm", std::span(&value, 1), 1);
  }
  return {};
}

void FakeModel::commit(const SequenceRef&, std::span<const PartMemory>, int32_t) {}

void FakeModel::clear_unread(const SequenceRef& sequence, std::span<const PartMemory> state,
                             int32_t length, PromptTail) const {
  const auto first = static_cast<size_t>(length % kBlockTokens),
             block = static_cast<size_t>(length) / kBlockTokens;
  if (first == 0) return;
  const auto index = static_cast<size_t>(sequence.blocks[block]);
  const size_t n = kBlockTokens - first;
  std::memset(element(state[0], index, parts_[0].bytes) + first * sizeof(Cell), 0,
              n * sizeof(Cell));
  std::memset(element(state[1], index, parts_[1].bytes) + first * sizeof(uint32_t), 0,
              n * sizeof(uint32_t));
}

void FakeModel::fill_logits(uint64_t chain, uint64_t carry, std::span<const TokenId> tokens,
                            std::span<float> out) const {
  const uint64_t seed = mix(chain ^ mix(carry));
  for (size_t id = 0; id < out.size(); ++id) {
    const float unit = static_cast<float>(mix(seed + id) >> 40) * 0x1p-24f;
    out[id] = options_.logit_range * (2 * unit - 1);
  }
  if (options_.script)
    if (const auto next = options_.script(tokens))
      out[static_cast<size_t>(*next)] = options_.logit_range + 50.0f;
  if (!tokens.empty() && tokens.back() == options_.nan_token)
    std::fill(out.begin(), out.end(), std::numeric_limits<float>::quiet_NaN());
}

void FakeModel::expected_logits(std::span<const TokenId> tokens, std::span<float> out) const {
  uint64_t chain = 0, sum = 0;
  for (size_t p = 0; p < tokens.size(); ++p) {
    chain = extend(chain, tokens[p], static_cast<int32_t>(p));
    sum = accumulate(sum, tokens[p]);
  }
  fill_logits(chain, sum, tokens, out);
}

}  // namespace deepmint::testing
