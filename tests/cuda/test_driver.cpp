// SPDX-License-Identifier: Apache-2.0
// The driver that is not there, is a stub, is too old, has no device, or is gone after a fork: each is an answer with a
// sentence that says what to do. In processes of their own, since a driver is loaded once.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/text.hpp"
#include "cuda/backlog.hpp"
#include "cuda/driver.hpp"
#include "tests/fakecuda/process.hpp"

using namespace shmb;
using fakecuda::Environment;
using fakecuda::Fake;

namespace {

// Loads in a process with that environment: whether the status is this and the sentence contains that.
int load_gives(const Environment& environment, Status status, const std::string& words) {
  return fakecuda::process(environment,
                           [&] {
                             const auto driver = cuda::Driver::load();
                             if (driver) {
                               std::fprintf(stderr, "the driver was loaded\n");
                               return 1;
                             }
                             if (driver.error().status != status || !driver.error().sentence.contains(words))
                               std::fprintf(stderr, "%s: %s\n", status_text(driver.error().status).c_str(),
                                            driver.error().sentence.c_str());
                             NEED(driver.error().status == status);
                             NEED(driver.error().sentence.contains(words));
                             NEED(cuda::Driver::loaded() == nullptr);
                             return 0;
                           })
      .wait();
}

Environment fake(Environment more = {}) {
  more.emplace_back("SHMB_LIBCUDA", SHMB_TEST_FAKECUDA);
  return more;
}

}  // namespace

TEST_CASE("driver: a machine without one gets an error") {
  CHECK(load_gives({{"SHMB_LIBCUDA", "libcuda-not-there.so.1"}}, Status::no_driver, "Install it") == 0);
}

TEST_CASE("driver: a library that is something else is no driver") {
  CHECK(load_gives({{"SHMB_LIBCUDA", "libm.so.6"}}, Status::no_driver, "is not NVIDIA's") == 0);
  CHECK(load_gives({{"SHMB_LIBCUDA", "/proc/self/status"}}, Status::no_driver, "Install it") == 0);
}

TEST_CASE("driver: the toolkit's stub is named as a stub") {
  CHECK(load_gives(fake({{"FAKECUDA_STUB", "1"}}), Status::stub_driver, "LD_LIBRARY_PATH") == 0);
}

TEST_CASE("driver: one before 12.0 is too old, and the sentence has both versions") {
  CHECK(load_gives(fake({{"FAKECUDA_DRIVER_VERSION", "11080"}}), Status::driver_too_old,
                   "CUDA 11.8, sharing GPU memory needs 12.0") == 0);
}

TEST_CASE("driver: one that lacks a function is too old by that name, or lacks what needs it") {
  CHECK(load_gives(fake({{"FAKECUDA_HIDE", "cuMemImportFromShareableHandle"}}), Status::driver_too_old,
                   "CUDA 13.0 but lacks cuMemImportFromShareableHandle, sharing GPU memory needs 12.0") == 0);
  CHECK(fakecuda::process(fake({{"FAKECUDA_HIDE", "cuStreamWriteValue64"}}), [] {
          const auto loaded = cuda::Driver::load();
          NEED(loaded.has_value() && (*loaded)->has(cuda::Feature::lease));
          const auto timeline = (*loaded)->need(cuda::Feature::timeline);
          NEED(!timeline && timeline.error().status == Status::not_supported);
          NEED(timeline.error().sentence.contains("(CUDA 13.0) has no cuStreamWriteValue64"));
          return 0;
        }).wait() == 0);
}

TEST_CASE("driver: without a visible device it says where to look, and a later load tries again") {
  CHECK(load_gives(fake({{"CUDA_VISIBLE_DEVICES", ""}}), Status::no_device, "CUDA_VISIBLE_DEVICES") == 0);
  CHECK(fakecuda::process(fake({{"FAKECUDA_FAIL", "cuInit:1:100"}}), [] {
          const auto first = cuda::Driver::load();
          NEED(!first && first.error().status == Status::no_device);
          NEED(cuda::Driver::load().has_value());
          return 0;
        }).wait() == 0);
}

TEST_CASE("driver: each other failure of cuInit has its status") {
  const std::pair<const char*, Status> answers[] = {{"802", Status::driver_failed},  {"803", Status::driver_failed},
                                                    {"804", Status::driver_too_old}, {"999", Status::driver_failed},
                                                    {"46", Status::not_permitted},   {"805", Status::mps},
                                                    {"800", Status::not_permitted}};
  for (const auto& [code, status] : answers) {
    CAPTURE(code);
    CHECK(load_gives(fake({{"FAKECUDA_FAIL", std::string("cuInit:1+:") + code}}), status, "cuInit") == 0);
  }
}

