// SPDX-License-Identifier: Apache-2.0
// The output of list and inspect about GPU regions: device, bytes, publisher, importers, state, and why memory is still
// held.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "client/calls/gpu_calls.hpp"
#include "client/session/connect.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/support/gpu_files.hpp"
#include "tests/support/session.hpp"
#include "tests/tools/world.hpp"
#include "tools/report_json.hpp"

using shmb::test::Ended;
using shmb::test::has;
using shmb::test::World;

namespace {

namespace client = shmb::client;
constexpr client::GpuUuid kCard{0xc0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

client::Deadline card_deadline() { return client::Deadline::after(60'000'000'000); }

// A broker that takes files for a GPU's, one session, and the tool on the same broker.
struct CardStage {
  harness::TempDir files;
  std::unique_ptr<harness::BrokerFixture> broker;
  std::shared_ptr<client::Session> session, user;
  World world;

  CardStage() {
    support::make_gpu_files(files.path());
    harness::BrokerOptions options;
    options.seam = "gpu=" + files.path();
    broker = std::make_unique<harness::BrokerFixture>(options);
    REQUIRE_MESSAGE(broker->running(), broker->log());
    session = support::open(*broker);
    user = support::open(*broker);
    (void)support::must(client::gpu_device(*session, kCard, support::kGpuBus, -1, card_deadline()));
  }
  shmbw_region_ref publish(const std::string& name, std::uint32_t flags = 0) {
    const support::GpuExport made;
    client::GpuPublish wish;
    wish.bytes = 3 << 20;
    wish.allocation = 4 << 20;
    wish.uuid = kCard;
    wish.name = name;
    wish.flags = flags;
    wish.chunks = {{made.keeper.get(), made.share.get()}};
    auto published = support::must(client::gpu_publish(*session, {&wish, 1}, card_deadline()));
    return support::must(std::move(published.front())).region;
  }
  void release(shmbw_region_ref region) {
    const client::GpuRelease one{region, 0, true};
    CHECK(client::gpu_release(*session, {&one, 1}, card_deadline()));
    CHECK(session->ping(card_deadline()));
  }
  Ended tool(std::vector<std::string> words) {
    words.insert(words.end(), {"--socket", broker->socket()});
    return world.tool(words);
  }
  shmb::tools::Json json(std::vector<std::string> words) {
    words.emplace_back("--json");
    const Ended ended = tool(std::move(words));
    CHECK(ended.err == "");
    REQUIRE(ended.status == 0);
    return shmb::tools::Json::parse(ended.out);
  }
};

}  // namespace

TEST_CASE("without GPU regions list says nothing of them") {
  CardStage stage;
  CHECK_FALSE(has(stage.tool({"list"}).out, "GPU"));
  CHECK(stage.json({"list"})["gpu_regions"].empty());
  CHECK(stage.tool({"list", "--gpu", "--pools"}).status == 2);
}

TEST_CASE("a GPU region is listed with its device and why it is held, and apart from host regions") {
  CardStage stage;
  const auto region = stage.publish("weights");
  const Ended list = stage.tool({"list", "--gpu"});
  CHECK(list.status == 0);
  CHECK(has(list.out, "1 GPU region, 4.0 MiB"));
  for (const char* part : {"weights", support::kGpuText, "vmm", "name, publisher", "ok"}) CHECK(has(list.out, part));
  CHECK(has(list.out, std::to_string(::getpid())));
  const auto json = stage.json({"list"});
  CHECK(json["regions"].empty());
  REQUIRE(json["gpu_regions"].size() == 1);
  const auto row = json["gpu_regions"][0];
  CHECK(row["device"] == support::kGpuText);
  CHECK(row["bytes"] == 4 << 20);
  CHECK(row["minor"] == 3);
  CHECK(row["exporter"] == true);
  CHECK(row["importers"] == 0);
  CHECK(has(stage.tool({"list", "--gpu", "-q"}).out, "@" + std::to_string(region.id)));
  stage.release(region);
}

TEST_CASE("the UUID of a MIG instance is written as one") {
  CardStage stage;
  const auto region = stage.publish("slice", SHMBW_GPU_PUBLISH_MIG);
  const std::string instance = "MIG-" + std::string(support::kGpuText).substr(4);
  const Ended list = stage.tool({"list", "--gpu"});
  CHECK_MESSAGE(has(list.out, instance), list.out);
  CHECK_FALSE(has(list.out, support::kGpuText));
  CHECK(stage.json({"list"})["gpu_regions"][0]["device"] == instance);
  stage.release(region);
}

TEST_CASE("a set is listed as one, and inspect says that its chunks are of several regions") {
  CardStage stage;
  const support::GpuExport first, second;
  const shmb::Fd list = support::manifest("list");
  client::GpuPublish wish;
  wish.bytes = wish.allocation = 6 << 20;
  wish.chunk_bytes = 2;
  wish.uuid = kCard;
  wish.name = "model";
  wish.flags = SHMBW_GPU_PUBLISH_SET;
  wish.manifest = list.get();
  wish.manifest_bytes = 4;
  wish.chunks = {{first.keeper.get(), first.share.get()}, {second.keeper.get(), second.share.get()}};
  auto published = support::must(client::gpu_publish(*stage.session, {&wish, 1}, card_deadline()));
  const auto region = support::must(std::move(published.front())).region;
  const auto row = stage.json({"list"})["gpu_regions"][0];
  CHECK(row["kind"] == "set");
  CHECK(row["chunks"] == 2);
  CHECK(row["chunk_bytes"] == 0);
  CHECK(has(stage.tool({"inspect", "@" + std::to_string(region.id)}).out, "set, 2 chunks of several regions"));
  stage.release(region);
}

TEST_CASE("inspect shows a GPU region's facts, its holders, and the driver's answer") {
  CardStage stage;
  const auto region = stage.publish("kv");
  client::GpuRequest open;
  open.by = SHMBW_ATTACH_BY_ID;
  open.region = region;
  CHECK(support::must(client::gpu_open(*stage.user, {&open, 1}, card_deadline())).front());
  client::GpuReport failed;
  failed.uuid = kCard;
  failed.what = SHMBW_GPU_FINDING_DEVICE_LOST;
  failed.code = 999;
  (void)support::must(client::gpu_report(*stage.user, failed, card_deadline()));
  const std::string address = "@" + std::to_string(stage.session->facts().group) + "/kv";
  const Ended text = stage.tool({"inspect", address});
  CHECK(text.status == 0);
  for (const char* part : {"of a GPU", support::kGpuText, "/dev/nvidia3", "kept so by the broker",
                           "lost, the driver said 999", "name, publisher"})
    CHECK_MESSAGE(has(text.out, part), text.out);
  const auto json = stage.json({"inspect", address});
  CHECK(json["gpu"]["state"] == "device lost");
  CHECK(json["gpu"]["code"] == 999);
  const client::GpuRelease given_back{region, 0, false};
  CHECK(client::gpu_release(*stage.user, {&given_back, 1}, card_deadline()));
  CHECK(stage.user->ping(card_deadline()));
  stage.release(region);
}

TEST_CASE("a timeline is a host region, and is listed among the GPU regions too") {
  CardStage stage;
  client::GpuTimelineRequest wish;
  wish.name = "steps";
  const auto line = support::must(client::gpu_timeline(*stage.session, wish, card_deadline()));
  const auto json = stage.json({"list"});
  CHECK(json["regions"].size() == 1);
  REQUIRE(json["gpu_regions"].size() == 1);
  CHECK(json["gpu_regions"][0]["kind"] == "timeline");
  CHECK(json["gpu_regions"][0]["device"].is_null());
  CHECK(has(stage.tool({"list", "--gpu"}).out, "timeline"));
  stage.release(line.region);
}
