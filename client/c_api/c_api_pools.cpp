// SPDX-License-Identifier: Apache-2.0
// The C ABI's pools and slots.
#include "client/c_api/c_api.hpp"

namespace shmb::client::c_api {

Result<std::shared_ptr<Pool>> pool_of(shmb_pool* pool) {
  if (pool == nullptr) return error(Status::invalid, "no pool was given");
  return pool->it;
}

namespace {

// Of a short way that answers `done` or `ask` alone.
Error no_reason(Now) { return {}; }

}  // namespace
}  // namespace shmb::client::c_api

using namespace shmb;
using namespace shmb::client;
using namespace shmb::client::c_api;

extern "C" {

int shmb_pool_create(shmb_session* session, const shmb_pool_options* options, shmb_pool** pool,
                     shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    SHMB_TRY(wanted, read_options(options));
    if (pool == nullptr) return shmb::error(Status::invalid, "no place for the pool was given");
    constexpr std::uint32_t flags = SHMB_POOL_KEEP_GIVEN | SHMB_POOL_SMALL_PAGES | SHMB_POOL_NO_POPULATE |
                                    SHMB_POOL_REPLACE | SHMB_POOL_NAME_WITH_HOLDERS;
    if ((wanted.flags & ~flags) != 0) return shmb::error(Status::unknown_flags, "an unknown flag of a pool");
    if (wanted.class_count > SHMB_MAX_SIZE_CLASSES)
      return shmb::error(Status::invalid,
                         "a pool has at most " + std::to_string(SHMB_MAX_SIZE_CLASSES) + " size classes");
    if (wanted.class_count != 0 && wanted.classes == nullptr)
      return shmb::error(Status::invalid, "shmb_pool_options.class_count is not 0, but no classes were given");
    PoolSpec spec;
    spec.name = text_or_empty(wanted.name);
    for (std::uint32_t i = 0; i < wanted.class_count; ++i) {
      const shmb_size_class& one = wanted.classes[i];
      spec.classes.push_back({one.slot_size, one.slots, one.slots_limit});
    }
    spec.group = wanted.group;
    if ((wanted.flags & SHMB_POOL_KEEP_GIVEN) != 0) spec.keep = wanted.keep_ns;
    spec.replace = (wanted.flags & SHMB_POOL_REPLACE) != 0;
    spec.name_with_holders = (wanted.flags & SHMB_POOL_NAME_WITH_HOLDERS) != 0;
    spec.small_pages = (wanted.flags & SHMB_POOL_SMALL_PAGES) != 0;
    spec.no_populate = (wanted.flags & SHMB_POOL_NO_POPULATE) != 0;
    spec.lanes = wanted.lanes;
    spec.queues = wanted.queues;
    spec.lane_bytes = wanted.lane_bytes;
    SHMB_TRY(made, Pool::create(known, spec, wanted.timeout_ns));
    *pool = new shmb_pool{std::move(made)};
    return {};
  });
}

int shmb_pool_open(shmb_session* session, const char* address, const shmb_pool_open_options* options, shmb_pool** pool,
                   shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    SHMB_TRY(wanted, read_options(options));
    if (pool == nullptr) return shmb::error(Status::invalid, "no place for the pool was given");
    if (wanted.reserved != 0)
      return shmb::error(Status::too_new, "the reserved field of the options for opening a pool is not 0");
    if ((address == nullptr) == (wanted.id == 0))
      return shmb::error(Status::invalid, "a pool is opened by its address, or by its id with no address");
    Pool::Opening opening;
    opening.address = text_or_empty(address);
    opening.id = wanted.id;
    opening.read_only = wanted.read_only != 0;
    opening.wait = wanted.wait_ns;
    opening.timeout = wanted.timeout_ns;
    SHMB_TRY(opened, Pool::open(known, opening));
    *pool = new shmb_pool{std::move(opened)};
    return {};
  });
}

int shmb_pool_remove(shmb_pool* pool, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, pool_of(pool));
    return known->remove();
  });
}

void shmb_pool_close(shmb_pool* pool) noexcept {
  (void)guarded(nullptr, [&]() -> Result<void> {
    delete pool;
    return {};
  });
}

uint64_t shmb_pool_id(const shmb_pool* pool) noexcept { return pool == nullptr ? 0 : pool->it->id(); }

int shmb_pool_get_info(shmb_pool* pool, shmb_pool_info* info, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, pool_of(pool));
    SHMB_TRY(facts, known->facts());
    shmb_pool_info out{};
    out.id = facts.id;
    out.group = facts.group;
    out.bytes = facts.bytes;
    out.participant = facts.participant;
    out.participants = facts.participants;
    out.slots = facts.slots;
    out.slots_limit = facts.slots_limit;
    out.slots_used = facts.slots_used;
    out.slots_own = facts.slots_own;
    out.slots_high = facts.slots_high;
    out.segments = facts.segments;
    out.queues = facts.queues;
    out.queues_limit = facts.queues_limit;
    out.lanes = facts.lanes;
    out.lanes_limit = facts.lanes_limit;
    out.read_only = facts.read_only ? 1 : 0;
    out.broken = facts.broken ? 1 : 0;
    out.class_count = static_cast<std::uint32_t>(std::min<std::size_t>(facts.classes.size(), SHMB_MAX_SIZE_CLASSES));
    for (std::uint32_t i = 0; i < out.class_count; ++i) {
      out.classes[i].slot_size = facts.classes[i].slot_size;
      out.classes[i].slots = facts.classes[i].slots;
      out.classes[i].slots_used = facts.classes[i].slots_used;
    }
    return write_struct(out, info);
  });
}

int shmb_slot_acquire(shmb_pool* pool, uint64_t length, int64_t wait_ns, shmb_slot* slot, shmb_error* error) noexcept {
  auto short_way = [&] {
    Slot taken;
    if (pool == nullptr || slot == nullptr || pool->it->acquire_now(length, taken) != Now::done) return Now::ask;
    *slot = to_c(taken);
    return Now::done;
  };
  return guarded_short(error, true, short_way, no_reason, [&]() -> Result<void> {
    if (pool == nullptr || slot == nullptr) return shmb::error(Status::invalid, "no pool, or no place for the slot");
    SHMB_TRY(taken, pool->it->acquire(length, wait_ns));
    *slot = to_c(taken);
    return {};
  });
}

int shmb_slot_retain(shmb_pool* pool, const shmb_slot* slot, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (pool == nullptr || slot == nullptr) return shmb::error(Status::invalid, "no pool, or no slot, was given");
    return pool->it->retain(to_slot(*slot));
  });
}

int shmb_slot_release(shmb_pool* pool, const shmb_slot* slot, shmb_error* error) noexcept {
  auto short_way = [&] {
    return pool == nullptr || slot == nullptr ? Now::ask : pool->it->release_now(to_slot(*slot));
  };
  return guarded_short(error, true, short_way, no_reason, [&]() -> Result<void> {
    if (pool == nullptr || slot == nullptr) return shmb::error(Status::invalid, "no pool, or no slot, was given");
    return pool->it->release(to_slot(*slot));
  });
}

}  // extern "C"
