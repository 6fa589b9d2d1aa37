// SPDX-License-Identifier: Apache-2.0
// Every verb of the tool against a private broker that it finds or starts: what it prints, and every exit code.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "client/face/shmbroker.h"
#include "client/face/shmbroker.hpp"
#include "spawn/ranks/tree.hpp"
#include "tests/harness/child.hpp"
#include "tests/tools/world.hpp"

using shmb::test::Ended;
using shmb::test::eventually;
using shmb::test::has;
using shmb::test::World;

namespace {

using Words = std::vector<std::string>;

std::string bytes_of_every_kind(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 7 + i / 256);
  return text;
}

std::string own_group() { return "shell-" + std::to_string(::geteuid()); }

}  // namespace

TEST_CASE("put starts a broker, cat gives exactly the bytes back, release lets them go") {
  World world;
  for (std::size_t size : {0UL, 1UL, 4096UL, 5000UL, 3UL << 20}) {
    const std::string content = bytes_of_every_kind(size);
    const Ended put = world.tool({"put", world.file("data", content), "--name", "data"});
    REQUIRE(put.status == 0);
    CHECK(has(put.out, "shmbroker release " + own_group() + "/data"));
    CHECK(world.tool({"cat", "data"}).out == content);
    CHECK(world.tool({"cat", own_group() + "/data"}).out == content);
    CHECK(world.tool({"release", "data"}).status == 0);
    CHECK(world.tool({"cat", "data"}).status == 5);
  }
  CHECK(world.empties());
}

TEST_CASE("within run a bare name is in the run's group for every verb, and goes with it; --group wins") {
  World world;
  const std::string tool = SHMB_TEST_TOOL, data = world.file("data", "some bytes");
  const Ended inside = world.tool(
      {"run", "--name", "job", "--", "sh", "-c",
       tool + " put " + data + " --name n && " + tool + " cat n && " + tool + " cat job/n && " + tool + " list -q && " +
           tool + " release n && ! " + tool + " cat n && " + tool + " put " + data + " --name m && " + tool + " put " +
           data + " --name o --group " + own_group() + " && " + tool + " cat " + own_group() + "/o"});
  CAPTURE(inside.err);
  CHECK(inside.status == 0);
  CHECK(has(inside.out, "job/n: "));
  CHECK(has(inside.out, "some bytessome bytes@"));
  CHECK(has(inside.out, own_group() + "/o: "));
  CHECK(inside.out.ends_with("some bytes"));
  CHECK(world.tool({"cat", "m"}).status == 5);
  CHECK(world.tool({"cat", "job/m"}).status == 5);
  CHECK(world.tool({"cat", "o"}).out == "some bytes");
  CHECK(world.tool({"release", "o"}).status == 0);
  CHECK(world.empties());
}

TEST_CASE("status counts one of a kind as one") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "one"}).status == 0);
  const Ended status = world.tool({"status"});
  CHECK(has(status.out, "1 group, 1 region, 0 leases, 0 tickets, 1 session, 0 watches"));
  CHECK(has(status.out, "0 pools, 0 queues, 0 participants"));
  CHECK(has(status.out, "0 of 16384 that "));
  CHECK(has(status.out, " may have, 4096 for one session\n"));
  CHECK(world.tool({"release", "one"}).status == 0);
}

TEST_CASE("status --state shows each record of the books, and no secret") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "one"}).status == 0);
  const Ended state = world.tool({"status", "--state"});
  CHECK(state.status == 0);
  CHECK(state.out.starts_with("books 1.4 transaction="));
  CHECK(has(state.out, "\nregion id=1 group=1 length=1 bytes=4096 "));
  CHECK(has(state.out, "\nname id=1 group=1 text=\"one\"\n"));
  CHECK(has(state.out, " library=\"shmbroker "));
  CHECK_FALSE(has(state.out, "secret"));
  CHECK_FALSE(has(state.out, "problem: "));
  CHECK(world.tool({"release", "one"}).status == 0);
  CHECK_FALSE(has(world.tool({"status", "--state"}).out, "\nregion "));
}

TEST_CASE("status --state finds no fault in a session that a forked child holds after the end of its process") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "one"}).status == 0);
  harness::Gate finish;
  const pid_t parent = ::fork();
  if (parent == 0) {
    const auto session = shmbroker::Session::connect({.socket = world.socket()});
    if (::fork() != 0) ::_exit(0);
    finish.wait();  // this process holds the socket
    ::_exit(0);
  }
  int status = -1;
  CHECK(::waitpid(parent, &status, 0) == parent);
  CHECK(status == 0);
  const auto held = [&] { return has(world.tool({"status", "--state"}).out, " process_gone=1"); };
  CHECK(eventually(held));
  {
    // The broker gives the number of the descriptor that told of the end to the next one that connects.
    const auto next = shmbroker::Session::connect({.socket = world.socket()});
    const Ended state = world.tool({"status", "--state"});
    CHECK(state.status == 0);
    CHECK_FALSE(has(state.out, "problem: "));
  }
  finish.open();
  CHECK(eventually([&] { return !held(); }));
  CHECK(world.tool({"release", "one"}).status == 0);
}

