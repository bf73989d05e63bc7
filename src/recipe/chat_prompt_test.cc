#include "recipe/chat_prompt.h"

#include <gtest/gtest.h>

namespace deepmint::recipe {
namespace {

// The template inside SmolLM2's GGUF file.
constexpr std::string_view kSmolLm2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
    "'<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    "Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}";
constexpr std::string_view kSmolLm2System =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

std::shared_ptr<const Tokenizer> tokenizer_with(std::vector<std::string> control) {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte)
    spec.vocab.push_back(std::string(1, static_cast<char>(byte)));
  for (std::string& text : control) {
    TokenizerSpec::Added added;
    added.id = static_cast<TokenId>(spec.vocab.size());
    added.text = text;
    added.special = true;
    spec.added.push_back(added);
    spec.vocab.push_back(std::move(text));
  }
  spec.pre = PreTokenizer::kGpt2;
  if (!control.empty()) spec.bos = 256;
  auto made = Tokenizer::create(std::move(spec));
  EXPECT_TRUE(made) << made.error().str();
  return *made;
}

const std::shared_ptr<const Tokenizer> kChatMl = tokenizer_with({"<|im_start|>", "<|im_end|>"});

std::string joined(const Result<std::vector<Segment>>& segments) {
  if (!segments) return "error: " + segments.error().str();
  std::string out;
  for (const Segment& s : *segments) out += s.text;
  return out;
}

const std::vector<std::vector<ChatMessage>> kConversations = {
    {{"user", "hi"}},
    {{"system", "be brief"}, {"user", "hi"}},
    {{"user", " a <|im_end|> b\n"}, {"assistant", "<|im_start|>"}, {"user", ""}},
    {{"assistant", "first"}, {"system", "late"}, {"user", "日本"}},
};

TEST(ChatPrompt, TheBuiltInPromptEqualsTheTemplateOfSmolLm2) {
  const auto own = load_chat_template(kSmolLm2, "llama", *kChatMl);
  ASSERT_TRUE(own) << own.error().str();
  ChatTemplate built_in;
  built_in.default_system = kSmolLm2System;
  for (const auto& messages : kConversations) {
    const auto ours = render_chat(built_in, messages), theirs = render_chat(*own, messages);
    EXPECT_EQ(joined(ours), joined(theirs));
    ASSERT_TRUE(ours && theirs);
    EXPECT_EQ(kChatMl->encode(*ours), kChatMl->encode(*theirs));
  }
}

TEST(ChatPrompt, WithoutATemplateTheVocabularyDecides) {
  const std::vector<ChatMessage> hi = {{"user", " hi "}};
  const auto chatml = load_chat_template("", "llama", *kChatMl);
  ASSERT_TRUE(chatml);
  EXPECT_EQ(joined(render_chat(*chatml, hi)),
            "<|im_start|>user\n hi <|im_end|>\n<|im_start|>assistant\n");
  const auto llama = load_chat_template(" \n", "llama",
                                        *tokenizer_with({"<|begin_of_text|>", "<|start_header_id|>",
                                                         "<|end_header_id|>", "<|eot_id|>"}));
  ASSERT_TRUE(llama);
  EXPECT_EQ(joined(render_chat(*llama, hi)),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  const auto none = load_chat_template("", "llama", *tokenizer_with({}));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(none.error().str().find("the llama model has neither"), std::string::npos);
}

TEST(ChatPrompt, ATemplateThatIsNotSupportedNamesTheConstruct) {
  const auto chat = load_chat_template("a\n{% include 'x' %}", "llama", *kChatMl);
  ASSERT_FALSE(chat);
  EXPECT_EQ(chat.error().str(),
            "chat template line 2: the statement {% include %} is not supported");
}

TEST(ChatPrompt, RolesOfATemplateCanBeControlTokens) {
  const auto chat = load_chat_template(
      "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content }}{% endfor %}", "phi3",
      *tokenizer_with({"<|user|>", "<|system|>"}));
  ASSERT_TRUE(chat);
  const std::vector<ChatMessage> messages = {{"user", "<|system|>"}};
  const auto segments = render_chat(*chat, messages);
  ASSERT_TRUE(segments);
  const std::vector<Segment> expected = {{Segment::Kind::kControl, "<|user|>"},
                                         {Segment::Kind::kText, "<|system|>"}};
  EXPECT_EQ(*segments, expected);
}

TEST(ChatPrompt, ToolsNeedAPlaceInTheTemplate) {
  const auto tools = json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  ASSERT_TRUE(tools);
  const std::vector<ChatMessage> hi = {{"user", "hi"}};
  const auto without = load_chat_template(kSmolLm2, "llama", *kChatMl);
  ASSERT_TRUE(without);
  EXPECT_EQ(render_chat(*without, hi, {.tools = *tools, .kwargs = {}}).error().str(),
            "tools: the model's chat template has no place for tools");
  const auto with =
      load_chat_template("{{ tools | tojson }}<tool_call>{{ mood }}", "llama", *kChatMl);
  ASSERT_TRUE(with);
  EXPECT_EQ(with->reply.calls, ReplyFormat::Calls::kHermes);
  const auto kwargs = json::parse(R"({"mood": "!"})");
  EXPECT_EQ(joined(render_chat(*with, hi, {.tools = *tools, .kwargs = *kwargs})),
            R"([{"type": "function", "function": {"name": "f"}}]<tool_call>!)");
}

TEST(ChatPrompt, APromptMayEndInsideTheThinkingBlock) {
  using Kind = Segment::Kind;
  const auto ends = [](std::vector<Segment> s) { return ends_in_thinking(s); };
  EXPECT_TRUE(ends({{Kind::kText, "x"}, {Kind::kControl, "<|im_start|>assistant\n<think>\n"}}));
  EXPECT_FALSE(ends({{Kind::kControl, "<think>\n\n</think>\n\n"}}));
  EXPECT_FALSE(ends({{Kind::kText, "<think>"}}));  // what a caller wrote opens nothing
  EXPECT_FALSE(ends({}));
}

TEST(ChatPrompt, BadConversationsNameThePlace) {
  const ChatTemplate built_in;
  EXPECT_EQ(render_chat(built_in, {}).error().str(),
            "messages: expected at least one message, found none");
  const std::vector<ChatMessage> bad = {{"user", "a"}, {"robot", "b"}};
  EXPECT_EQ(render_chat(built_in, bad).error().str(),
            "messages[1].role: expected role system, user or assistant, found \"robot\"");
  const auto own = load_chat_template(kSmolLm2, "llama", *kChatMl);
  ASSERT_TRUE(own);
  EXPECT_EQ(render_chat(*own, bad).error().str(),
            "messages[1].role: expected role system, user, assistant or tool, found \"robot\"");
  const auto strict =
      load_chat_template("{{ raise_exception('only one turn') }}", "llama", *kChatMl);
  ASSERT_TRUE(strict);
  EXPECT_EQ(render_chat(*strict, std::vector<ChatMessage>{{"user", "a"}}).error().str(),
            "chat template line 1: the chat template refuses this conversation: only one turn");
}

}  // namespace
}  // namespace deepmint::recipe
