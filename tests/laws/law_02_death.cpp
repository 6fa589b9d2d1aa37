// SPDX-License-Identifier: Apache-2.0
// Law 2: death is a readable pidfd. The end of the file ends a session; a readable pidfd with the socket still open
// makes an heir, whose leases stay until the end of the file; never a heartbeat, a time-out or a process number.
//
// To see it fail: in daemon/serve/session_end.cpp, session_process_died, take the condition off
//   if (session.lazy) end_session(ledger, session);
// and a forked child loses what it still uses the moment its parent dies.
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "client/calls/remote_calls.hpp"
#include "tests/laws/law.hpp"

using namespace laws;

namespace {

// A session in a child of its own, killed on request, that leaves a forked heir behind.
struct Family {
  Gate go_on;   // the heir makes its first call
  Gate finish;  // the heir ends
  Line told;    // 'm' mapped, 'h' heir alive, then its verdicts
  Child parent;

  Family(const std::string& socket, bool double_fork)
      : parent(Child::run([&, socket, double_fork] { return live(socket, double_fork); })) {}

  int live(const std::string& socket, bool double_fork) {
    auto session = must(try_open(socket));
    auto region = must(create_region(session, named("estate", 8192)));
    region->data()[0] = std::byte{42};
    told.say('m');
    // Not by Child: an heir must outlive its parent.
    if (::fork() == 0) {
      if (double_fork && ::fork() != 0) ::_exit(0);
      if (double_fork) ::setsid();
      inherit(session, *region);
    }
    for (;;) ::pause();
  }
  [[noreturn]] void inherit(const std::shared_ptr<Session>& session, Region& region) {
    told.say('h');
    ::alarm(60);
    go_on.wait();
    told.say(region.data()[0] == std::byte{42} ? 'r' : '!');
    const bool served = session->ping(soon()).has_value() && region.descriptor(soon()).has_value();
    told.say(served ? 's' : '!');
    finish.wait();
    ::_exit(0);
  }
};

// With CAP_SYS_ADMIN a process may be born with a number of our choice.
pid_t born_as(pid_t number, const std::function<int()>& body) {
  clone_args wish{};
  pid_t wanted[] = {number};
  wish.exit_signal = SIGCHLD;
  wish.set_tid = reinterpret_cast<std::uintptr_t>(wanted);
  wish.set_tid_size = 1;
  const auto pid = static_cast<pid_t>(::syscall(SYS_clone3, &wish, sizeof wish));
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(body());
  }
  return pid;
}

}  // namespace

TEST_CASE("law 2: the end of the file ends a session, the process may live on") {
  on_each_engine([](BrokerFixture& broker) {
    const auto admin = open_admin(broker);
    auto session = open(broker);
    auto region = must(create_region(session, named("", 8192)));
    CHECK(leases(admin).size() == 1);
    region.reset();
    session.reset();
    CHECK(eventually([&] { return regions(admin).empty() && sessions(admin).size() == 1; }));
  });
}

