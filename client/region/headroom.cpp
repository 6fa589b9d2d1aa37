// SPDX-License-Identifier: Apache-2.0
// Reads the kernel's facts about cgroups (both versions) and the host. A value that cannot be read is no limit.
#include "client/region/headroom.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>

#include "base/mapping.hpp"
#include "base/sys_file.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "client/session/call.hpp"
#include "client/session/forked.hpp"
#include "client/session/session.hpp"
#include "proto/refusal.hpp"

namespace shmb::client {
namespace {

// Page cache that the kernel drops before it kills: both lists of it, active as well.
struct Layout {
  const char *limit, *usage, *inactive, *active;
};
constexpr Layout kVersion2 = {"memory.max", "memory.current", "inactive_file", "active_file"};
constexpr Layout kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                              "total_active_file"};

std::string read_text(const std::string& path) { return sys::read_file(path.c_str()).value_or(std::string{}); }

std::optional<std::uint64_t> leading_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  std::uint64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return std::nullopt;
  return value;
}

// "key value" or "key: value" at the start of a line.
std::optional<std::uint64_t> line_value(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.starts_with(key) && line.size() > key.size() && (line[key.size()] == ' ' || line[key.size()] == ':'))
      return leading_number(line.substr(key.size() + 1));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::nullopt;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const auto end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

struct Hierarchy {
  const Layout* layout = nullptr;
  std::string mount;  // where it is visible
  std::string root;   // which subtree of it is mounted there
  std::string own;    // our path in it
};

// mountinfo(5): id parent dev ROOT MOUNT options fields - TYPE source SUPER-OPTIONS
std::vector<Hierarchy> hierarchies(const std::string& prefix) {
  std::vector<Hierarchy> found;
  const std::string mounts = read_text(prefix + "/proc/self/mountinfo");
  const std::string cgroups = read_text(prefix + "/proc/self/cgroup");
  for (std::string_view line : split(mounts, '\n')) {
    const auto dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    const auto head = split(line.substr(0, dash), ' '), tail = split(line.substr(dash + 3), ' ');
    if (head.size() < 5 || tail.size() < 3) continue;
    const bool second = tail[0] == "cgroup2";
    const auto controllers = split(tail[2], ',');
    const bool first = tail[0] == "cgroup" && std::ranges::find(controllers, "memory") != controllers.end();
    if (!first && !second) continue;
    Hierarchy hierarchy{second ? &kVersion2 : &kVersion1, std::string(head[4]), std::string(head[3]), {}};
    // cgroups(7): "0::/path" for version 2, "4:memory:/path" for version 1
    for (std::string_view own : split(cgroups, '\n')) {
      const auto colon = own.find(':'), path = own.find(':', colon + 1);
      if (colon == std::string_view::npos || path == std::string_view::npos) continue;
      const auto names = split(own.substr(colon + 1, path - colon - 1), ',');
      if (second ? own.starts_with("0::") : std::ranges::find(names, "memory") != names.end())
        hierarchy.own = std::string(own.substr(path + 1));
    }
    if (hierarchy.own.empty()) continue;
    if (hierarchy.root.size() > 1 && hierarchy.own.starts_with(hierarchy.root))
      hierarchy.own.erase(0, hierarchy.root.size());
    found.push_back(std::move(hierarchy));
  }
  return found;
}

bool is_directory(const std::string& path) {
  auto facts = sys::path_facts(path.c_str(), true);
  return facts && facts->is_directory;
}

// Our path below the mount. In a container it may name a directory that only the host sees: then it is the top.
std::string visible_path(const Hierarchy& hierarchy, const std::string& root) {
  std::string own = hierarchy.own == "/" ? "" : hierarchy.own;
  if (own.find("..") != std::string::npos || !is_directory(root + hierarchy.mount + own)) own.clear();
  return own;
}