TEST_CASE("list, inspect and status tell the same story as put") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", bytes_of_every_kind(5000)), "--name", "kv", "--keep", "10m"}).status == 0);
  const Ended list = world.tool({"list"});
  CHECK(list.status == 0);
  CHECK(list.out.starts_with("private broker"));
  CHECK(has(list.out, "1 region,"));
  CHECK(has(list.out, own_group()));
  CHECK(has(list.out, "published"));
  CHECK(has(list.out, "10m"));
  const auto document = nlohmann::json::parse(world.tool({"list", "--json"}).out);
  REQUIRE(document["regions"].size() == 1);
  const auto& region = document["regions"][0];
  CHECK(region["length"] == 5000);
  CHECK(region["bytes"] == 8192);
  CHECK(region["name"] == "kv");
  CHECK(region["access"] == "ro");
  CHECK(region["keep_seconds"] == 600.0);
  CHECK(document["totals"]["bytes"] == 8192);
  CHECK(document["broker"]["mode"] == "private");

  const Ended quiet = world.tool({"list", "-q"});
  const std::string id = quiet.out.substr(0, quiet.out.find('\n'));
  CHECK(id == region["id"].get<std::string>());
  CHECK(world.tool({"cat", id}).out.size() == 5000);
  const Ended inspect = world.tool({"inspect", id, "-b"});
  CHECK(inspect.status == 0);
  CHECK(has(inspect.out, "5000 (8192 charged"));
  CHECK(has(inspect.out, own_group() + "/kv"));
  CHECK(has(world.tool({"list", "-b"}).out, "8192"));
  CHECK(has(world.tool({"list", "--groups"}).out, own_group()));
  CHECK(has(world.tool({"list", "--group", own_group()}).out, "kv"));
  const Ended status = world.tool({"status"});
  CHECK(status.status == 0);
  CHECK(has(status.out, world.socket()));
  CHECK(has(status.out, "child of     pid "));
  CHECK(has(status.out, "engine"));
  CHECK(world.tool({"release", id}).status == 0);
}

TEST_CASE("a region of 0 bytes is a row as any other, charged with its page") {
  World world;
  REQUIRE(world.tool({"put", world.file("none", ""), "--name", "none"}).status == 0);
  REQUIRE(world.tool({"put", world.file("f", bytes_of_every_kind(5000)), "--name", "kv"}).status == 0);
  for (const Words& words : {Words{"list"}, {"list", "--sort", "age"}, {"list", "--groups"}, {"list", "--processes"}})
    CHECK(world.tool(words).status == 0);
  const std::string sorted = world.tool({"list", "--sort", "size"}).out;
  CHECK(sorted.find("kv") < sorted.find("none"));
  const auto document = nlohmann::json::parse(world.tool({"list", "--json"}).out);
  REQUIRE(document["regions"].size() == 2);
  for (const auto& region : document["regions"]) {
    CHECK(region["length"] == (region["name"] == "none" ? 0 : 5000));
    CHECK(region["bytes"] == (region["name"] == "none" ? 4096 : 8192));
  }
  CHECK(document["totals"]["bytes"] == 8192 + 4096);
  const Ended inspect = world.tool({"inspect", "none", "-b"});
  CHECK(inspect.status == 0);
  CHECK(has(inspect.out, "0 (4096 charged"));
  const Ended cat = world.tool({"cat", "none"});
  CHECK(cat.status == 0);
  CHECK(cat.out.empty());
  for (const char* name : {"none", "kv"}) CHECK(world.tool({"release", name}).status == 0);
}

TEST_CASE("looking makes no group and no region") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  for (int i = 0; i < 3; ++i) (void)world.tool({"list"});
  const auto document = nlohmann::json::parse(world.tool({"list", "--json"}).out);
  CHECK(document["groups"].empty());
  CHECK(document["regions"].empty());
}

TEST_CASE("without a broker the looking verbs end with 3 and say how one is started; none is") {
  World world;
  for (const Words& words : {Words{"list"}, {"status"}, {"cat", "x"}, {"inspect", "x"}, {"release", "x"}}) {
    const Ended ended = world.tool(words);
    CHECK(ended.status == 3);
    CHECK(has(ended.err, "starts a private one"));
    CHECK(ended.out.empty());
  }
  CHECK(::access(world.socket().c_str(), F_OK) != 0);
}

TEST_CASE("an explicit socket never falls through to another broker, nor starts one") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "x"}).status == 0);
  CHECK(world.tool({"list", "--socket", world.directory() + "/elsewhere"}).status == 3);
  CHECK(world.tool({"put", world.file("f", "x"), "--name", "y", "--socket", world.directory() + "/elsewhere"}).status ==
        3);
  const Ended named = world.tool({"list"}, {{"SHMBROKER_SOCKET", world.directory() + "/elsewhere"}});
  CHECK(named.status == 3);
  CHECK_FALSE(has(named.err, "starts a private one"));  // no verb would
  CHECK(world.tool({"list", "--socket", world.socket()}).status == 0);
  CHECK(world.tool({"release", "x"}).status == 0);
}

