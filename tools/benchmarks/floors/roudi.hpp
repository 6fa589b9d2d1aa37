// SPDX-License-Identifier: Apache-2.0
// iceoryx as a peer of hops, where its packages are installed; left out with a word where they are not or its daemon
// does not start. A program of its own measures it (iceoryx_main.cpp): its libraries and threads stay out of the bench.
#pragma once

#include <cstddef>
#include <optional>

#include "tools/benchmarks/floors/ping_pong.hpp"

namespace shmb::bench {

class Roudi {
 public:
  explicit Roudi(bool wanted);
  Roudi(Roudi&&) = delete;
  ~Roudi();
  // nullopt: not there, or it failed, which was said.
  std::optional<PingPong::Times> one_way(std::size_t bytes, bool asleep, std::uint32_t stretches, std::uint32_t in_each,
                                         std::uint32_t timed_ones);

 private:
  Child child_;
  Fd output_;
  bool runs_ = false;
};

}  // namespace shmb::bench
