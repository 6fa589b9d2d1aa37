// SPDX-License-Identifier: Apache-2.0
// Worlds of workers and the table of references: who may join, what each death takes along, and that nothing that is
// booked outlives the world. The fixture proves at each end that all charges are back.
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/daemon/books/books_fixture.hpp"
#include "tests/daemon/books/records_fixture.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/skip.hpp"

using namespace shmb;
using namespace shmb::daemon::test;

namespace {

constexpr std::uint32_t kOwn = 0xffff'ffff;

Packet& join_world(Client& client, std::uint32_t rank, std::uint32_t size, const std::string& name,
                   std::uint32_t port = 29500, const std::string& address = "localhost:29500") {
  shmbw_world_join wish{port, rank, size, static_cast<std::uint16_t>(address.size()),
                        static_cast<std::uint16_t>(name.size())};
  return client.call(SHMBW_OP_WORLD_JOIN, wish, address + name);
}

// The one element's status; its sentence in `sentence`.
template <class Reply>
struct Outcome {
  Status status = Status::ok;
  std::string sentence;
  Reply reply{};
};
template <class Reply, class Wanted>
Outcome<Reply> ask_one(Client& client, std::uint16_t op, const Wanted& wish, std::string_view text = {}) {
  Packet& packet = client.batch(op, std::vector<Wanted>{wish}, text);
  REQUIRE(packet.status() == Status::ok);
  auto batch = wire::BatchView::open(packet.view());
  REQUIRE(batch);
  Outcome<Reply> out;
  out.reply = batch->element<Reply>(0).value();
  out.status = static_cast<Status>(out.reply.outcome.status);
  if (out.status != Status::ok) {
    wire::TextReader texts = batch->texts();
    out.sentence =
        wire::read_element_detail(out.reply.outcome.status, texts.take(out.reply.outcome.detail_len).value()).sentence;
  }
  client.link().replies.clear();
  return out;
}

auto create_ref(Client& client, std::uint32_t owner, std::uint32_t user = kOwn,
                std::uint32_t state = SHMBW_REF_STATE_REGISTERED, std::uint32_t flags = 0, std::uint64_t counter = 0) {
  return ask_one<shmbw_ref_create_reply>(client, SHMBW_OP_REF_CREATE,
                                         shmbw_ref_create{0, counter, owner, user, state, flags});
}
auto fork_ref(Client& client, const shmbw_ref_id& reference, std::uint32_t user) {
  return ask_one<shmbw_ref_fork_reply>(client, SHMBW_OP_REF_FORK, shmbw_ref_fork{0, reference, user, 0});
}
auto take_ref(Client& client, const shmbw_ref_id& fork, std::uint32_t flags = 0) {
  return ask_one<shmbw_ref_take_reply>(client, SHMBW_OP_REF_TAKE, shmbw_ref_take{0, fork, flags, 0});
}
auto release_ref(Client& client, const shmbw_ref_id& fork) {
  return ask_one<shmbw_ref_release_reply>(client, SHMBW_OP_REF_RELEASE, shmbw_ref_release{0, fork});
}
auto settle_ref(Client& client, const shmbw_ref_id& reference, std::uint32_t state, const std::string& text = {}) {
  return ask_one<shmbw_ref_settle_reply>(
      client, SHMBW_OP_REF_SETTLE, shmbw_ref_settle{0, reference, state, static_cast<std::uint16_t>(text.size()), 0},
      text);
}
Packet& ask_ref(Client& client, const shmbw_ref_id& reference) {
  return client.call(SHMBW_OP_REF_ASK, shmbw_ref_ask{0, reference, 0, 0});
}

// A complete world of so many workers of one uid.
struct Workers {
  explicit Workers(World& world, std::uint32_t size, std::uint32_t uid = 1000) {
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      all.push_back(world.client(uid));
      Packet& joined = join_world(all.back(), rank, size, "w" + std::to_string(rank));
      REQUIRE(joined.status() == Status::ok);
      id = joined.fixed<shmbw_world_join_reply>().world;
    }
    for (Client& client : all) client.link().events.clear();
  }
  Client& operator[](std::size_t rank) { return all[rank]; }
  std::vector<Client> all;
  std::uint64_t id = 0;
};

// They meet in a pool, as workers do: before that nobody is replaced.
std::uint64_t meet_in_pool(Workers& workers) {
  shmbw_pool_create wish{};
  wish.lane_bytes = 65536;
  Packet& made = workers[0].call(SHMBW_OP_POOL_CREATE, wish);
  REQUIRE(made.status() == Status::ok);
  const std::uint64_t pool = made.fixed<shmbw_pool_create_reply>().pool;
  REQUIRE(workers[0].call(SHMBW_OP_WORLD_POOL, shmbw_world_pool{workers.id, pool}).status() == Status::ok);
  shmbw_pool_join join{};
  join.pool = pool;
  for (std::size_t rank = 1; rank < workers.all.size(); ++rank)
    REQUIRE(workers[rank].call(SHMBW_OP_POOL_JOIN, join).status() == Status::ok);
  for (Client& client : workers.all) client.link().events.clear();
  return pool;
}
shmbw_worker_record worker_row(Client& client, std::uint32_t rank) {
  for (const auto& row : client.rows<shmbw_worker_record>(SHMBW_TABLE_WORKERS))
    if (row.rank == rank) return row;
  return {};
}

std::vector<shmbw_world_changed_event> changes(Client& client) {
  std::vector<shmbw_world_changed_event> out;
  for (const Packet& event : client.link().events)
    if (event.op() == (SHMBW_EVENT_WORLD_CHANGED | SHMBW_EVENT))
      out.push_back(event.fixed<shmbw_world_changed_event>());
  return out;
}
std::vector<std::uint64_t> unused(Client& client) {
  std::vector<std::uint64_t> out;
  for (const Packet& event : client.link().events)
    if (event.op() == (SHMBW_EVENT_REF_UNUSED | SHMBW_EVENT))
      out.push_back(event.fixed<shmbw_ref_unused_event>().reference.counter);
  return out;
}
std::vector<std::uint32_t> states_told(Client& client) {
  std::vector<std::uint32_t> out;
  for (const Packet& event : client.link().events)
    if (event.op() == (SHMBW_EVENT_REF_CHANGED | SHMBW_EVENT))
      out.push_back(event.fixed<shmbw_ref_changed_event>().state);
  return out;
}

