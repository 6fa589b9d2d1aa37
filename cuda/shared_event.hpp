// SPDX-License-Identifier: Apache-2.0
// The driver's own events between processes, for programs that use them already. The broker does not manage them. An
// event ends with its maker, the driver does not define what then happens to its waiters, and no process is notified.
// So the caller that makes or opens one must confirm that it handles this. All others use timelines.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "client/session/deadline.hpp"
#include "cuda/context.hpp"

namespace shmb::cuda {

class SharedEvent {
 public:
  using Handle = std::unique_ptr<SharedEvent>;
  using Name = std::array<std::uint8_t, 64>;  // the driver's handle, for other processes
  // device: an ordinal; -1: of the current context, else the first.
  static Result<Handle> create(int device);
  // In the process that made it: returns the same event, because the driver would refuse to open it.
  static Result<Handle> open(const Name& name, int device);
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;
  ~SharedEvent();

  Result<Name> name() const;  // for an event that was made here
  Result<void> record(Stream stream);
  Result<void> wait(Stream stream);  // the stream waits for the last record before this call
  Result<bool> done();
  Result<void> wait_host(client::Deadline deadline);

 private:
  class Body;
  explicit SharedEvent(std::shared_ptr<Body> body) : body_(std::move(body)) {}
  std::shared_ptr<Body> body_;
};

}  // namespace shmb::cuda