std::optional<CgroupRoom> room_at(const std::string& directory, const Layout& layout, const std::string& prefix) {
  const auto limit = leading_number(read_text(directory + "/" + layout.limit));
  // Version 1 says "no limit" with a number near 2^63, rounded down to pages.
  if (!limit || *limit >= (std::uint64_t{1} << 62)) return std::nullopt;
  const auto usage = leading_number(read_text(directory + "/" + layout.usage));
  if (!usage) return std::nullopt;
  const std::string stat = read_text(directory + "/memory.stat");
  const std::uint64_t reclaimable =
      line_value(stat, layout.inactive).value_or(0) + line_value(stat, layout.active).value_or(0);
  return CgroupRoom{directory.substr(prefix.size()), *limit, *usage, reclaimable};
}

std::unexpected<Error> no_room(const std::string& whose, std::uint16_t scope, std::uint64_t bytes, std::uint64_t limit,
                               std::uint64_t used, std::uint64_t free, const std::string& remedy) {
  Error refusal;
  refusal.status = Status::no_memory;
  refusal.shortage = {SHMBW_SLOT_MEMORY, scope, 0, limit, used, bytes};
  refusal.sentence = "no memory: asked " + format_size(bytes) + ", but " + whose + " has room for " +
                     format_size(free) + " (used " + format_size(used) + " of " + format_size(limit) + "); " + remedy;
  return std::unexpected(std::move(refusal));
}

constexpr std::int64_t kReuse = 250'000'000;
constexpr std::int64_t kFreeingPause = 1'000'000;  // a close of 64 MiB takes 1 to 10 ms
std::atomic<std::int64_t> looked_until{0};
std::atomic<std::int64_t> allowance{0};
// A forked child may be put into another cgroup before its first create, so it reads again.
std::atomic<std::uint64_t> looked_after_forks{0};

}  // namespace

std::string own_cgroup(const std::string& root) {
  for (const Hierarchy& hierarchy : hierarchies(root)) {
    if (hierarchy.layout != &kVersion2) continue;
    const std::string own = visible_path(hierarchy, root);
    if (own == hierarchy.own || hierarchy.own == "/") return root + hierarchy.mount + own;
  }
  return {};
}

std::vector<CgroupRoom> cgroup_rooms(const std::string& root) {
  std::vector<CgroupRoom> rooms;
  for (const Hierarchy& hierarchy : hierarchies(root)) {
    std::string own = visible_path(hierarchy, root);
    for (;;) {
      if (auto room = room_at(root + hierarchy.mount + own, *hierarchy.layout, root)) rooms.push_back(std::move(*room));
      if (own.empty()) break;
      own.erase(own.rfind('/'));
    }
  }
  return rooms;
}

std::optional<std::uint64_t> host_room(const std::string& root) {
  const std::string info = read_text(root + "/proc/meminfo");
  const auto available = line_value(info, "MemAvailable"), total = line_value(info, "MemTotal");
  if (!available || !total) return std::nullopt;
  const std::uint64_t reserve = *total / 20;
  return *available > reserve ? (*available - reserve) * 1024 : 0;
}

Error reserve_too_small(std::uint64_t bytes, const std::string& root) {
  const std::string info = read_text(root + "/proc/meminfo");
  const auto pages = [&](std::string_view key) { return line_value(info, key).value_or(0) * kHugePage; };
  const std::uint64_t total = pages("HugePages_Total"), free = pages("HugePages_Free");
  const std::uint64_t promised = std::min(free, pages("HugePages_Rsvd"));
  return no_room("the host's reserve of hugetlb pages", SHMBW_SCOPE_HOST, bytes, total, total - free + promised,
                 free - promised, "raise vm.nr_hugepages, or create the region without hugetlb")
      .error();
}

Result<void> check_node_room(std::uint32_t node, std::uint64_t bytes, bool hugetlb, const std::string& root) {
  const std::string number = std::to_string(node);
  const std::string info = read_text(root + "/sys/devices/system/node/node" + number + "/meminfo");
  const auto value = [&](const char* key) { return line_value(info, "Node " + number + " " + key); };
  const auto total = value(hugetlb ? "HugePages_Total" : "MemTotal"),
             free = value(hugetlb ? "HugePages_Free" : "MemFree");
  if (!total || !free) return {};
  const std::uint64_t unit = hugetlb ? kHugePage : 1024;
  // Clean pages of files are dropped first.
  const std::uint64_t files = hugetlb ? 0 : value("Active(file)").value_or(0) + value("Inactive(file)").value_or(0);
  const std::uint64_t room = std::min(*total, *free + files) * unit;
  if (room >= bytes) return {};
  return no_room("NUMA node " + number, SHMBW_SCOPE_HOST, bytes, *total * unit, *total * unit - room, room,
                 hugetlb ? "raise the number of pages in /sys/devices/system/node/node" + number +
                               "/hugepages/hugepages-2048kB/nr_hugepages, or take another node"
                         : "free memory on it or take another node");
}