std::vector<shmbw_reference_record> references_of(Client& client) {
  return client.rows<shmbw_reference_record>(SHMBW_TABLE_REFERENCES);
}

bool says(const std::string& sentence, const char* part) { return sentence.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a world is complete with its last worker, and the workers present are notified") {
  World world;
  Client a = world.client(), b = world.client();
  auto first = join_world(a, 0, 2, "a").fixed<shmbw_world_join_reply>();
  CHECK(first.present == 1);
  CHECK(first.flags == 0);
  CHECK(first.group != 0);
  CHECK(changes(a).empty());
  auto second = join_world(b, 1, 2, "b").fixed<shmbw_world_join_reply>();
  CHECK(second.world == first.world);
  CHECK(second.flags == SHMBW_WORLD_STATE_COMPLETE);
  auto told = changes(a);
  REQUIRE(told.size() == 2);
  CHECK(told[0].change == SHMBW_WORLD_CHANGE_JOINED);
  CHECK(told[0].rank == 1);
  CHECK(told[0].present == 2);
  CHECK(told[1].change == SHMBW_WORLD_CHANGE_COMPLETE);
  CHECK(changes(b).empty());
  auto rows = b.rows<shmbw_worker_record>(SHMBW_TABLE_WORKERS);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].session == a.id);
  CHECK(rows[1].rank == 1);
  auto worlds = a.rows<shmbw_world_record>(SHMBW_TABLE_WORLDS, {.region = {first.world, 0, 0}});
  REQUIRE(worlds.size() == 1);
  CHECK(worlds[0].port == 29500);
  CHECK(worlds[0].world_size == 2);
  CHECK(worlds[0].present == 2);
}

TEST_CASE("a join that cannot be is refused with what is wrong, and leaves nothing") {
  World world;
  Client a = world.client();
  REQUIRE(join_world(a, 0, 3, "a").status() == Status::ok);
  Client b = world.client();
  auto refused = [&](Status status, const char* words, std::uint32_t rank, std::uint32_t size, const std::string& name,
                     std::uint32_t port = 29500, const std::string& address = "localhost:29500") {
    Packet& reply = join_world(b, rank, size, name, port, address);
    CHECK(reply.status() == status);
    CHECK_MESSAGE(says(reply.error().sentence, words), reply.error().sentence);
  };
  refused(Status::invalid, "ranks 0 to 2", 3, 3, "b");
  refused(Status::invalid, "1 to 64 workers", 0, 0, "b");
  refused(Status::limit, "at most 64", 0, 65, "b");
  refused(Status::invalid, "all must say the same world_size", 1, 4, "b");
  refused(Status::exists, "rank 0", 0, 3, "b");
  refused(Status::invalid, "names of workers", 1, 3, "");
  refused(Status::invalid, "names of workers", 1, 3, "a b");
  refused(Status::invalid, "names of workers", 1, 3, std::string(128, 'n'));
  refused(Status::invalid, "port", 1, 3, "b", 0);
  refused(Status::invalid, "port", 1, 3, "b", 65536);
  refused(Status::invalid, "address", 1, 3, "b", 29500, "");
  refused(Status::invalid, "address", 1, 3, "b", 29500, "a b:1");
  Packet& again = join_world(a, 1, 3, "b");
  CHECK(again.status() == Status::busy);
  CHECK(says(again.error().sentence, "worker 0 ('a')"));
  CHECK(a.rows<shmbw_worker_record>(SHMBW_TABLE_WORKERS).size() == 1);
  CHECK(join_world(b, 1, 3, std::string(127, 'n')).status() == Status::ok);
}

TEST_CASE("a running world keeps its port for its uid, another uid's is no conflict") {
  World world(system_config());
  Workers workers(world, 2);
  Client late = world.client(1000), stranger = world.client(2000);
  Packet& refused = join_world(late, 0, 2, "w0");
  CHECK(refused.status() == Status::world_taken);
  CHECK(says(refused.error().sentence, "localhost:29500"));
  CHECK(says(refused.error().sentence, "MASTER_PORT"));
  CHECK(join_world(late, 1, 3, "w1").status() == Status::world_taken);
  CHECK(join_world(late, 0, 1, "w0", 29501).status() == Status::ok);
  CHECK(join_world(stranger, 0, 2, "w0").status() == Status::ok);
  CHECK(stranger.rows<shmbw_world_record>(SHMBW_TABLE_WORLDS).size() == 1);
  CHECK(late.rows<shmbw_world_record>(SHMBW_TABLE_WORLDS).size() == 2);
  Client admin = world.admin();
  CHECK(admin.rows<shmbw_world_record>(SHMBW_TABLE_WORLDS).size() == 3);
}

TEST_CASE("before the world is complete a worker that leaves frees its rank, one that dies ends the world") {
  World world;
  Client a = world.client(), b = world.client();
  REQUIRE(join_world(a, 0, 3, "a").status() == Status::ok);
  auto id = join_world(b, 1, 3, "b").fixed<shmbw_world_join_reply>().world;
  CHECK(b.call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{id}).status() == Status::ok);
  CHECK(changes(a).back().change == SHMBW_WORLD_CHANGE_LEFT);
  CHECK(b.call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{id}).status() == Status::no_world);
  REQUIRE(join_world(b, 1, 3, "c").status() == Status::ok);
  b.die();
  const auto told = changes(a);
  REQUIRE(told.size() >= 2);
  CHECK(told[told.size() - 2].change == SHMBW_WORLD_CHANGE_DIED);
  CHECK(told[told.size() - 2].rank == 1);
  CHECK(told.back().change == SHMBW_WORLD_CHANGE_ENDED);
  CHECK(a.call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{id}).status() == Status::worker_gone);
  Client c = world.client();
  CHECK(join_world(c, 1, 3, "c").fixed<shmbw_world_join_reply>().world != id);
}