TEST_CASE("usage errors end with 2, and what a person typed comes back with control bytes visible") {
  World world;
  const std::string file = world.file("f", "x");
  for (const Words& words : {Words{},
                             {"frobnicate"},
                             {"list", "--frobnicate"},
                             {"put"},
                             {"put", file},
                             {"put", file, "--name", "a/b"},
                             {"put", file, "--name", ""},
                             {"put", file, "--name", std::string(97, 'n')},
                             {"put", file, "--name", "\x1b[31mred"},
                             {"put", file, "--name", "x", "--keep", "soon"},
                             {"put", file, "--name", "x", "--group", "a b"},
                             {"cat"},
                             {"cat", "a/b/c"},
                             {"inspect", "@x"},
                             {"list", "--group", "\x1b]0;t\x07"},
                             {"list", "--gpu", "--worlds"},
                             {"cat", "x", "--timeout", "-1"}}) {
    const Ended ended = world.tool(words);
    CHECK(ended.status == 2);
    CHECK_FALSE(ended.err.empty());
    CHECK(ended.err.find('\x1b') == std::string::npos);
    CHECK(ended.err.find('\x07') == std::string::npos);
  }
  CHECK(has(world.tool({"lst"}).err, "there is no verb 'lst': list, "));
  CHECK(has(world.tool({"put"}).err, "`shmbroker put --help`"));
  CHECK(::access(world.socket().c_str(), F_OK) != 0);  // found out before a broker was started
  CHECK(world.tool({"frobnicate"}).err.find("'frobnicate'") != std::string::npos);
}

TEST_CASE("a file that cannot be put ends with 1 and is named") {
  World world;
  for (const std::string& path :
       {std::string("/nonexistent/\x1b[31m"), world.directory(), std::string("/proc/self/status")}) {
    const Ended ended = world.tool({"put", path, "--name", "x"});
    CHECK(ended.status == 1);
    CHECK(ended.err.find('\x1b') == std::string::npos);
  }
}

TEST_CASE("a refusal ends with 4 and prints the broker's sentence; --replace takes the name over") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "first"), "--name", "x"}).status == 0);
  const Ended again = world.tool({"put", world.file("g", "second"), "--name", "x"});
  CHECK(again.status == 4);
  CHECK(has(again.err, "x"));
  CHECK(world.tool({"cat", "x"}).out == "first");
  CHECK(world.tool({"put", world.file("g", "second"), "--name", "x", "--replace"}).status == 0);
  CHECK(world.tool({"cat", "x"}).out == "second");
  CHECK(world.tool({"release", "x"}).status == 0);

  const std::string large = world.file("large", std::string(4 << 20, 'l'));
  const Ended over = world.tool({"run", "--name", "small", "--limit", "2M", "--", SHMB_TEST_TOOL, "put", large,
                                 "--name", "l", "--group", "small"});
  CHECK(over.status == 4);
  CHECK(has(over.err, "small"));
  CHECK(has(over.err, "2.0 MiB"));
  CHECK(has(over.err, "4.0 MiB"));
}

TEST_CASE("an absent name ends with 5") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "x"}).status == 0);
  for (const Words& words : {Words{"cat", "y"},
                             {"inspect", "y"},
                             {"release", "y"},
                             {"cat", "@123456"},
                             {"inspect", "@123456"},
                             {"release", "@123456"},
                             {"list", "--group", "nobody"},
                             {"cat", "4242:shell-4242/x"}}) {
    const Ended ended = world.tool(words);
    CHECK(ended.status == 5);
    CHECK_FALSE(ended.err.empty());
  }
  for (const Words& words : {Words{"cat", "y"}, {"inspect", "y"}, {"release", "y"}, {"release", "--group", "y"}}) {
    const Ended ended = world.tool(words);
    CHECK(ended.status == 5);
    // The object that was asked for, its place, the broker, and where to look.
    CHECK(has(ended.err, words.size() == 3 ? "no group 'y'" : "'y' in group '" + own_group() + "'"));
    CHECK(has(ended.err, words.size() == 3 ? "`shmbroker list --groups`" : "`shmbroker list --group '" + own_group()));
    CHECK(has(ended.err, "asked was the broker at " + world.socket()));
  }
  CHECK(world.tool({"release", "x"}).status == 0);
}

TEST_CASE("an error about a name in another group names that group, and the list that shows it") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "kv", "--group", "other"}).status == 0);
  for (const char* verb : {"cat", "inspect", "release"}) {
    const Ended ended = world.tool({verb, "kv"});
    CAPTURE(verb);
    CHECK(ended.status == 5);
    CHECK_MESSAGE(has(ended.err, "there is one in another group of this user, 'other/kv'"), ended.err);
    CHECK_MESSAGE(has(ended.err, "`shmbroker list` shows what there is"), ended.err);
    CHECK_FALSE(has(ended.err, "list --group"));
  }
  CHECK_FALSE(has(world.tool({"inspect", "--pool", "kv"}).err, "another group"));
  CHECK(world.tool({"release", "other/kv"}).status == 0);
}

TEST_CASE("list -w shows the broker's books again and again, and ends when the broker does") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "x"}).status == 0);
  std::string id = world.tool({"list", "-q"}).out;
  id.resize(id.find('\n'));
  const std::string tool = SHMB_TEST_TOOL;
  CHECK(world.run("/bin/sh", {"-c", tool + " list -q -w 20ms | head -n 5"}).out ==
        id + "\n\n" + id + "\n\n" + id + "\n");
  CHECK(world.tool({"release", "x"}).status == 0);
  const pid_t watching = world.start_tool({"list", "-q", "-w", "20ms"});
  ::kill(world.broker(), SIGTERM);
  int status = -1;
  CHECK(::waitpid(watching, &status, 0) == watching);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 3);
}

