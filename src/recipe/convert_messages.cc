#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "recipe/convert_common.h"
#include "recipe/prompt_text.h"
#include "recipe/spelling.h"

namespace deepmint::recipe {
namespace {

class MessagesConverter : ConvertBase {
 public:
  explicit MessagesConverter(const ConvertOptions& o) : ConvertBase(o) {
    r_.protocol = Protocol::kMessages;
  }

  Result<ConversationRequest> run(const json::Value& body) {
    DEEPMINT_TRY(f, Fields::of(body, "struct MessagesRequest"));
    DEEPMINT_TRY(messages, f.need_array("messages"));
    DEEPMINT_TRY(model, f.need_string("model"));
    r_.model = std::string(model);
    DEEPMINT_CHECK_OK(read_system(f));
    for (const json::Value& m : *messages) DEEPMINT_CHECK_OK(read_message(m));
    DEEPMINT_CHECK_OK(read_settings(f));
    DEEPMINT_CHECK_OK(read_tools(f));

    DEEPMINT_CHECK_OK(check_model());
    if (messages->empty()) return request_error("messages: at least one message is required");
    DEEPMINT_CHECK_OK(set_sampling(temperature_, top_p_, max_tokens_, "max_tokens", true));
    DEEPMINT_CHECK_OK(set_stop(std::move(stop_), "stop_sequences"));
    DEEPMINT_CHECK_OK(add_tools());
    for (size_t i = 0; i < raw_.size(); ++i) DEEPMINT_CHECK_OK(add_message(raw_[i], i));
    DEEPMINT_CHECK_OK(end_of_messages());
    DEEPMINT_CHECK_OK(set_tools(std::move(tools_), choice_));
    DEEPMINT_CHECK_OK(set_format(std::move(format_)));
    DEEPMINT_CHECK_OK(
        finish(r_.inference.disable_parallel_tool_use.value_or(false), "content[].thinking"));
    return std::move(r_);
  }

 private:
  struct Source {
    std::string_view type = {}, media_type = {}, data = {}, url = {};
  };
  struct Block {
    std::string_view type = {}, text = {}, id = {}, name = {}, title = {};
    const json::Value* input = nullptr;
    Source source = {};
    std::vector<Block> content = {};  // tool_result
  };
  struct Raw {
    std::string_view role;
    bool is_text = false;  // content was a plain string
    std::vector<Block> blocks;
  };

  Result<Source> read_source(const Fields& f, bool document) const {
    DEEPMINT_TRY(value, f.need("source"));
    Source s;
    if (document) {  // documents are read loosely: they become text or a placeholder
      if (const json::Value* v = value->find("type"); v != nullptr && v->is_string())
        s.type = v->as_string();
      if (const json::Value* v = value->find("media_type"); v != nullptr && v->is_string())
        s.media_type = v->as_string();
      if (const json::Value* v = value->find("data"); v != nullptr && v->is_string())
        s.data = v->as_string();
      return s;
    }
    DEEPMINT_TRY(g, Fields::of(*value, "internally tagged enum MessagesImageSource"));
    DEEPMINT_TRY(type, g.need_variant("type", {"base64", "url", "file"}));
    s.type = type;
    if (type == "base64") {
      if (v02()) {
        DEEPMINT_TRY(media, g.need_variant("media_type", {"image/jpeg", "image/jpg", "image/png",
                                                          "image/gif", "image/webp"}));
        s.media_type = media;
      } else {
        DEEPMINT_TRY(media, g.need_string("media_type"));
        s.media_type = media.substr(0, media.find(';'));
      }
      DEEPMINT_TRY(data, g.need_string("data"));
      s.data = data;
    } else if (type == "url") {
      DEEPMINT_TRY(url, g.need_string("url"));
      s.url = url;
    }
    return s;
  }