TEST_CASE(
    "a worker that has left a complete world in order can begin the next one at once, however slow the others are") {
  World world;
  Workers workers(world, 2);
  workers[1].call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{workers.id});
  CHECK(changes(workers[0]).back().change == SHMBW_WORLD_CHANGE_LEFT);
  Client other = world.client();
  CHECK(join_world(other, 1, 2, "someone").status() == Status::world_taken);  // not the one who left
  Packet& next = join_world(workers[1], 1, 2, "w1");
  REQUIRE(next.status() == Status::ok);
  CHECK(next.fixed<shmbw_world_join_reply>().world != workers.id);
  CHECK(join_world(workers[0], 0, 2, "w0").status() == Status::busy);  // still in the old one
  workers[0].call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{workers.id});
  auto both = join_world(workers[0], 0, 2, "w0").fixed<shmbw_world_join_reply>();
  CHECK(both.flags == SHMBW_WORLD_STATE_COMPLETE);
  CHECK(workers[0].rows<shmbw_world_record>(SHMBW_TABLE_WORLDS).size() == 1);
}

TEST_CASE("the world's group lives as long as the world, and its end is the world's end") {
  World world;
  Client a = world.client(), b = world.client();
  auto joined = join_world(a, 0, 2, "a").fixed<shmbw_world_join_reply>();
  join_world(b, 1, 2, "b");
  create_ref(b, 0);
  a.die();  // who made the world, the only member of its group
  CHECK(b.create({.name = "still", .group = joined.group}).status == Status::ok);
  CHECK(b.end_group(joined.group).status() == Status::ok);
  CHECK(changes(b).back().change == SHMBW_WORLD_CHANGE_ENDED);
  CHECK(b.call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{joined.world}).status() == Status::no_world);
  CHECK(create_ref(b, 1).status == Status::no_world);
  CHECK(b.rows<shmbw_world_record>(SHMBW_TABLE_WORLDS).empty());
}

TEST_CASE("a heir is no worker: its parent's death ends the role, and so does a closed socket") {
  World world;
  Workers workers(world, 3);
  workers[1].pidfd();  // a child has the socket
  CHECK(changes(workers[0]).back().change == SHMBW_WORLD_CHANGE_DIED);
  CHECK(changes(workers[0]).back().rank == 1);
  CHECK(create_ref(workers[1], 0).status == Status::no_world);
  workers[2].end_of_file();
  CHECK(changes(workers[0]).back().rank == 2);
  CHECK(changes(workers[0]).size() == 2);
}

TEST_CASE("a worker whose connection was closed for laziness goes on under its new session") {
  World world;
  Workers workers(world, 2);
  auto made = create_ref(workers[1], 0);
  const std::uint32_t pid = workers[0].rows<shmbw_worker_record>(SHMBW_TABLE_WORKERS)[1].pid;
  workers[1].disconnect();
  CHECK(changes(workers[0]).empty());
  CHECK(references_of(workers[0]).size() == 1);
  Client back = world.silent(1000, pid);
  HelloRequest wish;
  wish.fork_session = workers[1].id;
  wish.fork_secret = workers[1].secret;
  REQUIRE(back.hello(wish).status() == Status::ok);
  CHECK(release_ref(back, made.reply.fork).status == Status::ok);
  CHECK(unused(workers[0]).size() == 1);
  CHECK(changes(workers[0]).empty());
  back.die();
  CHECK(changes(workers[0]).back().change == SHMBW_WORLD_CHANGE_DIED);
}

TEST_CASE("a worker whose connection was closed for laziness dies with its process") {
  World world;
  Workers workers(world, 2);
  REQUIRE(create_ref(workers[1], 0).status == Status::ok);
  workers[1].disconnect();
  workers[1].pidfd();
  CHECK(changes(workers[0]).back().change == SHMBW_WORLD_CHANGE_DIED);
  CHECK(references_of(workers[0]).empty());
}

TEST_CASE("references and forks count on one counter of their maker, from 1") {
  World world;
  Workers workers(world, 3);
  auto first = create_ref(workers[1], 0);
  CHECK(first.reply.reference.counter == 1);
  CHECK(first.reply.reference.creator == 1);
  CHECK(first.reply.fork.counter == 2);
  auto second = create_ref(workers[1], 2);
  CHECK(second.reply.reference.counter == 3);
  auto fork = fork_ref(workers[1], first.reply.reference, 2);
  CHECK(fork.reply.fork.counter == 5);
  CHECK(fork.reply.fork.creator == 1);
  CHECK(create_ref(workers[2], 2).reply.reference.counter == 1);
}

TEST_CASE("a reference lives while it has a fork, and its owner hears of the last one's end") {
  World world;
  Workers workers(world, 3);
  auto made = create_ref(workers[1], 0);
  auto fork = fork_ref(workers[1], made.reply.reference, 2);
  CHECK(release_ref(workers[1], made.reply.fork).status == Status::ok);
  CHECK(release_ref(workers[1], made.reply.fork).status == Status::not_found);
  CHECK(unused(workers[0]).empty());
  auto taken = take_ref(workers[2], fork.reply.fork);
  REQUIRE(taken.status == Status::ok);
  CHECK(taken.reply.reference.counter == made.reply.reference.counter);
  CHECK(taken.reply.owner == 0);
  CHECK(take_ref(workers[2], fork.reply.fork).status == Status::ok);  // again
  CHECK(take_ref(workers[1], fork.reply.fork).status == Status::not_found);
  CHECK(release_ref(workers[1], fork.reply.fork).status == Status::not_found);  // not the sender's any more
  CHECK(release_ref(workers[2], fork.reply.fork).status == Status::ok);
  CHECK(unused(workers[0]) == std::vector<std::uint64_t>{made.reply.reference.counter});
  CHECK(ask_ref(workers[0], made.reply.reference).status() == Status::not_found);
  CHECK(settle_ref(workers[0], made.reply.reference, SHMBW_REF_STATE_READY).status == Status::not_found);
}

