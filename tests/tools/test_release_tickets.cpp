// SPDX-License-Identifier: Apache-2.0
// `shmbroker release --tickets`: what processes that were killed have left is ended by their user, and nothing else.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "client/face/shmbroker.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/skip.hpp"
#include "tests/tools/world.hpp"
#include "tools/release_tickets.hpp"

using harness::Child;
using shmb::test::Ended;
using shmb::test::eventually;
using shmb::test::has;
using shmb::test::World;

namespace {

Child child_of(uid_t uid, const std::function<int()>& body) {
  return uid == ::geteuid() ? Child::run(body) : Child::run_as(uid, uid, body);
}

// A process makes tickets to so many regions in turn, and is killed. `wanted` 0: as many as it may have.
std::size_t leave_tickets(const std::string& socket, std::size_t wanted, std::size_t regions,
                          const std::string& group = {}, uid_t uid = ::geteuid()) {
  int told[2];
  REQUIRE(::pipe(told) == 0);
  Child child = child_of(uid, [&] {
    std::uint64_t made = 0;
    const auto session = shmbroker::Session::connect({.socket = socket});
    if (!group.empty()) session.join(session.create_group({.name = group}).token);
    std::vector<shmbroker::Region> all;
    while (all.size() < regions) all.push_back(session.create(8192));
    while ((wanted == 0 || made < wanted) && all[made % all.size()].try_ticket()) ++made;
    if (::write(told[1], &made, sizeof made) != sizeof made) return 1;
    return ::kill(::getpid(), SIGKILL);
  });
  CHECK(child.wait() == 128 + SIGKILL);
  ::close(told[1]);
  std::uint64_t made = 0;
  CHECK(::read(told[0], &made, sizeof made) == sizeof made);
  ::close(told[0]);
  return made;
}

nlohmann::json own_tickets(World& world) {
  const Ended status = world.tool({"status", "--json"});
  REQUIRE(status.status == 0);
  return nlohmann::json::parse(status.out)["own_tickets"];
}
// The broker hears of a death a moment after it.
bool left_become(World& world, std::size_t left) {
  return eventually([&] { return own_tickets(world)["left"] == left; });
}

// The verb in a process of that user, which need not be able to reach the program's file.
Ended release_as(uid_t uid, const shmb::tools::TicketRelease& options, const harness::TempDir& folder) {
  const std::string out = folder.file("out"), err = folder.file("err");
  const int to_out = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const int to_err = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  REQUIRE(to_out >= 0);
  REQUIRE(to_err >= 0);
  Child child = child_of(uid, [&] {
    if (::dup2(to_out, STDOUT_FILENO) < 0 || ::dup2(to_err, STDERR_FILENO) < 0) return 98;
    return shmb::tools::release_tickets(options);
  });
  ::close(to_out);
  ::close(to_err);
  const int status = child.wait();
  const auto text = [](const std::string& path) {
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  return {status, text(out), text(err)};
}

std::string own_user() { return std::to_string(::geteuid()); }

}  // namespace

TEST_CASE("processes that take all tickets and die are answered by release --tickets, which the refusal names") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  for (std::size_t i = 1; i <= 4; ++i) {
    CHECK(leave_tickets(world.socket(), 0, 2) == 4096);
    REQUIRE(left_become(world, i * 4096));
  }
  {
    const auto session = shmbroker::Session::connect({.socket = world.socket()});
    const auto region = session.create(8192);
    const auto refused = region.try_ticket();
    REQUIRE(!refused);
    CHECK(refused.error().status() == shmbroker::Status::limit);
    const std::string sentence = refused.error().what();
    CHECK_MESSAGE(has(sentence, "used 16384 of 16384"), sentence);
    CHECK_MESSAGE(has(sentence, "`shmbroker release --tickets` ends the 16384 of them"), sentence);
    CHECK(has(world.tool({"status"}).out, "; 16384 left by sessions that have ended (release --tickets)"));
    const Ended ended = world.tool({"release", "--tickets"});
    CHECK(ended.status == 0);
    CHECK_MESSAGE(has(ended.out, "ended 16384 tickets of "), ended.out);
    CHECK_MESSAGE(has(ended.out, "; freed 64.0 KiB in 8 regions\n"), ended.out);
    CHECK(region.try_lend());
  }
  CHECK(world.empties());
}

