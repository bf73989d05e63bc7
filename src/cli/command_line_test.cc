#include "cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/near_miss.h"

namespace deepmint::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Sample : public Command {
 public:
  explicit Sample(std::string_view name) : name_(name) {}
  std::string_view name() const override { return name_; }
  std::string_view summary() const override { return "answers one prompt"; }
  std::string_view description() const override {
    return "once    with one answer, in words that go on until they are past the middle\n"
           "twice   with two answers, in words that go on until they are past the middle\n\n"
           "Then it ends.";
  }
  std::span<const std::string_view> sections() const override {
    static constexpr std::string_view kSections[] = {"cpu", "sampling"};
    return kSections;
  }
  void options(Options& o) override {
    o.positional("MODEL", model, "the model");
    o.positional("OTHER", other, "another", /*required=*/false);
    o.group("Prompt");
    o.text("-p,--prompt", prompt, "TEXT", "what to answer");
    o.texts("--stop", stop, "TEXT", "ends the reply");
    o.text("--mode", mode, "TEXT", "how");
    o.flag("--json", json, "for machines");
  }
  Status run(const Config&, const Settings&) override { return {}; }

  std::string_view name_;
  std::string model, other, mode = "plain";
  std::optional<std::string> prompt;
  std::vector<std::string> stop;
  bool json = false;
};

struct Parser {
  Config config;
  Settings settings{config};
  CommandList commands;
  Sample* run = nullptr;
  Parser() {
    commands.push_back(std::make_unique<Sample>("run"));
    commands.push_back(std::make_unique<Sample>("chat"));
    run = static_cast<Sample*>(commands[0].get());
  }
  Result<CommandLine> operator()(const std::vector<std::string>& args) {
    return parse_command_line(args, commands, settings);
  }
  std::string error(const std::vector<std::string>& args) {
    const auto line = (*this)(args);
    return line ? "no error" : line.error().str();
  }
};

TEST(CommandLine, ReadsOptionsFlagsAndSettings) {
  Parser p;
  const auto line =
      p({"run", "m.gguf", "-p", "hello", "--stop", "a,b", "--stop=[c,d]", "--json", "--threads",
         "2", "--threads=3", "--temperature", "0", "--config", "c.toml"});
  ASSERT_TRUE(line) << line.error().str();
  EXPECT_EQ(line->command, p.run);
  EXPECT_EQ(p.run->model, "m.gguf");
  EXPECT_EQ(p.run->prompt, "hello");
  EXPECT_THAT(p.run->stop, ElementsAre("a,b", "[c,d]"));
  EXPECT_TRUE(p.run->json);
  EXPECT_EQ(line->config_file, "c.toml");
  ASSERT_EQ(line->flags.size(), 2u);
  EXPECT_EQ(line->flags[0].key, "cpu.threads");
  EXPECT_EQ(line->flags[0].value, "3");
  EXPECT_EQ(line->flags[1].key, "sampling.temperature");
}

TEST(CommandLine, ValuesMayLookLikeAnything) {
  for (const std::string value : {"-", "--help", "-h", "--json", "-5", "chat", "", "=", "a=b",
                                  "[x]", "\"q\"", "--", "- a", "\n"}) {
    Parser p;
    const auto line = p({"run", "chat", "-p", value});
    ASSERT_TRUE(line) << value << ": " << line.error().str();
    EXPECT_TRUE(line->page.empty()) << value;
    EXPECT_EQ(p.run->prompt, value);
    EXPECT_EQ(p.run->model, "chat");
    Parser q;
    ASSERT_TRUE(q({"run", "--prompt=" + value, "m"})) << value;
    EXPECT_EQ(q.run->prompt, value);
    EXPECT_EQ(q.run->model, "m");
  }
}