  Result<Block> read_block(const json::Value& v, bool in_result) const {
    DEEPMINT_TRY(f, Fields::of(v, "internally tagged enum MessagesContentBlock"));
    Block b;
    if (ours() || in_result) {  // the types of a result were checked before
      DEEPMINT_TRY(type, f.need_string("type"));
      b.type = type;
    } else if (v01()) {
      DEEPMINT_TRY(type, f.need_variant("type", {"text", "image", "document", "thinking",
                                                 "server_tool_use", "tool_use", "tool_result",
                                                 "web_search_tool_result", "tool_reference"}));
      b.type = type;
    } else {
      DEEPMINT_TRY(type, f.need_variant("type", {"text", "image", "document", "thinking",
                                                 "server_tool_use", "tool_use", "tool_result",
                                                 "web_search_tool_result", "tool_addition"}));
      b.type = type;
    }
    if (b.type == "text") {
      DEEPMINT_TRY(text, f.need_string("text"));
      b.text = text;
    } else if (b.type == "thinking") {
      DEEPMINT_TRY(text, f.need_string("thinking"));
      b.text = text;
    } else if (b.type == "image" || b.type == "document") {
      DEEPMINT_TRY(source, read_source(f, b.type == "document"));
      b.source = source;
      if (b.type == "document") {
        if (const json::Value* title = f.get("title"); title != nullptr && title->is_string())
          b.title = title->as_string();
      }
    } else if (b.type == "tool_use") {
      DEEPMINT_TRY(id, f.need_string("id"));
      DEEPMINT_TRY(name, f.need_string("name"));
      DEEPMINT_TRY(input, f.need("input"));
      b.id = id;
      b.name = name;
      b.input = input;
    } else if (b.type == "tool_result") {
      DEEPMINT_TRY(id, f.need_string("tool_use_id"));
      b.id = id;
      if (const json::Value* content = f.get("content"))
        DEEPMINT_CHECK_OK(read_result(*content, b));
    } else if (b.type == "tool_reference") {
      if (const json::Value* name = f.get("tool_name"); name != nullptr && name->is_string())
        b.name = name->as_string();
    } else if (b.type == "tool_addition") {
      DEEPMINT_TRY(tool, f.need("tool"));
      DEEPMINT_TRY(g, Fields::of(*tool, "internally tagged enum MessagesToolReference"));
      DEEPMINT_CHECK_OK(g.need_variant("type", {"tool_reference"}));
      DEEPMINT_TRY(name, g.need_string("name"));
      b.name = name;
    }
    return b;
  }

  Status read_result(const json::Value& v, Block& b) const {
    if (v.is_string()) {
      b.content.push_back(Block{.type = "text", .text = v.as_string()});
      return {};
    }
    if (!v.is_array()) return body_error("expected a string or a list");
    for (const json::Value& item : v.items()) {
      DEEPMINT_TRY(f, Fields::of(item, "internally tagged enum MessagesToolResultBlock"));
      if (!ours())
        DEEPMINT_CHECK_OK(f.need_variant("type", {"text", "image", "document", "tool_reference"}));
      DEEPMINT_TRY(inner, read_block(item, true));
      b.content.push_back(std::move(inner));
    }
    return {};
  }

  Status read_system(const Fields& f) {
    const json::Value* system = f.get("system");
    if (system == nullptr) return {};
    std::string text;
    if (system->is_string()) {
      text = system->as_string();
    } else if (system->is_array()) {
      bool first = true;
      for (const json::Value& v : system->items()) {
        DEEPMINT_TRY(g, Fields::of(v, "internally tagged enum MessagesSystemBlock"));
        DEEPMINT_CHECK_OK(g.need_variant("type", {"text"}));
        DEEPMINT_TRY(part, g.need_string("text"));
        if (!first) text.append("\n\n");
        first = false;
        text.append(part);
      }
    } else {
      return body_error("expected a string or a list");
    }
    DEEPMINT_CHECK_OK(check_mark(text));
    Message m;
    m.role = Role::kSystem;
    m.content = std::move(text);
    r_.conversation.messages.push_back(std::move(m));
    return {};
  }

  Status read_message(const json::Value& v) {
    DEEPMINT_TRY(f, Fields::of(v, "struct MessagesMessage"));
    DEEPMINT_TRY(role, f.need_variant("role", {"user", "assistant", "system"}));
    DEEPMINT_TRY(content, f.need("content"));
    Raw raw;
    raw.role = role;
    if (content->is_string()) {
      raw.is_text = true;
      raw.blocks.push_back(Block{.type = "text", .text = content->as_string()});
    } else if (content->is_array()) {
      for (const json::Value& item : content->items()) {
        DEEPMINT_TRY(block, read_block(item, false));
        raw.blocks.push_back(std::move(block));
      }
    } else {
      return body_error("expected a string or a list");
    }
    raw_.push_back(std::move(raw));
    return {};
  }

