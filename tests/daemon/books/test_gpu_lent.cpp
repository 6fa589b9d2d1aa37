// SPDX-License-Identifier: Apache-2.0
// Memory of its owner's, lent to others: who counts as a user, and when the owner may free it.
#include "tests/daemon/books/gpu_client.hpp"

namespace shmb::daemon::test {

TEST_CASE("memory of its owner's is freed only after the last user: drained") {
  FakeGpus gpus;
  World world;
  Client owner = gpu_client(world), user = world.client(), late = world.client();
  const GpuRequest wish{.name = "tensor", .offset = 512, .allocation = 8 << 20, .kind = SHMBW_GPU_KIND_LEGACY};
  const auto made = publish(owner, wish);
  REQUIRE(made.status == Status::ok);
  const auto opened = open_id(user, made.reply.region);
  REQUIRE(opened.status == Status::ok);
  CHECK(opened.reply.handle[7] == 0x44);
  CHECK(opened.reply.offset == 512);
  CHECK(owner.release(made.reply.region).status == Status::invalid);
  auto retire = [&] {
    return answer_of<shmbw_gpu_retire_reply>(owner.batch<shmbw_gpu_retire>(SHMBW_OP_GPU_RETIRE, {{made.reply.region}}));
  };
  CHECK(retire().reply.users == 1);
  CHECK(retire().reply.users == 1);
  CHECK(open_id(late, made.reply.region).status == Status::producer_dead);
  CHECK(open_name(late, "tensor").status == Status::not_found);
  owner.link().events.clear();
  user.release(made.reply.region);
  REQUIRE(owner.link().events.size() == 1);
  CHECK(owner.link().events[0].op() == (SHMBW_EVENT | SHMBW_EVENT_GPU_DRAINED));
  CHECK(gpu_rows(owner).empty());
  CHECK(retire().status == Status::not_found);

  const auto unused = publish(owner, wish);
  CHECK(answer_of<shmbw_gpu_retire_reply>(owner.batch<shmbw_gpu_retire>(SHMBW_OP_GPU_RETIRE, {{unused.reply.region}}))
            .reply.users == 0);
  CHECK(gpu_rows(owner).empty());
}

TEST_CASE("a killed user drains what it had, and only once its process is gone") {
  FakeGpus gpus;
  World world;
  Client owner = gpu_client(world), user = world.client();
  const auto made = publish(owner, {.kind = SHMBW_GPU_KIND_LEGACY});
  open_id(user, made.reply.region);
  owner.batch<shmbw_gpu_retire>(SHMBW_OP_GPU_RETIRE, {{made.reply.region}});
  owner.link().events.clear();
  user.end_of_file();
  CHECK(owner.link().events.empty());
  world.books->process_ended(*user.session());
  REQUIRE(owner.link().events.size() == 1);
  CHECK(owner.link().events[0].op() == (SHMBW_EVENT | SHMBW_EVENT_GPU_DRAINED));
  user.forget();
}

TEST_CASE("a retired region is drained also where a user dies writing or the GPU is lost meanwhile") {
  FakeGpus gpus;
  World world;
  Client owner = gpu_client(world), writer = world.client(), reader = world.client();
  const GpuRequest wish{.flags = SHMBW_GPU_PUBLISH_WRITING | SHMBW_GPU_PUBLISH_MANY_WRITERS,
                        .kind = SHMBW_GPU_KIND_LEGACY};
  const auto made = publish(owner, wish);
  REQUIRE(open_id(writer, made.reply.region, kWrite).status == Status::ok);
  REQUIRE(open_id(reader, made.reply.region).status == Status::ok);
  owner.batch<shmbw_gpu_retire>(SHMBW_OP_GPU_RETIRE, {{made.reply.region}});
  CHECK(report(reader, {}, SHMBW_GPU_FINDING_DEVICE_LOST, 46).reply.regions == 0);
  writer.die();
  CHECK(gpu_rows(owner).at(0).state == SHMBW_GPU_STATE_RETIRED);
  CHECK(states_told(reader) == States{SHMBW_GPU_STATE_RETIRED});
  owner.link().events.clear();
  reader.release(made.reply.region);
  REQUIRE(owner.link().events.size() == 1);
  CHECK(owner.link().events[0].op() == (SHMBW_EVENT | SHMBW_EVENT_GPU_DRAINED));
}

TEST_CASE("memory of a dead owner is not opened again because a writer died after the owner") {
  FakeGpus gpus;
  World world;
  Client owner = gpu_client(world), writer = world.client(), reader = world.client();
  const auto made = publish(
      owner, {.flags = SHMBW_GPU_PUBLISH_WRITING | SHMBW_GPU_PUBLISH_MANY_WRITERS, .kind = SHMBW_GPU_KIND_LEGACY});
  REQUIRE(open_id(writer, made.reply.region, kWrite).status == Status::ok);
  REQUIRE(open_id(reader, made.reply.region).status == Status::ok);
  owner.die();
  writer.die();
  CHECK(open_id(reader, made.reply.region).status == Status::producer_dead);
}

TEST_CASE("users of memory hear of its owner's death, and no new session may open it") {
  FakeGpus gpus;
  World world;
  Client owner = gpu_client(world), user = world.client();
  const auto made = publish(owner, {.name = "t", .kind = SHMBW_GPU_KIND_LEGACY});
  open_id(user, made.reply.region);
  owner.die();
  CHECK(states_told(user) == States{SHMBW_GPU_STATE_PRODUCER_DEAD});
  CHECK(open_id(user, made.reply.region).status == Status::producer_dead);
  user.release(made.reply.region);
  CHECK(gpu_rows(user).empty());
}

}  // namespace shmb::daemon::test
