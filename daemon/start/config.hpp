// SPDX-License-Identifier: Apache-2.0
// The settings of an administrator. They are read before privileges are dropped, and the limits again at SIGHUP. An
// unknown key or a bad value is an error with file and line, and is never ignored.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace shmb::daemon {

enum class Mode { system, private_ };
enum class EngineChoice { automatic, io_uring, epoll };

// Limits of one scope. An absent one is the next wider default.
struct LimitOverride {
  std::optional<std::uint64_t> bytes, regions, leases, sessions, groups, tickets, names, watches, worlds, references,
      gpu_bytes, gpu_descriptors, timelines, descriptors, creates;
};

// The users, by uid or gid, who may read one region of another user.
struct PublicName {
  std::vector<std::uint32_t> uids, gids;
};

// The settings that a reload applies.
struct Limits {
  std::uint64_t host_bytes = 0;     // default: half of MemTotal
  std::uint64_t uid_bytes = 0;      // default: host_bytes
  std::uint64_t group_bytes = 0;    // default: uid_bytes
  bool uid_follows = false;         // uid_bytes was not set: it follows host_bytes
  bool group_follows = false;       // group_bytes was not set: it follows uid_bytes
  std::uint64_t group_regions = 0;  // 0: as many as the descriptor table allows
  std::uint64_t uid_regions = 0;
  std::uint64_t uid_leases = 65'536;
  std::uint64_t session_leases = 65'536;
  std::uint64_t uid_sessions = 0;  // 0: as many as the descriptor table allows
  // System mode: descriptors of the broker's table, for regions, sessions, pools and what clients send. 0: a share that
  // depends on the number of users (Accounts::descriptor_shortage).
  std::uint64_t uid_descriptors = 0;
  std::uint64_t uid_creates = 10'000;  // system mode: regions made in a second; 0: any number
  std::uint64_t uid_groups = 4'096;
  std::uint64_t uid_tickets = 16'384;
  std::uint64_t session_tickets = 0;  // tickets that it made and that are still valid; 0: a quarter of its user's
  std::uint64_t uid_names = 16'384;
  std::uint64_t uid_watches = 65'536;
  std::uint64_t uid_worlds = 1'024;
  std::uint64_t uid_references = 65'536;  // holds on remote references
  std::uint64_t session_watches = 1'024;
  std::uint64_t target_watches = 2'048;  // of one region, name or group, or of one uid's reclaims
  std::uint64_t gpu_bytes = 0;           // of all GPUs together; 0: as much as there is
  std::uint64_t uid_gpu_bytes = 0;
  std::uint64_t group_gpu_bytes = 0;
  // Each descriptor is one of the 524,288 exports that the driver allows on a host.
  std::uint64_t uid_gpu_descriptors = 65'536;
  // The broker maps each timeline, and releases it word by word when its producer is gone.
  std::uint64_t uid_timelines = 1'024;
  std::int64_t keep_max = 7LL * 24 * 3600 * 1'000'000'000;
  std::int64_t ticket_default = 600LL * 1'000'000'000;
  std::int64_t ticket_max = 7LL * 24 * 3600 * 1'000'000'000;
  std::uint64_t events_queued = 256;         // per session, then one gap
  std::uint64_t shelf_bytes = 256ULL << 20;  // per group, and never over a quarter of its limit
  std::int64_t shelf_idle = 30LL * 1'000'000'000;
  std::map<std::uint32_t, LimitOverride> uid;      // [limits.uid.1000]
  std::map<std::string, LimitOverride> group;      // [limits.group.trainer]
  std::map<std::string, PublicName> public_names;  // [public."1000:serve/weights"], by public_key
};
std::string public_key(std::uint32_t owner, std::string_view group, std::string_view name);

struct Config {
  Mode mode = Mode::private_;
  EngineChoice engine = EngineChoice::automatic;
  std::string file;               // where the keys of this configuration are, or would be; empty: no file
  std::string directory;          // holds `socket`, `admin`, `broker.lock`
  std::string user;               // system mode: name from /etc/passwd or a number
  unsigned socket_mode = 0666;    // system mode
  std::uint64_t descriptors = 0;  // table size; 0: the hard limit
  std::uint64_t descriptors_reserved = 64;
  std::int64_t hello_timeout = 2'000'000'000;
  std::int64_t unread_timeout = 5'000'000'000;
  std::int64_t idle_exit = 30'000'000'000;  // private mode; -1: never
  int log_priority = 6;                     // syslog numbers; 6 info
  // trust that another process keeps GPUs initialised, where the broker cannot hold a GPU's node
  bool gpu_trust = false;
  bool keep = false;  // two keepers start the next broker when this one dies (keep/keeper.hpp)
  Limits limits;
};

// TOML. `path` is named in errors as "FILE:LINE: ...".
Result<Config> load_config(const std::string& path, Config defaults);
Result<Config> parse_config(const std::string& text, const std::string& path, Config defaults);
// The keys outside of [limits] in which two configurations differ. They change with the next start only.
std::vector<std::string> keys_that_differ(const Config& one, const Config& other);
// Fills in the byte limits that are 0 (both functions above have done it).
void complete_limits(Limits& limits);

std::optional<EngineChoice> parse_engine(std::string_view text);  // auto, io_uring, epoll
std::optional<int> parse_log_level(std::string_view text);        // error ... debug

}  // namespace shmb::daemon
