// SPDX-License-Identifier: Apache-2.0
// Law 1: the lease is booked before the reply leaves; a client killed at any instruction leaves nothing behind.
//
// To see it fail: in daemon/serve/session_end.cpp, end_session, take away
//   for (auto at = session.leases.begin(); at != session.leases.end();)
//   if (Lease& lease = (at++)->second; !gpu_lease_stays(session, lease)) drop_lease(ledger.regions, lease);
// and a client that dies between a grant and its own release leaves the region behind.
#include <fcntl.h>

#include "client/calls/remote_calls.hpp"
#include "tests/harness/ptrace_killer.hpp"
#include "tests/laws/law.hpp"

using namespace laws;

namespace {

using Start = std::function<void()>;
struct Scene {
  const char* name;
  // `ticket_life`: of a ticket that it uses.
  std::function<int(const std::string& socket, const Start& start, std::int64_t ticket_life)> client;
};

// A ticket outlives its maker. So a ticket that no client uses ends soon. A ticket that a client uses lasts longer,
// because stepping is slow.
constexpr std::int64_t kShortTicket = 20'000'000, kLongTicket = 30'000'000'000;

int with_region(const std::string& socket, const Start& start, const std::function<int(Region&)>& act) {
  auto session = try_open(socket);
  if (!session) return 10;
  auto region = create_region(*session, named("mine", 8192));
  if (!region) return 11;
  start();
  return act(**region);
}

const std::vector<Scene>& scenes() {
  static const std::vector<Scene> all = {
      {"connect",
       [](const std::string& socket, const Start& start, std::int64_t) {
         start();
         return try_open(socket) ? 0 : 10;
       }},
      {"create",
       [](const std::string& socket, const Start& start, std::int64_t) {
         auto session = try_open(socket);
         if (!session) return 10;
         start();
         return create_region(*session, named("mine", 8192)) ? 0 : 11;
       }},
      {"create a batch in huge pages",
       [](const std::string& socket, const Start& start, std::int64_t) {
         auto session = try_open(socket);
         if (!session) return 10;
         const CreateItem items[] = {named("a", 2 << 20), named("", 4096), named("b", 1)};
         start();
         for (auto& made : create_regions(*session, items, 0))
           if (!made) return 11;
         return 0;
       }},
      {"publish",
       [](const std::string& socket, const Start& start, std::int64_t) {
         return with_region(socket, start, [](Region& region) { return region.publish(soon()) ? 0 : 12; });
       }},
      {"ticket",
       [](const std::string& socket, const Start& start, std::int64_t) {
         return with_region(socket, start, [](Region& region) {
           return region.make_ticket(SHMBW_RIGHT_MAP_READ, 1, kShortTicket, soon()) ? 0 : 12;
         });
       }},
      {"release",
       [](const std::string& socket, const Start& start, std::int64_t) {
         return with_region(socket, start, [](Region& region) { return region.release(kReleaseUnname) ? 0 : 12; });
       }},
      {"attach",
       [](const std::string& socket, const Start& start, std::int64_t) {
         auto session = try_open(socket);
         if (!session) return 10;
         start();
         return attach_region(*session, at("stage/common", kReadWrite)) ? 0 : 11;
       }},
      {"watch",
       [](const std::string& socket, const Start& start, std::int64_t) {
         auto session = try_open(socket);
         if (!session) return 10;
         WatchSpec spec;
         spec.kind = SHMBW_WATCH_KIND_NAME;
         spec.address = "stage/later";
         start();
         return (*session)->watch(spec, soon()) ? 0 : 11;
       }},
      {"join a world, and make a reference there",
       [](const std::string& socket, const Start& start, std::int64_t) {
         auto session = try_open(socket);
         if (!session) return 10;
         WorldRequest wish;
         wish.port = 4711;
         wish.world_size = 1;
         wish.address = "localhost:4711";
         wish.name = "worker";
         start();
         auto place = join_world(**session, wish, soon());
         if (!place) return 11;
         return create_reference(**session, place->world, {}, soon()) ? 0 : 12;
       }},
      {"attach by a ticket that the client made, read-only",
       [](const std::string& socket, const Start& start, std::int64_t ticket_life) {
         auto session = try_open(socket);
         if (!session) return 10;
         auto region = create_region(*session, named("", 8192));
         if (!region) return 11;
         auto ticket = (*region)->make_ticket(SHMBW_RIGHT_MAP_READ, 1, ticket_life, soon());
         if (!ticket) return 12;
         AttachItem item;
         item.target = Target::with_ticket(ticket->token);
         start();
         return attach_region(*session, item) ? 0 : 13;
       }},
  };
  return all;
}

}  // namespace

