#include "model/deepseek_v41/disk_reader.h"

#include <algorithm>

#include "core/mapped_file.h"
#include "model/deepseek_v41/fast_linear.h"
#include "model/deepseek_v41/not_a_number.h"

namespace deepmint::v41 {
namespace {

void will_need(const Matrix& m) {
  advise_will_need(m.weight->bytes);
  if (m.scale != nullptr) advise_will_need(m.scale->bytes);
}

}  // namespace

DiskReader::DiskReader(const Config& config, const Weights& weights, bool experts_mapped)
    : config_(config), weights_(weights), experts_mapped_(experts_mapped) {
  if (experts_mapped)
    checked_.resize(static_cast<size_t>(config.layers) * static_cast<size_t>(config.experts));
}

void DiskReader::experts(int layer, std::span<const int32_t> ids) {
  experts_read_ += ids.size();
  if (!experts_mapped_) return;
  const LayerWeights& l = weights_.layers[static_cast<size_t>(layer)];
  for (const int32_t id : ids) {
    const Expert& e = l.experts[static_cast<size_t>(id)];
    for (const Matrix* m : {&e.w1, &e.w3, &e.w2}) will_need(*m);
  }
  for (const int32_t id : ids) {
    uint8_t& checked = checked_[static_cast<size_t>(layer) * static_cast<size_t>(config_.experts) +
                                static_cast<size_t>(id)];
    if (checked != 0) continue;
    checked = 1;
    const Expert& e = l.experts[static_cast<size_t>(id)];
    for (const Matrix* m : {&e.w1, &e.w3, &e.w2}) {
      auto ok = check_numbers(*m->scale);
      if (ok) ok = check_values(*m);
      if (!ok && status_) status_ = std::move(ok);
    }
  }
}

void DiskReader::engram_rows(size_t which, std::span<const int64_t> rows) {
  const auto layer = static_cast<size_t>(config_.engram_layers[which]);
  const EngramWeights& w = *weights_.layers[layer].engram;
  const auto dim = static_cast<size_t>(config_.engram_dim), scales = dim / 32;
  for (const int64_t row : rows) {
    advise_will_need(w.table->bytes.subspan(static_cast<size_t>(row) * dim, dim));
    advise_will_need(w.table_scale->bytes.subspan(static_cast<size_t>(row) * scales, scales));
  }
}

}  // namespace deepmint::v41
