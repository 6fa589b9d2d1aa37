// SPDX-License-Identifier: Apache-2.0
// The report of a reclaim: the dead party, how much it left, how it died, what was freed. And closing elsewhere.
#include <algorithm>

#include "base/sys_process.hpp"
#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using shmb::daemon::Config;

namespace {

std::vector<std::string> reclaims(const World& world) {
  std::vector<std::string> out;
  std::ranges::copy_if(world.log, std::back_inserter(out),
                       [](const std::string& line) { return line.starts_with("reclaim"); });
  return out;
}
}  // namespace

TEST_CASE("one line and one event: the dead party, how much, how") {
  World world;
  Client watcher = world.client(1000), other = world.client(2000), admin = world.admin();
  auto group = watcher.make_group({.name = "train"}).fixed<shmbw_group_create_reply>().group;
  watcher.watch_reclaims();
  watcher.watch_reclaims(group + 1);  // of another group
  other.watch_reclaims();
  admin.watch_reclaims();
  Client victim = world.client(1000, 4242);
  victim.join("train");
  victim.create({.name = "a", .length = 2 * kMiB});
  victim.create({.length = 2 * kMiB});
  victim.create({.length = 4096});
  victim.die();
  auto lines = reclaims(world);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == "reclaim: uid 1000 pid 4242 group train: 3 regions, 4.0 MiB freed; killed by SIGKILL");
  REQUIRE(watcher.link().events.size() == 1);
  auto event = watcher.link().events[0].fixed<shmbw_reclaim_event>();
  CHECK(event.uid == 1000);
  CHECK(event.pid == 4242);
  CHECK(event.group == group);
  CHECK(event.regions == 3);
  CHECK(event.bytes == 4 * kMiB + 4096);
  CHECK(event.how == SHMBW_DEATH_KILLED);
  CHECK(event.code == 9);
  CHECK(*wire::TextReader(watcher.link().events[0].view().rest).take(event.text_len) == lines[0]);
  CHECK(other.link().events.empty());
  CHECK(admin.link().events.size() == 1);
  auto status = watcher.status();
  CHECK(status.reclaims == 1);
  CHECK(status.bytes_reclaimed == 4 * kMiB + 4096);
}

TEST_CASE("memory is free at the end of the file; the line waits for how the process died, for a second at most") {
  World world;
  Client asker = world.client(1000);
  auto start = [&] {
    Client client = world.client(1000);
    client.create();
    client.end_of_file();
    CHECK(asker.status().regions == 0);
    CHECK(world.books->wants_exit(*client.session()));
    return client;
  };
  SUBCASE("exit status comes later") {
    Client client = start();
    CHECK(reclaims(world).empty());
    world.advance(kSecond / 10);
    client.pidfd(sys::ExitInfo{false, 3, false});
    REQUIRE(reclaims(world).size() == 1);
    CHECK(reclaims(world)[0].ends_with("1 region, 4.0 KiB freed; exited with status 3"));
    CHECK(!world.books->wants_exit(*client.session()));
    client.forget();
  }
  SUBCASE("it does not come in time") {
    Client client = start();
    world.advance(kSecond - 1);
    CHECK(reclaims(world).empty());
    world.advance(1);
    REQUIRE(reclaims(world).size() == 1);
    CHECK(reclaims(world)[0].ends_with("exit unknown"));
    client.pidfd();
    client.forget();
    CHECK(reclaims(world).size() == 1);
  }
  SUBCASE("the transport forgets first") {
    Client client = start();
    client.forget();
    world.advance(kSecond);
    CHECK(reclaims(world).size() == 1);
  }
  SUBCASE("it has not ended") {
    Client client = start();
    world.books->process_lives(*client.session());
    CHECK(
        reclaims(world).at(0).ends_with("1 region, 4.0 KiB freed; it still runs, and has only closed its connection"));
    CHECK(!world.books->wants_exit(*client.session()));
    client.forget();
    world.advance(kSecond);
    CHECK(reclaims(world).size() == 1);
  }
  SUBCASE("the kernel does not tell") {
    Client client = start();
    client.pidfd(std::nullopt);
    CHECK(reclaims(world).at(0).ends_with("exit unknown"));
    client.forget();
  }
  SUBCASE("with a core") {
    Client client = start();
    client.pidfd(sys::ExitInfo{true, 11, true});
    CHECK(reclaims(world).at(0).ends_with("killed by SIGSEGV (core dumped)"));
    client.forget();
  }
}

TEST_CASE("an orderly goodbye leaves no line") {
  World world;
  Client client = world.client(1000);
  Created created = client.create();
  client.release(created.ref());
  client.end_of_file();
  CHECK(!world.books->wants_exit(*client.session()));
  client.forget();
  world.advance(10 * kSecond);
  CHECK(reclaims(world).empty());
}

TEST_CASE("the log says of leases given back that they freed nothing") {
  World world;
  Client holder = world.client(1000), victim = world.client(1000);
  Created created = holder.create();
  victim.attach_id(created.ref(), kWrite);
  victim.die();
  REQUIRE(reclaims(world).size() == 1);
  CHECK(reclaims(world)[0].find("1 lease given back, nothing freed (others hold it)") != std::string::npos);
}

TEST_CASE("a lazy reader's end says that it was disconnected") {
  World world;
  Client victim = world.client(1000);
  victim.create();
  victim.disconnect();
  victim.pidfd();
  victim.forget();
  REQUIRE(reclaims(world).size() == 1);
  CHECK(reclaims(world)[0].ends_with("disconnected for not reading; killed by SIGKILL"));
}

TEST_CASE("large regions are closed on the helper thread and charged until that has returned") {
  World world;
  Client asker = world.client(1000);
  const auto alone = asker.status();
  Client client = world.client(1000);
  client.make_group({.name = "g"});
  client.join("g");
  auto all = client.create_many(std::vector<CreateRequest>(8, CreateRequest{.length = 64 * kMiB}));
  Created small = client.create({.length = 64 * kMiB - 4096});
  CHECK(small.reply.bytes == 64 * kMiB);  // rounded to huge pages: the same class
  client.die();
  auto status = asker.status();
  CHECK(status.regions == 0);
  CHECK(status.bytes == 9 * 64 * kMiB);  // woken() has not run
  auto rows = asker.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS);
  REQUIRE(rows.size() == 9);
  for (const auto& row : rows) {
    CHECK(row.state == SHMBW_REGION_STATE_FREEING);
    CHECK(asker.attach_id(row.region, kWrite).status == Status::not_found);
  }
  CHECK(!world.books->idle());
  world.wait_for_closes();
  CHECK(asker.status().bytes == 0);
  CHECK(asker.status().groups == 0);
  CHECK(asker.status().descriptors == alone.descriptors);
}

// The leak guard compares descriptors and threads before and after: the end of the world waits for its helper thread.
TEST_CASE("a world that ends while large regions are being closed ends cleanly") {
  World world;
  world.check_at_end = false;
  Client client = world.client(1000);
  client.create_many(std::vector<CreateRequest>(20, CreateRequest{.length = 64 * kMiB}));
  client.die();
}

TEST_CASE("many small regions that one death frees do not keep the broker longer than a large one") {
  World world;
  Client asker = world.client(1000), client = world.client(1000);
  client.create_many(std::vector<CreateRequest>(100, CreateRequest{.length = 4 * kMiB}));
  client.die();
  std::size_t elsewhere = asker.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).size();
  CHECK(elsewhere == 100 - 4);  // the first few are closed here
  CHECK(asker.status().bytes == elsewhere * 4 * kMiB);
  world.wait_for_closes();
  CHECK(asker.status().bytes == 0);
}
