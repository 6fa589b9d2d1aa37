// SPDX-License-Identifier: Apache-2.0
// The part of the stage that is about worlds: two workers, a reference of the parent's that the attacker has made, and
// one more fork of it on its way to the attacker.
#include "tests/wire/stage.hpp"

namespace wire_test {
namespace {

constexpr std::uint32_t kOwnFork = 0xffff'ffff;
std::uint32_t ports_given = 0;

template <class ReplyPart>
std::string refused_element(const RawPacket& reply) {
  if (reply.ok() && reply.element<ReplyPart>(0).outcome.status == 0) return {};
  return reply.ok() ? error_of_element(reply).sentence : reply.sentence();
}

}  // namespace

Packet join_of_world(std::uint64_t tag, std::uint32_t port, std::uint32_t rank, std::uint32_t size) {
  const std::string address = "localhost:" + std::to_string(port), name = "worker" + std::to_string(rank);
  return plain(SHMBW_OP_WORLD_JOIN, tag,
               shmbw_world_join{port, rank, size, static_cast<std::uint16_t>(address.size()),
                                static_cast<std::uint16_t>(name.size())},
               address + name);
}

std::string Stage::join_world() {
  // A worker of an earlier attacker has died with it: each attacker has a world of its own.
  if (world != 0) (void)parent.call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{world});
  port = 1024 + ports_given++ % 60'000;
  if (!parent.send(join_of_world(90, port, 0, 2))) return "sending WORLD_JOIN";
  RawPacket first = parent.reply(90);
  if (!first.ok()) return "WORLD_JOIN of the parent: " + first.sentence();
  world = first.fixed<shmbw_world_join_reply>().world;
  if (!attacker.send(join_of_world(91, port, 1, 2))) return "sending WORLD_JOIN";
  if (RawPacket second = attacker.reply(91); !second.ok()) return "WORLD_JOIN: " + second.sentence();

  RawPacket made = attacker.call_batch(SHMBW_OP_REF_CREATE,
                                       one(shmbw_ref_create{world, 0, 0, kOwnFork, SHMBW_REF_STATE_REGISTERED, 0}));
  if (auto why = refused_element<shmbw_ref_create_reply>(made); !why.empty()) return "REF_CREATE: " + why;
  reference = made.element<shmbw_ref_create_reply>(0).reference;
  own_fork = made.element<shmbw_ref_create_reply>(0).fork;
  RawPacket forked = parent.call_batch(SHMBW_OP_REF_FORK, one(shmbw_ref_fork{world, reference, 1, 0}));
  if (auto why = refused_element<shmbw_ref_fork_reply>(forked); !why.empty()) return "REF_FORK: " + why;
  sent = forked.element<shmbw_ref_fork_reply>(0).fork;
  return {};
}

const std::vector<Valid>& all_valid_of_worlds() {
  using S = const Stage&;
  using Tag = std::uint64_t;
  static const std::vector<Valid> all = [] {
    std::vector<Valid> list;
    list.push_back({"WORLD_JOIN", false, false, false, false,
                    [](S, Tag tag) { return join_of_world(tag, 1024 + ports_given++ % 60'000, 0, 2); }});
    auto add = [&](const char* name, auto make) { list.push_back({name, false, false, false, true, make}); };
    add("WORLD_LEAVE", [](S s, Tag tag) { return plain(SHMBW_OP_WORLD_LEAVE, tag, shmbw_world_leave{s.world}); });
    add("REF_CREATE", [](S s, Tag tag) {
      return batch(SHMBW_OP_REF_CREATE, tag,
                   std::vector{shmbw_ref_create{s.world, 0, 0, kOwnFork, SHMBW_REF_STATE_REGISTERED, 0},
                               shmbw_ref_create{s.world, 0, 1, 0, SHMBW_REF_STATE_READY, SHMBW_REF_CREATE_TELL}});
    });
    add("REF_FORK", [](S s, Tag tag) {
      return batch(SHMBW_OP_REF_FORK, tag, std::vector{shmbw_ref_fork{s.world, s.reference, 0, 0}});
    });
    add("REF_TAKE", [](S s, Tag tag) {
      return batch(SHMBW_OP_REF_TAKE, tag, std::vector{shmbw_ref_take{s.world, s.sent, SHMBW_REF_FORK_TELL, 0}});
    });
    add("REF_RELEASE", [](S s, Tag tag) {
      return batch(SHMBW_OP_REF_RELEASE, tag,
                   std::vector{shmbw_ref_release{s.world, s.own_fork}, shmbw_ref_release{s.world, s.sent}});
    });
    add("REF_RELEASE without a reply", [](S s, Tag tag) {
      return batch(SHMBW_OP_REF_RELEASE, tag, std::vector{shmbw_ref_release{s.world, s.own_fork}}, {},
                   SHMBW_HEADER_NO_REPLY);
    });
    add("REF_SETTLE", [](S s, Tag tag) {
      return batch(SHMBW_OP_REF_SETTLE, tag,
                   std::vector{shmbw_ref_settle{s.world, s.reference, SHMBW_REF_STATE_FAILED, 4, 0}}, "late");
    });
    add("REF_ASK", [](S s, Tag tag) {
      return plain(SHMBW_OP_REF_ASK, tag, shmbw_ref_ask{s.world, s.reference, SHMBW_REF_FORK_TELL, 0});
    });
    for (std::uint32_t table : {SHMBW_TABLE_WORLDS, SHMBW_TABLE_WORKERS, SHMBW_TABLE_REFERENCES})
      add("LIST of worlds, workers, references", [table](S s, Tag tag) {
        shmbw_list wish{};
        wish.table = table;
        wish.region.id = s.world;
        return plain(SHMBW_OP_LIST, tag, wish);
      });
    return list;
  }();
  return all;
}

}  // namespace wire_test
