#include "cli/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "cli/line_reader.h"
#include "core/json.h"

namespace deepmint::cli {
namespace {

using ::testing::HasSubstr;
using Kind = SlashCommand::Kind;

TEST(Conversation, KeepsTurnsBehindTheSystemMessage) {
  Conversation c(std::nullopt);
  EXPECT_TRUE(c.messages().empty());
  c.say("one");
  c.answer("two");
  c.set_system("be brief");
  ASSERT_EQ(c.messages().size(), 3u);
  EXPECT_EQ(c.messages()[0].role, "system");
  EXPECT_EQ(c.messages()[2].content, "two");
  c.say("three \"x\"\n");
  const auto doc = json::parse(c.json());
  ASSERT_TRUE(doc);
  EXPECT_EQ(doc->items()[3].find("content")->as_string(), "three \"x\"\n");
  c.take_back();
  EXPECT_EQ(c.messages().size(), 3u);
  c.reset();
  EXPECT_EQ(c.messages().size(), 1u);
  c.set_system("");
  EXPECT_TRUE(c.messages().empty());
}

TEST(SlashCommand, ParsesNamesAndArguments) {
  EXPECT_TRUE(is_slash_command("/help"));
  EXPECT_FALSE(is_slash_command("//help"));
  EXPECT_FALSE(is_slash_command(" /help"));
  EXPECT_FALSE(is_slash_command(""));
  EXPECT_EQ(parse_slash_command("/help")->kind, Kind::kHelp);
  EXPECT_EQ(parse_slash_command("/quit")->kind, Kind::kExit);
  EXPECT_EQ(parse_slash_command("/system  You are terse. ")->argument, "You are terse.");
  EXPECT_THAT(parse_slash_command("/rest").error().str(), HasSubstr("did you mean \"/reset\"?"));
  EXPECT_THAT(parse_slash_command("/frobnicate").error().str(), HasSubstr("/help lists"));
  EXPECT_FALSE(parse_slash_command("/"));
}

class Lines : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::pipe(ends_), 0); }
  void TearDown() override {
    ::close(ends_[0]);
    if (ends_[1] >= 0) ::close(ends_[1]);
  }
  void send(std::string_view text) {
    ASSERT_EQ(::write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void end() {
    ::close(ends_[1]);
    ends_[1] = -1;
  }
  int ends_[2] = {-1, -1};
};

TEST_F(Lines, ComeWholeHoweverTheBytesArrive) {
  SignalPipe signals({SIGUSR1});
  LineReader reader(signals, ends_[0]);
  send("one\r\ntwo\n\nth");
  EXPECT_EQ(reader.next().text, "one");
  EXPECT_EQ(reader.next().text, "two");
  EXPECT_EQ(reader.next().text, "");
  send("r\xc3");
  send(
      "\xa9"
      "e\nbad \xff byte\nlast");
  end();
  EXPECT_EQ(reader.next().text, "thrée");
  EXPECT_EQ(reader.next().text, "bad \xef\xbf\xbd byte");
  const LineReader::Input last = reader.next();
  EXPECT_EQ(last.kind, LineReader::Kind::kLine);
  EXPECT_EQ(last.text, "last");
  EXPECT_EQ(reader.next().kind, LineReader::Kind::kEnd);
  EXPECT_EQ(reader.next().kind, LineReader::Kind::kEnd);
}

TEST_F(Lines, AnInterruptDropsWhatWasTyped) {
  SignalPipe signals({SIGUSR1});
  LineReader reader(signals, ends_[0]);
  send("half");
  std::thread interrupter([] { ::kill(::getpid(), SIGUSR1); });
  EXPECT_EQ(reader.next().kind, LineReader::Kind::kInterrupt);
  interrupter.join();
  send("whole\n");
  const std::string text = reader.next().text;
  // The half line is dropped when it was read before the signal, which the kernel decides.
  EXPECT_TRUE(text == "whole" || text == "halfwhole") << text;
}

TEST_F(Lines, SignalsAreHeldUntilTaken) {
  SignalPipe signals({SIGUSR1, SIGUSR2});
  EXPECT_EQ(signals.take(), 0);
  ::raise(SIGUSR1);
  ::raise(SIGUSR2);
  EXPECT_EQ(signals.take(), SIGUSR1);
  EXPECT_EQ(signals.take(), SIGUSR2);
  EXPECT_EQ(signals.take(), 0);
}

}  // namespace
}  // namespace deepmint::cli
