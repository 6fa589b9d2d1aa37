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

Result<ContextHold::Scope> ContextHold::enter() {
  const Calls& calls = driver_->calls();
  const std::string which = "device " + std::to_string(device_);
  Context current = nullptr;
  if (const Code code = calls.context_get(&current); code != kSuccess)
    return std::unexpected(driver_->failure(code, "cuCtxGetCurrent", which));
  Device device = -1;
  // A context that was destroyed or reset stays current, and may still report its device.
  unsigned long long id = 0;
  if (current != nullptr && calls.context_device(&device) == kSuccess && device == device_ &&
      calls.context_id(nullptr, &id) != kContextDestroyed)
    return Scope(nullptr);
  return enter_primary();
}

Result<ContextHold::Scope> ContextHold::enter_primary() {
  const Calls& calls = driver_->calls();
  const std::string which = "device " + std::to_string(device_);
  if (retained_ == nullptr) {
    if (const Code code = calls.primary_retain(&retained_, device_); code != kSuccess) {
      retained_ = nullptr;
      return std::unexpected(driver_->failure(code, "cuDevicePrimaryCtxRetain", which));
    }
  }
  if (const Code code = calls.context_push(retained_); code != kSuccess)
    return std::unexpected(driver_->failure(code, "cuCtxPushCurrent", which));
  return Scope(driver_);
}

Result<ContextHold::Scope> ContextHold::enter_stream(const Driver& driver, Stream stream) {
  Context current = nullptr, context = nullptr;
  if (const Code code = driver->stream_context(stream, &context); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuStreamGetCtx", "a stream"));
  if (const Code code = driver->context_get(&current); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuCtxGetCurrent", "a stream"));
  if (current == context) return Scope(nullptr);
  if (const Code code = driver->context_push(context); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuCtxPushCurrent", "a stream"));
  return Scope(&driver);
}

BesideCaptures::BesideCaptures(const Driver& driver) : driver_(&driver) {
  if (driver->capture_mode(&before_) != kSuccess) driver_ = nullptr;
}

BesideCaptures::~BesideCaptures() {
  if (driver_ != nullptr) (void)(*driver_)->capture_mode(&before_);
}

Result<StreamKey> StreamKey::of(const Driver& driver, Stream stream) {
  constexpr std::uintptr_t kPerThread = 2;  // CU_STREAM_PER_THREAD
  StreamKey key;
  if (const Code code = driver->context_get(&key.context); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuCtxGetCurrent", "a stream"));
  if (const Code code = driver->stream_id(stream, &key.stream); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuStreamGetId", "a stream"));
  if (reinterpret_cast<std::uintptr_t>(stream) == kPerThread) key.thread = std::this_thread::get_id();
  return key;
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