TEST_CASE("a fork in flight outlives its sender, and is gone with its receiver") {
  World world;
  Workers workers(world, 4);
  auto made = create_ref(workers[1], 0);
  auto to_two = fork_ref(workers[1], made.reply.reference, 2);
  auto to_three = fork_ref(workers[1], made.reply.reference, 3);
  workers[1].die();
  auto rows = references_of(workers[0]);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].users == 2);
  CHECK(rows[0].in_flight == 2);
  CHECK(rows[0].user_ranks == 0b1100);
  CHECK(take_ref(workers[2], to_two.reply.fork).status == Status::ok);
  workers[3].die();
  CHECK(references_of(workers[0])[0].in_flight == 0);
  CHECK(fork_ref(workers[2], made.reply.reference, 3).status == Status::worker_gone);
  CHECK(to_three.status == Status::ok);
  release_ref(workers[2], to_two.reply.fork);
  CHECK(unused(workers[0]).size() == 1);
}

TEST_CASE("a sender takes back a fork of a message that it could not send") {
  World world;
  Workers workers(world, 3);
  auto made = create_ref(workers[1], 0);
  auto fork = fork_ref(workers[1], made.reply.reference, 2);
  CHECK(release_ref(workers[0], fork.reply.fork).status == Status::not_found);
  CHECK(release_ref(workers[1], fork.reply.fork).status == Status::ok);
  CHECK(take_ref(workers[2], fork.reply.fork).status == Status::not_found);
  CHECK(references_of(workers[0])[0].users == 1);
}

TEST_CASE("a dead user's 50 references are gone at once, the owner hears of each, others keep theirs") {
  World world;
  Workers workers(world, 3);
  auto shared = create_ref(workers[2], 0);
  auto passed = fork_ref(workers[2], shared.reply.reference, 1);
  REQUIRE(take_ref(workers[1], passed.reply.fork).status == Status::ok);
  for (int i = 0; i < 49; ++i) REQUIRE(create_ref(workers[1], 0).status == Status::ok);
  CHECK(workers[0].rows<shmbw_worker_record>(SHMBW_TABLE_WORKERS)[0].owned == 50);
  workers[1].die();
  CHECK(unused(workers[0]).size() == 49);
  CHECK(references_of(workers[0]).size() == 1);
  CHECK(std::ranges::any_of(world.log, [](const std::string& line) { return says(line, "50 holds on references"); }));
}

TEST_CASE("an owner's death fails what it owned for all, with one event each, and the entries go with their users") {
  World world;
  Workers workers(world, 3);
  auto made = create_ref(workers[1], 0);
  settle_ref(workers[0], made.reply.reference, SHMBW_REF_STATE_READY);
  auto fork = fork_ref(workers[1], made.reply.reference, 2);
  workers[0].die();
  CHECK(changes(workers[1]).size() == 1);
  CHECK(states_told(workers[1]).empty());
  auto taken = take_ref(workers[2], fork.reply.fork);
  CHECK(taken.reply.state == SHMBW_REF_STATE_OWNER_GONE);
  CHECK(fork_ref(workers[1], made.reply.reference, 2).status == Status::owner_gone);
  CHECK(create_ref(workers[1], 0).status == Status::worker_gone);
  CHECK(ask_ref(workers[1], made.reply.reference).fixed<shmbw_ref_ask_reply>().state == SHMBW_REF_STATE_OWNER_GONE);
  CHECK(settle_ref(workers[1], made.reply.reference, SHMBW_REF_STATE_FAILED, "too late").reply.state ==
        SHMBW_REF_STATE_OWNER_GONE);
  release_ref(workers[1], made.reply.fork);
  release_ref(workers[2], fork.reply.fork);
  CHECK(references_of(workers[1]).empty());
}

TEST_CASE("the first final state stands, for the owner and for a creator whose deadline has passed") {
  World world;
  Workers workers(world, 3);
  auto made = create_ref(workers[1], 0, kOwn, SHMBW_REF_STATE_REGISTERED, SHMBW_REF_CREATE_TELL);
  const shmbw_ref_id id = made.reply.reference;
  CHECK(settle_ref(workers[0], id, SHMBW_REF_STATE_TAKEN).reply.state == SHMBW_REF_STATE_TAKEN);
  CHECK(settle_ref(workers[1], id, SHMBW_REF_STATE_READY).status == Status::denied);
  CHECK(settle_ref(workers[2], id, SHMBW_REF_STATE_FAILED, "no").status == Status::denied);
  CHECK(settle_ref(workers[1], id, SHMBW_REF_STATE_FAILED, "creation timed out").reply.state == SHMBW_REF_STATE_FAILED);
  CHECK(settle_ref(workers[0], id, SHMBW_REF_STATE_READY).reply.state == SHMBW_REF_STATE_FAILED);
  CHECK(settle_ref(workers[0], id, SHMBW_REF_STATE_TAKEN).reply.state == SHMBW_REF_STATE_FAILED);
  Packet& asked = ask_ref(workers[2], id);
  auto facts = asked.fixed<shmbw_ref_ask_reply>();
  CHECK(facts.state == SHMBW_REF_STATE_FAILED);
  wire::TextReader texts(asked.view().rest);
  CHECK(texts.take(facts.error_len) == "creation timed out");
  CHECK(states_told(workers[1]) == std::vector<std::uint32_t>{SHMBW_REF_STATE_TAKEN});  // its own word it knows
  auto second = create_ref(workers[1], 0);
  CHECK(settle_ref(workers[0], second.reply.reference, SHMBW_REF_STATE_READY).reply.state == SHMBW_REF_STATE_READY);
  CHECK(settle_ref(workers[1], second.reply.reference, SHMBW_REF_STATE_FAILED, "x").reply.state ==
        SHMBW_REF_STATE_READY);
  CHECK(states_told(workers[1]).size() == 1);  // not asked for here
}