TEST_CASE("driver: devices are known by UUID in the order this process sees them") {
  CHECK(fakecuda::holds(
            fake({{"FAKECUDA_DEVICES", "3"}, {"CUDA_VISIBLE_DEVICES", "2,0"}, {"FAKECUDA_BYTES", "512M"}}), [] {
              const auto loaded = cuda::Driver::load();
              NEED(loaded.has_value());
              const cuda::Driver& driver = **loaded;
              NEED(driver.version() == 13000);
              NEED(driver.devices().size() == 2);
              const cuda::DeviceInfo& first = driver.devices()[0];
              NEED(first.uuid_text() == "GPU-fa4ec0da-0000-4000-8000-000000000002");
              NEED(first.bytes == 512U << 20 && first.granularity == 2U << 20 && first.shareable && !first.mig);
              NEED(first.bus_id == "0000:03:00.0");
              cuda::Uuid other = first.uuid;
              other.bytes.back() = 0;
              NEED(driver.find(other).has_value() && (*driver.find(other))->device == 1);
              other.bytes.back() = 1;
              const auto hidden = driver.find(other);
              NEED(!hidden && hidden.error().status == Status::device_not_found);
              NEED(hidden.error().sentence.contains("GPU-fa4ec0da-0000-4000-8000-000000000001"));
              NEED(hidden.error().sentence.contains(first.uuid_text()));
              NEED(driver.at(1).has_value() && !driver.at(2) && !driver.at(-1));
              return 0;
            }) == 0);
}

TEST_CASE("driver: an instance under MIG is known as one") {
  CHECK(fakecuda::holds(fake({{"FAKECUDA_MIG", "1"}}), [] {
          const auto driver = cuda::Driver::load();
          NEED(driver.has_value());
          NEED((*driver)->devices().size() == 1 && (*driver)->devices()[0].mig);
          NEED((*driver)->devices()[0].uuid_text().starts_with("MIG-"));
          const Error failed = (*driver)->import_failure(cuda::kNotSupported, "region 'w'", (*driver)->devices()[0]);
          NEED(failed.status == Status::different_mig_instance);
          return 0;
        }) == 0);
}

TEST_CASE("driver: no function is asked for in a version with another declaration") {
  CHECK(fakecuda::holds(fake(), [] {
          const auto driver = cuda::Driver::load();
          NEED(driver.has_value());
          NEED(fakecuda::with_context((*driver)->calls()));
          cuda::Device device = -1;
          NEED((**driver)->context_device(&device) == cuda::kSuccess && device == 0);
          NEED((**driver)->context_synchronize() == cuda::kSuccess);
          NEED(fakecuda::without_context((*driver)->calls()));
          for (const auto feature : {cuda::Feature::lease, cuda::Feature::timeline, cuda::Feature::rdma})
            NEED((*driver)->has(feature));
          return 0;
        }) == 0);
}

TEST_CASE("driver: each failure names call, object, code and what to do") {
  CHECK(fakecuda::holds(fake(), [] {
          const auto loaded = cuda::Driver::load();
          NEED(loaded.has_value());
          const cuda::Driver& driver = **loaded;
          const std::pair<cuda::Code, Status> meanings[] = {
              {2, Status::out_of_memory},        {3, Status::forked_child},    {34, Status::stub_driver},
              {46, Status::not_permitted},       {100, Status::no_device},     {101, Status::device_not_visible},
              {712, Status::already_registered}, {800, Status::not_permitted}, {801, Status::not_supported},
              {802, Status::driver_failed},      {803, Status::driver_failed}, {807, Status::mps},
              {999, Status::driver_failed},      {1, Status::invalid},         {401, Status::driver_failed}};
          for (const auto& [code, status] : meanings) {
            const Error failed = driver.failure(code, "cuMemCreate", "region 'w'");
            if (failed.status != status) std::fprintf(stderr, "%d: %s\n", code, failed.sentence.c_str());
            NEED(failed.status == status);
            NEED(failed.sentence.starts_with("cuMemCreate for region 'w' gives " + std::to_string(code)));
          }
          const cuda::DeviceInfo& device = driver.devices()[0];
          for (const cuda::Code code : {1, 400})
            NEED(driver.import_failure(code, "region 'w'", device).status == Status::bad_fd);
          NEED(driver.import_failure(304, "region 'w'", device).status == Status::driver_failed);
          NEED(driver.import_failure(801, "region 'w'", device).status == Status::device_not_visible);
          NEED(driver.import_failure(2, "region 'w'", device).status == Status::out_of_memory);
          const Error small = driver.map_failure(1, "region 'w'", 4U << 20);
          for (const auto& [code, status] : {std::pair{1, Status::producer_dead},
                                             {400, Status::producer_dead},
                                             {201, Status::device_not_visible},
                                             {205, Status::not_supported},
                                             {217, Status::not_supported},
                                             {711, Status::not_supported},
                                             {2, Status::out_of_memory}}) {
            const Error failed = driver.open_failure(code, "region 'w'");
            NEED(failed.status == status && failed.sentence.starts_with("cuIpcOpenMemHandle for region 'w'"));
          }
          NEED(small.status == Status::too_small && small.sentence.contains("4.0 MiB"));
          NEED(cuda::Driver::poisoned() == 0);
          return 0;
        }) == 0);
}

