#include "cli/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "cli/command_line.h"
#include "core/json.h"
#include "support/source_dir.h"

namespace deepmint::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Variables = std::vector<std::pair<std::string, std::string>>;

struct Loaded {
  Config config;
  Settings settings{config};
};

std::string message(const Status& status) { return status ? "no error" : status.error().str(); }

TEST(Settings, EveryNameIsUsedOnce) {
  Loaded l;
  std::set<std::string> keys, flags, variables;
  for (const Setting& s : l.settings.all()) {
    EXPECT_TRUE(keys.insert(s.key).second) << s.key;
    EXPECT_TRUE(flags.insert(s.flag).second) << s.flag;
    EXPECT_TRUE(variables.insert(s.variable).second) << s.variable;
    EXPECT_FALSE(s.help.empty()) << s.key;
    EXPECT_FALSE(s.values.empty()) << s.key;
  }
  EXPECT_GE(keys.size(), 15u);
}

TEST(Settings, EveryDefaultIsAcceptedAsTextAndChangesNothing) {
  Loaded l;
  for (const Setting& s : l.settings.all()) {
    EXPECT_EQ(s.text(), s.default_text) << s.key;
    EXPECT_EQ(message(s.assign(ConfigValue::from_text(s.default_text))), "no error") << s.key;
    EXPECT_EQ(s.text(), s.default_text) << s.key;
    EXPECT_EQ(s.origin.str(), "default");
  }
}

TEST(Settings, EveryNumberStatesBothEndsOfItsRange) {
  Loaded l;
  for (const Setting& s : l.settings.all())
    if (s.kind == "N" || s.kind == "X") {
      EXPECT_THAT(s.values, ::testing::ContainsRegex("(from|above) .* to ")) << s.key;
    }
}

TEST(Settings, LaterSourcesWin) {
  Loaded l;
  ASSERT_TRUE(l.settings.load_toml(
      "[cpu]\nthreads = 3\n[engine]\nmax_running = 5\nmax_waiting = 6\nkv_bytes = \"2GiB\"\n",
      "a.toml"));
  ASSERT_TRUE(l.settings.load_environment(
      Variables{{"DEEPMINT_CPU_THREADS", "4"}, {"DEEPMINT_ENGINE_MAX_RUNNING", "7"}}));
  ASSERT_TRUE(l.settings.set("cpu.threads", ConfigValue::from_text("9"),
                             {Origin::Kind::kFlag, "--threads"}));
  EXPECT_EQ(l.config.cpu.threads, 9);
  EXPECT_EQ(l.config.engine.max_running, 7);
  EXPECT_EQ(l.config.engine.max_waiting, 6);
  EXPECT_EQ(l.config.engine.kv_bytes, int64_t{2} << 30);
  EXPECT_EQ(l.config.engine.step_tokens, EngineConfig{}.step_tokens);
  EXPECT_EQ(l.settings.find("cpu.threads")->origin.str(), "--threads");
  EXPECT_EQ(l.settings.find("engine.max_running")->origin.str(), "DEEPMINT_ENGINE_MAX_RUNNING");
  EXPECT_EQ(l.settings.find("engine.max_waiting")->origin.str(), "a.toml:5");
  EXPECT_EQ(l.settings.find("engine.step_tokens")->origin.str(), "default");
  const std::string table = effective_table(l.settings);
  EXPECT_THAT(table, HasSubstr("(--threads)"));
  EXPECT_THAT(table, HasSubstr("(a.toml:5)"));
}