TEST_CASE("a name that does not appear in time ends with 124, one that does is printed") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "x"}).status == 0);
  CHECK(world.tool({"cat", "later", "--wait", "50ms"}).status == 124);
  const pid_t putter = ::fork();
  if (putter == 0) {
    ::usleep(200'000);
    const pid_t tool = world.start_tool({"put", world.file("late", "came"), "--name", "later", "--json"});
    int status = -1;
    ::waitpid(tool, &status, 0);
    ::_exit(WEXITSTATUS(status));
  }
  CHECK(world.tool({"cat", "later", "--wait", "30s"}).out == "came");
  int status = -1;
  ::waitpid(putter, &status, 0);
  CHECK(status == 0);
  CHECK(world.tool({"release", "x"}).status == 0);
  CHECK(world.tool({"release", "later"}).status == 0);
}

TEST_CASE("each JSON document names its schema in the first key") {
  World world;
  const std::string file = world.file("f", "x");
  auto begins = [&](const Words& words, const std::string& schema) {
    const Ended ended = world.tool(words);
    CHECK(ended.status == 0);
    CHECK(ended.out.starts_with("{\n  \"schema\": \"" + schema + "\""));
    CHECK(nlohmann::json::accept(ended.out));
  };
  begins({"put", file, "--name", "x", "--json"}, "shmbroker.put/1");
  begins({"put", file, "--name", "y", "--json"}, "shmbroker.put/1");
  begins({"list", "--json"}, "shmbroker.list/1");
  begins({"inspect", "x", "--json"}, "shmbroker.inspect/1");
  begins({"status", "--json"}, "shmbroker.status/1");
  begins({"release", "x", "--json"}, "shmbroker.release/1");
  begins({"release", "y", "--json"}, "shmbroker.release/1");
}

TEST_CASE("put and release name what they are about by id and by address, as list does") {
  World world;
  const auto told = [&](Words words) {
    words.emplace_back("--json");
    return nlohmann::json::parse(world.tool(words).out);
  };
  const auto put = told({"put", world.file("f", "x"), "--name", "x"});
  CHECK(put["address"] == own_group() + "/x");
  const auto listed = told({"list"})["regions"];
  REQUIRE(listed.size() == 1);
  const auto address = put["address"].get<std::string>(), id = put["id"].get<std::string>();
  const auto by_address = told({"inspect", address}), by_id = told({"inspect", id});
  CHECK(by_address["region"]["id"] == put["id"]);
  CHECK(by_id["region"]["address"] == put["address"]);
  const auto released = told({"release", id});
  for (const char* key : {"id", "address", "group", "group_id", "name"}) {
    CAPTURE(key);
    CHECK(put[key] == listed[0][key]);
    CHECK(released[key] == listed[0][key]);
  }
}

TEST_CASE("an empty table that was asked for says so, to people alone") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  REQUIRE(eventually([&] { return nlohmann::json::parse(world.tool({"list", "--json"}).out)["groups"].empty(); }));
  for (const auto& [flag, word] : {std::pair{"--groups", "groups"},
                                   {"--pools", "pools"},
                                   {"--queues", "queues"},
                                   {"--worlds", "worlds"},
                                   {"--refs", "references"},
                                   {"--gpu", "GPU regions"}}) {
    CAPTURE(flag);
    const Ended people = world.tool({"list", flag});
    CHECK(people.status == 0);
    CHECK(std::ranges::count(people.out, '\n') == 2);
    CHECK(people.out.ends_with("\nno " + std::string(word) + "\n"));
    CHECK(world.tool({"list", flag, "-q"}).out.empty());
    CHECK(nlohmann::json::accept(world.tool({"list", flag, "--json"}).out));
  }
  CHECK(std::ranges::count(world.tool({"list"}).out, '\n') == 1);
}

TEST_CASE("a put that gets a signal to end leaves the whole file or nothing") {
  World world;
  const std::string file = world.file("f", "x");
  REQUIRE(::truncate(file.c_str(), 128 << 20) == 0);
  REQUIRE(world.tool({"put", world.file("other", "x"), "--name", "other"}).status == 0);
  for (int moment = 0; moment < 8; ++moment) {
    const pid_t put = world.start_tool({"put", file, "--name", "data"});
    REQUIRE(eventually([put] {
      auto started = shmb::spawn::process(put);
      return started && started->name == "shmbroker";
    }));
    ::usleep(static_cast<useconds_t>(moment) * 15'000);
    ::kill(put, moment % 2 == 0 ? SIGTERM : SIGINT);
    int status = 0;
    REQUIRE(::waitpid(put, &status, 0) == put);
    const auto document = nlohmann::json::parse(world.tool({"list", "--json"}).out);
    for (const auto& region : document["regions"])
      CHECK((region["state"] == "published" || region["state"] == "freeing"));
    (void)world.tool({"release", "data"});
  }
  CHECK(world.tool({"release", "other"}).status == 0);
  CHECK(world.empties());
}

TEST_CASE("release --group frees what a group keeps") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "a", "--group", "g"}).status == 0);
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "b", "--group", "g"}).status == 0);
  CHECK(world.tool({"release", "--group", "g"}).status == 0);
  CHECK(world.tool({"list", "-q"}).out.empty());
  CHECK(world.tool({"release", "--group", "a/b"}).status == 2);
  CHECK(world.tool({"release"}).status == 2);
}

