// SPDX-License-Identifier: Apache-2.0
// One event for each context, recorded after all work in it, or after one stream's.
#include "cuda/backlog.hpp"

#include <algorithm>
#include <utility>

#include "base/sys_process.hpp"

namespace shmb::cuda {
namespace {

constexpr std::int64_t kFirstLook = 20'000, kLongestLook = 1'000'000;
constexpr int kInvalidated = 2;  // CU_STREAM_CAPTURE_STATUS_INVALIDATED

}  // namespace

void Backlog::note(Code code, const char* call) {
  if (code == kContextDestroyed) return;  // the work of a destroyed context has ended with it
  Error failed = driver_->failure(code, call, object_);
  if (failure_) failure_ = std::unexpected(std::move(failed));
}

// Only a ruined context is known to do no more work. With any other failure, also a lack of memory for an event, it
// may.
void Backlog::not_marked(Code code, const char* call) {
  blind_ = blind_ || (code != kContextDestroyed && !Driver::poisons(code));
  note(code, call);
}

// In the current context.
void Backlog::mark(std::optional<ContextHold> primary, const char* call, Record record, Stream stream) {
  const Calls& cu = driver_->calls();
  Mark made{std::move(primary)};
  Code code = cu.context_get(&made.context);
  if (code == kSuccess) code = cu.context_id(nullptr, &made.id);
  if (code != kSuccess) return not_marked(code, "cuCtxGetId");
  marks_.reserve(marks_.size() + 1);
  if (code = cu.event_create(&made.event, kDisableTiming); code != kSuccess) return not_marked(code, "cuEventCreate");
  if (code = record(cu, made.context, made.event, stream); code != kSuccess) {
    cu.event_destroy(made.event);
    return not_marked(code, call);
  }
  marks_.push_back(std::move(made));
}

void Backlog::mark_context(std::optional<ContextHold> primary) {
  if (!driver_->has(Feature::bounded_waits)) {
    if (const Code code = driver_->calls().context_synchronize(); code != kSuccess)
      not_marked(code, "cuCtxSynchronize");
    return;
  }
  const Record record = [](const Calls& cu, Context context, Event event, Stream) {
    return cu.context_record(context, event);
  };
  mark(std::move(primary), "cuCtxRecordEvent", record, nullptr);
}

Backlog Backlog::of_devices(const Driver& driver, std::span<const Device> devices, std::string object) {
  Backlog made(driver, std::move(object));
  for (const Device device : devices) {
    unsigned flags = 0;
    int active = 0;
    Context primary = nullptr;
    if (driver->primary_state(device, &flags, &active) == kSuccess && active != 0) {
      std::optional<ContextHold> hold(std::in_place, driver, device);
      auto scope = hold->enter_primary();
      if (!scope) {
        made.blind_ = true;
        if (made.failure_) made.failure_ = std::unexpected(scope.error());
      } else if (const Code code = driver->context_get(&primary); code != kSuccess) {
        made.not_marked(code, "cuCtxGetCurrent");
      } else {
        made.mark_context(std::move(hold));
      }
    }
    Context current = nullptr;
    Device of_current = -1;
    if (driver->context_get(&current) == kSuccess && current != nullptr && current != primary &&
        driver->context_device(&of_current) == kSuccess && of_current == device)
      made.mark_context(std::nullopt);
  }
  return made;
}

Backlog Backlog::of_stream(const Driver& driver, Device device, Stream stream, std::string object) {
  Backlog made(driver, std::move(object));
  made.hold_.emplace(driver, device);
  auto scope = is_default_stream(stream) ? made.hold_->enter() : ContextHold::enter_stream(driver, stream);
  if (!scope) {
    made.failure_ = std::unexpected(scope.error());
    return made;
  }
  made.scope_.emplace(std::move(*scope));
  // The record would become part of the graph, and would not be executed now.
  int capturing = 0;
  Code code = driver->stream_capturing(stream, &capturing);
  if (code == kSuccess && capturing != 0) code = capturing == kInvalidated ? kCaptureInvalidated : kCaptureUnsupported;
  if (code != kSuccess) {
    made.not_marked(code, "cuStreamIsCapturing");
    return made;
  }
  const Record record = [](const Calls& cu, Context, Event event, Stream into) { return cu.event_record(event, into); };
  made.mark(std::nullopt, "cuEventRecord", record, stream);
  return made;
}

Backlog::~Backlog() {
  if (marks_.empty() || Driver::loaded() == nullptr) return;  // a forked child: the events are the parent's
  for (Mark& mark : marks_) {
    std::optional<ContextHold::Scope> scope;
    try {
      if (mark.event != nullptr && reach(mark, scope) == Reach::here) driver_->calls().event_destroy(mark.event);
    } catch (...) {  // no memory for a sentence: the event ends with its context
    }
  }
}

Backlog::Reach Backlog::reach(Mark& mark, std::optional<ContextHold::Scope>& scope) const {
  const Calls& cu = driver_->calls();
  if (mark.primary) {
    auto entered = mark.primary->enter_primary();
    if (!entered) return Reach::gone;
    scope.emplace(std::move(*entered));
  } else {
    Context current = nullptr;
    if (cu.context_get(&current) != kSuccess || current != mark.context) return Reach::away;
  }
  unsigned long long id = 0;
  const Code code = cu.context_id(nullptr, &id);
  return code == kContextDestroyed || (code == kSuccess && id != mark.id) ? Reach::gone : Reach::here;
}

bool Backlog::passed(Mark& mark) {
  if (mark.event == nullptr) return true;
  std::optional<ContextHold::Scope> scope;
  const Reach where = reach(mark, scope);
  if (where == Reach::away) return false;
  if (where == Reach::here) {
    const BesideCaptures beside(*driver_);
    const Code code = driver_->calls().event_query(mark.event);
    if (code == kNotReady) return false;
    if (Driver::of_capture(code)) {  // not known
      not_marked(code, "cuEventQuery");
      return false;
    }
    if (code != kSuccess) note(code, "cuEventQuery");
    driver_->calls().event_destroy(mark.event);
  }
  mark.event = nullptr;
  return true;
}

bool Backlog::over() {
  bool all = !blind_;
  for (Mark& mark : marks_) all = passed(mark) && all;
  return all;
}

Result<void> Backlog::wait(client::Deadline deadline) {
  for (std::int64_t rest = kFirstLook;; rest = std::min(rest * 2, kLongestLook)) {
    if (over() || blind_) return failure_;
    if (deadline.passed())
      return error(Status::deadline,
                   "the device had not done in time all that was enqueued on it before, so nothing has changed for " +
                       object_ + ": try again later, or look for a stream that waits for what never comes");
    sys::rest(rest);
  }
}

}  // namespace shmb::cuda
