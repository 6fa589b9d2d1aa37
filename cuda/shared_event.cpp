// SPDX-License-Identifier: Apache-2.0
// Waiting on the host polls, because the driver's own wait has no deadline. An event lives in the primary context of
// its device, which outlives the caller's. The driver records it only in a stream of that context. So a stream of
// another context is followed by a stream of the library's, which records the event. Each such stream has its own
// follower, which stays: a common one would make streams wait for each other.
#include "cuda/shared_event.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/sys_process.hpp"

namespace shmb::cuda {
namespace {

constexpr const char* kObject = "an event between processes";
constexpr std::int64_t kFirstRest = 20'000, kLongestRest = 1'000'000;
constexpr std::size_t kMostFollowers = 32;  // of one event; streams come and go

}  // namespace

class SharedEvent::Body {
 public:
  Body(const Driver& driver, Device device) : driver_(driver), device_(device), hold_(driver, device) {}
  Body(const Body&) = delete;
  Body& operator=(const Body&) = delete;
  ~Body() {
    if (event_ == nullptr || Driver::loaded() == nullptr) return;  // a forked child: the event is the parent's
    try {
      auto scope = hold_.enter_primary();
      for (const auto& [key, follower] : followers_) driver_.calls().stream_destroy(follower);
      driver_.calls().event_destroy(event_);  // also without a context: then the driver refuses
    } catch (...) {                           // no memory for a sentence: all of it ends with the context
    }
  }

  const Driver& driver_;
  const Device device_;
  ContextHold hold_;
  std::mutex mutex_;  // guards the hold and the followers
  Event event_ = nullptr;
  std::map<StreamKey, Stream> followers_;
  bool own_ = false;
  Name name_{};

  // The events of this process by name. It is used only after the driver has answered, so never in a forked child.
  struct All {
    std::mutex mutex;
    std::map<Name, std::weak_ptr<Body>> own;
  };
  static All& all() {
    static All* const one = new All;
    return *one;
  }

  // A call of the driver in the event's context.
  template <class Call>
  Result<void> ask(const char* name, Call&& call) {
    SHMB_TRY_VOID(Driver::load());
    std::lock_guard lock(mutex_);
    SHMB_TRY(scope, hold_.enter_primary());
    const BesideCaptures beside(driver_);
    return said(call(driver_.calls()), name);
  }

  Result<void> said(Code code, const char* name) const {
    if (code == kSuccess) return {};
    return std::unexpected(driver_.failure(code, name, kObject));
  }

  // A call of the driver about a stream, in that stream's own context, whichever is current. For a default stream it is
  // the current context, or the one that would be.
  template <class Call>
  Result<void> beside(Stream stream, Call&& call) {
    SHMB_TRY_VOID(Driver::load());
    std::lock_guard lock(mutex_);
    Device current = -1;
    if (driver_->context_device(&current) != kSuccess) current = device_;
    ContextHold hold(driver_, current);
    SHMB_TRY(scope, is_default_stream(stream) ? hold.enter() : ContextHold::enter_stream(driver_, stream));
    return call();
  }

  // Call with the stream's context current.
  Result<void> record(Stream stream) {
    Context here = nullptr, home = nullptr;
    SHMB_TRY_VOID(said(driver_->context_get(&here), "cuCtxGetCurrent"));
    {
      SHMB_TRY(scope, hold_.enter_primary());
      SHMB_TRY_VOID(said(driver_->context_get(&home), "cuCtxGetCurrent"));
    }
    if (here == home) return said(driver_->event_record(event_, stream), "cuEventRecord");
    int capturing = 0;
    SHMB_TRY_VOID(said(driver_->stream_capturing(stream, &capturing), "cuStreamIsCapturing"));
    if (capturing != 0)
      return error(
          Status::not_supported,
          "a stream that is being captured into a graph records an event between processes only where it is of "
          "the primary context of the event's device");
    SHMB_TRY(key, StreamKey::of(driver_, stream));
    Event passing = nullptr;
    SHMB_TRY_VOID(said(driver_->event_create(&passing, kDisableTiming), "cuEventCreate"));
    auto done = said(driver_->event_record(passing, stream), "cuEventRecord");
    if (done) done = record_behind(passing, key);
    driver_->event_destroy(passing);  // the driver destroys it after it has passed
    return done;
  }

  Result<void> record_behind(Event passing, const StreamKey& key) {
    SHMB_TRY(scope, hold_.enter_primary());
    SHMB_TRY(follower, follower_of(key));
    auto done = said(driver_->stream_wait_event(follower, passing, 0), "cuStreamWaitEvent");
    if (done) done = said(driver_->event_record(event_, follower), "cuEventRecord");
    return done;
  }

