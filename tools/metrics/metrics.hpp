// SPDX-License-Identifier: Apache-2.0
// The metrics of a broker, its users and groups, and of the host's shared memory, for a system that collects figures
// (OpenMetrics). A broker that does not answer is a figure as well: shmbroker_up is then 0, and those of the host stay.
// Names and meanings stay once released. Labels name a user by uid and name, and a group by id and name.
#pragma once

#include <optional>
#include <string>

#include "tools/session.hpp"
#include "tools/view.hpp"

namespace shmb::tools {

struct MetricsSource {
  struct Books {
    BrokerStatus status;
    Listing<client::RefusalRow> refusals;
    Listing<client::UidRow> users;
    Listing<GroupRow> groups;
  };
  std::optional<Books> books;                               // none: no broker answers
  std::optional<std::uint64_t> shared_memory;               // Shmem of /proc/meminfo
  std::optional<std::uint64_t> dev_shm_used, dev_shm_size;  // none: not mounted. A size of all ones: no limit
};

Result<MetricsSource::Books> read_metrics_books(const Viewer& viewer, bool all_groups);
void read_metrics_host(MetricsSource& source, const std::string& root = {});
std::string metrics_text(const MetricsSource& source);

}  // namespace shmb::tools
