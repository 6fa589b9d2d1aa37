// SPDX-License-Identifier: Apache-2.0
// The requests of GPU memory through the library's own functions, against a broker: waiting for a device, lists that
// need several packets, what is given back when only a part could be had, events.
#include <fcntl.h>

#include <filesystem>
#include <fstream>

#include "base/sys_gpu.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "client/calls/gpu_calls.hpp"
#include "client/session/views.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/support/gpu_files.hpp"
#include "tests/support/session.hpp"

namespace support {
namespace {

using shmb::client::gpu_device;
using shmb::client::gpu_open;
using shmb::client::gpu_pinned;
using shmb::client::gpu_publish;
using shmb::client::gpu_release;
using shmb::client::gpu_report;
using shmb::client::gpu_report_later;
using shmb::client::gpu_retire;
using shmb::client::gpu_timeline;
using shmb::client::GpuChunk;
using shmb::client::GpuEvent;
using shmb::client::GpuOpened;
using shmb::client::GpuPublish;
using shmb::client::GpuPublished;
using shmb::client::GpuRelease;
using shmb::client::GpuReport;
using shmb::client::GpuRequest;
using shmb::client::GpuTimelineRequest;
using shmb::client::GpuUuid;

constexpr GpuUuid kGpu{0xc0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
using support::kGpuBus;

Deadline gpu_deadline() { return Deadline::after(60'000'000'000); }

struct GpuBroker {
  harness::TempDir files;
  std::unique_ptr<harness::BrokerFixture> broker;
  std::vector<std::shared_ptr<Session>> sessions;
  GpuBroker() {
    support::make_gpu_files(files.path());
    harness::BrokerOptions options;
    options.seam = "gpu=" + files.path();
    broker = std::make_unique<harness::BrokerFixture>(options);
    REQUIRE_MESSAGE(broker->running(), broker->log());
  }
  std::string node() const { return files.file("fake-nvidia3"); }
  // This process lives on, and with it what its sessions hold of a GPU, whatever becomes of their sockets.
  ~GpuBroker() {
    for (const auto& session : sessions) {
      auto left = shmb::client::list_gpu_regions(*session, {}, gpu_deadline());
      if (!left) continue;
      for (const auto& row : left->rows) {
        // With the name where the lease has that right, else without.
        const GpuRelease all[] = {{row.record.region, 0, true}, {row.record.region, 0, false}};
        (void)gpu_release(*session, all, gpu_deadline());
      }
      (void)session->ping(gpu_deadline());
    }
  }
  std::shared_ptr<Session> join() {
    sessions.push_back(open(*broker));
    return sessions.back();
  }
  std::shared_ptr<Session> named() {
    auto session = join();
    CHECK(must(gpu_device(*session, kGpu, kGpuBus, -1, gpu_deadline())).hold == SHMBW_GPU_HOLD_NODE);
    return session;
  }
};

struct GpuExports {
  std::vector<support::GpuExport> files;
  std::vector<GpuChunk> chunks;
  explicit GpuExports(std::size_t count) : files(count) {
    for (const auto& file : files) chunks.push_back({file.keeper.get(), file.share.get()});
  }
};

GpuPublish gpu_wish(const GpuExports& exports, std::string name = {}) {
  GpuPublish wish;
  wish.bytes = exports.chunks.size() << 21;
  if (exports.chunks.size() > 1) wish.chunk_bytes = 1 << 21;
  wish.uuid = kGpu;
  wish.name = std::move(name);
  wish.chunks = exports.chunks;
  return wish;
}

GpuPublished publish_gpu_one(Session& session, const GpuPublish& wish) {
  return must(std::move(must(gpu_publish(session, {&wish, 1}, gpu_deadline())).front()));
}
shmb::Result<GpuOpened> open_gpu_one(Session& session, shmbw_region_ref region) {
  GpuRequest wish;
  wish.by = SHMBW_ATTACH_BY_ID;
  wish.region = region;
  wish.manifest = true;
  return std::move(must(gpu_open(session, {&wish, 1}, gpu_deadline())).front());
}

}  // namespace

TEST_CASE("a device is waited for, and where the broker cannot open its node a copy of the caller's goes there") {
  GpuBroker gpus;
  auto session = gpus.named();
  CHECK(must(gpu_device(*session, kGpu, kGpuBus, -1, gpu_deadline())).minor == 3);
  std::filesystem::remove(gpus.node());
  auto other = gpus.join();
  auto refused = gpu_device(*other, kGpu, kGpuBus, -1, gpu_deadline());
  REQUIRE(status_of(refused) == shmb::Status::device_not_pinned);
  CHECK(refused.error().sentence.find("fake-nvidia3") != std::string::npos);
  std::ofstream(gpus.node()) << "node";
  const shmb::Fd node = shmb::sys::open(gpus.node().c_str(), O_RDWR).value();
  auto third = gpus.join();
  auto missing = gpu_device(*third, kGpu, "0000:66:00.0", node.get(), gpu_deadline());
  CHECK(must(std::move(missing)).hold == SHMBW_GPU_HOLD_GIVEN);
  CHECK(status_of(gpu_device(*must(Session::local("test")), kGpu, kGpuBus, -1, gpu_deadline())) ==
        shmb::Status::local_only);
}

TEST_CASE("a list of publications is cut into packets, each with its own outcome, and opened as one list") {
  GpuBroker gpus;
  auto session = gpus.named();
  const GpuExports one(1), large(300), many(100);
  std::vector<GpuPublish> wishes{gpu_wish(one, "one"), gpu_wish(large, "large"), gpu_wish(one, "one"),
                                 gpu_wish(many, "many"), gpu_wish(many, "again")};
  auto made = must(gpu_publish(*session, wishes, gpu_deadline()));
  REQUIRE(made.size() == 5);
  CHECK(status_of(made[2]) == shmb::Status::exists);
  for (std::size_t i : {0, 1, 3, 4}) CHECK(must(std::move(made[i])).state == SHMBW_GPU_STATE_OK);

  auto other = gpus.join();
  std::vector<GpuRequest> opens;
  for (const char* name : {"large", "none", "many", "one", "again"}) {
    GpuRequest wish;
    wish.address = "#" + std::to_string(session->facts().group) + "/" + name;
    opens.push_back(wish);
  }
  opens.push_back({});
  opens.back().address = "..bad";
  auto opened = must(gpu_open(*other, opens, gpu_deadline()));
  REQUIRE(opened.size() == 6);
  for (std::size_t i : {0UL, 2UL, 3UL, 4UL}) REQUIRE_MESSAGE(opened[i], opened[i].error().sentence);
  CHECK(opened[0]->shares.size() == 300);
  for (std::size_t i : {0UL, 252UL, 253UL, 299UL})
    CHECK(shmb::sys::same_open_file(opened[0]->shares[i].get(), large.chunks[i].share).value_or(true));
  CHECK(status_of(opened[1]) == shmb::Status::not_found);
  CHECK(opened[2]->shares.size() == 100);
  CHECK(opened[3]->shares.size() == 1);
  CHECK(opened[4]->shares.size() == 100);
  CHECK(status_of(opened[5]) == shmb::Status::invalid);
}

TEST_CASE("a region that cannot be made whole is given back, with its name") {
  GpuBroker gpus;
  auto session = gpus.named();
  GpuExports exports(130);
  GpuPublish wish = gpu_wish(exports, "half");
  wish.chunks[129].share = wish.chunks[129].keeper;
  auto made = must(gpu_publish(*session, {&wish, 1}, gpu_deadline()));
  CHECK(status_of(made.front()) == shmb::Status::bad_fd);
  CHECK(must(shmb::client::list_gpu_regions(*session, {}, gpu_deadline())).rows.empty());
  CHECK(publish_gpu_one(*session, gpu_wish(exports, "half")).state == SHMBW_GPU_STATE_OK);
}

TEST_CASE("states and drains come as events beside the user's, and wake a listener") {
  GpuBroker gpus;
  auto session = gpus.named();
  GpuPublish lent;
  lent.bytes = 1000;
  lent.allocation = 1 << 21;
  lent.uuid = kGpu;
  lent.kind = SHMBW_GPU_KIND_LEGACY;
  lent.handle[3] = 7;
  const auto made = publish_gpu_one(*session, lent);
  auto user = gpus.join();
  auto opened = must(open_gpu_one(*user, made.region));
  CHECK(opened.handle[3] == 7);
  CHECK(opened.allocation == 1 << 21);
  CHECK(must(gpu_retire(*session, made.region, gpu_deadline())) == 1);
  const shmb::Fd bell = shmb::sys::event_fd().value();
  session->add_listener(bell.get());
  // The end of its state is told to both; the drain only after the release.
  const GpuRelease release{made.region, 0, false};
  must(gpu_release(*user, {&release, 1}, gpu_deadline()));
  must(user->ping(gpu_deadline()));
  bool drained = false, retired = false;
  for (int round = 0; round < 20'000 && !drained; ++round) {
    must(session->ping(gpu_deadline()));
    for (const GpuEvent& event : session->take_gpu_events()) {
      drained = drained || event.kind == GpuEvent::Kind::drained;
      retired = retired || event.state == SHMBW_GPU_STATE_RETIRED;
    }
  }
  CHECK(drained);
  CHECK(retired);
  CHECK(shmb::sys::poll_readable(bell.get(), 0).value());
  session->remove_listener(bell.get());
  CHECK(status_of(gpu_retire(*session, made.region, gpu_deadline())) == shmb::Status::not_found);
}

TEST_CASE("a watch of a GPU region puts its states among the user's events") {
  GpuBroker gpus;
  auto session = gpus.named(), watcher = gpus.join();
  const GpuExports exports(1);
  GpuPublish wish = gpu_wish(exports, "w");
  const auto made = publish_gpu_one(*session, wish);
  shmb::client::WatchSpec spec;
  spec.events = SHMBW_WATCH_EVENT_GPU;
  spec.region = made.region;
  const auto watch = must(watcher->watch(spec, gpu_deadline()));
  GpuReport lost;
  lost.what = SHMBW_GPU_FINDING_DEVICE_LOST;
  lost.code = 46;
  lost.uuid = kGpu;
  CHECK(status_of(gpu_report(*session, lost, gpu_deadline())) == shmb::Status::ok);
  const shmb::client::Event event = must(watcher->next_event(gpu_deadline()));
  CHECK(event.kind == shmb::client::Event::Kind::gpu_state);
  CHECK(event.watch == watch.id);
  CHECK(event.how == SHMBW_GPU_STATE_DEVICE_LOST);
  CHECK(event.code == 46);
  CHECK(status_of(open_gpu_one(*session, made.region)) == shmb::Status::device_lost);
}

TEST_CASE("a timeline, a pin and a report without an answer") {
  GpuBroker gpus;
  auto session = gpus.named();
  GpuTimelineRequest line;
  line.words = 3;
  line.name = "steps";
  const auto made = must(gpu_timeline(*session, line, gpu_deadline()));
  CHECK(made.bytes == 4096);
  CHECK(made.memory);
  CHECK(must(gpu_pinned(*session, made.region, false, gpu_deadline())) == 1);
  CHECK(must(gpu_pinned(*session, made.region, true, gpu_deadline())) == 0);
  const GpuExports exports(1);
  const auto region = publish_gpu_one(*session, gpu_wish(exports));
  auto user = gpus.join();
  (void)must(open_gpu_one(*user, region.region));
  GpuReport report;
  report.uuid = kGpu;
  report.what = SHMBW_GPU_FINDING_DEVICE_LOST;
  report.code = 999;
  must(gpu_report_later(*user, {&report, 1}, gpu_deadline()));
  must(user->ping(gpu_deadline()));
  CHECK(status_of(open_gpu_one(*session, region.region)) == shmb::Status::device_lost);
}

}  // namespace support