TEST(Settings, UnknownKeysNameTheLineAndTheNearestMatch) {
  Loaded l;
  EXPECT_EQ(
      message(l.settings.load_toml("\n[engine]\nmax_runing = 5\n", "c.toml")),
      "c.toml:3: unknown setting \"engine.max_runing\"; did you mean \"engine.max_running\"?");
  EXPECT_EQ(message(l.settings.load_toml("[enigne]\n", "c.toml")),
            "c.toml:1: unknown section \"enigne\"; did you mean \"engine\"?");
  EXPECT_EQ(message(l.settings.load_toml("threads = 2\n", "c.toml")),
            "c.toml:1: unknown setting \"threads\"");
  EXPECT_EQ(message(l.settings.load_toml("[cpu.threads]\nx = 1\n", "c.toml")),
            "c.toml:1: unknown section \"cpu.threads\"");
  EXPECT_EQ(message(l.settings.load_environment(Variables{{"DEEPMINT_CPU_THREAD", "2"}})),
            "environment: unknown variable \"DEEPMINT_CPU_THREAD\"; did you mean "
            "\"DEEPMINT_CPU_THREADS\"?");
  EXPECT_EQ(message(l.settings.load_environment(Variables{{"DEEPMINT_SOMETHING_ELSE", "2"}})),
            "environment: unknown variable \"DEEPMINT_SOMETHING_ELSE\"; docs/knobs.md lists the "
            "known ones");
  EXPECT_TRUE(
      l.settings.load_environment(Variables{{"DEEPMINT_TEST_SEED", "2"}, {"DEEPMINT_BIN", "x"}}));
}

TEST(Settings, WrongValuesSayWhatWasExpectedFoundAndWhere) {
  Loaded l;
  const auto flag = [&](std::string_view key, const char* text) {
    return message(l.settings.set(key, ConfigValue::from_text(text),
                                  {Origin::Kind::kFlag, l.settings.find(key)->flag}));
  };
  EXPECT_EQ(flag("cpu.threads", "many"),
            "--threads: expected an integer from 0 to 1024, found \"many\"");
  EXPECT_EQ(flag("cpu.threads", "-1"),
            "--threads: expected an integer from 0 to 1024, found \"-1\"");
  EXPECT_EQ(flag("cpu.threads", "2.5"),
            "--threads: expected an integer from 0 to 1024, found \"2.5\"");
  EXPECT_EQ(flag("cpu.threads", "99999999999999999999"),
            "--threads: expected an integer from 0 to 1024, found \"99999999999999999999\"");
  EXPECT_EQ(flag("cpu.threads", ""), "--threads: expected an integer from 0 to 1024, found \"\"");
  for (const char* bad :
       {"nan", "NaN", "inf", "-inf", "1e999", "-0.1", "warm", "0.5x", "1e39", "1e300"})
    EXPECT_EQ(flag("sampling.temperature", bad),
              std::string("--temperature: expected auto, or a number from 0 to 1000000, found \"") +
                  bad + "\"");
  EXPECT_THAT(flag("sampling.top_p", "0"), HasSubstr("above 0 and up to 1"));
  EXPECT_EQ(flag("sampling.seed", "18446744073709551616"),
            "--seed: expected auto, or an integer from 0 to 18446744073709551615, found "
            "\"18446744073709551616\"");
  EXPECT_EQ(flag("sampling.top_k", "2147483648"),
            "--top-k: expected auto, or an integer from 0 to 2147483647, found \"2147483648\"");
  EXPECT_EQ(flag("sampling.max_tokens", "-2"),
            "--max-tokens: expected an integer from -1 to 2147483647, found \"-2\"");
  EXPECT_EQ(flag("engine.step_tokens", "2000000000"),
            "--step-tokens: expected an integer from 1 to 65536, found \"2000000000\"");
  EXPECT_THAT(flag("engine.kv_bytes", "-1"), HasSubstr("from 0 to 9223372036854775807"));
  EXPECT_THAT(flag("cpu.isa", "foo"), HasSubstr("one of x86-64, avx2"));
  EXPECT_THAT(flag("log.level", "loud"), HasSubstr("one of trace, debug"));
  EXPECT_THAT(flag("engine.kv_bytes", "9999999TiB"), HasSubstr("expected a size"));
  EXPECT_EQ(message(l.settings.load_toml("[cpu]\nthreads = \"2\"\n", "c.toml")),
            "c.toml:2: cpu.threads: expected an integer from 0 to 1024, found \"2\"");
  EXPECT_EQ(
      message(l.settings.load_toml("[sampling]\ntemperature = nan\n", "c.toml")),
      "c.toml:2: sampling.temperature: expected auto, or a number from 0 to 1000000, found nan");
  EXPECT_THAT(message(l.settings.load_toml("[cpu]\nthreads = 1979-05-27\n", "c.toml")),
              HasSubstr("found a date or time"));
  EXPECT_THAT(message(l.settings.load_toml("[cpu]\nthreads = [1]\n", "c.toml")),
              HasSubstr("c.toml:2: cpu.threads: expected"));
  EXPECT_THAT(message(l.settings.load_toml("[cpu\n", "c.toml")),
              StartsWith("c.toml:1: not valid TOML"));
  EXPECT_THAT(message(l.settings.load_toml("[cpu]\nthreads = 1\nthreads = 2\n", "c.toml")),
              StartsWith("c.toml:3: not valid TOML"));
  EXPECT_THAT(message(l.settings.load_file("/nonexistent/x.toml")),
              HasSubstr("/nonexistent/x.toml: cannot open"));
  EXPECT_THAT(message(l.settings.load_file("/")), StartsWith("/: cannot"));
  for (const Setting& s : l.settings.all()) EXPECT_EQ(s.text(), s.default_text) << s.key;
}