TEST_CASE("release --tickets leaves tickets of running programs alone, and --end ends them as well") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  {
    const auto session = shmbroker::Session::connect({.socket = world.socket()});
    auto region = session.create(8192);
    const auto first = region.ticket(), second = region.lend();
    leave_tickets(world.socket(), 3, 1);
    REQUIRE(left_become(world, 3));
    const Ended told = world.tool({"release", "--tickets", "--json"});
    REQUIRE(told.status == 0);
    const auto json = nlohmann::json::parse(told.out);
    CHECK(json["schema"] == "shmbroker.release/1");
    CHECK(json["uid"] == ::geteuid());
    CHECK(json["tickets"] == 3);
    CHECK(json["tickets_left"] == 2);
    CHECK(json["regions_freed"] == 1);
    CHECK(json["bytes_freed"] == 8192);
    const Ended none = world.tool({"release", "--tickets"});
    CHECK(none.status == 0);
    CHECK_MESSAGE(has(none.out, "there was no ticket of "), none.out);
    CHECK_MESSAGE(has(none.out, "; 2 tickets stay that sessions may still use (--end ends them too)"), none.out);
    const Ended all = world.tool({"release", "--tickets", "--end"});
    CHECK(all.status == 0);
    CHECK_MESSAGE(has(all.out, "ended 2 tickets of "), all.out);
    CHECK(session.try_attach(first).error().status() == shmbroker::Status::not_found);
    CHECK(session.try_attach(second).error().status() == shmbroker::Status::not_found);
    CHECK(session.stat(region.id()).holders == 1);
  }
  CHECK(world.empties());
}

TEST_CASE("release --tickets ends those to one region, or to the regions of one group, which may have ended") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  leave_tickets(world.socket(), 2, 1, "job");
  leave_tickets(world.socket(), 1, 1);
  REQUIRE(left_become(world, 3));
  CHECK(world.tool({"release", "--tickets", "--group", "nobody-has-it"}).status == 5);
  CHECK(world.tool({"release", "--tickets", "@99999"}).status == 5);
  CHECK(own_tickets(world)["left"] == 3);
  const Ended group = world.tool({"release", "--tickets", "--group", own_user() + ":job"});
  CHECK(group.status == 0);
  CHECK_MESSAGE(has(group.out, "ended 2 tickets of "), group.out);
  std::string id = world.tool({"list", "-q"}).out;
  id.resize(std::min(id.find('\n'), id.size()));
  const Ended inspected = world.tool({"inspect", id});
  CHECK_MESSAGE(has(inspected.out, "MADE BY"), inspected.out);
  CHECK_MESSAGE(has(inspected.out, "ended"), inspected.out);
  const Ended nameless = world.tool({"release", id});
  CHECK(nameless.status == 4);
  const std::string number = id.substr(0, id.find('.'));
  CHECK_MESSAGE(has(nameless.err,
                    "no name to take away: it goes with its last holder, and 1 ticket can still open it: "
                    "`shmbroker release --tickets " +
                        number + "` ends those"),
                nameless.err);
  const Ended region = world.tool({"release", "--tickets", number});
  CHECK(region.status == 0);
  CHECK_MESSAGE(has(region.out, "ended 1 ticket of "), region.out);
  CHECK(own_tickets(world)["used"] == 0);
  CHECK(world.empties());
}

