// SPDX-License-Identifier: Apache-2.0
// Sessions that send valid requests in any order, with their own identities, those of each other and unknown ones. No
// model gives the answers. But every answer must be well formed, and the rows of every table must add up to the counts
// of STATUS. When all sessions have gone, nothing is left.
#include <doctest/doctest.h>
#include <unistd.h>

#include <random>

#include "tests/harness/sanitizer.hpp"
#include "tests/support/wire.hpp"

namespace wire_test {
namespace {

constexpr std::size_t kSessions = 8, kOps = 1500, kLookEvery = 100;

class Crowd {
 public:
  Crowd(const BrokerFixture& broker, std::uint64_t seed) : broker_(broker), random_(seed), sessions_(kSessions) {}

  // "" or the first thing that was wrong.
  std::string run() {
    for (std::size_t i = 0; i < kOps && wrong_.empty(); ++i) {
      act();
      if (i % kLookEvery == kLookEvery - 1 && wrong_.empty()) look();
      if (!wrong_.empty()) wrong_ += "; operation " + std::to_string(i);
    }
    return wrong_;
  }
  std::size_t successes = 0, refusals = 0;

 private:
  struct One {
    RawClient client;
    shmbw_hello_reply hello{};
    std::vector<shmb::Fd> held;  // some descriptors stay open, as a client's would
  };

  std::uint64_t below(std::uint64_t bound) {
    return std::uniform_int_distribution<std::uint64_t>(0, bound - 1)(random_);
  }
  bool chance(std::uint64_t one_in) { return below(one_in) == 0; }
  template <class T>
  T any(const std::vector<T>& known, const T& otherwise) {
    return known.empty() || chance(12) ? otherwise : known[below(known.size())];
  }
  template <class T>
  static void keep(std::vector<T>& known, const T& fresh) {
    known.push_back(fresh);
    if (known.size() > 40) known.erase(known.begin());
  }
  shmbw_region_ref region() {
    return any(regions_, shmbw_region_ref{below(1000), static_cast<std::uint32_t>(below(3)), 0});
  }
  std::uint64_t group() { return any(groups_, below(100)); }
  std::string group_name() { return "g" + std::to_string(below(4)); }
  std::string name() { return "n" + std::to_string(below(6)); }
  std::uint32_t rights() { return static_cast<std::uint32_t>(below(16)); }
  std::int64_t keep_time() { return chance(3) ? static_cast<std::int64_t>(below(5)) * 1'000'000 : 0; }

  void connect(One& one) {
    one.client = RawClient::connect(broker_.socket());
    one.held.clear();
    shmbw_hello wish = RawClient::greeting();
    if (chance(3)) {
      const One& other = sessions_[below(kSessions)];
      wish.fork_session = other.hello.session;
      std::memcpy(wish.fork_secret, other.hello.fork_secret, sizeof wish.fork_secret);
    }
    RawPacket reply = one.client.call(SHMBW_OP_HELLO, wish);
    if (!reply.ok()) reply = one.client.hello();
    if (!reply.ok()) wrong_ = "HELLO: " + reply.sentence();
    one.hello = reply.fixed<shmbw_hello_reply>();
  }

