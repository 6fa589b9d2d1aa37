// SPDX-License-Identifier: Apache-2.0
// The output of list, inspect and status about pools and queues, against the facts that their users know.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "client/face/shmbroker_pool.hpp"
#include "tests/tools/world.hpp"
#include "tools/report_json.hpp"

using shmb::test::Ended;
using shmb::test::eventually;
using shmb::test::has;
using shmb::test::World;

namespace {

using Words = std::vector<std::string>;
using shmb::tools::Json;

struct Studio {
  shmbroker::Session session;
  shmbroker::Pool pool;
};

// A pool of 4 slots, at most 8, in group `cam`; made or joined.
Studio enter(const std::string& socket, const std::string& program) {
  auto session = shmbroker::Session::connect({.socket = socket, .program = program});
  session.join(session.create_group({.name = "cam", .adopt_existing = true}).token);
  auto pool = shmbroker::Pool::try_open(session, "frames");
  if (!pool) pool = shmbroker::Pool::try_create(session, {.name = "frames", .classes = {{4096, 4, 8}}});
  return {std::move(session), std::move(pool).value()};
}

Json tell(World& world, Words words) {
  words.emplace_back("--json");
  const Ended ended = world.tool(words);
  CHECK(ended.err == "");
  REQUIRE(ended.status == 0);
  return Json::parse(ended.out);
}

}  // namespace

TEST_CASE("without pools there are empty arrays, no tables, and nothing to inspect") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  const Json list = tell(world, {"list"});
  CHECK(list["pools"].empty());
  CHECK(list["queues"].empty());
  CHECK(list["totals"]["pools"] == 0);
  for (const Words& words : {Words{"list"}, {"list", "--pools"}, {"list", "--queues"}}) {
    const Ended ended = world.tool(words);
    CHECK(ended.status == 0);
    CHECK(std::ranges::count(ended.out, '\n') == static_cast<std::ptrdiff_t>(words.size()));
    CHECK_FALSE(has(ended.out, "POOL"));
  }
  CHECK(world.tool({"list", "--pools", "-q"}).out.empty());
  for (const char* address : {"cam/frames", "frames", "@1", "cam/frames:left", "@1:left"}) {
    CHECK(world.tool({"inspect", address}).status == 5);
    CHECK(world.tool({"inspect", "--pool", address}).status == 5);
  }
  CHECK(has(world.tool({"inspect", "cam/frames"}).err, "no region and no pool 'frames' in group 'cam'"));
  CHECK(has(world.tool({"inspect", "cam/frames", "--pool"}).err, "no pool 'frames' in group 'cam'"));
  CHECK(tell(world, {"status"})["visible"]["pools"] == 0);
}

TEST_CASE("a wrong queue name, and two tables at once, are usage errors") {
  World world;
  for (const Words& words : {Words{"inspect", "cam/frames:"},
                             {"inspect", "cam/frames:a b"},
                             {"inspect", "cam/frames:a:b"},
                             {"inspect", "cam/frames:\x1b[31m"},
                             {"inspect", ":left"},
                             {"inspect", "@x:left"},
                             {"list", "--pools", "--queues"},
                             {"list", "--groups", "--pools"},
                             {"list", "--groups", "--queues"}}) {
    const Ended ended = world.tool(words);
    CHECK(ended.status == 2);
    CHECK_FALSE(ended.err.empty());
    CHECK(ended.err.find('\x1b') == std::string::npos);
  }
  CHECK(::access(world.socket().c_str(), F_OK) != 0);
}

