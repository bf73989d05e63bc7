#include "one_answer/tapped_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/hash.h"

namespace deepmint::one_answer {
namespace {

constexpr int kAfterLastLayer = 1 << 20;

std::string place(int32_t position, const RowTraces::Entry& e) {
  if (e.layer == kAfterLastLayer) return fmt::format("position {}, {}", position, e.sublayer);
  return fmt::format("position {}, layer {} {}", position, e.layer, e.sublayer);
}

class Recorder : public Tap {
 public:
  Recorder(const StepInput& input, RowTraces& traces) : input_(input), runs_(input.rows.size()) {
    for (size_t r = 0; r < input.rows.size(); ++r) wanted_.push_back(traces.wants(input.rows[r]));
  }
  void sublayer(int layer, std::string_view name, std::span<const float> values,
                size_t width) override {
    const size_t n = values.size() / width;
    size_t at = 0;
    for (size_t r = 0; r < input_.rows.size(); ++r) {
      const Row& row = input_.rows[r];
      // Rows that end early, or that need no logits, are left out of later sublayers.
      if (n != input_.rows.size()) {
        const bool runs = layer >= row.layer_begin && layer < row.layer_end;
        if (!runs) continue;
      }
      if (at == n) break;
      if (wanted_[r])
        runs_[r].push_back(
            {layer, std::string(name), xxh3_64(std::as_bytes(values.subspan(at * width, width)))});
      ++at;
    }
  }
  void finish(std::span<const float> logits, size_t vocab, RowTraces& traces) {
    size_t at = 0;
    for (size_t r = 0; r < input_.rows.size(); ++r) {
      const bool has_logits = input_.rows[r].needs_logits;
      if (wanted_[r]) {
        if (has_logits)
          runs_[r].push_back({kAfterLastLayer, "logits",
                              xxh3_64(std::as_bytes(logits.subspan(at * vocab, vocab)))});
        traces.add_run(input_.rows[r].position) = std::move(runs_[r]);
      }
      at += has_logits;
    }
  }

 private:
  const StepInput& input_;
  std::vector<bool> wanted_;
  std::vector<std::vector<RowTraces::Entry>> runs_;
};

}  // namespace

std::string RowTraces::first_difference_from(const RowTraces& right) const {
  for (const auto& [position, runs] : runs_) {
    const auto it = right.runs_.find(position);
    if (it == right.runs_.end()) continue;
    const std::vector<Entry>& expected = it->second.front();
    size_t longest = 0;
    bool equal = false;
    for (const std::vector<Entry>& run : runs) {
      const auto [mine, theirs] =
          std::mismatch(run.begin(), run.end(), expected.begin(), expected.end());
      // Which rows need logits is the schedule's business: one run may end before the other.
      equal = equal || mine == run.end() || theirs == expected.end();
      longest = std::max(longest, static_cast<size_t>(theirs - expected.begin()));
    }
    if (!equal) return place(position, expected[longest]);
  }
  return {};
}

Status TappedModel::forward(const StepInput& input, std::span<float> logits, Tap* tap) {
  Status ok;
  const auto spoil_head = [&] {
    if (fault_ != Fault::kHead || input.sequences.size() < 2) return;
    for (float& v : logits) v = std::nextafter(v, std::numeric_limits<float>::infinity());
  };
  if (traces_ == nullptr) {
    ok = model_->forward(input, logits, tap);
    if (ok) spoil_head();
  } else {
    Recorder recorder(input, *traces_);
    ok = model_->forward(input, logits, &recorder);
    if (ok) {
      spoil_head();
      recorder.finish(logits, static_cast<size_t>(info().vocab_size), *traces_);
    }
  }
  if (ok && fault_ == Fault::kState && input.sequences.size() > 1)
    for (const SequenceRef& s : input.sequences) {
      const StatePart& part = state_parts()[0];
      input.state[0].base[static_cast<size_t>(s.blocks[0]) * part.bytes] ^= std::byte{1};
    }
  return ok;
}

}  // namespace deepmint::one_answer
