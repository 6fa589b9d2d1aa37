// SPDX-License-Identifier: Apache-2.0
// 100,000 random operations against a model that knows only references; the sums balance all the way and everything is
// zero at the end. The seed is printed and can be given with BOOKS_SEED.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using shmb::daemon::Config;

namespace {

struct Known {
  shmbw_region_ref ref{};
  std::uint64_t bytes = 0;
  std::map<std::uint64_t, std::uint32_t> leases;  // session -> references
  std::string name;                               // held by it
};

// Unnamed regions and named ones of one long-lived group; no shelf, no keep: references alone decide.
struct Model {
  std::map<std::uint64_t, Known> regions;
  void drop(std::uint64_t id) {
    Known& region = regions.at(id);
    if (region.leases.empty() && region.name.empty()) regions.erase(id);
  }
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [id, region] : regions) sum += region.bytes;
    return sum;
  }
  std::size_t leases() const {
    std::size_t sum = 0;
    for (const auto& [id, region] : regions) sum += region.leases.size();
    return sum;
  }
};

}  // namespace

TEST_CASE("100,000 random operations keep the books equal to a model of references") {
  const char* given = std::getenv("BOOKS_SEED");
  unsigned seed = given ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : 20261120U;
  CAPTURE(seed);
  std::mt19937 random(seed);
  auto pick = [&](std::size_t below) { return static_cast<std::size_t>(random() % below); };

  Config config = system_config();
  config.limits.host_bytes = 3000 * 4096;
  config.limits.uid_leases = 400;
  World world(config);
  Model model;
  Client keeper = world.client(1000);
  REQUIRE(keeper.make_group({.name = "g"}).status() == Status::ok);
  REQUIRE(keeper.join("g").status() == Status::ok);
  std::vector<Client> clients;
  auto connect = [&] {
    clients.push_back(world.client(1000));
    REQUIRE(clients.back().join("g").status() == Status::ok);
  };
  for (int i = 0; i < 6; ++i) connect();

  auto any_region = [&]() -> Known* {
    if (model.regions.empty()) return nullptr;
    auto at = model.regions.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(pick(model.regions.size())));
    return &at->second;
  };
  std::size_t refused = 0, done = 0;
  for (int step = 0; step < 100'000; ++step) {
    Client& client = clients[pick(clients.size())];
    client.link().replies.clear();
    switch (pick(10)) {
      case 0:
      case 1:
      case 2: {
        CreateRequest wish{.length = 1 + pick(5 * 4096)};
        if (pick(3) == 0) wish.name = "n" + std::to_string(pick(20));
        if (!wish.name.empty() && pick(2) == 0) wish.flags = SHMBW_CREATE_REPLACE;
        Created created = client.create(wish);
        bool taken = std::ranges::any_of(
            model.regions, [&](const auto& row) { return !wish.name.empty() && row.second.name == wish.name; });
        if (created.status != Status::ok) {
          ++refused;
          REQUIRE((created.status == Status::limit || (created.status == Status::exists && taken) ||
                   created.status == Status::denied));
          break;
        }
        REQUIRE(!(taken && wish.flags == 0));
        for (auto at = model.regions.begin(); at != model.regions.end();) {
          auto current = at++;
          if (!wish.name.empty() && current->second.name == wish.name) {
            current->second.name.clear();
            model.drop(current->first);
          }
        }
        model.regions[created.ref().id] = {created.ref(), created.reply.bytes, {{client.id, 1}}, wish.name};
        break;
      }
      case 3:
      case 4: {
        Known* region = any_region();
        if (!region) break;
        Attached attached = pick(2) == 0 || region->name.empty() ? client.attach_id(region->ref, kWrite)
                                                                 : client.attach_name("g", region->name, kAll);
        if (attached.status != Status::ok) {
          REQUIRE(attached.status == Status::limit);
          ++refused;
          break;
        }
        REQUIRE(attached.reply.region.id == region->ref.id);
        ++region->leases[client.id];
        break;
      }
      case 5:
      case 6:
      case 7: {
        Known* region = any_region();
        if (!region) break;
        auto held = region->leases.find(client.id);
        std::uint32_t count = static_cast<std::uint32_t>(pick(3));
        Element element = client.release(region->ref, count);
        if (held == region->leases.end()) {
          REQUIRE(element.status == Status::not_found);
        } else if (count > held->second) {
          REQUIRE(element.status == Status::invalid);
        } else {
          REQUIRE(element.status == Status::ok);
          if (count == 0 || count == held->second) region->leases.erase(held);
          else held->second -= count;
          model.drop(region->ref.id);
        }
        break;
      }
      case 8: {
        Known* region = any_region();
        if (!region || region->name.empty() || region->leases.contains(client.id)) break;
        REQUIRE(client.release(region->ref, 0, SHMBW_RELEASE_UNNAME).status == Status::ok);
        region->name.clear();
        model.drop(region->ref.id);
        break;
      }
      default: {
        if (pick(20) != 0) break;
        std::size_t at = pick(clients.size());
        std::uint64_t id = clients[at].id;
        clients[at].die();
        std::swap(clients[at], clients.back());
        clients.pop_back();
        std::vector<std::uint64_t> ids;
        for (auto& [region_id, region] : model.regions)
          if (region.leases.erase(id)) ids.push_back(region_id);
        for (std::uint64_t region_id : ids) model.drop(region_id);
        connect();
      }
    }
    ++done;
    if (step % 100 == 0) {
      world.wait_for_closes();  // of those that died with many regions
      auto status = keeper.status();
      keeper.link().replies.clear();
      REQUIRE(status.bytes == model.bytes());
      REQUIRE(status.regions == model.regions.size());
      REQUIRE(status.leases == model.leases());
      REQUIRE(status.bytes <= config.limits.host_bytes);
    }
  }
  MESSAGE("operations: " << done << ", refused at a limit or by name: " << refused);
  CHECK(refused > 0);
  std::set<std::uint64_t> listed;
  for (const auto& row : keeper.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS)) listed.insert(row.region.id);
  CHECK(listed.size() == model.regions.size());
  for (const auto& [id, region] : model.regions) CHECK(listed.contains(id));
}

