#include "linear_rival.h"

#ifdef DEEPMINT_HAS_DNNL
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#endif

namespace deepmint::bench {

#ifdef DEEPMINT_HAS_DNNL
namespace {

using dnnl::memory;

std::function<void()> rival(int64_t m, int64_t n, int64_t k, memory::data_type x_type,
                            memory::data_type w_type, memory::data_type y_type) {
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    const memory::desc x_desc({m, k}, x_type, memory::format_tag::ab);
    const memory::desc w_desc({k, n}, w_type, memory::format_tag::any);
    const memory::desc y_desc({m, n}, y_type, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(x_desc, w_desc, y_desc), engine);
    struct State {
      dnnl::stream stream;
      dnnl::matmul product;
      std::unordered_map<int, memory> arguments;
    };
    auto state =
        std::make_shared<State>(State{dnnl::stream(engine),
                                      dnnl::matmul(plan),
                                      {{DNNL_ARG_SRC, memory(plan.src_desc(), engine)},
                                       {DNNL_ARG_WEIGHTS, memory(plan.weights_desc(), engine)},
                                       {DNNL_ARG_DST, memory(plan.dst_desc(), engine)}}});
    return [state] {
      state->product.execute(state->stream, state->arguments);
      state->stream.wait();
    };
  } catch (const dnnl::error&) {
    return {};  // not on this machine
  }
}

}  // namespace

std::function<void()> bf16_rival(int64_t m, int64_t n, int64_t k) {
  return rival(m, n, k, memory::data_type::bf16, memory::data_type::bf16, memory::data_type::f32);
}
std::function<void()> int8_rival(int64_t m, int64_t n, int64_t k) {
  return rival(m, n, k, memory::data_type::u8, memory::data_type::s8, memory::data_type::s32);
}
#else
std::function<void()> bf16_rival(int64_t, int64_t, int64_t) { return {}; }
std::function<void()> int8_rival(int64_t, int64_t, int64_t) { return {}; }
#endif

}  // namespace deepmint::bench