TEST_CASE("slots, messages and ends are shown as their users have them") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  {
    const Studio studio = enter(world.socket(), "\x1b[2Jcamera");
    const auto jobs = studio.pool.open_queue("jobs", shmbroker::Role::both,
                                             {.kind = shmbroker::QueueKind::mpmc, .cells = 8, .at_least_once = true});
    const auto left = studio.pool.open_queue(
        "left", shmbroker::Role::writer, {.kind = shmbroker::QueueKind::broadcast, .cells = 4, .drop_oldest = true});
    const auto first = studio.pool.acquire(100), second = studio.pool.acquire(100);
    for (int i = 0; i < 3; ++i) jobs.send("job");

    const Json list = tell(world, {"list"});
    CHECK(list["totals"]["pools"] == 1);
    CHECK(list["totals"]["queues"] == 2);
    REQUIRE(list["pools"].size() == 1);
    const Json& pool = list["pools"][0];
    CHECK(pool["address"] == "cam/frames");
    REQUIRE(list["regions"].size() == 1);
    CHECK(list["regions"][0]["pool"] == pool["id"]);
    CHECK(has(world.tool({"list"}).out, "slots of cam/frames"));
    CHECK(has(world.tool({"inspect", list["regions"][0]["id"]}).out, "slots of cam/frames"));
    const Json processes = tell(world, {"list", "--processes"})["processes"];
    REQUIRE(processes.size() == 1);
    CHECK(processes[0]["pools"] == 1);
    CHECK(processes[0]["bytes"] == pool["bytes"]);  // its slots counted once
    CHECK(pool["slots"] == 4);
    CHECK(pool["slots_limit"] == 8);
    CHECK(pool["slots_used"] == 2);
    CHECK(pool["slots_high"] >= 2);
    CHECK(pool["participants"] == 1);
    CHECK(pool["queues"] == 2);
    CHECK(pool["deaths"] == 0);
    CHECK(pool["bytes"] > pool["control_bytes"]);
    CHECK(pool["broken"] == false);
    REQUIRE(list["queues"].size() == 2);
    const Json& claim = list["queues"][0];
    CHECK(claim["address"] == "cam/frames:jobs");
    CHECK(claim["kind"] == "mpmc");
    CHECK(claim["at_least_once"] == true);
    CHECK(claim["depth"] == 3);
    CHECK(claim["cells"] == 8);
    CHECK(claim["readers"] == 1);
    CHECK(claim["writers"] == 1);
    const Json& ring = list["queues"][1];
    CHECK(ring["address"] == "cam/frames:left");
    CHECK(ring["kind"] == "broadcast");
    CHECK(ring["drop_oldest"] == true);
    CHECK(ring["readers"] == 0);

    const Json inspected = tell(world, {"inspect", "cam/frames"});
    CHECK(inspected["schema"] == "shmbroker.inspect-pool/1");
    CHECK(inspected["pool"] == pool);
    CHECK(inspected["queues"] == list["queues"]);
    REQUIRE(inspected["participants"].size() == 1);
    const Json& me = inspected["participants"][0];
    CHECK(me["pid"] == ::getpid());
    CHECK(me["state"] == "live");
    CHECK(me["slots_held"] == 2);
    CHECK(me["reading"] == 1);
    CHECK(me["writing"] == 2);
    CHECK(me["unread"] == 3);
    const Json queue = tell(world, {"inspect", "cam/frames:jobs"});
    CHECK(queue["schema"] == "shmbroker.inspect-queue/1");
    CHECK(queue["queue"] == claim);
    CHECK(queue["pool"] == pool);
    CHECK(tell(world, {"inspect", pool["id"].get<std::string>()}) == inspected);
    CHECK(tell(world, {"inspect", pool["id"].get<std::string>() + ":jobs"}) == queue);
    CHECK(world.tool({"inspect", "cam/frames:nothing"}).status == 5);
    const Json visible = tell(world, {"status"})["visible"];
    CHECK(visible["pools"] == 1);
    CHECK(visible["queues"] == 2);
    CHECK(visible["participants"] == 1);

    for (const Words& words : {Words{"list"}, {"inspect", "cam/frames"}}) {
      const Ended ended = world.tool(words);
      CHECK(has(ended.out, "cam/frames"));
      CHECK(has(ended.out, "cam/frames:jobs"));
      CHECK(ended.out.find('\x1b') == std::string::npos);
    }
    const std::string pools = world.tool({"list", "--pools"}).out, queues = world.tool({"list", "--queues"}).out;
    CHECK((has(pools, "PARTICIPANTS") && !has(pools, "KIND") && !has(pools, "TOUCHED")));
    CHECK((has(queues, "KIND") && !has(queues, "PARTICIPANTS") && !has(queues, "TOUCHED")));
    CHECK(world.tool({"list", "--pools", "-q"}).out == pool["id"].get<std::string>() + "\n");
    CHECK(has(world.tool({"list", "--queues", "-q"}).out, pool["id"].get<std::string>() + ":jobs\n"));
    CHECK(has(world.tool({"inspect", "cam/frames:jobs"}).out, "mpmc, at-least-once"));
    const std::string of_group = world.tool({"list", "--group", "cam", "--pools"}).out;
    CHECK((has(of_group, "cam/frames") && has(of_group, "PARTICIPANTS") && !has(of_group, "KIND")));
    jobs.shutdown();
    CHECK(tell(world, {"inspect", "cam/frames:jobs"})["queue"]["closed"] == true);
  }
  CHECK(eventually([&] { return tell(world, {"list"})["pools"].empty(); }));
  CHECK(world.empties());
}

