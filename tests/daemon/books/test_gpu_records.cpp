// SPDX-License-Identifier: Apache-2.0
// The records of GPU memory, of its chunks, of the node that keeps the GPU initialised, and of the sessions that named
// the GPU. That all are true is compared after each call, in every case of these tests.
#include "tests/daemon/books/gpu_client.hpp"
#include "tests/daemon/books/records_fixture.hpp"

namespace shmb::daemon::test {

TEST_CASE("the books follow GPU memory from its publisher to its last user") {
  FakeGpus gpus;
  World world(private_config());
  Client asker = world.client();
  const auto books = [&] { return text_in(ask_books(asker)); };
  CHECK_FALSE(has(books(), "\ngpu_"));
  Client maker = gpu_client(world), user = gpu_client(world);
  const std::string named = books();
  CHECK(has(named, " minor=3 node="));
  for (const Client* client : {&maker, &user}) CHECK(has(named, " session=" + std::to_string(client->id) + " node="));
  const GpuPublished made = publish(maker, {.bytes = 8 << 20, .chunk_bytes = 4 << 20, .chunks = 2});
  REQUIRE(made.status == Status::ok);
  const shmbw_region_ref ref = made.reply.region;
  const std::string id = std::to_string(ref.id), memory = "\ngpu_memory id=" + id;
  CHECK(has(books(), memory + " exporter=" + std::to_string(maker.id) + " node="));
  CHECK(has(books(), " region=" + id + " keeper="));
  CHECK(has(books(), " region=" + id + " index=1 keeper="));
  REQUIRE(open_id(user, ref).status == Status::ok);
  maker.die();
  CHECK(has(books(), memory + " node="));
  CHECK_FALSE(has(books(), " session=" + std::to_string(maker.id) + " "));
  CHECK(user.release(ref).status == Status::ok);
  const std::string left = books();
  for (const char* kind : {"\ngpu_memory ", "\ngpu_chunk "}) CHECK_FALSE(has(left, kind));
  CHECK(has(left, "\ngpu_node "));
  user.close();
  world.wait_for_closes();  // the region keeps the node until its own files are closed
  CHECK_FALSE(has(books(), "\ngpu_"));
}

TEST_CASE("the books have the size of a timeline and what ended it") {
  World world(private_config());
  Client asker = world.client(), maker = world.client(), user = world.client();
  const auto books = [&] { return text_in(ask_books(asker)); };
  shmbw_gpu_timeline wish{};
  wish.words = 8;
  Packet& reply = maker.call(SHMBW_OP_GPU_TIMELINE, wish);
  REQUIRE(reply.status() == Status::ok);
  const shmbw_region_ref ref = reply.fixed<shmbw_gpu_timeline_reply>().region;
  const std::string memory = "\ngpu_memory id=" + std::to_string(ref.id);
  CHECK(has(books(), memory + " exporter=" + std::to_string(maker.id) + " "));
  CHECK(has(books(), " words=8 "));
  CHECK_FALSE(has(books(), " status="));
  REQUIRE(user.attach_id(ref).status == Status::ok);
  maker.die();
  const std::string ended = books();
  CHECK(has(ended, " words=8 "));
  CHECK(has(ended, " status=" + std::to_string(SHMBW_GPU_WORD_STATUS_PRODUCER_DEAD) + " "));
  CHECK_FALSE(has(ended, memory + " exporter="));
}

}  // namespace shmb::daemon::test
