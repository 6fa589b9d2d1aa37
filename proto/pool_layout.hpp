// SPDX-License-Identifier: Apache-2.0
// The shared memory of a pool and its queues, as broker and library both see it. It has two files. The broker alone
// writes the directory, and all others map it read-only. Participants and broker write the control area. Both consist
// of offsets and words. docs/pools.md says which process may change which of them.
//
// A word that two processes change is a std::atomic of a lock-free size. The words on which processes wait, and the
// positions of a lane's two ends, are 128 bytes apart, because the prefetcher takes lines in pairs. A slot's words and
// a reader's place in a ring have one line of 64 bytes each.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace shmb::pool {

inline constexpr std::size_t kParticipants = 64;  // one bit each in a 64-bit word
inline constexpr std::size_t kLine = 64, kApart = 128;
inline constexpr std::uint32_t kMaxSlots = 131072, kMaxLanes = 4096, kMaxQueues = 256, kMaxSegments = 256;
inline constexpr std::uint64_t kMaxControlBytes = std::uint64_t{16} << 20;  // fixed and charged at birth
inline constexpr std::uint64_t kMagic = 0x306c6f6f70626d68;                 // "hmbpool0"
inline constexpr std::uint32_t kVersion = 2;
inline constexpr std::uint32_t kNone = UINT32_MAX;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::endian::native == std::endian::little);

// ---------------------------------------------------------------- the directory: written by the broker only

// Words that pack a serial (or life) and a state change in one store, so that a reader sees both or neither.
struct Stamp {
  std::uint32_t serial = 0;  // life of a participant, serial of a lane or queue: never the same twice at one place
  std::uint8_t state = 0;
  friend bool operator==(const Stamp&, const Stamp&) = default;
  constexpr std::uint64_t word() const { return std::uint64_t{serial} << 8 | state; }
  static constexpr Stamp of(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word >> 8), static_cast<std::uint8_t>(word)};
  }
};

enum class ParticipantState : std::uint8_t { free, joining, live, dead, left };
// `dead`: its process died. `left`: it left in order. Peers learn that difference, and nothing else depends on it. In
// both states a repair runs, or messages of the participant are still unread.

struct ParticipantEntry {
  std::atomic<std::uint64_t> stamp;  // Stamp{life, ParticipantState}
  std::uint32_t pid;                 // as the broker sees it, 0 unknown; for messages only
  // The latest life that died and did not leave; stored before its stamp says dead.
  std::atomic<std::uint32_t> last_death;
};

// A region cut into slots. Entered once, never taken away while the pool lives.
struct SegmentEntry {
  std::atomic<std::uint32_t> in_use;  // 1, stored last
  std::uint32_t first_slot, slots;
  std::uint32_t generation;  // of the region
  std::uint64_t region;      // its id
  std::uint64_t slot_size;   // bytes a user may write
  std::uint64_t stride;      // bytes from slot to slot, stride_of(slot_size)
  // The most slots of all segments with this slot_size together. The first of them sets it, and the others repeat it.
  std::uint32_t slots_limit;
  std::uint32_t reserved;
};

enum class QueueKind : std::uint8_t { none, spsc, mpmc, broadcast };
enum class QueueState : std::uint8_t { free, open, closed };  // closed: no sends, readers drain
inline constexpr std::uint32_t kQueueDropOldest = 1 << 0;     // broadcast: overwrite what slow readers have not seen
inline constexpr std::uint32_t kQueueExpiring = 1 << 1;       // bodies open with the message's deadline
inline constexpr std::uint32_t kQueueAtLeastOnce = 1 << 2;    // mpmc: done only when the application says so

struct QueueEntry {
  std::atomic<std::uint64_t> stamp;  // Stamp{serial, QueueState}
  std::uint8_t kind;                 // QueueKind
  std::uint8_t reserved0[3];
  std::uint32_t flags;
  std::uint32_t cells;                          // per lane, a power of two
  std::uint32_t cell_size;                      // 64 or 128
  std::atomic<std::uint64_t> readers, writers;  // participants that have such an end open, a bit each
  std::atomic<std::uint32_t> generation;        // broadcast: counts writers; the current one is `writer_lane`
  std::atomic<std::uint32_t> writer_lane;       // broadcast: lane of the current writer, or kNone
  std::atomic<std::uint32_t> deaths;            // how many ends have died without a close, ever
  std::uint32_t name_length;
  char name[96];
};

