// SPDX-License-Identifier: Apache-2.0
// The CUDA context of the library's calls. A library must not make a second context. So it uses the caller's current
// one where that is on the right device. Otherwise it uses the device's primary context, held as long as an object
// needs it, and current only during the call.
#pragma once

#include <compare>
#include <cstdint>
#include <thread>
#include <utility>

#include "cuda/driver.hpp"

namespace shmb::cuda {

// Keeps the device's primary context while alive, from the first `enter` that needed it. One for each object.
class ContextHold {
 public:
  ContextHold(const Driver& driver, Device device) : driver_(&driver), device_(device) {}
  ContextHold(ContextHold&& other) noexcept;
  ContextHold& operator=(ContextHold&&) = delete;
  ~ContextHold();  // releases the primary context if it was retained here

  // A context of the device is current in this thread until the scope ends.
  class Scope {
   public:
    Scope(Scope&& other) noexcept : driver_(std::exchange(other.driver_, nullptr)) {}
    Scope& operator=(Scope&&) = delete;
    ~Scope();

   private:
    friend class ContextHold;
    explicit Scope(const Driver* pushed) : driver_(pushed) {}
    const Driver* driver_;  // null: no context was pushed
  };
  Result<Scope> enter();
  // For objects that must outlive the caller's context: the primary one, held from now on, whichever is current.
  Result<Scope> enter_primary();
  // Enters the context of a stream that the caller made. The caller keeps that context.
  static Result<Scope> enter_stream(const Driver& driver, Stream stream);

 private:
  const Driver* driver_;
  Device device_;
  Context retained_ = nullptr;
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

// Identifies the stream of a call whose context is current. A handle may be reused for another stream, and the special
// handles stand for many streams.
struct StreamKey {
  Context context = nullptr;
  unsigned long long stream = 0;
  std::thread::id thread;  // for a per-thread stream
  friend auto operator<=>(const StreamKey&, const StreamKey&) = default;
  static Result<StreamKey> of(const Driver& driver, Stream stream);
};

// NULL and the two that stand for a current stream: they have no context of their own.
inline bool is_default_stream(Stream stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }

// A device for calls that any device can serve. It has a primary context already, so that no GPU gets a context that
// the program did not ask for. The current device comes first.
Device handy_device(const Driver& driver);

}  // namespace shmb::cuda
