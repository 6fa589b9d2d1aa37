// SPDX-License-Identifier: Apache-2.0
// `shmbroker events` and `shmbroker watch`: what has happened, and what happens.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "client/face/shmbroker.hpp"
#include "tests/harness/child.hpp"
#include "tests/tools/world.hpp"

using harness::Child;
using shmb::test::Ended;
using shmb::test::eventually;
using shmb::test::has;
using shmb::test::World;

namespace {

using Words = std::vector<std::string>;

// A process joins the group, makes a region of 8 KiB and is killed.
pid_t live_and_die(World& world, const std::string& group) {
  Child child = Child::run([&, socket = world.socket()] {
    const auto session = shmbroker::Session::connect({.socket = socket, .program = "victim"});
    session.join(session.create_group({.name = group, .adopt_existing = true}).token);
    const auto region = session.create(8192);
    return ::kill(::getpid(), SIGKILL);
  });
  const pid_t pid = child.pid();
  CHECK(child.wait() == 128 + SIGKILL);
  return pid;
}

nlohmann::json events(World& world, Words more = {}) {
  Words words{"events", "--json"};
  words.insert(words.end(), more.begin(), more.end());
  const Ended ended = world.tool(words);
  REQUIRE_MESSAGE(ended.status == 0, ended.err);
  return nlohmann::json::parse(ended.out)["events"];
}

std::uint64_t watches(World& world) {
  return nlohmann::json::parse(world.tool({"status", "--json"}).out)["broker"]["watches"].get<std::uint64_t>();
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// `watch`, begun and with all of its subscriptions.
class Watching {
 public:
  Watching(World& world, Words words, std::uint64_t subscriptions) : out_(world.directory() + "/watched") {
    words.insert(words.begin(), {"watch", "--jsonl"});
    pid_ = world.start_tool(words, out_);
    CHECK(eventually([&] { return watches(world) == subscriptions; }));
  }
  ~Watching() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  int status() {
    int status = -1;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> all;
    for (const std::string& line : lines_of(out_)) all.push_back(nlohmann::json::parse(line));
    return all;
  }

 private:
  std::string out_;
  pid_t pid_;
};

}  // namespace

TEST_CASE("events shows which process ended, how, and what was freed, also of a group that is gone") {
  World world;
  CHECK(world.tool({"events"}).status == 3);
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "a", "--group", "g"}).status == 0);
  CHECK(world.tool({"events"}).out == "no events\n");
  CHECK(events(world).empty());
  REQUIRE(world.tool({"release", "--group", "g"}).status == 0);
  REQUIRE(world.tool({"run", "--name", "job", "true"}).status == 0);
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "a", "--group", "g"}).status == 0);
  const pid_t pid = live_and_die(world, "g");
  REQUIRE(eventually([&] { return !events(world).empty(); }));
  REQUIRE(world.tool({"release", "--group", "g"}).status == 0);
  const auto all = events(world);
  REQUIRE(all.size() == 1);
  CHECK(all[0]["pid"] == pid);
  CHECK(all[0]["program"] == "victim");
  CHECK(all[0]["group"] == "g");
  CHECK(all[0]["freed_bytes"] == 8192);
  CHECK(all[0]["regions"] == 1);
  CHECK((all[0]["how"] == "killed" || all[0]["how"] == "unknown"));  // unknown before Linux 6.15, without /proc
  CHECK(events(world, {"--group", "g"}).size() == 1);
  CHECK(events(world, {"--group", "h"}).empty());
  const Ended table = world.tool({"events"});
  CHECK_MESSAGE(has(table.out, "victim"), table.out);
  CHECK_MESSAGE(has(table.out, "8.0 KiB"), table.out);
  CHECK_MESSAGE(has(table.out, all[0]["ending"].get<std::string>()), table.out);
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "a", "--group", "g"}).status == 0);
  const pid_t second = live_and_die(world, "g");
  REQUIRE(eventually([&] { return events(world).size() == 2; }));
  CHECK(events(world, {"-n", "1"})[0]["pid"] == second);
  REQUIRE(world.tool({"release", "--group", "g"}).status == 0);
  CHECK(world.empties());
}

TEST_CASE("watch tells of a process that ends, and with a group also of the group's end, with which it ends") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "a", "--group", "g"}).status == 0);
  Watching own(world, {"-n", "1"}, 1);
  const pid_t pid = live_and_die(world, "g");
  CHECK(own.status() == 0);
  REQUIRE(own.lines().size() == 1);
  CHECK(own.lines()[0]["schema"] == "shmbroker.watch/1");
  CHECK(own.lines()[0]["event"] == "reclaim");
  CHECK(own.lines()[0]["pid"] == pid);
  CHECK(own.lines()[0]["freed_bytes"] == 8192);

  // The group has ended with its last process, and keeps its region.
  Watching over(world, {"--group", "g"}, 0);
  CHECK(over.status() == 0);
  REQUIRE(over.lines().size() == 1);
  CHECK(over.lines()[0]["event"] == "ended");
  REQUIRE(world.tool({"release", "--group", "g"}).status == 0);
  const Ended none = world.tool({"watch", "--group", "g"});
  CHECK(none.status == 5);
  CHECK_MESSAGE(has(none.err, "g"), none.err);
  CHECK(world.empties());
}

TEST_CASE("watch follows a name from region to region, also before there is one") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "other", "--group", "g"}).status == 0);
  Watching name(world, {"g/a", "-n", "5"}, 1);
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "a", "--group", "g"}).status == 0);
  REQUIRE(eventually([&] { return name.lines().size() >= 1; }));
  REQUIRE(world.tool({"release", "g/a"}).status == 0);
  REQUIRE(eventually([&] { return !name.lines().empty() && name.lines().back()["event"] == "gone"; }));
  const std::string first = name.lines().back()["region"];
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "a", "--group", "g"}).status == 0);
  REQUIRE(eventually([&] { return name.lines().back()["region"] != first; }));
  while (name.lines().size() < 5) {
    (void)world.tool({"release", "g/a"});
    REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "a", "--group", "g"}).status == 0);
  }
  CHECK(name.status() == 0);
  const auto lines = name.lines();
  REQUIRE(lines.size() == 5);
  CHECK(lines[0]["event"] == "appeared");
  for (const auto& line : lines) CHECK(line["address"] == "g/a");
  const Ended seen = world.tool({"watch", "g/other", "-n", "1"});
  CHECK(seen.status == 0);
  CHECK_MESSAGE(has(seen.out, "present: g/other @"), seen.out);
  CHECK(world.tool({"watch", "g//x"}).status == 2);
  CHECK(world.tool({"watch", "@99999"}).status == 5);
  REQUIRE(world.tool({"release", "--group", "g"}).status == 0);
  CHECK(world.empties());
}
