// A blocking client over a loopback socket for tests: sends any bytes, reads whole responses,
// closes in every way.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace deepmint::testing {

struct Reply {
  int status = 0;  // 0: the connection ended before a whole response came
  std::map<std::string, std::string> headers;  // lower-case names
  std::string body;                            // chunked coding undone
  std::vector<std::string> chunks;
};

class RawClient {
 public:
  // small_buffers: a receive buffer of a few KiB, so that a reader who stops is felt by the server
  // soon.
  explicit RawClient(uint16_t port, bool small_buffers = false);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  bool send(std::string_view bytes);         // false when the peer is gone
  Reply read_reply(bool head_only = false);  // one response; interim 1xx responses count
  std::string read_some(size_t at_most);     // "" at the end or after the time limit
  std::string read_exactly(size_t bytes);
  std::string read_to_end();
  void unread(std::string_view bytes) { buffer_.insert(0, bytes); }
  bool ended();  // waits for the end of the stream (or a reset); false after the time limit
  void half_close();
  void reset();  // close with RST
  void close();

 private:
  bool fill();  // more bytes into buffer_; false at the end
  int fd_ = -1;
  std::string buffer_;
};

// "POST path" with a JSON body.
std::string post(std::string_view path, std::string_view body, std::string_view extra_headers = {});
std::string get(std::string_view path, std::string_view extra_headers = {});

}  // namespace deepmint::testing