enum class LaneState : std::uint8_t { free, open, writer_gone, reader_gone };
// writer_gone: its sender left, died or closed its end, and unread messages may be in it. reader_gone: spsc lanes only.
// Serials of lanes grow over the whole pool, so that of two lanes between the same two the older one is known.
// A broadcast lane that is free again but has `cells` keeps its memory for the next writer of the same queue: a reader
// that was about to join may still store its own position into it.

struct LaneEntry {
  std::atomic<std::uint64_t> stamp;  // Stamp{serial, LaneState}
  std::uint32_t queue;               // index
  std::uint32_t queue_serial;
  std::uint32_t from, from_life;  // the sender
  std::uint32_t to, to_life;      // spsc lanes: the receiver; else kNone, 0
  std::uint32_t cells, cell_size;
  std::uint64_t offset;  // in the control area
};

struct alignas(kApart) DirectoryHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t slots, lanes, queues, segments;  // sizes of the tables
  std::uint32_t reserved0;
  std::uint64_t epoch, pool;
  std::uint64_t directory_bytes, control_bytes;
  std::uint64_t lane_memory;                          // offset in the control area where lanes begin
  alignas(kApart) std::atomic<std::uint32_t> change;  // + 1 at each change of a table; peers are woken besides
  std::atomic<std::uint32_t> broken;                  // Broken; not 0: every call fails
  std::atomic<std::uint64_t> doorbells;               // participants that have set one, a bit each
};

// Why a pool is over. It never becomes whole again.
enum class Broken : std::uint32_t {
  no,
  impossible,    // the broker found words in the control area that no correct participant writes
  group_ended,   // its group has ended, and the pool was not kept
  broker_ended,  // nothing repairs the pool any more
};

// ---------------------------------------------------------------- the control area

// One bit per participant, set and cleared only by that participant (or the broker, for a dead one).
struct alignas(kApart) Waiters {
  std::atomic<std::uint64_t> mask;
};

struct alignas(kApart) WaitEntry {
  std::atomic<std::uint64_t> sleep;  // 0 awake, else SleepToken
  std::atomic<std::uint32_t> event;  // futex word
};
// A token never repeats within one life; its low bits say how to wake.
inline constexpr std::uint64_t kSleepFutex = 1, kSleepDoorbell = 2, kSleepTokenStep = 4;

struct alignas(kLine) SlotEntry {
  std::atomic<std::uint64_t> holders;     // one bit per participant
  std::atomic<std::uint32_t> generation;  // + 1 by the exclusive owner before it writes
};

// Slots form groups, each with a count of how often one of its slots became free. A search that found nothing in a
// group skips it until the count moves. The count only grows. Nonsense written into it hides free slots of this pool,
// or makes searches look again.
inline constexpr std::uint32_t kGroupSlots = 64;

struct ControlHeader {
  Waiters slot_waiters;  // participants that wait for a free slot
};
struct QueueWaiters {
  Waiters readers;  // asleep for want of a message
  Waiters writers;  // asleep for want of room
};

// The word of a cell. Positions wrap at 2^49: repeating one takes 163 days at 40 million messages a second, and only a
// participant stopped for exactly that long could mistake it.
inline constexpr unsigned kPositionBits = 49;
inline constexpr std::uint64_t kPositionMask = (std::uint64_t{1} << kPositionBits) - 1;
enum class CellState : std::uint8_t { empty = 0, full = 1, busy = 2 };  // busy: broadcast only, being overwritten
inline constexpr std::uint8_t kClaimedBy = 3;                           // mpmc lanes: 3 + participant

struct CellWord {
  std::uint64_t position = 0;  // the low 49 bits
  std::uint8_t state = 0;      // 7 bits: CellState, or kClaimedBy + participant
  std::uint8_t tag = 0;        // what the body is, below
  friend bool operator==(const CellWord&, const CellWord&) = default;
  constexpr std::uint64_t word() const {
    return std::uint64_t{tag} << 56 | std::uint64_t{state} << kPositionBits | (position & kPositionMask);
  }
  static constexpr CellWord of(std::uint64_t word) {
    return {word & kPositionMask, static_cast<std::uint8_t>(word >> kPositionBits & 0x7f),
            static_cast<std::uint8_t>(word >> 56)};
  }
  static constexpr std::uint64_t full(std::uint64_t position, std::uint8_t tag) {
    return CellWord{position, static_cast<std::uint8_t>(CellState::full), tag}.word();
  }
  static constexpr std::uint64_t empty(std::uint64_t position) { return CellWord{position, 0, 0}.word(); }
  static constexpr std::uint64_t busy(std::uint64_t position) {
    return CellWord{position, static_cast<std::uint8_t>(CellState::busy), 0}.word();
  }
  constexpr bool is(CellState wanted) const { return state == static_cast<std::uint8_t>(wanted); }
  constexpr bool claimed() const { return state >= kClaimedBy; }
};
static_assert(kClaimedBy + kParticipants <= 128);

