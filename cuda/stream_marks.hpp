// SPDX-License-Identifier: Apache-2.0
// Which streams have passed what was enqueued in them: after each use a stream writes a number into a page of the
// library's. An event would belong to the stream's context, could be recorded in no other, and must not be used once
// that is destroyed. This page outlives every context except the one that registered it, and is read without the
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

  // Call both in a context that exists from one to the other. Call `end` only after all have passed.
  Result<void> begin(const Driver& driver, const std::string& object);
  void end(const Driver& driver) noexcept;

  // Call before anything is enqueued in the stream, with its context current. Returns the place where it will write.
  Result<std::size_t> place(const Driver& driver, Stream stream);
  // Call after the work was enqueued. If it fails, the end of the stream's work can never be known, and `passed`
  // returns false from then on.
  void put(const Driver& driver, std::size_t place, Stream stream) noexcept;
  bool passed() const noexcept;
  bool lost() const { return lost_; }

 private:
  bool passed(std::size_t place) const noexcept;

  Mapping page_;
  Address address_ = 0;
  std::map<StreamKey, std::size_t> places_;
  std::vector<std::uint64_t> last_;  // by place: the last number that was enqueued
  bool lost_ = false;
};

}  // namespace shmb::cuda
