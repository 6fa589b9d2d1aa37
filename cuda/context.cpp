// SPDX-License-Identifier: Apache-2.0
// The caller's current context is the same before and after each call of the library.
#include "cuda/context.hpp"

#include <string>
#include <utility>

namespace shmb::cuda {

ContextHold::ContextHold(ContextHold&& other) noexcept
    : driver_(other.driver_), device_(other.device_), retained_(std::exchange(other.retained_, nullptr)) {}

ContextHold::~ContextHold() {
  // In a forked child the context is the parent's.
  if (retained_ != nullptr && Driver::loaded() != nullptr) driver_->calls().primary_release(device_);
}

ContextHold::Scope::~Scope() {
  Context popped = nullptr;
  if (driver_ != nullptr) driver_->calls().context_pop(&popped);
}

Code ContextHold::push() noexcept {
  const Code code = retained_ == nullptr ? (*driver_)->primary_retain(&retained_, device_) : kSuccess;
  if (code == kSuccess) return (*driver_)->context_push(retained_);
  retained_ = nullptr;
  return code;
}

Result<ContextHold::Scope> ContextHold::enter() {
  if (const Code code = push(); code != kSuccess)
    return std::unexpected(
        driver_->failure(code, "cuDevicePrimaryCtxRetain or cuCtxPushCurrent", "device " + std::to_string(device_)));
  return Scope(driver_);
}

Result<Device> device_of(const Driver& driver, Stream stream, Device otherwise) {
  if (is_default_stream(stream)) return otherwise;
  Context context = nullptr;
  if (const Code code = driver->stream_context(stream, &context); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuStreamGetCtx", "a stream"));
  for (const DeviceInfo& info : driver.devices()) {
    unsigned flags = 0;
    int active = 0;
    if (driver->primary_state(info.device, &flags, &active) != kSuccess || active == 0) continue;
    Context primary = nullptr;
    const InContext inside(driver, info.device);
    if (const Code code = driver->context_get(&primary); code != kSuccess)
      return std::unexpected(driver.failure(code, "cuCtxGetCurrent", "a stream"));
    if (primary == context) return info.device;
  }
  return error(Status::invalid,
               "the stream is of a context that the program made itself: pass one of a device's primary context, as "
               "the CUDA runtime, PyTorch and JAX use it");
}

Result<OwnStream> OwnStream::make(const Driver& driver, Device device, const std::string& object) {
  const InContext inside(driver, device);
  const BesideCaptures beside(driver);
  Stream made = nullptr;
  if (const Code code = driver->stream_create(&made, kNonBlocking); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuStreamCreate", object));
  return OwnStream(driver, device, made);
}

OwnStream::~OwnStream() {
  if (stream_ == nullptr || Driver::loaded() == nullptr) return;  // a forked child: the stream is the parent's
  const InContext inside(*driver_, device_);
  driver_->calls().stream_destroy(stream_);
}

BesideCaptures::BesideCaptures(const Driver& driver) : driver_(&driver) {
  if (driver->capture_mode(&before_) != kSuccess) driver_ = nullptr;
}

BesideCaptures::~BesideCaptures() {
  if (driver_ != nullptr) (void)(*driver_)->capture_mode(&before_);
}

Device handy_device(const Driver& driver) {
  const auto active = [&](Device device) {
    unsigned flags = 0;
    int is = 0;
    return driver->primary_state(device, &flags, &is) == kSuccess && is != 0;
  };
  Device current = -1;
  if (driver->context_device(&current) != kSuccess) current = -1;
  if (current >= 0 && active(current)) return current;
  for (const DeviceInfo& info : driver.devices())
    if (active(info.device)) return info.device;
  return current >= 0 ? current : 0;
}

}  // namespace shmb::cuda
