// SPDX-License-Identifier: Apache-2.0
// See metrics.hpp. Each family is a line of a table.
#include "tools/metrics/metrics.hpp"

#include <array>
#include <charconv>
#include <limits>

#include "base/result.hpp"
#include "base/sys_host.hpp"
#include "base/sys_process.hpp"
#include "tools/metrics/exposition.hpp"
#include "tools/report_json.hpp"
#include "tools/tool.hpp"

namespace shmb::tools {
namespace {

using Kind = Exposition::Kind;

template <class Record>
struct Family {
  const char* name;
  Kind kind;
  const char* unit;
  const char* help;
  std::string (*value)(const Record&);
};

std::string wall_time(std::int64_t boottime) { return std::to_string(wall_seconds(boottime)); }

using Facts = shmbw_status_reply;
constexpr Family<Facts> kBroker[] = {
    {"start_time_seconds", Kind::gauge, "seconds",
     "When the broker started, in seconds since 1970. Counters began then.",
     [](const Facts& f) { return wall_time(sys::now_boottime() - f.uptime); }},
    {"memory_bytes", Kind::gauge, "bytes", "Memory of regions and pools that the broker has charged, of all users.",
     [](const Facts& f) { return metric_number(f.bytes); }},
    {"memory_limit_bytes", Kind::gauge, "bytes", "Most memory that the broker gives, of all users (limits.bytes).",
     [](const Facts& f) { return metric_limit(f.bytes_limit); }},
    {"memory_cached_bytes", Kind::gauge, "bytes", "Part of the memory that no process uses, ready for reuse.",
     [](const Facts& f) { return metric_number(f.bytes_cached); }},
    {"requests", Kind::counter, "", "Requests served.", [](const Facts& f) { return metric_number(f.requests); }},
    {"refusals", Kind::counter, "", "Requests answered with an error.",
     [](const Facts& f) { return metric_number(f.refusals); }},
    {"reclaims", Kind::counter, "", "Processes that ended or disconnected and left something (shmbroker events).",
     [](const Facts& f) { return metric_number(f.reclaims); }},
    {"reclaimed_bytes", Kind::counter, "bytes", "Memory that was freed after them.",
     [](const Facts& f) { return metric_number(f.bytes_reclaimed); }},
    {"regions", Kind::gauge, "", "Regions, of all users.", [](const Facts& f) { return metric_number(f.regions); }},
    {"groups", Kind::gauge, "", "Groups, of all users.", [](const Facts& f) { return metric_number(f.groups); }},
    {"sessions", Kind::gauge, "", "Connected sessions, of all users.",
     [](const Facts& f) { return metric_number(f.sessions); }},
    {"leases", Kind::gauge, "", "Leases of sessions on regions.",
     [](const Facts& f) { return metric_number(f.leases); }},
    {"tickets", Kind::gauge, "", "Valid tickets.", [](const Facts& f) { return metric_number(f.tickets); }},
    {"watches", Kind::gauge, "", "Subscriptions to events.", [](const Facts& f) { return metric_number(f.watches); }},
    {"descriptors", Kind::gauge, "", "File descriptors of the broker in use.",
     [](const Facts& f) { return metric_number(f.descriptors); }},
    {"descriptors_limit", Kind::gauge, "", "Size of the broker's descriptor table.",
     [](const Facts& f) { return metric_number(f.descriptors_limit); }},
    {"descriptors_reserved", Kind::gauge, "", "Descriptors kept for administrators and the broker itself.",
     [](const Facts& f) { return metric_number(f.descriptors_reserved); }},
    {"descriptors_in_flight", Kind::gauge, "", "Descriptors that clients were sent and have not read.",
     [](const Facts& f) { return metric_number(f.in_flight); }},
};

using User = shmbw_uid_record;
constexpr Family<User> kUsers[] = {
    {"user_memory_bytes", Kind::gauge, "bytes", "Memory charged to the user.",
     [](const User& u) { return metric_number(u.bytes); }},
    {"user_memory_limit_bytes", Kind::gauge, "bytes", "Most memory that the user may have.",
     [](const User& u) { return metric_limit(u.bytes_limit); }},
    {"user_regions", Kind::gauge, "", "Regions of the user, pools and recycled ones among them.",
     [](const User& u) { return metric_number(u.regions); }},
    {"user_groups", Kind::gauge, "", "Groups of the user.", [](const User& u) { return metric_number(u.groups); }},
    {"user_sessions", Kind::gauge, "", "Sessions of the user.",
     [](const User& u) { return metric_number(u.sessions); }},
    {"user_leases", Kind::gauge, "", "Leases of the user's sessions.",
     [](const User& u) { return metric_number(u.leases); }},
    {"user_tickets", Kind::gauge, "", "Valid tickets that the user made.",
     [](const User& u) { return metric_number(u.tickets); }},
    {"user_tickets_limit", Kind::gauge, "", "Most tickets that the user may have.",
     [](const User& u) { return metric_limit(u.tickets_limit); }},
};

using Group = shmbw_group_record;
constexpr Family<Group> kGroups[] = {
    {"group_memory_bytes", Kind::gauge, "bytes", "Memory charged to the group.",
     [](const Group& g) { return metric_number(g.bytes); }},
    {"group_memory_limit_bytes", Kind::gauge, "bytes", "Most memory that the group may have.",
     [](const Group& g) { return metric_limit(g.bytes_limit); }},
    {"group_memory_peak_bytes", Kind::gauge, "bytes", "Most memory that the group has had at once.",
     [](const Group& g) { return metric_number(g.bytes_peak); }},
    {"group_memory_cached_bytes", Kind::gauge, "bytes", "Part of the group's memory that waits for reuse.",
     [](const Group& g) { return metric_number(g.bytes_cached); }},
    {"group_regions", Kind::gauge, "", "Regions of the group, recycled ones among them.",
     [](const Group& g) { return metric_number(g.regions); }},
    {"group_members", Kind::gauge, "", "Sessions in the group.",
     [](const Group& g) { return metric_number(g.members); }},
    {"group_heirs", Kind::gauge, "", "Forked children that hold what a dead member left.",
     [](const Group& g) { return metric_number(g.heirs); }},
    {"group_start_time_seconds", Kind::gauge, "seconds", "When the group was made, in seconds since 1970.",
     [](const Group& g) { return wall_time(g.created); }},
    {"group_ended", Kind::gauge, "", "1: the group has ended, and what it has is kept for a while.",
     [](const Group& g) { return metric_number((g.flags & SHMBW_GROUP_STATE_ENDED) != 0); }},
};

// The names that shmbroker.conf(5) and the C headers use.
constexpr std::array kSlots{
    "none",      "bytes",           "regions",     "leases",    "sessions", "groups", "tickets",
    "names",     "watches",         "descriptors", "keep",      "message",  "memory", "participants",
    "queues",    "lanes",           "lane_bytes",  "segments",  "slots",    "worlds", "references",
    "gpu_bytes", "gpu_descriptors", "lifetime",    "timelines", "creates"};
static_assert(kSlots.size() == SHMBW_SLOT_CREATES + 1);
constexpr std::array kScopes{"none", "host", "uid", "group", "session", "process", "cgroup", "pool", "watched"};
static_assert(kScopes.size() == SHMBW_SCOPE_WATCHED + 1);

template <std::size_t n>
std::string name_of(const std::array<const char*, n>& names, std::uint16_t number) {
  return number < n ? names[number] : std::to_string(number);
}

template <class Record, std::size_t n, class Rows, class LabelsOf>
void add_table(Exposition& out, const Family<Record> (&families)[n], const Rows& rows, LabelsOf labels_of) {
  for (const Family<Record>& family : families) {
    out.family(family.name, family.kind, family.unit, family.help);
    for (const auto& row : rows) out.sample(labels_of(row), family.value(row.record));
  }
}

void add_books(Exposition& out, const MetricsSource::Books& books) {
  const BrokerStatus& status = books.status;
  out.family("broker", Kind::info, "", "The broker that answered.");
  out.sample({{"version", status.version},
              {"mode", mode_text(status.record.mode)},
              {"engine", engine_text(status.record.engine)},
              {"kernel", status.kernel}},
             "1");
  for (const Family<Facts>& family : kBroker) {
    out.family(family.name, family.kind, family.unit, family.help);
    out.sample(family.value(status.record));
  }
  out.family("limit_refusals", Kind::counter, "", "Refusals by a limit: what was short, and whose limit it was.");
  for (const client::RefusalRow& row : books.refusals.rows)
    out.sample({{"slot", name_of(kSlots, row.record.slot)}, {"scope", name_of(kScopes, row.record.scope)}},
               metric_number(row.record.count));
  add_table(out, kUsers, books.users.rows, [](const client::UidRow& row) {
    return Exposition::Labels{{"uid", std::to_string(row.record.uid)}, {"user", user_text(row.record.uid)}};
  });
  add_table(out, kGroups, books.groups.rows, [](const GroupRow& row) {
    return Exposition::Labels{{"group", row.name},
                              {"id", std::to_string(row.record.group)},
                              {"uid", std::to_string(row.record.owner_uid)},
                              {"user", user_text(row.record.owner_uid)}};
  });
}

void add_optional(Exposition& out, const char* name, const char* help, const std::optional<std::uint64_t>& value) {
  if (!value) return;
  out.family(name, Kind::gauge, "bytes", help);
  out.sample(metric_limit(*value));
}

}  // namespace

Result<MetricsSource::Books> read_metrics_books(const Viewer& viewer, bool all_groups) {
  MetricsSource::Books books;
  SHMB_TRY(status, client::broker_status(viewer.session(), viewer.deadline()));
  books.status = std::move(status);
  SHMB_TRY(refusals, client::list_refusals(viewer.session(), viewer.deadline()));
  books.refusals = std::move(refusals);
  Selection selection;
  selection.all_groups = all_groups;
  SHMB_TRY(users, client::list_uids(viewer.session(), selection, viewer.deadline()));
  books.users = std::move(users);
  SHMB_TRY(groups, client::list_groups(viewer.session(), selection, viewer.deadline()));
  books.groups = std::move(groups);
  return books;
}

void read_metrics_host(MetricsSource& source, const std::string& root) {
  if (const auto text = sys::read_file((root + "/proc/meminfo").c_str())) {
    constexpr std::string_view key = "\nShmem:";
    std::uint64_t kib = 0;
    if (const std::size_t at = text->find(key); at != text->npos) {
      const std::size_t digits = text->find_first_not_of(' ', at + key.size());
      if (digits != text->npos &&
          std::from_chars(text->data() + digits, text->data() + text->size(), kib).ec == std::errc{})
        source.shared_memory = kib * 1024;
    }
  }
  if (const auto use = sys::file_system_use((root + "/dev/shm").c_str())) {
    // Without a limit the kernel tells no use either.
    if (use->size != 0) source.dev_shm_used = use->used;
    source.dev_shm_size = use->size != 0 ? use->size : std::numeric_limits<std::uint64_t>::max();
  }
}

std::string metrics_text(const MetricsSource& source) {
  Exposition out;
  out.family("up", Kind::gauge, "", "1: a broker answered, 0: none did.");
  out.sample(source.books ? "1" : "0");
  if (source.books) add_books(out, *source.books);
  add_optional(out, "host_shared_memory_bytes", "Shared memory of the host, of all programs (Shmem of /proc/meminfo).",
               source.shared_memory);
  add_optional(out, "host_dev_shm_used_bytes", "Memory of the files on /dev/shm.", source.dev_shm_used);
  add_optional(out, "host_dev_shm_size_bytes", "Size of /dev/shm.", source.dev_shm_size);
  return out.finish();
}

}  // namespace shmb::tools
