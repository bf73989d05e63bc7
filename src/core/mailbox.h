// A queue between threads whose reader waits on a file descriptor, together with others.
//
//   Mailbox<Event> events;                          // events.fd() < 0: no descriptor was left
//   events.push(event);                             // any thread
//   poll {events.fd(), POLLIN}; events.take(out);   // one thread; out gets all there are, in order
//
// However many are pushed between two calls of take(), the reader is woken once.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace deepmint {

template <class T>
class Mailbox {
 public:
  Mailbox() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Mailbox() {
    if (fd_ >= 0) ::close(fd_);
  }
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  int fd() const { return fd_; }  // readable when there is something to take

  void push(T item) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    items_.push_back(std::move(item));
    const uint64_t one = 1;
    if (items_.size() == 1) (void)!::write(fd_, &one, sizeof(one));
  }
  // Replaces what `out` holds; its capacity is used again.
  void take(std::vector<T>& out) {
    out.clear();
    const std::lock_guard lock(mutex_);
    uint64_t count = 0;
    (void)!::read(fd_, &count, sizeof(count));
    out.swap(items_);
  }
  // Drops what is there and whatever is pushed from now on.
  void close() {
    std::vector<T> dropped;  // goes after the lock
    const std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(items_);
  }

 private:
  const int fd_;
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<T> items_;
};

}  // namespace deepmint
