// SPDX-License-Identifier: Apache-2.0
// Many regions under one name: a reader has all of one generation, or of the one before, or none.
#include "tests/cuda/stage.hpp"
#include "tests/harness/broker_fixture.hpp"

namespace cuda_tests {
namespace {

gpu::Tensor bytes_at(const std::string& name, std::int64_t count, std::uint64_t offset) {
  gpu::Tensor tensor;
  tensor.name = name;
  tensor.type = {1, 8, 1};
  tensor.shape = {count};
  tensor.offset = offset;
  return tensor;
}

struct SetStage {
  harness::BrokerFixture broker{gpu_broker()};
  shmbroker::Session session = connect(broker.socket()), reader = connect(broker.socket());
  Device device;
  shmbroker::Group group = session.create_group();
  bool held = device.hold->enter().has_value();  // the context stays, and is current no more
  const NothingLeft guard;

  SetStage() {
    session.join(group.token);
    reader.join(group.token);
  }
  ~SetStage() {
    (void)gpu::try_dispatch(session);
    (void)gpu::try_dispatch(reader);
  }
  // Regions of 2, 4 and 6 MiB, the last one in chunks, each all of one byte.
  std::vector<gpu::Region> regions(int first) {
    std::vector<gpu::Region> made;
    for (int i = 0; i < 3; ++i) {
      gpu::AllocateOptions options;
      if (i == 2) options.chunk_bytes = 2 * kMiB;
      made.push_back(gpu::Region::allocate(session, static_cast<std::uint64_t>(2 * i + 2) * kMiB, options));
      REQUIRE(device.fill(made.back().pointer(), made.back().size(), static_cast<unsigned char>(first + i)) == 0);
    }
    return made;
  }
};

std::vector<gpu::Region*> pointers(std::vector<gpu::Region>& regions) {
  std::vector<gpu::Region*> all;
  for (gpu::Region& region : regions) all.push_back(&region);
  return all;
}

const std::vector<gpu::SetTensor> kParts = {
    {0, bytes_at("a", 64, 1024)}, {1, bytes_at("b", 4 << 20, 0)}, {2, bytes_at("c", 8, (6 << 20) - 8)}};

}  // namespace

TEST_CASE("a set is imported whole by one name, and its tensors lie where their regions have them") {
  SetStage stage;
  auto regions = stage.regions(1);
  const auto all = pointers(regions);
  auto set = gpu::Region::publish_set(stage.session, "model", all, {.tensors = kParts});
  CHECK(set.id().id != 0);
  CHECK(set.pointer() == 0);
  CHECK(set.info().chunks == 5);
  regions.clear();  // the broker has the memory
  (void)gpu::dispatch(stage.session);
  auto mine = gpu::Region::import(stage.reader, std::string("model"));
  CHECK(mine.size() == 12 * kMiB);
  REQUIRE(mine.tensor_count() == 3);
  CHECK(mine.tensor("a").offset == 1024);
  CHECK(mine.tensor("b").offset == 2 * kMiB);
  CHECK(mine.tensor("c").offset == 12 * kMiB - 8);
  for (const auto& [name, value] : {std::pair{"a", 1}, {"b", 2}, {"c", 3}}) {
    const gpu::Tensor tensor = mine.tensor(name);
    CHECK(stage.device.all(mine.pointer() + tensor.offset, static_cast<std::size_t>(tensor.shape[0])) == value);
  }
  const gpu::Pointer at = mine.pointer();
  mine.sleep();
  mine.wake();
  CHECK(mine.pointer() == at);
  CHECK(stage.device.all(at + 2 * kMiB, 4 * kMiB) == 2);
  mine.release();
  set.release(true);
}

TEST_CASE("a successor takes the name at once, and readers of the old generation keep what they have") {
  SetStage stage;
  auto old = stage.regions(1), fresh = stage.regions(11);
  const auto first = pointers(old), second = pointers(fresh);
  auto one = gpu::Region::publish_set(stage.session, "model", first, {.tensors = kParts});
  auto early = gpu::Region::import(stage.reader, std::string("model"));
  CHECK(status_of(gpu::Region::try_publish_set(stage.session, "model", second)) == Status::exists);
  auto two = gpu::Region::publish_set(stage.session, "model", second, {.replace = true, .tensors = kParts});
  CHECK(two.id().generation == one.id().generation + 1);
  auto late = gpu::Region::import(stage.reader, std::string("model"));
  CHECK(stage.device.all(early.pointer(), 2 * kMiB) == 1);
  CHECK(stage.device.all(late.pointer(), 2 * kMiB) == 11);
  const auto gone = one.id();
  early.release();
  one.release();
  CHECK(eventually([&] { return status_of(gpu::Region::try_import(stage.reader, gone)) == Status::not_found; }));
  late.release();
  two.release(true);
}

TEST_CASE("a set of more chunks than a packet carries has its name when the last one is there") {
  SetStage stage;
  std::vector<gpu::Region> regions;
  for (int i = 0; i < 2; ++i) {
    gpu::AllocateOptions options;
    options.chunk_bytes = 2 * kMiB;
    options.uninitialised = true;
    regions.push_back(gpu::Region::allocate(stage.session, 64 * kMiB, options));
  }
  for (int i = 0; i < 63; ++i) regions.push_back(gpu::Region::allocate(stage.session, kMiB, {.uninitialised = true}));
  REQUIRE(stage.device.fill(regions.back().pointer(), kMiB, 0x77) == 0);
  auto all = pointers(regions);
  {
    const fakecuda::Injected failing("cuMemExportToShareableHandle:253:2");  // the first of the second packet
    CHECK(status_of(gpu::Region::try_publish_set(stage.session, "many", all)) == Status::out_of_memory);
  }
  CHECK(status_of(gpu::Region::try_import(stage.reader, std::string("many"))) == Status::not_found);
  auto set = gpu::Region::publish_set(stage.session, "many", all);
  CHECK(set.info().chunks == 127);
  auto mine = gpu::Region::import(stage.reader, std::string("many"));
  CHECK(stage.device.all(mine.pointer() + mine.size() - 2 * kMiB, kMiB) == 0x77);
  mine.release();
  set.release(true);
}

TEST_CASE("a set that cannot be published says which region or tensor is wrong, and leaves nothing") {
  SetStage stage;
  auto regions = stage.regions(1);
  auto all = pointers(regions);
  const auto refused = [&](Status status, const std::string& says, const gpu::SetOptions& options = {}) {
    const auto made = gpu::Region::try_publish_set(stage.session, "model", all, options);
    CHECK(status_of(made) == status);
    CHECK_MESSAGE(sentence_of(made).contains(says), sentence_of(made));
  };
  refused(Status::invalid, "region 2 of the set: tensor 'c' reaches to",
          {.tensors = {{2, bytes_at("c", 9, (6 << 20) - 8)}}});
  refused(Status::invalid, "region 1 of the set: tensor 'b' begins at", {.tensors = {{1, bytes_at("b", 1, 5 << 20)}}});
  refused(Status::invalid, "'a' lies in region 3, and the set has 3", {.tensors = {{3, bytes_at("a", 1, 0)}}});
  refused(Status::invalid, "is there twice", {.tensors = {{0, bytes_at("a", 1, 0)}, {1, bytes_at("a", 1, 0)}}});
  all.push_back(all.front());
  refused(Status::invalid, "region 3 of the set is in the list twice");
  all.pop_back();
  auto foreign = gpu::Region::allocate(stage.reader, kMiB);
  all.push_back(&foreign);
  refused(Status::invalid, "region 3 of the set is of another session");
  auto elsewhere = gpu::Region::allocate(stage.session, kMiB, {.device = 1});
  all.back() = &elsewhere;
  refused(Status::invalid, "make a set for each device");
  auto written = gpu::Region::allocate(stage.session, kMiB);
  written.publish({.writing = true});
  all.back() = &written;
  refused(Status::invalid, "region 3 of the set is still written");
  all.pop_back();
  regions[1].sleep();
  refused(Status::invalid, "region 1 of the set: a GPU region of 4194304 bytes is asleep");
  regions[1].wake();
  auto set = gpu::Region::publish_set(stage.session, "other", all);
  all.push_back(&set);
  refused(Status::invalid, "is the handle of a set, which has no mapping: import the set");
  for (const auto& unmapped : {status_of(set.try_sleep()), status_of(set.try_wake()), status_of(set.try_copy()),
                               status_of(set.try_dlpack(bytes_at("a", 1, 0))), status_of(set.try_publish())})
    CHECK(unmapped == Status::invalid);
  set.release(true);
  all.clear();
  refused(Status::invalid, "at least one region");
  shmb_gpu_set_options options{};
  options.size = sizeof options;
  shmb_gpu_region* raw = nullptr;
  shmb_gpu_region* const one[] = {regions[0].c(), nullptr};
  const auto asked = [&](const auto* all, std::size_t count, const shmb_gpu_set_options* how, shmb_gpu_region** place) {
    shmb_error error;
    return shmb_gpu_publish_set(stage.session.c(), "model", all, count, how, place, &error);
  };
  CHECK(asked(one, 1, &options, nullptr) == SHMB_E_INVALID);
  CHECK(asked(static_cast<shmb_gpu_region* const*>(nullptr), 1, &options, &raw) == SHMB_E_INVALID);
  CHECK(asked(one, 2, &options, &raw) == SHMB_E_INVALID);  // no region was given
  options.tensor_count = 1;
  CHECK(asked(one, 1, &options, &raw) == SHMB_E_INVALID);
  options.tensor_count = 0;
  options.sync = 9;
  CHECK(asked(one, 1, &options, &raw) == SHMB_E_INVALID);
  options.sync = 0;
  options.flags = SHMB_GPU_PUBLISH_WRITING;
  CHECK(asked(one, 1, &options, &raw) == SHMB_E_UNKNOWN_FLAGS);
  options.size = 0;
  CHECK(asked(one, 1, &options, &raw) == SHMB_E_INVALID);
  CHECK(raw == nullptr);
  CHECK(status_of(gpu::Region::try_import(stage.reader, std::string("model"))) == Status::not_found);
}

TEST_CASE("a failure at any call of the driver publishes no part of a set, and the next attempt succeeds") {
  SetStage stage;
  auto regions = stage.regions(1);
  const auto all = pointers(regions);
  for (const char* call : {"cuMemRetainAllocationHandle", "cuMemExportToShareableHandle", "cuCtxRecordEvent",
                           "cuEventCreate", "cuEventQuery"}) {
    CAPTURE(call);
    {
      const fakecuda::Injected failing(std::string(call) + ":1:2");
      CHECK(status_of(gpu::Region::try_publish_set(stage.session, "model", all, {.tensors = kParts})) ==
            Status::out_of_memory);
    }
    CHECK(status_of(gpu::Region::try_import(stage.reader, std::string("model"))) == Status::not_found);
    auto set = gpu::Region::publish_set(stage.session, "model", all, {.tensors = kParts});
    set.release(true);
  }
}

}  // namespace cuda_tests