TEST_CASE("law 1: a client killed at the entry or exit of any of its system calls leaves nothing behind") {
  on_each_engine([](BrokerFixture& broker) {
    auto bystander = open(broker);
    const auto stage = must(bystander->create_group({.name = "stage"}, soon()));
    must(bystander->join_group(stage.token, 0, soon()));
    auto common = must(create_region(bystander, named("common", 8192)));
    const auto admin = open_admin(broker);
    const auto rest = must(broker_status(*admin, soon())).record;
    long killed = 0;
    for (const Scene& scene : scenes()) {
      CAPTURE(scene.name);
      const auto stepped = [&](long k, std::int64_t ticket_life) {
        return harness::run_killed_at(
            k, [&](const auto& start) { return scene.client(broker.socket(), start, ticket_life); });
      };
      const auto clean = [&] {
        return eventually([&] {
          const auto now = must(broker_status(*admin, soon())).record;
          return now.regions == rest.regions && now.leases == rest.leases && now.sessions == rest.sessions &&
                 now.tickets == rest.tickets && now.groups == rest.groups && now.bytes == rest.bytes &&
                 now.watches == rest.watches && must(list_worlds(*admin, {}, soon())).rows.empty() &&
                 must(list_references(*admin, {}, soon())).rows.empty();
        });
      };
      const auto whole = stepped(0, kLongTicket);  // nobody kills it
      if (!whole.traced) SKIP_CASE("ptrace is not permitted here");
      REQUIRE(whole.ended);
      CHECK(whole.status == 0);
      CHECK(whole.stops > 1);
      REQUIRE(clean());
      for (long k = 1; k <= whole.stops; k += harness::kSlowdown) {
        CAPTURE(k);
        killed += !stepped(k, kShortTicket).ended;
        REQUIRE(clean());
      }
      REQUIRE(regions(bystander).size() == 1);
      CHECK(regions(bystander)[0].record.holders == 1);
      must(bystander->ping(soon()));
    }
    MESSAGE("clients killed: " << killed);
    CHECK(killed > 100 / harness::kSlowdown);
    must(common->release(kReleaseUnname));
  });
}

TEST_CASE("law 1: the lease of an unread reply is in the books already") {
  for (const bool reads : {false, true})
    on_each_engine([reads](BrokerFixture& broker) {
      CAPTURE(reads);
      const auto admin = open_admin(broker);
      RawClient client = RawClient::connect(broker.socket());
      REQUIRE(client.hello().ok());
      shmbw_create create{};
      create.length = 4096;
      std::vector<std::byte> buffer(256);
      wire::Writer writer(buffer);
      writer.begin_batch<shmbw_create>(SHMBW_OP_CREATE, 77, 1);
      writer.element(0, create);
      REQUIRE(client.send(writer.finish(0)));
      auto there = sys::poll_readable(client.fd(), 20'000'000'000);
      REQUIRE(there.has_value());
      REQUIRE(*there);
      CHECK(leases(admin).size() == 1);
      CHECK(regions(admin).size() == 1);
      if (reads) {
        CHECK(client.reply(77).fds.size() == 1);
        CHECK(leases(admin).size() == 1);
      }
      client.close();
      CHECK(eventually([&] { return regions(admin).empty() && leases(admin).empty(); }));
    });
}
