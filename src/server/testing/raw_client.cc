#include "server/testing/raw_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <utility>

namespace deepmint::testing {
namespace {
constexpr int kLimitMs = 20'000;  // a test that waits this long has failed
}

RawClient::RawClient(uint16_t port, bool small_buffers) {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (small_buffers) {
    const int size = 4096;
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
  }
  const int one = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) close();
}

RawClient::~RawClient() { close(); }

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool RawClient::fill() {
  if (fd_ < 0) return false;
  pollfd state{.fd = fd_, .events = POLLIN, .revents = 0};
  if (::poll(&state, 1, kLimitMs) <= 0) return false;
  char bytes[65536];
  const ssize_t n = ::recv(fd_, bytes, sizeof(bytes), 0);
  if (n <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(n));
  return true;
}

std::string RawClient::read_some(size_t at_most) {
  if (buffer_.empty()) fill();
  std::string out = buffer_.substr(0, at_most);
  buffer_.erase(0, out.size());
  return out;
}

std::string RawClient::read_exactly(size_t bytes) {
  while (buffer_.size() < bytes && fill()) {
  }
  return read_some(bytes);
}

std::string RawClient::read_to_end() {
  while (fill()) {
  }
  return std::exchange(buffer_, {});
}

bool RawClient::ended() {
  pollfd state{.fd = fd_, .events = POLLIN, .revents = 0};
  for (;;) {
    if (::poll(&state, 1, kLimitMs) <= 0) return false;
    char bytes[65536];
    if (::recv(fd_, bytes, sizeof(bytes), 0) <= 0) return true;
  }
}

Reply RawClient::read_reply(bool head_only) {
  Reply reply;
  size_t head_end;
  while ((head_end = buffer_.find("\r\n\r\n")) == std::string::npos)
    if (!fill()) return reply;
  const std::string head = buffer_.substr(0, head_end + 2);
  buffer_.erase(0, head_end + 4);
  size_t at = head.find("\r\n") + 2;
  const int status = std::atoi(head.c_str() + 9);
  while (at < head.size()) {
    const size_t end = head.find("\r\n", at);
    const size_t colon = head.find(": ", at);
    std::string name = head.substr(at, colon - at);
    for (char& c : name) c = static_cast<char>(std::tolower(c));
    reply.headers[name] = head.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  if (status < 200 || status == 204 || head_only) {
    reply.status = status;
    return reply;
  }
  if (reply.headers.contains("content-length")) {
    const size_t length = std::strtoull(reply.headers["content-length"].c_str(), nullptr, 10);
    reply.body = read_exactly(length);
    if (reply.body.size() == length) reply.status = status;
    return reply;
  }
  if (!reply.headers.contains("transfer-encoding")) {
    reply.body = read_to_end();
    reply.status = status;
    return reply;
  }
  for (;;) {
    size_t line;
    while ((line = buffer_.find("\r\n")) == std::string::npos)
      if (!fill()) return reply;
    const size_t size = std::strtoull(buffer_.c_str(), nullptr, 16);
    buffer_.erase(0, line + 2);
    const std::string chunk = read_exactly(size + 2);
    if (chunk.size() != size + 2) return reply;
    if (size == 0) {
      reply.status = status;
      return reply;
    }
    reply.chunks.push_back(chunk.substr(0, size));
    reply.body += reply.chunks.back();
  }
}

void RawClient::half_close() { ::shutdown(fd_, SHUT_WR); }

void RawClient::reset() {
  const linger hard{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  close();
}

void RawClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::string post(std::string_view path, std::string_view body, std::string_view extra_headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
      "{}\r\n{}\r\n{}",
      path, body.size(), extra_headers, body);
}

std::string get(std::string_view path, std::string_view extra_headers) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, extra_headers);
}

}  // namespace deepmint::testing
