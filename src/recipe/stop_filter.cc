#include "recipe/stop_filter.h"

#include <algorithm>
#include <utility>

namespace deepmint::recipe {

StopFilter::StopFilter(std::vector<std::string> stop_strings) {
  for (std::string& text : stop_strings) {
    if (text.empty()) continue;
    Pattern p{.text = std::move(text), .failure = {}, .state = 0};
    p.failure.assign(p.text.size(), 0);
    for (size_t i = 1, border = 0; i < p.text.size(); ++i) {
      while (border > 0 && p.text[i] != p.text[border]) border = p.failure[border - 1];
      if (p.text[i] == p.text[border]) ++border;
      p.failure[i] = static_cast<uint32_t>(border);
    }
    patterns_.push_back(std::move(p));
  }
}

std::string_view StopFilter::push(std::string_view text) {
  if (stopped_) return {};
  if (patterns_.empty()) {
    passed_ += text.size();
    return text;
  }
  out_.clear();
  size_t longest_state = held_.size();
  for (size_t i = 0; i < text.size(); ++i) {
    const Pattern* complete = nullptr;
    longest_state = 0;
    for (Pattern& p : patterns_) {
      while (p.state > 0 && p.text[p.state] != text[i]) p.state = p.failure[p.state - 1];
      if (p.text[p.state] == text[i]) ++p.state;
      if (p.state == p.text.size()) {
        if (complete == nullptr || p.text.size() > complete->text.size()) complete = &p;
        continue;  // the stream ends here, so the state is not used again
      }
      longest_state = std::max(longest_state, p.state);
    }
    if (complete == nullptr) continue;
    stopped_ = true;
    matched_ = complete->text;
    held_.append(text.substr(0, i + 1));
    held_.resize(held_.size() - matched_.size());
    out_.swap(held_);
    held_.clear();
    passed_ += out_.size();
    return out_;
  }
  held_.append(text);
  out_.assign(held_, 0, held_.size() - longest_state);
  held_.erase(0, out_.size());
  passed_ += out_.size();
  return out_;
}

std::string_view StopFilter::finish() {
  out_.clear();
  out_.swap(held_);
  passed_ += out_.size();
  for (Pattern& p : patterns_) p.state = 0;
  return out_;
}

}  // namespace deepmint::recipe
