// A step of single rows, each of another sequence and with logits: what generation consists of. Its
// time is that of reading the weights, so whatever happens between two products counts. All threads
// go through the layers in one call (ThreadPool::together). What is small (norm, rotation, rounding
// of inputs) every thread does for itself while the rows are few: that costs less than one thread
// doing it while the others wait. Same bits as the way through DenseModel::forward for other steps,
// because a kernel gives a row the same bits whoever calls it and with whatever company.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/rowwise.h"
#include "model/dense/model.h"

namespace deepmint::dense {
namespace {

using kernels::Activations;
using kernels::ActivationType;

int64_t share(int64_t count, int rank, int size) { return count * rank / size; }

// A large matrix is split among threads but for its last eighth, which goes in pieces to whoever
// comes first: a core may get less of the memory than another. A small one is split as a whole,
// because a thread that reads on elsewhere loses more than it wins.
struct Deal {
  static constexpr size_t kFromBytes = size_t{8} << 20, kPieceBytes = size_t{64} << 10;
  Deal(size_t bytes, int64_t units) : fixed(units) {
    if (bytes < kFromBytes) return;
    each = std::max<int64_t>(
        1, units * static_cast<int64_t>(kPieceBytes) / static_cast<int64_t>(bytes));
    pieces = units / 8 / each;
    fixed = units - pieces * each;
  }
  int64_t fixed, each = 0, pieces = 0;
};

}  // namespace

bool DenseModel::decodes(const StepInput& in) const {
  return in.rows.size() < kSharedRows && runs_.size() == in.rows.size() &&
         logit_rows_.size() == in.rows.size();
}

void DenseModel::decode(const StepInput& in, std::span<float> logits, Tap* tap) {
  list_units(true);
  const auto rows = static_cast<int64_t>(in.rows.size());
  for (uint32_t t = 0; t < kActivationTypes; ++t)
    if ((types_ >> t & 1) != 0) {
      const auto type = static_cast<ActivationType>(t);
      activations_[t].prepare(type, rows, config_.hidden);
      given_[t].prepare(type, rows, config_.q_width());
      fed_[t].prepare(type, rows, config_.ffn);
    }
  list_tiles();
  dealt_.store(0, std::memory_order_relaxed);
  pool_->together([&](Team& team) { decode(in, logits, tap, team); });
}

// The tiles of units_, where attend_tiles may be asked for: wave by wave, the latest first, because
// it gets this step's K and V from the thread that reads it; of a tile all heads in turn, because
// they lie one behind the other. And where the share of each thread begins.
void DenseModel::list_tiles() {
  tile_items_.clear();
  tile_cuts_.clear();
  if (units_.size() >= 2 * static_cast<size_t>(pool_->size())) return;
  int64_t longest = 0;
  for (const AttentionUnit& u : units_) longest = std::max(longest, u.tiles());
  for (int64_t wave = 0; wave < longest; wave += kWaveTiles) {
    size_t at = tile_items_.size();
    int64_t total = 0, before = 0;
    for (int64_t tile = std::min(wave + kWaveTiles, longest) - 1; tile >= wave; --tile)
      for (size_t u = 0; u < units_.size(); ++u)
        if (tile < units_[u].tiles()) {
          tile_items_.push_back({static_cast<int32_t>(tile), static_cast<uint32_t>(u)});
          total += cost_of(tile_items_.back());
        }
    tile_cuts_.push_back(static_cast<uint32_t>(at));
    for (int rank = 1; rank <= pool_->size(); ++rank) {
      const int64_t until = share(total, rank, pool_->size());
      for (; at < tile_items_.size(); before += cost_of(tile_items_[at++]))
        if (before + cost_of(tile_items_[at]) / 2 >= until) break;
      tile_cuts_.push_back(static_cast<uint32_t>(rank < pool_->size() ? at : tile_items_.size()));
    }
  }
}

// How long a tile takes, about: the keys that a query sees in it, as much as half a tile for what
// does not depend on them, and as much again for storing K and V.
int64_t DenseModel::cost_of(const TileItem& item) const {
  const AttentionUnit& unit = units_[item.unit];
  const int64_t seen =
      std::min<int64_t>(kBlockTokens, unit.position + 1 - int64_t{item.tile} * kBlockTokens);
  return seen + 32 + (item.tile + 1 == unit.tiles() ? 32 : 0);
}

// Tells the memory what this thread reads first of a product. To be called before a meeting: the
// memory works while threads wait for each other.
void DenseModel::fetch_share(const Linear& next, const Team& team) const {
  fetch(next, share(Deal(next.bytes(), next.tiles()).fixed, team.rank(), team.size()));
}

// The same for the K and V that this thread stores.
void DenseModel::fetch_kv(int index, const StepInput& in, const Team& team) const {
  const auto threads = static_cast<size_t>(team.size());
  for (size_t cut = static_cast<size_t>(team.rank()); cut < tile_cuts_.size(); cut += threads + 1)
    for (uint32_t i = tile_cuts_[cut]; i < tile_cuts_[cut + 1]; ++i) {
      const AttentionUnit& unit = units_[tile_items_[i].unit];
      if (tile_items_[i].tile + 1 == unit.tiles())
        kernels::kv_fetch(tile_of(index, in, in.rows[unit.q_row], unit.kv_head), config_.head_dim,
                          unit.position % kBlockTokens);
    }
}

// The inputs of `next` from the rows of x, after body(row) has changed them; x is own or all, see
// Desk. Few rows: on the desk. More: in `shared`, each thread some rows.
template <class Body>
const Activations* DenseModel::inputs(Team& team, Desk& desk, size_t rows, const float* x,
                                      int64_t stride, const Linear& next, Activations* shared,
                                      Body&& body) {
  const bool own = rows <= kOwnRows;
  const auto count = static_cast<int64_t>(rows);
  const int64_t begin = own ? 0 : share(count, team.rank(), team.size()),
                end = own ? count : share(count, team.rank() + 1, team.size());
  for (int64_t row = begin; row < end; ++row) body(static_cast<size_t>(row));
  Activations* out = own ? desk.inputs : shared;
  const uint32_t types = types_of(next);
  for (uint32_t t = 0; t < kActivationTypes; ++t)
    if ((types >> t & 1) != 0) {
      if (own) out[t].prepare(static_cast<ActivationType>(t), count, next.k);
      out[t].convert_rows(x, stride, begin, end);
    }
  if (!own) team.meet();
  return out;
}

const Activations* DenseModel::normalized(Team& team, Desk& desk, size_t rows,
                                          const AlignedBuffer<float>& weight, const Linear& next) {
  const auto n = static_cast<size_t>(config_.hidden);
  float* y = rows <= kOwnRows ? desk.normed.data() : normed_.data();
  return inputs(team, desk, rows, y, config_.hidden, next, activations_, [&](size_t row) {
    kernels::rms_norm(x_.data() + row * n, weight.data(), config_.hidden, config_.norm_eps,
                      y + row * n);
  });
}

// Calls body(begin, end) for the parts of a matrix of so many bytes, in `units`, that this thread
// computes. To be followed by a meeting before the next.
template <class Body>
void DenseModel::deal(const Team& team, Desk& desk, size_t bytes, int64_t units, Body&& body) {
  const Deal deal(bytes, units);
  const int64_t begin = share(deal.fixed, team.rank(), team.size()),
                end = share(deal.fixed, team.rank() + 1, team.size());
  if (begin < end) body(begin, end);
  if (deal.pieces == 0) return;
  for (;;) {
    const int64_t piece = dealt_.fetch_add(1, std::memory_order_relaxed) - desk.dealt;
    if (piece >= deal.pieces) break;
    body(deal.fixed + piece * deal.each, deal.fixed + (piece + 1) * deal.each);
  }
  desk.dealt += deal.pieces + team.size();  // each thread has asked once in vain
}

// This thread's share of a product.
void DenseModel::product(const Team& team, Desk& desk, const Linear& linear,
                         const Activations* inputs, float* y, int64_t stride, bool add) {
  deal(team, desk, linear.bytes(), linear.tiles(),
       [&](int64_t begin, int64_t end) { multiply(linear, begin, end, inputs, y, stride, add); });
}

void DenseModel::decode(const StepInput& in, std::span<float> logits, Tap* tap, Team& team) {
  const Config& c = config_;
  const size_t rows = in.rows.size();
  const auto hidden = static_cast<size_t>(c.hidden);
  const int rank = team.rank(), size = team.size();
  Desk& desk = desks_[static_cast<size_t>(rank)];
  desk.dealt = 0;
  float* x = x_.data();
  // To be called after a meeting; nobody changes the values before the next.
  const auto show = [&](int layer, std::string_view name, const float* values) {
    if (tap == nullptr) return;
    if (rank == 0) tap->sublayer(layer, name, {values, rows * hidden}, hidden);
    team.meet();
  };
  fetch_share(weights_.layers.front().qkv, team);
  // One row: the first thread reads its embedding, the last computes its angles.
  for (size_t row = 0; row < rows; ++row) {
    const auto turn = static_cast<int>(row % static_cast<size_t>(size));
    if (turn == rank) embed(in, row);
    if (turn == size - 1 - rank) place(in, row);
  }
  team.meet();
  show(-1, "embed", x);
  for (int index = 0; index < c.layers; ++index) {
    const Layer& l = weights_.layers[static_cast<size_t>(index)];
    const Activations* given = normalized(team, desk, rows, l.attn_norm, l.qkv);
    fetch_kv(index, in, team);  // their lines come while the product is on
    product(team, desk, l.qkv, given, qkv_.data(), l.qkv.n, false);
    given = attend(index, in, team, desk);
    product(team, desk, l.output, given, x, c.hidden, true);

    const bool fused = c.ffn % kFusedOutputs == 0;
    const int64_t pairs = c.ffn / kFusedOutputs;
    if (fused)
      fetch(l.gate_up, share(Deal(l.gate_up.bytes(), pairs).fixed, rank, size) * kFusedTiles);
    team.meet();
    show(index, "attn", x);
    given = normalized(team, desk, rows, l.ffn_norm, l.gate_up);
    if (fused)
      deal(team, desk, l.gate_up.bytes(), pairs, [&](int64_t begin, int64_t end) {
        gate_up(l, given, rows, begin * kFusedTiles, end * kFusedTiles);
      });
    else
      product(team, desk, l.gate_up, given, gate_up_.data(), l.gate_up.n, false);
    fetch_share(l.down, team);
    team.meet();
    given = fed_;
    if (!fused) {
      const bool own = rows <= kOwnRows;
      const auto stride = own ? int64_t{c.ffn} : l.gate_up.n;
      float* fed = own ? desk.gated.data() : gate_up_.data();
      given = inputs(team, desk, rows, fed, stride, l.down, fed_, [&](size_t row) {
        const float* gate = gate_up_.data() + row * static_cast<size_t>(l.gate_up.n);
        kernels::swiglu(gate, gate + c.ffn, c.ffn, fed + row * static_cast<size_t>(stride));
      });
    }
    product(team, desk, l.down, given, x, c.hidden, true);
    fetch_share(
        index + 1 == c.layers ? weights_.head : weights_.layers[static_cast<size_t>(index) + 1].qkv,
        team);
    team.meet();
    show(index, "mlp", x);
  }
  const Activations* given = normalized(team, desk, rows, weights_.final_norm, weights_.head);
  show(c.layers, "norm", rows <= kOwnRows ? desk.normed.data() : normed_.data());
  product(team, desk, weights_.head, given, logits.data(), c.vocab, false);
}

// From this thread's share of qkv_ to the inputs of the output product.
const Activations* DenseModel::attend(int index, const StepInput& in, Team& team, Desk& desk) {
  const Config& c = config_;
  const Linear& output = weights_.layers[static_cast<size_t>(index)].output;
  const std::byte* layer_base = in.state[0].base + size_of(index, c.kv_heads) * tile_bytes_;
  const bool own = units_.size() < 2 * static_cast<size_t>(team.size())
                       ? attend_tiles(index, in, team, desk, layer_base)
                       : attend_units(index, in, team, layer_base);
  return inputs(team, desk, in.rows.size(), own ? desk.attended.data() : attended_.data(),
                c.q_width(), output, given_, [](size_t) {});
}

// Whole rows by K/V head, each thread about as many tiles. False: the result is in attended_.
bool DenseModel::attend_units(int index, const StepInput& in, Team& team,
                              const std::byte* layer_base) {
  const int64_t width = config_.q_width() + 2 * config_.kv_width();
  const auto scratch = static_cast<size_t>(kernels::attention_scratch_floats(config_.head_dim));
  int64_t total = 0, before = 0;
  for (const AttentionUnit& u : units_) total += u.tiles();
  const int64_t begin = share(total, team.rank(), team.size()),
                end = share(total, team.rank() + 1, team.size());
  team.meet();
  for (const AttentionUnit& u : units_) {
    const bool mine = before >= begin && before < end;
    before += u.tiles();
    if (!mine) continue;
    float* qkv = qkv_.data() + u.q_row * width;
    finish_heads(index, u.q_row, u.kv_head, qkv);
    store_heads(index, in, u.q_row, u.kv_head, qkv);
    kernels::attend(job_of(u, layer_base),
                    scratch_.data() + static_cast<size_t>(team.rank()) * scratch);
  }
  fetch_share(weights_.layers[static_cast<size_t>(index)].output, team);
  team.meet();
  return false;
}

// Few rows: threads share the tiles of each (tile_items_), in waves that bound the memory for
// partial results. True: the result is on the desk; false: in attended_.
bool DenseModel::attend_tiles(int index, const StepInput& in, Team& team, Desk& desk,
                              const std::byte* layer_base) {
  const Config& c = config_;
  const auto width = static_cast<size_t>(c.q_width() + 2 * c.kv_width());
  const int64_t partial = kernels::partial_floats(c.group(), c.head_dim);
  float* scratch =
      scratch_.data() + static_cast<size_t>(team.rank()) *
                            static_cast<size_t>(kernels::attention_scratch_floats(c.head_dim));
  const auto job_at_desk = [&](const AttentionUnit& u) {
    kernels::AttentionJob job = job_of(u, layer_base);
    job.q = desk.qkv.data() + (job.q - qkv_.data());
    return job;
  };
  const auto partial_of = [&](size_t unit, int64_t tile) {
    return partials_.data() +
           (static_cast<int64_t>(unit) * kWaveTiles + tile % kWaveTiles) * partial;
  };
  int64_t longest = 0;
  for (const AttentionUnit& u : units_) longest = std::max(longest, u.tiles());
  // A few tiles are combined by every thread for itself, many by one thread for each unit.
  const bool own = longest < kSerialTiles;

  team.meet();
  for (size_t row = 0; row < in.rows.size(); ++row) {
    float* qkv = desk.qkv.data() + row * width;
    std::memcpy(qkv, qkv_.data() + row * width, width * sizeof(float));
    for (int32_t head = 0; head < c.kv_heads; ++head) finish_heads(index, row, head, qkv);
  }
  const uint32_t* cut = tile_cuts_.data() + team.rank();
  for (int64_t wave = 0; wave < longest; wave += kWaveTiles, cut += team.size() + 1) {
    const size_t begin = cut[0], end = cut[1];
    for (size_t i = begin; i < end; ++i) {
      const auto [tile, u] = tile_items_[i];
      const AttentionUnit& unit = units_[u];
      if (tile + 1 == unit.tiles())
        store_heads(index, in, unit.q_row, unit.kv_head, desk.qkv.data() + unit.q_row * width);
      const std::byte* next = nullptr;
      if (i + 1 < end) {
        const kernels::KvPages pages = job_of(units_[tile_items_[i + 1].unit], layer_base).pages;
        next = pages.base +
               static_cast<size_t>(pages.blocks[tile_items_[i + 1].tile]) * pages.block_bytes;
      }
      kernels::attend_partials(job_at_desk(unit), tile, tile + 1, partial_of(u, tile), scratch,
                               next);
    }
    fetch_share(weights_.layers[static_cast<size_t>(index)].output, team);
    team.meet();
    for (size_t u = 0; u < units_.size(); ++u) {
      const int64_t last = std::min(wave + kWaveTiles, units_[u].tiles());
      if (wave >= last || (!own && static_cast<int>(u) % team.size() != team.rank())) continue;
      kernels::AttentionJob job = job_at_desk(units_[u]);
      if (own) job.out = desk.attended.data() + (job.out - attended_.data());
      kernels::attend_combine(
          job, wave, last, partial_of(u, 0),
          (own ? desk.states : states_).data() + static_cast<int64_t>(u) * partial);
    }
    if (!own) team.meet();
  }
  return own;
}

}  // namespace deepmint::dense
