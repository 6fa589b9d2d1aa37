// SPDX-License-Identifier: Apache-2.0
// GPU regions that take more than one packet: when they have their names, and what one answer carries.
#include "tests/daemon/books/gpu_client.hpp"

namespace shmb::daemon::test {

TEST_CASE("a name is given, or taken over, when the last chunk has come, and not before") {
  FakeGpus gpus;
  World world;
  Client keeper = world.client();
  keeper.make_group({.name = "job"});
  keeper.join("job");
  Client client = gpu_client(world);
  client.join("job");
  const auto old = publish(client, {.name = "weights", .flags = SHMBW_GPU_PUBLISH_KEEP_GIVEN, .keep = -1});
  REQUIRE(old.status == Status::ok);
  const GpuRequest wish{.name = "weights",
                        .bytes = 8 << 20,
                        .chunk_bytes = 4 << 20,
                        .flags = SHMBW_GPU_PUBLISH_REPLACE | SHMBW_GPU_PUBLISH_KEEP_GIVEN,
                        .keep = -1};
  // A successor that never becomes whole takes nothing from the old one.
  {
    Client second = gpu_client(world);
    second.join("job");
    CHECK(publish(second, wish).reply.state == SHMBW_GPU_STATE_INCOMPLETE);
    CHECK(open_name(keeper, "weights").reply.region.id == old.reply.region.id);
    second.die();
  }
  CHECK(open_name(keeper, "weights").reply.region.id == old.reply.region.id);
  CHECK(gpu_rows(keeper).size() == 1);
  const auto fresh = publish(client, wish);
  CHECK(fresh.reply.region.generation == 2);
  CHECK(open_name(keeper, "weights").reply.region.id == old.reply.region.id);
  const Export last;
  client.link().bring(copy_of(last.keeper));
  client.link().bring(copy_of(last.share));
  CHECK(client.call(SHMBW_OP_GPU_CHUNKS, shmbw_gpu_chunks{fresh.reply.region, 1, 1})
            .fixed<shmbw_gpu_chunks_reply>()
            .state == SHMBW_GPU_STATE_OK);
  CHECK(open_name(keeper, "weights").reply.region.id == fresh.reply.region.id);
  CHECK(client.release(fresh.reply.region, 0, SHMBW_RELEASE_UNNAME).status == Status::ok);
}

TEST_CASE("a set says how many chunks it has, and takes its name when the last one has come") {
  FakeGpus gpus;
  World world;
  Client client = gpu_client(world), reader = world.client();
  client.make_group({.name = "job"});
  client.join("job");
  reader.join("job");
  const auto ask = [&](const GpuRequest& wish) {
    for (std::uint32_t chunk = 0; chunk < wish.chunks; ++chunk) {
      const Export fresh;
      client.link().bring(copy_of(fresh.keeper));
      client.link().bring(copy_of(fresh.share));
    }
    if (wish.manifest_bytes != 0) client.link().bring(support::manifest("list"));
    return answer_of<shmbw_gpu_publish_reply>(
        client.batch<shmbw_gpu_publish>(SHMBW_OP_GPU_PUBLISH, {publish_of(wish)}, wish.name));
  };
  constexpr std::uint32_t set = SHMBW_GPU_PUBLISH_SET | SHMBW_GPU_PUBLISH_MANIFEST;
  // Chunks of 2, 4 and 6 MiB: only the list says so.
  const GpuRequest three{.name = "model", .bytes = 12 << 20, .chunk_bytes = 3, .manifest_bytes = 4, .flags = set};
  const auto refused = [&](GpuRequest wish, const std::string& says) {
    const auto answer = ask(wish);
    CHECK(answer.status == Status::invalid);
    CHECK_MESSAGE(answer.error.sentence.contains(says), answer.error.sentence);
  };
  GpuRequest wrong = three;
  wrong.chunk_bytes = 0;
  refused(wrong, "has 1 to 6 chunks, not 0");
  wrong.chunk_bytes = 7;
  refused(wrong, "has 1 to 6 chunks, not 7");
  wrong = three;
  wrong.flags |= SHMBW_GPU_PUBLISH_WRITING;
  refused(wrong, "leave the flag writing out");
  wrong = three;
  wrong.flags = SHMBW_GPU_PUBLISH_SET;
  wrong.manifest_bytes = 0;
  refused(wrong, "a set without a manifest");
  wrong.kind = SHMBW_GPU_KIND_LEGACY;
  wrong.chunks = 0;
  wrong.chunk_bytes = 0;
  refused(wrong, "rdma, adopted and set are for memory of kind vmm");

  const auto made = ask(three);
  REQUIRE(made.status == Status::ok);
  CHECK(made.reply.state == SHMBW_GPU_STATE_INCOMPLETE);
  CHECK(made.reply.chunks == 3);
  CHECK(open_name(reader, "model").status == Status::not_found);
  for (int i = 0; i < 2; ++i) {
    const Export next;
    client.link().bring(copy_of(next.keeper));
    client.link().bring(copy_of(next.share));
  }
  CHECK(client.call(SHMBW_OP_GPU_CHUNKS, shmbw_gpu_chunks{made.reply.region, 1, 2})
            .fixed<shmbw_gpu_chunks_reply>()
            .state == SHMBW_GPU_STATE_OK);
  const auto opened = open_name(reader, "model");
  REQUIRE(opened.status == Status::ok);
  CHECK(opened.reply.chunks == 3);
  CHECK(opened.reply.chunk_bytes == 3);
  CHECK((opened.reply.flags & SHMBW_GPU_PUBLISH_SET) != 0);
}

TEST_CASE("a batch of openings has every manifest, however many shares there are") {
  FakeGpus gpus;
  World world;
  Client client = gpu_client(world);
  std::vector<shmbw_gpu_open> wishes;
  for (int i = 0; i < 3; ++i) {
    GpuRequest wish{.bytes = 240ULL << 20,
                    .chunk_bytes = 2 << 20,
                    .manifest_bytes = 4,
                    .flags = SHMBW_GPU_PUBLISH_MANIFEST,
                    .chunks = 120};
    for (std::uint32_t chunk = 0; chunk < wish.chunks; ++chunk) {
      const Export fresh;
      client.link().bring(copy_of(fresh.keeper));
      client.link().bring(copy_of(fresh.share));
    }
    client.link().bring(support::manifest("list"));
    const auto made =
        answer_of<shmbw_gpu_publish_reply>(client.batch<shmbw_gpu_publish>(SHMBW_OP_GPU_PUBLISH, {publish_of(wish)}));
    REQUIRE(made.status == Status::ok);
    shmbw_gpu_open open{};
    open.by = SHMBW_ATTACH_BY_ID;
    open.rights = kRead;
    open.region = made.reply.region;
    open.flags = SHMBW_GPU_OPEN_MANIFEST;
    wishes.push_back(open);
  }
  shmbw_gpu_open none = wishes[0];
  none.region.id += 1000;
  wishes.insert(wishes.begin() + 1, none);
  Packet& packet = client.batch<shmbw_gpu_open>(SHMBW_OP_GPU_OPEN, wishes);
  CHECK(packet.fds.size() == 253);
  std::uint32_t sent = 0;
  CHECK(answer_of<shmbw_gpu_open_reply>(packet, 1).status == Status::not_found);
  for (const std::size_t i : {0UL, 2UL, 3UL}) {
    const auto opened = answer_of<shmbw_gpu_open_reply>(packet, i);
    REQUIRE(opened.status == Status::ok);
    sent += opened.reply.sent;
    REQUIRE(opened.reply.manifest_fd < packet.fds.size());
    char read[8] = {};
    CHECK(::pread(packet.fds[opened.reply.manifest_fd].get(), read, sizeof read, 0) == 4);
    CHECK(std::string("list") == read);
  }
  CHECK(sent == 250);
}

TEST_CASE("reports about GPU memory are served a few in a turn") {
  FakeGpus gpus;
  World world;
  Client client = gpu_client(world);
  shmbw_gpu_report lost{};
  lost.what = SHMBW_GPU_FINDING_DEVICE_LOST;
  world.turns = 0;
  Packet& packet = client.batch(SHMBW_OP_GPU_REPORT, std::vector(30, lost));
  CHECK(world.turns == 3);
  for (std::size_t i = 0; i < 30; ++i) CHECK(answer_of<shmbw_gpu_report_reply>(packet, i).status == Status::ok);
  client.batch(SHMBW_OP_GPU_REPORT, std::vector(30, lost), {}, SHMBW_HEADER_NO_REPLY);
  CHECK(world.turns == 6);
  CHECK(client.status().sessions == 1);
}

}  // namespace shmb::daemon::test