TEST(Settings, AutoIsAValue) {
  Loaded l;
  ASSERT_TRUE(l.settings.load_toml("[sampling]\ntemperature = 0.25\nseed = 7\n", "a.toml"));
  EXPECT_EQ(l.config.sampling.temperature, 0.25);
  ASSERT_TRUE(l.settings.load_environment(Variables{{"DEEPMINT_SAMPLING_TEMPERATURE", "auto"}}));
  EXPECT_FALSE(l.config.sampling.temperature.has_value());
  SamplingParams params;
  params.temperature = 0.5f;
  params.top_k = 3;
  l.config.sampling.apply(params);
  EXPECT_EQ(params.temperature, 0.5f);
  EXPECT_EQ(params.seed, 7u);
  ASSERT_TRUE(l.settings.set("sampling.seed", ConfigValue::from_text("18446744073709551615"), {}));
  EXPECT_EQ(l.config.sampling.seed, 18446744073709551615u);
  ASSERT_TRUE(l.settings.set("sampling.top_k", ConfigValue::from_text("0"), {}));
  l.config.sampling.apply(params);
  EXPECT_EQ(params.top_k, 0);
}

TEST(Settings, HostileFilesEndInOneLine) {
  Loaded l;
  const std::string deep = "x = " + std::string(100000, '[');
  for (const std::string& text :
       {deep, std::string("\xff\xfe\x00", 3), std::string("a = \"\x01\""),
        std::string("[cpu]\nthreads = 9223372036854775808"), std::string("\"\\n\" = 1"),
        std::string("sampling\xd2\x85op_p = 1"), std::string("[cpu]\nth\u00e9 = 1"),
        std::string("cpu.threads =f\nia = 1"), std::string(100000, 'a'),
        "[" + std::string(100000, '.')}) {
    const Status status = l.settings.load_toml(text, "h.toml");
    ASSERT_FALSE(status);
    EXPECT_LT(status.error().str().size(), 400u);
    EXPECT_THAT(status.error().str(), Not(HasSubstr("\n")));
  }
}

TEST(Settings, JsonCarriesValueDefaultAndOrigin) {
  Loaded l;
  ASSERT_TRUE(l.settings.set("cpu.threads", ConfigValue::from_text("2"),
                             {Origin::Kind::kFlag, "--threads"}));
  const auto doc = json::parse(effective_json(l.settings));
  ASSERT_TRUE(doc);
  const json::Value* threads = doc->find("cpu.threads");
  ASSERT_NE(threads, nullptr);
  EXPECT_EQ(threads->find("value")->as_string(), "2");
  EXPECT_EQ(threads->find("default")->as_string(), "0");
  EXPECT_EQ(threads->find("origin")->as_string(), "--threads");
}

TEST(Knobs, PageIsFresh) {
  const std::string path = testing::source_path("docs/knobs.md").string();
  Loaded l;
  const std::string fresh = knobs_markdown(l.settings);
  if (std::getenv("DEEPMINT_TEST_UPDATE") != nullptr) std::ofstream(path) << fresh;
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == fresh)
      << "stale: run `deepmint config --markdown > docs/knobs.md`, or this test with "
         "DEEPMINT_TEST_UPDATE=1";
}

}  // namespace
}  // namespace deepmint::cli
