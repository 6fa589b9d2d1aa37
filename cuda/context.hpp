// SPDX-License-Identifier: Apache-2.0
// In which CUDA context our calls run. A guest makes no second context: the caller's current one is used where it is on
// the right device, else the device's primary context, held as long as one of our objects needs it and current only
// while our call lasts.
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
    const Driver* driver_;  // null: nothing was pushed
  };
  Result<Scope> enter();
  // For what must outlive the caller's context: the primary one, kept from now on whatever is current.
  Result<Scope> enter_primary();
  // That of a stream that the caller made, who keeps it; whatever is current.
  static Result<Scope> enter_stream(const Driver& driver, Stream stream);

 private:
  const Driver* driver_;
  Device device_;
  Context retained_ = nullptr;
};

// Our own questions are no part of anybody's graph. By default the driver takes them for a fault of the program's
// captures, in other threads too, and spoils these; while one of these lives, this thread's calls are let through where
// they do not conflict with a capture by themselves.
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

// Which stream a call means, whose context is current. A handle may come again for another stream, and the special ones
// stand for many.
struct StreamKey {
  Context context = nullptr;
  unsigned long long stream = 0;
  std::thread::id thread;  // of a stream for each thread
  friend auto operator<=>(const StreamKey&, const StreamKey&) = default;
  static Result<StreamKey> of(const Driver& driver, Stream stream);
};

// NULL and the two that stand for whatever is current: they have no context of their own.
inline bool is_default_stream(Stream stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }

// Where to do what any device may do: one whose primary context is there already, so that no GPU gets a context that
// nobody asked for; the current device before others.
Device handy_device(const Driver& driver);

}  // namespace shmb::cuda
