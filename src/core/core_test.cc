#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/aligned.h"
#include "core/checked.h"
#include "core/cpu_isa.h"
#include "core/hash.h"
#include "core/mapped_file.h"
#include "deepmint/result.h"

namespace deepmint {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return fail(ErrorCode::kInvalidArgument, "odd", "n");
  return n / 2;
}
Result<int> quarter(int n) {
  DEEPMINT_TRY(h, half(n));
  DEEPMINT_TRY(q, half(h));
  return q;
}

TEST(Result, TryReturnsTheFirstError) {
  EXPECT_EQ(*quarter(8), 2);
  ASSERT_FALSE(quarter(6));
  EXPECT_EQ(quarter(6).error().str(), "n: odd");
  EXPECT_EQ(Error(quarter(6).error()).at("file").str(), "file: n: odd");
  EXPECT_EQ(exit_code(quarter(6).error()), 2);
}

TEST(Checked, OverflowIsSeen) {
  EXPECT_EQ(checked_mul(1u << 31, 2), uint64_t{1} << 32);
  EXPECT_FALSE(checked_mul(uint64_t{1} << 33, uint64_t{1} << 31));
  EXPECT_FALSE(checked_add(~uint64_t{0}, 1));
}

TEST(CpuIsa, ForcedNamesAreChecked) {
  EXPECT_EQ(*resolve_isa("x86-64"), Isa::kX86_64);
  EXPECT_EQ(*resolve_isa(std::nullopt), detected_isa());
  const auto bad = resolve_isa("sse9");
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().str().find("sse9"), std::string::npos);
  EXPECT_EQ(available_isas().front(), Isa::kX86_64);
  EXPECT_EQ(available_isas().back(), detected_isa());
}

TEST(Hash, KnownAnswers) {
  EXPECT_EQ(hex(sha256(as_byte_span("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(xxh3_64(as_byte_span("")), 0x2d06800538d394c2ull);
}

TEST(AlignedBuffer, ZeroedAndAligned) {
  for (const size_t n : {size_t{1}, size_t{1000}, size_t{3} << 20}) {
    const AlignedBuffer<float> b(n);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % kCacheLine, 0u);
    for (size_t i = 0; i < n; i += 997) ASSERT_EQ(b[i], 0.0f);
  }
}

TEST(MappedFile, ReadsAndRefuses) {
  const auto path = std::filesystem::temp_directory_path() / "deepmint_mapped_file_test";
  std::ofstream(path) << "hello";
  {
    auto file = MappedFile::open(path);
    ASSERT_TRUE(file) << file.error().str();
    EXPECT_EQ(file->size(), 5u);
    file->dont_need(0, 5);
    EXPECT_EQ(static_cast<char>(file->bytes()[4]), 'o');
  }
  std::filesystem::remove(path);
  EXPECT_EQ(MappedFile::open(path).error().code, ErrorCode::kNotFound);
  const auto found = [](const std::filesystem::path& p) {
    const auto file = MappedFile::open(p);
    return file ? std::string("a file") : file.error().message;
  };
  EXPECT_EQ(MappedFile::open("/").error().code, ErrorCode::kInvalidFile);
  EXPECT_EQ(found("/"), "expected a regular file, found a directory");
  EXPECT_EQ(found("/dev/null"), "expected a regular file, found a device");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);  // nobody writes to it
  EXPECT_EQ(found(path), "expected a regular file, found a pipe");
  std::filesystem::remove(path);
  EXPECT_FALSE(name_exists(path));
  std::filesystem::create_symlink("nowhere", path);
  EXPECT_TRUE(name_exists(path));
  EXPECT_EQ(found(path), "expected a readable file, found a symbolic link to nothing");
  std::filesystem::remove(path);
  std::filesystem::create_symlink(path, path);  // to itself
  EXPECT_TRUE(name_exists(path));
  EXPECT_EQ(MappedFile::open(path).error().code, ErrorCode::kInvalidFile);
  std::filesystem::remove(path);
}

TEST(MappedFileDeathTest, AFileCutShortUnderItsReaderEndsInOneLine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto path = std::filesystem::temp_directory_path() / "deepmint_cut_short_test";
  const auto make = [&] { std::ofstream(path) << std::string(16384, 'x'); };
  const auto touch = [](const MappedFile& file) {
    return static_cast<int>(*static_cast<const volatile std::byte*>(&file.bytes()[9000]));
  };
  EXPECT_EXIT(
      {
        make();
        report_lost_mappings();
        const auto gone = MappedFile::open(path);  // its place is free again for the next
        auto first = *MappedFile::open(path);
        MappedFile file = std::move(first);
        if (truncate(path.c_str(), 4096) != 0) std::exit(7);
        std::exit(10 + touch(file) % 2);
      },
      ::testing::ExitedWithCode(1),
      "^deepmint: .*deepmint_cut_short_test: expected the file to stay as it was when it was "
      "opened, found it cut short or unreadable\n$");
  // Memory that is not a mapped file of ours: the signal stays a signal.
  EXPECT_EXIT(
      {
        make();
        report_lost_mappings();
        {
          const auto closed = MappedFile::open(path);
        }
        const int fd = ::open(path.c_str(), O_RDWR);
        void* p = mmap(nullptr, 16384, PROT_READ, MAP_SHARED, fd, 0);
        if (truncate(path.c_str(), 4096) != 0) std::exit(7);
        std::exit(10 + *static_cast<const volatile char*>(static_cast<char*>(p) + 9000) % 2);
      },
      ::testing::KilledBySignal(SIGBUS), "^$");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace deepmint
