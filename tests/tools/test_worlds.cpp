// SPDX-License-Identifier: Apache-2.0
// The output of list and status about worlds and their references, against the facts that the workers know.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "client/calls/remote_calls.hpp"
#include "tests/support/session.hpp"
#include "tests/tools/world.hpp"
#include "tools/world_view.hpp"

namespace {

using shmb::client::Deadline;
using shmb::test::Ended;
using shmb::test::has;
using shmb::test::World;
using shmb::tools::Json;
using support::must;

std::shared_ptr<shmb::client::Session> worker(const std::string& socket, std::uint32_t rank, std::uint32_t size,
                                              const std::string& name) {
  auto session = must(support::try_open(socket));
  must(join_world(*session, {29500, rank, size, "localhost:29500", name}, Deadline::after(0)));
  return session;
}

Json listed(World& world, const std::string& verb) {
  const Ended ended = world.tool({verb, "--json"});
  CHECK(ended.err == "");
  REQUIRE(ended.status == 0);
  return Json::parse(ended.out);
}

shmb::client::ReferenceRow row(std::uint32_t owner, std::uint64_t users, std::uint64_t world = 1) {
  shmb::client::ReferenceRow out;
  out.record.world = world;
  out.record.owner = owner;
  out.record.user_ranks = users;
  out.record.state = SHMBW_REF_STATE_READY;
  return out;
}

}  // namespace

TEST_CASE("owners that hold each other's references in a ring are found, chains and owners' own holds are not") {
  using shmb::tools::in_cycles;
  using Rings = std::vector<bool>;
  CHECK(in_cycles({}).empty());
  CHECK(in_cycles({row(0, 0b10), row(1, 0b01)}) == Rings{true, true});
  CHECK(in_cycles({row(0, 0b10), row(1, 0b100)}) == Rings{false, false});
  CHECK(in_cycles({row(0, 0b01)}) == Rings{false});
  CHECK(in_cycles({row(0, 0b10), row(1, 0b100), row(2, 0b001), row(2, 0b1000)}) == Rings{true, true, true, false});
  CHECK(in_cycles({row(0, 0b10, 1), row(1, 0b01, 2)}) == Rings{false, false});  // of two worlds
  CHECK(in_cycles({row(70, 0b10), row(63, std::uint64_t{1} << 62), row(62, std::uint64_t{1} << 63)}) ==
        Rings{false, true, true});
}

TEST_CASE("the table of worlds says how many workers have died, and how many of them have a successor") {
  shmb::tools::Worlds books;
  books.worlds.rows.resize(1);
  shmbw_world_record& record = books.worlds.rows[0].record;
  record.world_size = record.present = 4;
  record.flags = SHMBW_WORLD_STATE_COMPLETE;
  CHECK(!has(world_table(books).text({}), "replaced"));
  record.replaced = 2;
  record.died = 1;
  CHECK(has(world_table(books).text({}), "complete, 1 died, 2 replaced"));
  CHECK(world_json(books)[0]["replaced"] == 2);
}

TEST_CASE("worlds, their workers and references are listed, and cycles among owners are named") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  for (const char* flag : {"--worlds", "--refs"}) CHECK(std::ranges::count(world.tool({"list", flag}).out, '\n') == 2);
  {
    const auto a = worker(world.socket(), 0, 3, "trainer");
    CHECK(has(world.tool({"list"}).out, "waiting for workers"));
    const auto b = worker(world.socket(), 1, 3, "evaluator"), c = worker(world.socket(), 2, 3, "third");
    const auto in_time = Deadline::after(0);
    must(create_reference(*a, 0, {.owner = 1}, in_time));
    must(create_reference(*b, 0, {.owner = 0}, in_time));
    const auto failed = must(create_reference(*c, 0, {.owner = 0}, in_time));
    must(settle_reference(*a, 0, failed.reference, SHMBW_REF_STATE_FAILED, "ValueError: \x1b[31mno", in_time));

    const std::string refs = world.tool({"list", "--refs"}).out, worlds = world.tool({"list", "--worlds"}).out;
    CHECK(has(refs, "3 references"));
    CHECK(has(refs, "1 evaluator"));
    CHECK(has(refs, "registered, in a cycle"));
    CHECK(has(refs, "failed: ValueError"));
    CHECK(refs.find('\x1b') == std::string::npos);
    CHECK(has(worlds, "localhost:29500"));
    CHECK(has(worlds, "trainer"));
    CHECK(has(worlds, "complete"));
    CHECK(has(world.tool({"list", "--refs", "-q"}).out, " 2:1\n"));
    CHECK(has(world.tool({"status"}).out, "1 world, 3 workers, 3 references"));

    const Json json = listed(world, "list");
    CHECK(json["totals"]["references"] == 3);
    REQUIRE(json["worlds"].size() == 1);
    CHECK(json["worlds"][0]["workers"][2]["name"] == "third");
    std::size_t rings = 0;
    for (const Json& reference : json["worlds"][0]["references"]) rings += reference["in_cycle"] == true;
    CHECK(rings == 2);
    CHECK(listed(world, "status")["visible"]["workers"] == 3);
  }
  CHECK(shmb::test::eventually([&] { return listed(world, "list")["worlds"].empty(); }));
  CHECK(world.tool({"list", "--worlds", "--refs"}).status == 2);
  CHECK(world.tool({"list", "--pools", "--refs"}).status == 2);
}
