// SPDX-License-Identifier: Apache-2.0
// The requests of GPU memory. The rules for regions hold for GPU regions too; here are the differences.
//
// Descriptors come and go in the order of the chunks. An answer carries as many shares as a packet has places, and
// GPU_MORE fetches the rest. A report of one importer (GPU_REPORT) says nothing about the region, because the trouble
// may be the importer's own. Only device_lost changes the state of others, and only of regions of the reporter's user.
#include <algorithm>

#include "base/result.hpp"
#include "daemon/gpu/make_timeline.hpp"
#include "daemon/gpu/publish.hpp"
#include "daemon/ledger/grant.hpp"
#include "daemon/ledger/target.hpp"
#include "daemon/serve/answer.hpp"
#include "daemon/serve/stored_answer.hpp"

namespace shmb::daemon {
namespace {

std::uint16_t lend(Ledger& ledger, int fd) {
  ledger.reply.fds.push_back(fd);
  return static_cast<std::uint16_t>(ledger.reply.fds.size() - 1);
}

// A region that this session holds a lease on.
Result<Lease*> leased(Ledger& ledger, Session& session, const shmbw_region_ref& ref) {
  Region* region = ledger.regions.find(ref.id);
  Lease* lease = region ? find_lease(session, *region) : nullptr;
  if (!lease) return std::unexpected(no_lease(ref.id));
  if (ref.generation != 0 && ref.generation != region->generation)
    return error(Status::generation_mismatch, "region " + std::to_string(ref.id) + " is of generation " +
                                                  std::to_string(region->generation) + ", not " +
                                                  std::to_string(ref.generation) + ": look for it again by its name");
  return lease;
}
Result<Lease*> leased_gpu(Ledger& ledger, Session& session, const shmbw_region_ref& ref) {
  auto lease = leased(ledger, session, ref);
  if (lease && !on_gpu(*(*lease)->region)) return std::unexpected(other_kind(*(*lease)->region));
  return lease;
}

shmbw_gpu_device_reply device_reply(const GpuDevice& device, std::uint64_t watch) {
  shmbw_gpu_device_reply reply{};
  reply.watch = watch;
  reply.hold = device.node ? device.node->hold : SHMBW_GPU_HOLD_OPENING;
  reply.minor = device.node ? device.node->minor : kNoMinor;
  return reply;
}

}  // namespace

// One, with node_given. Flags that are not known do not say.
std::size_t brought_by(const shmbw_gpu_device& wish, std::size_t brought) {
  if ((wish.flags & ~std::uint32_t{SHMBW_GPU_DEVICE_KNOWN}) != 0) return std::min<std::size_t>(brought, 1);
  return (wish.flags & SHMBW_GPU_DEVICE_NODE_GIVEN) != 0 ? 1 : 0;
}

std::size_t brought_by(const shmbw_gpu_publish& wish, std::size_t /*brought*/) {
  return std::size_t{2} * wish.chunks + ((wish.flags & SHMBW_GPU_PUBLISH_MANIFEST) != 0 ? 1 : 0);
}

std::size_t brought_by(const shmbw_gpu_chunks& wish, std::size_t /*brought*/) { return std::size_t{2} * wish.count; }

void serve_gpu_device(const Request& request) {
  Ledger& ledger = request.ledger;
  Session& session = request.session;
  auto wish = request.read<shmbw_gpu_device>();
  if (!wish) return;
  wire::TextReader texts(request.packet.rest);
  auto pci = texts.take(wish->pci_len);
  if (!pci || !texts.done()) return request.refuse_struct(Status::invalid);
  if ((wish->flags & ~std::uint32_t{SHMBW_GPU_DEVICE_KNOWN}) != 0)
    return request.fail(Status::unknown_flags, "a flag of gpu_device is not known to this broker");
  if (!session.takes_descriptors)
    return request.fail(Status::invalid, "the session has not asked in HELLO that it may pass descriptors");
  sys::GpuUuid uuid;
  std::ranges::copy(wish->uuid, uuid.begin());
  std::uint64_t watch = 0;
  if ((wish->flags & SHMBW_GPU_DEVICE_NODE_GIVEN) != 0) {
    if (auto given = give_node(ledger.gpu, session, uuid, session.link->descriptor()); !given)
      return request.fail(given.error());
  } else {
    auto named = name_device(ledger.gpu, session, uuid, *pci);
    if (!named) return request.fail(named.error());
    watch = *named;
  }
  session.link->take_descriptors(true);
  request.answer(device_reply(*find_device(session, uuid), watch));
}

void serve_gpu_publish(const Request& request) {
  Ledger& ledger = request.ledger;
  auto batch = open_batch<shmbw_gpu_publish>(request, [](const shmbw_gpu_publish& wish) { return wish.name_len; });
  if (!batch) return;
  BatchAnswer<shmbw_gpu_publish_reply> answer(request, batch->count());
  wire::TextReader texts = batch->texts();
  std::span<Fd> descriptors = request.session.link->descriptors();
  for (std::size_t i = 0; i < batch->count(); ++i) {
    const shmbw_gpu_publish wish = *batch->element<shmbw_gpu_publish>(i);
    const std::string_view name = *texts.take(wish.name_len);
    const std::size_t brought = std::min(brought_by(wish, 0), descriptors.size());  // dispatch has counted them
    auto published = publish_gpu(ledger.gpu, request.session, wish, name, descriptors.first(brought));
    descriptors = descriptors.subspan(brought);
    if (!published) {
      answer.fail(published.error());
      continue;
    }
    const Region& region = *published->region;
    shmbw_gpu_publish_reply reply{};
    reply.region = region.ref();
    reply.bytes = region.bytes;
    reply.group = region.group->id;
    reply.rights = published->lease->rights;
    reply.state = region.gpu->state;
    reply.chunks = region.gpu->chunks;
    answer.ok(reply);
  }
  answer.send();
}

void serve_gpu_chunks(const Request& request) {
  auto wish = request.read<shmbw_gpu_chunks>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  auto lease = leased_gpu(request.ledger, request.session, wish->region);
  if (!lease) return request.fail(lease.error());
  Region& region = *(*lease)->region;
  if (auto added =
          add_gpu_chunks(request.ledger.gpu, request.session, region, *wish, request.session.link->descriptors());
      !added)
    return request.fail(added.error());
  request.answer(shmbw_gpu_chunks_reply{region.gpu->state, region.gpu->present()});
}

namespace {

Result<void> may_open(const Region& region, std::uint32_t rights) {
  const GpuMemory& gpu = *region.gpu;
  const std::string which = "region " + std::to_string(region.id);
  switch (gpu.state) {
    case SHMBW_GPU_STATE_INCOMPLETE:
      return error(Status::not_ready, which + " has " + std::to_string(gpu.present()) + " of " +
                                          std::to_string(gpu.chunks) +
                                          " chunks so far: its publisher is still sending");
    case SHMBW_GPU_STATE_INVALID:
      return error(Status::region_invalid, which + " never became whole: its publisher (pid " +
                                               std::to_string(gpu.exporter_pid) + ") must publish it again");
    case SHMBW_GPU_STATE_DETACHED:
      return error(Status::detached, which + " is over: only processes that have left the broker still map its memory");
    case SHMBW_GPU_STATE_DEVICE_LOST:
      return error(Status::device_lost, which + " lies on a GPU that is lost or was reset: publish it again");
    case SHMBW_GPU_STATE_RETIRED:
    case SHMBW_GPU_STATE_PRODUCER_DEAD:
      return error(Status::producer_dead,
                   which + " belongs to pid " + std::to_string(gpu.exporter_pid) +
                       ", which wants its memory back or has died: it cannot be opened any more");
    default:
      break;
  }
  if ((rights & SHMBW_RIGHT_MAP_WRITE) == 0) return {};
  if (gpu.state == SHMBW_GPU_STATE_POISONED)
    return error(Status::region_poisoned, which +
                                              ": a writer died while it could write, so no process may write any more; "
                                              "read it with care, or publish its successor with replace");
  if (!region.many_writers)
    return error(Status::write_closed,
                 which + " was published without many_writers: it can be opened for reading only");
  return {};
}

struct OpenedGpu {
  Region* region = nullptr;
  const Lease* lease = nullptr;
};

Result<OpenedGpu> open_gpu(Ledger& ledger, Session& session, const shmbw_gpu_open& wish, std::string_view group,
                           std::string_view name) {
  if ((wish.flags & ~std::uint32_t{SHMBW_GPU_OPEN_KNOWN}) != 0)
    return error(Status::unknown_flags, "a flag of gpu_open is not known to this broker");
  if ((wish.rights & ~std::uint32_t{SHMBW_RIGHT_KNOWN}) != 0)
    return error(Status::unknown_flags, "a right is not known to this broker");
  if ((wish.rights & SHMBW_RIGHT_MAP_READ) == 0) return error(Status::invalid, "gpu_open asks for map_read at least");
  const bool owner_given = (wish.flags & SHMBW_GPU_OPEN_OWNER_GIVEN) != 0;
  auto target =
      find_target(ledger.sessions, session,
                  {wish.by, wish.region, wish.ticket, owner_given ? wish.owner_uid : session.uid, group, name});
  if (!target && target.error().status == Status::stale)
    return error(Status::generation_mismatch, target.error().sentence);
  if (!target) return std::unexpected(target.error());
  Region& region = *target->region;
  if (!on_gpu(region)) return std::unexpected(other_kind(region));
  SHMB_TRY_VOID(check_rights(*target, wish.rights));
  SHMB_TRY_VOID(may_open(region, wish.rights));
  SHMB_TRY(charge, charge_lease(ledger.regions, session, region, 1));
  Lease& lease = book_charged(ledger.regions, session, region, wish.rights, 1, Reach::mapped, std::move(charge));
  if (target->ticket) use_ticket(ledger.tickets, *target->ticket);
  return OpenedGpu{&region, &lease};
}

shmbw_gpu_open_reply open_reply(const Region& region, const Lease& lease) {
  const GpuMemory& gpu = *region.gpu;
  shmbw_gpu_open_reply reply{};
  reply.region = region.ref();
  reply.bytes = region.length;
  reply.chunk_bytes = gpu.chunk_bytes;
  reply.granularity = gpu.granularity;
  reply.group = region.group->id;
  reply.offset = gpu.offset;
  reply.allocation = gpu.allocation;
  reply.manifest_bytes = gpu.manifest_bytes;
  std::ranges::copy(gpu.uuid, reply.uuid);
  reply.kind = gpu.kind;
  reply.state = gpu.state;
  reply.rights = lease.rights;
  reply.flags = gpu.publish_flags;
  reply.chunks = gpu.chunks;
  reply.driver = gpu.driver;
  reply.exporter_pid = gpu.exporter_pid;
  reply.manifest_fd = SHMBW_NO_FD;
  std::ranges::copy(gpu.handle, reply.handle);
  return reply;
}

}  // namespace

void serve_gpu_open(const Request& request) {
  Ledger& ledger = request.ledger;
  auto batch = open_batch<shmbw_gpu_open>(
      request, [](const shmbw_gpu_open& element) { return std::size_t{element.group_len} + element.name_len; });
  if (!batch) return;
  BatchAnswer<shmbw_gpu_open_reply> answer(request, batch->count());
  wire::TextReader texts = batch->texts();
  struct Answered {
    Result<const GpuMemory*> gpu;
    shmbw_gpu_open_reply reply{};
    bool shares = false, manifest = false;  // wanted, and present
  };
  std::vector<Answered> all;
  std::size_t manifests = 0;
  for (std::size_t i = 0; i < batch->count(); ++i) {
    const shmbw_gpu_open wish = *batch->element<shmbw_gpu_open>(i);
    const std::string_view group = *texts.take(wish.group_len);
    auto opened = open_gpu(ledger, request.session, wish, group, *texts.take(wish.name_len));
    if (!opened) {
      all.push_back({std::unexpected(opened.error())});
      continue;
    }
    const GpuMemory& gpu = *opened->region->gpu;
    const bool shares = (wish.flags & SHMBW_GPU_OPEN_NO_FD) == 0;
    const bool manifest = shares && (wish.flags & SHMBW_GPU_OPEN_MANIFEST) != 0 && gpu.manifest;
    manifests += manifest;
    all.push_back({&gpu, open_reply(*opened->region, *opened->lease), shares, manifest});
  }
  // Shares that find no place can be fetched by gpu_more, but a manifest cannot. So places for all manifests are kept
  // free. A batch has no more elements than a packet has descriptors.
  for (Answered& one : all) {
    if (!one.gpu) {
      answer.fail(one.gpu.error());
      continue;
    }
    const GpuMemory& gpu = **one.gpu;
    std::uint16_t first = SHMBW_NO_FD;
    if (one.shares) {
      const std::size_t room = SHMBW_MAX_BATCH - ledger.reply.fds.size() - manifests;
      one.reply.sent = static_cast<std::uint32_t>(std::min<std::size_t>(gpu.present(), room));
      for (std::uint32_t chunk = 0; chunk < one.reply.sent; ++chunk) {
        const std::uint16_t place = lend(ledger, gpu.share(chunk));
        if (chunk == 0) first = place;
      }
    }
    if (one.manifest) {
      one.reply.manifest_fd = lend(ledger, gpu.manifest.get());
      --manifests;
    }
    answer.ok(one.reply, first);
  }
  answer.send();
}

// The shares that went along; those that have come since can be fetched.
Result<void> lend_again(const Request& request, const shmbw_gpu_open& /*wish*/, shmbw_gpu_open_reply& reply) {
  if (reply.outcome.fd_index == SHMBW_NO_FD && reply.manifest_fd == SHMBW_NO_FD) return {};
  SHMB_TRY(lease, lease_again(request, reply.region));
  const GpuMemory* const gpu = lease->region->gpu.get();
  if (!gpu || reply.sent > gpu->present() || (reply.manifest_fd != SHMBW_NO_FD && !gpu->manifest))
    return std::unexpected(no_lease(reply.region.id));
  for (std::uint32_t chunk = 0; chunk < reply.sent; ++chunk) {
    const std::uint16_t place = lend(request.ledger, gpu->share(chunk));
    if (chunk == 0) reply.outcome.fd_index = place;
  }
  if (reply.manifest_fd != SHMBW_NO_FD) reply.manifest_fd = lend(request.ledger, gpu->manifest.get());
  return {};
}

void serve_gpu_more(const Request& request) {
  auto wish = request.read<shmbw_gpu_more>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  auto lease = leased_gpu(request.ledger, request.session, wish->region);
  if (!lease) return request.fail(lease.error());
  const Region& region = *(*lease)->region;
  if (auto may = may_open(region, SHMBW_RIGHT_MAP_READ); !may) return request.fail(may.error());
  const GpuMemory& gpu = *region.gpu;
  if (wish->count == 0 || wish->count > SHMBW_MAX_BATCH || wish->first >= gpu.present() ||
      wish->count > gpu.present() - wish->first)
    return request.fail(Status::invalid, "the region has " + std::to_string(gpu.present()) +
                                             " chunks, and one answer carries at most " +
                                             std::to_string(SHMBW_MAX_BATCH) + " shares");
  for (std::uint32_t i = 0; i < wish->count; ++i) lend(request.ledger, gpu.share(wish->first + i));
  request.answer(shmbw_gpu_more_reply{wish->first, wish->count});
}

namespace {

struct Reported {
  std::uint32_t state = SHMBW_GPU_STATE_NONE;
  std::uint32_t regions = 0;
};

// Only for the reporter's own uid: a report of one user must not cost another user's regions.
Reported report_device_lost(Ledger& ledger, const Session& session, const shmbw_gpu_report& report) {
  Reported out;
  for (auto& [id, region] : ledger.regions.all) {
    if (!region.live() || !on_gpu(region) || region.group->uid != session.uid) continue;
    GpuMemory& gpu = *region.gpu;
    const bool usable = gpu.state == SHMBW_GPU_STATE_OK || gpu.state == SHMBW_GPU_STATE_INCOMPLETE ||
                        gpu.state == SHMBW_GPU_STATE_POISONED;
    if (!usable || !std::ranges::equal(gpu.uuid, report.uuid)) continue;
    set_gpu_state(region, SHMBW_GPU_STATE_DEVICE_LOST, report.code, session.pid);
    ++out.regions;
  }
  return out;
}

Result<Reported> report_written(Ledger& ledger, Lease& lease) {
  if (!lease.writes())
    return error(Status::denied, "the session's lease carries no map_write: there is nothing to give up");
  Region& region = *lease.region;
  set_lease(ledger.regions, lease, lease.rights & ~std::uint32_t{SHMBW_RIGHT_MAP_WRITE}, Reach::mapped);
  if (region.writers == 0 && !region.many_writers) {
    region.state = SHMBW_REGION_STATE_PUBLISHED;
    changed(region);
    tell_region(ledger.watches, region, SHMBW_WATCH_EVENT_PUBLISHED);
  }
  return Reported{region.gpu->state, 1};
}

// The session may keep references as a reader.
Result<Reported> report_timeline_over(Ledger& ledger, Lease& lease) {
  if (lease.region->gpu->exporter != lease.session->id)
    return error(Status::denied, "only a timeline's producer says that it is written");
  gpu_lease_over(ledger.regions, lease);
  return Reported{lease.region->gpu->state, 1};
}

Result<Reported> report(Ledger& ledger, Session& session, const shmbw_gpu_report& report) {
  if (report.what == SHMBW_GPU_FINDING_DEVICE_LOST) {
    if (report.region.id != 0) return error(Status::invalid, "device_lost is said of a device, not of a region");
    return report_device_lost(ledger, session, report);
  }
  if (std::ranges::any_of(report.uuid, [](std::uint8_t byte) { return byte != 0; }))
    return error(Status::invalid, "only device_lost names a device");
  if (report.what == SHMBW_GPU_FINDING_WRITTEN) {
    auto line = leased(ledger, session, report.region);
    if (line && (*line)->region->gpu && (*line)->region->gpu->timeline) return report_timeline_over(ledger, **line);
  }
  SHMB_TRY(lease, leased_gpu(ledger, session, report.region));
  Region& region = *lease->region;
  switch (report.what) {
    case SHMBW_GPU_FINDING_IMPORTED:
    case SHMBW_GPU_FINDING_IMPORT_FAILED:
      return Reported{region.gpu->state, 0};  // one importer's trouble says nothing about the region
    case SHMBW_GPU_FINDING_WRITTEN:
      return report_written(ledger, *lease);
    default:
      return error(Status::invalid, "report imported, import_failed, written or device_lost");
  }
}

template <class Element, class Reply, class Serve>
void serve_batch(const Request& request, Serve serve) {
  auto batch = open_batch<Element>(request, [](const Element&) { return std::size_t{0}; });
  if (!batch) return;
  BatchAnswer<Reply> answer(request, batch->count());
  for (std::size_t i = answer.first(); i < batch->count(); ++i) {
    if (answer.turn_is_over()) return;
    Result<Reply> served = serve(*batch->template element<Element>(i));
    if (served) answer.ok(*served);
    else answer.fail(served.error());
  }
  answer.send();
}

}  // namespace

void serve_gpu_report(const Request& request) {
  serve_batch<shmbw_gpu_report, shmbw_gpu_report_reply>(
      request, [&](const shmbw_gpu_report& wish) -> Result<shmbw_gpu_report_reply> {
        SHMB_TRY(reported, report(request.ledger, request.session, wish));
        return shmbw_gpu_report_reply{{}, reported.state, reported.regions};
      });
}

// The lease stays in the books until the last other one is gone: nothing of the memory may be freed before.
static Result<shmbw_gpu_retire_reply> retire(Ledger& ledger, Session& session, const shmbw_region_ref& ref) {
  SHMB_TRY(lease, leased_gpu(ledger, session, ref));
  Region& region = *lease->region;
  GpuMemory& gpu = *region.gpu;
  if (gpu.kind != SHMBW_GPU_KIND_LEGACY)
    return error(Status::invalid, "only memory of kind legacy is retired; release the lease on any other region");
  if (gpu.exporter != session.id) return error(Status::denied, "only its publisher retires a region");
  const std::uint32_t users = region.leases.size() - 1;
  region.group->names.remove(region);
  if (users != 0) {
    set_gpu_state(region, SHMBW_GPU_STATE_RETIRED, 0, session.pid);
    return shmbw_gpu_retire_reply{{}, users, 0};
  }
  gpu.exporter = 0;
  gpu.state = SHMBW_GPU_STATE_RETIRED;
  changed(gpu);
  region.bytes_charge.give_back();  // a ticket or a message may still name the region
  drop_lease(ledger.regions, *lease);
  return shmbw_gpu_retire_reply{{}, 0, 0};
}

void serve_gpu_retire(const Request& request) {
  serve_batch<shmbw_gpu_retire, shmbw_gpu_retire_reply>(
      request, [&](const shmbw_gpu_retire& wish) { return retire(request.ledger, request.session, wish.region); });
}

void serve_gpu_timeline(const Request& request) {
  Ledger& ledger = request.ledger;
  auto wish = request.read<shmbw_gpu_timeline>();
  if (!wish) return;
  wire::TextReader texts(request.packet.rest);
  auto name = texts.take(wish->name_len);
  if (!name || !texts.done()) return request.refuse_struct(Status::invalid);
  auto made = make_timeline(ledger.gpu, request.session, *wish, *name);
  if (!made) return request.fail(made.error());
  const Region& region = **made;
  lend(ledger, region.fd.get());
  request.answer(shmbw_gpu_timeline_reply{region.ref(), region.bytes, region.group->id});
}

Result<void> lend_again(const Request& request, const shmbw_gpu_timeline& /*wish*/, shmbw_gpu_timeline_reply& reply) {
  SHMB_TRY(lease, lease_again(request, reply.region));
  lend(request.ledger, lease->region->fd.get());
  return {};
}

static Result<shmbw_gpu_pinned_reply> pin(Ledger& ledger, Session& session, const shmbw_gpu_pinned& wish) {
  if ((wish.flags & ~std::uint32_t{SHMBW_GPU_PINNED_KNOWN}) != 0)
    return error(Status::unknown_flags, "a flag of gpu_pinned is not known to this broker");
  SHMB_TRY(lease, leased(ledger, session, wish.region));
  if (on_gpu(*lease->region)) return std::unexpected(other_kind(*lease->region));
  std::uint32_t& pins = lease->pins;
  if ((wish.flags & SHMBW_GPU_PINNED_UNPIN) != 0) {
    if (pins == 0) return error(Status::invalid, "this session has not pinned the region");
    --pins;
  } else {
    if (pins == UINT32_MAX) return error(Status::invalid, "more pins than a lease can count");
    ++pins;
    // A GPU may still write to this memory, and a later user of it would see that.
    lease->region->no_recycle = true;
    changed(*lease->region);
  }
  changed(*lease);
  return shmbw_gpu_pinned_reply{{}, pins, 0};
}

void serve_gpu_pinned(const Request& request) {
  serve_batch<shmbw_gpu_pinned, shmbw_gpu_pinned_reply>(
      request, [&](const shmbw_gpu_pinned& wish) { return pin(request.ledger, request.session, wish); });
}

}  // namespace shmb::daemon
