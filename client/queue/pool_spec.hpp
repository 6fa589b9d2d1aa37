// SPDX-License-Identifier: Apache-2.0
// The settings with which a program makes a pool, and what a pool says about itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace shmb::client {

struct SizeClass {
  std::uint64_t slot_size = 0;
  std::uint32_t slots = 0, slots_limit = 0;
};

struct PoolSpec {
  std::string name;
  std::vector<SizeClass> classes;
  std::uint64_t group = 0;
  std::optional<std::int64_t> keep;
  bool small_pages = false, no_populate = false, replace = false, name_with_holders = false;
  std::uint32_t lanes = 0, queues = 0;
  std::uint64_t lane_bytes = 0;
  // Lazy size classes: `slots` is 0, and the first process that needs a slot creates them. Every opener must pass the
  // same classes.
  std::vector<SizeClass> later{};
};

// The spec with its defaults filled in and its classes in order of size, or what is wrong with it.
Result<PoolSpec> checked(PoolSpec spec);

struct PoolFacts {
  std::uint64_t id = 0, group = 0, bytes = 0;
  std::uint32_t participant = 0, participants = 0;
  std::uint32_t slots = 0, slots_limit = 0, slots_used = 0, slots_own = 0, slots_high = 0, segments = 0;
  std::uint32_t queues = 0, queues_limit = 0, lanes = 0, lanes_limit = 0;
  bool read_only = false, broken = false;
  struct Class {
    std::uint64_t slot_size;
    std::uint32_t slots, slots_used;
  };
  std::vector<Class> classes;
};

}  // namespace shmb::client
