// SPDX-License-Identifier: Apache-2.0
// From a lease to addresses. The broker cannot look into a descriptor. So an importer finds out whether it is what its
// publisher said. After a failure the reference is given back before the error is returned.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/sys_gpu.hpp"
#include "client/session/call.hpp"
#include "cuda/leaving.hpp"
#include "cuda/manifest_file.hpp"
#include "cuda/notices.hpp"
#include "cuda/region.hpp"

namespace shmb::cuda {
namespace {

constexpr std::size_t kWishesOfPacket = 63;
constexpr std::uint64_t kLongestImport = (std::uint64_t{1} << 47) - 1;

std::string called_ref(shmbw_region_ref ref) {
  return "GPU region " + std::to_string(ref.id) + "." + std::to_string(ref.generation);
}

Result<Region::Memory> memory_of(const Driver& driver, const client::GpuOpened& opened) {
  const auto nonsense = [&] {
    return error(Status::protocol, "the broker's answer about " + called_ref(opened.region) + " makes no sense");
  };
  Region::Memory memory;
  memory.kind = opened.kind == SHMBW_GPU_KIND_LEGACY              ? Kind::lent
                : (opened.flags & SHMBW_GPU_PUBLISH_ADOPTED) != 0 ? Kind::adopted
                                                                  : Kind::vmm;
  std::ranges::copy(opened.uuid, memory.uuid.bytes.begin());
  memory.rdma = (opened.flags & SHMBW_GPU_PUBLISH_RDMA) != 0;
  memory.mig = (opened.flags & SHMBW_GPU_PUBLISH_MIG) != 0;
  if (auto device = driver.find(memory.uuid)) memory.device = *device;
  memory.length = opened.bytes;
  memory.bytes = opened.allocation != 0 ? opened.allocation : opened.bytes;
  memory.offset = opened.offset;
  memory.granularity = opened.granularity != 0 ? opened.granularity : kHugePage;
  if (memory.length == 0 || memory.bytes > kLongestImport || memory.offset > memory.bytes ||
      memory.length > memory.bytes - memory.offset)
    return nonsense();
  if (memory.kind == Kind::lent || (opened.flags & SHMBW_GPU_PUBLISH_SET) != 0) return memory;
  const std::uint64_t chunk = opened.chunk_bytes != 0 ? opened.chunk_bytes : memory.bytes;
  if ((memory.bytes - 1) / chunk + 1 != opened.chunks) return nonsense();
  for (std::uint64_t left = memory.bytes; left != 0; left -= memory.sizes.back())
    memory.sizes.push_back(std::min(left, chunk));
  return memory;
}

// The devices that were asked for. Otherwise the one that this thread works on, so that no context appears on a device
// that the program does not use. Otherwise the region's own.
Result<std::vector<Device>> devices_for(const Driver& driver, const ImportSpec& spec, const Region::Memory& memory,
                                        const std::string& object) {
  const auto reaches = [&](Device device) {
    if (memory.device == nullptr || memory.device->device == device) return true;  // the driver handles hidden devices
    int can = 0;
    return driver->device_can_access_peer(&can, device, memory.device->device) == kSuccess && can != 0;
  };
  if (!spec.devices.empty()) {
    for (const Device device : spec.devices) {
      SHMB_TRY(known, driver.at(device));
      if (!reaches(known->device))
        return error(Status::not_supported, "device " + std::to_string(device) + " is no peer of the device that has " +
                                                object + ": name another, or copy");
    }
    return spec.devices;
  }
  const Device current = current_device(driver);
  if (current != -1 && reaches(current)) return std::vector{current};
  if (memory.device != nullptr) return std::vector{memory.device->device};
  return std::vector{driver.devices().front().device};
}

}  // namespace

Result<std::vector<Allocation>> import_all(client::Session& session, const Driver& driver, const DeviceInfo& here,
                                           client::GpuOpened& opened, const std::string& object,
                                           client::Deadline deadline) {
  std::vector<Allocation> found;
  for (;;) {
    for (Fd& share : opened.shares) {
      auto one = Allocation::import(driver, share.get(), here, object);
      share.reset();
      if (!one) return std::unexpected(one.error());
      found.push_back(std::move(*one));
    }
    if (found.size() >= opened.chunks) return found;
    SHMB_TRY(more, client::gpu_more(session, opened.region, found.size(), opened.chunks - found.size(), deadline));
    opened.shares = std::move(more);
  }
}

class Import {
 public:
  Import(const std::shared_ptr<client::Session>& session, const Driver& driver, const ImportSpec& spec,
         client::Deadline deadline)
      : session_(session), driver_(driver), spec_(spec), deadline_(deadline) {}

