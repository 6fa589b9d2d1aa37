// SPDX-License-Identifier: Apache-2.0
// Where the wording of the broker's own refusals stands, so that the same case is told the same way everywhere.
#include "daemon/refuse.hpp"

#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "daemon/world.hpp"
#include "proto/refusal.hpp"

namespace shmb::daemon {
namespace {

std::string whose(World& world, const Session& session, const Shortage& shortage) {
  switch (shortage.scope) {
    case SHMBW_SCOPE_UID:
      return "uid " + std::to_string(shortage.scope_id);
    case SHMBW_SCOPE_GROUP: {
      const Group* group = find_group(world, shortage.scope_id);
      if (!group || !may_address(session, *group)) return "the group";
      return "group " + (group->name.empty() ? group->text() : "'" + group->name + "'");
    }
    case SHMBW_SCOPE_SESSION:
      return "this session";
    case SHMBW_SCOPE_WATCHED:
      return "what is to be watched";
    default:
      return "the host";
  }
}

std::string key_to_raise(World& world, const Shortage& shortage) {
  std::string slot(slot_name(shortage.slot));
  switch (shortage.scope) {
    case SHMBW_SCOPE_UID:
      return "raise limits.uid." + std::to_string(shortage.scope_id) + "." + slot;
    case SHMBW_SCOPE_GROUP: {
      const Group* group = find_group(world, shortage.scope_id);
      if (group && !group->name.empty())
        return "make the group with a higher limit or raise limits.group." + group->name + "." + slot;
      return "raise limits.group_" + slot;
    }
    case SHMBW_SCOPE_SESSION:
      return "raise limits.session_" + slot;
    case SHMBW_SCOPE_WATCHED:
      return "raise limits.target_" + slot;
    default:
      return "raise limits." + slot;
  }
}

// The largest of many, without a look at more than their bytes: a table may be long, and a refusal must stay cheap.
template <class T>
class Largest {
 public:
  void offer(const T& what, std::uint64_t bytes) {
    for (Row& row : rows_) {
      if (bytes <= row.bytes) continue;
      std::move_backward(&row, rows_.end() - 1, rows_.end());
      row = {&what, bytes};
      return;
    }
  }
  template <class Name>
  std::string text(std::uint64_t used, Name name) const {
    std::string out;
    std::uint64_t named = 0;
    for (const Row& row : rows_) {
      if (!row.what) break;
      named += row.bytes;
      out += (out.empty() ? "" : ", ") + name(*row.what) + " (" + format_size(row.bytes) + ")";
    }
    if (named < used) out += (out.empty() ? "others (" : ", others (") + format_size(used - named) + ")";
    return out;
  }

 private:
  struct Row {
    const T* what = nullptr;
    std::uint64_t bytes = 0;
  };
  std::array<Row, 3> rows_;
};

// The three largest that the asker may see, and what all others hold together.
std::string find_holders(World& world, const Session& session, const Shortage& shortage) {
  if (shortage.scope == SHMBW_SCOPE_GROUP) {
    const Group* group = find_group(world, shortage.scope_id);
    if (!group || !may_address(session, *group)) return {};
    Largest<Region> largest;
    const bool gpu = shortage.slot == SHMBW_SLOT_GPU_BYTES;
    group->regions.each([&](const Region& region) {
      if (on_gpu(region) == gpu) largest.offer(region, region.bytes);
    });
    return largest.text(shortage.used, [](const Region& region) -> std::string {
      if (!region.live()) return "being freed";
      return region.name ? "'" + std::string(region.name->text) + "'" : "region " + std::to_string(region.id);
    });
  }
  Largest<Group> largest;
  for (const auto& [id, group] : world.groups)
    if ((shortage.scope != SHMBW_SCOPE_UID || group.uid == shortage.scope_id) && may_address(session, group))
      largest.offer(group, group.account.used(static_cast<Slot>(shortage.slot)));
  return largest.text(shortage.used, [](const Group& group) { return "group " + group.text(); });
}

// Once for a request: 253 refusals of one batch name the same holders.
const std::string& holders(World& world, const Session& session, const Shortage& shortage) {
  World::Holders& last = world.holders;
  if (last.request != world.requests || last.slot != shortage.slot || last.scope != shortage.scope ||
      last.scope_id != shortage.scope_id)
    last = {world.requests, shortage.slot, shortage.scope, shortage.scope_id, find_holders(world, session, shortage)};
  return last.text;
}

}  // namespace

// Once a minute for each table and kind of scope: a client that asks on and on must not fill the log.
constexpr std::int64_t kLogEvery = 60'000'000'000;

Error refuse_limit(World& world, const Session& session, const Shortage& shortage) {
  Error refused = wire::limit_refusal(shortage, whose(world, session, shortage), key_to_raise(world, shortage),
                                      shortage.slot == SHMBW_SLOT_BYTES || shortage.slot == SHMBW_SLOT_GPU_BYTES
                                          ? holders(world, session, shortage)
                                          : "");
  auto [last, first] = world.refusals_logged.try_emplace({shortage.slot, shortage.scope}, world.now());
  if (first || world.now() - last->second >= kLogEvery) {
    last->second = world.now();
    world.log(5, "refused uid " + std::to_string(session.uid) + " pid " + std::to_string(session.pid) + ": " +
                     refused.sentence);
  }
  return refused;
}

Error refuse_descriptors(World& world, std::uint64_t wanted) {
  std::uint64_t reserved = std::min(world.config.descriptors_reserved, world.facts.descriptors_limit);
  Shortage shortage{SHMBW_SLOT_DESCRIPTORS,
                    SHMBW_SCOPE_HOST,
                    0,
                    world.facts.descriptors_limit - reserved,
                    world.descriptors(),
                    wanted};
  return wire::limit_refusal(shortage, "the broker", "raise descriptors (and the hard RLIMIT_NOFILE of the broker)");
}

Error no_such_region() { return plain(Status::not_found, "no such region, or not for this session"); }
Error no_such_name() { return plain(Status::not_found, "no region of that name, or not for this session"); }
Error no_such_group() { return plain(Status::not_found, "no such group, or not for this session"); }
Error no_such_ticket() {
  return plain(Status::not_found, "no such ticket: it is unknown, used up or expired; ask its maker for a new one");
}
Error stale_region(std::uint64_t id, std::uint32_t asked, std::uint32_t now) {
  return plain(Status::stale, "region " + std::to_string(id) + " is of generation " + std::to_string(now) + ", not " +
                                  std::to_string(asked) + ": list again");
}

}  // namespace shmb::daemon
