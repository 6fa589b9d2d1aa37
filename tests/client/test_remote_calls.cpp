// SPDX-License-Identifier: Apache-2.0
// The requests of a worker to the broker, through the library: the table itself is tested in
// tests/daemon/books/test_books_remote.cpp.
#include <array>

#include "base/sys_file.hpp"
#include "client/calls/remote_calls.hpp"
#include "client/session/views.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/support/session.hpp"

using namespace support;
using namespace shmb::client;
using harness::BrokerFixture;
using harness::Child;
using shmb::Status;

namespace {

Deadline in_time() { return Deadline::after(20'000'000'000); }

struct Couple {
  explicit Couple(const BrokerFixture& broker) : owner(open(broker)), user(open(broker)) {
    id = must(join_world(*owner, {29500, 0, 2, "localhost:29500", "owner"}, in_time())).world;
    must(join_world(*user, {29500, 1, 2, "localhost:29500", "user"}, in_time()));
  }
  std::shared_ptr<Session> owner, user;
  std::uint64_t id = 0;
};

RemoteEvent next_of(Session& session) {
  auto event = must(session.next_remote_event(in_time()));
  REQUIRE(event);
  return *event;
}

}  // namespace

TEST_CASE("a reference goes from hand to hand through the broker's table, and its owner hears of its end") {
  BrokerFixture broker(harness::BrokerOptions{});
  REQUIRE_MESSAGE(broker.running(), broker.log());
  Couple couple(broker);
  CHECK(next_of(*couple.owner).change == SHMBW_WORLD_CHANGE_JOINED);
  CHECK(next_of(*couple.owner).change == SHMBW_WORLD_CHANGE_COMPLETE);
  auto workers = must(list_workers(*couple.user, {.region = {couple.id, 0, 0}}, in_time()));
  REQUIRE(workers.rows.size() == 2);
  CHECK(workers.rows[1].name == "user");

  auto made = must(create_reference(*couple.user, couple.id, {.owner = 0, .tell = true}, in_time()));
  CHECK(made.reference == RefId{1, 1});
  CHECK(made.fork == RefId{2, 1});
  const std::array wishes{ForkRequest{made.reference, 0}, ForkRequest{made.reference, 1}};
  auto forks = must(fork_references(*couple.user, couple.id, wishes, in_time()));
  REQUIRE(forks.size() == 2);
  auto taken = must(take_forks(*couple.owner, couple.id, forks, true, in_time()));
  REQUIRE(taken.size() == 2);
  CHECK(must(taken[0]).reference == made.reference);
  CHECK(status_of(taken[1]) == Status::not_found);  // not on its way to the owner
  CHECK(must(settle_reference(*couple.owner, couple.id, made.reference, SHMBW_REF_STATE_FAILED, std::string(1000, 'e'),
                              in_time())) == SHMBW_REF_STATE_FAILED);
  auto told = next_of(*couple.user);
  CHECK(told.kind == RemoteEvent::Kind::ref_changed);
  CHECK(told.state == SHMBW_REF_STATE_FAILED);
  CHECK(told.reference == made.reference);
  auto facts = must(ask_reference(*couple.user, couple.id, made.reference, false, in_time()));
  CHECK(facts.users == 3);
  CHECK(facts.in_flight == 1);
  CHECK(facts.error == std::string(kMaxReferenceError, 'e'));
  auto listed = must(list_references(*couple.user, {}, in_time()));
  REQUIRE(listed.rows.size() == 1);
  CHECK(listed.rows[0].error == facts.error);

  must(release_forks(*couple.owner, couple.id, std::array{forks[0]}, in_time()));
  must(release_forks(*couple.user, couple.id, std::array{forks[1], made.fork}, in_time()));
  auto unused = next_of(*couple.owner);
  CHECK(unused.kind == RemoteEvent::Kind::ref_unused);
  CHECK(unused.reference == made.reference);
}

TEST_CASE("of a list of forks all are booked or none") {
  BrokerFixture broker(harness::BrokerOptions{});
  REQUIRE_MESSAGE(broker.running(), broker.log());
  Couple couple(broker);
  auto made = must(create_reference(*couple.user, couple.id, {.owner = 0}, in_time()));
  std::vector<ForkRequest> wishes(300, {made.reference, 0});
  wishes[290].user = 7;
  auto none = fork_references(*couple.user, couple.id, wishes, in_time());
  REQUIRE_FALSE(none);
  CHECK(none.error().status == Status::invalid);
  CHECK(none.error().sentence.find("user 7") != std::string::npos);
  CHECK(must(ask_reference(*couple.user, couple.id, made.reference, false, in_time())).users == 1);
  wishes[290].user = 1;
  CHECK(must(fork_references(*couple.user, couple.id, wishes, in_time())).size() == 300);
  CHECK(must(ask_reference(*couple.user, couple.id, made.reference, false, in_time())).in_flight == 300);
}

TEST_CASE("events that were lost in a flood become one gap, and the lists have the true state") {
  BrokerFixture broker(harness::BrokerOptions{});
  REQUIRE_MESSAGE(broker.running(), broker.log());
  Couple couple(broker);
  // More than wait at the broker and in the owner's socket, while the owner does not read.
  for (int i = 0; i < 3000; ++i) {
    auto made = must(create_reference(*couple.user, couple.id, {.owner = 0}, in_time()));
    must(release_forks(*couple.user, couple.id, std::array{made.fork}, in_time()));
  }
  must(couple.user->ping(in_time()));  // the last release has been read
  bool gap = false;
  while (auto event = must(couple.owner->next_remote_event(Deadline::after(1'000'000'000))))
    gap = gap || event->kind == RemoteEvent::Kind::gap;
  CHECK(gap);
  CHECK(must(list_references(*couple.owner, {}, in_time())).rows.empty());
}

TEST_CASE("the others hear of a worker that leaves, and its later messages are refused") {
  BrokerFixture broker(harness::BrokerOptions{});
  REQUIRE_MESSAGE(broker.running(), broker.log());
  Couple couple(broker);
  auto made = must(create_reference(*couple.user, couple.id, {.owner = 0}, in_time()));
  auto left = must(leave_world(*couple.user, couple.id, in_time()));
  CHECK(left.present == 1);
  CHECK(left.forks == 1);
  CHECK(status_of(ask_reference(*couple.user, couple.id, made.reference, false, in_time())) == Status::no_world);
  CHECK(status_of(create_reference(*couple.owner, couple.id, {.owner = 1}, in_time())) == Status::worker_gone);
  // Behind what it has not been told yet: that it joined, and that the world was complete.
  RemoteEvent heard = next_of(*couple.owner);
  while (heard.change != SHMBW_WORLD_CHANGE_LEFT) heard = next_of(*couple.owner);
  CHECK(heard.rank == 1);
  CHECK(heard.present == 1);
}

TEST_CASE("a join that comes too late for its deadline is taken back, and so is a reference") {
  BrokerFixture broker(harness::BrokerOptions{});
  REQUIRE_MESSAGE(broker.running(), broker.log());
  auto session = open(broker);
  // Asked, and not waited for: the thread that reads the late answers gives back what they grant.
  auto joined = join_world(*session, {29500, 0, 1, "localhost:29500", "late"}, Deadline::now());
  if (!joined) {
    CHECK(joined.error().status == Status::deadline);
    CHECK(must(list_worlds(*session, {}, in_time())).rows.size() <= 1);
    must(session->ping(in_time()));
    CHECK(must(list_worlds(*session, {}, in_time())).rows.empty());
    must(join_world(*session, {29500, 0, 1, "localhost:29500", "late"}, in_time()));
  }
  auto made = create_reference(*session, 0, {.owner = 0}, Deadline::now());
  if (!made) {
    must(session->ping(in_time()));
    must(session->ping(in_time()));
    CHECK(must(list_references(*session, {}, in_time())).rows.empty());
  }
}

TEST_CASE("a forked child is no worker") {
  BrokerFixture broker(harness::BrokerOptions{});
  REQUIRE_MESSAGE(broker.running(), broker.log());
  Couple couple(broker);
  auto child = Child::run([&] {
    auto made = create_reference(*couple.user, couple.id, {.owner = 0}, in_time());
    return !made && made.error().status == Status::no_world ? 0 : 1;
  });
  CHECK(child.wait() == 0);
  CHECK(must(create_reference(*couple.user, couple.id, {.owner = 0}, in_time())).reference == RefId{1, 1});
}

TEST_CASE("a session without a broker has no worlds") {
  auto local = must(Session::local("test"));
  CHECK(status_of(join_world(*local, {29500, 0, 1, "localhost:29500", "a"}, in_time())) == Status::local_only);
  CHECK(status_of(create_reference(*local, 1, {}, in_time())) == Status::local_only);
  CHECK(status_of(local->next_remote_event(in_time())) == Status::local_only);
}
