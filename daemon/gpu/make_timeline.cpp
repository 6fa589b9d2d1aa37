// SPDX-License-Identifier: Apache-2.0
// See make_timeline.hpp. The region behind a timeline is made like any other.
#include "daemon/gpu/make_timeline.hpp"

#include <fcntl.h>

#include "base/sys_memory.hpp"
#include "daemon/gpu/gpu.hpp"
#include "daemon/ledger/create.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/timeline.hpp"
#include "proto/refusal.hpp"
#include "proto/timeline_layout.hpp"

namespace shmb::daemon {
namespace {

// A mapping of the broker's, of which the kernel allows a process only a limited number.
Result<Charge> charge_timeline(Gpu& gpu, const Session& session, Group& group) {
  auto charge = group.account.charge(Resource::timelines, 1);
  if (charge) return std::move(*charge);
  if (charge.error().scope != SHMBW_SCOPE_HOST)
    return std::unexpected(refuse_limit(gpu.groups, session, charge.error()));
  return std::unexpected(wire::limit_refusal(
      charge.error(), "the broker", "close some, or raise the kernel's vm.max_map_count: half of it is for timelines"));
}

void undo(Gpu& gpu, Session& session, Region& region) {
  region.group->names.remove(region);
  if (Lease* lease = find_lease(session, region)) drop_lease(gpu.regions, *lease);
}

}  // namespace

Result<Region*> make_timeline(Gpu& gpu, Session& session, const shmbw_gpu_timeline& wish, std::string_view name) {
  if ((wish.flags & ~std::uint32_t{SHMBW_GPU_TIMELINE_KNOWN}) != 0)
    return error(Status::unknown_flags, "a timeline flag is not known to this broker");
  if (wish.words == 0 || wish.words > timeline::kMaxWords)
    return error(Status::invalid, "a timeline has 1 to " + std::to_string(timeline::kMaxWords) + " words, not " +
                                      std::to_string(wish.words));
  SHMB_TRY(group, group_for_create(gpu.regions, session, wish.group));
  SHMB_TRY(charge, charge_timeline(gpu, session, *group));
  shmbw_create create{};
  create.group = wish.group;
  create.length = timeline::bytes_of(wish.words);
  create.keep = wish.keep;
  create.flags = SHMBW_CREATE_MANY_WRITERS | SHMBW_CREATE_NO_RECYCLE;
  if ((wish.flags & SHMBW_GPU_TIMELINE_KEEP_GIVEN) != 0) create.flags |= SHMBW_CREATE_KEEP_GIVEN;
  if ((wish.flags & SHMBW_GPU_TIMELINE_REPLACE) != 0) create.flags |= SHMBW_CREATE_REPLACE;
  SHMB_TRY(made, create_region(gpu.regions, session, create, name));
  Region& region = *made.region;
  auto map = Mapping::map(region.fd.get(), 0, region.bytes, Access::read_write);
  if (!map) {
    undo(gpu, session, region);
    return system_failure(map.error(), "mapping the memory of a timeline");
  }
  // No reader closes writing here: the producer's streams keep writing, and so does the broker at the producer's end.
  if (!region.seal_sealed)
    if (auto sealed = sys::add_seals(region.fd.get(), F_SEAL_SEAL); !sealed) {
      undo(gpu, session, region);
      return system_failure(sealed.error(), "sealing the memory of a timeline");
    }
  region.seal_sealed = true;
  region.many_writers = true;
  region.state = SHMBW_REGION_STATE_READY;
  region.gpu = std::make_unique<GpuMemory>(region);
  region.gpu->kind = SHMBW_GPU_KIND_TIMELINE;
  region.gpu->exporter = session.id;
  region.gpu->exporter_pid = session.pid;
  region.gpu->descriptors = 1;
  region.gpu->timeline = std::make_shared<Timeline>(gpu.regions.releaser, std::move(charge));
  region.gpu->timeline->map = std::move(*map);
  region.gpu->timeline->words = wish.words;
  changed(*region.gpu);
  return &region;
}

}  // namespace shmb::daemon