TEST_CASE("gc --group plans, then frees what an ended group keeps; a live group and a used region stay") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "a", "--group", "g"}).status == 0);
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "b", "--group", "g"}).status == 0);
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "c", "--group", "h"}).status == 0);
  for (const Words& words : {Words{"gc", "--group", "g"}, Words{"gc", "--group", "g", "--dry-run"},
                             Words{"gc", "--group", std::to_string(::geteuid()) + ":g", "-q"}}) {
    const Ended plan = world.tool(words);
    CHECK(plan.status == 6);
    CHECK(has(plan.out, "g/a"));
    CHECK(has(plan.out, "g/b"));
    CHECK_FALSE(has(plan.out, "h/c"));
  }
  CHECK(world.tool({"inspect", "g/a"}).status == 0);

  const std::string socket = world.socket();
  shmb_connect_options options{};
  options.size = sizeof options;
  options.socket = socket.c_str();
  shmb_session* session = nullptr;
  shmb_region* region = nullptr;
  shmb_error error{};
  REQUIRE(shmb_connect(&options, &session, &error) == SHMB_OK);
  shmb_attach_options attaching{};
  attaching.size = sizeof attaching;
  REQUIRE(shmb_attach(session, "g/b", &attaching, &region, &error) == SHMB_OK);
  const Ended freed = world.tool({"gc", "--group", "g", "--yes"});
  CHECK(freed.status == 0);
  CHECK_MESSAGE(has(freed.out, "freed 4.0 KiB that group g kept; 1 region is still in use"), freed.out);
  CHECK(has(freed.out, "left alone: g/b"));
  CHECK(world.tool({"cat", "h/c"}).out == "x");

  REQUIRE(shmb_group_join(session, "h", 0, 0, nullptr, &error) == SHMB_OK);
  const Ended alive = world.tool({"gc", "--group", "h", "--yes"});
  CHECK(alive.status == 0);
  CHECK_MESSAGE(has(alive.out, "group h lives: 1 session; nothing of it is lost"), alive.out);
  CHECK(world.tool({"cat", "h/c"}).out == "x");
  (void)shmb_release(region, 0, nullptr);
  shmb_disconnect(session);
  const Ended json = world.tool({"gc", "--group", "h", "--json"});
  CHECK(nlohmann::json::parse(json.out)["schema"] == "shmbroker.gc.group/1");
  CHECK(world.tool({"gc", "--group", "nobody-has-it"}).status == 5);
  CHECK(world.tool({"gc", "--group", "h", "--stale"}).status == 2);
  CHECK(world.tool({"gc", "--group", "h", "x"}).status == 2);
  CHECK(world.tool({"release", "--group", "h"}).status == 0);
}

TEST_CASE("release --group UID:GROUP is a group of the caller, and another user's is named by its @ID") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "a", "--group", "g"}).status == 0);
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "a", "--group", "h"}).status == 0);
  const std::string own = std::to_string(::getuid()), other = std::to_string(::getuid() + 1);
  const Ended refused = world.tool({"release", "--group", other + ":g"});
  CHECK(refused.status == 2);
  CHECK_MESSAGE(has(refused.err, "@ID, which root sees by `shmbroker list --groups --all-groups`"), refused.err);
  CHECK(world.tool({"release", "--group", own + ":nobody-has-it"}).status == 5);
  CHECK(world.tool({"inspect", own + ":g/a"}).status == 0);
  CHECK(world.tool({"release", "--group", own + ":g"}).status == 0);
  CHECK(world.tool({"inspect", own + ":g/a"}).status == 5);
  CHECK(world.tool({"inspect", own + ":h/a"}).status == 0);
  CHECK(world.tool({"release", own + ":h/a"}).status == 0);
  CHECK(world.tool({"release", own + ":h/a"}).status == 5);
  CHECK(world.empties());
}

TEST_CASE("release --group leaves a live group alone, names its members, and ends it with --end") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "a", "--group", "g"}).status == 0);
  const std::string socket = world.socket();
  shmb_connect_options options{};
  options.size = sizeof options;
  options.socket = socket.c_str();
  options.program = "trainer";
  shmb_session* session = nullptr;
  shmb_region* region = nullptr;
  shmb_error error{};
  REQUIRE(shmb_connect(&options, &session, &error) == SHMB_OK);
  REQUIRE(shmb_group_join(session, "g", 0, 0, nullptr, &error) == SHMB_OK);
  REQUIRE(shmb_create(session, 4096, nullptr, &region, &error) == SHMB_OK);
  const Ended refused = world.tool({"release", "--group", "g"});
  CHECK(refused.status == 4);
  for (const std::string& words : {"pid " + std::to_string(::getpid()), std::string("trainer"), std::string("--end")})
    CHECK_MESSAGE(has(refused.err, words), refused.err);
  CHECK(world.tool({"inspect", "g/a"}).status == 0);  // its name is still there
  shmb_region* next = nullptr;
  REQUIRE(shmb_create(session, 4096, nullptr, &next, &error) == SHMB_OK);
  const Ended ended = world.tool({"release", "--group", "g", "--end"});
  CHECK(ended.status == 0);
  CHECK(has(ended.out, "1 session is in no group now"));
  shmb_region* late = nullptr;
  CHECK(shmb_create(session, 4096, nullptr, &late, &error) == SHMB_E_GROUP_ENDED);
  (void)shmb_release(region, 0, nullptr);
  (void)shmb_release(next, 0, nullptr);
  shmb_disconnect(session);
  CHECK(world.tool({"release", "--end", "x"}).status == 2);
  CHECK(world.empties());
}

