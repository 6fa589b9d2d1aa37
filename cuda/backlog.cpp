// SPDX-License-Identifier: Apache-2.0
// One event for each context, recorded after all work in it, or after one stream's.
#include "cuda/backlog.hpp"

#include <algorithm>
#include <utility>

#include "base/sys_process.hpp"

namespace shmb::cuda {
namespace {

constexpr std::int64_t kFirstLook = 20'000, kLongestLook = 1'000'000;

}  // namespace

void Backlog::note(Error failure) {
  if (failure_) failure_ = std::unexpected(std::move(failure));
}

// Only a ruined context is known to do no more work. With any other failure, also a lack of memory for an event, it
// may.
void Backlog::note(Code code, const char* call) {
  blind_ = blind_ || !Driver::poisons(code);
  note(driver_->failure(code, call, object_));
}

// `record` is called in the device's context.
template <class Record>
void Backlog::mark(Device device, const char* call, Record record) {
  ContextHold hold(*driver_, device);
  auto scope = hold.enter();
  if (!scope) {
    blind_ = true;
    return note(scope.error());
  }
  const Calls& cu = driver_->calls();
  marks_.reserve(marks_.size() + 1);
  Event event = nullptr;
  if (const Code code = cu.event_create(&event, kDisableTiming); code != kSuccess) return note(code, "cuEventCreate");
  if (const Code code = record(event); code != kSuccess) {
    cu.event_destroy(event);
    return note(code, call);
  }
  marks_.push_back({std::move(hold), event});
}

Backlog Backlog::of_devices(const Driver& driver, std::span<const Device> devices, std::string object) {
  Backlog made(driver, std::move(object));
  const auto record = [&](Event event) {
    Context here = nullptr;
    Code code = driver->context_get(&here);
    if (code != kSuccess) return code;
    code = driver.has(Feature::bounded_waits) ? driver->context_record(here, event) : kNotSupported;
    // The event was not recorded, and counts as passed once the driver's own wait is over.
    return code == kNotSupported ? driver->context_synchronize() : code;
  };
  for (const Device device : devices) {
    unsigned flags = 0;
    int active = 0;
    if (driver->primary_state(device, &flags, &active) == kSuccess && active != 0)
      made.mark(device, "cuCtxRecordEvent", record);
  }
  return made;
}

Backlog Backlog::of_stream(const Driver& driver, Device device, Stream stream, std::string object) {
  Backlog made(driver, std::move(object));
  // In a stream that is being captured the record would become part of the graph, and would not be executed now.
  made.mark(device, "cuEventRecord", [&](Event event) {
    int capturing = 0;
    const Code code = driver->stream_capturing(stream, &capturing);
    if (code != kSuccess) return code;
    return capturing != 0 ? kCaptureUnsupported : driver->event_record(event, stream);
  });
  return made;
}

Backlog::~Backlog() {
  if (marks_.empty() || Driver::loaded() == nullptr) return;  // a forked child: the events are the parent's
  for (Mark& mark : marks_) {
    if (mark.event == nullptr) continue;
    try {
      const auto scope = mark.context.enter();
      driver_->calls().event_destroy(mark.event);
    } catch (...) {  // no memory for a sentence: the event ends with its context
    }
  }
}

bool Backlog::passed(Mark& mark) {
  if (mark.event == nullptr) return true;
  const auto scope = mark.context.enter();
  const BesideCaptures beside(*driver_);
  const Code code = driver_->calls().event_query(mark.event);
  if (code == kNotReady) return false;
  if (code != kSuccess) note(code, "cuEventQuery");
  if (blind_) return false;
  driver_->calls().event_destroy(mark.event);
  mark.event = nullptr;
  return true;
}

bool Backlog::over() {
  bool all = !blind_;
  for (Mark& mark : marks_) all = passed(mark) && all;
  return all && !blind_;
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