  Result<Stream> follower_of(const StreamKey& key) {
    if (const auto found = followers_.find(key); found != followers_.end()) return found->second;
    if (followers_.size() == kMostFollowers) {
      driver_->stream_destroy(followers_.begin()->second);  // the driver destroys it after its work
      followers_.erase(followers_.begin());
    }
    Stream made = nullptr;
    SHMB_TRY_VOID(said(driver_->stream_create(&made, kNonBlocking), "cuStreamCreate"));
    try {
      followers_.emplace(key, made);
    } catch (...) {
      driver_->stream_destroy(made);
      throw;
    }
    return made;
  }

  static Result<std::shared_ptr<Body>> on(int ordinal) {
    SHMB_TRY(loaded, Driver::load());
    const Driver& driver = *loaded;
    SHMB_TRY_VOID(driver.need(Feature::events));
    Device current = 0;
    if (ordinal < 0 && driver->context_device(&current) == kSuccess) ordinal = current;
    SHMB_TRY(device, driver.at(std::max(ordinal, 0)));
    if (!device->ipc_events)
      return error(Status::not_supported, device->name + " has no events between processes: use a timeline");
    return std::make_shared<Body>(driver, device->device);
  }
};

Result<SharedEvent::Handle> SharedEvent::create(int device) {
  SHMB_TRY(made, Body::on(device));
  Body& body = *made;
  body.own_ = true;
  auto done = body.ask("cuEventCreate",
                       [&](const Calls& cu) { return cu.event_create(&body.event_, kInterprocess | kDisableTiming); });
  IpcHandle handle;
  if (done)
    done = body.ask("cuIpcGetEventHandle", [&](const Calls& cu) { return cu.ipc_get_event(&handle, body.event_); });
  if (!done) return std::unexpected(done.error());
  static_assert(sizeof handle.reserved == std::tuple_size_v<Name>);
  std::memcpy(body.name_.data(), handle.reserved, sizeof handle.reserved);
  Body::All& all = Body::all();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.own, [](const auto& entry) { return entry.second.expired(); });
  all.own[body.name_] = made;
  return Handle(new SharedEvent(std::move(made)));
}

Result<SharedEvent::Handle> SharedEvent::open(const Name& name, int device) {
  SHMB_TRY(made, Body::on(device));
  {
    Body::All& all = Body::all();
    std::lock_guard lock(all.mutex);
    if (const auto found = all.own.find(name); found != all.own.end())
      if (auto own = found->second.lock()) return Handle(new SharedEvent(std::move(own)));
  }
  Body& body = *made;
  IpcHandle handle;
  std::memcpy(handle.reserved, name.data(), sizeof handle.reserved);
  Code said = kSuccess;
  auto done =
      body.ask("cuIpcOpenEventHandle", [&](const Calls& cu) { return said = cu.ipc_open_event(&body.event_, handle); });
  if (done) return Handle(new SharedEvent(std::move(made)));
  body.event_ = nullptr;
  Error failure = done.error();
  if (said == kInvalidValue || said == kInvalidHandle || said == kInvalidContext || said == kInvalidDevice ||
      said == kMapFailed)
    failure = error(Status::invalid, "cuIpcOpenEventHandle gives " + body.driver_.code_text(said) +
                                         ": these 64 bytes name no event, or its maker has ended, or lives in another "
                                         "PID namespace or on a device that this process does not see")
                  .error();
  return std::unexpected(std::move(failure));
}

SharedEvent::~SharedEvent() = default;

Result<SharedEvent::Name> SharedEvent::name() const {
  if (!body_->own_)
    return error(Status::denied, "only the maker of an event names it to others: this handle was opened");
  return body_->name_;
}

Result<void> SharedEvent::record(Stream stream) {
  return body_->beside(stream, [&] { return body_->record(stream); });
}

Result<void> SharedEvent::wait(Stream stream) {
  return body_->beside(stream, [&]() -> Result<void> {
    int capturing = 0;
    SHMB_TRY_VOID(body_->said(body_->driver_->stream_capturing(stream, &capturing), "cuStreamIsCapturing"));
    if (capturing != 0)  // the driver would refuse it too, and invalidate the capture
      return error(Status::not_supported,
                   "a stream that is being captured into a graph cannot wait for an event between processes: wait "
                   "before the capture, or after it");
    return body_->said(body_->driver_->stream_wait_event(stream, body_->event_, 0), "cuStreamWaitEvent");
  });
}

Result<bool> SharedEvent::done() {
  Code code = kSuccess;
  auto asked = body_->ask("cuEventQuery", [&](const Calls& cu) {
    code = cu.event_query(body_->event_);
    return code == kNotReady ? kSuccess : code;
  });
  if (!asked) return std::unexpected(asked.error());
  return code == kSuccess;
}

Result<void> SharedEvent::wait_host(client::Deadline deadline) {
  for (std::int64_t rest = kFirstRest;; rest = std::min(rest * 2, kLongestRest)) {
    SHMB_TRY(reached, done());
    if (reached) return {};
    if (deadline.passed())
      return error(Status::deadline,
                   "the event's last record is not done in time; whether who recorded it still lives an event cannot "
                   "tell: a timeline does");
    sys::rest(rest);
  }
}

}  // namespace shmb::cuda
