// SPDX-License-Identifier: Apache-2.0
// Events: a page with two counters, private or, for those between processes, in a memfd of the maker. A wait is for the
// records that were enqueued when it was; one of a dead maker that never ran is waited for until the watchdog comes. An
// event that a whole context recorded has no place in any stream: it looks at how far all of them have come.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <set>

#include "tests/fakecuda/stream.hpp"

namespace fakecuda {
namespace {

constexpr std::size_t kEventPage = 4096;
constexpr std::uint32_t kEventMagic = 0x65766e74;

struct Counters {
  std::atomic<std::uint64_t> recorded, done;
  std::atomic<std::uint32_t> destroyed;
};

struct EventBody {
  Counters* counters = nullptr;
  Context context = nullptr;
  int fd = -1;
  bool interprocess = false, imported = false;
  std::function<bool()> moment;      // of the last record, where that was a context's
  std::shared_ptr<Capture> capture;  // where that was in a captured stream
  ~EventBody() {
    ::munmap(counters, kEventPage);
    if (fd >= 0) ::close(fd);
  }
};
using EventPtr = std::shared_ptr<EventBody>;

struct NamedEvent {
  std::uint32_t magic;
  std::int32_t pid, fd;
};

std::map<Event, EventPtr>& events() {
  static auto* const all = new std::map<Event, EventPtr>;
  return *all;
}

// Those whose context was destroyed before them.
std::set<Event>& buried() {
  static auto* const all = new std::set<Event>;
  return *all;
}

EventPtr find_event(Event event) {
  if (buried().contains(event)) state().violation("use of an event whose context was destroyed");
  const auto found = events().find(event);
  return found == events().end() ? nullptr : found->second;
}

EventPtr make_body(int fd) {
  void* page = ::mmap(nullptr, kEventPage, PROT_READ | PROT_WRITE, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
  if (page == MAP_FAILED) return nullptr;
  auto body = std::make_shared<EventBody>();
  body->counters = static_cast<Counters*>(page);
  body->fd = fd;
  return body;
}

Event enter_event(State& it, EventPtr body) {
  body->context = current_context();
  const auto event = reinterpret_cast<Event>(0x9000 + 0x10 * it.next_id++);
  events().emplace(event, std::move(body));
  ++it.events;
  return event;
}

// Whether what is recorded now has come to pass; to be asked without the lock.
std::function<bool()> passing_of(const EventPtr& body) {
  if (body->moment)
    return [moment = body->moment] {
      Lock lock(state().mutex);
      return moment();
    };
  return [body, number = body->counters->recorded.load()] { return body->counters->done >= number; };
}

void look_for_destruction(State& it, const EventBody& body) {
  if (body.imported && body.counters->destroyed != 0)
    it.violation("use of an imported event after its maker destroyed it");
}

}  // namespace

void forget_events(State& it, const CUctx_st& context) {
  for (auto next = events().begin(); next != events().end();) {
    if (next->second->context != &context) {
      ++next;
      continue;
    }
    buried().insert(next->first);
    next = events().erase(next);
    --it.events;
  }
}

}  // namespace fakecuda

using namespace fakecuda;

FAKECUDA_API Code cuEventCreate(Event* event, unsigned flags) {
  return enter("cuEventCreate", Needs::context, [&](State& it, Lock&) -> Code {
    const bool interprocess = (flags & kInterprocess) != 0;
    if (event == nullptr || flags > 7 || (interprocess && (flags & kDisableTiming) == 0)) return kInvalidValue;
    int fd = -1;
    if (interprocess) {
      fd = ::memfd_create("fakecuda-event", MFD_CLOEXEC);
      if (fd < 0 || ::ftruncate(fd, kEventPage) != 0) return kOperatingSystem;
    }
    auto body = make_body(fd);
    if (body == nullptr) return kOutOfMemory;
    body->interprocess = interprocess;
    *event = enter_event(it, std::move(body));
    return kSuccess;
  });
}

FAKECUDA_API Code cuEventDestroy_v2(Event event) {
  return enter("cuEventDestroy", Needs::driver, [&](State& it, Lock&) -> Code {
    const EventPtr body = find_event(event);
    if (body == nullptr) return kInvalidHandle;
    if (!body->imported) body->counters->destroyed = 1;
    events().erase(event);
    --it.events;
    return kSuccess;
  });
}

FAKECUDA_API Code cuEventRecord(Event event, Stream stream) {
  return enter("cuEventRecord", Needs::context, [&](State& it, Lock&) -> Code {
    const EventPtr body = find_event(event);
    if (body == nullptr) return kInvalidHandle;
    const auto facts = facts_of(stream);
    if (!facts || facts->context != body->context) {  // "must be from the same context"
      if (facts) spoil_capture_of(*facts);
      return kInvalidHandle;
    }
    look_for_destruction(it, *body);
    bool captured = false;
    if (const Code code = capture_takes(*facts, &captured); code != kSuccess) return code;
    body->moment = nullptr;
    body->capture = captured ? capture_of(*facts) : nullptr;
    if (captured) return kSuccess;
    const std::uint64_t number = body->counters->recorded.fetch_add(1) + 1;
    return enqueue(it, stream, "cuEventRecord", [=] {
      std::uint64_t done = body->counters->done.load();
      while (done < number && !body->counters->done.compare_exchange_weak(done, number)) {
      }
      return kSuccess;
    });
  });
}

FAKECUDA_API Code cuCtxRecordEvent(Context context, Event event) {
  return enter("cuCtxRecordEvent", Needs::context, [&](State&, Lock&) -> Code {
    const EventPtr body = find_event(event);
    if (body == nullptr || context == nullptr || body->context != context) return kInvalidHandle;
    if (body->interprocess || body->imported) return kNotSupported;
    if (const Code code = capture_forbids_context(*context); code != kSuccess) return code;
    body->moment = moment_of(*context);
    body->capture = nullptr;
    return kSuccess;
  });
}

FAKECUDA_API Code cuEventQuery(Event event) {
  return enter("cuEventQuery", Needs::driver, [&](State& it, Lock&) -> Code {
    const EventPtr body = find_event(event);
    if (body == nullptr) return kInvalidHandle;
    look_for_destruction(it, *body);
    if (body->context->sticky != 0) return body->context->sticky;
    if (const Code code = capture_forbids_event(body->capture); code != kSuccess) return code;
    const bool passed = body->moment ? body->moment() : body->counters->done >= body->counters->recorded;
    return passed ? kSuccess : kNotReady;
  });
}

FAKECUDA_API Code cuEventSynchronize(Event event) {
  return enter("cuEventSynchronize", Needs::context, [&](State& it, Lock& lock) -> Code {
    const EventPtr body = find_event(event);
    if (body == nullptr) return kInvalidHandle;
    look_for_destruction(it, *body);
    if (const Code code = capture_forbids_event(body->capture); code != kSuccess) return code;
    const auto passed = passing_of(body);
    const CUctx_st& context = *current_context();
    lock.unlock();
    while (!passed() && rest(context)) {
    }
    lock.lock();
    return context.sticky;
  });
}

FAKECUDA_API Code cuStreamWaitEvent(Stream stream, Event event, unsigned flags) {
  return enter("cuStreamWaitEvent", Needs::context, [&](State& it, Lock&) -> Code {
    const EventPtr body = find_event(event);
    if (body == nullptr) return kInvalidHandle;
    if (flags > 1) return kInvalidValue;
    look_for_destruction(it, *body);
    const Context context = context_of(stream);
    if (context == nullptr) return kInvalidHandle;
    spoil_capture_of(*facts_of(stream));
    if (body->capture != nullptr || capture_of(*facts_of(stream)) != nullptr) return kCaptureUnsupported;
    return enqueue(it, stream, "cuStreamWaitEvent", [passed = passing_of(body), context] {
      while (!passed() && rest(*context)) {
      }
      return kSuccess;
    });
  });
}

FAKECUDA_API Code cuIpcGetEventHandle(IpcHandle* handle, Event event) {
  return enter("cuIpcGetEventHandle", Needs::context, [&](State&, Lock&) -> Code {
    const EventPtr body = find_event(event);
    if (handle == nullptr || body == nullptr || !body->interprocess) return kInvalidHandle;
    const NamedEvent named{kEventMagic, ::getpid(), body->fd};
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &named, sizeof named);
    return kSuccess;
  });
}

FAKECUDA_API Code cuIpcOpenEventHandle(Event* event, IpcHandle handle) {
  return enter("cuIpcOpenEventHandle", Needs::context, [&](State& it, Lock&) -> Code {
    NamedEvent named{};
    std::memcpy(&named, &handle, sizeof named);
    if (event == nullptr || named.magic != kEventMagic) return kInvalidValue;
    if (named.pid == ::getpid()) return kInvalidContext;
    const std::string path = "/proc/" + std::to_string(named.pid) + "/fd/" + std::to_string(named.fd);
    char target[64];
    const ssize_t length = ::readlink(path.c_str(), target, sizeof target);
    if (length <= 0 || !std::string(target, static_cast<std::size_t>(length)).contains("fakecuda-event"))
      return kInvalidValue;
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return kInvalidValue;
    auto body = make_body(fd);
    if (body == nullptr) return kOutOfMemory;
    body->imported = true;
    *event = enter_event(it, std::move(body));
    return kSuccess;
  });
}