TEST_CASE("random requests of every kind from three uids never unbalance the books") {
  // No model: only that the sums of what is listed equal what is charged, and that all is zero at the end.
  std::mt19937 random(7);
  auto pick = [&](std::size_t below) { return static_cast<std::size_t>(random() % below); };
  Config config = private_config();
  config.limits.host_bytes = 400ULL << 20;
  config.limits.shelf_bytes = 16ULL << 20;
  config.limits.uid_tickets = 20;
  config.limits.session_watches = 10;
  config.limits.uid_groups = 10;
  World world(config);
  std::vector<Client> clients;
  Client admin = world.admin();
  std::vector<std::array<std::uint8_t, 16>> tickets(1), tokens(1);
  auto connect = [&] {
    Client fresh = world.silent(static_cast<std::uint32_t>(1000 + pick(3)));
    HelloRequest wish;
    if (!clients.empty() && pick(2) == 0) {
      const Client& parent = clients[pick(clients.size())];
      wish.fork_session = parent.id;
      wish.fork_secret = parent.secret;
    }
    if (fresh.hello(wish).status() != Status::ok) REQUIRE(fresh.hello().status() == Status::ok);
    clients.push_back(std::move(fresh));
  };
  for (int i = 0; i < 10; ++i) connect();
  std::uint64_t last_region = 1;
  for (int step = 0; step < 30'000; ++step) {
    Client& client = clients[pick(clients.size())];
    client.link().replies.clear();
    client.link().events.clear();
    shmbw_region_ref ref{last_region - std::min<std::uint64_t>(pick(40), last_region - 1), 0, 0};
    std::string name = "n" + std::to_string(pick(5)), group = "g" + std::to_string(pick(4));
    switch (pick(20)) {
      case 0:
      case 1:
      case 2: {
        CreateRequest wish{.length = std::uint64_t{1} << (10 + pick(14)),
                           .flags = static_cast<std::uint32_t>(pick(16)) & ~2U};
        if (pick(2) == 0) wish.name = name, wish.flags |= static_cast<std::uint32_t>(pick(2)) << 1;
        if (pick(3) == 0)
          wish.flags |= SHMBW_CREATE_KEEP_GIVEN, wish.keep = static_cast<std::int64_t>(pick(100)) * kSecond;
        Created created = client.create(wish);
        if (created.status == Status::ok) last_region = std::max(last_region, created.ref().id);
        break;
      }
      case 3:
        client.attach_id(ref, kRead);
        break;
      case 4:
        client.attach_id(ref, kAll, static_cast<std::uint32_t>(pick(2)));
        break;
      case 5:
        client.attach_name(group, name, kWrite);
        break;
      case 6:
        client.attach_ticket(tickets[pick(tickets.size())], kRead);
        break;
      case 7:
      case 8:
        client.release(ref, 0, static_cast<std::uint32_t>(pick(4)));
        break;
      case 9:
        client.ready(ref, static_cast<std::uint32_t>(pick(5)));
        break;
      case 10:
        client.publish(ref);
        break;
      case 11: {
        Packet& reply = client.ticket(ref, kRead, static_cast<std::uint32_t>(pick(3)),
                                      static_cast<std::int64_t>(1 + pick(50)) * kSecond);
        if (reply.status() == Status::ok) tickets.push_back(Client::ticket_of(reply));
        if (pick(8) == 0) client.release_tickets({ref, 0, 0, 1000, static_cast<std::uint32_t>(pick(4))});
        break;
      }
      case 12:
        client.inherit(ref);
        break;
      case 13: {
        Packet& reply = client.make_group({.name = pick(4) ? group : "",
                                           .flags = static_cast<std::uint32_t>(pick(4)),
                                           .keep = static_cast<std::int64_t>(pick(30)) * kSecond});
        if (reply.status() != Status::ok) break;
        auto fixed = reply.fixed<shmbw_group_create_reply>();
        tokens.emplace_back();
        std::memcpy(tokens.back().data(), fixed.token, 16);
        break;
      }
      case 14:
        client.join(group, static_cast<std::uint32_t>(pick(2)));
        break;
      case 15:
        client.join(raw(tokens[pick(tokens.size())]), static_cast<std::uint32_t>(pick(2)));
        break;
      case 16: {
        std::uint64_t id = 1 + pick(tokens.size() + 20);
        pick(3) ? client.leave() : client.end_group(id, static_cast<std::uint32_t>(pick(4)));
        break;
      }
      case 17:
        if (pick(2)) client.watch_region(ref, SHMBW_WATCH_EVENT_KNOWN);
        else if (pick(2)) client.watch_name(group, name);
        else client.watch_group(1 + pick(tokens.size()));
        break;
      case 18:
        world.advance(static_cast<std::int64_t>(pick(20)) * kSecond);
        break;
      default: {
        if (pick(4) != 0) break;
        std::size_t at = pick(clients.size());
        Client& gone = clients[at];
        switch (pick(4)) {
          case 0:
            gone.close();
            break;
          case 1:
            gone.die();
            break;
          case 2:
            gone.pidfd();
            gone.end_of_file();
            gone.forget();
            break;
          default:
            gone.disconnect();
            gone.pidfd();
            gone.forget();
            break;
        }
        std::swap(clients[at], clients.back());
        clients.pop_back();
        connect();
      }
    }
    if (step % 500 == 0) {
      world.wait_for_closes();
      admin.link().replies.clear();
      std::uint64_t listed = 0, cached = 0, by_group = 0, by_uid = 0, leases = 0;
      for (const auto& row : admin.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS)) {
        listed += row.bytes;
        if (row.state == SHMBW_REGION_STATE_CACHED) cached += row.bytes;
      }
      for (const auto& row : admin.rows<shmbw_group_record>(SHMBW_TABLE_GROUPS)) by_group += row.bytes;
      for (const auto& row : admin.rows<shmbw_uid_record>(SHMBW_TABLE_UIDS)) by_uid += row.bytes, leases += row.leases;
      auto status = admin.status();
      REQUIRE(listed == status.bytes);
      REQUIRE(by_group == status.bytes);
      REQUIRE(by_uid == status.bytes);
      REQUIRE(cached == status.bytes_cached);
      REQUIRE(leases == status.leases);
      REQUIRE(admin.rows<shmbw_lease_record>(SHMBW_TABLE_LEASES).size() == leases);
      REQUIRE(admin.rows<shmbw_ticket_record>(SHMBW_TABLE_TICKETS).size() == status.tickets);
    }
  }
  clients.clear();
}
