// SPDX-License-Identifier: Apache-2.0
// The work that devices had at one moment, and whether it is done. It is polled, because the driver's own wait has no
// deadline. A driver before 12.5 has no cuCtxRecordEvent and cannot be polled. There the start of a backlog of devices
// waits until the work is done, and Feature::bounded_waits says so.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/session/deadline.hpp"
#include "cuda/context.hpp"
#include "cuda/shmbroker_cuda.h"

namespace shmb::cuda {

// One duration of the caller bounds a whole call, including the devices' earlier work. The default for devices is
// longer than that for the broker, because devices do the caller's own work.
class Patience {
 public:
  explicit Patience(std::int64_t timeout)
      : timeout_(timeout), all_(client::Deadline::after(timeout, SHMB_GPU_DEVICE_TIMEOUT)) {}
  client::Deadline device() const { return all_; }
  client::Deadline broker() const { return timeout_ == 0 ? client::Deadline::after(0) : all_; }

 private:
  std::int64_t timeout_;
  client::Deadline all_;
};

class Backlog {
 public:
  // The work of the devices' primary contexts and of the current context. It makes no context. Other contexts of the
  // program cannot be asked. All are asked, even if one of them fails.
  static Backlog of_devices(const Driver& driver, std::span<const Device> devices, std::string object);
  // The work of a stream; of a default stream that of the device's context. It must end in the thread that began it.
  static Backlog of_stream(const Driver& driver, Device device, Stream stream, std::string object);

  Backlog(Backlog&&) = default;
  Backlog& operator=(Backlog&&) = delete;
  ~Backlog();

  // Polls without waiting. Also true where a failure has ended the work, or means that its end will never be known.
  bool over();
  // Returns deadline; or, once it is over, the first failure.
  Result<void> wait(client::Deadline deadline);
  // A context could not be asked, for example because one of its streams is being captured into a graph. Then it is
  // never over, and the caller begins again.
  bool blind() const { return blind_; }

 private:
  // The position of one context at that moment. An event ends with its context and must not be used after that. Primary
  // contexts are kept. Any other context is asked only where it is current.
  struct Mark {
    std::optional<ContextHold> primary;
    Context context = nullptr;
    unsigned long long id = 0;
    Event event = nullptr;  // null: passed
  };
  using Record = Code (*)(const Calls&, Context, Event, Stream);
  enum class Reach { here, away, gone };
  Backlog(const Driver& driver, std::string object) : driver_(&driver), object_(std::move(object)) {}
  void mark_context(std::optional<ContextHold> primary);
  void mark(std::optional<ContextHold> primary, const char* call, Record record, Stream stream);
  Reach reach(Mark& mark, std::optional<ContextHold::Scope>& scope) const;
  bool passed(Mark& mark);
  void note(Code code, const char* call);
  void not_marked(Code code, const char* call);

  const Driver* driver_;
  std::string object_;
  std::optional<ContextHold> hold_;  // for a default stream
  std::optional<ContextHold::Scope> scope_;
  std::vector<Mark> marks_;
  Result<void> failure_;
  bool blind_ = false;
};

}  // namespace shmb::cuda