// a - b of two positions that are less than 2^48 apart.
constexpr std::int64_t position_difference(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::int64_t>((a - b) << (64 - kPositionBits)) >> (64 - kPositionBits);
}

// The form of a cell's body. 0 to 120: so many bytes of payload. kTagListInline: the list itself. Any other tag: a
// Handle, and up to 8 (or 72) unused bytes after it.
inline constexpr std::uint8_t kTagMaxInline = 120, kTagSlot = 0xff, kTagListInSlot = 0xfe, kTagListInRegion = 0xfd,
                              kTagListInline = 0xfc;

struct Handle {
  std::uint32_t slot;        // or kNone
  std::uint32_t generation;  // of the slot, or of the region
  std::uint64_t region;      // kTagListInRegion: its id, else 0
  std::uint64_t offset, length;
  std::uint64_t type;   // the application's, untouched
  std::uint64_t parts;  // lists: how many
};
static_assert(sizeof(Handle) == 48);  // with the deadline in front it fills the 56 bytes of a small cell

struct LaneLine {  // offsets within a lane
  static constexpr std::size_t head = 0, tail = kApart, in_regions = tail + 8, reader = 2 * kApart;
};
// Broadcast: one per participant at LaneLine::reader.
struct alignas(kLine) ReaderEntry {
  std::atomic<std::uint64_t> position;  // 0: not attached, else 1 + position
  std::atomic<std::uint64_t> lost;      // messages that were overwritten before it saw them
};

struct Cell {
  std::atomic<std::uint64_t> word;
  std::byte* body() { return reinterpret_cast<std::byte*>(this) + sizeof(word); }
};

// ---------------------------------------------------------------- sizes and views

// The dimensions of a pool. Fixed at birth.
struct Shape {
  std::uint32_t slots = 0, lanes = 64, queues = 16, segments = 16;
  std::uint64_t lane_bytes = std::uint64_t{1} << 20;  // memory for lanes
  friend bool operator==(const Shape&, const Shape&) = default;
};

std::uint64_t stride_of(std::uint64_t slot_size);  // to 64 bytes; from 4 KiB to 4 KiB; from 2 MiB to 2 MiB
std::uint64_t lane_bytes(QueueKind kind, std::uint32_t cells, std::uint32_t cell_size);
std::uint64_t directory_bytes(const Shape& shape);  // whole pages
std::uint64_t control_bytes(const Shape& shape);    // whole pages
std::uint64_t lane_memory_at(const Shape& shape);   // offset in the control area where lanes begin
bool valid(const Shape& shape);                     // every table within its maximum, control area within 16 MiB

// Typed access to both areas. Construction checks once that every table lies within them; what is read later from the
// control area is bounded by the caller (a hostile participant may have written it).
class View {
 public:
  View() = default;
  // nullopt: the directory is not one of this version, or does not fit into what was mapped.
  static std::optional<View> open(std::span<std::byte> directory, std::span<std::byte> control);
  explicit operator bool() const { return directory_ != nullptr; }

  DirectoryHeader& header() const { return *reinterpret_cast<DirectoryHeader*>(directory_); }
  ParticipantEntry& participant(std::size_t index) const {
    return at<ParticipantEntry>(directory_, participants_, index);
  }
  SegmentEntry& segment(std::size_t index) const { return at<SegmentEntry>(directory_, segments_at_, index); }
  QueueEntry& queue(std::size_t index) const { return at<QueueEntry>(directory_, queues_at_, index); }
  LaneEntry& lane(std::size_t index) const { return at<LaneEntry>(directory_, lanes_at_, index); }

