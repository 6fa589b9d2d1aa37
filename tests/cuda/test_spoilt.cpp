// SPDX-License-Identifier: Apache-2.0
// The broker gives the same share of a chunk to every session. A process with an open file of GPU memory can ruin the
// memory behind it. That harms only later imports, because the keeper is another open file.
#include <dirent.h>
#include <unistd.h>

#include <fstream>

#include "client/calls/gpu_calls.hpp"
#include "client/session/views.hpp"
#include "tests/cuda/stage.hpp"

namespace cuda_tests {
namespace {

// Positions of the open files of device memory that a process has: on the fake that of a spoilt one is not 0.
std::vector<long> positions_of_memory(pid_t process) {
  const std::string folder = "/proc/" + std::to_string(process);
  std::vector<long> found;
  DIR* all = ::opendir((folder + "/fd").c_str());
  REQUIRE(all != nullptr);
  while (const dirent* entry = ::readdir(all)) {
    char target[512] = {};
    if (::readlinkat(::dirfd(all), entry->d_name, target, sizeof target - 1) <= 0 ||
        !std::string_view(target).contains("/memfd:fakecuda:"))
      continue;
    std::ifstream info(folder + "/fdinfo/" + entry->d_name);
    std::string word;
    long position = -1;
    if (info >> word >> position && word == "pos:") found.push_back(position);
  }
  ::closedir(all);
  return found;
}

}  // namespace

TEST_CASE("a share that one holder spoils costs later importers; keeper, books and mappings stay whole") {
  const harness::BrokerFixture broker(gpu_broker());
  const std::size_t before = fakecuda::Fake::use().bytes_in_use();
  Device device;
  auto publisher = connect(broker.socket()), early = connect(broker.socket()), late = connect(broker.socket());
  const auto group = publisher.create_group();
  for (auto* one : {&publisher, &early, &late}) one->join(group.token);
  auto spoiler = support::must(support::try_open(broker.socket()));
  shmb::client::Token token;
  std::memcpy(token.bytes.data(), group.token.data(), token.bytes.size());
  support::must(spoiler->join_group(token, 0, shmb::client::Deadline::after(0)));

  auto region = gpu::Region::allocate(publisher, 4 * kMiB);
  REQUIRE(device.fill(region.pointer(), 4 * kMiB, 0x51) == 0);
  const auto id = region.publish({.name = "w"});
  auto mapped = gpu::Region::import(early, std::string("w")), asleep = gpu::Region::import(early, std::string("w"));
  asleep.sleep();
  {
    shmb::client::GpuRequest wish;
    wish.by = SHMBW_ATTACH_BY_ID;
    wish.region = {id.id, id.generation, 0};
    wish.rights = SHMBW_RIGHT_MAP_READ;
    auto opened = support::must(shmb::client::gpu_open(*spoiler, {&wish, 1}, shmb::client::Deadline::after(0)));
    const auto got = support::must(std::move(opened.front()));
    REQUIRE(got.shares.size() == 1);
    fakecuda::Fake::use().call<void(int)>("fakecuda_spoil")(got.shares.front().get());
    const shmb::client::GpuRelease back{got.region, 1, false};
    support::must(shmb::client::gpu_release(*spoiler, {&back, 1}, shmb::client::Deadline::after(0)));
  }
  // In the broker the share is spoilt, the keeper is not.
  const auto kept = positions_of_memory(broker.pid());
  REQUIRE(kept.size() == 2);
  CHECK((kept[0] == 0) != (kept[1] == 0));

  CHECK(device.all(mapped.pointer(), 4 * kMiB) == 0x51);
  const auto refused = gpu::Region::try_import(late, std::string("w"));
  CHECK(status_of(refused) == Status::bad_fd);
  CHECK(sentence_of(refused).contains("its publisher has to publish it again"));
  CHECK(sentence_of(refused).contains("the region stays as it is"));
  const auto awake = asleep.try_wake();  // which is another import
  CHECK(status_of(awake) == Status::bad_fd);
  CHECK(device.all(mapped.pointer(), 4 * kMiB) == 0x51);
  (void)gpu::dispatch(early);
  CHECK(mapped.state() == gpu::State::ok);  // nobody was made to pay for it
  shmb::client::Selection only;
  only.region = {id.id, id.generation, 0};
  const auto rows =
      support::must(shmb::client::list_gpu_regions(*spoiler, only, shmb::client::Deadline::after(0))).rows;
  REQUIRE(rows.size() == 1);
  CHECK(rows.front().record.state == SHMBW_GPU_STATE_OK);

  // The publisher has the memory still, and publishes it again.
  auto again = gpu::Region::adopt(publisher, region.pointer(), 4 * kMiB);
  again.publish({.name = "w", .replace = true});
  {
    auto imported = gpu::Region::import(late, std::string("w"));
    CHECK(device.all(imported.pointer(), 4 * kMiB) == 0x51);
  }
  again.release(true);  // and its name
  for (auto* one : {&region, &mapped, &asleep}) one->release();
  const bool freed = eventually([&] { return fakecuda::Fake::use().bytes_in_use() == before; });
  CHECK(freed);
}

}  // namespace cuda_tests
