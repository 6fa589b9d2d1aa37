// SPDX-License-Identifier: Apache-2.0
// GPU memory of one process: allocated here, adopted from another allocator, or imported. Its addresses are valid while
// it lives. Its end waits for the device, unmaps, and only then gives the reference back. So the broker never counts
// fewer users than there are. Without `release`, or if the device is not done in time, the region ends later.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mapping.hpp"
#include "client/calls/gpu_calls.hpp"
#include "client/region/region.hpp"
#include "client/session/session.hpp"
#include "cuda/backlog.hpp"
#include "cuda/manifest.hpp"
#include "cuda/memory.hpp"

namespace shmb::cuda {

class Notices;
struct Lent;

enum class Kind : std::uint8_t { vmm = 1, adopted, lent };
// The wire's numbers.
enum class State : std::uint8_t {
  unpublished = SHMBW_GPU_STATE_NONE,
  ok = SHMBW_GPU_STATE_OK,
  incomplete = SHMBW_GPU_STATE_INCOMPLETE,
  poisoned = SHMBW_GPU_STATE_POISONED,
  detached = SHMBW_GPU_STATE_DETACHED,
  device_lost = SHMBW_GPU_STATE_DEVICE_LOST,
  invalid = SHMBW_GPU_STATE_INVALID,
  retired = SHMBW_GPU_STATE_RETIRED,
  producer_dead = SHMBW_GPU_STATE_PRODUCER_DEAD,
};
inline State state_of(shmbw_gpu_state state) { return static_cast<State>(state); }

// The condition before others may read.
struct Sync {
  enum class How : std::uint8_t { device, stream, none } how = How::device;
  Stream stream = nullptr;
};

struct AllocateSpec {
  std::optional<Uuid> uuid;
  int device = -1;  // ordinal, used without a uuid; -1: of the current context, else the first
  bool rdma = false, zero = true;
  std::uint64_t chunk_bytes = 0;
  std::int64_t retry = 0;    // nanoseconds
  std::int64_t timeout = 0;  // of zeroing
};
struct PublishSpec {
  std::string name;
  std::uint64_t group = 0;
  std::optional<std::int64_t> keep;
  bool replace = false, writing = false, many_writers = false;
  bool close_own = false;  // this process's mapping becomes read-only when the writing is over
  Sync sync;
  std::vector<Tensor> tensors;
};
// A tensor of a set: its offset counts from its region's begin.
struct SetTensor {
  std::size_t region = 0;  // number in the set
  Tensor tensor;
};
struct SetSpec {
  std::string name;
  std::uint64_t group = 0;
  std::optional<std::int64_t> keep;
  bool replace = false;
  Sync sync;
  std::vector<SetTensor> tensors;
};
struct ImportSpec {
  Access access = Access::read;
  std::vector<Device> devices;  // empty: that of the current context, else the region's own
  Address at = 0;
  bool share = false;  // the lease includes the right to pass the region on
};

// Serialises changes of a region. One publication holds those of thousands of regions, so it is polled and no thread
// sleeps on it.
class Turn {
 public:
  bool try_lock() { return !taken_.test_and_set(std::memory_order_acquire); }
  void unlock() { taken_.clear(std::memory_order_release); }

 private:
  std::atomic_flag taken_;
};

class Region : public std::enable_shared_from_this<Region> {
 public:
  using Handle = std::shared_ptr<Region>;

  // The place and size of the memory. It never changes.
  struct Memory {
    Kind kind = Kind::vmm;
    Uuid uuid;                           // of the device that has the memory
    const DeviceInfo* device = nullptr;  // null: not visible here
    std::uint64_t length = 0;            // usable
    std::uint64_t bytes = 0;             // of the allocations
    std::uint64_t offset = 0;            // where the usable part begins
    std::uint64_t granularity = 0;
    std::vector<std::uint64_t> sizes;  // of the allocations
    bool rdma = false;                 // made so that network cards can access it
    bool mig = false;                  // `uuid` is a MIG instance's
  };

  static Result<Handle> allocate(std::shared_ptr<client::Session> session, std::uint64_t length,
                                 const AllocateSpec& spec);
  static Result<Handle> adopt(std::shared_ptr<client::Session> session, Address pointer, std::uint64_t length);
  // Elements are independent of each other. All belong to one session.
  static std::vector<Result<void>> publish(std::span<const Handle> regions, std::span<const PublishSpec> specs,
                                           const Patience& patience);
  static std::vector<Result<Handle>> import(const std::shared_ptr<client::Session>& session,
                                            std::span<const client::GpuRequest> wishes,
                                            std::span<const ImportSpec> specs, client::Deadline deadline);
  // All of them under one name, at once. The handle has no mapping.
  static Result<Handle> publish_set(const std::shared_ptr<client::Session>& session, std::span<const Handle> regions,
                                    const SetSpec& spec, const Patience& patience);
  // Waits for a name that does not exist yet.
  static Result<Handle> import(const std::shared_ptr<client::Session>& session, const client::GpuRequest& wish,
                               const ImportSpec& spec, std::int64_t timeout, std::int64_t wait);

