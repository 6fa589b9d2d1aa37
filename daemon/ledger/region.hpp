// SPDX-License-Identifier: Apache-2.0
// A region: memory of fixed size behind one memfd that the broker holds, or memory of a GPU (gpu_memory.hpp). Its
// identity is id + generation + epoch (law 7). The broker makes, sizes and seals the file and never touches a page of
// it (law 3).
//
// Its states (`state`), and what leads to each:
// - created: CREATE. The creator maps it and puts pages behind it.
// - ready: a writer has sent READY. Sessions that wait for that are notified.
// - write_closed: a session that may only read has attached in private mode. Mappings for writing that exist stay, and
//   no new one can be made (F_SEAL_FUTURE_WRITE).
// - published: no process can write any more (F_SEAL_WRITE), and no lease has the right.
// - cached: no holder is left, and it waits on its group's shelf under a new id. It is not live.
// - freeing: a helper thread closes it, or did not get to it yet. It stays charged until the close has returned.
//
// A live region has a holder (held()). release_region() is called after each loss of a holder, and frees or shelves it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "daemon/books/booked.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/kit/list.hpp"
#include "daemon/ledger/gpu_memory.hpp"
#include "daemon/ledger/lease.hpp"
#include "daemon/ledger/watch.hpp"

namespace shmb::daemon {

struct Group;
struct NameEntry;

inline constexpr std::uint64_t kMaxLength = (std::uint64_t{1} << 47) - 1;
// Rounds up to pages of 4 KiB, at least one; from 2 MiB on, and with `hugetlb`, to whole huge pages. `length` is at
// most kMaxLength.
std::uint64_t rounded_bytes(std::uint64_t length, bool hugetlb = false);

// A name and a keep that the region gets when it is published.
struct Promised {
  std::string name;
  std::int64_t keep = 0;
  bool replace = false;
};

struct OfGroup;
struct Region : Hook<Region, OfGroup>, books::Booked<Region> {
  std::uint64_t id = 0;
  std::uint64_t length = 0;
  std::uint64_t bytes = 0;
  std::uint64_t populated = 0;
  std::int64_t created = 0;  // CLOCK_BOOTTIME; on the shelf: the time when it came there
  std::int64_t keep = 0;
  Group* group = nullptr;
  const NameEntry* name = nullptr;
  std::uint64_t segment_of = 0;  // the pool's id; 0: no segment
  std::unique_ptr<Promised> promised;
  List<Lease, OfRegion> leases;
  Watchers watchers;
  std::uint32_t generation = 1;
  std::uint32_t creator_pid = 0;
  std::uint32_t writers = 0;           // leases with map_write
  std::uint32_t unmapped_writers = 0;  // those that may still map for writing (law 6)
  std::uint32_t lent_writers = 0;      // those of them that may be about to map: no publication meanwhile
  std::uint32_t tickets = 0;
  std::uint32_t pool_holds = 0;  // the pool that it is a segment of, and lanes whose messages name it
  std::uint8_t state = SHMBW_REGION_STATE_CREATED;
  std::uint8_t page_kind = SHMBW_PAGE_KIND_UNKNOWN;
  bool many_writers : 1 = false;
  bool no_recycle : 1 = false;
  bool dirty_birth : 1 = false;
  bool was_outside : 1 = false;        // another uid or a session outside the group held a lease: never recycled
  bool seal_sealed : 1 = false;        // F_SEAL_SEAL since birth
  bool heap : 1 = false;               // its creator says that it holds a heap
  bool name_with_holders : 1 = false;  // the name does not hold it
  bool hugetlb : 1 = false;            // its pages are of the host's reserve
  Fd fd;                               // empty for memory of a GPU
  std::unique_ptr<GpuMemory> gpu;      // of GPU regions and timelines
  Charge bytes_charge;
  Charge region_charge;
  std::uint32_t name_place = books::kNowhere;  // of the record of its name, or of the promised one

  std::uint32_t queues() const { return pool_holds - (segment_of != 0 ? 1 : 0); }
  // Neither on the shelf nor being closed.
  bool live() const { return state != SHMBW_REGION_STATE_FREEING && state != SHMBW_REGION_STATE_CACHED; }
  bool held() const { return !leases.empty() || tickets != 0 || name != nullptr || pool_holds != 0; }
  bool needed() const {  // by a session that does more than keep its mapping
    const Lease* lease = leases.first();
    while (lease != nullptr && lease->only_kept()) lease = leases.next(*lease);
    return lease != nullptr;
  }
  bool sealed() const { return state == SHMBW_REGION_STATE_WRITE_CLOSED || state == SHMBW_REGION_STATE_PUBLISHED; }
  shmbw_region_ref ref() const { return {id, generation, 0}; }
};

struct Regions;
// The object alone, with the memory that it owns from now on and what is paid for it.
Region& add_region(Regions& regions, Group& group, std::uint64_t id, std::uint64_t bytes, Fd memory,
                   Charge bytes_charge, Charge region_charge);

// Notes that its record in the books must be written again. Call it after each change of a field that
// daemon/books/records.toml names.
void changed(Region& region);

struct Birth {
  const char* label = "";  // names::memfd_name
  std::uint64_t bytes = 0;
  bool no_exec = false;
  bool seal_sealed = false;
  bool hugetlb = false;
};
// Does the whole birth of a memfd, or returns the error of the first call that failed.
Result<Fd> make_memory(const Birth& birth);

}  // namespace shmb::daemon
