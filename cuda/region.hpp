// SPDX-License-Identifier: Apache-2.0
// GPU memory as one process has it: allocated here, adopted from another allocator, or imported. While it lives its
// addresses are good; its end waits for the device, takes the mapping away and only then gives the reference back, so
// that the broker never counts less than there is. A device that is not through in time has the region end later.
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
#include "client/gpu_calls.hpp"
#include "client/region.hpp"
#include "client/session.hpp"
#include "cuda/backlog.hpp"
#include "cuda/manifest.hpp"
#include "cuda/memory.hpp"

namespace shmb::cuda {

class Notices;
struct Lent;

enum class Kind : std::uint8_t { vmm = 1, adopted, lent };
// The wire's numbers.
enum class State : std::uint8_t {
  unpublished,
  ok,
  incomplete,
  poisoned,
  detached,
  device_lost,
  invalid,
  retired,
  producer_dead
};
inline State state_of(shmbw_gpu_state state) { return static_cast<State>(state); }

// What is waited for before others may read.
struct Sync {
  enum class How : std::uint8_t { device, stream, none } how = How::device;
  Stream stream = nullptr;
};

struct AllocateSpec {
  std::optional<Uuid> uuid;
  int device = -1;  // ordinal, without uuid; -1: of the current context, else the first
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
  Sync sync;
  std::vector<Tensor> tensors;
};
struct ImportSpec {
  Access access = Access::read;
  std::vector<Device> devices;  // empty: that of the current context, else the region's own
  Address at = 0;
  bool share = false;  // the lease shall carry the right to hand the region on
};

// Whose turn it is to change a region. One publication has those of thousands, and nobody sleeps on one.
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

  // Where and what the memory is; never changes.
  struct Memory {
    Kind kind = Kind::vmm;
    Uuid uuid;                           // of the device that has it
    const DeviceInfo* device = nullptr;  // null: not visible here
    std::uint64_t length = 0;            // usable
    std::uint64_t bytes = 0;             // of the allocations
    std::uint64_t offset = 0;            // of the usable part in them
    std::uint64_t granularity = 0;
    std::vector<std::uint64_t> sizes;  // of the allocations
    bool rdma = false;                 // made so that network cards reach it
    bool mig = false;                  // `uuid` is a MIG instance's
  };

  static Result<Handle> allocate(std::shared_ptr<client::Session> session, std::uint64_t length,
                                 const AllocateSpec& spec);
  static Result<Handle> adopt(std::shared_ptr<client::Session> session, Address pointer, std::uint64_t length);
  // Elements are independent of each other; all are of one session.
  static std::vector<Result<void>> publish(std::span<const Handle> regions, std::span<const PublishSpec> specs,
                                           const Patience& patience);
  static std::vector<Result<Handle>> import(const std::shared_ptr<client::Session>& session,
                                            std::span<const client::GpuWish> wishes, std::span<const ImportSpec> specs,
                                            client::Deadline deadline);
  // Waits for a name that is not there yet.
  static Result<Handle> import(const std::shared_ptr<client::Session>& session, const client::GpuWish& wish,
                               const ImportSpec& spec, std::int64_t timeout, std::int64_t wait);

  // Its last reference ends it as `release` does with the default deadline; what is not over then is left to Leaving.
  static Handle make(const Driver& driver, Memory memory, std::shared_ptr<client::Session> session);
  // If this is the last reference: deadline where the device is not through in time, and the region ends later.
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
  shmbw_region_ref ref() const { return published() ? ref_ : shmbw_region_ref{}; }
  std::uint64_t epoch() const { return published() ? session_->epoch() : 0; }
  const Manifest& manifest() const { return manifest_; }  // of a published region
  std::string called() const;                             // for sentences: "region 7.1"
  // A region of the torch allocator gets the session of who publishes it.
  Result<void> bind(const std::shared_ptr<client::Session>& session);

  bool of(const client::Session* session) const { return session_.get() == session; }
  Backlog backlog() const;  // of the devices that reach it

  Result<void> written(Sync sync, const Patience& patience);
  Result<void> sleep(const Patience& patience);
  Result<void> wake(client::Deadline deadline);
  Result<client::Region::Ticket> make_ticket(std::uint32_t rights, std::uint32_t uses, std::int64_t lifetime,
                                             client::Deadline deadline);
  Result<Fd> dma_buf(std::uint64_t offset, std::uint64_t length);
  Result<void> unname();
  Device reached_by() const { return devices_.front(); }
  // While lent out to DLPack it does not sleep.
  Address pin_mapping() {  // 0: asleep
    ++views_;
    return pointer_.load();
  }
  void unpin_mapping() { --views_; }

  void note_state(State state, Code code);  // as the broker pushed it

 private:
  friend class Publication;
  friend class Import;
  Region(const Driver& driver, Memory memory, std::shared_ptr<client::Session> session);
  static void end(Region* region) noexcept;
  // Others that change it take their time with the device too.
  Result<std::unique_lock<Turn>> change(client::Deadline deadline) const;
  Result<void> map(std::span<const Allocation> allocations, Address at);
  Result<void> set_access(Access access);
  Result<std::vector<Allocation>> allocations() const;
  Result<ContextHold::Scope> enter();
  Result<void> fall_asleep(client::Deadline deadline);
  bool unmap() noexcept;  // the device is through; false: the driver has not taken it away
  // A failure of ours, after a look at the device that has the memory: where it is lost the broker is told.
  std::unexpected<Error> told(Error failure);

  const Driver* const driver_;
  const Memory memory_;
  std::shared_ptr<client::Session> session_;
  std::shared_ptr<Notices> notices_;  // where pushed states come in; set with the session
  std::vector<Device> devices_;       // that reach it; calls that need a context get that of the first
  std::optional<ContextHold> hold_;   // from the first such call on; of lent memory the primary one, which opened it
  mutable Turn changing_;             // publish, written, sleep, wake
  AddressRange range_;
  std::vector<Allocation> held_;  // adopted and not yet published, or asleep and never published
  Address opened_ = 0;            // lent: what the driver opened
  std::shared_ptr<Lent> lent_;    // lent by this process itself
  std::atomic<Address> pointer_ = 0;
  std::atomic<Access> access_ = Access::read_write;
  std::atomic<State> state_ = State::unpublished;
  std::atomic<Code> code_ = 0;
  std::atomic<bool> published_ = false;
  std::atomic<int> views_ = 0;
  shmbw_region_ref ref_{};
  std::uint32_t rights_ = 0;  // of the lease
  bool writer_ = false;       // its death would poison
  // A broker that was too slow may have taken it all the same: the mapping never turns writable again.
  bool maybe_published_ = false, maybe_written_ = false;
  Manifest manifest_;
};

// As the Sync says.
Result<void> wait_for(const Driver& driver, const Sync& sync, std::span<const Device> devices,
                      const std::string& object, client::Deadline deadline);
// Imports every chunk: the shares that came with the answer, then the others, one packet's at a time, so that a region
// of thousands of chunks needs no more descriptors than one of 253. `code` is what the driver answered last.
Result<std::vector<Allocation>> import_all(client::Session& session, const Driver& driver, const DeviceInfo& here,
                                           client::GpuOpened& opened, const std::string& object, Code& code,
                                           client::Deadline deadline);
client::GpuReport lost_report(const client::GpuUuid& uuid);
// The device of the current context, or -1.
Device current_device(const Driver& driver);

}  // namespace shmb::cuda