TEST(CommandLine, NamesTheNearestMatch) {
  Parser p;
  EXPECT_EQ(p.error({"chta", "m"}), "unknown command \"chta\"; did you mean \"chat\"?");
  EXPECT_EQ(p.error({"synthesize"}),
            "unknown command \"synthesize\"; deepmint --help lists the commands");
  EXPECT_EQ(p.error({"run", "m", "--temprature", "0"}),
            "deepmint run: unknown option \"--temprature\"; did you mean \"--temperature\"?");
  EXPECT_EQ(p.error({"run", "--promt=x", "m"}),
            "deepmint run: unknown option \"--promt\"; did you mean \"--prompt\"?");
  EXPECT_EQ(p.error({"run", "m", "-x"}),
            "deepmint run: unknown option \"-x\"; did you mean \"-p\"?");
  EXPECT_EQ(p.error({"--verison"}),
            "deepmint: unknown option \"--verison\"; did you mean \"--version\"?");
  EXPECT_THAT(p.error({"--threads", "2", "run"}), HasSubstr("a command comes first"));
}

TEST(CommandLine, WrongUseIsOneLine) {
  Parser p;
  EXPECT_EQ(p.error({}), "expected a command; deepmint --help lists them");
  EXPECT_EQ(p.error({"run"}), "deepmint run: expected MODEL: the model");
  EXPECT_EQ(p.error({"run", "a", "b", "c"}), "deepmint run: unexpected argument \"c\"");
  EXPECT_EQ(p.error({"run", "--", "m", "n", "-p", "x"}),
            "deepmint run: unexpected argument \"-p\"");
  EXPECT_THAT(p.error({"run", "m", "-p"}),
              HasSubstr("deepmint run: expected -p TEXT, found no TEXT"));
  EXPECT_EQ(p.error({"run", "m", "--stop", "a", "--prompt"}),
            "deepmint run: expected --prompt TEXT, found no TEXT");
  EXPECT_EQ(p.error({"run", "m", "--temperature"}),
            "deepmint run: expected --temperature X, found no X");
  EXPECT_EQ(p.error({"run", "m", "--json=maybe"}),
            "--json: expected true, false or no value, found \"maybe\"");
  EXPECT_EQ(p.error({"run", "m", "--json=false"}), "no error");
  EXPECT_EQ(p.error({"run", "--", "--json"}), "no error");
  EXPECT_EQ(p.run->model, "--json");
}

TEST(CommandLine, HelpPrintsEveryOptionWithItsDefault) {
  Parser p;
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"run", "--help"}, {"run", "-h"}, {"help", "run"}, {"run", "m", "--json", "--help"}}) {
    const auto line = p(args);
    ASSERT_TRUE(line);
    EXPECT_THAT(line->page, HasSubstr("usage: deepmint run MODEL [OTHER] [options]"));
    EXPECT_THAT(line->page, HasSubstr("-p, --prompt TEXT"));
    EXPECT_THAT(line->page, HasSubstr("[plain]"));
    EXPECT_THAT(line->page, HasSubstr(std::string("\n") + std::string(p.run->description())));
    for (const Setting& s : p.settings.all())
      if (s.section() == "cpu" || s.section() == "sampling") {
        EXPECT_THAT(line->page, HasSubstr(s.flag));
      }
    for (size_t begin = 0; begin < line->page.size();) {
      const size_t end = line->page.find('\n', begin);
      EXPECT_LE(end - begin, 100u) << line->page.substr(begin, end - begin);
      begin = end + 1;
    }
  }
  EXPECT_THAT(p({"--help"})->page, HasSubstr("answers one prompt"));
  EXPECT_THAT(p({"--version"})->page, HasSubstr("deepmint "));
}

TEST(NearMiss, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("chta", "chat"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  const std::vector<std::string> names = {"run", "chat", "score"};
  EXPECT_EQ(near_miss("scor", names), "score");
  EXPECT_EQ(near_miss("rnu", names), "run");
  EXPECT_EQ(near_miss("inspect", names), "");
  EXPECT_EQ(near_miss(std::string(100000, 'r'), names), "");
}

}  // namespace
}  // namespace deepmint::cli
