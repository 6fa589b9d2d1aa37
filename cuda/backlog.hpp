// SPDX-License-Identifier: Apache-2.0
// The work that devices had at one moment, and whether it is done. It is polled, because the driver's own wait has no
// deadline. A driver without cuCtxRecordEvent (before 12.5), or one that refuses it, cannot be polled. There the start
// of a backlog of devices waits until the work is done; Feature::bounded_waits says where the function is missing.
#pragma once

#include <cstdint>
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
  // The work of the devices' primary contexts. It makes no context. All are asked, even if one of them fails.
  static Backlog of_devices(const Driver& driver, std::span<const Device> devices, std::string object);
  // The work of a stream of the device's primary context.
  static Backlog of_stream(const Driver& driver, Device device, Stream stream, std::string object);

  Backlog(Backlog&&) = default;
  Backlog& operator=(Backlog&&) = delete;
  ~Backlog();

  // Polls without waiting. Also true where a failure has ended the work.
  bool over();
  // Returns deadline; or, once it is over, the first failure.
  Result<void> wait(client::Deadline deadline);
  // A context could not be asked, for example because one of its streams is being captured into a graph. Then it is
  // never over, and the caller begins again.
  bool blind() const { return blind_; }

 private:
  struct Mark {
    ContextHold context;
    Event event = nullptr;  // null: passed
  };
  Backlog(const Driver& driver, std::string object) : driver_(&driver), object_(std::move(object)) {}
  template <class Record>
  void mark(Device device, const char* call, Record record);
  bool passed(Mark& mark);
  void note(Error failure);
  void note(Code code, const char* call);

  const Driver* driver_;
  std::string object_;
  std::vector<Mark> marks_;
  Result<void> failure_;
  bool blind_ = false;
};

}  // namespace shmb::cuda
