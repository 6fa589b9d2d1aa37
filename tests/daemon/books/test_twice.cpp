// SPDX-License-Identifier: Apache-2.0
// Each request that has an answer is sent twice, with the same number, as a client does when a broker has died. The
// answer is the same both times, with descriptors of the same memory, and the second time nothing else happens.
//
// The list of requests is that of the table of messages: a message without a function ask_NAME here does not compile.
#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/sys_socket.hpp"
#include "proto/wire_traits.hpp"
#include "tests/daemon/books/gpu_client.hpp"
#include "tests/daemon/books/pool_client.hpp"
#include "tests/daemon/books/records_fixture.hpp"

namespace shmb::daemon::test {
namespace {

constexpr std::uint32_t kOwn = 0xffff'ffff;

BrokerFacts resumable() {
  BrokerFacts facts;
  facts.resumable = true;
  return facts;
}

// The last packet that a client has sent.
std::vector<std::byte> last_packet() {
  const auto room = request_room();
  shmbw_header header;
  std::memcpy(&header, room.data(), sizeof header);
  return {room.begin(), room.begin() + header.size};
}

struct Scene {
  FakeGpus gpus;
  World world{system_config(), resumable()};
  Client client = world.silent(), other = world.client();

  Scene() {
    REQUIRE(client.hello({.features = SHMBW_FEATURE_RESUME | SHMBW_FEATURE_PASS_RIGHTS}).status() == Status::ok);
  }
  template <class T>
  void one(std::uint16_t op, const T& element, std::string_view texts = {}) {
    client.batch(op, std::vector<T>{element}, texts);
  }
  shmbw_region_ref region(Client& of, std::uint32_t flags = 0) { return of.create({.flags = flags}).ref(); }
  std::array<std::uint8_t, 16> ticket() { return Client::ticket_of(client.ticket(region(client))); }
  std::uint64_t pool() { return pool_create(client).fixed<shmbw_pool_create_reply>().pool; }
  void gpu() {
    ask_device(client);
    REQUIRE(await_device(world, client).hold == SHMBW_GPU_HOLD_NODE);
  }
  shmbw_region_ref gpu_region(const GpuRequest& wish = {}) {
    gpu();
    return publish(client, wish).reply.region;
  }
  // A world of the client alone, and a reference of it.
  std::uint64_t alone() {
    const std::string texts = "localhost:29500worker";
    Packet& joined = client.call(SHMBW_OP_WORLD_JOIN, shmbw_world_join{29500, 0, 1, 15, 6}, texts);
    REQUIRE(joined.status() == Status::ok);
    return joined.fixed<shmbw_world_join_reply>().world;
  }
  shmbw_ref_id reference(std::uint64_t in) {
    one(SHMBW_OP_REF_CREATE, shmbw_ref_create{in, 0, 0, kOwn, SHMBW_REF_STATE_REGISTERED, 0});
    return wire::BatchView::open(client.link().replies.back().view())->element<shmbw_ref_create_reply>(0)->reference;
  }
};

void ask_hello(Scene&) {}
void ask_create(Scene& scene) {
  scene.client.batch<shmbw_create>(SHMBW_OP_CREATE, {{.length = 4096, .name_len = 1}, {.length = 1 << 20}}, "r");
}
void ask_attach(Scene& scene) {
  const Created named = scene.client.create({.name = "named"});
  shmbw_attach by_id{}, by_name{}, without{};
  by_id.by = without.by = SHMBW_ATTACH_BY_ID;
  by_id.region = without.region = named.ref();
  by_id.rights = kWrite;
  without.rights = kRead;
  without.flags = SHMBW_ATTACH_NO_FD;
  by_name.by = SHMBW_ATTACH_BY_NAME;
  by_name.rights = kRead;
  by_name.name_len = 5;
  scene.client.batch<shmbw_attach>(SHMBW_OP_ATTACH, {by_id, without, by_name}, "named");
}
void ask_release(Scene& scene) {
  const auto ref = scene.region(scene.client);
  scene.client.attach_id(ref);
  scene.one(SHMBW_OP_RELEASE, shmbw_release{ref, 1, 0});
}
void ask_publish(Scene& scene) {
  const auto ref = scene.region(scene.client);
  scene.client.ready(ref);
  scene.client.publish(ref);
}
void ask_ticket_create(Scene& scene) { scene.ticket(); }
void ask_ticket_revoke(Scene& scene) { scene.client.revoke(scene.ticket()); }
void ask_tickets_release(Scene& scene) {
  scene.ticket();
  scene.client.release_tickets({.flags = SHMBW_TICKETS_RELEASE_HELD});
}
void ask_inherit(Scene& scene) {
  const auto ref = scene.region(scene.other);
  scene.client.close();
  scene.client = scene.world.silent();
  REQUIRE(
      scene.client
          .hello({.fork_session = scene.other.id, .fork_secret = scene.other.secret, .features = SHMBW_FEATURE_RESUME})
          .status() == Status::ok);
  scene.one(SHMBW_OP_INHERIT, shmbw_inherit{ref, 0, 0});
}
void ask_group_create(Scene& scene) { scene.client.make_group({.name = "g"}); }
void ask_group_join(Scene& scene) {
  scene.client.make_group({.name = "g"});
  scene.client.join("g");
}
void ask_group_leave(Scene& scene) {
  ask_group_join(scene);
  scene.client.leave();
}
void ask_group_end(Scene& scene) {
  scene.client.end_group(scene.client.make_group({.name = "g"}).fixed<shmbw_group_create_reply>().group);
}
void ask_group_limit(Scene& scene) {
  const auto group = scene.client.make_group({.name = "g"}).fixed<shmbw_group_create_reply>().group;
  scene.client.limit_group(group, kMiB);
}
void ask_watch(Scene& scene) { scene.client.watch_region(scene.region(scene.client), SHMBW_WATCH_EVENT_READY); }
void ask_list(Scene& scene) {
  scene.region(scene.client);
  scene.client.list({.table = SHMBW_TABLE_REGIONS});
}
void ask_status(Scene& scene) { scene.client.status(); }
void ask_shelf_empty(Scene& scene) { scene.client.call(SHMBW_OP_SHELF_EMPTY, shmbw_shelf_empty{0}); }
void ask_books(Scene& scene) {
  Peer peer;
  peer.pid = scene.world.next_pid++;
  peer.admin = true;
  scene.client.close();
  scene.client = Client(scene.world, peer);
  REQUIRE(scene.client.hello({.features = SHMBW_FEATURE_RESUME}).status() == Status::ok);
  ask_books(scene.client);
}

void ask_pool_create(Scene& scene) { pool_create(scene.client, {.name = "p"}); }
void ask_pool_join(Scene& scene) {
  scene.client.make_group({.name = "g"});
  scene.client.join("g");
  scene.other.join("g");
  pool_join(scene.client, pool_create(scene.other).fixed<shmbw_pool_create_reply>().pool);
}
void ask_pool_leave(Scene& scene) { pool_leave(scene.client, scene.pool()); }
void ask_pool_segment(Scene& scene) {
  const std::uint64_t pool = scene.pool();
  pool_segment(scene.client, pool, scene.region(scene.client, SHMBW_CREATE_MANY_WRITERS), 1024, 2);
}
void ask_queue_open(Scene& scene) {
  queue_open(scene.client, scene.pool(), "q", {SHMBW_QUEUE_KIND_MPMC, SHMBW_QUEUE_OPEN_WRITER});
}
void ask_queue_close(Scene& scene) {
  const std::uint64_t pool = scene.pool();
  const auto queue = opened(queue_open(scene.client, pool, "q"));
  queue_close(scene.client, pool, queue, SHMBW_QUEUE_CLOSE_READER);
}
void ask_queue_hold(Scene& scene) {
  const auto ref = scene.region(scene.client);
  const std::uint64_t pool = scene.pool();
  const auto queue = opened(queue_open(scene.client, pool, "q", {SHMBW_QUEUE_KIND_MPMC, SHMBW_QUEUE_OPEN_WRITER}));
  queue_hold(scene.client, pool, queue.lane, queue.lane_serial, ref);
}
void ask_pool_doorbell(Scene& scene) {
  const std::uint64_t pool = scene.pool();
  auto ends = sys::seqpacket_pair();
  REQUIRE(ends);
  scene.client.link().bring(std::move((*ends)[0]));
  scene.client.call(SHMBW_OP_POOL_DOORBELL, shmbw_pool_doorbell{pool, SHMBW_DOORBELL_SET, 0, 0, 0});
}

void ask_world_join(Scene& scene) { scene.alone(); }
void ask_world_leave(Scene& scene) { scene.client.call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{scene.alone()}); }
void ask_world_pool(Scene& scene) {
  const std::uint64_t in = scene.alone();
  scene.client.call(SHMBW_OP_WORLD_POOL, shmbw_world_pool{in, scene.pool()});
}
void ask_ref_create(Scene& scene) { scene.reference(scene.alone()); }
void ask_ref_fork(Scene& scene) {
  const std::uint64_t in = scene.alone();
  scene.one(SHMBW_OP_REF_FORK, shmbw_ref_fork{in, scene.reference(in), 0, 0});
}
void ask_ref_take(Scene& scene) {
  const std::uint64_t in = scene.alone();
  scene.one(SHMBW_OP_REF_FORK, shmbw_ref_fork{in, scene.reference(in), 0, 0});
  const auto fork =
      wire::BatchView::open(scene.client.link().replies.back().view())->element<shmbw_ref_fork_reply>(0)->fork;
  scene.one(SHMBW_OP_REF_TAKE, shmbw_ref_take{in, fork, 0, 0});
}
void ask_ref_release(Scene& scene) {
  const std::uint64_t in = scene.alone();
  scene.reference(in);
  const auto own =
      wire::BatchView::open(scene.client.link().replies.back().view())->element<shmbw_ref_create_reply>(0)->fork;
  scene.one(SHMBW_OP_REF_RELEASE, shmbw_ref_release{in, own});
}
void ask_ref_settle(Scene& scene) {
  const std::uint64_t in = scene.alone();
  const auto reference = scene.reference(in);
  scene.one(SHMBW_OP_REF_SETTLE, shmbw_ref_settle{in, reference, SHMBW_REF_STATE_READY, 0, 0});
}
void ask_ref_ask(Scene& scene) {
  const std::uint64_t in = scene.alone();
  const auto reference = scene.reference(in);
  scene.client.call(SHMBW_OP_REF_ASK, shmbw_ref_ask{in, reference, 0, 0});
}

void ask_gpu_device(Scene& scene) { ask_device(scene.client); }
void ask_gpu_publish(Scene& scene) { scene.gpu_region({.name = "weights"}); }
void ask_gpu_chunks(Scene& scene) {
  scene.gpu();
  const Export first, second;
  GpuRequest wish{.bytes = 4 << 20, .chunk_bytes = 2 << 20};
  scene.client.link().bring(copy_of(first.keeper));
  scene.client.link().bring(copy_of(first.share));
  Packet& published = scene.client.batch<shmbw_gpu_publish>(SHMBW_OP_GPU_PUBLISH, {publish_of(wish)});
  const auto ref = answer_of<shmbw_gpu_publish_reply>(published).reply.region;
  scene.client.link().bring(copy_of(second.keeper));
  scene.client.link().bring(copy_of(second.share));
  scene.client.call(SHMBW_OP_GPU_CHUNKS, shmbw_gpu_chunks{ref, 1, 1});
}
void ask_gpu_open(Scene& scene) { open_id(scene.client, scene.gpu_region(), kRead); }
void ask_gpu_more(Scene& scene) { scene.client.call(SHMBW_OP_GPU_MORE, shmbw_gpu_more{scene.gpu_region(), 0, 1}); }
void ask_gpu_report(Scene& scene) { report(scene.client, scene.gpu_region(), SHMBW_GPU_FINDING_IMPORTED, 0); }
void ask_gpu_retire(Scene& scene) {
  scene.one(SHMBW_OP_GPU_RETIRE, shmbw_gpu_retire{scene.gpu_region({.kind = SHMBW_GPU_KIND_LEGACY})});
}
void ask_gpu_timeline(Scene& scene) {
  shmbw_gpu_timeline wish{};
  wish.words = 64;
  scene.client.call(SHMBW_OP_GPU_TIMELINE, wish);
}
void ask_gpu_pinned(Scene& scene) {
  scene.one(SHMBW_OP_GPU_PINNED, shmbw_gpu_pinned{scene.region(scene.client), 0, 0});
}

// Of a batch: that of its worst element.
Status outcome_of(const Packet& reply, bool batch) {
  if (!batch || reply.status() != Status::ok) return reply.status();
  const auto elements = reply.fixed<shmbw_batch>();
  for (std::size_t i = 0; i < elements.count; ++i) {
    shmbw_outcome outcome;
    std::memcpy(&outcome, reply.view().rest.data() + i * elements.element_size, sizeof outcome);
    if (outcome.status != 0) return static_cast<Status>(outcome.status);
  }
  return Status::ok;
}

std::string memory_of(const Fd& fd) {
  struct stat facts{};
  REQUIRE(::fstat(fd.get(), &facts) == 0);
  return std::to_string(facts.st_ino) + " " + std::to_string(::fcntl(fd.get(), F_GETFL) & O_ACCMODE);
}
std::vector<std::string> memory_of(const Packet& packet) {
  std::vector<std::string> out;
  for (const Fd& fd : packet.fds) out.push_back(memory_of(fd));
  return out;
}

// Sends it, with descriptors that nothing may be done with. The number of answers.
std::size_t send_again(Client& client, const std::vector<std::byte>& packet) {
  shmbw_header header;
  std::memcpy(&header, packet.data(), sizeof header);
  for (int i = 0; i < header.n_fds; ++i) client.link().bring(std::move(sys::open("/dev/null", O_RDONLY).value()));
  const std::size_t before = client.link().replies.size();
  client.send_only(packet);
  client.wait_while_held();
  return client.link().replies.size() - before;
}

}  // namespace