TEST_CASE("release --tickets of another user asks the admin socket; words without a meaning are refused") {
  World world;
  REQUIRE(world.tool({"run", "true"}).status == 0);
  leave_tickets(world.socket(), 2, 1);
  REQUIRE(left_become(world, 2));
  const std::string other = std::to_string(::geteuid() + 1);
  const Ended nothing = world.tool({"release", "--tickets", "--user", other});
  CHECK(nothing.status == 0);
  CHECK_MESSAGE(has(nothing.out, "there was no ticket of "), nothing.out);
  CHECK(own_tickets(world)["left"] == 2);
  // It is closed to everybody else: here by its mode, or, where the test is root, by its absence.
  const std::string admin = world.directory() + "/shmbroker/admin";
  REQUIRE(::rename(admin.c_str(), (admin + ".away").c_str()) == 0);
  CHECK(world.tool({"release", "--tickets", "--user", other}).status == 3);
  REQUIRE(::rename((admin + ".away").c_str(), admin.c_str()) == 0);
  CHECK(world.tool({"release", "--tickets", "--user", "no-such-user-here"}).status == 2);
  CHECK(world.tool({"release", "--tickets", "--group", "g", "a"}).status == 2);
  CHECK(world.tool({"release", "--user", own_user(), "a"}).status == 2);
  const Ended ended = world.tool({"release", "--tickets", "--user", own_user()});
  CHECK(ended.status == 0);
  CHECK_MESSAGE(has(ended.out, "ended 2 tickets of "), ended.out);
  CHECK(world.empties());
}

TEST_CASE("in system mode root ends what a user left, and no other user does") {
  if (!harness::can_change_uid()) SKIP_CASE("other users need root");
  constexpr uid_t kOwner = 60001, kStranger = 60002;
  harness::BrokerOptions options;
  options.system = true;
  harness::BrokerFixture broker(options);
  REQUIRE(broker.running());
  CHECK(leave_tickets(broker.socket(), 70, 1, {}, kOwner) == 70);
  const harness::TempDir folder;
  shmb::tools::TicketRelease wish;
  wish.common.socket = broker.socket();
  const auto ended_by = [&](uid_t uid, const std::string& user) {
    wish.user = user;
    return release_as(uid, wish, folder);
  };
  const std::string owner = std::to_string(kOwner);
  const Ended refused = ended_by(kStranger, owner);
  CHECK(refused.status == 4);
  CHECK_MESSAGE(has(refused.err, "tickets of 60001 are ended by that user, or by root and the broker's user"),
                refused.err);
  const Ended of_stranger = ended_by(kStranger, "");
  CHECK_MESSAGE(has(of_stranger.out, "there was no ticket of 60002"), of_stranger.err);
  const Ended own_of_root = ended_by(0, "");
  CHECK_MESSAGE(has(own_of_root.out, "there was no ticket of root"), own_of_root.err);
  wish.group = owner + ":nobody-has-it";
  CHECK(ended_by(0, "").status == 5);
  CHECK(ended_by(kStranger, "").status == 4);
  wish.group.clear();
  Ended by_root;
  CHECK(eventually([&] {
    by_root = ended_by(0, owner);
    return has(by_root.out, "ended 70 tickets of 60001; freed 8.0 KiB in 1 region\n");
  }));
  CHECK(by_root.status == 0);
  CHECK(leave_tickets(broker.socket(), 5, 1, {}, kOwner) == 5);
  CHECK(eventually([&] { return has(ended_by(kOwner, "").out, "ended 5 tickets of 60001"); }));
}

TEST_CASE("list --all-groups refuses an ordinary user with the reason, and shows root all groups") {
  if (!harness::can_change_uid()) SKIP_CASE("other users need root");
  harness::BrokerOptions options;
  options.system = true;
  harness::BrokerFixture broker(options);
  REQUIRE(broker.running());
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const std::string socket = broker.socket();
  Child stranger = child_of(60002, [&] {
    if (::dup2(ends[1], STDERR_FILENO) < 0) return 98;
    ::execl(SHMB_TEST_TOOL, "shmbroker", "list", "--all-groups", "--socket", socket.c_str(), nullptr);
    return 99;
  });
  ::close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t size; (size = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    said.append(buffer, static_cast<std::size_t>(size));
  ::close(ends[0]);
  CHECK(stranger.wait() == 4);
  CHECK(said == "shmbroker: the broker at " + socket +
                    " shows the groups of all users to root and to its own user alone: leave out --all-groups for your "
                    "own groups, or run as root\n");
  World world;
  CHECK(world.tool({"list", "--all-groups", "--socket", socket}).status == 0);
}
