// Tests that run once on each instruction set that this machine has.
//
//   class AddTest : public testing::IsaTest {};
//   INSTANTIATE_TEST_SUITE_P(Isas, AddTest, ::testing::ValuesIn(available_isas()),
//                            testing::isa_name);
//   TEST_P(AddTest, IsExact) { ... }
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/cpu_isa.h"

namespace deepmint::testing {

class IsaTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    before_ = active_isa();
    set_active_isa(GetParam());
  }
  void TearDown() override { set_active_isa(before_); }

 private:
  Isa before_ = Isa::kX86_64;
};

inline std::string isa_name(const ::testing::TestParamInfo<Isa>& i) {
  std::string name(to_string(i.param));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace deepmint::testing