TEST_CASE("each request that comes twice has the same answer, with its descriptors, and is served once") {
  struct Message {
    std::uint16_t op;
    std::string name;
    bool batch;
    void (*ask)(Scene&);
  };
  const Message messages[] = {
#define SHMB_ROW(op, name, batch) {op, #name, batch, ask_##name},
      SHMBW_REPLIES(SHMB_ROW)
#undef SHMB_ROW
  };
  for (const Message& message : messages) {
    CAPTURE(message.name);
    Scene scene;
    message.ask(scene);
    Client& client = scene.client;
    REQUIRE_FALSE(client.link().replies.empty());
    const auto packet = last_packet();
    const Packet first = std::move(client.link().replies.back());
    REQUIRE(first.op() == (message.op | SHMBW_REPLY));
    CHECK(outcome_of(first, message.batch) == Status::ok);
    client.link().events.clear();
    const std::string before = text_behind(own_books());
    const wire::Traits& traits = wire::traits_of(message.op);
    for (int times = 0; times < 2; ++times) {
      REQUIRE(send_again(client, packet) == 1);
      const Packet& second = client.link().replies.back();
      CHECK(second.op() == first.op());
      CHECK(second.view().header.tag == first.view().header.tag);
      CHECK(outcome_of(second, message.batch) == Status::ok);
      if (!traits.again) CHECK(second.bytes == first.bytes);
      // A copy of the books is a new file each time.
      if (message.op == SHMBW_OP_BOOKS) CHECK(second.fds.size() == first.fds.size());
      else CHECK(memory_of(second) == memory_of(first));
    }
    CHECK(text_behind(own_books()) == before);
    CHECK(client.link().events.empty());
    CHECK(client.link().dropped == "");
    CHECK(client.status().mode == SHMBW_MODE_SYSTEM);  // the next packet is served
  }
}