TEST_CASE("the owner gives the first fork away, passes on without one, and books a forgotten reference again") {
  World world;
  Workers workers(world, 3);
  auto made = create_ref(workers[0], 0, 1, SHMBW_REF_STATE_READY);
  REQUIRE(made.status == Status::ok);
  CHECK(references_of(workers[0])[0].in_flight == 1);
  auto more = fork_ref(workers[0], made.reply.reference, 2);
  REQUIRE(more.status == Status::ok);
  auto home = fork_ref(workers[0], made.reply.reference, 0);  // to itself: while a message is under way
  CHECK(take_ref(workers[0], home.reply.fork).reply.state == SHMBW_REF_STATE_READY);
  CHECK(fork_ref(workers[1], made.reply.reference, 2).status == Status::denied);  // not taken yet
  CHECK(
      create_ref(workers[0], 0, 1, SHMBW_REF_STATE_READY, SHMBW_REF_CREATE_GIVEN_COUNTER, made.reply.reference.counter)
          .status == Status::exists);
  release_ref(workers[0], home.reply.fork);
  release_ref(workers[0], more.reply.fork);
  release_ref(workers[0], made.reply.fork);
  CHECK(references_of(workers[0]).empty());
  auto again =
      create_ref(workers[0], 0, 1, SHMBW_REF_STATE_READY, SHMBW_REF_CREATE_GIVEN_COUNTER, made.reply.reference.counter);
  REQUIRE(again.status == Status::ok);
  CHECK(again.reply.reference.counter == made.reply.reference.counter);
  CHECK(again.reply.fork.counter > made.reply.fork.counter);
}

TEST_CASE("a reference that cannot be booked is refused with the reason") {
  World world;
  Workers workers(world, 2);
  CHECK(create_ref(workers[0], 2).status == Status::invalid);
  CHECK(create_ref(workers[0], 1, 1).status == Status::denied);  // the owner's to say
  CHECK(create_ref(workers[0], 0, 9).status == Status::invalid);
  CHECK(create_ref(workers[0], 1, kOwn, SHMBW_REF_STATE_READY).status == Status::invalid);
  CHECK(create_ref(workers[0], 0, kOwn, SHMBW_REF_STATE_NONE).status == Status::invalid);
  CHECK(create_ref(workers[0], 0, kOwn, SHMBW_REF_STATE_OWNER_GONE).status == Status::invalid);
  CHECK(create_ref(workers[0], 0, kOwn, 1, SHMBW_REF_CREATE_GIVEN_COUNTER, 7).status == Status::invalid);
  CHECK(create_ref(workers[0], 0, kOwn, 1, 0, 7).status == Status::invalid);
  CHECK(create_ref(workers[0], 0, kOwn, 1, 0x80).status == Status::unknown_flags);
  auto made = create_ref(workers[0], 1);
  CHECK(fork_ref(workers[0], made.reply.reference, 5).status == Status::invalid);
  CHECK(fork_ref(workers[0], {99, 0, 0}, 1).status == Status::not_found);
  CHECK(settle_ref(workers[1], made.reply.reference, SHMBW_REF_STATE_OWNER_GONE).status == Status::invalid);
  CHECK(settle_ref(workers[1], made.reply.reference, SHMBW_REF_STATE_READY, "text").status == Status::invalid);
  auto long_text = settle_ref(workers[1], made.reply.reference, SHMBW_REF_STATE_FAILED, std::string(401, 'x'));
  CHECK(long_text.status == Status::invalid);
  CHECK(says(long_text.sentence, "400 bytes"));
  CHECK(settle_ref(workers[1], made.reply.reference, SHMBW_REF_STATE_FAILED, std::string(400, 'x')).status ==
        Status::ok);
  auto stranger = world.client();
  CHECK(create_ref(stranger, 0).status == Status::no_world);
  CHECK(take_ref(workers[0], made.reply.fork, 0x80).status == Status::unknown_flags);
  Client alone = world.client();
  REQUIRE(join_world(alone, 0, 2, "alone", 29501).status() == Status::ok);
  auto early = create_ref(alone, 0);
  CHECK(early.status == Status::not_ready);
  CHECK(says(early.sentence, "1 of 2"));
}

TEST_CASE("only a worker of the world can name its pool, and the first one named stays") {
  World world;
  Workers workers(world, 2);
  CHECK(workers[0].call(SHMBW_OP_WORLD_POOL, shmbw_world_pool{workers.id, 999}).status() == Status::not_found);
  std::uint64_t pools[2] = {};
  for (std::size_t rank : {0U, 1U}) {
    shmbw_pool_create wish{};
    wish.lane_bytes = 65536;
    Packet& made = workers[rank].call(SHMBW_OP_POOL_CREATE, wish);
    REQUIRE(made.status() == Status::ok);
    pools[rank] = made.fixed<shmbw_pool_create_reply>().pool;
  }
  for (std::size_t rank : {1U, 0U}) {
    Packet& told = workers[rank].call(SHMBW_OP_WORLD_POOL, shmbw_world_pool{workers.id, pools[rank]});
    CHECK(told.fixed<shmbw_world_pool_reply>().pool == pools[1]);
  }
  CHECK(changes(workers[0]).back().change == SHMBW_WORLD_CHANGE_POOL);
  CHECK(workers[0].rows<shmbw_world_record>(SHMBW_TABLE_WORLDS)[0].pool == pools[1]);
}

