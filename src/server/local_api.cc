#include "server/local_api.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <unordered_set>
#include <utility>

#include "core/mailbox.h"
#include "server/api/api.h"
#include "server/http/transport.h"

namespace deepmint {
namespace {

class LocalExchange;

// Exchanges that want a pump; the caller of step() takes them. An exchange has its queue, so the
// queue must not have exchanges for good: the API closes it.
using Wakes = Mailbox<std::shared_ptr<LocalExchange>>;

// An exchange whose client is a function of this process.
class LocalExchange final : public http::Exchange {
 public:
  LocalExchange(std::shared_ptr<Wakes> wakes, LocalApi::Done done)
      : wakes_(std::move(wakes)), done_(std::move(done)) {}

  void wake() override {
    if (closed() || wake_pending_.exchange(true)) return;
    wakes_->push(std::static_pointer_cast<LocalExchange>(shared_from_this()));
  }
  void respond(const http::Response& response) override {
    if (answered_ || closed()) return;
    answered_ = true;
    answer_ = {response.status, response.body};
    wake();  // handle() may have answered at once: whoever posts is never called back from post()
  }
  // Of streams, which nobody asks for here: the answer is what was written.
  void begin_stream(const http::Response& head) override { answer_ = {head.status, head.body}; }
  void write(std::string_view bytes) override { answer_.body += bytes; }
  void finish() override {
    answered_ = true;
    wake();
  }

  // True when the answer has been given.
  bool pump() {
    wake_pending_.store(false);
    if (closed()) return false;
    if (!answered_)
      if (const auto responder = this->responder()) responder->pump(*this);
    if (!answered_) return false;
    close();
    std::exchange(done_, nullptr)(std::move(answer_));
    return true;
  }
  void abandon() {
    if (const auto responder = close()) responder->client_gone();
  }

 private:
  const std::shared_ptr<Wakes> wakes_;
  LocalApi::Done done_;
  LocalApi::Answer answer_;
  bool answered_ = false;
  std::atomic<bool> wake_pending_{false};
};

}  // namespace

struct LocalApi::Impl {
  std::shared_ptr<ApiContext> context;
  std::shared_ptr<Api> api;
  http::TransportStats stats;
  std::shared_ptr<Wakes> wakes = std::make_shared<Wakes>();
  std::shared_ptr<http::BodyBudget> bodies =
      std::make_shared<http::BodyBudget>(std::numeric_limits<int64_t>::max());
  std::unordered_set<std::shared_ptr<LocalExchange>> running;
  std::vector<std::shared_ptr<LocalExchange>> woken;  // scratch of step()
};

LocalApi::LocalApi(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

LocalApi::~LocalApi() {
  impl_->context->draining = true;
  for (const auto& exchange : impl_->running) exchange->abandon();
  impl_->context->workers.stop();
  impl_->wakes->close();
}

Result<std::unique_ptr<LocalApi>> LocalApi::create(const ServerConfig& config, ServedModel model) {
  DEEPMINT_CHECK_OK(check_served(model));
  try {
    auto impl = std::make_unique<Impl>();
    if (impl->wakes->fd() < 0)
      return fail(ErrorCode::kUnavailable, fmt::format("cannot start: {}", std::strerror(errno)),
                  "events");
    impl->context = std::make_shared<ApiContext>(config, std::move(model), ApiKeys{});
    impl->api = std::make_shared<Api>(impl->context);
    impl->api->attach(&impl->stats, /*loopback=*/true);
    return std::unique_ptr<LocalApi>(new LocalApi(std::move(impl)));
  } catch (const std::exception& e) {  // threads or memory have run out
    return fail(ErrorCode::kUnavailable, fmt::format("cannot start: {}", e.what()), "API");
  }
}

std::vector<std::string_view> LocalApi::paths() {
  std::vector<std::string_view> paths = Api::post_paths();
  std::erase_if(paths, [](std::string_view path) { return !path.starts_with("/v1/"); });
  return paths;
}

bool LocalApi::has_path(std::string_view path) {
  for (const std::string_view known : Api::post_paths())
    if (path == known) return true;
  return false;
}

void LocalApi::post(std::string_view path, std::string body, Done done) {
  const auto exchange = std::make_shared<LocalExchange>(impl_->wakes, std::move(done));
  impl_->running.insert(exchange);
  http::RequestHead head;
  head.method = "POST";
  head.target = path;
  if (const auto refusal = impl_->api->check(head)) return exchange->respond(*refusal);
  http::Body held(impl_->bodies);
  (void)held.reserve(static_cast<int64_t>(body.size()));
  held.text() = std::move(body);
  impl_->api->handle(std::move(head), std::move(held), exchange);
}

int LocalApi::fd() const { return impl_->wakes->fd(); }

void LocalApi::step() {
  impl_->wakes->take(impl_->woken);
  for (const auto& exchange : impl_->woken)
    if (exchange->pump()) impl_->running.erase(exchange);
  impl_->woken.clear();
}

int64_t LocalApi::running() const { return static_cast<int64_t>(impl_->running.size()); }
bool LocalApi::engine_is_idle() const {
  const EngineStats stats = impl_->context->model.engine->stats();
  return stats.running + stats.waiting == 0;
}
int64_t LocalApi::body_bytes() const { return impl_->bodies->used(); }

}  // namespace deepmint
