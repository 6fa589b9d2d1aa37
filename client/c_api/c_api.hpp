// SPDX-License-Identifier: Apache-2.0
// Between the C ABI and the C++ inside: handles, growing structs, errors. Nothing is ever thrown across: what the
// allocator throws becomes a status here.
//
// Each function of the C headers has the same shape:
// 1. guarded() catches exceptions and turns the Result of the body into a status and a shmb_error. guarded_to_end()
//    does it for calls that no signal may end, because they could not be made again.
// 2. The body takes the handle apart (session_of, pool_of), and answers INVALID for a handle that is NULL.
// 3. read_options() reads a struct of an older or newer caller: it has the size that the caller set. Fields that the
//    caller does not know are zero. Fields that this library does not know must be zero.
// 4. One call of the C++ inside does the work.
// 5. write_struct() fills a struct of the caller by the same rule.
//
// A handle is a struct with one member, a shared or unique pointer. The caller owns it until it passes it to the
// function that ends it. So a handle that is freed twice is a fault of the program, and is not found here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "base/interrupt.hpp"
#include "base/result.hpp"
#include "client/face/shmbroker.h"
#include "client/queue/pool.hpp"
#include "client/region/region.hpp"
#include "client/session/session.hpp"

namespace shmb::client::c_api {
// A layer above sets this: its work before a session of a program is closed. Null: there is none.
inline std::atomic<void (*)(Session&) noexcept> at_disconnect = nullptr;
}  // namespace shmb::client::c_api

struct shmb_session {
  std::shared_ptr<shmb::client::Session> it;
  bool opened = false;  // by shmb_connect; others are second handles, which come and go
};
struct shmb_region {
  shmb::client::Region::Handle it;
};
struct shmb_pool {
  std::shared_ptr<shmb::client::Pool> it;
};

namespace shmb::client::c_api {

// Called when a call reports to its caller the end of a process that shares something with it. Spawn sets it: a rank
// passes the time on to its supervisor, because a failure after such a report is not the first one. NULL: not set.
using EndTold = void (*)() noexcept;
extern std::atomic<EndTold> on_end_told;

int report(const Error& error, shmb_error* out);
// The same for the end of a call: a call that a signal has ended reports that, whatever it had no more time for.
int report_end(const Error& error, shmb_error* out);
Error interrupted();

// Runs a body that returns Result<void> (or anything convertible) and turns it into a status.
template <class Body>
int guarded(shmb_error* out, Body&& body) noexcept {
  const interrupt::Call call;
  try {
    Result<void> done = body();
    return done ? static_cast<int>(SHMB_OK) : report_end(done.error(), out);
  } catch (const std::bad_alloc&) {
    Error failure;  // its sentence is short enough to need no allocation
    failure.status = Status::no_memory;
    failure.sentence = "out of memory";
    return report(failure, out);
  } catch (...) {
    Error failure;
    failure.status = Status::system;
    failure.sentence = "internal";
    return report(failure, out);
  }
}

// For a call that a signal does not end, because it could not be made again.
template <class Body>
int guarded_to_end(shmb_error* out, Body&& body) noexcept {
  return guarded(out, [&]() -> Result<void> {
    const interrupt::Shield shield;
    return body();
  });
}

// For what every message calls. `short_way` answers by a Now. `full` and `empty` are the outcome of a call that does
// not wait: `why` makes the sentence, if there is a place for it. All else `body` does.
template <class ShortWay, class Why, class Body>
[[gnu::always_inline]] inline int guarded_short(shmb_error* out, bool waits, ShortWay&& short_way, Why&& why,
                                                Body&& body) noexcept {
  try {
    const Now now = short_way();
    if (now == Now::done) [[likely]]
      return SHMB_OK;
    if (now != Now::ask && !waits) {
      if (out == nullptr) return now == Now::full ? SHMB_E_FULL : SHMB_E_EMPTY;
      return report(why(now), out);
    }
  } catch (...) {
    return guarded(out, []() -> Result<void> { throw; });
  }
  return guarded(out, body);
}

inline std::unexpected<Error> wrong_size(const std::string& what, std::size_t given) {
  return error(Status::invalid, "the size field of " + what + " is " + std::to_string(given) +
                                    ", which is less than the field itself has: set it to sizeof of that struct");
}

// Options as this library knows them, under the rules of growing structs. NULL: all zero.
template <class T>
Result<T> read_options(const T* options) {
  T known{};
  known.size = sizeof(T);
  if (options == nullptr) return known;
  const std::size_t given = options->size;
  if (given < sizeof(std::size_t)) return wrong_size("the options", given);
  const auto* bytes = reinterpret_cast<const unsigned char*>(options);
  std::memcpy(static_cast<void*>(&known), bytes, std::min(given, sizeof(T)));
  for (std::size_t i = sizeof(T); i < given; ++i)
    if (bytes[i] != 0) return error(Status::too_new, "the options use fields that this library does not know");
  return known;
}

// As much of `value` as the caller has room for; what the caller knows beyond it becomes zero.
template <class T>
Result<void> write_struct(const T& value, T* out) {
  if (out == nullptr) return error(Status::invalid, "no struct to fill was given");
  const std::size_t room = out->size;
  if (room < sizeof(std::size_t)) return wrong_size("the struct to fill", room);
  T copy = value;
  copy.size = room;
  std::memcpy(static_cast<void*>(out), &copy, std::min(room, sizeof(T)));
  if (room > sizeof(T)) std::memset(reinterpret_cast<unsigned char*>(out) + sizeof(T), 0, room - sizeof(T));
  return {};
}

template <std::size_t N>
void copy_text(char (&out)[N], const std::string& text) {
  const std::size_t length = std::min(text.size(), N - 1);
  std::memcpy(out, text.data(), length);
  out[length] = '\0';
}

inline std::string text_or_empty(const char* text) { return text == nullptr ? std::string() : std::string(text); }

Result<std::shared_ptr<Session>> session_of(shmb_session* session);
Result<Region*> region_of(shmb_region* region);
shmbw_region_ref to_ref(const shmb_region_id& id);
shmb_region_id to_id(shmbw_region_ref ref, std::uint64_t epoch);
Token to_token(const std::uint8_t* bytes);
Result<std::shared_ptr<Pool>> pool_of(shmb_pool* pool);
inline Slot to_slot(const shmb_slot& slot) {
  return {
      static_cast<std::byte*>(slot.data), slot.size, slot.length, slot.pool, slot.stamp, slot.index, slot.generation};
}
inline shmb_slot to_c(const Slot& slot) {
  return {slot.data, slot.size, slot.length, slot.pool, slot.stamp, slot.index, slot.generation};
}

}  // namespace shmb::client::c_api
