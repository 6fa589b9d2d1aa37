// SPDX-License-Identifier: Apache-2.0
// The CUDA context of the library's calls: always the device's primary one, which cudart, PyTorch and JAX use too. A
// library must not make a second context, and the caller's thread may have none. It is current only during the call.
#pragma once

#include <cstdint>
#include <utility>

#include "cuda/driver.hpp"

namespace shmb::cuda {

// Keeps the device's primary context while alive, from the first `enter` on. One for each object.
class ContextHold {
 public:
  ContextHold(const Driver& driver, Device device) : driver_(&driver), device_(device) {}
  ContextHold(ContextHold&& other) noexcept;
  ContextHold& operator=(ContextHold&&) = delete;
  ~ContextHold();  // releases the primary context if it was retained here

  // The context is current in this thread until the scope ends.
  class Scope {
   public:
    Scope(Scope&& other) noexcept : driver_(std::exchange(other.driver_, nullptr)) {}
    Scope& operator=(Scope&&) = delete;
    ~Scope();

   private:
    friend class ContextHold;
    friend class InContext;
    explicit Scope(const Driver* pushed) : driver_(pushed) {}
    const Driver* driver_;
  };
  Result<Scope> enter();

 private:
  friend class InContext;
  Code push() noexcept;
  const Driver* driver_;
  Device device_;
  Context retained_ = nullptr;
};

// The same for one call that owns memory. It never fails: where there is no context, the call itself says so.
class InContext {
 public:
  InContext(const Driver& driver, Device device) noexcept
      : hold_(driver, device), scope_(hold_.push() == kSuccess ? &driver : nullptr) {}
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  ContextHold hold_;
  ContextHold::Scope scope_;
};

// The device of a stream, which must be of a primary context; `otherwise` for a default stream.
Result<Device> device_of(const Driver& driver, Stream stream, Device otherwise);

// A stream in the device's primary context that waits for no stream of the program, and no stream waits for it. End it
// when its work is done: nobody could ask for that afterwards.
class OwnStream {
 public:
  static Result<OwnStream> make(const Driver& driver, Device device, const std::string& object);
  OwnStream(OwnStream&& other) noexcept
      : driver_(other.driver_), device_(other.device_), stream_(std::exchange(other.stream_, nullptr)) {}
  OwnStream& operator=(OwnStream&&) = delete;
  ~OwnStream();
  Stream get() const { return stream_; }

 private:
  OwnStream(const Driver& driver, Device device, Stream stream) : driver_(&driver), device_(device), stream_(stream) {}
  const Driver* driver_;
  Device device_;
  Stream stream_;
};

// The library's own queries must not become part of a program's graph. By default the driver treats them as a fault of
// captures, in other threads too, and invalidates the captures. While this object lives, the thread's calls are allowed
// if they do not conflict with a capture by themselves.
class BesideCaptures {
 public:
  explicit BesideCaptures(const Driver& driver);
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;
  ~BesideCaptures();

 private:
  const Driver* driver_;
  int before_ = kCaptureRelaxed;
};

// NULL and the two that stand for a current stream: they have no context of their own.
inline bool is_default_stream(Stream stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }

// A device for calls that any device can serve. It has a primary context already, so that no GPU gets a context that
// the program did not ask for. The current device comes first.
Device handy_device(const Driver& driver);

}  // namespace shmb::cuda