Result<void> check_headroom_at(const std::string& root, std::uint64_t bytes, std::uint64_t* room) {
  std::uint64_t least = UINT64_MAX;
  for (const CgroupRoom& cgroup : cgroup_rooms(root)) {
    least = std::min(least, cgroup.free());
    if (cgroup.free() < bytes)
      return no_room("cgroup " + cgroup.path, SHMBW_SCOPE_CGROUP, bytes, cgroup.limit, cgroup.usage, cgroup.free(),
                     "free memory in it or raise its limit");
  }
  if (auto host = host_room(root)) {
    least = std::min(least, *host);
    if (*host < bytes) {
      const std::uint64_t total = line_value(read_text(root + "/proc/meminfo"), "MemTotal").value_or(0) * 1024;
      return no_room("the host", SHMBW_SCOPE_HOST, bytes, total, total - std::min(total, *host), *host,
                     "5 % of its memory stay free; end what uses it");
    }
  }
  if (room != nullptr) *room = least;
  return {};
}

Result<void> check_headroom(std::uint64_t bytes) {
  const std::int64_t now = sys::now_monotonic();
  const auto wanted = static_cast<std::int64_t>(bytes);
  if (now < looked_until.load(std::memory_order_relaxed) &&
      looked_after_forks.load(std::memory_order_relaxed) == forks_seen() &&
      allowance.fetch_sub(wanted, std::memory_order_relaxed) >= wanted)
    return {};
  std::uint64_t room = 0;
  SHMB_TRY_VOID(check_headroom_at({}, bytes, &room));
  allowance.store(static_cast<std::int64_t>(std::min<std::uint64_t>((room - bytes) / 16, INT64_MAX)),
                  std::memory_order_relaxed);
  looked_after_forks.store(forks_seen(), std::memory_order_relaxed);
  looked_until.store(now + kReuse, std::memory_order_relaxed);
  return {};
}

namespace {

// The memory that the broker has ready and is freeing. Zero where it cannot be asked.
shmbw_shelf_empty_reply empty_shelves(Session& session, std::uint64_t bytes, Deadline deadline) {
  auto answer = call<SHMBW_OP_SHELF_EMPTY>(session, shmbw_shelf_empty{bytes}, {}, deadline);
  return answer ? answer->fixed : shmbw_shelf_empty_reply{};
}

}  // namespace

Result<void> find_headroom(Session& session, std::uint64_t bytes, Deadline deadline) {
  auto room = check_headroom(bytes);
  if (room || session.is_local()) return room;
  std::uint64_t given_up = 0;
  bool more = true;
  while (!room && more && !deadline.passed()) {
    const shmbw_shelf_empty_reply emptied = empty_shelves(session, bytes, deadline);
    given_up += emptied.bytes;
    more = emptied.bytes != 0 || emptied.pending != 0;
    if (emptied.pending != 0) sys::rest(kFreeingPause);
    room = check_headroom(bytes);
  }
  if (!room && interrupt::noted()) return error(Status::deadline, "recycled memory was still being freed");
  if (!room && given_up != 0)
    room.error().sentence += "; the broker gave up " + format_size(given_up) + " of recycled memory first";
  return room;
}

bool strict_overcommit() {
  static std::atomic<std::int64_t> known_until{0};
  static std::atomic<bool> strict{false};
  const std::int64_t now = sys::now_monotonic();
  if (now >= known_until.load(std::memory_order_acquire)) {
    strict.store(read_text("/proc/sys/vm/overcommit_memory").starts_with("2"), std::memory_order_relaxed);
    known_until.store(now + kReuse, std::memory_order_release);
  }
  return strict.load(std::memory_order_relaxed);
}

}  // namespace shmb::client