  ControlHeader& control() const { return *reinterpret_cast<ControlHeader*>(control_); }
  WaitEntry& wait(std::size_t participant) const { return at<WaitEntry>(control_, wait_at_, participant); }
  QueueWaiters& queue_waiters(std::size_t queue) const { return at<QueueWaiters>(control_, queue_waiters_at_, queue); }
  SlotEntry& slot(std::size_t index) const { return at<SlotEntry>(control_, slots_at_, index); }
  std::atomic<std::uint64_t>& freed(std::size_t group) const {
    return at<std::atomic<std::uint64_t>>(control_, freed_at_, group);
  }
  // Inside a lane whose entry says `offset`; the caller has checked the entry with lane_fits.
  std::byte* lane_memory(std::uint64_t offset) const { return control_ + offset; }
  bool lane_fits(std::uint64_t offset, QueueKind kind, std::uint32_t cells, std::uint32_t cell_size) const;

  const Shape& shape() const { return shape_; }
  std::uint32_t slots() const { return shape_.slots; }
  std::uint32_t groups() const { return (shape_.slots + kGroupSlots - 1) / kGroupSlots; }
  std::uint32_t lanes() const { return shape_.lanes; }
  std::uint32_t queues() const { return shape_.queues; }
  std::uint32_t segments() const { return shape_.segments; }
  std::span<std::byte> control_area() const { return {control_, control_bytes_}; }

 private:
  friend View lay_out(const Shape& shape, std::uint64_t epoch, std::uint64_t pool, std::span<std::byte> directory,
                      std::span<std::byte> control);
  View(const Shape& shape, std::byte* directory, std::byte* control);
  template <class T>
  static T& at(std::byte* area, std::size_t offset, std::size_t index) {
    return reinterpret_cast<T*>(area + offset)[index];
  }
  std::byte *directory_ = nullptr, *control_ = nullptr;
  std::uint64_t control_bytes_ = 0, lane_memory_ = 0;
  Shape shape_;
  std::size_t participants_ = 0, segments_at_ = 0, queues_at_ = 0, lanes_at_ = 0;
  std::size_t wait_at_ = 0, queue_waiters_at_ = 0, slots_at_ = 0, freed_at_ = 0;
};

// Writes the header of fresh, zeroed areas, or the same one again; the spans are at least directory_bytes and
// control_bytes long. Nothing is read from the areas.
View lay_out(const Shape& shape, std::uint64_t epoch, std::uint64_t pool, std::span<std::byte> directory,
             std::span<std::byte> control);

// One lane's words. Cheap to copy; made from a checked LaneEntry.
class LaneView {
 public:
  LaneView() = default;
  LaneView(std::byte* memory, QueueKind kind, std::uint32_t cells, std::uint32_t cell_size)
      : memory_(memory), first_cell_(memory + cells_offset(kind)), mask_(cells - 1), shift_(cell_size == 128 ? 7 : 6) {}
  explicit operator bool() const { return memory_ != nullptr; }
  std::atomic<std::uint64_t>& head() const { return word(LaneLine::head); }
  std::atomic<std::uint64_t>& tail() const { return word(LaneLine::tail); }
  std::atomic<std::uint64_t>& in_regions() const { return word(LaneLine::in_regions); }  // messages, for the books
  ReaderEntry& reader(std::size_t participant) const {
    return reinterpret_cast<ReaderEntry*>(memory_ + LaneLine::reader)[participant];
  }
  Cell& cell(std::uint64_t position) const {
    return *reinterpret_cast<Cell*>(first_cell_ + ((position & mask_) << shift_));
  }
  std::uint32_t cells() const { return mask_ + 1; }
  std::uint32_t body_bytes() const { return (1u << shift_) - 8; }
  static std::size_t cells_offset(QueueKind kind) {
    return LaneLine::reader + (kind == QueueKind::broadcast ? kParticipants * sizeof(ReaderEntry) : 0);
  }

 private:
  std::atomic<std::uint64_t>& word(std::size_t offset) const {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(memory_ + offset);
  }
  std::byte *memory_ = nullptr, *first_cell_ = nullptr;
  std::uint32_t mask_ = 0;
  unsigned shift_ = 6;
};

// Zeroes a lane's memory and gives its cells their first words (an mpmc lane's cell k opens as {k, empty}). The broker
// does this before the lane is entered in the directory.
void prepare_lane(std::byte* memory, QueueKind kind, std::uint32_t cells, std::uint32_t cell_size);
// The same in parts: `count` cells from `from` on; the part that begins with cell 0 prepares what stands before them.
void prepare_cells(std::byte* memory, QueueKind kind, std::uint32_t cells, std::uint32_t cell_size, std::uint32_t from,
                   std::uint32_t count);

}  // namespace shmb::pool