TEST_CASE("driver: after a fault of the device nothing new begins, and what was had can be given back") {
  for (const cuda::Code sticky : {700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 214, 220, 226}) {
    CAPTURE(sticky);
    CHECK(fakecuda::holds(fake(), [=] {
            const auto driver = cuda::Driver::load();
            NEED(driver.has_value());
            NEED(fakecuda::with_context((*driver)->calls()));
            Fake::use().break_context(sticky);
            const cuda::Code code = (**driver)->context_synchronize();
            NEED(code == sticky);
            NEED((*driver)->failure(code, "cuCtxSynchronize", "device 0").status == Status::context_poisoned);
            const auto again = cuda::Driver::load();
            NEED(!again && again.error().status == Status::context_poisoned);
            NEED(again.error().sentence.contains(std::to_string(sticky)));
            NEED(cuda::Driver::loaded() == *driver);
            NEED(fakecuda::without_context((*driver)->calls()));
            return 0;
          }) == 0);
  }
}

TEST_CASE("driver: a forked child gets an error, its parent goes on, and a child forked before the load may load") {
  CHECK(fakecuda::holds(fake(), [] {
          pid_t child = ::fork();
          if (child == 0) ::_exit(cuda::Driver::load().has_value() ? 0 : 1);
          int status = -1;
          NEED(::waitpid(child, &status, 0) == child && status == 0);
          NEED(cuda::Driver::load().has_value());
          child = ::fork();
          if (child == 0) {
            const auto again = cuda::Driver::load();
            ::_exit(!again && again.error().status == Status::forked_child && cuda::Driver::loaded() == nullptr ? 0
                                                                                                                : 1);
          }
          NEED(::waitpid(child, &status, 0) == child && status == 0);
          NEED(cuda::Driver::load().has_value() && cuda::Driver::loaded() != nullptr);
          return 0;
        }) == 0);
}

TEST_CASE("context: a current context that was reset is replaced by the primary one, and nothing else breaks") {
  CHECK(fakecuda::holds(fake(), [] {
          const auto loaded = cuda::Driver::load();
          NEED(loaded.has_value());
          const cuda::Driver& driver = **loaded;
          NEED(fakecuda::with_context(driver.calls(), 0));
          NEED(driver->primary_release(0) == cuda::kSuccess);  // as cudaDeviceReset: still current, and no more
          const cuda::Code code = driver->context_synchronize();
          NEED(code == cuda::kContextDestroyed);
          NEED(driver.failure(code, "cuCtxSynchronize", "device 0").status == Status::invalid);
          NEED(cuda::Driver::load().has_value() && cuda::Driver::poisoned() == 0);
          {
            cuda::ContextHold hold(driver, 0);
            auto scope = hold.enter();
            NEED(scope.has_value());
            NEED(driver->context_synchronize() == cuda::kSuccess);
          }
          NEED(driver->context_set(nullptr) == cuda::kSuccess);
          return 0;
        }) == 0);
}

TEST_CASE("context: work for any device uses one with a primary context, the current device first") {
  CHECK(fakecuda::holds(fake(), [] {
          const auto loaded = cuda::Driver::load();
          NEED(loaded.has_value());
          const cuda::Driver& driver = **loaded;
          NEED(cuda::handy_device(driver) == 0);
          cuda::Context other = nullptr;
          NEED(driver->primary_retain(&other, 1) == cuda::kSuccess);
          NEED(cuda::handy_device(driver) == 1);
          NEED(fakecuda::with_context(driver.calls(), 0));
          NEED(cuda::handy_device(driver) == 0);
          NEED(driver->context_set(other) == cuda::kSuccess);
          NEED(cuda::handy_device(driver) == 1);
          NEED(fakecuda::without_context(driver.calls(), 0) && driver->primary_release(1) == cuda::kSuccess);
          return 0;
        }) == 0);
}