  // The handle takes over the reference of `opened`, or gives it back.
  Result<Region::Handle> finish(client::GpuOpened& opened, std::vector<client::GpuReport>& reports) {
    try {
      return made_or_why(opened, reports);
    } catch (const std::bad_alloc&) {
      left_ = !owned_;
      return std::unexpected(Error{Status::no_memory, 0, {}, "out of memory"});  // short enough to need none
    }
  }
  bool left() const { return left_; }  // the caller gives the reference back

 private:
  Result<Region::Handle> made_or_why(client::GpuOpened& opened, std::vector<client::GpuReport>& reports) {
    auto made = make(opened);
    if (made) return made;
    Error failure = made.error();
    // Which codes say what is not known well enough to blame anybody, so others may try.
    if (failure.status == Status::bad_fd || failure.status == Status::too_small)
      failure.sentence +=
          "; only this import has failed: the region stays as it is, and other processes may have it mapped";
    if (failure.status == Status::device_not_visible)
      failure.sentence +=
          "; it lies on " + sys::gpu_uuid_text(opened.uuid, (opened.flags & SHMBW_GPU_PUBLISH_MIG) != 0);
    // The device that has the memory: the device that it was mapped for may have a fault of its own.
    failure = driver_.looked_after(std::move(failure), device_);
    if (failure.status == Status::device_lost) reports.push_back(lost_report(opened.uuid));
    left_ = !owned_;
    return std::unexpected(std::move(failure));
  }

  Result<Region::Handle> make(client::GpuOpened& opened) {
    const std::string object = called_ref(opened.region);
    SHMB_TRY(memory, memory_of(driver_, opened));
    device_ = memory.device;
    Manifest manifest;
    if (opened.manifest_bytes != 0) {
      SHMB_TRY(bytes, read_manifest(opened.manifest.get(), opened.manifest_bytes));
      SHMB_TRY(decoded, Manifest::decode(bytes, memory.length));
      manifest = std::move(decoded);
    }
    if ((opened.flags & SHMBW_GPU_PUBLISH_SET) != 0) {
      memory.sizes.assign(manifest.chunks().begin(), manifest.chunks().end());
      const auto uneven = [&](std::uint64_t bytes) { return bytes % memory.granularity != 0; };
      if (memory.sizes.size() != opened.chunks || memory.bytes != memory.length ||
          std::ranges::any_of(memory.sizes, uneven))
        return error(Status::invalid,
                     "the chunks of " + object + " are not those of its list: its publisher is at fault");
    }
    auto region = Region::make(driver_, std::move(memory), session_);
    region->ref_ = opened.region;
    region->rights_ = opened.rights & (SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_SHARE | SHMBW_RIGHT_RELEASE |
                                       (spec_.access == Access::read_write ? unsigned{SHMBW_RIGHT_MAP_WRITE} : 0U));
    region->writer_.store(spec_.access == Access::read_write, std::memory_order_release);
    region->manifest_ = std::move(manifest);
    region->published_.store(true, std::memory_order_release);
    region->note_state(state_of(opened.state), 0);
    owned_ = true;  // its destruction gives the reference back
    failed_ = region;
    SHMB_TRY_VOID(opened.kind == SHMBW_GPU_KIND_LEGACY ? map_lent(*region, opened, object)
                                                       : map_shares(*region, opened, object));
    failed_.reset();
    region->notices_->enter(region);
    return region;
  }

  Result<void> map_shares(Region& region, client::GpuOpened& opened, const std::string& object) {
    SHMB_TRY(devices, devices_for(driver_, spec_, region.memory_, object));
    region.devices_ = std::move(devices);
    const DeviceInfo& here = **driver_.at(region.devices_.front());
    // Where it is used there is a context, or will be.
    SHMB_TRY(scope, region.enter());
    SHMB_TRY(found, import_all(*session_, driver_, here, opened, object, deadline_));
    auto done = region.map(found, spec_.at);
    if (done) done = region.set_access(spec_.access);
    return done;
  }