  Status read_settings(const Fields& f) {
    DEEPMINT_TRY(max_tokens, f.opt_u32("max_tokens"));
    DEEPMINT_TRY(temperature, f.opt_f32("temperature"));
    DEEPMINT_TRY(top_p, f.opt_f32("top_p"));
    DEEPMINT_TRY(stream, f.opt_bool("stream"));
    DEEPMINT_TRY(stop, f.opt_array("stop_sequences"));
    DEEPMINT_CHECK_OK(f.opt_object("metadata", "struct MessagesMetadata"));
    max_tokens_ = max_tokens;
    temperature_ = temperature;
    top_p_ = top_p;
    r_.reply.stream = stream.value_or(false);
    if (stop != nullptr) {
      for (const json::Value& s : *stop) {
        if (!s.is_string()) return wrong_type(s, "a string");
        stop_.push_back(s.as_string());
      }
    }
    DEEPMINT_TRY(thinking, f.opt_object("thinking", "struct MessagesThinking"));
    std::optional<std::string_view> type, effort;
    if (thinking) {
      DEEPMINT_TRY(t, thinking->need_variant("type", {"adaptive", "enabled", "disabled"}));
      DEEPMINT_TRY(budget, thinking->opt_u32("budget_tokens"));
      type = t;
      if (!v02()) r_.inference.thinking_budget_tokens = budget;
    }
    DEEPMINT_TRY(config, f.opt_object("output_config", "struct MessagesOutputConfig"));
    if (config) {
      DEEPMINT_TRY(e, config->opt_variant("effort", {"none", "minimal", "low", "medium", "high",
                                                     "xhigh", "ultra", "max"}));
      effort = e;
      if (ours()) DEEPMINT_CHECK_OK(read_format(config->get("format")));
    }
    if (ours()) DEEPMINT_CHECK_OK(read_format(f.get("output_format")));
    return set_thinking(type, effort);
  }

  Status read_format(const json::Value* v) {
    if (v == nullptr) return {};
    DEEPMINT_TRY(f, Fields::of(*v, "an output format"));
    DEEPMINT_CHECK_OK(f.need_variant("type", {"json_schema"}));
    DEEPMINT_TRY(schema, f.need("schema"));
    format_.kind = ResponseFormat::Kind::kJsonSchema;
    format_.schema = *schema;
    return {};
  }

  Status read_tools(const Fields& f) {
    DEEPMINT_TRY(tools, f.opt_array("tools"));
    if (tools != nullptr) {
      for (const json::Value& v : *tools) {
        DEEPMINT_TRY(g, Fields::of(v, "struct MessagesTool"));
        RawTool t;
        if (const json::Value* type = g.find("type"); type != nullptr) {
          if (!type->is_string()) {
            if (!(ours() && type->is_null())) return wrong_type(*type, "a string");
          } else {
            t.type = type->as_string();
          }
        }
        if (t.type.empty() || t.type == "custom") {
          if (!t.type.empty() && !ours()) {
            raw_tools_.push_back(t);  // refused below, whatever else it says
            continue;
          }
          t.type = {};
          DEEPMINT_TRY(name, g.need_string("name"));
          auto description = g.opt_string("description");
          if (!description)
            return body_error("field `description`: " + description.error().message);
          t.name = name;
          t.description = *description;
          t.schema = g.get("input_schema");
          if (!v01()) {
            auto defer = g.opt_bool("defer_loading");
            if (!defer) return body_error("field `defer_loading`: " + defer.error().message);
            t.deferred = defer->value_or(false) && !v4();
          }
          if (ours()) {
            DEEPMINT_TRY(strict, g.opt_bool("strict"));
            t.strict = strict;
          }
        }
        raw_tools_.push_back(t);
      }
    }
    DEEPMINT_TRY(choice, f.opt_object("tool_choice", "internally tagged enum MessagesToolChoice"));
    if (!choice) return {};
    DEEPMINT_TRY(type, choice->need_variant("type", {"auto", "any", "tool", "none"}));
    if (type == "none") choice_.choice = ToolChoice::kNone;
    if (type == "any" && ours()) choice_.choice = ToolChoice::kRequired;
    if (type == "tool") {
      DEEPMINT_TRY(name, choice->need_string("name"));
      choice_.choice = ToolChoice::kRequired;
      choice_.name = std::string(name);
    }
    DEEPMINT_TRY(single, choice->opt_bool("disable_parallel_tool_use"));
    if (!v02()) r_.inference.disable_parallel_tool_use = single;
    return {};
  }

