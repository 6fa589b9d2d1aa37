// SPDX-License-Identifier: Apache-2.0
// Which streams have come past what was enqueued in them: behind each use a stream writes a number of its own into a
// page of ours. An event would belong to the stream's context, may be recorded in no other, and must not be touched
// once that is destroyed; this page outlives every context but the one that registered it, and is read without the
// driver.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/mapping.hpp"
#include "cuda/context.hpp"

namespace shmb::cuda {

class StreamMarks {
 public:
  StreamMarks() = default;
  StreamMarks(const StreamMarks&) = delete;
  StreamMarks& operator=(const StreamMarks&) = delete;

  // Both in a context that lasts from one to the other. `end` only once all have passed.
  Result<void> begin(const Driver& driver, const std::string& object);
  void end(const Driver& driver) noexcept;

  // Before anything is enqueued in the stream, whose context is current: where it will write.
  Result<std::size_t> place(const Driver& driver, Stream stream);
  // Behind what was enqueued. Where it fails nobody will know of the stream again, and `passed` says no from then on.
  void put(const Driver& driver, std::size_t place, Stream stream) noexcept;
  bool passed() const noexcept;
  bool lost() const { return lost_; }

 private:
  bool passed(std::size_t place) const noexcept;

  Mapping page_;
  Address address_ = 0;
  std::map<StreamKey, std::size_t> places_;
  std::vector<std::uint64_t> last_;  // by place: the number that was enqueued last
  bool lost_ = false;
};

}  // namespace shmb::cuda
