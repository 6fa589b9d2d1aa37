// SPDX-License-Identifier: Apache-2.0
// While the host's processes stall for memory, recycled memory is given up: it is ready for reuse, and others need it
// now. Regions that anything holds or keeps are never touched.
//
// The kernel counts the stalled time in /proc/pressure/memory. It is read twice a second, and only while there is
// recycled memory. So an idle broker reads nothing, and no kernel trigger is needed, which would take a capability.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "daemon/kit/timers.hpp"

namespace shmb::daemon {

struct Groups;
struct Host;

// The stalled time of any process since the host started, in microseconds, of the file's text.
std::optional<std::uint64_t> stalled_us(std::string_view pressure);

class MemoryPressure final : public Timer {
 public:
  static constexpr std::int64_t kLook = 500'000'000;  // ns between two looks
  static constexpr std::uint64_t kStalled = 50'000;   // us of stall between them: 10 % of the time
  MemoryPressure(Host& host, Groups& groups);

 private:
  void on_timer(std::int64_t now) override;
  void recycled();  // there is recycled memory, perhaps where there was none

  Host& host_;
  Groups& groups_;
  std::optional<std::uint64_t> last_;
};

}  // namespace shmb::daemon
