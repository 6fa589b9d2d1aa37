// SPDX-License-Identifier: Apache-2.0
// The facts that the ledger needs about the process around it, and how a broker is made. All other traffic goes through
// the seam of link.hpp: the transport includes this file and no other file of the ledger.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/start/config.hpp"
#include "daemon/transport/link.hpp"

namespace shmb::daemon {

struct BrokerFacts {
  shmbw_engine engine = SHMBW_ENGINE_NONE;
  std::string engine_reason;        // why this engine, for `status`
  std::vector<std::string> losses;  // what is not available and why, one sentence each
  std::string version;              // "shmbrokerd 0.1.0"
  std::string kernel;               // KernelFeatures::release
  std::uint64_t features = 0;       // shmbw_feature_flags found
  bool exec_seal = false;           // regions are born with MFD_NOEXEC_SEAL
  std::uint64_t epoch = 0;          // random, never 0; 0: make_broker draws one
  std::uint32_t uid = 0;            // the broker's own, after the drop
  std::uint32_t pid = 0;
  std::uint64_t descriptors_limit = 0;  // size of the table; 0: RLIMIT_NOFILE's soft value
  std::uint64_t mappings_limit = 0;     // of this process; 0: vm.max_map_count
  // Descriptors that the transport and the process hold (sockets, pidfds, queued replies, engine). The ledger counts
  // those of regions itself. Empty: two for each session.
  std::function<std::uint32_t()> transport_descriptors;
  std::function<std::uint32_t()> in_flight;                 // sent and not read yet, all sessions; may be empty
  std::function<void(int priority, std::string_view)> log;  // syslog priorities; may be empty
  std::function<void()> descriptor_freed;                   // a paused listener may go on; may be empty
  std::function<std::int64_t()> now;                        // CLOCK_BOOTTIME ns; empty: the real clock
  std::function<std::uint32_t()> last_pid;  // pid of the newest process, 0 unknown; empty: the kernel is asked
  std::int64_t tick_at_most = INT64_MAX;    // ns of due timers in one tick; the others wait for the next
};

// Config::descriptors_reserved and the limits come from `config`.
Result<std::unique_ptr<BrokerEvents>> make_broker(const Config& config, BrokerFacts facts);

}  // namespace shmb::daemon
