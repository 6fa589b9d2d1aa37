// SPDX-License-Identifier: Apache-2.0
// Looks run one after the other on one thread. The broker's thread takes over what they find.
#include "daemon/gpu/device.hpp"

#include <algorithm>
#include <utility>

#include "base/result.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "daemon/gpu/gpu.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/ledger/sessions.hpp"
#include "proto/refusal.hpp"

namespace shmb::daemon {

UidCharge::UidCharge(Accounts& accounts, std::uint32_t uid, Charge charge)
    : accounts_(&accounts), uid_(uid), charge_(std::move(charge)) {
  accounts.hold_uid(uid);
}

UidCharge::UidCharge(UidCharge&& other) noexcept
    : accounts_(std::exchange(other.accounts_, nullptr)), uid_(other.uid_), charge_(std::move(other.charge_)) {}

UidCharge::~UidCharge() {
  charge_.give_back();
  if (accounts_) accounts_->drop_uid(uid_);
}

GpuNode::GpuNode(Gpu& owner, shmbw_gpu_hold how, std::uint32_t number, Fd node, UidCharge paid)
    : gpu(owner),
      serial(++owner.host.last_serial),
      hold(how),
      minor(number),
      charge(std::move(paid)),
      fd(std::move(node)) {
  gpu.host.books.gpu_nodes.note(*this);
  if (fd) ++gpu.accounts.open_descriptors;
}

GpuNode::~GpuNode() {
  gpu.host.books.end<books::GpuNodeRecord>(gpu.host.books.gpu_nodes, *this);
  if (!fd) return;
  --gpu.accounts.open_descriptors;
  // The last close of a GPU's node tears the GPU down, which takes time. Without a thread the node is closed here.
  if (!gpu.regions.closer.close(fd)) gpu.regions.closer.close_here(std::move(fd));
  gpu.host.descriptor_freed();
}

static void end_record(Session& session, GpuDevice& device) {
  session.books.store.erase<books::GpuDeviceRecord>(device.place);
}

void drop_devices(Session& session) {
  for (GpuDevice& device : session.gpu_devices) end_record(session, device);
  session.gpu_devices.clear();
}

GpuDevice* find_device(Session& session, const sys::GpuUuid& uuid) {
  auto at = std::ranges::find(session.gpu_devices, uuid, &GpuDevice::uuid);
  return at == session.gpu_devices.end() ? nullptr : &*at;
}

bool GpuLooker::look(Look look, int wake_fd) {
  std::lock_guard lock(threads_->mutex);
  threads_->wake = wake_fd;
  if (threads_->threads == 0 && !threads_.start()) return false;
  if (threads_->looks.size() >= kLooksAtMost) return false;
  threads_->looks.push_back(std::move(look));
  threads_->ready.notify_one();
  return true;
}

std::vector<GpuLooker::Found> GpuLooker::finished() {
  std::lock_guard lock(threads_->mutex);
  return std::exchange(threads_->finished, {});
}

namespace {

GpuLooker::Found look_at(GpuLooker::Look look) {
  GpuLooker::Found found;
  found.look = std::move(look);
  auto failed = [&](const std::string& what, Errno code) {
    found.code = code.value;
    found.text = what + ": " + errno_text(code.value);
  };
  auto minor = sys::gpu_minor(found.look.pci);
  if (!minor) {
    const char* hidden = sys::gpus_hidden_in_proc()
                             ? ", which shows no GPUs here (is this gVisor?), nor is there exactly one node in /dev"
                             : "";
    failed("looking for GPU " + quoted(found.look.pci) + " in /proc/driver/nvidia" + hidden, minor.error());
    return found;
  }
  // A UUID other than the GPU's own is that of a MIG device on it, which /proc does not list.
  found.minor = *minor;
  auto node = sys::open_gpu_node(found.minor);
  if (!node) failed("opening " + sys::gpu_node_path(found.minor), node.error());
  else found.node = std::move(*node);
  return found;
}

}  // namespace

void GpuLooker::State::run(std::unique_lock<std::mutex>& lock) {
  while (!stop) {
    if (looks.empty()) {
      ready.wait(lock);
      continue;
    }
    Look next = std::move(looks.front());
    looks.pop_front();
    lock.unlock();
    Found found = look_at(std::move(next));
    lock.lock();
    if (stop) return;  // the broker has ended, and the number may name another file
    finished.push_back(std::move(found));
    sys::event_signal(wake);
  }
}

namespace {

Result<GpuDevice*> add_device(Gpu& gpu, Session& session, const sys::GpuUuid& uuid) {
  if (session.gpu_devices.size() >= kDevicesOfSession)
    return error(Status::invalid, "a session names at most " + std::to_string(kDevicesOfSession) + " GPUs");
  session.gpu_devices.push_back({uuid, {}, nullptr, ++gpu.host.last_serial});
  changed(session);
  return &session.gpu_devices.back();
}

std::shared_ptr<GpuNode> node_of(Gpu& gpu, GpuLooker::Found& found) {
  if (found.node) {
    std::weak_ptr<GpuNode>& known = gpu.nodes[found.minor];
    if (auto node = known.lock()) {
      (void)gpu.regions.closer.close(found.node);
      return node;
    }
    auto node = std::make_shared<GpuNode>(gpu, SHMBW_GPU_HOLD_NODE, found.minor, std::move(found.node));
    known = node;
    return node;
  }
  if (!gpu.host.config.gpu_trust) return nullptr;
  return std::make_shared<GpuNode>(gpu, SHMBW_GPU_HOLD_TRUSTED, found.minor, Fd());
}

}  // namespace

Result<std::uint64_t> name_device(Gpu& gpu, Session& session, const sys::GpuUuid& uuid, std::string_view pci) {
  GpuDevice* device = find_device(session, uuid);
  if (device && device->node) return 0;
  const bool under_way = device != nullptr;
  if (!device) {
    SHMB_TRY(added, add_device(gpu, session, uuid));
    device = added;
  }
  if (!under_way && !gpu.looker.look({session.id, uuid, std::string(pci)}, gpu.regions.closer.wake_fd())) {
    session.gpu_devices.pop_back();
    return error(Status::no_memory,
                 "no helper thread could be started to look at the GPU, or it has too many to look at: ask again");
  }
  if (device->watches.size() >= kWatchesOfDevice)
    return error(Status::busy, std::to_string(kWatchesOfDevice) +
                                   " requests of this session wait for that GPU already: wait for an event gpu_device");
  device->watches.push_back(++gpu.host.last_serial);
  return device->watches.back();
}

Result<GpuDevice*> give_node(Gpu& gpu, Session& session, const sys::GpuUuid& uuid, Fd node) {
  auto what = sys::gpu_file(node.get());
  std::uint32_t minor = what ? what->minor : kNoMinor;
  if (!what || what->kind != sys::GpuKind::node) {
    (void)close_elsewhere(gpu.accounts, session.uid, std::move(node));
    return error(Status::bad_fd, "the descriptor is no open node of a GPU (/dev/nvidia0, ...)");
  }
  if (const auto shortage = gpu.accounts.descriptor_shortage(session.uid, 1, session.admin)) {
    (void)close_elsewhere(gpu.accounts, session.uid, std::move(node));
    return std::unexpected(refuse_descriptors(gpu.host, *shortage));
  }
  GpuDevice* device = find_device(session, uuid);
  const bool fresh = device == nullptr;
  if (fresh) {
    auto added = add_device(gpu, session, uuid);
    if (!added) return added;
    device = *added;
  }
  // A node that the broker opened itself is that of the GPU. A given node may be that of another GPU.
  if (device->node && device->node->hold == SHMBW_GPU_HOLD_NODE) {
    (void)close_elsewhere(gpu.accounts, session.uid, std::move(node));
    return device;
  }
  auto charge = gpu.accounts.uids.at(session.uid).account.charge(Resource::gpu_descriptors, 1);
  if (!charge) {
    (void)close_elsewhere(gpu.accounts, session.uid, std::move(node));
    if (fresh) session.gpu_devices.pop_back();
    return std::unexpected(refuse_limit(gpu.groups, session, charge.error()));
  }
  device->node = std::make_shared<GpuNode>(gpu, SHMBW_GPU_HOLD_GIVEN, minor, std::move(node),
                                           UidCharge(gpu.accounts, session.uid, std::move(*charge)));
  changed(session);
  return device;
}

void devices_found(Gpu& gpu) {
  for (GpuLooker::Found& found : gpu.looker.finished()) {
    auto node = node_of(gpu, found);
    Session* session = gpu.sessions.find(found.look.session);
    GpuDevice* device = session ? find_device(*session, found.look.uuid) : nullptr;
    if (!device) continue;  // the session's end gives the node back
    const std::vector<std::uint64_t> watches = std::exchange(device->watches, {});
    if (!device->node) device->node = node;  // else a node was given meanwhile
    changed(*session);
    shmbw_gpu_device_event event{};
    std::ranges::copy(found.look.uuid, event.uuid);
    event.hold = device->node ? device->node->hold : SHMBW_GPU_HOLD_FAILED;
    event.minor = found.minor;
    event.system_errno = static_cast<std::uint32_t>(found.code);
    // A failed look may be repeated, because the cause may be gone by then.
    if (!device->node) {
      end_record(*session, *device);
      session->gpu_devices.erase(session->gpu_devices.begin() + (device - session->gpu_devices.data()));
    }
    for (const std::uint64_t watch : watches) {
      event.watch = watch;
      tell_gpu_device(*session, event, found.text);
    }
  }
}

}  // namespace shmb::daemon
