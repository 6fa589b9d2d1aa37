// SPDX-License-Identifier: Apache-2.0
// `shmbroker limit`: the limit of a live group changes, nothing of it is freed, and what it refuses is refused in
// words.
#include <nlohmann/json.hpp>
#include <string>

#include "tests/tools/world.hpp"

using shmb::test::Ended;
using shmb::test::has;
using shmb::test::World;

TEST_CASE("limit below what a group uses frees nothing and refuses new regions until it is raised again") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", std::string(8192, 'x')), "--name", "a", "--group", "g"}).status == 0);
  const Ended lowered = world.tool({"limit", "g", "4K"});
  CHECK(lowered.status == 0);
  CHECK_MESSAGE(has(lowered.out, "group g: 4.0 KiB, before "), lowered.out);
  CHECK_MESSAGE(has(lowered.out, "; uses 8.0 KiB; it gets no new region until it uses less"), lowered.out);
  CHECK(world.tool({"cat", "g/a"}).out == std::string(8192, 'x'));
  const Ended refused = world.tool({"put", world.file("b", "b"), "--name", "b", "--group", "g"});
  CHECK(refused.status == 4);
  CHECK_MESSAGE(has(refused.err, "raise the group's limit: `shmbroker limit g 12K` or more"), refused.err);
  const auto raised = nlohmann::json::parse(world.tool({"limit", "g", "1M", "--json"}).out);
  CHECK(raised["schema"] == "shmbroker.limit/1");
  CHECK(raised["group"] == "g");
  CHECK(raised["limit_bytes"] == 1 << 20);
  CHECK(raised["limit_bytes_before"] == 4096);
  CHECK(raised["used_bytes"] == 8192);
  CHECK(world.tool({"put", world.file("b", "b"), "--name", "b", "--group", "g"}).status == 0);
  CHECK(nlohmann::json::parse(world.tool({"limit", "g", "default", "--json"}).out)["limit_bytes_before"] == 1 << 20);
  CHECK(world.tool({"release", "--group", "g"}).status == 0);
  CHECK(world.empties());
}

TEST_CASE("limit refuses what is no size, no group and no words at all") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "a", "--group", "g"}).status == 0);
  for (const char* size : {"0", "-1", "much", "5Q", ""}) {
    const Ended refused = world.tool({"limit", "g", size});
    CHECK_MESSAGE(refused.status == 2, size);
    CHECK_MESSAGE(has(refused.err, "is no size"), refused.err);
  }
  CHECK(world.tool({"limit", "g"}).status == 2);
  CHECK(world.tool({"limit", "g/a", "1M"}).status == 2);
  const Ended none = world.tool({"limit", "no-such-group", "1M"});
  CHECK(none.status == 5);
  CHECK_MESSAGE(has(none.err, "no-such-group"), none.err);
  CHECK(world.tool({"release", "--group", "g"}).status == 0);
  CHECK(world.empties());
}
