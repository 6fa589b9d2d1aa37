// SPDX-License-Identifier: Apache-2.0
// The driver's own events between processes, for programs that have them already. They are no object of the broker's:
// an event ends with its maker, the driver leaves open what then becomes of its waiters, and nobody is told. So whoever
// makes or opens one says that he has seen to that; for all others there are timelines.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "client/deadline.hpp"
#include "cuda/context.hpp"

namespace shmb::cuda {

class SharedEvent {
 public:
  using Handle = std::unique_ptr<SharedEvent>;
  using Name = std::array<std::uint8_t, 64>;  // the driver's handle, to be sent to other processes
  // device: an ordinal; -1: of the current context, else the first.
  static Result<Handle> create(int device);
  // In the process that made it: the same event, which the driver would refuse to open.
  static Result<Handle> open(const Name& name, int device);
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;
  ~SharedEvent();

  Result<Name> name() const;  // of one that was made here
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
