// SPDX-License-Identifier: Apache-2.0
// Objects that only root can see, and a listing does not show: regions of other users, which only the admin socket
// lists, and private brokers of other users. For callers other than root there is nothing to say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/report_json.hpp"
#include "tools/view.hpp"

namespace shmb::tools {

struct OtherBroker {
  std::uint32_t pid = 0, uid = 0;
  std::string socket;
};
struct Hidden {
  std::uint64_t regions = 0;
  std::vector<OtherBroker> brokers;
};
// Brokers of users other than root, found in `proc` by the program's name. Empty if the caller is not root.
std::vector<OtherBroker> other_brokers(const std::string& proc = "/proc");
// `all`: the admin socket was used. `regions`: the number that was shown.
Hidden hidden_from(const BrokerStatus& status, std::uint64_t regions, bool all);
std::string hidden_text(const Hidden& hidden);  // lines, or empty
std::string brokers_text(const std::vector<OtherBroker>& brokers);
Json hidden_json(const Hidden& hidden);

}  // namespace shmb::tools
