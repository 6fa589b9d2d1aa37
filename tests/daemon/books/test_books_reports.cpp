// SPDX-License-Identifier: Apache-2.0
// The tables of what has happened: reports of reclaims, and refusals by limit.
#include <algorithm>

#include "base/sys_process.hpp"
#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using shmb::daemon::Config;

namespace {

// A process of that user comes, makes a region and is killed.
void live_and_die(World& world, std::uint32_t uid, std::string_view group = {}) {
  Client client = world.client(uid);
  if (!group.empty()) {
    client.make_group({.name = std::string(group)});
    client.join(group);
  }
  client.create({.length = 8192});
  client.die();
}

std::vector<shmbw_report_record> reports(Client& client, shmbw_list wish = {}) {
  return client.rows<shmbw_report_record>(SHMBW_TABLE_REPORTS, wish);
}

struct Texts {
  std::string group, library, ending;
};
Texts first_texts(Client& client, std::string_view group = {}) {
  shmbw_list wish{};
  wish.table = SHMBW_TABLE_REPORTS;
  Packet& page = client.list(wish, group);
  const auto reply = page.fixed<shmbw_list_reply>();
  if (reply.count == 0) return {};
  wire::RecordReader reader(page.view().rest, reply.element_size);
  const auto record = reader.next<shmbw_report_record>();
  REQUIRE(record);
  Texts texts;
  texts.group = *reader.text(record->group_len);
  texts.library = *reader.text(record->library_len);
  texts.ending = *reader.text(record->ending_len);
  return texts;
}

}  // namespace

TEST_CASE("a report stays after its event: what ended, how, what was freed, also when its group has ended") {
  World world;
  Client asker = world.client(1000);
  CHECK(reports(asker).empty());
  world.advance(kSecond);
  const std::int64_t when = world.now;
  live_and_die(world, 1000, "train");
  const auto all = reports(asker);
  REQUIRE(all.size() == 1);
  CHECK(all[0].uid == 1000);
  CHECK(all[0].pid != 0);
  CHECK(all[0].group != 0);
  CHECK(all[0].regions == 1);
  CHECK(all[0].leases == 1);
  CHECK(all[0].bytes == 8192);
  CHECK(all[0].how == SHMBW_DEATH_KILLED);
  CHECK(all[0].code == 9);
  CHECK(all[0].when == when);
  const Texts texts = first_texts(asker);
  CHECK(texts.group == "train");
  CHECK(!texts.library.empty());
  CHECK(texts.ending == "killed by SIGKILL");
  CHECK(first_texts(asker, "train").group == "train");
  CHECK(first_texts(asker, "other").group.empty());
  shmbw_list by_id{};
  by_id.group = all[0].group;
  CHECK(reports(asker, by_id).size() == 1);
  ++by_id.group;
  CHECK(reports(asker, by_id).empty());
}

TEST_CASE("a user sees the reports of its own processes, an administrator those of all") {
  World world;
  Client one = world.client(1000), two = world.client(2000), admin = world.admin();
  live_and_die(world, 1000);
  live_and_die(world, 1000);
  live_and_die(world, 2000);
  CHECK(reports(one).size() == 2);
  CHECK(reports(two).size() == 1);
  CHECK(reports(admin).size() == 3);
  shmbw_list of_two{};
  of_two.flags = SHMBW_LIST_OWNER_GIVEN;
  of_two.owner_uid = 2000;
  CHECK(reports(admin, of_two).size() == 1);
  CHECK(reports(one, of_two).empty());
}

TEST_CASE("the last 1,000 reports are kept, and a user with many pushes out its own") {
  World world;
  Client few = world.client(1000), many = world.client(2000), admin = world.admin();
  live_and_die(world, 1000);
  for (int i = 0; i < 1200; ++i) live_and_die(world, 2000);
  live_and_die(world, 1000);
  CHECK(reports(few).size() == 2);
  const auto left = reports(many);
  REQUIRE(left.size() == 998);
  CHECK(std::ranges::is_sorted(left, {}, &shmbw_report_record::report));
  CHECK(left.back().report == 1201);
  CHECK(left.front().report > 200);
  CHECK(reports(admin).size() == 1000);
}

TEST_CASE("refusals are counted by limit and scope, those in batches too") {
  Config config = system_config();
  config.limits.uid[1000].regions = 2;
  World world(config);
  Client client = world.client(1000), other = world.client(2000);
  CHECK(client.rows<shmbw_refusal_record>(SHMBW_TABLE_REFUSALS).empty());
  CHECK(client.attach_name("none", "none").status == Status::not_found);  // by no limit
  client.create_many({{.name = "a"}, {.name = "b"}, {.name = "c"}, {.name = "d"}});
  CHECK(client.create().status == Status::limit);
  const auto rows = other.rows<shmbw_refusal_record>(SHMBW_TABLE_REFUSALS);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].slot == SHMBW_SLOT_REGIONS);
  CHECK(rows[0].scope == SHMBW_SCOPE_UID);
  CHECK(rows[0].count == 3);
  CHECK(client.status().refusals == 4);
}