  struct RawTool {
    std::string_view type, name;
    std::optional<std::string_view> description;
    const json::Value* schema = nullptr;
    std::optional<bool> strict;
    bool deferred = false;
  };

  Status add_tools() {
    bool loads_on_our_side = false;
    for (size_t i = 0; i < raw_tools_.size(); ++i) {
      const RawTool& t = raw_tools_[i];
      if (!t.type.empty()) {
        const bool search = t.type.starts_with("web_search");
        if (ours()) {
          warn(fmt::format("tools[{}]: server tool {} is not run here; the model does not see it",
                           i, t.type));
          loads_on_our_side = loads_on_our_side || t.type.starts_with("tool_search_tool");
          continue;
        }
        if (search && o_.messages_web_search == WebSearch::kDrop) continue;
        return request_error(
            fmt::format("{}: server tools are not supported",
                        v01() ? fmt::format("tools.{}", i) : fmt::format("tools[{}]", i)));
      }
      Declared d;
      d.tool.name = std::string(t.name);
      if (t.description) d.tool.description = std::string(*t.description);
      d.tool.strict = t.strict;
      d.tool.deferred = t.deferred;
      d.name_path = fmt::format("tools[{}].name", i);
      d.path01 = fmt::format("tools.{}", i);
      DEEPMINT_CHECK_OK(check_tool_name(d.tool.name, d.name_path, d.path01));
      if (t.schema != nullptr) {
        d.tool.parameters = *t.schema;
      } else if (v01()) {
        return request_error(fmt::format("tools.{}: missing input_schema", i));
      }
      tools_.push_back(std::move(d));
    }
    // The search that would load deferred tools is a server tool: without it all are shown.
    if (loads_on_our_side)
      for (Declared& d : tools_) d.tool.deferred = false;
    if (!tools_.empty() && std::all_of(tools_.begin(), tools_.end(),
                                       [](const Declared& d) { return d.tool.deferred; })) {
      return request_error(
          "tools: at least one tool must have defer_loading=false. All tools cannot be deferred.");
    }
    return {};
  }

  const Tool* declared(std::string_view name) const {
    const auto it = std::find_if(tools_.begin(), tools_.end(),
                                 [&](const Declared& d) { return d.tool.name == name; });
    return it == tools_.end() ? nullptr : &it->tool;
  }

  // `m` makes these tools known, those that tool_choice hides left out. Ours shows a tool once: a
  // long history of searches must not repeat a large schema each time.
  void load(const std::vector<std::string>& names, Message& m) {
    if (v4() || choice_.choice == ToolChoice::kNone) return;
    for (const std::string& name : names) {
      const Tool* tool = declared(name);
      if (tool == nullptr || (choice_.name && *choice_.name != name)) continue;
      if (ours() && (!tool->deferred || !loaded_.insert(name).second)) continue;
      m.loaded_tools.push_back(*tool);
    }
  }

  // ---- messages
  // -------------------------------------------------------------------------------------------------------------

  Status unresolved(const std::string& at) const {
    std::string ids;
    for (const std::string& id : open_) ids.append(ids.empty() ? "" : ", ").append(id);
    return request_error(
        fmt::format("{}`tool_use` ids were found without `tool_result` blocks immediately after: "
                    "{}. Each `tool_use` "
                    "block must have a corresponding `tool_result` block in the next message.",
                    at, ids));
  }

  Status end_of_messages() {
    if (open_.empty()) return {};
    if (ours()) return interrupt();
    return unresolved(fmt::format("messages.{}:", raw_.empty() ? 0 : last_call_message_));
  }

  // Fills in results that never came; they go right behind the results that did.
  Status interrupt() {
    for (const std::string& id : open_) {
      Message m;
      m.role = Role::kTool;
      m.tool_call_id = id;
      m.content = std::string(kInterrupted);
      warn(
          fmt::format("tool_use {} has no result; the model was told that it was interrupted", id));
      std::vector<Message>& all = r_.conversation.messages;
      all.insert(all.begin() + static_cast<ptrdiff_t>(result_slot_), std::move(m));
      ++result_slot_;
    }
    open_.clear();
    return {};
  }