TEST_CASE("a program's name full of escape sequences reaches no terminal") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", "x"}).status == 0);
  const std::string socket = world.socket();
  shmb_connect_options options{};
  options.size = sizeof options;
  options.socket = socket.c_str();
  options.program = "\x1b[2J\x1b]0;owned\x07\xc2\x9b";
  shmb_session* session = nullptr;
  shmb_region* region = nullptr;
  shmb_error error{};
  REQUIRE(shmb_connect(&options, &session, &error) == SHMB_OK);
  REQUIRE(shmb_attach(session, (own_group() + "/x").c_str(), nullptr, &region, &error) == SHMB_OK);
  for (const Words& words : {Words{"inspect", "x"}, {"inspect", "x", "--json"}, {"list"}}) {
    const Ended ended = world.tool(words);
    CHECK(ended.status == 0);
    CHECK(ended.out.find('\x1b') == std::string::npos);
    CHECK(ended.out.find('\x07') == std::string::npos);
    CHECK(ended.out.find('\xc2') == std::string::npos);
  }
  CHECK(has(world.tool({"inspect", "x"}).out, std::to_string(::getpid())));
  (void)shmb_release(region, 0, nullptr);
  shmb_disconnect(session);
  CHECK(world.tool({"release", "x"}).status == 0);
}

TEST_CASE("a table is cut to the terminal's width, and only there") {
  World world;
  const std::string name(60, 'n');
  REQUIRE(world.tool({"put", world.file("f", "x"), "--name", name}).status == 0);
  const auto table = [](const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream all(text.substr(text.find('\n') + 1));  // behind the totals, which are a sentence
    for (std::string line; std::getline(all, line);) lines.push_back(line.substr(0, line.find('\r')));
    return lines;
  };
  for (unsigned short columns : {40, 80, 100}) {
    CAPTURE(columns);
    const Ended list = world.tool_on_terminal({"list"}, {{"TERM", "dumb"}}, columns);
    CHECK_FALSE(has(list.out, name));
    CHECK(has(list.out, "nnn~nnn"));
    CHECK(has(list.out, "4.0 KiB"));
    for (const std::string& line : table(list.out)) CHECK_MESSAGE(line.size() <= columns, line);
  }
  CHECK(has(world.tool_on_terminal({"list"}, {}, 300).out, name));
  CHECK(has(world.tool_on_terminal({"list"}).out, name));  // it does not say how wide it is
  CHECK(has(world.tool({"list"}, {{"COLUMNS", "40"}}).out, name));
  CHECK(world.tool({"release", name}).status == 0);
}

TEST_CASE("list --processes says which process holds how much, and --sort by which column") {
  World world;
  REQUIRE(world.tool({"put", world.file("f", bytes_of_every_kind(5000)), "--name", "small"}).status == 0);
  REQUIRE(world.tool({"put", world.file("f", bytes_of_every_kind(3 << 20)), "--name", "large"}).status == 0);
  const std::string socket = world.socket();
  shmb_connect_options options{};
  options.size = sizeof options;
  options.socket = socket.c_str();
  options.program = "viewer";
  shmb_session* session = nullptr;
  shmb_region *large = nullptr, *small = nullptr;
  shmb_error error{};
  REQUIRE(shmb_connect(&options, &session, &error) == SHMB_OK);
  REQUIRE(shmb_group_join(session, own_group().c_str(), 0, 0, nullptr, &error) == SHMB_OK);
  REQUIRE(shmb_attach(session, (own_group() + "/large").c_str(), nullptr, &large, &error) == SHMB_OK);
  REQUIRE(shmb_attach(session, (own_group() + "/small").c_str(), nullptr, &small, &error) == SHMB_OK);
  const auto document = nlohmann::json::parse(world.tool({"list", "--processes", "--json"}).out);
  REQUIRE(document["processes"].size() == 1);  // not the tool itself
  const auto& process = document["processes"][0];
  CHECK(process["pid"] == ::getpid());
  CHECK(process["program"] == "viewer");
  CHECK(process["groups"] == nlohmann::json::array({own_group()}));
  CHECK(process["bytes"] == (4 << 20) + 8192);
  CHECK(process["regions"] == 2);
  const Ended shown = world.tool({"list", "--processes", "-b"});
  CHECK(has(shown.out, std::to_string(::getpid())));
  CHECK(has(shown.out, std::to_string((4 << 20) + 8192)));
  CHECK(world.tool({"list", "--processes", "-q"}).out == std::to_string(::getpid()) + "\n");

  const auto place = [&](const Words& words, const std::string& what) { return world.tool(words).out.find(what); };
  CHECK(place({"list", "--sort", "size"}, "large") < place({"list", "--sort", "size"}, "small"));
  CHECK(place({"list", "--sort", "AGE"}, "small") < place({"list", "--sort", "AGE"}, "large"));
  CHECK(world.tool({"list", "-q", "--sort", "size"}).out != world.tool({"list", "-q", "--sort", "age"}).out);
  const Ended unknown = world.tool({"list", "--sort", "colour"});
  CHECK(unknown.status == 2);
  CHECK(has(unknown.err, "group, region, size, touched"));
  (void)shmb_release(small, 0, nullptr);
  (void)shmb_release(large, 0, nullptr);
  shmb_disconnect(session);
  CHECK(world.tool({"list", "--processes"}).out.ends_with("no processes\n"));
  for (const char* name : {"small", "large"}) CHECK(world.tool({"release", name}).status == 0);
}