TEST_CASE("the successor of a dead worker is another life: the dead one's values stay lost, its counter continues") {
  World world;
  Workers workers(world, 3);
  const std::uint64_t pool = meet_in_pool(workers);
  auto owned = create_ref(workers[0], 1);
  auto made = create_ref(workers[1], 0);
  auto given = fork_ref(workers[1], made.reply.reference, 2);
  REQUIRE(given.status == Status::ok);
  const std::uint32_t first_life = worker_row(workers[0], 1).life;
  CHECK(worker_row(workers[0], 1).participant_life != 0);
  workers[1].die();
  Client next = world.client();
  auto joined = join_world(next, 1, 3, "w1").fixed<shmbw_world_join_reply>();
  CHECK(joined.world == workers.id);
  CHECK(joined.pool == pool);
  CHECK(joined.present == 3);
  CHECK(joined.flags == SHMBW_WORLD_STATE_COMPLETE);
  CHECK(joined.life > first_life);
  auto told = changes(workers[0]);
  REQUIRE(told.size() == 2);
  CHECK(told[0].change == SHMBW_WORLD_CHANGE_DIED);
  CHECK(told[0].life == first_life);
  CHECK(told[1].change == SHMBW_WORLD_CHANGE_JOINED);
  CHECK(told[1].life == joined.life);
  CHECK(told[1].rank == 1);
  auto rows = workers[0].rows<shmbw_world_record>(SHMBW_TABLE_WORLDS);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].replaced == 1);
  CHECK(rows[0].died == 0);
  CHECK(worker_row(workers[0], 1).participant == 0xffff'ffff);  // of the new one: it has not come to the pool
  CHECK(worker_row(workers[0], 1).owned == 0);

  // References that the dead worker owned have no owner, and the new one cannot settle them.
  const shmbw_ref_id lost = owned.reply.reference;
  CHECK(ask_ref(workers[0], lost).fixed<shmbw_ref_ask_reply>().state == SHMBW_REF_STATE_OWNER_GONE);
  CHECK(fork_ref(workers[0], lost, 2).status == Status::owner_gone);
  CHECK(fork_ref(next, lost, 2).status == Status::denied);
  CHECK(settle_ref(next, lost, SHMBW_REF_STATE_READY).status == Status::denied);
  // References that it had made live on at their owner. Only the dead worker had the right to fail them.
  auto taken = take_ref(workers[2], given.reply.fork);
  CHECK(taken.reply.owner_life == worker_row(workers[0], 0).life);
  CHECK(settle_ref(next, made.reply.reference, SHMBW_REF_STATE_FAILED, "timed out").status == Status::denied);
  auto again = fork_ref(workers[0], made.reply.reference, 2);
  CHECK(release_ref(next, again.reply.fork).status == Status::not_found);
  CHECK(create_ref(next, 1, 2, SHMBW_REF_STATE_READY, SHMBW_REF_CREATE_GIVEN_COUNTER, made.reply.reference.counter)
            .status == Status::invalid);
  // The numbers go on.
  auto fresh = create_ref(next, 0);
  CHECK(fresh.reply.reference.counter > given.reply.fork.counter);
  // A request that names the dead life does not reach the new one.
  auto to_dead = ask_one<shmbw_ref_create_reply>(
      workers[0], SHMBW_OP_REF_CREATE, shmbw_ref_create{0, 0, 1, kOwn, SHMBW_REF_STATE_REGISTERED, 0, first_life, 0});
  CHECK(to_dead.status == Status::worker_gone);
  CHECK(says(to_dead.sentence, "has died"));
  auto for_dead = ask_one<shmbw_ref_fork_reply>(workers[0], SHMBW_OP_REF_FORK,
                                                shmbw_ref_fork{0, made.reply.reference, 1, first_life});
  CHECK(for_dead.status == Status::worker_gone);
  CHECK(ask_one<shmbw_ref_fork_reply>(workers[0], SHMBW_OP_REF_FORK,
                                      shmbw_ref_fork{0, made.reply.reference, 1, joined.life})
            .status == Status::ok);
  // With its last user the lost reference goes, and nobody is told who never owned it.
  next.link().events.clear();
  CHECK(release_ref(workers[0], owned.reply.fork).status == Status::ok);
  CHECK(ask_ref(workers[0], lost).status() == Status::not_found);
  CHECK(unused(next).empty());
}

TEST_CASE(
    "a dead worker's place is for one process of its name and rank, once its process has ended and before any leaves") {
  World world;
  Workers workers(world, 4);
  meet_in_pool(workers);
  workers[1].end_of_file();  // and goes on, with the pool before its eyes
  Client other = world.client(), late = world.client(), stranger = world.client(1001);
  Packet& early = join_world(other, 1, 4, "w1");
  CHECK(early.status() == Status::not_ready);
  CHECK(says(early.error().sentence, "has not ended"));
  workers[1].pidfd();
  CHECK(join_world(other, 1, 4, "x").status() == Status::world_taken);
  CHECK(join_world(other, 1, 5, "w1").status() == Status::world_taken);
  CHECK(join_world(other, 2, 4, "w2").status() == Status::world_taken);
  workers[2].link().process_is_over = true;
  CHECK(join_world(other, 2, 4, "w2").status() == Status::not_ready);
  CHECK(join_world(other, 1, 4, "w1").status() == Status::ok);
  CHECK(join_world(late, 1, 4, "w1").status() == Status::world_taken);  // of two the first one
  CHECK(join_world(stranger, 1, 4, "w1").fixed<shmbw_world_join_reply>().world != workers.id);
  other.die();  // before it has come to the pool
  CHECK(join_world(late, 1, 4, "w1").status() == Status::ok);
  CHECK(worker_row(workers[0], 1).life == 6);
  CHECK(workers[0].rows<shmbw_world_record>(SHMBW_TABLE_WORLDS)[0].replaced == 2);
  workers[2].die();
  workers[3].call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{workers.id});
  Client last = world.client();
  Packet& ending = join_world(last, 2, 4, "w2");
  CHECK(ending.status() == Status::world_taken);
  CHECK(says(ending.error().sentence, "is ending"));
  // A worker that has left begins the next world, and the dead worker's successor may join it.
  const auto next = join_world(workers[3], 3, 4, "w3").fixed<shmbw_world_join_reply>();
  CHECK(next.world != workers.id);
  CHECK(join_world(last, 2, 4, "w2").fixed<shmbw_world_join_reply>().world == next.world);
}