  bool server_block(std::string_view type) const {
    return type == "server_tool_use" || type.ends_with("_tool_result") ||
           (ours() && type.starts_with("mcp_"));
  }

  Status add_message(const Raw& raw, size_t index) {
    if (raw.blocks.empty()) {
      if (ours()) {
        warn(fmt::format("messages.{}: empty content", index));
        return {};
      }
      return request_error(
          fmt::format("messages.{}: all messages must have non-empty content", index));
    }
    if (v01() && raw.is_text && raw.blocks.front().text.empty())
      return request_error(
          fmt::format("messages.{}: all messages must have non-empty content", index));
    if (raw.role == "user") return add_user(raw, index);
    if (!open_.empty()) {
      if (!ours()) return unresolved(fmt::format("messages.{}: ", index));
      if (raw.role == "assistant") DEEPMINT_CHECK_OK(interrupt());
    }
    return raw.role == "system" ? add_system(raw, index) : add_assistant(raw, index);
  }

  Status add_system(const Raw& raw, size_t index) {
    ContentBuilder content;
    std::vector<std::string> additions;
    bool any_part = false;
    for (size_t b = 0; b < raw.blocks.size(); ++b) {
      const Block& block = raw.blocks[b];
      if (block.type != "tool_addition") {
        any_part = true;
        DEEPMINT_CHECK_OK(add_part(block, index, b, content));
      } else if (declared(block.name) != nullptr) {
        additions.emplace_back(block.name);
      } else {
        return request_error(
            fmt::format("messages.{}.content.{}: `tool_addition` references unknown tool '{}'",
                        index, b, block.name));
      }
    }
    Message m;
    content.move_into(m);
    m.role = Role::kSystem;
    load(additions, m);
    if (!any_part && m.loaded_tools.empty()) return {};
    if (v4() && !v01() && m.content.empty()) return {};
    if (v01() || v4()) {
      m.role = Role::kUser;
      m.content = fmt::format("{}{}{}", kReminderOpen, m.content, kReminderClose);
      for (size_t& mark : m.image_marks) mark += kReminderOpen.size();
    }
    r_.conversation.messages.push_back(std::move(m));
    return {};
  }

  // Text, image or document of user, system and tool_result content.
  Status add_part(const Block& b, size_t index, size_t block, ContentBuilder& out) {
    if (b.type == "text") {
      DEEPMINT_CHECK_OK(check_mark(b.text));
      out.text(b.text);
      return {};
    }
    if (b.type == "document") {
      DEEPMINT_TRY(text, document(b));
      out.text(text);
      return {};
    }
    if (b.type == "image" && no_images()) {
      if (ours())
        warn(fmt::format(
            "messages.{}.content[{}]: this model takes no images; a placeholder was sent", index,
            block));
      out.text(kUnsupportedImage);
      return {};
    }
    if (b.type == "image") {
      DEEPMINT_TRY(image, image_of(b.source, index, block));
      out.image(std::move(image));
      return {};
    }
    if (b.type == "tool_reference") {
      if (v02() && declared(b.name) == nullptr) {
        return request_error(
            fmt::format("messages.{}.content.{}: tool reference '{}' not found in available tools",
                        index, block, b.name));
      }
      if (!v01()) found_.emplace_back(b.name);
      out.text(b.name);
      return {};
    }
    if (!ours()) return request_error("Unsupported content block: server tools are not supported");
    warn(fmt::format("messages.{}.content.{}: a {} block was left out", index, block, b.type));
    return {};
  }

  Result<std::string> document(const Block& b) {
    if (v01()) return std::string(kUnsupportedDocument);
    if (v02()) {
      const std::string_view type = b.source.media_type.empty() ? "unknown" : b.source.media_type;
      return fmt::format("[Unsupported document type: {}]", type);
    }
    std::string data(b.source.data);
    if (b.source.type == "base64") {
      const auto decoded = base64_decode(data);
      if (!decoded) return request_error("document: base64 decode error");
      data = *decoded;
    }
    DEEPMINT_TRY(text, text_document(data, b.source.media_type, b.title));
    if (text == kUnsupportedDocument)
      warn("only text documents are read; a placeholder was sent to the model");
    return text;
  }