TEST_CASE("a region that only a ticket holds is marked") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  {
    const auto session = shmbroker::Session::connect({.socket = world.socket()});
    auto region = session.create(8192);
    const auto ticket = region.ticket();
    CHECK_FALSE(has(world.tool({"list"}).out, "ticket"));
    const std::string id = world.tool({"list", "-q"}).out;
    region.release();
    CHECK(has(world.tool({"list"}).out, "only 1 ticket holds it"));
    CHECK(has(world.tool({"inspect", id.substr(0, id.find('\n'))}).out, "only 1 ticket holds it"));
    (void)session.attach(ticket);
  }
  CHECK(world.empties());
}

TEST_CASE("the id of a group goes through a shell as it is") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  const auto session = shmbroker::Session::connect({.socket = world.socket()});
  const auto region = session.create(8192, {.name = "here"});
  const std::string group = world.tool({"list", "--groups", "-q"}).out;
  const std::string id = group.substr(0, group.find('\n')), tool = SHMB_TEST_TOOL;
  CHECK(has(world.run("/bin/sh", {"-c", tool + " list --group " + id}).out, "here"));
  CHECK(has(world.run("/bin/sh", {"-c", tool + " inspect " + id + "/here"}).out, "here"));
  CHECK(has(world.tool({"list", "--group", "#" + id.substr(1)}).out, "here"));  // as before
}

TEST_CASE("colour and a progress bar only on a terminal, and NO_COLOR is obeyed") {
  World world;
  const std::string large = world.file("large", std::string(80 << 20, 'p'));
  const Ended put = world.tool_on_terminal({"put", large, "--name", "x"});
  CHECK(put.status == 0);
  CHECK(has(put.out, "put x ["));
  CHECK(has(world.tool_on_terminal({"list"}).out, "\x1b[1m"));
  CHECK_FALSE(has(world.tool_on_terminal({"list"}, {{"NO_COLOR", "1"}}).out, "\x1b["));
  CHECK_FALSE(has(world.tool_on_terminal({"list"}, {{"TERM", "dumb"}}).out, "\x1b["));
  CHECK_FALSE(has(world.tool({"list"}).out, "\x1b["));
  CHECK(world.tool({"release", "x"}).status == 0);
  const Ended quiet = world.tool({"put", large, "--name", "x"});
  CHECK(quiet.err.empty());
  CHECK(world.tool({"release", "x"}).status == 0);
  CHECK(world.empties());
}

TEST_CASE("run makes its command a member of a group that ends with it") {
  World world;
  const std::string file = world.file("f", "inside");
  const Ended ended = world.tool({"run", "--name", "job", "--", "sh", "-c",
                                  "set -e; T='" SHMB_TEST_TOOL "'; \"$T\" put " + file +
                                      " --name x --group job; \"$T\" cat x; \"$T\" list --group job --groups"});
  CHECK(ended.status == 0);
  CHECK(has(ended.out, "inside"));
  CHECK(has(ended.out, "supervised"));
  CHECK(world.tool({"list", "--group", "job"}).status == 5);
  // A region with put's own keep stays after the group's end; no other would.
  (void)world.tool({"release", "--group", "job"});
  CHECK(world.empties());
}

TEST_CASE("run passes the command's status on and keeps 125 to 127 for itself") {
  World world;
  CHECK(world.tool({"run", "--", "sh", "-c", "exit 42"}).status == 42);
  CHECK(world.tool({"run", "--", "sh", "-c", "kill -TERM $$"}).status == 128 + SIGTERM);
  CHECK(world.tool({"run", "--", "/nonexistent"}).status == 127);
  CHECK(world.tool({"run", "--", "/etc/passwd"}).status == 126);
  CHECK(world.tool({"run"}).status == 125);
  CHECK(world.tool({"run", "--limit", "much", "--", "true"}).status == 125);
  const Ended nothing = world.tool({"run", "--limit", "0", "--", "true"});
  CHECK(nothing.status == 125);
  CHECK_MESSAGE(has(nothing.err, "--limit 0 leaves the group no memory: give 64M"), nothing.err);
  CHECK(world.tool({"run", "--name", "a/b", "--", "true"}).status == 125);
  CHECK(world.tool({"run", "--socket", world.directory() + "/none", "--", "true"}).status == 125);
}