  // The end of the last reference asks the driver nothing: Leaving ends the region in a later call.
  static Handle make(const Driver& driver, Memory memory, std::shared_ptr<client::Session> session);
  // For the last reference: deadline if the device is not done in time; then the region ends later.
  static Result<void> release(Handle region, client::Deadline deadline);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  const Memory& memory() const { return memory_; }
  Address pointer() const { return pointer_.load(std::memory_order_acquire); }  // 0: asleep
  Access access() const { return access_.load(std::memory_order_acquire); }
  State state() const { return state_.load(std::memory_order_acquire); }
  Code code() const { return code_.load(std::memory_order_acquire); }
  bool published() const { return published_.load(std::memory_order_acquire); }
  // The mapping is writable, and no process was told that the writing is over.
  bool may_write() const { return access() == Access::read_write && (!published() || writer_.load()); }
  bool not_closed() const { return not_closed_.load(); }  // CLOSE_OWN was asked, and the driver refused
  shmbw_region_ref ref() const { return published() ? ref_ : shmbw_region_ref{}; }
  std::uint64_t epoch() const { return published() ? session_->epoch() : 0; }
  const Manifest& manifest() const { return manifest_; }  // of a published region
  std::string called() const;                             // for sentences: "region 7.1"
  // A region of the torch allocator gets the session of its publisher.
  Result<void> bind(const std::shared_ptr<client::Session>& session);

  bool of(const client::Session* session) const { return session_.get() == session; }
  Backlog backlog() const;                  // of the devices that can access it
  std::unexpected<Error> unmapped() const;  // the answer where `pointer` is 0

  Result<void> written(Sync sync, const Patience& patience);
  Result<Handle> copy(const Patience& patience);
  Result<void> sleep(const Patience& patience);
  Result<void> wake(client::Deadline deadline);
  Result<client::Region::Ticket> make_ticket(std::uint32_t rights, std::uint32_t uses, std::int64_t lifetime,
                                             client::Deadline deadline);
  Result<Fd> dma_buf(std::uint64_t offset, std::uint64_t length);
  Result<void> unname();
  Device reached_by() const { return devices_.front(); }
  // While it is lent out to DLPack it does not sleep.
  Address pin_mapping() {  // 0: asleep
    ++views_;
    return pointer_.load();
  }
  void unpin_mapping() { --views_; }

  void note_state(State state, Code code);  // as reported by the broker

 private:
  friend class Publication;
  friend class SetPublication;
  friend class Import;
  friend class Leaving;
  Region(const Driver& driver, Memory memory, std::shared_ptr<client::Session> session);
  static void end(Region* region) noexcept;
  // Waits for other changes of it, which may wait for the device too.
  Result<std::unique_lock<Turn>> change(client::Deadline deadline) const;
  Result<void> map(std::span<const Allocation> allocations, Address at);
  Result<void> set_access(Access access);
  void close_own();
  Result<std::vector<Allocation>> allocations() const;
  Result<ContextHold::Scope> enter();
  Result<void> fall_asleep(client::Deadline deadline);
  bool unmap() noexcept;  // call when the device is done; false: the driver has not unmapped it
  // Completes a failure after a query of the device that has the memory. If the device is lost, the broker gets a
  // report.
  std::unexpected<Error> told(Error failure);

  const Driver* const driver_;
  const Memory memory_;
  std::shared_ptr<client::Session> session_;
  std::shared_ptr<Notices> notices_;  // gets states that the broker reports; set with the session
  std::vector<Device> devices_;       // those that can access it; calls that need a context use the first
  std::optional<ContextHold>
      hold_;  // from the first such call on; for lent memory the primary context, which opened it
  std::optional<OwnStream> working_;  // may still zero or copy, because nobody waited long enough
  mutable Turn changing_;             // publish, written, sleep, wake
  AddressRange range_;
  std::vector<Allocation> held_;  // adopted and not yet published, or asleep and never published
  Address opened_ = 0;            // lent memory: what the driver opened
  std::shared_ptr<Lent> lent_;    // lent memory of this process
  std::atomic<Address> pointer_ = 0;
  std::atomic<Access> access_ = Access::read_write;
  std::atomic<State> state_ = State::unpublished;
  std::atomic<Code> code_ = 0;
  std::atomic<bool> published_ = false;
  std::atomic<int> views_ = 0;
  shmbw_region_ref ref_{};
  std::uint32_t rights_ = 0;          // of the lease
  std::atomic<bool> writer_ = false;  // its death would poison the region
  std::atomic<bool> not_closed_ = false;
  bool close_own_ = false;
  bool maybe_written_ = false;  // a broker that was too slow may have heard it all the same
  Manifest manifest_;
  // of Leaving: the next one that has left, and what the devices had to do, from the first question on
  std::unique_ptr<Region> after_;
  std::optional<Backlog> left_with_;
};

// Waits for the condition of the Sync.
Result<void> wait_for(const Driver& driver, const Sync& sync, std::span<const Device> devices,
                      const std::string& object, client::Deadline deadline);
// Imports every chunk: the shares of the first reply, then the others, one packet at a time. So a region of thousands
// of chunks needs no more descriptors than one of 253.
Result<std::vector<Allocation>> import_all(client::Session& session, const Driver& driver, const DeviceInfo& here,
                                           client::GpuOpened& opened, const std::string& object,
                                           client::Deadline deadline);
client::GpuReport lost_report(const client::GpuUuid& uuid);
// The device of the current context, or -1.
Device current_device(const Driver& driver);

}  // namespace shmb::cuda
