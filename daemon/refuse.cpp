// SPDX-License-Identifier: Apache-2.0
// Where the wording of the broker's own refusals stands, so that the same case is told the same way everywhere.
#include "daemon/refuse.hpp"

#include <algorithm>
#include <vector>

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
    default:
      return "raise limits." + slot;
  }
}

struct Holder {
  std::string text;
  std::uint64_t bytes;
};

// The three largest that the asker may see, and what all others hold together.
std::string holders(World& world, const Session& session, const Shortage& shortage) {
  if (shortage.slot != SHMBW_SLOT_BYTES || shortage.used == 0) return {};
  std::vector<Holder> seen;
  if (shortage.scope == SHMBW_SCOPE_GROUP) {
    const Group* group = find_group(world, shortage.scope_id);
    if (!group || !may_address(session, *group)) return {};
    group->regions.each([&](const Region& region) {
      std::string name =
          region.name ? "'" + std::string(region.name->text) + "'" : "region " + std::to_string(region.id);
      if (!region.live()) name = "being freed";
      seen.push_back({std::move(name), region.bytes});
    });
  } else {
    for (const auto& [id, group] : world.groups) {
      if (shortage.scope == SHMBW_SCOPE_UID && group.uid != shortage.scope_id) continue;
      if (may_address(session, group) && group.account.used(Slot::bytes) != 0)
        seen.push_back({"group " + group.text(), group.account.used(Slot::bytes)});
    }
  }
  std::ranges::sort(seen, std::greater<>(), &Holder::bytes);
  if (seen.size() > 3) seen.resize(3);
  std::string out;
  std::uint64_t named = 0;
  for (const Holder& holder : seen) {
    named += holder.bytes;
    out += (out.empty() ? "" : ", ") + holder.text + " (" + format_size(holder.bytes) + ")";
  }
  if (named < shortage.used)
    out += (out.empty() ? "others (" : ", others (") + format_size(shortage.used - named) + ")";
  return out;
}

}  // namespace

// Once a minute for each table and kind of scope: a client that asks on and on must not fill the log.
constexpr std::int64_t kLogEvery = 60'000'000'000;

Error refuse_limit(World& world, const Session& session, const Shortage& shortage) {
  Error refused = wire::limit_refusal(shortage, whose(world, session, shortage), key_to_raise(world, shortage),
                                      holders(world, session, shortage));
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
