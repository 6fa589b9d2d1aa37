// SPDX-License-Identifier: Apache-2.0
// The C ABI's events between processes.
#include <cstring>

#include "cuda/c_api_cuda.hpp"
#include "cuda/shared_event.hpp"

struct shmb_gpu_event {
  shmb::cuda::SharedEvent::Handle it;
};

namespace shmb::cuda::c_api {
namespace {

Result<SharedEvent*> event_of(const shmb_gpu_event* event) {
  if (event == nullptr) return error(Status::invalid, "no event was given");
  return event->it.get();
}

// The device, once the caller has confirmed what the library cannot check.
Result<int> event_device(const shmb_gpu_event_options* options) {
  SHMB_TRY(wanted, client::c_api::read_options(options));
  if ((wanted.flags & ~std::uint32_t{SHMB_GPU_EVENT_MAKER_STAYS}) != 0)
    return error(Status::unknown_flags, "an unknown flag of an event");
  if ((wanted.flags & SHMB_GPU_EVENT_MAKER_STAYS) == 0)
    return error(Status::invalid,
                 "an event between processes ends with its maker, and its waiters are not notified: say "
                 "SHMB_GPU_EVENT_MAKER_STAYS where the maker lives until all have passed, else use a timeline");
  if (wanted.device < SHMB_GPU_ANY_DEVICE)
    return error(Status::invalid, "a device is an ordinal from 0 on, or SHMB_GPU_ANY_DEVICE");
  return wanted.device;
}

template <class Make>
Result<void> made(const shmb_gpu_event_options* options, shmb_gpu_event** event, Make&& make) {
  SHMB_TRY(device, event_device(options));
  if (event == nullptr) return error(Status::invalid, "no place for the event was given");
  auto handle = std::make_unique<shmb_gpu_event>();
  SHMB_TRY(it, make(device));
  handle->it = std::move(it);
  *event = handle.release();
  return {};
}

}  // namespace
}  // namespace shmb::cuda::c_api

using namespace shmb;
using namespace shmb::cuda::c_api;
using shmb::cuda::SharedEvent;

extern "C" {

int shmb_gpu_event_create(const shmb_gpu_event_options* options, shmb_gpu_event** event, shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(
      out, [&] { return made(options, event, [](int device) { return SharedEvent::create(device); }); });
}

int shmb_gpu_event_open(const uint8_t handle[SHMB_GPU_EVENT_HANDLE], const shmb_gpu_event_options* options,
                        shmb_gpu_event** event, shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    if (handle == nullptr) return shmb::error(Status::invalid, "no handle of an event was given");
    SharedEvent::Name name;
    std::memcpy(name.data(), handle, name.size());
    return made(options, event, [&](int device) { return SharedEvent::open(name, device); });
  });
}

int shmb_gpu_event_get_handle(const shmb_gpu_event* event, uint8_t handle[SHMB_GPU_EVENT_HANDLE],
                              shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    SHMB_TRY(known, event_of(event));
    if (handle == nullptr) return shmb::error(Status::invalid, "no place for the handle was given");
    SHMB_TRY(name, known->name());
    std::memcpy(handle, name.data(), name.size());
    return {};
  });
}

int shmb_gpu_event_record(shmb_gpu_event* event, shmb_gpu_stream stream, shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    auto known = event_of(event);
    return known ? (*known)->record(static_cast<cuda::Stream>(stream)) : std::unexpected(known.error());
  });
}

int shmb_gpu_event_wait(shmb_gpu_event* event, shmb_gpu_stream stream, shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    auto known = event_of(event);
    return known ? (*known)->wait(static_cast<cuda::Stream>(stream)) : std::unexpected(known.error());
  });
}

int shmb_gpu_event_query(shmb_gpu_event* event, int* done, shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    SHMB_TRY(known, event_of(event));
    if (done == nullptr) return shmb::error(Status::invalid, "no place for the answer was given");
    SHMB_TRY(asked, known->done());
    *done = asked ? 1 : 0;
    return {};
  });
}

int shmb_gpu_event_wait_host(shmb_gpu_event* event, int64_t timeout_ns, shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    auto known = event_of(event);
    return known ? (*known)->wait_host(client::Deadline::after(timeout_ns)) : std::unexpected(known.error());
  });
}

int shmb_gpu_event_close(shmb_gpu_event* event, shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    delete event;
    return {};
  });
}

}  // extern "C"