  Result<ImageSource> image_of(const Source& s, size_t index, size_t block) const {
    const std::string at = fmt::format("messages.{}.content[{}]", index, block);
    if (s.type == "file")
      return request_error(
          at + ": file_id is not supported. Pass the image as a base64 data url instead.");
    if (s.type == "url") {
      if (!s.url.starts_with("http") && !v01()) {
        std::string quoted;
        json::append_escaped(quoted, s.url);
        return request_error(fmt::format("{}: invalid url: {}", at, quoted));
      }
      return image_from_url(s.url, std::nullopt,
                            {.format = at + ": ", .link = at + ": ", .path = at});
    }
    std::string_view media = s.media_type;
    if (media == "image/jpg") media = "image/jpeg";
    if (media != "image/jpeg" && media != "image/png" && media != "image/gif" &&
        media != "image/webp") {
      return request_error(at +
                           ": You have uploaded an unsupported image. Please make sure your image "
                           "is valid and has one of the "
                           "following formats: webp, png, jpeg, and gif.");
    }
    // Padding is repaired when there is some, never invented.
    std::string data(s.data);
    const size_t digits = data.find('=') == std::string::npos ? data.size() : data.find('=');
    if (digits < data.size() && data.find_first_not_of('=', digits) == std::string::npos) {
      data.resize(digits);
      data.append((4 - digits % 4) % 4, '=');
    }
    const bool spaces = data.find_first_of(" \t\r\n") != std::string::npos;
    if (spaces || data.size() % 4 != 0 || !base64_is_valid(data))
      return request_error(at + ": base64 decode error");
    ImageSource image;
    image.kind = ImageSource::Kind::kDataUrl;
    image.data = fmt::format("data:{};base64,{}", media, data);
    image.path = at;
    return image;
  }

  Status add_user(const Raw& raw, size_t index) {
    std::set<std::string> answered;
    for (size_t b = 0; b < raw.blocks.size(); ++b) {
      const Block& block = raw.blocks[b];
      if (block.type == "tool_result") {
        DEEPMINT_CHECK_OK(add_result(block, index, b, answered));
        continue;
      }
      if (block.type == "thinking" || block.type == "redacted_thinking")
        return request_error(fmt::format(
            "messages.{}.content: thinking blocks may only be in `assistant` messages", index));
      if (block.type == "tool_use")
        return request_error(fmt::format(
            "messages.{}: `tool_use` blocks can only be in `assistant` messages", index));
      if (block.type == "tool_addition") return misplaced_addition(index);
      if (!ours() && server_block(block.type)) {
        if (o_.messages_web_search == WebSearch::kDrop) continue;
        return request_error("Unsupported content block: server tools are not supported");
      }
      // Ours keeps results that come behind other blocks of the same message.
      const bool more_results =
          ours() && std::any_of(raw.blocks.begin() + static_cast<ptrdiff_t>(b), raw.blocks.end(),
                                [](const Block& x) { return x.type == "tool_result"; });
      if (!open_.empty() && !more_results) {
        if (!ours()) return unresolved(fmt::format("messages.{}: ", index));
        DEEPMINT_CHECK_OK(interrupt());
      }
      ContentBuilder content;
      DEEPMINT_CHECK_OK(add_part(block, index, b, content));
      Message m;
      m.role = Role::kUser;
      content.move_into(m);
      r_.conversation.messages.push_back(std::move(m));
    }
    return add_found_tools();
  }

  // Tools that a search returned by reference become known behind the message with its results.
  Status add_found_tools() {
    if (found_.empty()) return {};
    Message m;
    m.role = Role::kSystem;
    load(found_, m);
    found_.clear();
    if (!m.loaded_tools.empty()) r_.conversation.messages.push_back(std::move(m));
    return {};
  }

  tl::unexpected<Error> misplaced_addition(size_t index) const {
    return request_error(
        fmt::format("messages.{}: `tool_addition` blocks can only be in `system` messages", index));
  }

