// SPDX-License-Identifier: Apache-2.0
// The broker keeps GPUs initialised. When the last open of a GPU's node closes, the driver tears the GPU down, and with
// it all exported memory. The descriptors of that memory stay valid but stand for nothing (the driver's open source,
// os.c and nv.c). So the broker holds the node of every GPU that it has memory of. A thread of its own finds and opens
// the node, because a sleeping GPU may take seconds. No request waits for that and no time-out decides it (law 8): the
// end is an event.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/sys_gpu.hpp"
#include "daemon/books/booked.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/kit/helper_threads.hpp"
#include "daemon/ledger/gpu_memory.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

class Session;
struct Accounts;
struct Gpu;

inline constexpr std::uint32_t kNoMinor = UINT32_MAX;
inline constexpr std::size_t kDevicesOfSession = 64;
inline constexpr std::size_t kWatchesOfDevice = 1024, kLooksAtMost = 16384;  // looks that wait while a GPU is slow

// Pays for an object that outlives the session that brought it. The uid stays known as long as the charge does.
class UidCharge {
 public:
  UidCharge() = default;
  UidCharge(Accounts& accounts, std::uint32_t uid, Charge charge);
  UidCharge(UidCharge&& other) noexcept;
  UidCharge& operator=(UidCharge&&) = delete;
  ~UidCharge();
  std::uint32_t uid() const { return uid_; }

 private:
  Accounts* accounts_ = nullptr;
  std::uint32_t uid_ = 0;
  Charge charge_;
};

// One open node, shared by all sessions that named the GPU and by every region on it. Its end closes the node on the
// helper thread. A node that a session gave is charged to that session, because many sessions may give the same one.
// Nodes that the broker opened are as few as the GPUs.
struct GpuNode : books::Booked<GpuNode> {
  GpuNode(Gpu& owner, shmbw_gpu_hold how, std::uint32_t number, Fd node, UidCharge paid = {});
  GpuNode(const GpuNode&) = delete;
  GpuNode& operator=(const GpuNode&) = delete;
  ~GpuNode();

  Gpu& gpu;
  const std::uint64_t serial;
  const shmbw_gpu_hold hold;  // node, given, or trusted (without a descriptor)
  const std::uint32_t minor;
  UidCharge charge;
  Fd fd;
};

void drop_devices(Session& session);  // all that it has named
GpuDevice* find_device(Session& session, const sys::GpuUuid& uuid);

// The helper thread. It is started when there is first something to look at.
class GpuLooker {
 public:
  struct Look {
    std::uint64_t session = 0;
    sys::GpuUuid uuid{};
    std::string pci;
  };
  struct Found {
    Look look;
    std::uint32_t minor = kNoMinor;
    Fd node;
    int code = 0;      // errno of what failed
    std::string text;  // what failed
  };
  // `wake_fd` is signalled when something has been found. False: no thread could be started, or too many looks wait.
  bool look(Look look, int wake_fd);
  std::vector<Found> finished();

 private:
  struct State : HelperState {
    void run(std::unique_lock<std::mutex>& lock);
    std::deque<Look> looks;
    std::vector<Found> finished;
    int wake = -1;
  };
  HelperThreads<State> threads_;
};

// Names a GPU by its UUID and PCI address, and begins the look unless one of this session is under way. Returns the
// number of the event that will tell its end, or 0 if the node is known already.
Result<std::uint64_t> name_device(Gpu& gpu, Session& session, const sys::GpuUuid& uuid, std::string_view pci);
// The same with a descriptor of the node.
Result<GpuDevice*> give_node(Gpu& gpu, Session& session, const sys::GpuUuid& uuid, Fd node);
void devices_found(Gpu& gpu);  // after the helper thread woke us

}  // namespace shmb::daemon
