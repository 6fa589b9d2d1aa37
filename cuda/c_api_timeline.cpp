// SPDX-License-Identifier: Apache-2.0
// The C ABI's timelines and pinned regions.
#include "cuda/c_api_cuda.hpp"
#include "cuda/pinned.hpp"
#include "cuda/timeline.hpp"

struct shmb_gpu_timeline {
  shmb::cuda::Timeline::Handle it;
  std::uint64_t epoch = 0;
};
struct shmb_gpu_pin {
  shmb::cuda::PinnedHost::Handle it;
};

namespace shmb::cuda::c_api {
namespace {

using client::c_api::read_options;
using client::c_api::session_of;

template <class T>
Result<Timeline*> timeline_of(T* timeline) {
  if (timeline == nullptr) return error(Status::invalid, "no timeline was given");
  return timeline->it.get();
}

Result<void> open(shmb_session* session, Result<client::Target> target, const shmb_attach_options* options,
                  shmb_gpu_timeline** timeline) {
  SHMB_TRY(known, session_of(session));
  SHMB_TRY(wanted, read_options(options));
  if (!target) return std::unexpected(target.error());
  if (timeline == nullptr) return error(Status::invalid, "no place for the timeline was given");
  SHMB_TRY(opened, Timeline::open(known, *target, wanted.timeout_ns, wanted.wait_ns));
  *timeline = new shmb_gpu_timeline{std::move(opened), known->epoch()};
  return {};
}

std::uint32_t status_of(shmbw_gpu_word_status status) {
  if (status == SHMBW_GPU_WORD_STATUS_OK) return SHMB_OK;
  return status == SHMBW_GPU_WORD_STATUS_DEVICE_LOST ? SHMB_E_DEVICE_LOST : SHMB_E_PRODUCER_DEAD;
}

}  // namespace
}  // namespace shmb::cuda::c_api

using namespace shmb;
using namespace shmb::cuda::c_api;

int shmb_gpu_timeline_create(shmb_session* session, const shmb_gpu_timeline_options* options,
                             shmb_gpu_timeline** timeline, shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    SHMB_TRY(known, client::c_api::session_of(session));
    SHMB_TRY(wanted, client::c_api::read_options(options));
    if ((wanted.flags & ~(SHMB_GPU_PUBLISH_KEEP_GIVEN | SHMB_GPU_PUBLISH_REPLACE)) != 0)
      return shmb::error(Status::unknown_flags, "an unknown flag of a timeline");
    if (timeline == nullptr) return shmb::error(Status::invalid, "no place for the timeline was given");
    cuda::Timeline::Spec spec;
    spec.name = client::c_api::text_or_empty(wanted.name);
    spec.group = wanted.group;
    if ((wanted.flags & SHMB_GPU_PUBLISH_KEEP_GIVEN) != 0) spec.keep = wanted.keep_ns;
    spec.replace = (wanted.flags & SHMB_GPU_PUBLISH_REPLACE) != 0;
    spec.words = wanted.words == 0 ? 1 : wanted.words;
    auto handle = std::make_unique<shmb_gpu_timeline>();  // before: a name that was taken needs an owner
    SHMB_TRY(made, cuda::Timeline::create(known, spec, client::Deadline::after(wanted.timeout_ns)));
    handle->it = std::move(made);
    handle->epoch = known->epoch();
    *timeline = handle.release();
    return {};
  });
}

int shmb_gpu_timeline_open(shmb_session* session, const char* address, const shmb_attach_options* options,
                           shmb_gpu_timeline** timeline, shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    if (address == nullptr) return shmb::error(Status::invalid, "no address was given");
    return cuda::c_api::open(session, client::Target::at(address), options, timeline);
  });
}

int shmb_gpu_timeline_open_id(shmb_session* session, const shmb_region_id* id, const shmb_attach_options* options,
                              shmb_gpu_timeline** timeline, shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    if (id == nullptr) return shmb::error(Status::invalid, "no identity was given");
    return cuda::c_api::open(session, client::Target::with_id(client::c_api::to_ref(*id), id->epoch), options,
                             timeline);
  });
}

shmb_region_id shmb_gpu_timeline_get_id(const shmb_gpu_timeline* timeline) noexcept {
  return timeline == nullptr ? shmb_region_id{} : client::c_api::to_id(timeline->it->ref(), timeline->epoch);
}

int shmb_gpu_timeline_signal(shmb_gpu_timeline* timeline, uint32_t word, uint64_t value, shmb_gpu_stream stream,
                             shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    auto known = timeline_of(timeline);
    return known ? (*known)->signal(word, value, static_cast<cuda::Stream>(stream)) : std::unexpected(known.error());
  });
}

int shmb_gpu_timeline_wait(shmb_gpu_timeline* timeline, uint32_t word, uint64_t value, shmb_gpu_stream stream,
                           int64_t timeout_ns, shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    SHMB_TRY(known, timeline_of(timeline));
    return known->wait(word, value, static_cast<cuda::Stream>(stream), client::Deadline::after(timeout_ns));
  });
}

int shmb_gpu_timeline_wait_host(const shmb_gpu_timeline* timeline, uint32_t word, uint64_t value, int64_t timeout_ns,
                                shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    auto known = timeline_of(timeline);
    return known ? (*known)->wait_host(word, value, client::Deadline::after(timeout_ns))
                 : std::unexpected(known.error());
  });
}

int shmb_gpu_timeline_look(const shmb_gpu_timeline* timeline, uint32_t word, shmb_gpu_timeline_state* state,
                           shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    SHMB_TRY(known, timeline_of(timeline));
    SHMB_TRY(seen, known->look(word));
    const shmb_gpu_timeline_state told{sizeof told, seen.counter, seen.announced, status_of(seen.status),
                                       known->words()};
    return client::c_api::write_struct(told, state);
  });
}

int shmb_gpu_timeline_close(shmb_gpu_timeline* timeline, shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    delete timeline;
    return {};
  });
}

int shmb_gpu_pin_region(shmb_region* region, int64_t timeout_ns, shmb_gpu_pin** pin, shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    SHMB_TRY(known, client::c_api::region_of(region));
    if (pin == nullptr) return shmb::error(Status::invalid, "no place for the pin was given");
    SHMB_TRY(made, cuda::PinnedHost::pin(*known, client::Deadline::after(timeout_ns)));
    *pin = new shmb_gpu_pin{std::move(made)};
    return {};
  });
}

shmb_gpu_pointer shmb_gpu_pin_pointer(const shmb_gpu_pin* pin) noexcept {
  return pin == nullptr ? 0 : pin->it->address();
}

int shmb_gpu_unpin(shmb_gpu_pin* pin, shmb_error* out) noexcept {
  return client::c_api::guarded_to_end(out, [&]() -> Result<void> {
    delete pin;
    return {};
  });
}