TEST_CASE("a refusal comes twice with the same sentence") {
  Scene scene;
  scene.client.make_group({.name = "bad\tname"});
  const auto packet = last_packet();
  const Packet first = std::move(scene.client.link().replies.back());
  CHECK(first.status() == Status::invalid);
  REQUIRE(send_again(scene.client, packet) == 1);
  CHECK(scene.client.link().replies.back().bytes == first.bytes);
}

TEST_CASE("the answer to a full batch comes twice with all its descriptors, and its records go with the next answer") {
  Scene scene;
  const auto answers = [] {
    const std::string text = text_behind(own_books());
    std::size_t count = 0;
    for (std::size_t at = 0; (at = text.find("\nanswer id=", at)) != text.npos; ++at) ++count;
    return count;
  };
  scene.client.batch<shmbw_create>(SHMBW_OP_CREATE, std::vector<shmbw_create>(253, {.length = 4096}));
  const auto packet = last_packet();
  const Packet first = std::move(scene.client.link().replies.back());
  REQUIRE(first.fds.size() == 253);
  CHECK(answers() == (first.bytes.size() + 255) / 256);
  REQUIRE(send_again(scene.client, packet) == 1);
  const Packet second = std::move(scene.client.link().replies.back());
  CHECK(second.bytes == first.bytes);
  CHECK(memory_of(second) == memory_of(first));
  scene.client.make_group({.name = "g"});
  CHECK(answers() == 1);
}