TEST_CASE("a worker that died before the world had its pool is not replaced") {
  World world;
  Workers workers(world, 2);
  workers[0].die();
  Client next = world.client();
  Packet& refused = join_world(next, 0, 2, "w0");
  CHECK(refused.status() == Status::world_taken);
  CHECK(says(refused.error().sentence, "has no pool"));
}

TEST_CASE("worlds and references are limited per uid, with the key to raise") {
  daemon::Config config = private_config();
  config.limits.uid_worlds = 1;
  config.limits.uid_references = 3;
  World world(config);
  Workers workers(world, 2);
  Client third = world.client();
  Packet& refused = join_world(third, 0, 1, "x", 29501);
  CHECK(refused.status() == Status::limit);
  CHECK(refused.error().shortage.slot == SHMBW_SLOT_WORLDS);
  CHECK(says(refused.error().sentence, "limits.uid.1000.worlds"));
  auto made = create_ref(workers[0], 1);
  REQUIRE(fork_ref(workers[0], made.reply.reference, 1).status == Status::ok);
  REQUIRE(create_ref(workers[0], 1).status == Status::ok);
  auto over = create_ref(workers[0], 1);
  CHECK(over.status == Status::limit);
  CHECK_MESSAGE(says(over.sentence, "limits.uid.1000.references"), over.sentence);
  CHECK(fork_ref(workers[0], made.reply.reference, 1).status == Status::limit);
  release_ref(workers[0], made.reply.fork);
  CHECK(create_ref(workers[0], 1).status == Status::ok);
}

TEST_CASE("the table of references goes by pages, and loses and repeats nothing while it changes") {
  World world;
  Workers workers(world, 2);
  std::vector<shmbw_ref_id> forks;
  for (int i = 0; i < 2000; ++i) forks.push_back(create_ref(workers[1], 0).reply.fork);
  std::vector<std::uint64_t> seen;
  shmbw_list wish{};
  wish.table = SHMBW_TABLE_REFERENCES;
  std::size_t pages = 0;
  do {
    Packet& page = workers[0].list(wish);
    auto reply = page.fixed<shmbw_list_reply>();
    wire::RecordReader reader(page.view().rest, reply.element_size);
    for (unsigned i = 0; i < reply.count; ++i) seen.push_back(reader.next<shmbw_reference_record>()->reference.counter);
    wish.cursor = reply.next;
    // Between two pages one that was seen goes and a new one comes.
    if (++pages == 1) release_ref(workers[1], forks.front());
    (void)create_ref(workers[1], 0);
  } while (wish.cursor != 0);
  CHECK(pages > 1);
  std::ranges::sort(seen);
  CHECK(std::ranges::adjacent_find(seen) == seen.end());
  CHECK(seen.size() >= 2000);
}

TEST_CASE("a reference and its fork cost the broker at most 288 bytes") {
  if (harness::kAddressSanitizer || harness::kThreadSanitizer) SKIP_CASE("a sanitizer counts its own bytes");
  World world({}, {}, false);
  Workers workers(world, 2);
  constexpr std::size_t kMany = 10'000;
  const auto make = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; i += 200) {
      workers[1].batch(SHMBW_OP_REF_CREATE, std::vector<shmbw_ref_create>(200, {0, 0, 0, kOwn, 1, 0}));
      workers[1].link().replies.clear();
    }
  };
  make(1000);
  const auto before = ::mallinfo2();
  make(kMany);
  const auto after = ::mallinfo2();
  const std::size_t each = ((after.uordblks + after.hblkhd) - (before.uordblks + before.hblkhd)) / kMany;
  MESSAGE("bytes per reference with one user: " << each);
  CHECK(each <= 288);
}

TEST_CASE("in steady state no request about references allocates") {
  World world({}, {}, false);
  Workers workers(world, 3);
  auto round = [&] {
    auto made = create_ref(workers[1], 0, kOwn, SHMBW_REF_STATE_REGISTERED, SHMBW_REF_CREATE_TELL);
    auto fork = fork_ref(workers[1], made.reply.reference, 2);
    REQUIRE(take_ref(workers[2], fork.reply.fork).status == Status::ok);
    REQUIRE(settle_ref(workers[0], made.reply.reference, SHMBW_REF_STATE_READY).status == Status::ok);
    REQUIRE(release_ref(workers[2], fork.reply.fork).status == Status::ok);
    REQUIRE(release_ref(workers[1], made.reply.fork).status == Status::ok);
    for (Client& client : workers.all) client.link().events.clear();
  };
  round();
  round();
  world.allocations = 0;
  for (int i = 0; i < 100; ++i) round();
  // The link keeps each event that it is handed: two of each round.
  CHECK(world.allocations <= 100 * 2);
  create_ref(workers[1], 7);  // the counter counts
  CHECK(world.allocations > 0);
}

