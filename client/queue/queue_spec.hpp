// SPDX-License-Identifier: Apache-2.0
// The settings with which a program opens a queue, and what a queue says about itself.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "client/lane/sleeper.hpp"
#include "proto/pool_layout.hpp"

namespace shmb::client {

struct QueueSpec {
  std::string name;
  pool::QueueKind kind = pool::QueueKind::none;
  bool reader = false, writer = false, create_only = false, open_only = false;
  std::uint32_t flags = 0;                 // pool::kQueue*
  std::uint32_t cells = 0, cell_size = 0;  // 0: those of the existing queue; 256 and 64 in a new one
  std::int64_t spin = Sleeper::kDefaultSpin;
  bool spin_always = false;  // see Sleeper::set_spin
  std::int64_t wait = 0, timeout = 0;
};

struct QueueFacts {
  pool::QueueKind kind = pool::QueueKind::none;
  bool reader = false, writer = false, closed = false;
  std::uint32_t flags = 0, cells = 0, inline_bytes = 0, readers = 0, writers = 0, lanes = 0, deaths = 0;
  std::uint64_t depth = 0, lost = 0, sent = 0, received = 0, expired = 0, in_regions = 0, pool = 0;
  std::string name;
};

Result<void> checked(const QueueSpec& spec);
// A reader that names no kind takes the existing queue, and waits for it.
QueueSpec with_wait(QueueSpec spec);
// Names the setting in which the existing queue differs. Empty: there is no such queue, or none differs.
std::string difference(const pool::View& view, const QueueSpec& spec);

}  // namespace shmb::client