TEST_CASE("an element whose region has gone since is refused in the answer that comes again, and others are granted") {
  Scene scene;
  const auto stays = scene.region(scene.other, SHMBW_CREATE_MANY_WRITERS);
  scene.other.make_group({.name = "g"});
  const auto token = Client::ticket_of(scene.other.ticket(stays, kRead, 2));
  const Created goes = scene.client.create();
  shmbw_attach by_ticket{}, by_id{};
  by_ticket.by = SHMBW_ATTACH_BY_TICKET;
  std::memcpy(by_ticket.ticket, token.data(), token.size());
  by_id.by = SHMBW_ATTACH_BY_ID;
  by_id.region = goes.ref();
  by_id.rights = by_ticket.rights = kRead;
  scene.client.batch<shmbw_attach>(SHMBW_OP_ATTACH, {by_id, by_ticket});
  const auto packet = last_packet();
  const Packet first = std::move(scene.client.link().replies.back());
  REQUIRE(first.fds.size() == 2);
  scene.client.batch<shmbw_release>(SHMBW_OP_RELEASE, {{goes.ref(), 0, 0}}, {}, SHMBW_HEADER_NO_REPLY);
  REQUIRE(send_again(scene.client, packet) == 1);
  const Packet& second = scene.client.link().replies.back();
  REQUIRE(second.fds.size() == 1);
  CHECK(memory_of(second.fds[0]) == memory_of(first.fds[1]));
  const auto elements = wire::BatchView::open(second.view());
  REQUIRE(elements);
  CHECK(elements->element<shmbw_attach_reply>(0)->outcome.status == static_cast<int>(Status::not_found));
  CHECK(elements->element<shmbw_attach_reply>(0)->outcome.fd_index == SHMBW_NO_FD);
  CHECK(elements->element<shmbw_attach_reply>(1)->outcome.status == 0);
  CHECK(elements->element<shmbw_attach_reply>(1)->outcome.fd_index == 0);
}

TEST_CASE("a client that sends another request under the same number loses its session") {
  Scene scene;
  scene.client.make_group({.name = "g"});
  auto packet = last_packet();
  const std::uint16_t op = SHMBW_OP_GROUP_JOIN;
  std::memcpy(packet.data() + offsetof(shmbw_header, op), &op, sizeof op);
  CHECK(send_again(scene.client, packet) == 0);
  CHECK(scene.client.link().dropped.find("it is not the one whose answer was stored") != std::string::npos);
}

TEST_CASE("sessions without numbers have no stored answers") {
  World world{system_config(), resumable()};
  Client client = world.client();
  client.create();
  CHECK_FALSE(has(text_behind(own_books()), "\nanswer "));
}

}  // namespace shmb::daemon::test
