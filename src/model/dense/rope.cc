#include "model/dense/rope.h"

#include <algorithm>
#include <cmath>

#include "kernels/scalar_math.h"

namespace deepmint::dense {
namespace {

using kernels::exp_double;
using kernels::ln_double;

constexpr double kTwoPi = 0x1.921fb54442d18p+2;

// The (fractional) pair that makes `turns` full turns over the original context.
double pair_with_turns(const RopeConfig& c, double turns) {
  return c.rotary * ln_double(c.original_context / (turns * kTwoPi)) / (2 * ln_double(c.base));
}

}  // namespace

Rope make_rope(const RopeConfig& c, std::span<const float> factors) {
  Rope rope;
  const int pairs = c.rotary / 2;
  rope.magnitude = c.magnitude;
  rope.frequencies.resize(static_cast<size_t>(pairs));
  double low = 0, high = 0;
  if (c.scaling == RopeConfig::Scaling::kYarn) {
    low = pair_with_turns(c, c.beta_fast);
    high = pair_with_turns(c, c.beta_slow);
    if (c.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0);
    high = std::min(high, c.rotary - 1.0);
  }
  for (int pair = 0; pair < pairs; ++pair) {
    const double plain = exp_double(-2.0 * pair / c.rotary * ln_double(c.base));
    double f = plain;
    switch (c.scaling) {
      case RopeConfig::Scaling::kNone:
        break;
      case RopeConfig::Scaling::kLinear:
        f = plain / c.factor;
        break;
      case RopeConfig::Scaling::kYarn: {
        const double ramp = std::clamp((pair - low) / std::max(0.001, high - low), 0.0, 1.0);
        f = plain / c.factor * ramp + plain * (1 - ramp);
        break;
      }
      case RopeConfig::Scaling::kLlama3: {
        const double wavelength = kTwoPi / plain;
        if (wavelength > c.original_context / c.low_frequency_factor) {
          f = plain / c.factor;
        } else if (wavelength >= c.original_context / c.high_frequency_factor) {
          const double smooth = (c.original_context / wavelength - c.low_frequency_factor) /
                                (c.high_frequency_factor - c.low_frequency_factor);
          f = (1 - smooth) * plain / c.factor + smooth * plain;
        }
        break;
      }
    }
    if (!factors.empty()) f /= static_cast<double>(factors[static_cast<size_t>(pair)]);
    rope.frequencies[static_cast<size_t>(pair)] = f;
  }
  return rope;
}

void Rope::fill(int32_t position, float* out) const {
  const size_t pairs = frequencies.size();
  for (size_t i = 0; i < pairs; ++i) {
    const kernels::SinCos sc = kernels::sincos_double(position * frequencies[i]);
    out[i] = static_cast<float>(sc.cos * magnitude);
    out[pairs + i] = static_cast<float>(sc.sin * magnitude);
  }
}

}  // namespace deepmint::dense