TEST_CASE("a batch that settles references is served a few elements in a turn, each with its own text") {
  World world;
  Workers workers(world, 2);
  std::vector<shmbw_ref_settle> wishes;
  std::string texts;
  for (int i = 0; i < 40; ++i) {
    const std::string text = "error " + std::to_string(i);
    shmbw_ref_settle wish{};
    wish.reference = create_ref(workers[0], 0, 1).reply.reference;
    wish.state = SHMBW_REF_STATE_FAILED;
    if (i == 20) ++wish.reference.counter += 1000;
    wish.error_len = static_cast<std::uint16_t>(text.size());
    wishes.push_back(wish);
    texts += text;
  }
  world.turns = 0;
  Packet& packet = workers[0].batch(SHMBW_OP_REF_SETTLE, wishes, texts);
  CHECK(world.turns == 4);
  auto batch = wire::BatchView::open(packet.view());
  REQUIRE(batch);
  REQUIRE(batch->count() == wishes.size());
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    CAPTURE(i);
    const auto reply = batch->element<shmbw_ref_settle_reply>(i).value();
    CHECK(static_cast<Status>(reply.outcome.status) == (i == 20 ? Status::not_found : Status::ok));
    if (i == 20) continue;
    CHECK(reply.users == 1);
    const Packet& asked = ask_ref(workers[1], wishes[i].reference);
    CHECK(asked.fixed<shmbw_ref_ask_reply>().state == SHMBW_REF_STATE_FAILED);
    const auto rest = asked.view().rest;
    CHECK(std::string(reinterpret_cast<const char*>(rest.data()), rest.size()) == "error " + std::to_string(i));
  }
}

TEST_CASE("the books follow a world and the lives of its workers") {
  World world(private_config());
  Client asker = world.client();
  const auto books = [&] { return text_in(ask_books(asker)); };
  Client alone = world.client();
  REQUIRE(join_world(alone, 0, 2, "early", 29501).status() == Status::ok);
  CHECK(has(books(), " port=29501 size=2 last_life=1 address=\"localhost:29500\"\n"));
  CHECK(has(books(), " life=1 participant=4294967295 state=1 name=\"early\"\n"));
  CHECK(alone.call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{}).status() == Status::ok);
  CHECK_FALSE(has(books(), "\nworld "));
  CHECK_FALSE(has(books(), "\nworker "));

  Workers workers(world, 2);
  const std::uint64_t pool = meet_in_pool(workers);
  const std::string id = std::to_string(workers.id);
  CHECK(has(books(), "\nworld id=" + id + " group="));
  CHECK(has(books(), " pool=" + std::to_string(pool) + " created="));
  CHECK(has(books(), " port=29500 size=2 last_life=2 complete=1 address="));
  CHECK(has(books(), " rank=1 uid=1000 pid=" + std::to_string(worker_row(asker, 1).pid) +
                         " life=2 participant=1 participant_life=1 state=1 name=\"w1\"\n"));
  // A dead worker stays as long as a reference names it as its owner.
  const auto made = create_ref(workers[1], 1, 0);
  REQUIRE(made.status == Status::ok);
  CHECK(has(books(), " last_counter=2 rank=1 "));
  workers[1].die();
  CHECK(has(books(), " life=2 participant=1 participant_life=1 state=3 name=\"w1\"\n"));
  Client next = world.client();
  REQUIRE(join_world(next, 1, 2, "w1").status() == Status::ok);
  const std::string replaced = books();
  CHECK(has(replaced, " replaced=1 last_life=3 "));
  CHECK(has(replaced, " life=2 participant=1 participant_life=1 state=3 past=1 name=\"w1\"\n"));
  CHECK(has(replaced, " first_counter=2 last_counter=2 rank=1 "));
  REQUIRE(release_ref(workers[0], made.reply.fork).status == Status::ok);
  CHECK_FALSE(has(books(), " past=1 "));
  CHECK(next.call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{}).status() == Status::ok);
  CHECK(has(books(), " complete=1 ending=1 "));
  workers[0].die();
  CHECK_FALSE(has(books(), "\nworld "));
  CHECK_FALSE(has(books(), "\nworker "));
}

TEST_CASE("the books follow a reference, its forks and the reason of its failure") {
  World world(private_config());
  Client asker = world.client();
  const auto books = [&] { return text_in(ask_books(asker)); };
  Workers workers(world, 2);
  const auto serial = [&](std::uint32_t rank) {
    const std::string all = books(), end = " name=\"w" + std::to_string(rank) + "\"\n";
    const std::size_t at = all.rfind("\nworker id=", all.find(end)) + std::strlen("\nworker id=");
    return all.substr(at, all.find(' ', at) - at);
  };
  const std::string owner = serial(0), user = serial(1), of_world = " world=" + std::to_string(workers.id);
  const auto made = create_ref(workers[0], 0, 1);
  REQUIRE(made.status == Status::ok);
  CHECK(has(books(), of_world + " owner=" + owner + " counter=1 state=1\n"));
  CHECK(has(books(), " user=" + user + " in_flight=1\n"));
  CHECK(take_ref(workers[1], made.reply.fork, SHMBW_REF_FORK_TELL).status == Status::ok);
  CHECK(has(books(), " user=" + user + " tell=1\n"));
  CHECK_FALSE(has(books(), "\nfailure "));
  CHECK(settle_ref(workers[0], made.reply.reference, SHMBW_REF_STATE_FAILED, "no \"luck\"").status == Status::ok);
  CHECK(has(books(), " counter=1 state=4\n"));
  CHECK(has(books(), " text=\"no \\x22luck\\x22\"\n"));
  workers[0].die();
  CHECK(has(books(), " counter=1 state=5\n"));
  CHECK_FALSE(has(books(), "\nfailure "));
  CHECK(release_ref(workers[1], made.reply.fork).status == Status::ok);
  CHECK_FALSE(has(books(), "\nreference "));
  CHECK_FALSE(has(books(), "\nfork "));
}

TEST_CASE("the end of a world's group takes the records of its references along") {
  World world(private_config());
  Client asker = world.client();
  Workers workers(world, 2);
  REQUIRE(create_ref(workers[0], 0, 1).status == Status::ok);
  REQUIRE(has(text_in(ask_books(asker)), "\nfork "));
  const auto group = workers[0].rows<shmbw_world_record>(SHMBW_TABLE_WORLDS)[0].group;
  CHECK(workers[0].end_group(group).status() == Status::ok);
  const std::string left = text_in(ask_books(asker));
  for (const char* kind : {"\nworld ", "\nworker ", "\nreference ", "\nfork "}) CHECK_FALSE(has(left, kind));
}