TEST_CASE("the lag of a broadcast's slowest reader, and what was overwritten before it came, are counted") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  {
    const Studio writer = enter(world.socket(), "writer"), reader = enter(world.socket(), "reader");
    const shmbroker::QueueOptions ring{.kind = shmbroker::QueueKind::broadcast, .cells = 4, .drop_oldest = true};
    const auto out = writer.pool.open_queue("ring", shmbroker::Role::writer, ring);
    const auto in = reader.pool.open_queue("ring", shmbroker::Role::reader, ring);
    for (int i = 0; i < 10; ++i) out.send("x");
    Json queue = tell(world, {"inspect", "cam/frames:ring"})["queue"];
    CHECK(queue["lag"] == 10);
    CHECK(queue["depth"] == 4);
    shmbroker::Message message;
    in.receive(message);
    queue = tell(world, {"inspect", "cam/frames:ring"})["queue"];
    CHECK(queue["lag"] == 3);
    CHECK(queue["lost"] == 6);
    CHECK(has(world.tool({"inspect", "cam/frames:ring"}).out, "3 behind; 6 overwritten"));
  }
  CHECK(world.empties());
}

TEST_CASE("a participant that died stays, as dead, until what it sent is read") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  const std::string socket = world.socket();
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const Studio studio = enter(socket, "doomed");
    const auto line = studio.pool.open_queue("line", shmbroker::Role::writer, {.kind = shmbroker::QueueKind::mpmc});
    for (int i = 0; i < 2; ++i) {
      auto slot = studio.pool.acquire(100);
      line.send(slot);
    }
    const auto held = studio.pool.acquire(100);
    if (::write(ready[1], "", 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte = 1;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  ::close(ready[0]);
  ::close(ready[1]);
  {
    const Studio studio = enter(socket, "survivor");
    const auto line = studio.pool.open_queue("line", shmbroker::Role::reader, {.kind = shmbroker::QueueKind::mpmc});
    CHECK(tell(world, {"list"})["pools"][0]["participants"] == 2);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto participant = [&](const char* state) -> Json {
      const Json inspected = tell(world, {"inspect", "cam/frames"});
      for (const Json& each : inspected["participants"])
        if (each["state"] == state) return each;
      return nullptr;
    };
    Json dead;
    CHECK(eventually([&] {
      dead = participant("dead");
      return !dead.is_null() && dead["slots_held"] == 2;  // what it held besides is free again
    }));
    CHECK(dead["pid"] == child);
    CHECK(dead["session"].is_null());
    CHECK(dead["unread"] == 2);
    const Json pool = tell(world, {"inspect", "cam/frames"})["pool"];
    CHECK(pool["leaving"] == 1);
    CHECK(pool["deaths"] == 1);
    CHECK(has(world.tool({"list"}).out, "1 leaving"));
    CHECK(tell(world, {"inspect", "cam/frames:line"})["queue"]["deaths"] == 1);

    shmbroker::Message message;
    for (int i = 0; i < 2; ++i) {
      line.receive(message);
      message.done();
    }
    CHECK(line.try_receive(message).error().status() == shmbroker::Status::peer_gone);
    CHECK(eventually([&] { return participant("dead").is_null(); }));
    CHECK(eventually([&] { return tell(world, {"inspect", "cam/frames"})["pool"]["slots_used"] == 0; }));
  }
  CHECK(world.empties());
}

TEST_CASE("a region and a pool of the same name are distinguished") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  {
    const Studio studio = enter(world.socket(), "both");
    const auto region = studio.session.create(4096, {.name = "frames"});
    CHECK(tell(world, {"inspect", "cam/frames"})["schema"] == "shmbroker.inspect/1");
    CHECK(tell(world, {"inspect", "cam/frames", "--pool"})["schema"] == "shmbroker.inspect-pool/1");
    CHECK(world.tool({"cat", "cam/frames"}).status != 5);  // the region
  }
  CHECK(world.empties());
}

TEST_CASE("release takes a pool's name away, and the pool goes with its last participant") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  const Studio studio = enter(world.socket(), "camera");
  const Json released = tell(world, {"release", "cam/frames"});
  CHECK(released["participants"] == 1);
  CHECK(world.tool({"inspect", "cam/frames"}).status == 5);
  const Ended again = world.tool({"release", "cam/frames"});
  CHECK(again.status != 0);
  CHECK(has(again.err, "no region and no pool"));
  (void)studio.pool.acquire(16);
}