  // Memory of cudaMalloc: the driver opens the whole allocation. It refuses that in the process that made it.
  Result<void> map_lent(Region& region, const client::GpuOpened& opened, const std::string& object) {
    region.access_.store(spec_.access, std::memory_order_release);
    const bool own_process = opened.exporter_pid == static_cast<std::uint32_t>(::getpid());
    const client::Deadline lending = own_process ? deadline_ : client::Deadline::now();
    if (auto own = region.notices_->find_lent(opened.region, lending)) {
      region.lent_ = std::move(own);
      region.devices_ = {region.memory_.device->device};
      region.pointer_.store(region.lent_->pointer, std::memory_order_release);
      const client::GpuRelease back{opened.region, 1, false};  // counted in this process
      (void)client::insist([&] { return client::gpu_release(*session_, {&back, 1}, client::Deadline::after(0)); });
      return {};
    }
    SHMB_TRY_VOID(driver_.need(Feature::lease));
    if (spec_.at != 0) return error(Status::invalid, "the driver chooses the address of lent memory");
    if (spec_.devices.size() > 1)
      return error(Status::not_supported, "lent memory is opened for one device: import it once for each");
    SHMB_TRY(devices, devices_for(driver_, spec_, region.memory_, object));
    region.devices_ = std::move(devices);
    // Only one context of a process may open it, and it is closed in the same one: the primary context, which stays.
    SHMB_TRY(scope, region.hold_.emplace(driver_, region.devices_.front()).enter());
    IpcHandle handle;
    static_assert(sizeof handle.reserved == sizeof opened.handle);
    std::memcpy(handle.reserved, opened.handle.data(), sizeof handle.reserved);
    Address base = 0;
    const BesideCaptures beside(driver_);
    const Code code = driver_->ipc_open_memory(&base, handle, kLazyPeer);
    if (code == kInvalidContext && own_process)
      return error(Status::not_found, object + " was lent by this process itself, which has taken it back meanwhile");
    if (code != kSuccess) return std::unexpected(driver_.open_failure(code, object));
    region.opened_ = base;
    region.pointer_.store(base + region.memory_.offset, std::memory_order_release);
    return {};
  }

  const std::shared_ptr<client::Session>& session_;
  const Driver& driver_;
  const ImportSpec& spec_;
  const client::Deadline deadline_;
  const DeviceInfo* device_ = nullptr;  // the device that has the memory
  Region::Handle failed_;               // its destruction gives the reference back, after the report
  bool owned_ = false, left_ = false;
};

std::vector<Result<Region::Handle>> Region::import(const std::shared_ptr<client::Session>& session,
                                                   std::span<const client::GpuRequest> wishes,
                                                   std::span<const ImportSpec> specs, client::Deadline deadline) {
  std::vector<Result<Handle>> results(wishes.size());
  auto loaded = Driver::load();
  if (!loaded || session->is_local()) {
    const Error why = loaded ? client::needs_broker("GPU regions of others").error() : loaded.error();
    std::ranges::fill(results, Result<Handle>(std::unexpected(why)));
    return results;
  }
  const Driver& driver = **loaded;
  (void)Leaving::run(nullptr);
  const Notices::Opening opening(Notices::of(session));
  std::vector<client::GpuReport> reports;
  for (std::size_t first = 0; first < wishes.size(); first += kWishesOfPacket) {
    const std::size_t count = std::min(kWishesOfPacket, wishes.size() - first);
    auto opened = client::gpu_open(*session, wishes.subspan(first, count), deadline);
    for (std::size_t i = 0; i < count; ++i) {
      auto& result = results[first + i];
      if (!opened) {
        result = std::unexpected(opened.error());
        continue;
      }
      auto& one = (*opened)[i];
      if (!one) {
        result = std::unexpected(one.error());
        continue;
      }
      Import import(session, driver, specs[first + i], deadline);
      result = import.finish(*one, reports);
      if (!result && import.left()) {
        const client::GpuRelease back{one->region, 1, false};
        (void)client::insist([&] { return client::gpu_release(*session, {&back, 1}, deadline); });
      }
    }
  }
  if (!reports.empty()) (void)client::insist([&] { return client::gpu_report_later(*session, reports, deadline); });
  return results;
}

Result<Region::Handle> Region::import(const std::shared_ptr<client::Session>& session, const client::GpuRequest& wish,
                                      const ImportSpec& spec, std::int64_t timeout, std::int64_t wait) {
  const client::Deadline until = client::Deadline::after(wait, SHMB_NAME_WAIT);
  for (;;) {
    auto made = std::move(import(session, {&wish, 1}, {&spec, 1}, client::Deadline::after(timeout)).front());
    if (made || made.error().status != Status::not_found || wish.by != SHMBW_ATTACH_BY_NAME ||
        !client::waits_for_name(wait))
      return made;
    client::WatchSpec named;
    named.kind = SHMBW_WATCH_KIND_NAME;
    named.address = wish.address;
    client::Session::OwnWatch watch(*session);
    SHMB_TRY_VOID(watch.begin(named, client::Deadline::after(timeout)));
    if (watch.state() != 0) continue;
    if (auto event = watch.await(until); !event) {
      Error failure = event.error();
      if (failure.status == Status::deadline) failure.sentence += ": " + made.error().sentence;
      return std::unexpected(std::move(failure));
    }
  }
}

}  // namespace shmb::cuda
