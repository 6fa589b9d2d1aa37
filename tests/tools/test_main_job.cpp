// SPDX-License-Identifier: Apache-2.0
// The parts of the main job (examples/main_job) keep their promises here too, and notice when one is broken.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/tools/world.hpp"

using shmb::test::Ended;
using shmb::test::has;
using shmb::test::World;

namespace {

const std::string kGroup = "shell-" + std::to_string(::geteuid());

}  // namespace

TEST_CASE("five processes in three groups compute the checksum that sha256sum computes, and a wrong one is noticed") {
  World world;
  const std::string file = world.file("data", std::string(3'000'000, 'd'));
  REQUIRE(world.tool({"put", file, "--name", "data"}).status == 0);
  const std::string expected = world.run("/usr/bin/sha256sum", {file}).out.substr(0, 64);
  CHECK(world.run(SHMB_TEST_MAIN_JOB, {"checksum", kGroup + "/data", expected}).status == 0);
  const Ended wrong = world.run(SHMB_TEST_MAIN_JOB, {"checksum", kGroup + "/data", std::string(64, '0')});
  CHECK(wrong.status == 1);
  CHECK(has(wrong.err, expected));
  CHECK(world.tool({"release", "data"}).status == 0);
}

TEST_CASE("the exchange survives a reader, then its writer, and leaves nothing") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);  // starts the broker
  const Ended ended = world.run(SHMB_TEST_MAIN_JOB, {"exchange"});
  CHECK(ended.status == 0);
  CHECK(has(ended.out, "read on"));
  CHECK(world.empties());
}

TEST_CASE("a reader of the same user finds every way to write closed") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  const Ended ended = world.run(SHMB_TEST_MAIN_JOB, {"read-only", world.socket()});
  CHECK(ended.status == 0);
  CHECK(has(ended.out, "all refused"));
  CHECK(has(ended.out, "content unchanged"));
}

TEST_CASE("a create over the group's limit is refused, one within it is not") {
  World world;
  const Ended over = world.tool({"run", "--name", "small", "--limit", "8M", "--", SHMB_TEST_MAIN_JOB, "create", "16"});
  CHECK(over.status == 4);
  CHECK(has(over.out, "small"));
  CHECK(has(over.out, "8.0 MiB"));
  CHECK(world.tool({"run", "--limit", "8M", "--", SHMB_TEST_MAIN_JOB, "create", "4"}).status == 0);
}

TEST_CASE("run waits for the daemon that its command left, and --kill-rest does not") {
  World world;
  const std::string pid_file = world.directory() + "/pid";
  const Ended ended = world.tool({"run", "--kill-rest=1s", "--", SHMB_TEST_MAIN_JOB, "daemon", pid_file});
  CHECK(ended.status == 0);
  CHECK(has(ended.err, "ending"));
  pid_t daemon = 0;
  std::ifstream(pid_file) >> daemon;
  REQUIRE(daemon > 0);
  CHECK(::kill(daemon, 0) != 0);
  CHECK(world.empties());
}
