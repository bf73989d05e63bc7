#include "recipe/convert_responses.h"

#include <fmt/format.h>

#include <algorithm>

#include "recipe/custom_tool.h"
#include "recipe/prompt_text.h"
#include "recipe/spelling.h"

namespace deepmint::recipe {

Status ResponsesConverter::add_instructions(const std::optional<std::string_view>& instructions) {
  if (!instructions || instructions->empty()) return {};
  DEEPMINT_CHECK_OK(check_mark(*instructions));
  Message m;
  m.role = Role::kSystem;
  m.content = std::string(*instructions);
  r_.conversation.messages.push_back(std::move(m));
  return {};
}

Status ResponsesConverter::add_items() {
  std::vector<std::pair<const json::Value*, std::string>> all;  // item and its place
  all.reserve(previous_.size() + (items_ != nullptr ? items_->size() : 0));
  for (const json::Value& item : previous_) all.emplace_back(&item, "input");
  if (items_ != nullptr)
    for (size_t i = 0; i < items_->size(); ++i)
      all.emplace_back(&(*items_)[i], fmt::format("input[{}]", i));
  if (ours()) {
    for (const auto& [item, at] : all) {
      const json::Value* id = item->find("call_id");
      const std::string_view type = type_of(*item);
      if ((type.ends_with("_call_output") || type == "tool_search_output") && id != nullptr &&
          id->is_string())
        answered_.insert(id->as_string());
      if (type_of(*item) == "additional_tools") {
        if (const json::Value* tools = item->find("tools"); tools != nullptr && tools->is_array())
          DEEPMINT_CHECK_OK(read_tools(tools->items(), at + ".tools"));
      }
    }
    drop_repeated_tools();
  }
  for (const auto& [item, at] : all) DEEPMINT_CHECK_OK(add_item(*item, at));
  if (!pending_.empty()) {
    if (!ours()) return missing_output();
    DEEPMINT_CHECK_OK(interrupt());
  }
  if (has_text_input_) {
    DEEPMINT_CHECK_OK(check_mark(text_input_));
    Message m;
    m.content = std::string(text_input_);
    r_.conversation.messages.push_back(std::move(m));
  }
  return {};
}

std::string_view ResponsesConverter::type_of(const json::Value& item) {
  const json::Value* type = item.find("type");
  return type != nullptr && type->is_string() ? std::string_view(type->as_string()) : "message";
}

std::string_view ResponsesConverter::text_of(const json::Value& item, std::string_view key) {
  const json::Value* v = item.find(key);
  return v != nullptr && v->is_string() ? std::string_view(v->as_string()) : std::string_view();
}

tl::unexpected<Error> ResponsesConverter::missing_output() const {
  // The first in byte order of those that wait.
  std::string_view id;
  for (const Call& c : pending_)
    if (!c.result && (id.empty() || c.call.id < id)) id = c.call.id;
  return request_error(fmt::format("No tool output found for tool call {}.", id));
}

Status ResponsesConverter::interrupt() {
  for (Call& c : pending_) {
    if (c.result) continue;
    Message m;
    m.role = Role::kTool;
    m.tool_call_id = c.call.id;
    m.content = std::string(kInterrupted);
    warn(fmt::format("call {} has no output; the model was told that it was interrupted",
                     c.call.id));
    c.result = std::move(m);
  }
  return close_group();
}

Status ResponsesConverter::add_item(const json::Value& item, const std::string& at) {
  const std::string_view type = type_of(item);
  const bool searches = !v01() && !v4();
  const bool call = type == "function_call" || type == "custom_tool_call" ||
                    (searches && type == "tool_search_call");
  const bool output = type == "function_call_output" || type == "custom_tool_call_output" ||
                      (searches && type == "tool_search_output");
  const bool breaks = type == "message" || type == "reasoning" || type == "web_search_call";
  if (!call && !output && breaks && !pending_.empty()) {
    if (!ours()) return missing_output();
    if (never_answered_ == 0) {  // the item waits until the group is complete
      held_.emplace_back(&item, at);
      return {};
    }
    DEEPMINT_CHECK_OK(interrupt());
  }
  if (call) return add_call(item, type, at);
  if (output) return add_output(item, at);
  if (type == "message") return add_message(item, at);
  if (type == "reasoning") return add_reasoning(item);
  return {};
}

Status ResponsesConverter::check_call_id(std::string_view id, const std::string& at) const {
  if (!id.empty()) return {};
  return request_error(
      fmt::format("Invalid '{}.call_id': empty string. Expected a string with minimum length 1, "
                  "but got an empty "
                  "string instead.",
                  at));
}

Status ResponsesConverter::add_call(const json::Value& item, std::string_view type,
                                    const std::string& at) {
  Call c;
  c.call.id = std::string(text_of(item, "call_id"));
  DEEPMINT_CHECK_OK(check_call_id(c.call.id, at));
  if (!pending_at_.emplace(c.call.id, pending_.size()).second ||
      (v02() && closed_.contains(c.call.id)))
    return request_error(fmt::format("Duplicate 'call_id': {}.", c.call.id));
  c.call.name = std::string(text_of(item, "name"));
  if (const json::Value* space = item.find("namespace");
      space != nullptr && space->is_string() && (ours() || type == "function_call"))
    c.call.name = fmt::format("{}{}{}", space->as_string(), separator(), c.call.name);
  if (type == "custom_tool_call") {
    c.call.arguments = custom_tool_arguments(text_of(item, "input"));
  } else if (type == "tool_search_call") {
    c.call.name = "tool_search";
    c.call.arguments = compact_json(*item.find("arguments"));
  } else {
    c.call.arguments = std::string(text_of(item, "arguments"));
  }
  DEEPMINT_CHECK_OK(check_mark(c.call.name));
  DEEPMINT_CHECK_OK(check_mark(c.call.arguments));
  ++n_open_;
  if (!answered_.contains(c.call.id)) ++never_answered_;
  pending_.push_back(std::move(c));
  return {};
}

Status ResponsesConverter::add_output(const json::Value& item, const std::string& at) {
  const std::string_view id = text_of(item, "call_id");
  DEEPMINT_CHECK_OK(check_call_id(id, at));
  const auto it = pending_at_.find(std::string(id));
  if (it == pending_at_.end() && closed_.contains(std::string(id)))
    return request_error(fmt::format("Duplicate tool output for call_id: {}.", id));
  if (it == pending_at_.end())
    return request_error(fmt::format("No tool call found for tool output with call_id {}.", id));
  Call& call = pending_[it->second];
  if (call.result) return request_error(fmt::format("Duplicate tool output for call_id: {}.", id));
  Message m;
  m.role = Role::kTool;
  m.tool_call_id = std::string(id);
  if (const json::Value* tools = item.find("tools"); type_of(item) == "tool_search_output") {
    DEEPMINT_CHECK_OK(load_found_tools(tools->items(), at, m.content));
  } else {
    DEEPMINT_CHECK_OK(add_content(*item.find("output"), at, "output", false, m));
  }
  call.result = std::move(m);
  if (--n_open_ == 0) return close_group();
  return {};
}

Status ResponsesConverter::close_group() {
  if (!ours()) {
    std::sort(pending_.begin(), pending_.end(),
              [](const Call& a, const Call& b) { return a.call.id < b.call.id; });
  }
  if (!v01())
    for (const Call& c : pending_) closed_.insert(c.call.id);
  Message& assistant = trailing_assistant();
  for (Call& c : pending_) assistant.tool_calls.push_back(std::move(c.call));
  std::vector<Message>& all = r_.conversation.messages;
  for (Call& c : pending_) all.push_back(std::move(*c.result));
  for (; shown_loads_ < loads_.size(); ++shown_loads_) {  // in the order of the outputs
    loads_[shown_loads_].message = all.size();
    all.emplace_back().role = Role::kSystem;
  }
  pending_.clear();
  pending_at_.clear();
  n_open_ = never_answered_ = 0;
  const auto held = std::move(held_);
  held_.clear();
  for (const auto& [item, at] : held) DEEPMINT_CHECK_OK(add_item(*item, at));
  return {};
}

// The last message when it is an assistant message without calls; else a new one.
Message& ResponsesConverter::trailing_assistant() {
  std::vector<Message>& all = r_.conversation.messages;
  if (all.empty() || all.back().role != Role::kAssistant || !all.back().tool_calls.empty()) {
    Message m;
    m.role = Role::kAssistant;
    all.push_back(std::move(m));
  }
  return all.back();
}

Status ResponsesConverter::add_reasoning(const json::Value& item) {
  std::string text;
  bool any = false;
  if (const json::Value* content = item.find("content");
      content != nullptr && content->is_array()) {
    for (const json::Value& part : content->items()) {
      if (any) text.push_back('\n');
      any = true;
      text.append(text_of(part, "text"));
    }
  }
  if (!any && ours() && o_.sealer != nullptr) {
    if (const auto opened = o_.sealer->open(o_.tenant, text_of(item, "encrypted_content"))) {
      text = *opened;
      any = true;
    }
  }
  DEEPMINT_CHECK_OK(check_mark(text));
  std::vector<Message>& all = r_.conversation.messages;
  const bool open = !all.empty() && all.back().role == Role::kAssistant &&
                    all.back().tool_calls.empty() && all.back().content.empty();
  if (!open) {
    if (text.empty() && !v01()) return {};
    Message m;
    m.role = Role::kAssistant;
    all.push_back(std::move(m));
  }
  Message& m = all.back();
  if (!any) return {};
  if (m.reasoning) {
    if (v01() || (!m.reasoning->empty() && !text.empty())) m.reasoning->push_back('\n');
    m.reasoning->append(text);
  } else {
    m.reasoning = std::move(text);
  }
  return {};
}

Status ResponsesConverter::add_message(const json::Value& item, const std::string& at) {
  const std::string_view role = text_of(item, "role");
  Message m;
  DEEPMINT_CHECK_OK(add_content(*item.find("content"), at, "content", role == "assistant", m));
  if (role == "assistant") {
    Message& target = trailing_assistant();
    if (!target.content.empty() && (v01() || !m.content.empty())) target.content.append("\n\n");
    target.content.append(m.content);
    return {};
  }
  if (role == "system") m.role = Role::kSystem;
  if (role == "developer") m.role = v01() || v4() ? Role::kUser : Role::kSystem;
  if (v01() && m.role == Role::kSystem && !m.images.empty())
    return request_error(at + ": Image in system message is unsupported");
  r_.conversation.messages.push_back(std::move(m));
  return {};
}

Status ResponsesConverter::add_content(const json::Value& v, const std::string& at,
                                       std::string_view list, bool assistant, Message& m) {
  ContentBuilder content;
  if (v.is_string()) {
    DEEPMINT_CHECK_OK(check_mark(v.as_string()));
    content.text(v.as_string());
    content.move_into(m);
    return {};
  }
  for (size_t p = 0; p < v.items().size(); ++p) {
    const json::Value& part = v.items()[p];
    const std::string_view type = text_of(part, "type");
    const std::string here = fmt::format("{}.{}[{}]", at, list, p);
    if (type == "input_image" && no_images()) {
      if (ours()) warn(here + ": this model takes no images; a placeholder was sent");
      content.text(kUnsupportedImage);
    } else if (type == "input_image") {
      if (assistant) return request_error(at + ": Image in assistant message is unsupported");
      DEEPMINT_TRY(image, image_of(part, at, here));
      content.image(std::move(image));
    } else if (type == "input_file") {
      DEEPMINT_TRY(text, file_of(part));
      content.text(text);
    } else {
      const std::string_view text = text_of(part, type == "refusal" ? "refusal" : "text");
      DEEPMINT_CHECK_OK(check_mark(text));
      content.text(text);
    }
  }
  content.move_into(m);
  return {};
}

Result<ImageSource> ResponsesConverter::image_of(const json::Value& part, const std::string& at,
                                                 const std::string& here) const {
  const std::string_view url = text_of(part, "image_url");
  const json::Value* file = part.find("file_id");
  const bool has_file = file != nullptr && file->is_string();
  if (!url.empty() && has_file)
    return request_error(here + ": input_image cannot have both image_url and file_id");
  if (has_file)
    return request_error(
        here + ": file_id is not supported. Pass the image as a base64 data url instead.");
  if (url.empty()) return request_error(here + ": input_image must have image_url or file_id");
  std::optional<std::string_view> detail;
  if (part.find("detail") != nullptr && part.find("detail")->is_string())
    detail = text_of(part, "detail");
  return image_from_url(url, detail,
                        {.format = at + ": ", .link = here + ": image_url ", .path = here});
}

Result<std::string> ResponsesConverter::file_of(const json::Value& part) {
  if (!ours()) return std::string(kUnsupportedDocument);
  DEEPMINT_TRY(text, text_document(text_of(part, "file_data"), "", text_of(part, "filename")));
  if (text == kUnsupportedDocument)
    warn("only text documents are read; a placeholder was sent to the model");
  return text;
}

}  // namespace deepmint::recipe
