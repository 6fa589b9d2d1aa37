// SPDX-License-Identifier: Apache-2.0
// See view.hpp.
#include "tools/view.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "proto/names.hpp"

namespace shmb::tools {
namespace {

template <std::size_t N>
std::string_view pick(const std::array<const char*, N>& texts, std::uint32_t value) {
  return value < N ? texts[value] : "unknown";
}

}  // namespace

std::vector<std::string> loss_lines(const BrokerStatus& status) {
  std::vector<std::string> lines;
  std::string_view rest = status.losses;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    if (end != 0) lines.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
  }
  return lines;
}

std::string id_text(const shmbw_region_ref& ref) {
  return "@" + std::to_string(ref.id) + "." + std::to_string(ref.generation);
}

std::string group_text(std::uint64_t id, const std::string& name) { return name.empty() ? names::id_text(id) : name; }

std::string pool_id_text(std::uint64_t pool) { return names::id_text(pool); }

std::string address_text(std::uint32_t owner, std::uint64_t group, const std::string& group_name,
                         const std::string& name) {
  return (owner == ::geteuid() ? "" : std::to_string(owner) + ":") + group_text(group, group_name) + "/" + name;
}

std::string address_text(const RegionRow& row) {
  const shmbw_region_record& record = row.record;
  return row.name.empty() ? id_text(record.region) : address_text(record.owner_uid, record.group, row.group, row.name);
}

std::string address_text(const PoolRow& row) {
  const shmbw_pool_record& record = row.record;
  return row.name.empty() ? pool_id_text(record.pool)
                          : address_text(record.owner_uid, record.group, row.group, row.name);
}

std::string access_text(const shmbw_region_record& record) {
  if (record.flags & SHMBW_REGION_MANY_WRITERS) return "ro*";
  return record.state == SHMBW_REGION_STATE_PUBLISHED || record.state == SHMBW_REGION_STATE_WRITE_CLOSED ? "ro" : "rw";
}

std::string rights_text(std::uint32_t rights) {
  constexpr std::array<const char*, 4> names{"read", "write", "share", "release"};
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (rights >> i & 1) out += (out.empty() ? "" : " ") + std::string(names[i]);
  return out;
}

std::string state_text(const shmbw_region_record& record) {
  constexpr std::array<const char*, 7> names{"none",      "created", "ready", "write-closed",
                                             "published", "freeing", "cached"};
  std::string text(pick(names, record.state));
  if (record.freed_at != 0) {
    constexpr std::int64_t second = 1'000'000'000;
    std::int64_t left = record.freed_at - sys::now_boottime();
    left = left > second ? left - left % second : second;
    text += ", freed in " + format_duration(left);
  }
  return text;
}

std::string held_text(const shmbw_region_record& record, const std::vector<PoolRow>& pools) {
  if (record.pool != 0) {
    const auto pool = std::ranges::find(pools, record.pool, [](const PoolRow& each) { return each.record.pool; });
    return ", slots of " + (pool == pools.end() ? "pool " + pool_id_text(record.pool) : address_text(*pool));
  }
  const bool over = record.state == SHMBW_REGION_STATE_FREEING || record.state == SHMBW_REGION_STATE_CACHED;
  if (over || record.holders != 0 || (record.flags & SHMBW_REGION_NAMED) != 0) return "";
  const auto some = [](std::uint32_t count, const char* noun) {
    return count == 0 ? "" : std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
  };
  const std::string tickets = some(record.tickets, "ticket"), queues = some(record.queues, "queue");
  if (tickets.empty() && queues.empty()) return "";
  const bool both = !tickets.empty() && !queues.empty();
  return ", only " + tickets + (both ? " and " : "") + queues +
         (both || record.tickets + record.queues > 1 ? " hold it" : " holds it");
}

std::string program_text(const std::string& library) { return library.substr(0, library.find(" (libshmbroker ")); }

std::string page_text(std::uint32_t page_kind) {
  constexpr std::array<const char*, 5> names{"unknown", "4K", "2M", "mixed", "unpopulated"};
  return std::string(pick(names, page_kind));
}

std::string session_state_text(std::uint32_t state) {
  constexpr std::array<const char*, 6> names{"none", "member", "heir", "supervisor", "disconnected", "leaving"};
  return std::string(pick(names, state));
}

std::string death_text(std::uint32_t how) {
  constexpr std::array<const char*, 4> names{"unknown", "exited", "killed", "disconnected"};
  return std::string(pick(names, how));
}

std::string keep_text(std::int64_t keep) {
  return keep == 0 ? "0" : keep < 0 ? "until-released" : format_duration(keep);
}

std::string queue_kind_text(std::uint32_t kind) {
  constexpr std::array<const char*, 4> names{"none", "spsc", "mpmc", "broadcast"};
  return std::string(pick(names, kind));
}

std::string queue_flags_text(std::uint32_t flags) {
  std::string out;
  const auto add = [&](std::uint32_t bit, const char* name) {
    if ((flags & bit) != 0) out += (out.empty() ? "" : " ") + std::string(name);
  };
  add(SHMBW_QUEUE_OPEN_DROP_OLDEST, "drop-oldest");
  add(SHMBW_QUEUE_OPEN_EXPIRING, "expiring");
  add(SHMBW_QUEUE_OPEN_AT_LEAST_ONCE, "at-least-once");
  return out;
}

std::string queue_state_text(const QueueRow& row) { return row.record.closed != 0 ? "closed" : "open"; }

std::string participant_state_text(std::uint32_t state) {
  constexpr std::array<const char*, 5> names{"none", "joining", "live", "dead", "left"};
  return std::string(pick(names, state));
}

std::string pool_state_text(const shmbw_pool_record& record) {
  if ((record.flags & SHMBW_POOL_BROKEN) != 0) return "broken";
  return record.leaving == 0 ? "ok" : std::to_string(record.leaving) + " leaving";
}

}  // namespace shmb::tools