TEST_CASE("context: the device's primary one is used whatever is current, and all is left as found") {
  CHECK(fakecuda::holds(fake(), [] {
          const auto loaded = cuda::Driver::load();
          NEED(loaded.has_value());
          const cuda::Driver& driver = **loaded;
          cuda::Context current = nullptr;
          {
            cuda::ContextHold hold(driver, 1);
            NEED(Fake::use().audit().contexts == 0);  // not before it is needed
            {
              auto scope = hold.enter();
              NEED(scope.has_value());
              cuda::Device device = -1;
              NEED(driver->context_device(&device) == cuda::kSuccess && device == 1);
              auto inner = hold.enter();
              NEED(inner.has_value());
            }
            NEED(driver->context_get(&current) == cuda::kSuccess && current == nullptr);
            NEED(Fake::use().audit().contexts == 1);
          }
          NEED(Fake::use().audit().contexts == 0);
          NEED(fakecuda::with_context(driver.calls(), 0));
          {
            cuda::ContextHold other(driver, 1);
            NEED(other.enter().has_value());
            cuda::Device device = -1;
            NEED(driver->context_device(&device) == cuda::kSuccess && device == 0);
          }
          NEED(fakecuda::without_context(driver.calls(), 0));
          const fakecuda::Injected refused("cuDevicePrimaryCtxRetain:1:2");
          cuda::ContextHold hold(driver, 0);
          NEED(hold.enter().error().status == Status::out_of_memory);
          NEED(hold.enter().has_value());
          return 0;
        }) == 0);
}

TEST_CASE("driver: threads that load at the same time get the same driver") {
  CHECK(fakecuda::holds(fake(), [] {
          std::vector<std::thread> threads;
          std::vector<const cuda::Driver*> seen(8);
          for (std::size_t i = 0; i < seen.size(); ++i)
            threads.emplace_back([&seen, i] {
              const auto driver = cuda::Driver::load();
              seen[i] = driver ? *driver : nullptr;
            });
          for (std::thread& thread : threads) thread.join();
          for (const cuda::Driver* driver : seen) NEED(driver != nullptr && driver == seen[0]);
          NEED(Fake::use().calls("cuInit") == 1);
          return 0;
        }) == 0);
}

TEST_CASE("driver: one before 12.5 cannot be asked what became of work, so it is waited for; a newer one is asked") {
  const auto on = [](const char* version, bool bounded) {
    return fakecuda::process(fake({{"FAKECUDA_DRIVER_VERSION", version}}),
                             [=] {
                               auto loaded = cuda::Driver::load();
                               NEED(loaded);
                               const cuda::Driver& driver = **loaded;
                               NEED(driver.has(cuda::Feature::bounded_waits) == bounded);
                               cuda::ContextHold hold(driver, 0);
                               auto scope = hold.enter();
                               cuda::Stream stream = nullptr;
                               NEED(scope && driver->stream_create(&stream, cuda::kNonBlocking) == 0);
                               std::atomic<int> step = 0;
                               const auto work = [](void* at) {
                                 auto& reached = *static_cast<std::atomic<int>*>(at);
                                 reached = 1;
                                 while (reached != 2) ::usleep(1000);
                                 reached = 3;
                               };
                               NEED(driver->launch_host(stream, work, &step) == 0);
                               while (step != 1) ::usleep(1000);
                               std::thread later([&] {
                                 if (!bounded) ::usleep(50'000);
                                 while (bounded && Fake::use().calls("cuEventQuery") == 0) ::usleep(1000);
                                 step = 2;
                               });
                               const cuda::Device device = 0;
                               auto before = cuda::Backlog::of_devices(driver, {&device, 1}, "this test");
                               const bool waited = step == 3;
                               if (bounded) {
                                 auto looked = before.wait(client::Deadline::now());
                                 NEED(!looked && looked.error().status == Status::deadline);
                               }
                               later.join();
                               NEED(waited == !bounded);
                               NEED(before.wait(client::Deadline::after(0)));
                               NEED(step == 3 && before.over());
                               NEED(driver->stream_destroy(stream) == 0);
                               return 0;
                             })
        .wait();
  };
  CHECK(on("12040", false) == 0);
  CHECK(on("12050", true) == 0);
}
