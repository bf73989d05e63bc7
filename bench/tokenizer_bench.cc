// Speed of encoding per core, by kind of text.
//
//   tokenizer_bench MODEL [--seconds N] [--text FILE]... [--json]
//
// MODEL is a .gguf file or a tokenizer.json. Without --text: English (the licence texts of the
// distribution), code (this repository's sources) and Chinese (words drawn by frequency), each made
// to 4 MB. Every kind is encoded over and over for N seconds (default 2) on one thread; the best
// pass counts, warm caches.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/gguf_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace {

using deepmint::Result;
using deepmint::Segment;
using deepmint::TokenId;
using deepmint::Tokenizer;

constexpr size_t kTextBytes = 4'000'000;

double cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

Result<std::shared_ptr<const Tokenizer>> load(const std::string& path) {
  if (!path.ends_with(".gguf")) return Tokenizer::from_file(path);
  DEEPMINT_TRY(file, deepmint::GgufFile::open(path));
  DEEPMINT_TRY(spec, deepmint::tokenizer_spec_from_gguf(file));
  return Tokenizer::create(std::move(spec));
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string repeat(const std::string& text, size_t bytes) {
  std::string out;
  while (!text.empty() && out.size() < bytes) out += text;
  return out;
}

std::string files_under(const std::vector<std::filesystem::path>& roots,
                        const std::vector<std::string>& suffixes) {
  std::vector<std::filesystem::path> paths;
  for (const auto& root : roots) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root, ignored))
      if (entry.is_regular_file() &&
          std::any_of(suffixes.begin(), suffixes.end(),
                      [&](const std::string& s) { return entry.path().string().ends_with(s); }))
        paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::string out;
  for (const auto& path : paths) out += read_file(path);
  return out;
}

// Running Chinese, statistically: common words, shorter and commoner ones more often, with
// punctuation.
std::string chinese(size_t bytes) {
  constexpr std::array kWords = {
      "的",   "是",   "在",   "了",     "和",     "有",       "我",   "他",   "这",   "不",
      "人",   "就",   "也",   "我们",   "一个",   "中国",     "可以", "没有", "他们", "自己",
      "问题", "工作", "发展", "社会",   "进行",   "因为",     "所以", "如果", "经济", "国家",
      "时候", "现在", "已经", "生活",   "世界",   "开始",     "知道", "这个", "那个", "什么",
      "怎么", "技术", "系统", "信息",   "使用",   "公司",     "市场", "管理", "研究", "学生",
      "学习", "教育", "文化", "历史",   "城市",   "政府",     "政策", "计划", "项目", "方法",
      "模型", "数据", "语言", "计算机", "互联网", "人工智能", "重要", "不同", "主要", "非常",
      "之间", "通过", "对于", "关于",   "以及",   "但是",     "然后", "目前", "今天", "明天",
      "去年", "北京", "上海", "大学",   "老师",   "朋友",     "家庭", "孩子", "母亲", "父亲",
      "医院", "健康", "环境", "保护",   "资源",   "能源",     "汽车", "产品", "服务", "质量",
      "价格", "增长", "提高", "影响",   "作用",   "结果",     "原因", "情况", "条件", "关系",
      "组织", "活动", "会议", "代表",   "人民",   "法律"};
  constexpr std::array kEnds = {"，", "，", "，", "。", "。", "、", "；", "？", "\n"};
  std::string out;
  uint64_t state = 1;
  const auto below = [&](uint64_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % n;
  };
  while (out.size() < bytes) {
    for (uint64_t n = 3 + below(9); n > 0; --n)
      out += kWords[std::min(below(kWords.size()), below(kWords.size()))];
    out += kEnds[below(kEnds.size())];
  }
  return out;
}

struct Text {
  std::string name, bytes;
};

}  // namespace

int main(int argc, char** argv) {
  std::string model;
  double seconds = 2;
  bool json = false;
  std::vector<Text> texts;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--json")
      json = true;
    else if (arg == "--seconds" && i + 1 < argc)
      seconds = std::strtod(argv[++i], nullptr);
    else if (arg == "--text" && i + 1 < argc)
      texts.push_back({argv[++i], read_file(argv[i])});
    else if (model.empty() && !arg.starts_with("--"))
      model = arg;
    else
      model.clear(), i = argc;
  }
  if (model.empty()) {
    std::cerr << "usage: tokenizer_bench MODEL [--seconds N] [--text FILE]... [--json]\n";
    return 2;
  }
  const double load_start = cpu_seconds();
  const auto tokenizer = load(model);
  const double load_ms = (cpu_seconds() - load_start) * 1e3;
  if (!tokenizer) {
    std::cerr << tokenizer.error().str() << "\n";
    return 1;
  }
  if (texts.empty()) {
    const std::filesystem::path root = DEEPMINT_SOURCE_DIR;
    texts.push_back(
        {"english", repeat(files_under({"/usr/share/common-licenses"}, {""}), kTextBytes)});
    texts.push_back({"code", repeat(files_under({root / "src", root / "include", root / "tools"},
                                                {".cc", ".h", ".py"}),
                                    kTextBytes)});
    texts.push_back({"chinese", chinese(kTextBytes)});
    texts.push_back({"one letter", std::string(1'000'000, 'a')});
    texts.push_back({"spaces", std::string(1'000'000, ' ')});
  }
  if (!json) fmt::print("load {:.1f} ms, {} tokens\n", load_ms, (*tokenizer)->vocab_size());
  std::string report = fmt::format("{{\"load_ms\":{:.2f},\"texts\":[", load_ms);
  for (size_t t = 0; t < texts.size(); ++t) {
    const Segment segment{Segment::Kind::kText, texts[t].bytes};
    std::vector<TokenId> ids;
    double best = 1e30;
    const double start = cpu_seconds();
    do {
      ids.clear();
      const double pass = cpu_seconds();
      (*tokenizer)->encode({&segment, 1}, ids);
      best = std::min(best, cpu_seconds() - pass);
    } while (cpu_seconds() - start < seconds);
    const double mb = static_cast<double>(segment.text.size()) / 1e6;
    if (!json)
      fmt::print(
          "{:<12} {:8.1f} MB/s {:8.1f} M tokens/s {:6.2f} bytes/token {:8.2f} ms for {:.1f} MB\n",
          texts[t].name, mb / best, static_cast<double>(ids.size()) / 1e6 / best,
          mb * 1e6 / static_cast<double>(ids.size()), best * 1e3, mb);
    report += fmt::format(
        "{}{{\"name\":\"{}\",\"mb_per_s\":{:.2f},\"tokens_per_s\":{:.0f},\"bytes\":{},\"tokens\":{}"
        "}}",
        t == 0 ? "" : ",", texts[t].name, mb / best, static_cast<double>(ids.size()) / best,
        segment.text.size(), ids.size());
  }
  if (json) fmt::print("{}]}}\n", report);
  return 0;
}