  Status add_result(const Block& block, size_t index, size_t b, std::set<std::string>& answered) {
    const std::string id(block.id);
    if (answered.contains(id)) {
      return request_error(
          fmt::format("messages.{}.content.{}: each tool_use must have a single result. Found "
                      "multiple `tool_result` "
                      "blocks with id: {}",
                      index, b, id));
    }
    if (!open_.contains(id)) {
      return request_error(fmt::format(
          "unexpected `messages.{}.content.{}: tool_use_id` found in `tool_result` blocks: {}. "
          "Each "
          "`tool_result` block must have a corresponding `tool_use` block in the previous message.",
          index, b, id));
    }
    open_.erase(id);
    answered.insert(id);
    ContentBuilder content;
    for (size_t k = 0; k < block.content.size(); ++k) {
      DEEPMINT_CHECK_OK(add_part(block.content[k], index, b, content));
    }
    Message m;
    m.role = Role::kTool;
    m.tool_call_id = id;
    content.move_into(m);
    std::vector<Message>& all = r_.conversation.messages;
    if (ours()) {
      // Right behind the results so far, also when other blocks of the message came first.
      all.insert(all.begin() + static_cast<ptrdiff_t>(result_slot_), std::move(m));
      ++result_slot_;
    } else {
      all.push_back(std::move(m));
    }
    return {};
  }

  Status add_assistant(const Raw& raw, size_t index) {
    Message m;
    m.role = Role::kAssistant;
    std::string text, reasoning;
    bool any_text = false, any_reasoning = false;
    for (size_t b = 0; b < raw.blocks.size(); ++b) {
      const Block& block = raw.blocks[b];
      if (block.type == "thinking") {
        DEEPMINT_CHECK_OK(check_mark(block.text));
        if (any_reasoning) reasoning.append("\n\n");
        any_reasoning = true;
        reasoning.append(block.text);
      } else if (block.type == "tool_use") {
        if (!open_.insert(std::string(block.id)).second)
          return request_error(
              fmt::format("messages.{}.content.{}: `tool_use` ids must be unique", index, b));
        DEEPMINT_CHECK_OK(check_mark(block.name));
        ToolCall call;
        call.id = std::string(block.id);
        call.name = std::string(block.name);
        call.arguments =
            to_json(*block.input, {v01() ? NumberStyle::kPython : NumberStyle::kCompact, true});
        DEEPMINT_CHECK_OK(check_mark(call.arguments));
        m.tool_calls.push_back(std::move(call));
      } else if (block.type == "text" || block.type == "document" ||
                 (block.type == "image" && no_images())) {
        if (!open_.empty() && !ours()) return unresolved(fmt::format("messages.{}.{}: ", index, b));
        DEEPMINT_CHECK_OK(check_mark(block.text));
        // 0.2 puts the empty line only behind text that is not empty.
        if (v01() ? any_text : !text.empty()) text.append("\n\n");
        any_text = true;
        if (block.type == "text") {
          text.append(block.text);
        } else if (block.type == "image") {
          text.append(kUnsupportedImage);
        } else {
          DEEPMINT_TRY(inlined, document(block));
          text.append(inlined);
        }
      } else if (block.type == "image" && !no_images()) {
        return request_error("Image in assistant message is unsupported");
      } else if (block.type == "tool_addition") {
        return misplaced_addition(index);
      } else if (block.type == "tool_result") {
        return request_error(
            fmt::format("messages.{}: `tool_result` blocks can only be in `user` messages", index));
      } else if (ours()) {
        if (block.type != "redacted_thinking")
          warn(
              fmt::format("messages.{}.content.{}: a {} block was left out", index, b, block.type));
      } else if (o_.messages_web_search == WebSearch::kReject) {
        return request_error("Unsupported content block: server tools are not supported");
      }
    }
    m.content = std::move(text);
    if (any_reasoning) m.reasoning = std::move(reasoning);
    r_.conversation.messages.push_back(std::move(m));
    last_call_message_ = index;
    result_slot_ = r_.conversation.messages.size();
    return {};
  }

  std::vector<Raw> raw_;
  std::vector<RawTool> raw_tools_;
  std::optional<float> temperature_, top_p_;
  std::optional<uint32_t> max_tokens_;
  std::vector<std::string> stop_;
  Choice choice_;
  ResponseFormat format_;
  std::vector<Declared> tools_;     // of the client, before tool_choice
  std::set<std::string> loaded_;    // names that load() has shown
  std::vector<std::string> found_;  // tool references of the message at hand
  std::set<std::string> open_;      // tool_use ids that wait for their result
  size_t last_call_message_ = 0;
  size_t result_slot_ = 0;  // ours: where the next result goes
};

}  // namespace

Result<ConversationRequest> convert_messages(const json::Value& body,
                                             const ConvertOptions& options) {
  return MessagesConverter(options).run(body);
}

}  // namespace deepmint::recipe
