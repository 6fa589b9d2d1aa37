// SPDX-License-Identifier: Apache-2.0
// See stage.hpp.
#include "tests/wire/stage.hpp"

#include <cstring>

#include "base/sys_socket.hpp"

namespace wire_test {
namespace {

constexpr std::uint32_t kAllRights = SHMBW_RIGHT_KNOWN;
int serial = 0;

template <class T>
bool one_ok(const RawPacket& reply) {
  return reply.ok() && reply.element<T>(0).outcome.status == 0;
}

// A region whose writers have all mapped it can be granted read-only.
Packet mapped(const shmbw_region_ref& region) {
  return batch(SHMBW_OP_READY, 0, std::vector{shmbw_ready{region, 4096, SHMBW_PAGE_KIND_SMALL, 0}});
}

shmbw_hello child_of(const shmbw_hello_reply& parent) {
  shmbw_hello hello = RawClient::greeting();
  hello.fork_session = parent.session;
  std::memcpy(hello.fork_secret, parent.fork_secret, sizeof hello.fork_secret);
  return hello;
}

}  // namespace

Stage::~Stage() {
  shmbw_attach attach{};
  attach.by = SHMBW_ATTACH_BY_TICKET;
  attach.rights = SHMBW_RIGHT_MAP_READ;
  attach.flags = SHMBW_ATTACH_NO_FD;
  std::memcpy(attach.ticket, ticket, sizeof ticket);
  if (ticket[0] != 0 || ticket[1] != 0) (void)parent.call_batch(SHMBW_OP_ATTACH, one(attach));
}

std::string Stage::set_parent(const std::string& socket_path, bool with_ticket, bool with_pool, bool with_gpu) {
  socket = socket_path;
  with_gpu_ = with_gpu;
  group_name = "w" + std::to_string(++serial);
  parent = RawClient::connect(socket);
  shmbw_hello greeting = RawClient::greeting();
  greeting.features = SHMBW_FEATURE_PASS_RIGHTS;
  if (with_pool || with_gpu) greeting.start_time = 0;  // the socket's end shall be the end
  RawPacket hello = parent.call(SHMBW_OP_HELLO, greeting);
  if (!hello.ok()) return "HELLO of the parent";
  parent_hello = hello.fixed<shmbw_hello_reply>();

  shmbw_group_create make{};
  make.name_len = static_cast<std::uint16_t>(group_name.size());
  RawPacket made = parent.call(SHMBW_OP_GROUP_CREATE, make, group_name);
  if (!made.ok()) return "GROUP_CREATE: " + made.sentence();
  auto group_reply = made.fixed<shmbw_group_create_reply>();
  group = group_reply.group;
  std::memcpy(token, group_reply.token, sizeof token);
  shmbw_group_join join{};
  std::memcpy(join.token, token, sizeof token);
  if (RawPacket joined = parent.call(SHMBW_OP_GROUP_JOIN, join); !joined.ok())
    return "GROUP_JOIN: " + joined.sentence();

  shmbw_create create{};
  create.length = 4096;
  create.name_len = 4;
  RawPacket created = parent.call_batch(SHMBW_OP_CREATE, one(create), "base");
  if (!one_ok<shmbw_create_reply>(created)) return "CREATE: " + error_of_element(created).sentence;
  region = created.element<shmbw_create_reply>(0).region;
  if (!parent.send(mapped(region))) return "READY";
  if (with_ticket) {
    RawPacket drawn = parent.call(SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{region, SHMBW_RIGHT_MAP_READ, 1, 0});
    if (!drawn.ok()) return "TICKET_CREATE: " + drawn.sentence();
    std::memcpy(ticket, drawn.fixed<shmbw_ticket_create_reply>().ticket, sizeof ticket);
  }
  if (with_gpu) return set_gpu();
  return with_pool ? set_pool() : std::string();
}

std::string Stage::set_pool() {
  shmbw_pool_create make{};
  make.slots = 8;
  make.lane_bytes = 65536;
  make.name_len = 4;
  RawPacket made = parent.call(SHMBW_OP_POOL_CREATE, make, "pool");
  if (!made.ok()) return "POOL_CREATE: " + made.sentence();
  auto joined = made.fixed<shmbw_pool_create_reply>();
  if (RawPacket late = parent.call(SHMBW_OP_POOL_CREATE, make, "late"); !late.ok())
    return "POOL_CREATE: " + late.sentence();
  pool = joined.pool;
  parent_place = joined.participant;
  parent_life = joined.life;
  auto bell = shmb::sys::seqpacket_pair();
  if (!bell) return "socketpair";
  Packet set = plain(SHMBW_OP_POOL_DOORBELL, 99, shmbw_pool_doorbell{pool, SHMBW_DOORBELL_SET, 0, 0, 0});
  shmbw_header header = header_of(set);
  header.n_fds = 1;
  set_header(set, header);
  const int end[] = {(*bell)[0].get()};
  if (!parent.send(set, end)) return "sending POOL_DOORBELL";
  if (RawPacket reply = parent.reply(99); !reply.ok()) return "POOL_DOORBELL: " + reply.sentence();
  return {};
}

std::string Stage::join_pool() {
  shmbw_pool_join join{};
  join.pool = pool;
  if (RawPacket joined = attacker.call(SHMBW_OP_POOL_JOIN, join); !joined.ok())
    return "POOL_JOIN: " + joined.sentence();
  shmbw_create create{};
  create.length = 4096;
  create.flags = SHMBW_CREATE_MANY_WRITERS;
  RawPacket created = attacker.call_batch(SHMBW_OP_CREATE, one(create));
  if (!one_ok<shmbw_create_reply>(created)) return "CREATE of slots: " + error_of_element(created).sentence;
  slots = created.element<shmbw_create_reply>(0).region;
  shmbw_queue_open open{};
  open.pool = pool;
  open.kind = SHMBW_QUEUE_KIND_MPMC;
  open.flags = SHMBW_QUEUE_OPEN_READER | SHMBW_QUEUE_OPEN_WRITER;
  open.cells = 4;
  open.cell_size = 64;
  open.name_len = 4;
  RawPacket opened = attacker.call(SHMBW_OP_QUEUE_OPEN, open, "jobs");
  if (!opened.ok()) return "QUEUE_OPEN: " + opened.sentence();
  queue = opened.fixed<shmbw_queue_open_reply>();
  return {};
}

std::string Stage::set_attacker(bool greet) {
  attacker = RawClient::connect(socket);
  if (!attacker.connected()) return "connect";
  if (!greet) return {};
  shmbw_hello child = child_of(parent_hello);
  if (pool != 0 || with_gpu_) child.start_time = 0;
  if (with_gpu_) child.features = SHMBW_FEATURE_PASS_RIGHTS;
  RawPacket greeted = attacker.call(SHMBW_OP_HELLO, child);
  if (!greeted.ok()) return "HELLO of the attacker: " + greeted.sentence();
  attacker_hello = greeted.fixed<shmbw_hello_reply>();
  if (attacker_hello.group != group) return "HELLO: the child is not in its parent's group";
  shmbw_attach attach{};
  attach.by = SHMBW_ATTACH_BY_ID;
  attach.rights = kAllRights;
  attach.region = region;
  RawPacket attached = attacker.call_batch(SHMBW_OP_ATTACH, one(attach));
  if (!one_ok<shmbw_attach_reply>(attached)) return "ATTACH: " + error_of_element(attached).sentence;
  if (!attacker.send(mapped(region))) return "READY of the attacker";
  shmbw_watch want{};
  want.kind = SHMBW_WATCH_KIND_REGION;
  want.events = SHMBW_WATCH_EVENT_GONE;
  want.region = region;
  RawPacket watched = attacker.call(SHMBW_OP_WATCH, want);
  if (!watched.ok()) return "WATCH: " + watched.sentence();
  watch = watched.fixed<shmbw_watch_reply>().watch;
  if (with_gpu_) return open_gpu();
  if (pool != 0)
    if (std::string lack = join_pool(); !lack.empty()) return lack;
  return with_world_ ? join_world() : std::string();
}

const std::vector<Valid>& all_valid() {
  using S = const Stage&;
  using Tag = std::uint64_t;
  static const std::vector<Valid> all = [] {
    std::vector<Valid> list;
    auto add = [&](const char* name, auto make, bool hello = false, bool ticket = false) {
      list.push_back({name, hello, ticket, false, false, make});
    };

    add(
        "HELLO",
        [](S, Tag tag) {
          shmbw_hello hello = RawClient::greeting();
          hello.library_len = 9;
          hello.group_len = 3;
          return plain(SHMBW_OP_HELLO, tag, hello,
                       "wire test"
                       "abc");
        },
        true);
    add(
        "HELLO of a forked child", [](S s, Tag tag) { return plain(SHMBW_OP_HELLO, tag, child_of(s.parent_hello)); },
        true);
    add(
        "HELLO with a group token",
        [](S s, Tag tag) {
          shmbw_hello hello = RawClient::greeting();
          std::memcpy(hello.group_token, s.token, sizeof hello.group_token);
          return plain(SHMBW_OP_HELLO, tag, hello);
        },
        true);
    add("CREATE, named", [](S, Tag tag) {
      shmbw_create create{};
      create.length = 5000;
      create.keep = 1'000'000;
      create.flags = SHMBW_CREATE_KEEP_GIVEN;
      create.name_len = 3;
      return batch(SHMBW_OP_CREATE, tag, std::vector{create}, "new");
    });
    add("CREATE of two", [](S s, Tag tag) {
      shmbw_create create{};
      create.group = s.group;
      create.length = 4096;
      create.rights = SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE;
      shmbw_create named = create;
      named.name_len = 4;
      named.flags = SHMBW_CREATE_REPLACE;
      return batch(SHMBW_OP_CREATE, tag, std::vector{create, named}, "base");
    });
    auto attach = [](S s, std::uint32_t by) {
      shmbw_attach attach{};
      attach.by = by;
      attach.rights = SHMBW_RIGHT_MAP_READ;
      if (by == SHMBW_ATTACH_BY_ID) attach.region = s.region;
      if (by == SHMBW_ATTACH_BY_TICKET) std::memcpy(attach.ticket, s.ticket, sizeof attach.ticket);
      return attach;
    };
    add("ATTACH by id",
        [=](S s, Tag tag) { return batch(SHMBW_OP_ATTACH, tag, std::vector{attach(s, SHMBW_ATTACH_BY_ID)}); });
    add("ATTACH by name", [=](S s, Tag tag) {
      auto wish = attach(s, SHMBW_ATTACH_BY_NAME);
      wish.group_len = static_cast<std::uint16_t>(s.group_name.size());
      wish.name_len = 4;
      return batch(SHMBW_OP_ATTACH, tag, std::vector{wish}, s.group_name + "base");
    });
    add(
        "ATTACH by ticket",
        [=](S s, Tag tag) { return batch(SHMBW_OP_ATTACH, tag, std::vector{attach(s, SHMBW_ATTACH_BY_TICKET)}); },
        false, true);
    add("RELEASE",
        [](S s, Tag tag) { return batch(SHMBW_OP_RELEASE, tag, std::vector{shmbw_release{s.region, 1, 0}}); });
    add("RELEASE with the name", [](S s, Tag tag) {
      return batch(SHMBW_OP_RELEASE, tag,
                   std::vector{shmbw_release{s.region, 0, SHMBW_RELEASE_UNNAME | SHMBW_RELEASE_RECYCLE}});
    });
    add("RELEASE without a reply", [](S s, Tag tag) {
      return batch(SHMBW_OP_RELEASE, tag, std::vector{shmbw_release{s.region, 0, 0}}, {}, SHMBW_HEADER_NO_REPLY);
    });
    add("READY", [](S s, Tag tag) {
      return batch(SHMBW_OP_READY, tag, std::vector{shmbw_ready{s.region, 4096, SHMBW_PAGE_KIND_SMALL, 0}});
    });
    add("PUBLISH", [](S s, Tag tag) { return plain(SHMBW_OP_PUBLISH, tag, shmbw_publish{s.region}); });
    add("TICKET_CREATE", [](S s, Tag tag) {
      return plain(SHMBW_OP_TICKET_CREATE, tag, shmbw_ticket_create{s.region, SHMBW_RIGHT_MAP_READ, 2, 1'000'000});
    });
    add("TICKET_CREATE with the session", [](S s, Tag tag) {
      return plain(SHMBW_OP_TICKET_CREATE, tag,
                   shmbw_ticket_create{s.region, SHMBW_RIGHT_MAP_READ, 2, 0, SHMBW_TICKET_CREATE_WITH_SESSION, 0, 0});
    });
    add(
        "TICKET_REVOKE",
        [](S s, Tag tag) {
          shmbw_ticket_revoke revoke{};
          std::memcpy(revoke.ticket, s.ticket, sizeof revoke.ticket);
          return plain(SHMBW_OP_TICKET_REVOKE, tag, revoke);
        },
        false, true);
    add("TICKETS_RELEASE", [](S s, Tag tag) {
      return plain(SHMBW_OP_TICKETS_RELEASE, tag, shmbw_tickets_release{s.region, 0, 0, 0, SHMBW_TICKETS_RELEASE_HELD});
    });
    add("INHERIT",
        [](S s, Tag tag) { return batch(SHMBW_OP_INHERIT, tag, std::vector{shmbw_inherit{s.region, 0, 1}}); });
    add("SHELF_EMPTY", [](S, Tag tag) { return plain(SHMBW_OP_SHELF_EMPTY, tag, shmbw_shelf_empty{4096}); });
    add("BOOKS", [](S, Tag tag) { return plain(SHMBW_OP_BOOKS, tag, shmbw_books{}); });
    add("GROUP_CREATE", [](S, Tag tag) {
      shmbw_group_create wish{};
      wish.flags = SHMBW_GROUP_ADOPT_EXISTING;
      wish.limit_bytes = 1 << 20;
      wish.name_len = 5;
      return plain(SHMBW_OP_GROUP_CREATE, tag, wish, "other");
    });
    add("GROUP_JOIN by token", [](S s, Tag tag) {
      shmbw_group_join join{};
      std::memcpy(join.token, s.token, sizeof join.token);
      return plain(SHMBW_OP_GROUP_JOIN, tag, join);
    });
    add("GROUP_JOIN by name", [](S s, Tag tag) {
      shmbw_group_join join{};
      join.name_len = static_cast<std::uint16_t>(s.group_name.size());
      join.flags = SHMBW_JOIN_SUPERVISOR;
      return plain(SHMBW_OP_GROUP_JOIN, tag, join, s.group_name);
    });
    add("GROUP_LEAVE", [](S s, Tag tag) { return plain(SHMBW_OP_GROUP_LEAVE, tag, shmbw_group_leave{s.group}); });
    add("GROUP_LIMIT", [](S s, Tag tag) {
      shmbw_group_limit limit{};
      limit.group = s.group;
      limit.bytes = 64 << 20;
      return plain(SHMBW_OP_GROUP_LIMIT, tag, limit);
    });
    add("GROUP_END", [](S s, Tag tag) {
      shmbw_group_end end{};
      end.group = s.group;
      return plain(SHMBW_OP_GROUP_END, tag, end);
    });
    add("GROUP_END by name", [](S s, Tag tag) {
      shmbw_group_end end{};
      end.flags = SHMBW_END_RELEASE_KEPT;
      end.name_len = static_cast<std::uint16_t>(s.group_name.size());
      return plain(SHMBW_OP_GROUP_END, tag, end, s.group_name);
    });
    auto watch = [](std::uint32_t kind, std::uint32_t events) {
      shmbw_watch wish{};
      wish.kind = kind;
      wish.events = events;
      return wish;
    };
    add("WATCH a region", [=](S s, Tag tag) {
      auto wish = watch(SHMBW_WATCH_KIND_REGION, SHMBW_WATCH_EVENT_READY | SHMBW_WATCH_EVENT_GONE);
      wish.region = s.region;
      return plain(SHMBW_OP_WATCH, tag, wish);
    });
    add("WATCH a name", [=](S s, Tag tag) {
      auto wish = watch(SHMBW_WATCH_KIND_NAME, SHMBW_WATCH_EVENT_APPEARED);
      wish.group_len = static_cast<std::uint16_t>(s.group_name.size());
      wish.name_len = 5;
      return plain(SHMBW_OP_WATCH, tag, wish, s.group_name + "later");
    });
    add("WATCH a group", [=](S s, Tag tag) {
      auto wish = watch(SHMBW_WATCH_KIND_GROUP, SHMBW_WATCH_EVENT_ENDED);
      wish.group = s.group;
      return plain(SHMBW_OP_WATCH, tag, wish);
    });
    add("WATCH reclaims", [=](S, Tag tag) {
      return plain(SHMBW_OP_WATCH, tag, watch(SHMBW_WATCH_KIND_RECLAIM, SHMBW_WATCH_EVENT_RECLAIM));
    });
    add("WATCH, cancelled", [=](S s, Tag tag) {
      auto wish = watch(SHMBW_WATCH_KIND_CANCEL, 0);
      wish.watch = s.watch;
      return plain(SHMBW_OP_WATCH, tag, wish);
    });
    add("LIST of regions", [](S s, Tag tag) {
      shmbw_list wish{};
      wish.table = SHMBW_TABLE_REGIONS;
      wish.flags = SHMBW_LIST_OWNER_GIVEN;
      wish.owner_uid = s.parent_hello.uid;
      wish.group_len = static_cast<std::uint16_t>(s.group_name.size());
      wish.name_len = 4;
      return plain(SHMBW_OP_LIST, tag, wish, s.group_name + "base");
    });
    add("LIST of sessions", [](S s, Tag tag) {
      shmbw_list wish{};
      wish.table = SHMBW_TABLE_SESSIONS;
      wish.group = s.group;
      return plain(SHMBW_OP_LIST, tag, wish);
    });
    for (std::uint32_t table : {SHMBW_TABLE_REPORTS, SHMBW_TABLE_REFUSALS})
      add("LIST of reports, refusals", [table](S s, Tag tag) {
        shmbw_list wish{};
        wish.table = table;
        wish.group_len = static_cast<std::uint16_t>(s.group_name.size());
        return plain(SHMBW_OP_LIST, tag, wish, s.group_name);
      });
    add("STATUS", [](S, Tag tag) { return plain(SHMBW_OP_STATUS, tag, shmbw_status{}); });
    return list;
  }();
  return all;
}

const std::vector<Valid>& all_valid_of_pools() {
  using S = const Stage&;
  using Tag = std::uint64_t;
  static const std::vector<Valid> all = [] {
    std::vector<Valid> list;
    auto add = [&](const char* name, auto make) { list.push_back({name, false, false, true, false, make}); };
    add("POOL_CREATE", [](S s, Tag tag) {
      shmbw_pool_create wish{};
      wish.group = s.group;
      wish.flags = SHMBW_POOL_KEEP_GIVEN;
      wish.slots = 4;
      wish.lanes = 2;
      wish.queues = 1;
      wish.segments = 1;
      wish.name_len = 5;
      wish.lane_bytes = 8192;
      return plain(SHMBW_OP_POOL_CREATE, tag, wish, "other");
    });
    add("POOL_JOIN", [](S s, Tag tag) {
      shmbw_pool_join wish{};
      wish.flags = SHMBW_POOL_OWNER_GIVEN | SHMBW_POOL_READ_ONLY;
      wish.owner_uid = s.parent_hello.uid;
      wish.group_len = static_cast<std::uint16_t>(s.group_name.size());
      wish.name_len = 4;
      return plain(SHMBW_OP_POOL_JOIN, tag, wish, s.group_name + "late");
    });
    add("POOL_LEAVE", [](S s, Tag tag) { return plain(SHMBW_OP_POOL_LEAVE, tag, shmbw_pool_leave{s.pool, 0, 0}); });
    add("POOL_SEGMENT",
        [](S s, Tag tag) { return plain(SHMBW_OP_POOL_SEGMENT, tag, shmbw_pool_segment{s.pool, s.slots, 512, 8, 0}); });
    add("QUEUE_OPEN", [](S s, Tag tag) {
      shmbw_queue_open wish{};
      wish.pool = s.pool;
      wish.kind = SHMBW_QUEUE_KIND_BROADCAST;
      wish.flags = SHMBW_QUEUE_OPEN_READER | SHMBW_QUEUE_OPEN_WRITER | SHMBW_QUEUE_OPEN_DROP_OLDEST;
      wish.cells = 8;
      wish.cell_size = 128;
      wish.name_len = 4;
      return plain(SHMBW_OP_QUEUE_OPEN, tag, wish, "news");
    });
    add("QUEUE_CLOSE", [](S s, Tag tag) {
      return plain(SHMBW_OP_QUEUE_CLOSE, tag,
                   shmbw_queue_close{s.pool, s.queue.queue, s.queue.serial,
                                     SHMBW_QUEUE_CLOSE_READER | SHMBW_QUEUE_CLOSE_REMOVE, 0});
    });
    add("LANE_FINISHED", [](S s, Tag tag) {
      return batch(
          SHMBW_OP_LANE_FINISHED, tag,
          std::vector{shmbw_lane_finished{s.pool, s.queue.lane, s.queue.lane_serial, SHMBW_LANE_END_SENDER, 0}});
    });
    add("QUEUE_HOLD", [](S s, Tag tag) {
      return batch(SHMBW_OP_QUEUE_HOLD, tag,
                   std::vector{shmbw_queue_hold{s.pool, s.queue.lane, s.queue.lane_serial, s.region, 0, 0}});
    });
    add("POOL_DOORBELL", [](S s, Tag tag) {
      return plain(SHMBW_OP_POOL_DOORBELL, tag,
                   shmbw_pool_doorbell{s.pool, SHMBW_DOORBELL_GET, s.parent_place, s.parent_life, 0});
    });
    list.push_back({"WORLD_POOL", false, false, true, true,
                    [](S s, Tag tag) { return plain(SHMBW_OP_WORLD_POOL, tag, shmbw_world_pool{s.world, s.pool}); }});
    add("LIST of queues", [](S s, Tag tag) {
      shmbw_list wish{};
      wish.table = SHMBW_TABLE_QUEUES;
      wish.region.id = s.pool;
      return plain(SHMBW_OP_LIST, tag, wish);
    });
    return list;
  }();
  return all;
}

bool Duel::ready() {
  if (failed()) return false;
  std::string lack;
  if (!stage_) {
    stage_ = std::make_unique<Stage>();
    if (valid_.wants_world) stage_->want_world();
    lack = stage_->set_parent(broker_.socket(), valid_.wants_ticket, valid_.wants_pool, valid_.wants_gpu);
  }
  if (lack.empty() && !stage_->attacker.connected()) lack = stage_->set_attacker(!valid_.is_hello);
  if (!lack.empty()) wrong = "the stage cannot be set: " + lack;
  return !failed();
}

Duel::End Duel::dropped(const Packet& packet, bool due) {
  renew_attacker();
  ++drops;
  if (due) return End::dropped;
  shmbw_header header = header_of(packet);
  wrong =
      "dropped, though the frame is whole: op " + std::to_string(header.op) + ", size " + std::to_string(packet.size());
  return End::none;
}

Duel::End Duel::send(const Packet& packet) {
  ++cases;
  RawClient& client = stage_->attacker;
  if (valid_.bring && brought_.empty()) brought_ = valid_.bring();
  std::vector<int> fds;
  for (const shmb::Fd& fd : brought_) fds.push_back(fd.get());
  bool broken = breaks_the_frame(packet, !valid_.is_hello, fds.size());
  static const Packet ping = plain(SHMBW_OP_STATUS, kPing, shmbw_status{});
  // The ping right behind tells silence from slowness, and that the session goes on.
  bool pinged = client.send(packet, fds) && !valid_.is_hello && client.send(ping);
  RawPacket reply;
  do reply = client.receive(30'000);
  while (reply.kind == RawPacket::Kind::packet && reply.is_event());
  if (reply.kind == RawPacket::Kind::nothing) return wrong = "neither answered nor dropped", End::none;
  if (reply.kind != RawPacket::Kind::packet) return dropped(packet, broken);
  if (broken) return wrong = "answered, though its frame is broken: " + wrong_with(reply, packet), End::none;
  if (valid_.is_hello || reply.header().tag != kPing) {
    wrong = wrong_with(reply, packet);
    if (failed()) return End::none;
  }
  if (valid_.is_hello) {
    bool ok = reply.ok();
    renew_attacker();
    ++(ok ? answers : refusals);
    return ok ? End::answered : End::refused;
  }
  if (reply.header().tag == kPing) {
    if (!may_be_silent(packet)) return wrong = "no answer to a request that asks for one", End::none;
    stage_.reset();
    return End::silent;
  }
  bool ok = reply.ok();
  if (!pinged) return wrong = "the session was gone before its ping", End::none;
  do reply = client.receive(30'000);
  while (reply.kind == RawPacket::Kind::packet && reply.is_event());
  if (reply.kind != RawPacket::Kind::packet || reply.header().tag != kPing || !reply.ok())
    return wrong = "the session does not go on after the reply", End::none;
  std::uint16_t op = header_of(packet).op;
  if (ok && op != SHMBW_OP_LIST && op != SHMBW_OP_STATUS) stage_.reset();
  ++(ok ? answers : refusals);
  return ok ? End::answered : End::refused;
}

}  // namespace wire_test
