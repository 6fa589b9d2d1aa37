// SPDX-License-Identifier: Apache-2.0
// A library that was built without GPU memory has all its functions, and each that needs the driver says why not.
#include <doctest/doctest.h>

#include <string>

#include "cuda/cuda.hpp"

namespace gpu = shmbroker::gpu;

TEST_CASE("a library built without GPU memory answers no_driver, and says with which option it was built") {
  const auto devices = gpu::try_devices();
  REQUIRE(!devices);
  CHECK(devices.error().status() == shmbroker::Status::no_driver);
  CHECK(std::string(devices.error().what()).find("-Dgpu=disabled") != std::string::npos);
  CHECK(!gpu::try_driver_version());
  CHECK(gpu::try_driver_version().error().status() == shmbroker::Status::no_driver);
  const auto nowhere = shmbroker::Session::try_connect({.local_only = true});
  REQUIRE(nowhere);
  const auto region = gpu::Region::try_allocate(*nowhere, 4096);
  REQUIRE(!region);
  CHECK(region.error().status() == shmbroker::Status::no_driver);
  CHECK(gpu::Region::try_publish_set(*nowhere, "model", {}).error().status() == shmbroker::Status::no_driver);
  CHECK(gpu::Region::try_import(*nowhere, std::string("model")).error().status() == shmbroker::Status::no_driver);
  CHECK(gpu::try_dispatch(*nowhere));
  CHECK(nowhere->try_create(4096));  // all else works
  shmb_error error;
  CHECK(shmb_torch_alloc(4096, 0, nullptr) == nullptr);
  CHECK(shmb_torch_last_error(&error) == SHMB_E_NO_DRIVER);
}