TEST_CASE("the command's own options are not taken for run's") {
  World world;
  CHECK(world.tool({"run", "sh", "-c", "exit 3"}).status == 3);
  CHECK(world.tool({"run", "--", "echo", "--name", "--json", "-q"}).out == "--name --json -q\n");
  CHECK(world.tool({"run", "--kill-rest", "--", "sh", "-c", "exit 6"}).status == 6);
  CHECK(world.tool({"run", "--kill-rest=200ms", "--", "sh", "-c", "exit 7"}).status == 7);
}

TEST_CASE("SIGKILL of run ends a daemonised descendant and frees its memory") {
  World world;
  const std::string file = world.file("f", std::string(1 << 20, 'm'));
  const std::string pid_file = world.directory() + "/daemon.pid";
  const pid_t run = world.start_tool({"run", "--name", "job", "--", "sh", "-c",
                                      "'" SHMB_TEST_TOOL "' put " + file +
                                          " --name m --group job --keep 0 --json >/dev/null; "
                                          "(setsid sh -c 'echo $$ > " +
                                          pid_file + "; exec sleep 1000' &) ; sleep 1000"});
  pid_t daemon = 0;
  const auto written = [&] {
    FILE* in = ::fopen(pid_file.c_str(), "r");
    if (in == nullptr) return false;
    const bool whole = ::fscanf(in, "%d", &daemon) == 1 && ::fgetc(in) == '\n';
    ::fclose(in);
    return whole;
  };
  REQUIRE(eventually([&] { return written() && world.bytes() >= 1 << 20; }));
  REQUIRE(::kill(daemon, 0) == 0);
  ::kill(run, SIGKILL);
  ::waitpid(run, nullptr, 0);
  CHECK(eventually([&] { return ::kill(daemon, 0) != 0; }));
  CHECK(eventually([&] { return world.tool({"list", "--group", "job"}).status == 5; }));
  CHECK(world.empties());
}

TEST_CASE("a second run of the same name is refused while the first lives") {
  World world;
  const pid_t first = world.start_tool({"run", "--name", "one", "--", "sleep", "1000"});
  REQUIRE(eventually([&] { return world.tool({"list", "--group", "one"}).status == 0; }));
  const Ended second = world.tool({"run", "--name", "one", "--", "true"});
  CHECK(second.status == 125);
  CHECK(has(second.err, "one"));
  ::kill(first, SIGTERM);
  int status = -1;
  ::waitpid(first, &status, 0);
  CHECK(WEXITSTATUS(status) == 128 + SIGTERM);
}

TEST_CASE("a broker that is run's own child is not of the tree: it survives the supervisor's death") {
  World world;
  const std::string socket = world.directory() + "/b/socket";
  const pid_t run = ::fork();
  if (run == 0) {
    const std::string script = "'" SHMB_TEST_DAEMON "' --private --log-level error --directory " + world.directory() +
                               "/b & while [ ! -S " + socket +
                               " ]; do sleep 0.02; done; exec '" SHMB_TEST_TOOL "' run --socket " + socket +
                               " --name job -- sleep 1000";
    ::execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
    ::_exit(99);
  }
  auto job = [&] { return world.tool({"list", "--socket", socket, "--groups"}); };
  REQUIRE(eventually([&] { return has(job().out, "job"); }));
  pid_t supervisor = 0, broker = 0;
  REQUIRE(eventually([&] {
    auto children = shmb::spawn::children(run, {});
    for (const auto& child : *children) (child.name == "shmbrokerd" ? broker : supervisor) = child.pid;
    return supervisor != 0 && broker != 0 && !shmb::spawn::children(supervisor, {})->empty();
  }));
  ::kill(supervisor, SIGKILL);
  int status = -1;
  ::waitpid(run, &status, 0);
  CHECK(WEXITSTATUS(status) == 125);
  CHECK(job().status == 0);
  CHECK_FALSE(has(job().out, "job"));
  ::kill(broker, SIGTERM);
  CHECK(eventually([&] { return ::kill(broker, 0) != 0; }));
}

TEST_CASE("a run inside a run has a group of its own, and goes with the outer one") {
  World world;
  const pid_t outer = world.start_tool(
      {"run", "--name", "outer", "--", SHMB_TEST_TOOL, "run", "--name", "inner", "--", "sleep", "1000"});
  REQUIRE(eventually([&] {
    const Ended groups = world.tool({"list", "--groups"});
    return has(groups.out, "outer") && has(groups.out, "inner");
  }));
  ::kill(outer, SIGTERM);
  ::waitpid(outer, nullptr, 0);
  CHECK(eventually([&] { return nlohmann::json::parse(world.tool({"list", "--json"}).out)["groups"].empty(); }));
}

TEST_CASE("guard and supervisor both have the role, and neither is a member") {
  World world;
  const pid_t run = world.start_tool({"run", "--name", "job", "--", "sleep", "1000"});
  nlohmann::json group;
  CHECK(eventually([&] {
    const auto document = nlohmann::json::parse(world.tool({"list", "--group", "job", "--json"}).out, nullptr, false);
    if (document.is_discarded() || document["groups"].empty()) return false;
    group = document["groups"][0];
    return group["supervisors"] == 2;
  }));
  CHECK(group["members"] == 0);
  CHECK(group["supervised"] == true);
  ::kill(run, SIGTERM);
  ::waitpid(run, nullptr, 0);
}