TEST_CASE("law 2: a dead parent's forked child is its heir, and a session of its own from its first call") {
  for (const bool double_fork : {false, true}) {
    CAPTURE(double_fork);
    on_each_engine([&](BrokerFixture& broker) {
      const auto admin = open_admin(broker);
      Family family(broker.socket(), double_fork);
      REQUIRE(family.told.hear() == 'm');
      REQUIRE(family.told.hear() == 'h');
      CHECK(sessions_in_state(admin, SHMBW_SESSION_STATE_HEIR) == 0);
      family.parent.kill();
      CHECK(family.parent.wait() == 128 + SIGKILL);
      CHECK(eventually([&] { return sessions_in_state(admin, SHMBW_SESSION_STATE_HEIR) == 1; }));
      ::usleep(300'000);  // no time-out takes it away
      REQUIRE(leases(admin).size() == 1);
      CHECK(leases(admin)[0].record.state == SHMBW_SESSION_STATE_HEIR);
      REQUIRE(regions(admin).size() == 1);
      CHECK(regions(admin)[0].name == "estate");
      family.go_on.open();
      CHECK(family.told.hear() == 'r');
      CHECK(family.told.hear() == 's');
      CHECK(eventually([&] { return sessions_in_state(admin, SHMBW_SESSION_STATE_HEIR) == 0; }));
      REQUIRE(leases(admin).size() == 1);
      CHECK(leases(admin)[0].record.state == SHMBW_SESSION_STATE_MEMBER);
      CHECK(leases(admin)[0].record.pid != static_cast<std::uint32_t>(family.parent.pid()));
      family.finish.open();
      CHECK(eventually([&] { return regions(admin).empty() && sessions(admin).size() == 1; }));
    });
  }
}

TEST_CASE("law 2: an heir that never calls keeps the leases until it ends") {
  on_each_engine([](BrokerFixture& broker) {
    const auto admin = open_admin(broker);
    auto family = std::make_unique<Family>(broker.socket(), false);
    REQUIRE(family->told.hear() == 'm');
    REQUIRE(family->told.hear() == 'h');
    pid_t heir = 0;
    // The only child of the parent.
    if (auto text = sys::read_file(("/proc/" + std::to_string(family->parent.pid()) + "/task/" +
                                    std::to_string(family->parent.pid()) + "/children")
                                       .c_str());
        text)
      heir = static_cast<pid_t>(std::atoi(text->c_str()));
    if (heir == 0) SKIP_CASE("/proc/PID/task/TID/children is not there");
    family->parent.kill();
    CHECK(family->parent.wait() == 128 + SIGKILL);
    CHECK(eventually([&] { return sessions_in_state(admin, SHMBW_SESSION_STATE_HEIR) == 1; }));
    CHECK(regions(admin).size() == 1);
    ::kill(heir, SIGKILL);
    CHECK(eventually([&] { return regions(admin).empty() && sessions(admin).size() == 1; }));
  });
}

TEST_CASE("law 2: a stopped process is alive") {
  on_each_engine([](BrokerFixture& broker) {
    const auto admin = open_admin(broker);
    Line told;
    Gate finish;
    auto client = Child::run([&] {
      auto session = must(try_open(broker.socket()));
      auto region = must(create_region(session, named("still", 8192)));
      told.say('m');
      finish.wait();
      return session->ping(soon()) && region->descriptor(soon()) ? 0 : 1;
    });
    REQUIRE(told.hear() == 'm');
    client.kill(SIGSTOP);
    const auto before = leases(admin);
    ::usleep(2'500'000);  // longer than the two seconds that a connection has for HELLO
    CHECK(sessions_in_state(admin, SHMBW_SESSION_STATE_MEMBER) == 2);
    REQUIRE(leases(admin).size() == 1);
    CHECK(leases(admin)[0].record.session == before[0].record.session);
    CHECK(regions(admin)[0].name == "still");
    client.kill(SIGCONT);
    finish.open();
    CHECK(client.wait() == 0);
  });
}

TEST_CASE("law 2: a process that reuses a dead client's pid is not that client") {
  on_each_engine([](BrokerFixture& broker) {
    const auto admin = open_admin(broker);
    auto family = std::make_unique<Family>(broker.socket(), false);
    REQUIRE(family->told.hear() == 'm');
    REQUIRE(family->told.hear() == 'h');
    const pid_t number = family->parent.pid();
    const auto first = leases(admin)[0].record.session;
    family->parent.kill();
    CHECK(family->parent.wait() == 128 + SIGKILL);
    CHECK(eventually([&] { return sessions_in_state(admin, SHMBW_SESSION_STATE_HEIR) == 1; }));
    Line told;
    const pid_t again = born_as(number, [&] {
      auto session = try_open(broker.socket());
      if (!session) return 1;
      auto mine = create_region(*session, named("mine", 4096));
      told.say(mine ? 'c' : '!');
      return session.value()->ping(soon()) ? 0 : 2;
    });
    if (again < 0) {
      family->finish.open(), family->go_on.open();
      SKIP_CASE("choosing a process number needs CAP_SYS_ADMIN");
    }
    CHECK(again == number);
    CHECK(told.hear() == 'c');
    int status = -1;
    CHECK(::waitpid(again, &status, 0) == again);
    CHECK(status == 0);
    // It took nothing of the heir's, neither by its birth nor by its death.
    CHECK(eventually([&] { return regions(admin).size() == 1; }));
    REQUIRE(leases(admin).size() == 1);
    CHECK(leases(admin)[0].record.session == first);
    CHECK(leases(admin)[0].record.state == SHMBW_SESSION_STATE_HEIR);
    family->finish.open(), family->go_on.open();
    CHECK(eventually([&] { return regions(admin).empty(); }));
  });
}

TEST_CASE(
    "law 2: a worker's death drops what it held of others and fails what it owned, though a child has its socket") {
  on_each_engine([](BrokerFixture& broker) {
    const auto admin = open_admin(broker);
    auto other = open(broker);
    Line told;
    Gate finish;
    const WorldRequest first{29500, 0, 2, "localhost:29500", "first"};
    const WorldRequest second{29500, 1, 2, "localhost:29500", "second"};
    must(join_world(*other, first, soon()));
    auto worker = Child::run([&] {
      auto session = must(try_open(broker.socket()));
      must(join_world(*session, second, soon()));
      for (int i = 0; i < 50; ++i) must(create_reference(*session, 0, {.owner = 0}, soon()));
      told.say('j');
      if (::fork() == 0) {
        ::alarm(60);
        told.say('h');
        finish.wait();  // with the socket, and not the worker
        ::_exit(0);
      }
      for (;;) ::pause();
      return 0;
    });
    REQUIRE(told.hear() == 'j');
    REQUIRE(told.hear() == 'h');
    auto mine = must(create_reference(*other, 0, {.owner = 1}, soon()));
    CHECK(must(list_references(*admin, {}, soon())).rows.size() == 51);
    worker.kill();
    CHECK(worker.wait() == 128 + SIGKILL);
    CHECK(eventually([&] { return must(list_references(*admin, {}, soon())).rows.size() == 1; }));
    CHECK(must(ask_reference(*other, 0, mine.reference, false, soon())).state == SHMBW_REF_STATE_OWNER_GONE);
    CHECK(status_of(create_reference(*other, 0, {.owner = 1}, soon())) == Status::worker_gone);
    CHECK(sessions_in_state(admin, SHMBW_SESSION_STATE_HEIR) == 1);
    bool died = false;
    std::size_t unused = 0;
    while (!died || unused < 50) {
      auto event = must(other->next_remote_event(Deadline::after(20'000'000'000)));
      REQUIRE(event);
      died = died || (event->change == SHMBW_WORLD_CHANGE_DIED && event->rank == 1);
      unused += event->kind == RemoteEvent::Kind::ref_unused;
    }
    CHECK(died);
    CHECK(unused == 50);
    finish.open();
    other.reset();
    CHECK(eventually([&] { return must(list_worlds(*admin, {}, soon())).rows.empty(); }));
  });
}

TEST_CASE("law 2: in all 120 orders of death of five members a group ends with the last, and only then") {
  constexpr std::size_t kMembers = 5;
  on_each_engine([](BrokerFixture& broker) {
    const auto admin = open_admin(broker);
    std::array<std::size_t, kMembers> order{0, 1, 2, 3, 4};
    int orders = 0;
    do {
      if (orders++ % harness::kSlowdown != 0) continue;
      CAPTURE(orders);
      Line told;
      std::vector<Child> members;
      for (std::size_t i = 0; i < kMembers; ++i) {
        members.push_back(Child::run([&, i] {
          auto session = must(try_open(broker.socket()));
          if (i == 0) must(session->create_group({.name = "five"}, soon()));
          must(session->join_group("five", 0, soon()));
          auto own = must(create_region(session, named("of-" + std::to_string(i), 4096)));
          auto common = i == 0 ? must(create_region(session, named("common", 8192)))
                               : must(attach_region(session, at("common", kReadWrite)));
          told.say('m');
          for (;;) ::pause();
          return 0;
        }));
        REQUIRE(told.hear() == 'm');
      }
      for (std::size_t dead = 0; dead < kMembers; ++dead) {
        members[order[dead]].kill();
        CHECK(members[order[dead]].wait() == 128 + SIGKILL);
        const std::size_t left = kMembers - dead - 1;
        REQUIRE(eventually([&] { return sessions(admin).size() == left + 1; }));
        // Named regions stay as long as the group, also those that the dead process had made.
        // The group goes when its memory has: several regions at once are closed on the helper thread.
        if (left == 0) REQUIRE(eventually([&] { return regions(admin).empty(); }));
        CHECK(regions(admin).size() == (left == 0 ? 0 : kMembers + 1));
        CHECK(leases(admin).size() == 2 * left);
        CHECK(must(list_groups(*admin, {}, soon())).rows.size() == (left == 0 ? 0 : 1));
      }
    } while (std::next_permutation(order.begin(), order.end()));
    CHECK(orders == 120);
  });
}