  RawPacket play(One& one, const Packet& packet) {
    RawPacket reply;
    if (!one.client.send(packet)) wrong_ = "the session is gone";
    else if (!may_be_silent(packet)) {
      do reply = one.client.receive(30'000);
      while (reply.kind == RawPacket::Kind::packet && reply.is_event());
      if (reply.kind != RawPacket::Kind::packet) wrong_ = "no answer to op " + std::to_string(header_of(packet).op);
      else wrong_ = wrong_with(reply, packet);
      ++(reply.ok() ? successes : refusals);
      for (auto& fd : reply.fds)
        if (chance(4) && one.held.size() < 20) one.held.push_back(std::move(fd));
    }
    return reply;
  }

  void act();
  void act_on_regions(One& one, std::uint64_t tag, std::uint64_t which);
  void act_on_groups(One& one, std::uint64_t tag, std::uint64_t which);
  void look();

  const BrokerFixture& broker_;
  std::mt19937_64 random_;
  std::vector<One> sessions_;
  std::vector<shmbw_region_ref> regions_;
  std::vector<std::uint64_t> groups_, watches_;
  std::vector<std::array<std::uint8_t, 16>> tickets_, tokens_;
  std::string wrong_;
};

void Crowd::act() {
  One& one = sessions_[below(kSessions)];
  if (!one.client.connected() || chance(60)) return connect(one);
  if (chance(80)) {
    // An end without a word, sometimes with a request on its way.
    if (chance(2)) (void)one.client.ask(SHMBW_OP_STATUS, shmbw_status{});
    return one.client.close();
  }
  std::uint64_t which = below(17), tag = random_();
  which < 9 ? act_on_regions(one, tag, which) : act_on_groups(one, tag, which);
}

void Crowd::act_on_regions(One& one, std::uint64_t tag, std::uint64_t which) {
  switch (which) {
    case 0:
    case 1: {
      std::vector<shmbw_create> wishes(1 + below(3));
      std::string texts;
      for (auto& wish : wishes) {
        wish.length = below(4) * 3000 + (chance(40) ? 70 << 20 : 0);
        wish.group = chance(3) ? group() : 0;
        wish.flags = static_cast<std::uint32_t>(below(32));
        if ((wish.flags & SHMBW_CREATE_KEEP_GIVEN) != 0) wish.keep = keep_time();
        wish.rights = chance(3) ? rights() : 0;
        if (chance(2)) continue;
        std::string text = name();
        wish.name_len = static_cast<std::uint16_t>(text.size());
        texts += text;
      }
      RawPacket reply = play(one, batch(SHMBW_OP_CREATE, tag, wishes, texts));
      for (std::size_t i = 0; reply.ok() && i < wishes.size(); ++i)
        if (auto made = reply.element<shmbw_create_reply>(i); made.outcome.status == 0)
          keep(regions_, made.region), keep(groups_, made.group);
      return;
    }
    case 2:
    case 3: {
      std::vector<shmbw_attach> wishes(1 + below(4));
      std::string texts;
      for (auto& wish : wishes) {
        wish.by = static_cast<std::uint32_t>(below(4));
        wish.rights = SHMBW_RIGHT_MAP_READ | rights();
        wish.flags = static_cast<std::uint32_t>(below(2));
        if (wish.by == SHMBW_ATTACH_BY_ID) wish.region = region();
        if (wish.by == SHMBW_ATTACH_BY_TICKET) std::memcpy(wish.ticket, any(tickets_, {}).data(), 16);
        if (wish.by != SHMBW_ATTACH_BY_NAME) continue;
        std::string of_group = chance(2) ? group_name() : chance(2) ? "#" + std::to_string(group()) : "", text = name();
        wish.group_len = static_cast<std::uint16_t>(of_group.size());
        wish.name_len = static_cast<std::uint16_t>(text.size());
        texts += of_group + text;
      }
      play(one, batch(SHMBW_OP_ATTACH, tag, wishes, texts));
      return;
    }
    case 4:
    case 5: {
      std::vector<shmbw_release> wishes(1 + below(5));
      for (auto& wish : wishes)
        wish = {region(), static_cast<std::uint32_t>(below(3)),
                static_cast<std::uint32_t>(chance(3) ? below(4) : below(2))};
      play(one, batch(SHMBW_OP_RELEASE, tag, wishes, {}, chance(3) ? SHMBW_HEADER_NO_REPLY : 0));
      return;
    }
    case 6: {
      std::vector<shmbw_ready> wishes(1 + below(3));
      for (auto& wish : wishes) wish = {region(), random_(), static_cast<std::uint32_t>(below(6)), 0};
      play(one, batch(SHMBW_OP_READY, tag, wishes));
      return;
    }
    case 7:
      play(one, plain(SHMBW_OP_PUBLISH, tag, shmbw_publish{region()}));
      return;
    default: {
      shmbw_ticket_create wish{region(), rights(), static_cast<std::uint32_t>(below(4)), 1'000'000 + keep_time()};
      wish.flags = static_cast<std::uint32_t>(below(2));
      RawPacket reply = play(one, plain(SHMBW_OP_TICKET_CREATE, tag, wish));
      if (reply.ok()) keep(tickets_, std::to_array(reply.fixed<shmbw_ticket_create_reply>().ticket));
      if (!chance(3)) return;
      shmbw_ticket_revoke revoke{};
      std::memcpy(revoke.ticket, any(tickets_, {}).data(), sizeof revoke.ticket);
      play(one, plain(SHMBW_OP_TICKET_REVOKE, tag, revoke));
      if (chance(5))
        play(one, plain(SHMBW_OP_TICKETS_RELEASE, tag,
                        shmbw_tickets_release{region(), 0, 0, ::geteuid(), static_cast<std::uint32_t>(below(4))}));
      return;
    }
  }
}

void Crowd::act_on_groups(One& one, std::uint64_t tag, std::uint64_t which) {
  switch (which) {
    case 9: {
      std::vector<shmbw_inherit> wishes(1 + below(3));
      for (auto& wish : wishes) wish = {region(), chance(2) ? rights() : 0, static_cast<std::uint32_t>(below(3))};
      play(one, batch(SHMBW_OP_INHERIT, tag, wishes));
      return;
    }
    case 10: {
      shmbw_group_create wish{};
      wish.flags = static_cast<std::uint32_t>(below(4));
      wish.keep = keep_time();
      wish.limit_bytes = chance(3) ? below(1 << 20) : 0;
      std::string text = chance(2) ? group_name() : "";
      wish.name_len = static_cast<std::uint16_t>(text.size());
      RawPacket reply = play(one, plain(SHMBW_OP_GROUP_CREATE, tag, wish, text));
      if (!reply.ok()) return;
      auto made = reply.fixed<shmbw_group_create_reply>();
      keep(groups_, made.group);
      keep(tokens_, std::to_array(made.token));
      return;
    }
    case 11: {
      shmbw_group_join wish{};
      std::string text;
      if (chance(2)) std::memcpy(wish.token, any(tokens_, {}).data(), 16);
      else text = chance(2) ? group_name() : "#" + std::to_string(group());
      wish.flags = chance(3) ? SHMBW_JOIN_SUPERVISOR : 0;
      wish.name_len = static_cast<std::uint16_t>(text.size());
      play(one, plain(SHMBW_OP_GROUP_JOIN, tag, wish, text));
      return;
    }
    case 12:
      play(one, plain(SHMBW_OP_GROUP_LEAVE, tag, shmbw_group_leave{chance(2) ? group() : 0}));
      return;
    case 13: {
      if (!chance(3)) return;
      shmbw_group_end wish{};
      wish.group = group();
      wish.flags = static_cast<std::uint32_t>(below(4));
      play(one, plain(SHMBW_OP_GROUP_END, tag, wish));
      play(one, plain(SHMBW_OP_GROUP_LIMIT, tag, shmbw_group_limit{group(), below(1) << 20, 0, 0, 0}));
      return;
    }
    case 14: {
      shmbw_watch wish{};
      wish.kind = static_cast<std::uint32_t>(below(5));
      wish.events = static_cast<std::uint32_t>(below(64));
      wish.region = region();
      wish.group = chance(2) ? group() : 0;
      wish.watch = any(watches_, below(100));
      std::string text = wish.kind == SHMBW_WATCH_KIND_NAME ? name() : "";
      wish.name_len = static_cast<std::uint16_t>(text.size());
      RawPacket reply = play(one, plain(SHMBW_OP_WATCH, tag, wish, text));
      if (reply.ok()) keep(watches_, reply.fixed<shmbw_watch_reply>().watch);
      return;
    }
    case 15: {
      shmbw_list wish{};
      wish.table = static_cast<std::uint32_t>(below(8));
      wish.cursor = chance(2) ? below(50) : 0;
      wish.group = chance(2) ? group() : 0;
      play(one, plain(SHMBW_OP_LIST, tag, wish));
      return;
    }
    default:
      play(one, plain(SHMBW_OP_STATUS, tag, shmbw_status{}));
  }
}

// Everything that is counted twice is counted alike. Regions of 64 MiB and more are closed on another thread, tickets
// and keeps end by the clock: what moves between two questions is asked again.
void Crowd::look() {
  std::string difference;
  for (int tries = 0; tries < 2000; ++tries) {
    RawClient admin = RawClient::connect(broker_.admin());
    if (!admin.hello().ok()) return void(wrong_ = "the admin socket does not answer");
    auto before = admin.status().fixed<shmbw_status_reply>();
    std::uint64_t bytes = 0, live = 0, group_bytes = 0, uid_bytes = 0, groups = 0, leases = 0, tickets = 0, holders = 0,
                  uid_leases = 0, uid_regions = 0, watches = 0, uid_watches = 0, regions_all = 0;
    bool ok = list_all<shmbw_region_record>(admin, SHMBW_TABLE_REGIONS, [&](const auto& row) {
      bytes += row.bytes, ++regions_all, holders += row.holders;
      live += row.state != SHMBW_REGION_STATE_FREEING && row.state != SHMBW_REGION_STATE_CACHED;
    });
    ok = ok && list_all<shmbw_group_record>(admin, SHMBW_TABLE_GROUPS,
                                            [&](const auto& row) { ++groups, group_bytes += row.bytes; });
    ok = ok &&
         list_all<shmbw_session_record>(admin, SHMBW_TABLE_SESSIONS, [&](const auto& row) { watches += row.watches; });
    ok = ok && list_all<shmbw_lease_record>(admin, SHMBW_TABLE_LEASES, [&](const auto&) { ++leases; });
    ok = ok && list_all<shmbw_ticket_record>(admin, SHMBW_TABLE_TICKETS, [&](const auto&) { ++tickets; });
    ok = ok && list_all<shmbw_uid_record>(admin, SHMBW_TABLE_UIDS, [&](const auto& row) {
           uid_bytes += row.bytes, uid_leases += row.leases, uid_regions += row.regions, uid_watches += row.watches;
         });
    if (!ok) return void(wrong_ = "LIST does not answer well");
    auto after = admin.status().fixed<shmbw_status_reply>();
    difference.clear();
    auto same = [&](const char* what, std::uint64_t status, std::uint64_t rows) {
      if (status != rows)
        difference +=
            std::string(what) + ": STATUS " + std::to_string(status) + ", rows " + std::to_string(rows) + "; ";
    };
    same("bytes of regions", after.bytes, bytes);
    same("bytes of groups", after.bytes, group_bytes);
    same("bytes of uids", after.bytes, uid_bytes);
    same("regions", after.regions, live);
    same("regions of uids", regions_all, uid_regions);
    same("groups", after.groups, groups);
    same("leases", after.leases, leases);
    same("leases of uids", after.leases, uid_leases);
    same("holders", after.leases, holders);
    same("tickets", after.tickets, tickets);
    same("watches", after.watches, watches);
    same("watches of uids", after.watches, uid_watches);
    bool moved = before.bytes != after.bytes || before.regions != after.regions || before.tickets != after.tickets ||
                 before.groups != after.groups;
    if (difference.empty()) return;
    if (!moved && tries > 200) break;
    ::usleep(1000);
  }
  wrong_ = "the books disagree with themselves: " + difference;
}

}  // namespace

TEST_CASE("random sessions leave books without contradictions, and empty books in the end") {
  BrokerOptions options;
  options.arguments = {"--log-level", "error"};
  const std::uint64_t seeds = thorough() ? 400 : std::max(2, 8 / harness::kSlowdown);
  std::size_t successes = 0, refusals = 0;
  on_each_engine(options, [&](BrokerFixture& broker) {
    const std::size_t descriptors = descriptors_at_rest(broker);
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      CAPTURE(seed);
      {
        Crowd crowd(broker, seed);
        REQUIRE(crowd.run() == "");
        successes += crowd.successes, refusals += crowd.refusals;
      }
      // How the sessions' process ended is asked for a second: until then descriptors stay, which the end looks at.
      REQUIRE(settled(broker, {.answered = true}, SIZE_MAX) == "");
    }
    CHECK(settled(broker, {.answered = true}, descriptors) == "");
  });
  CHECK(successes > refusals / 4);
  MESSAGE(seeds << " seeds on each engine: " << successes << " requests succeeded, " << refusals << " were refused");
}

}  // namespace wire_test
